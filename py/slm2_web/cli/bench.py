"""bench: figures with their commands, machine facts and versions. Needs a checkout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from slm2_web.cli.stdio import EXIT_DONE, EXIT_NO, say, write

# Those of bench/run.py, bench/browser.py and bench/forward.py, which only this command loads.
BENCH_NAMES: Final = ("tokenizer", "forward", "load", "sampling")
BROWSER_NAMES: Final = ("chromium", "firefox")
EXECUTOR_NAMES: Final = ("wasm", "wasm-plain", "webgpu")
DEFAULT_BROWSERS: Final = "chromium"
DEFAULT_EXECUTORS: Final = "wasm,wasm-plain"


def names_of(
    allowed: Sequence[str],
) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """A callback: names of a table, separated by commas."""

    def parse(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(value.split(",")))
        for name in names:
            if name not in allowed:
                raise click.BadParameter(f"found {name!r}; allowed: {', '.join(allowed)}")
        return names

    return parse


@click.command()
@click.option(
    "--only",
    "names",
    metavar="NAME,...",
    default=",".join(BENCH_NAMES),
    show_default=True,
    callback=names_of(BENCH_NAMES),
    help="Which benches.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The folder of the reports.",
)
@click.option(
    "--browsers",
    metavar="NAME,...",
    default=DEFAULT_BROWSERS,
    show_default=True,
    callback=names_of(BROWSER_NAMES),
    help=f"Browsers of `forward` and `load`: {', '.join(BROWSER_NAMES)}.",
)
@click.option(
    "--executors",
    metavar="NAME,...",
    default=DEFAULT_EXECUTORS,
    show_default=True,
    callback=names_of(EXECUTOR_NAMES),
    help="Executors of `forward`: wasm on all cores, wasm-plain on one without isolation, webgpu.",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A packed model's folder for `forward` and `load`; default: smollm2-135m.",
)
@click.option(
    "--mbit",
    type=click.FloatRange(0, 10_000, min_open=True),
    help="`load` as on a line of so many Mbit/s and 40 ms; default: as fast as this machine.",
)
@click.option("--no-peers", is_flag=True, help="Measure nobody but ourselves; fetch nothing for it.")
@click.option("--no-browser", is_flag=True, help="Measure nothing in a browser, nor in its Python.")
@click.option("--quick", is_flag=True, help="Small inputs: shows that it works, not how fast.")
def bench(
    names: tuple[str, ...],
    out: Path,
    browsers: tuple[str, ...],
    executors: tuple[str, ...],
    model: Path | None,
    mbit: float | None,
    no_peers: bool,
    no_browser: bool,
    quick: bool,
) -> int:
    """Measure, and write the figures as JSON and as a page with plots.

    \b
    in   nothing
    out  {"reports": [{"bench", "results", "page", "targets": [{"name", "wanted", "found", "met"}]}]};
         exit status 1 when a target is not met

    It works in a checkout: docs/bench.md tells what is measured and how.
    """
    from slm2_web.bench.report import PAGE_FILE, RESULTS_FILE
    from slm2_web.bench.run import Settings, run_benches

    lists = {
        "--only": (",".join(names), ",".join(BENCH_NAMES)),
        "--browsers": (",".join(browsers), DEFAULT_BROWSERS),
        "--executors": (",".join(executors), DEFAULT_EXECUTORS),
    }
    flags = {"--no-peers": no_peers, "--no-browser": no_browser, "--quick": quick}
    words = [
        "slm2-web bench",
        *(f"{option} {found}" for option, (found, default) in lists.items() if found != default),
        *(["--model DIR"] if model else []),
        *([f"--mbit {mbit:g}"] if mbit else []),
        "--out DIR",
        *(flag for flag, on in flags.items() if on),
    ]
    settings = Settings(
        root=Path(__file__).resolve().parents[3],
        command=" ".join(words),
        say=say,
        has_peers=not no_peers,
        has_browser=not no_browser,
        is_quick=quick,
        model=model,
        browsers=browsers,
        executors=executors,
        mbit=mbit,
    )
    reports = run_benches(names, out, settings)
    answers = [
        {
            "bench": report.bench,
            "results": str(out / report.bench / RESULTS_FILE),
            "page": str(out / report.bench / PAGE_FILE),
            "targets": [asdict(target) for target in report.targets],
        }
        for report in reports
    ]
    write({"reports": answers})
    is_short = any(target.met is False for report in reports for target in report.targets)
    return EXIT_NO if is_short else EXIT_DONE
