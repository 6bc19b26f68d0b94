"""bench: figures with their commands, machine facts and versions. Needs a checkout."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from slm2_web.cli.stdio import EXIT_DONE, EXIT_NO, say, write

BENCH_NAMES: Final = ("tokenizer",)  # those of bench/run.py, which only this command loads


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(BENCH_NAMES), help="Benches; default: all.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The folder of the reports.",
)
@click.option("--no-peers", is_flag=True, help="Measure nobody but ourselves; fetch nothing for it.")
@click.option("--no-browser", is_flag=True, help="Measure nothing in Chromium.")
@click.option("--quick", is_flag=True, help="Small inputs: shows that it works, not how fast.")
def bench(names: tuple[str, ...], out: Path, no_peers: bool, no_browser: bool, quick: bool) -> int:
    """Measure, and write the figures as JSON and as a page with plots.

    \b
    in   nothing
    out  {"reports": [{"bench", "results", "page", "targets": [{"name", "wanted", "found", "met"}]}]};
         exit status 1 when a target is not met

    It works in a checkout: docs/bench.md tells what is measured and how.
    """
    from slm2_web.bench.report import PAGE_FILE, RESULTS_FILE
    from slm2_web.bench.run import Settings, run_benches

    chosen = list(dict.fromkeys(names or BENCH_NAMES))
    flags = {"--no-peers": no_peers, "--no-browser": no_browser, "--quick": quick}
    words = [*(f"--only {name}" for name in names), "--out DIR", *(flag for flag, on in flags.items() if on)]
    root = Path(__file__).resolve().parents[3]
    settings = Settings(root, " ".join(["slm2-web bench", *words]), say, not no_peers, not no_browser, quick)
    reports = run_benches(chosen, out, settings)
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
