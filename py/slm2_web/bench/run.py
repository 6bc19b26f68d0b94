"""The benches by name. A new one is a function from `Settings` to a report, and a line in BENCHES."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slm2_web.bench import tokenizer
from slm2_web.bench.report import Report, write_reports
from slm2_web.compile.assets import Fetcher


@dataclass(frozen=True, slots=True)
class Settings:
    """What every bench is told. command: what a reader types to measure again."""

    root: Path
    command: str
    say: Callable[[str], None]
    has_peers: bool = True
    has_browser: bool = True
    is_quick: bool = False


def _tokenizer(settings: Settings) -> Report:
    fetcher = Fetcher.from_environment(settings.root)
    quick = {"max_bytes": 20_000, "repeats": 1, "passes": 1} if settings.is_quick else {}
    options = tokenizer.Options(has_peers=settings.has_peers, has_browser=settings.has_browser, **quick)
    vocabulary = tokenizer.qwen3(fetcher)
    return tokenizer.bench(
        vocabulary, settings.root, fetcher, options, command=settings.command, say=settings.say
    )


BENCHES: Final[Mapping[str, Callable[[Settings], Report]]] = {tokenizer.NAME: _tokenizer}


def run_benches(names: Sequence[str], out: Path, settings: Settings) -> list[Report]:
    """The reports of the benches `names`, written into `out`.

    Raises: AssetError, FormatError.
    """
    reports = []
    for name in names:
        reports.append(BENCHES[name](settings))
        write_reports(reports[-1:], out)
    return reports
