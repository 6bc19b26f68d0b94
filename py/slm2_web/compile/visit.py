"""What a first visit fetches of a built site beside the model, and how many bytes that is.

python -m slm2_web.compile.visit DIR
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

# The most that a visit may fetch beside the model, compressed.
LIMIT_BYTES: Final = 10_000_000

# (part, its files). The first pattern that matches counts; {runtime}, {numpy} and {wheel} are site.json's.
_PARTS: Final = (
    ("Pyodide", r"{runtime}/pyodide(?:\.asm)?\.(?:mjs|wasm)|{runtime}/pyodide-lock\.json"),
    ("standard library", r"{runtime}/python_stdlib\.zip"),
    ("numpy", r"{numpy}"),
    ("slm2_web", r"{wheel}"),
    ("page and workers", r"index\.html|vendor/.*|web/(?!parity|tokenizer|storage).*|worker/(?!shaders/).*"),
)


class Part(NamedTuple):
    """Files of one kind: bytes as they are, and as a server sends them that has the .gz files."""

    name: str
    bytes: int
    sent_bytes: int


def first_visit(site: Path) -> list[Part]:
    """The parts of the site in that folder which a first visit fetches at the most.

    Not the model, the other pages, the second opinion of the parity suite (regex, micropip, packaging); nor
    what the service worker keeps later.
    """
    facts: Mapping[str, Any] = json.loads((site / "site.json").read_bytes())
    words = {key: re.escape(facts[key]) for key in ("runtime", "numpy", "wheel")}
    patterns = [(name, re.compile(pattern.format(**words))) for name, pattern in _PARTS]
    sums = {name: [0, 0] for name, _ in _PARTS}
    for path, entry in facts["files"].items():
        name = next((name for name, pattern in patterns if pattern.fullmatch(path)), None)
        if name is not None:
            packed = site / f"{path}.gz"
            sums[name][0] += entry["bytes"]
            sums[name][1] += packed.stat().st_size if packed.is_file() else entry["bytes"]
    return [Part(name, *found) for name, found in sums.items()]


def table(parts: Sequence[Part]) -> str:
    """The parts as a table in markdown, in kB."""
    total = Part("together", sum(part.bytes for part in parts), sum(part.sent_bytes for part in parts))
    rows = [f"| {p.name} | {p.bytes / 1e3:,.0f} | {p.sent_bytes / 1e3:,.0f} |" for p in (*parts, total)]
    return "\n".join(("| part | kB | kB sent |", "|---|---|---|", *rows))


if __name__ == "__main__":
    print(table(first_visit(Path(sys.argv[1]))))
