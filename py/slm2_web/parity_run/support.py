"""The table of browsers in docs/browsers.md, from the certificate beside it.

    python -m slm2_web.parity_run.support --write | --check

A line for each cell of a browser, as docs/certificate.json has it: what ran, on what, how many records, how
many of them differ. Nothing is added by hand, so the table says no more than a run of the suite has shown.
The kernels and shaders that ran then are the checkout's, or it is time for another run.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Final

from slm2_web.parity.certificate import Cell, Certificate, parse

ROOT: Final = Path(__file__).resolve().parents[3]
CERTIFICATE: Final = ROOT / "docs" / "certificate.json"
PAGE: Final = ROOT / "docs" / "browsers.md"
MARK: Final = "<!-- generated: python -m slm2_web.parity_run.support --write -->"
_KERNELS: Final = ("wasm/*.wasm", "shaders/*.wgsl")
_NAMES: Final = {"chromium": "Chromium", "firefox": "Firefox", "webkit": "WebKitGTK"}
_EXECUTORS: Final = {"webgpu": "WebGPU", "wasm": "WebAssembly, shared memory", "wasm-plain": "WebAssembly"}


def table(certificate: Certificate) -> str:
    """Markdown: the run in a sentence, and its cells in their order, without CPython's own."""
    lines = [
        f"Made {certificate.made_at[:10]} by `{certificate.command}`, of version "
        f"`{certificate.site[:12]}` of the site:",
        "",
        "| browser | executor | on | records | differ |",
        "|---|---|---|---|---|",
    ]
    lines += [_line(cell) for cell in certificate.cells if cell.browser != "cpython"]
    return "\n".join(lines) + "\n"


def _line(cell: Cell) -> str:
    name = f"{_NAMES.get(cell.browser, cell.browser)} {cell.browser_version}".strip()
    executor = _EXECUTORS[cell.executor]
    if cell.absence is not None:
        return f"| {name} | {executor} | none: {cell.absence} | | |"
    if cell.failure is not None:
        return f"| {name} | {executor} | failed: `{cell.failure.code}` | | |"
    records = sum(stage.vectors for stage in cell.stages)
    wrong = [stage.name for stage in cell.stages if stage.verdict != "equal"]
    return f"| {name} | {executor} | {cell.adapter} | {records:,} | {', '.join(wrong) or 'none'} |"


def other_kernels(certificate: Certificate, root: Path = ROOT) -> list[str]:
    """The paths of kernels and shaders that differ between the certificate and the checkout at `root`."""
    files = (path for pattern in _KERNELS for path in (root / "worker").glob(pattern))
    here = {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    ran = {each.path: each.sha256 for each in certificate.artifacts if each.kind == "kernel"}
    return sorted(path for path in here.keys() | ran.keys() if here.get(path) != ran.get(path))


def updated(page: str, made: str) -> str:
    """The page with the table in place of what follows its mark up to the next blank line after a table.

    Raises: ValueError for a page without the mark.
    """
    before, mark, after = page.partition(f"{MARK}\n\n")
    if not mark:
        raise ValueError(f"{PAGE.name}: found no line {MARK}")
    rest = after.split("\n\n", 2)  # the sentence, the table, the rest
    return f"{before}{mark}{made}\n{rest[2] if len(rest) > 2 else ''}"


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 1 when the page has another table, or the certificate other kernels."""
    parser = argparse.ArgumentParser(prog="python -m slm2_web.parity_run.support")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the table into the page")
    what.add_argument("--check", action="store_true", help="compare both with the checkout")
    options = parser.parse_args(arguments)
    page = PAGE.read_text("utf-8")
    certificate = parse(CERTIFICATE.read_bytes())
    made = updated(page, table(certificate))
    if options.write:
        PAGE.write_text(made, "utf-8", newline="\n")
        return 0
    if made != page:
        print(f"{PAGE.name}: the table is not the certificate's")
    others = other_kernels(certificate)
    if others:
        print(f"{CERTIFICATE.name}: not what the checkout has: {', '.join(others)}; run the suite again")
    return int(made != page or bool(others))


if __name__ == "__main__":
    sys.exit(main())
