"""What a first visit fetches of a built site beside the model, and how many bytes that is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from slm2_web import __version__
from slm2_web.compile.progress import megabytes
from slm2_web.compile.site import SITE_FILE, SiteError

# The most that a site may have beside its models, compressed.
LIMIT_BYTES: Final = 10_000_000

# Keys of site.json, each a path.
_PLACES: Final = ("runtime", "stdlib", "numpy", "wheel")
# (part, its files).
_PARTS: Final = (
    ("Pyodide", r"{runtime}/pyodide(?:\.asm)?\.(?:mjs|wasm)|{runtime}/pyodide-lock\.json"),
    ("standard library", r"{stdlib}"),
    ("numpy", r"{numpy}"),
    ("slm2_web", r"{wheel}"),
    (
        "page and workers",
        r"index\.html|vendor/.*|web/(?!parity|tokenizer|storage|bench).*|worker/(?!shaders/).*",
    ),
)


class Part(NamedTuple):
    """Files of one kind: bytes as they are, and as a server sends them that has the .gz files."""

    name: str
    bytes: int
    sent_bytes: int


def first_visit(site: Path) -> list[Part]:
    """The parts of the site in that folder which a first visit fetches at the most.

    Not the model, the other pages, the second opinion of the parity suite; nor what the service worker keeps
    later.
    """
    facts = _facts(site)
    words = {key: re.escape(facts[key]) for key in _PLACES}
    return [_part(name, re.compile(pattern.format(**words)), site, facts) for name, pattern in _PARTS]


def whole(site: Path) -> Part:
    """All files of the site but the models'."""
    return _part("all but models", re.compile(r"(?!models/).*"), site, _facts(site))


def table(site: Path) -> str:
    """The parts of a first visit, their sum, and the whole site, as a table in markdown, in MB."""
    parts = first_visit(site)
    total = Part("together", sum(part.bytes for part in parts), sum(part.sent_bytes for part in parts))
    rows = [
        f"| {p.name} | {megabytes(p.bytes)} | {megabytes(p.sent_bytes)} |"
        for p in (*parts, total, whole(site))
    ]
    return "\n".join(("| part | MB | MB sent, with the .gz files |", "|---|---|---|", *rows))


def _facts(site: Path) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = json.loads((site / SITE_FILE).read_bytes())
    if missing := [key for key in (*_PLACES, "files") if key not in facts]:
        raise SiteError(
            f"{site / SITE_FILE}: found no {', '.join(missing)}; allowed: a site of version {__version__}"
        )
    return facts


def _part(name: str, pattern: re.Pattern[str], site: Path, facts: Mapping[str, Any]) -> Part:
    paths = [path for path in facts["files"] if pattern.fullmatch(path)]
    sizes = [facts["files"][path]["bytes"] for path in paths]
    packed = [site / f"{path}.gz" for path in paths]
    sent = [gz.stat().st_size if gz.is_file() else size for gz, size in zip(packed, sizes, strict=True)]
    return Part(name, sum(sizes), sum(sent))
