"""The load's bench: from opening a page to a model that is ready, on a first visit and on a second one.

A visit is a browser that is started for it: the first has a fresh profile (cold), the second has what the
first left there (warm). Firefox is started once for both, since it is not to be had on a profile. All are
served from this machine by the same server, which counts the bytes that it sends, compressed where the
browser takes that: seconds are what a machine needs, bytes are what a network would carry. On a line of so
many Mbit/s (layout.Line) the seconds are a visitor's. They take turns.

    slm2 page       the demo page, with its service worker, until it takes a message
    slm2            a page that only calls client.js's `SLM2.load`, by its own stages
    wllama          its program, the GGUF file
    transformers.js its program, the ONNX file (bench/onnx.py); without a tokenizer, in its favour
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slm2_web.bench.browser import BROWSERS, KEEPS_PROFILE, Browser, NoBrowser, started
from slm2_web.bench.layout import ROUND_TRIP_S, Counter, serving
from slm2_web.bench.report import Figure, Report
from slm2_web.bench.setup import set_up
from slm2_web.compile.assets import Fetcher

NAME: Final = "load"
MEASURES: Final[Mapping[str, str]] = {
    "ready": "From opening the page to a model that is ready",
    "bytes": "Bytes from the server, compressed where the browser takes that",
    "stages": "Stages of ours; those of the program and of the model's files run beside each other",
}
VISITS: Final = ("cold", "warm")

_MAX_THREADS: Final = 8
# What a browser may still have to write to its profile when the page is ready.
_SETTLE_S: Final = 2.0
_PAGE, _OURS = "slm2 page", "slm2"
_SUBJECTS: Final[Mapping[str, str]] = {
    _PAGE: "",
    _OURS: "slm2",
    "wllama": "wllama",
    "transformers.js": "transformers",
}
# The demo page says itself when it is ready.
_READY: Final = """() => ["ready", "error"].includes(document.documentElement.dataset.state)
  && { state: document.documentElement.dataset.state, now_ms: performance.now() }"""


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured, and how often. limit_s: for one visit; mbit: of the line, or None for none."""

    browsers: tuple[str, ...] = ("chromium",)
    repeats: int = 3
    limit_s: float = 180.0
    has_peers: bool = True
    mbit: float | None = None


# (browser, subject, visit) -> what its visits answered.
Answers = dict[tuple[str, str, str], list[dict[str, Any]]]


def bench(
    model_folder: Path,
    root: Path,
    fetcher: Fetcher,
    options: Options,
    *,
    command: str,
    say: Callable[[str], None],
) -> Report:
    """The report on one packed model. `root`: the checkout.

    Raises: SiteError, AssetError, FormatError.
    """
    answers: Answers = {}
    with set_up(model_folder, root, fetcher, has_peers=options.has_peers, say=say) as setup:
        places, versions, name = setup.places, setup.versions, setup.manifest.name
        with (
            serving(places.ours, is_ours=True, mbit=options.mbit) as ours,
            serving(places.peers, is_ours=False, mbit=options.mbit) as peers,
        ):
            for repeat in range(options.repeats):
                for browser in options.browsers:
                    for subject, key in _SUBJECTS.items():
                        say(f"{subject}, {BROWSERS[browser]}: {repeat + 1} of {options.repeats}")
                        if key in places.missing:
                            visits = [{"error": places.missing[key]}] * len(VISITS)
                        else:
                            place = ours if subject in (_PAGE, _OURS) else peers
                            visits = _visits(browser, subject, place, name, options, versions)
                        for visit, answer in zip(VISITS, visits, strict=True):
                            answers.setdefault((browser, subject, visit), []).append(answer)
    return setup.report(
        NAME,
        "Loading",
        command=command,
        measures=MEASURES,
        inputs={"line": {"mbit": options.mbit, "round_trip_ms": 1000 * ROUND_TRIP_S}} if options.mbit else {},
        figures=list(_figures(answers)),
    )


def _visits(
    browser: str,
    subject: str,
    place: tuple[str, Counter],
    model: str,
    options: Options,
    versions: dict[str, str],
) -> list[dict[str, Any]]:
    """The answers of a cold and a warm visit."""
    answers: list[dict[str, Any]] = []
    try:
        if browser in KEEPS_PROFILE:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
                for _ in VISITS:
                    with started(browser, Path(profile)) as running:
                        answers.append(_visit(running, subject, place, model, options))
                        versions[running.title] = running.version
        else:
            with started(browser) as running:
                answers += [_visit(running, subject, place, model, options) for _ in VISITS]
                versions[running.title] = running.version
    except NoBrowser as error:
        answers += [{"error": str(error)}] * (len(VISITS) - len(answers))
    return answers


def _visit(
    running: Browser, subject: str, place: tuple[str, Counter], model: str, options: Options
) -> dict[str, Any]:
    """{now_ms, bytes, timings?} or {error}."""
    url, counter = place
    counter.take()
    if subject == _PAGE:
        tab = running.open(url)
        answer = tab.poll(_READY, options.limit_s)
        if answer.get("state") == "error":
            answer = {"error": "the page shows an error"}
    else:
        tab = running.open(f"{url}bench/" if subject == _OURS else f"{url}bench/peers.html")
        request = {
            "executor": "wasm",
            "model": model,
            "threads": min(os.cpu_count() or 1, _MAX_THREADS),
            "context": 1024,
        }
        answer = tab.call(f"./subjects/{_SUBJECTS[subject]}.js", "load", request, options.limit_s)
    answer["bytes"] = counter.take()
    time.sleep(_SETTLE_S)
    tab.page.close()
    return answer


def _figures(answers: Answers) -> Iterator[Figure]:
    for visit in VISITS:
        for (browser, subject, which), each in answers.items():
            if which == visit:
                title = f"{subject}, {BROWSERS[browser]}"
                yield _figure("ready", title, visit, "s", each, lambda a: a["now_ms"] / 1e3)
                yield _figure("bytes", title, visit, "MB", each, lambda a: a["bytes"] / 1e6)
    for visit in VISITS:
        for (browser, subject, which), each in answers.items():
            if which != visit or subject != _OURS:
                continue
            stages = dict.fromkeys(stage for answer in each for stage in answer.get("timings", {}))
            for stage in stages:
                name = f"{visit}, {BROWSERS[browser]}"
                yield _figure("stages", f"slm2 {stage.removesuffix('_ms')}", name, "s", each, _stage(stage))


def _stage(stage: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda answer: float(answer["timings"][stage]) / 1e3


def _figure(
    measure: str,
    subject: str,
    name: str,
    unit: str,
    answers: Sequence[Mapping[str, Any]],
    value: Callable[[Mapping[str, Any]], float],
) -> Figure:
    samples = tuple(value(answer) for answer in answers if "error" not in answer)
    errors = [str(answer["error"]) for answer in answers if "error" in answer]
    note = errors[0] if errors else ""
    return Figure(
        measure, subject, name, unit, statistics.median(samples) if samples else None, samples, note=note
    )
