"""parity: the suite in every browser, and its certificate; or two certificates compared. Needs a checkout."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from slm2_web.cli.bench import names_of
from slm2_web.cli.stdio import EXIT_DONE, EXIT_ERROR, EXIT_NO, say, write
from slm2_web.errors import AssetError
from slm2_web.parity.certificate import MAX_BYTES, Cell, Certificate, parse
from slm2_web.parity.subject import Size

if TYPE_CHECKING:
    from slm2_web.browsers import BrowserSpec
    from slm2_web.parity_run.run import Options

SIZES: Final = ("quick", "reduced", "full")
EXECUTORS: Final = ("webgpu", "wasm", "wasm-plain")
CPYTHON: Final = ("reference", "wasm", "none")
DEFAULT_BROWSERS: Final = "chromium,firefox,webkit"
DEFAULT_EXECUTORS: Final = ",".join(EXECUTORS)
_EXITS: Final = {"equal": EXIT_DONE, "differs": EXIT_NO, "failed": EXIT_ERROR}
_REDRAW_S: Final = 0.2


@click.command()
@click.option(
    "--browsers",
    metavar="NAME[@URL],...",
    default=DEFAULT_BROWSERS,
    show_default=True,
    help="Which browsers, each of this machine or behind a Playwright server or a WebDriver endpoint.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="The certificate's folder.")
@click.option(
    "--site", metavar="DIR|URL", help="A built site; default: one of this checkout, built when needed."
)
@click.option(
    "--size",
    type=click.Choice(SIZES),
    default="reduced",
    show_default=True,
    help="How many records of each stage.",
)
@click.option(
    "--executors",
    metavar="NAME,...",
    default=DEFAULT_EXECUTORS,
    show_default=True,
    callback=names_of(EXECUTORS),
    help="webgpu; wasm on shared memory; wasm-plain, without cross-origin isolation.",
)
@click.option("--stages", metavar="NAME,...", help="Which stages; default: all.")
@click.option(
    "--without", metavar="NAME,...", default="", help="Browsers to leave out; the certificate says so."
)
@click.option(
    "--cpython",
    type=click.Choice(CPYTHON),
    default="reference",
    show_default=True,
    help="What computes in CPython's own cell; it is compared with the baseline as every browser is.",
)
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="A B",
    help="Compare two certificates instead.",
)
def parity(
    browsers: str,
    out: Path | None,
    site: str | None,
    size: str,
    executors: tuple[str, ...],
    stages: str | None,
    without: str,
    cpython: str,
    compare: tuple[Path, Path] | None,
) -> int:
    """Run the parity suite in every browser, and write a certificate.

    \b
    in   nothing
    out  {"verdict", "certificate", "page", "cells": [{"browser", "executor", "verdict", "why"}]}
         exit status 1 when something differs, 2 when something failed or a browser is missing
    out, with --compare: {"same", "compared", "verdicts", "artifacts", "baseline", "stages", "alone",
         "environment"}; exit status 1 when they are not the same

    It works in a checkout: docs/certificate.md tells what a certificate holds.
    """
    if compare:
        return _compare(*compare)
    if out is None:
        raise click.UsageError("Missing option '--out', or '--compare'.")
    from slm2_web.browsers import parse_browsers
    from slm2_web.parity_run.run import CERTIFICATE_FILE, PAGE_FILE, Options, run_parity, write_certificate

    specs = parse_browsers(browsers)
    options = Options(
        root=Path(__file__).resolve().parents[3],
        specs=specs,
        executors=executors,
        size=cast(Size, size),
        site=_site(site),
        stages=tuple(stages.split(",")) if stages else (),
        without=_left_out(without, specs),
        cpython=None if cpython == "none" else cpython,
        command=_command(browsers, site, size, executors, stages, without, cpython),
        say=say,
    )
    meter = Meter(options)
    certificate = run_parity(options, meter.progress, meter.ended)
    meter.end()
    write_certificate(certificate, out)
    write(
        {
            "verdict": certificate.verdict,
            "certificate": str(out / CERTIFICATE_FILE),
            "page": str(out / PAGE_FILE),
            "cells": [_answer(cell) for cell in certificate.cells],
        }
    )
    return _EXITS[certificate.verdict]


def _answer(cell: Cell) -> dict[str, Any]:
    return {
        "browser": cell.browser,
        "executor": cell.executor,
        "verdict": cell.verdict,
        "why": cell.absence or (cell.failure and cell.failure.message) or _wrong(cell) or None,
    }


def _wrong(cell: Cell) -> str:
    """The stages that are not equal, in words."""
    wrong = []
    for stage in cell.stages:
        if stage.failure is not None:
            wrong.append(f"{stage.name}: {stage.failure.message}")
        elif stage.difference is not None:
            wrong.append(f"{stage.name} differs from record {stage.difference.index} on")
        elif stage.verdict == "differs":
            wrong.append(f"{stage.name} differs")
    return "; ".join(wrong)


def _compare(a: Path, b: Path) -> int:
    from slm2_web.parity_run.compare import compare

    comparison = compare(_read(a), _read(b))
    write(comparison.as_json())
    return EXIT_DONE if comparison.is_same else EXIT_NO


def _read(path: Path) -> Certificate:
    """Raises: FormatError `format.certificate`; AssetError when it can't be read."""
    try:
        with path.open("rb") as file:
            return parse(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise AssetError("asset.unreachable", f"{path}: {error.strerror}", {"path": str(path)}) from None


def _site(site: str | None) -> Path | str | None:
    if site is None or site.startswith(("http://", "https://")):
        return site
    path = Path(site)
    if not path.is_dir():
        raise click.BadParameter(f"found {site!r}; allowed: a folder, or a URL of http:// or https://")
    return path


def _left_out(without: str, specs: list[BrowserSpec]) -> tuple[str, ...]:
    names = tuple(name for name in without.split(",") if name)
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"--without: found {name!r}; allowed: {', '.join(known)}")
    return names


