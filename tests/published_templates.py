"""The published chat templates that the compiler is tried on, and what comes of each.

`python tests/published_templates.py` (with `PYTHONPATH=py:tests`) tries them all and compares with the table
in tests/unit/compile/published_templates.json; with `--write` it writes the table. A template's entry is

    {"sha256", "rendered", "refused"}                 compiled: equal to jinja2 on so many conversations, and
                                                      so many more that both refuse
    {"sha256", "unsupported", "line"}                 not compiled: the construct and its line
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import nodes

from jinja_corpus import names_for
from jinja_oracle import DATE, VARIABLES, environment, rendered
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.jinja import compile_template
from slm2_web.errors import FormatError, InputError
from slm2_web.template2.bounded.program import Program, read_program
from slm2_web.template2.compiled import write

ROOT = Path(__file__).resolve().parents[1]
ASSET = "llama-cpp-python-0.3.36.tar.gz"
TABLE = ROOT / "tests" / "unit" / "compile" / "published_templates.json"
FOLDER = "vendor/llama.cpp/models/templates/"
# Conversations that must render, per template, and how many are drawn at most to find them.
RENDERED = 200
DRAWN = 800


@lru_cache(maxsize=1)
def sources() -> Mapping[str, str]:
    """The templates by file name, in their order."""
    found = {}
    with tarfile.open(Fetcher.from_environment(ROOT).fetch(ASSET), "r:gz") as archive:
        for member in archive:
            name = member.name.partition(FOLDER)[2]
            if name.endswith(".jinja"):
                file = archive.extractfile(member)
                assert file is not None
                found[name] = file.read().decode("utf-8")
    return dict(sorted(found.items()))


def program_of(source: str) -> Program:
    """The template compiled, written as JSON and read again."""
    return read_program(json.loads(json.dumps(compile_template(source, VARIABLES, date=DATE))))


def draws(name: str, source: str) -> Iterator[dict[str, Any]]:
    """The template's conversations."""
    tree = environment().parse(source)
    literals = [const.value for const in tree.find_all(nodes.Const) if isinstance(const.value, str)]
    yield from names_for(name, DRAWN, literals)


def outcome(name: str, source: str) -> dict[str, Any]:
    """The template's entry. Raises: AssertionError where the two differ."""
    entry: dict[str, Any] = {"sha256": hashlib.sha256(source.encode("utf-8")).hexdigest()}
    try:
        program = program_of(source)
    except FormatError as error:
        line = int(error.detail["place"].rpartition(" ")[2])
        return entry | {"unsupported": error.detail["found"], "line": line}
    template = environment().from_string(source)
    n_rendered = n_refused = 0
    for number, names in enumerate(draws(name, source)):
        expected = rendered(template, names)
        try:
            found: str | None = write(program, names)
        except InputError:
            found = None
        assert found == expected, f"{name}, conversation {number}"
        n_rendered += found is not None
        n_refused += found is None
        if n_rendered == RENDERED:
            break
    return entry | {"rendered": n_rendered, "refused": n_refused}


def table() -> dict[str, dict[str, Any]]:
    """The table in the tree."""
    entries: dict[str, dict[str, Any]] = json.loads(TABLE.read_text("utf-8"))
    return entries


def markdown(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The table for docs/template.md."""
    lines = ["| template | equal on | both refuse |", "|---|---|---|"]
    for name, entry in entries.items():
        if "rendered" in entry:
            lines.append(f"| {name} | {entry['rendered']} | {entry['refused']} |")
        else:
            lines.append(f"| {name} | refused: {entry['unsupported']}, line {entry['line']} | |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """0 when the table in the tree is what comes out, or was written."""
    found = {name: outcome(name, source) for name, source in sources().items()}
    print(markdown(found), end="")
    if "--write" in sys.argv:
        TABLE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        return 0
    return int(found != table())


if __name__ == "__main__":
    sys.exit(main())
