"""The benches by name. A new one is a function from `Settings` to a report, and a line in BENCHES."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from slm2_web.bench import forward, load, sampling, tokenizer
from slm2_web.bench.report import Report, write_reports
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.install import install_model

DEFAULT_MODEL: Final = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Settings:
    """What every bench is told. command: what a reader types to measure again; model: a packed model's folder
    for the benches that load one, else the default one; executors: of forward.EXECUTORS; mbit: of `load`'s
    line, or None for none."""

    root: Path
    command: str
    say: Callable[[str], None]
    has_peers: bool = True
    has_browser: bool = True
    is_quick: bool = False
    model: Path | None = None
    browsers: tuple[str, ...] = ("chromium",)
    executors: tuple[str, ...] = forward.DEFAULT_EXECUTORS
    mbit: float | None = None


def _tokenizer(settings: Settings) -> Report:
    fetcher = Fetcher.from_environment(settings.root)
    quick = {"max_bytes": 20_000, "repeats": 1, "passes": 1} if settings.is_quick else {}
    options = tokenizer.Options(has_peers=settings.has_peers, has_browser=settings.has_browser, **quick)
    vocabulary = tokenizer.qwen3(fetcher)
    return tokenizer.bench(
        vocabulary, settings.root, fetcher, options, command=settings.command, say=settings.say
    )


def _model(settings: Settings, fetcher: Fetcher) -> Path:
    """The packed model's folder."""
    return settings.model or install_model(DEFAULT_MODEL, settings.root, fetcher, settings.say)


def _browsers(settings: Settings) -> tuple[str, ...]:
    return settings.browsers if settings.has_browser else ()


def _forward(settings: Settings) -> Report:
    fetcher = Fetcher.from_environment(settings.root)
    options = forward.Options(
        browsers=_browsers(settings), executors=settings.executors, has_peers=settings.has_peers
    )
    if settings.is_quick:
        options = replace(options, lengths=(37,), n_tokens=8, repeats=1, is_quick=True)
    model = _model(settings, fetcher)
    return forward.bench(model, settings.root, fetcher, options, command=settings.command, say=settings.say)


def _load(settings: Settings) -> Report:
    fetcher = Fetcher.from_environment(settings.root)
    options = load.Options(browsers=_browsers(settings), has_peers=settings.has_peers, mbit=settings.mbit)
    if settings.is_quick:
        options = replace(options, repeats=1)
    model = _model(settings, fetcher)
    return load.bench(model, settings.root, fetcher, options, command=settings.command, say=settings.say)


def _sampling(settings: Settings) -> Report:
    fetcher = Fetcher.from_environment(settings.root)
    options = sampling.Options(has_pyodide=settings.has_browser)
    if settings.is_quick:
        options = replace(options, repeats=2)
    model = _model(settings, fetcher) if options.has_pyodide else None
    return sampling.bench(model, settings.root, fetcher, options, command=settings.command, say=settings.say)


BENCHES: Final[Mapping[str, Callable[[Settings], Report]]] = {
    tokenizer.NAME: _tokenizer,
    forward.NAME: _forward,
    load.NAME: _load,
    sampling.NAME: _sampling,
}


def run_benches(names: Sequence[str], out: Path, settings: Settings) -> list[Report]:
    """The reports of the benches `names`, written into `out`.

    Raises: AssetError, FormatError.
    """
    reports = []
    for name in names:
        reports.append(BENCHES[name](settings))
        write_reports(reports[-1:], out)
    return reports