def _command(
    browsers: str,
    site: str | None,
    size: str,
    executors: tuple[str, ...],
    stages: str | None,
    without: str,
    cpython: str,
) -> str:
    """What a reader types to have the same; without the places of this machine, or of a farm."""
    names = ",".join(part.partition("@")[0] + ("@URL" if "@" in part else "") for part in browsers.split(","))
    words = ["slm2-web parity", f"--browsers {names}", f"--size {size}", "--out DIR"]
    words += [f"--executors {','.join(executors)}"] if ",".join(executors) != DEFAULT_EXECUTORS else []
    words += [f"--stages {stages}"] if stages else []
    words += [f"--without {without}"] if without else []
    words += [f"--cpython {cpython}"] if cpython != "reference" else []
    words += ["--site SITE"] if site else []
    return " ".join(words)


class Meter:
    """What stderr says: on a terminal one line that is drawn again and again, else a line for each stage."""

    def __init__(self, options: Options) -> None:
        self._total = len(options.specs) * len(options.executors) + (options.cpython is not None)
        self._n_ended = 0
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._drawn = 0.0
        self._width = 0
        self._told: set[tuple[str, str]] = set()

    def progress(self, title: str, stage: str, done: int, total: int) -> None:
        """A cell is so far with a stage."""
        if not stage:
            return
        figures = f" {done} of {total}" if total > 1 else ""
        text = f"[{self._n_ended + 1}/{self._total}] {title}: {stage}{figures}"
        if self._is_terminal:
            if time.monotonic() - self._drawn > _REDRAW_S:
                self._drawn = time.monotonic()
                self._draw(text)
        elif (title, stage) not in self._told:
            self._told.add((title, stage))
            say(f"{title}: {stage}")

    def ended(self, cell: Cell) -> None:
        """A cell has ended."""
        self._n_ended += 1
        self._draw("")
        why = cell.absence or (cell.failure and cell.failure.message) or _wrong(cell)
        vectors = sum(stage.vectors for stage in cell.stages)
        figures = f"{len(cell.stages)} stages, {vectors} records, {cell.seconds:.0f} s"
        text = why if cell.absence else f"{figures}{f'; {why}' if why else ''}"
        say(f"[{self._n_ended}/{self._total}] {cell.browser} {cell.executor}: {cell.verdict} ({text})")

    def end(self) -> None:
        """Nothing more is drawn."""
        self._draw("")

    def _draw(self, text: str) -> None:
        if self._is_terminal:
            text = text[:110]
            print("\r" + text.ljust(self._width), end="" if text else "\r", file=sys.stderr, flush=True)
            self._width = len(text)
