"""The forward pass's bench: a prompt and a reply in real browsers, beside others on the same model.

A group is a browser and an executor. In a group all subjects have the same number of threads, each has a tab
of its own, and they take turns: sample after sample, prompt after prompt. What a sample is told by is the
same for all: the page's clock from asking to the first text, and from there to the last.

    wasm         all cores, on a page that is cross-origin isolated
    wasm-plain   one thread, on a page that is not
    webgpu       on software adapters for proof, not for speed: few tokens

Ours tells more: how long each step took in its worker, and how much of that the kernels did. The rest is the
time outside kernels. The bare kernel (kernel/bare.c) is the limit: it reads all weights and multiplies them.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slm2_web.bench.browser import BROWSERS, Browser, NoBrowser, Tab, started
from slm2_web.bench.layout import Places, serving
from slm2_web.bench.prompts import Prompt, prompts_of
from slm2_web.bench.report import Figure, Report, Target
from slm2_web.bench.setup import set_up
from slm2_web.compile.assets import Fetcher
from slm2_web.manifest import Manifest
from slm2_web.tokenizer2.tokenizer import Tokenizer

NAME: Final = "forward"
EXECUTORS: Final = ("wasm", "wasm-plain", "webgpu")
DEFAULT_EXECUTORS: Final = EXECUTORS[:2]
MEASURES: Final[Mapping[str, str]] = {
    "decode": "Decode: from the first text of a reply to its last",
    "prefill": "Prefill: tokens of the prompt, by the time to the first text",
    "ttft": "Time to first token: from asking to the first text",
    "decode_ratio": "Decode, as many times as fast as another",
    "prefill_ratio": "Prefill, as many times as fast as another",
    "share": "Decode, as a share of the bare kernel's passes over all weights",
    "outside": "Time outside kernels: a decode step's wall time less that in the kernels' call",
    "memory": "Memory: growth of the browser's processes by loading and a first reply; our worker's count",
    "load": "From opening the page to a model that is ready (the benches' page; see the bench `load`)",
}

# More threads than this nobody is given: ours takes no more.
_MAX_THREADS: Final = 8
_KINDS: Final = ("q4_0", "q4_1", "q8_0")  # as bare.c numbers them
_OURS, _BARE = "slm2", "bare"
_NAMES: Final[Mapping[str, str]] = {
    "slm2": "slm2",
    "bare": "bare kernel",
    "wllama": "wllama",
    "transformers": "transformers.js",
}
_PEERS: Final = ("wllama", "transformers")
_CONTEXT_TOKENS: Final = 1024


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured, and how long. limit_s: for one sample."""

    browsers: tuple[str, ...] = ("chromium",)
    executors: tuple[str, ...] = DEFAULT_EXECUTORS
    lengths: tuple[int, ...] = (37, 512)
    n_tokens: int = 64
    repeats: int = 3
    limit_s: float = 300.0
    has_peers: bool = True
    is_quick: bool = False


@dataclass(slots=True)
class _Subject:
    """Who is measured in a group: its tab, what it answered, or why there is nothing to ask."""

    key: str
    title: str
    tab: Tab | None = None
    problem: str = ""
    loaded: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by prompt
    processes_bytes: int | None = None

    def ask(self, name: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any] | None:
        """The answer; None, and never asked again, when there is none."""
        if self.tab is None:
            return None
        answer = self.tab.call(f"./subjects/{self.key}.js", name, request, limit_s)
        if "error" in answer:
            self.problem, self.tab = str(answer["error"]), None
            return None
        return answer


@dataclass(slots=True)
class _Group:
    """A browser and an executor, with what was found."""

    browser: str
    executor: str
    threads: int
    subjects: dict[str, _Subject]
    problem: str = ""

    @property
    def where(self) -> str:
        """For titles."""
        if self.executor == "webgpu":
            return f"{BROWSERS[self.browser]}, WebGPU"
        plural = "thread" if self.threads == 1 else "threads"
        return f"{BROWSERS[self.browser]}, {self.threads} {plural}"


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
    groups = [_group(browser, executor) for browser in options.browsers for executor in options.executors]
    with set_up(model_folder, root, fetcher, has_peers=options.has_peers, say=say) as setup:
        manifest = setup.manifest
        tokenizer = Tokenizer.from_bytes(setup.tokenizer_bytes)
        prompts = prompts_of(manifest, tokenizer, options.lengths)
        for group in groups:
            try:
                with started(group.browser) as browser:
                    setup.versions[browser.title] = browser.version
                    _measure(group, browser, setup.places, manifest, prompts, options, say)
            except NoBrowser as error:
                group.problem = str(error)
                say(f"{group.where}: {error}")
    figures = list(_figures(groups, prompts))
    return setup.report(
        NAME,
        "Forward pass of",
        command=command,
        measures=MEASURES,
        inputs={prompt.name: prompt.facts() for prompt in prompts},
        figures=figures,
        targets=() if options.is_quick else _targets(groups, figures, prompts),
    )


def _group(browser: str, executor: str) -> _Group:
    threads = min(os.cpu_count() or 1, _MAX_THREADS) if executor == "wasm" else 1
    group = _Group(browser, executor, threads, {})
    # A GPU's rival is no thread of wasm.
    keys = (_OURS,) if executor == "webgpu" else (_OURS, *_PEERS, _BARE)
    group.subjects = {key: _Subject(key, f"{_NAMES[key]}, {group.where}") for key in keys}
    return group


def _measure(
    group: _Group,
    browser: Browser,
    places: Places,
    manifest: Manifest,
    prompts: Sequence[Prompt],
    options: Options,
    say: Callable[[str], None],
) -> None:
    """Loads every subject in a tab of its own, then samples them in turn."""
    isolation = group.executor != "wasm-plain"
    is_gpu = group.executor == "webgpu"
    prompts = prompts[:1] if is_gpu else prompts
    n_tokens = min(4, options.n_tokens) if is_gpu else options.n_tokens
    loading = {
        "executor": "webgpu" if is_gpu else "wasm",
        "model": manifest.name,
        "threads": group.threads,
        "context": max(_CONTEXT_TOKENS, max(options.lengths) + n_tokens),
        "matrices": _matrices(manifest),
    }
    with ExitStack() as stack:
        ours, _ = stack.enter_context(serving(places.ours, isolation=isolation, is_ours=True))
        peers, _ = stack.enter_context(serving(places.peers, isolation=isolation, is_ours=False))
        for key, subject in group.subjects.items():
            subject.problem = places.missing.get(key, "")
            if subject.problem:
                continue
            say(f"{subject.title}: loading")
            before = browser.memory_bytes()
            subject.tab = browser.open(f"{peers}bench/peers.html" if key in _PEERS else f"{ours}bench/")
            subject.loaded = subject.ask("load", loading, options.limit_s) or {}
            _ = subject.ask("sample", _request(prompts[0], min(8, n_tokens)), options.limit_s)  # warms up
            after = browser.memory_bytes()
            if before is not None and after is not None:
                subject.processes_bytes = after - before
        for prompt in prompts:
            for repeat in range(options.repeats):
                for subject in group.subjects.values():
                    if subject.tab is None:
                        continue
                    say(f"{subject.title}: {prompt.name}, {repeat + 1} of {options.repeats}")
                    answer = subject.ask("sample", _request(prompt, n_tokens), options.limit_s)
                    if answer is not None:
                        subject.samples.setdefault(prompt.name, []).append(answer)
        for subject in group.subjects.values():
            _ = subject.ask("unload", {}, options.limit_s)


def _request(prompt: Prompt, n_tokens: int) -> dict[str, Any]:
    """What each subject takes its own part of."""
    return {
        "messages": list(prompt.messages),
        "text": prompt.text,
        "ids": list(prompt.ids),
        "n_tokens": n_tokens,
    }


def _matrices(manifest: Manifest) -> list[tuple[int, int, int]]:
    """(kind, rows, cols) of every matrix that a decode step multiplies with."""
    return [
        (_KINDS.index(entry.type), *entry.shape)
        for name, entry in manifest.tensors.items()
        if entry.type != "f32" and not (name == "embed" and "output" in manifest.tensors)
    ]


# --- figures ---------------------------------------------------------------------------------------------


def _speed(key: str, samples: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Decode, prefill or time to first token of each sample."""
    if key == "decode":
        return tuple(1e3 * s["decode_tokens"] / s["decode_ms"] for s in samples if s["decode_ms"] > 0)
    if key == "prefill":
        return tuple(
            1e3 * (s["prompt_tokens"] - s["cached_tokens"]) / s["ttft_ms"] for s in samples if "ttft_ms" in s
        )
    return tuple(s["ttft_ms"] / 1e3 for s in samples if "ttft_ms" in s)


def _outside(samples: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Of every decode step but a reply's first: its wall time less that in the kernels' call."""
    return tuple(
        step - kernel
        for sample in samples
        for step, kernel in zip(
            sample["stats"]["decode_ms"][1:], sample["stats"]["kernel_ms"][1:], strict=True
        )
    )


def _figures(groups: Sequence[_Group], prompts: Sequence[Prompt]) -> Iterator[Figure]:
    speeds = (("decode", "tokens/s"), ("prefill", "tokens/s"), ("ttft", "s"))
    for prompt in prompts:
        for group in groups:
            if group.executor == "webgpu" and prompt is not prompts[0]:
                continue
            for subject in group.subjects.values():
                samples = subject.samples.get(prompt.name, [])
                for measure, unit in speeds:
                    if subject.key != _BARE or measure == "decode":
                        note = group.problem or subject.problem or _remark(samples, prompt)
                        yield _figure(
                            measure, subject.title, prompt.name, unit, _speed(measure, samples), note
                        )
            yield from _compared(group, prompt)
    for group in groups:
        ours = group.subjects[_OURS]
        for subject in group.subjects.values():
            if subject.processes_bytes is not None:
                growth = (subject.processes_bytes / 1e6,)
                yield _figure("memory", subject.title, "growth of the browser's processes", "MB", growth)
            if subject.key != _BARE:
                loads = (subject.loaded["now_ms"] / 1e3,) if subject.loaded else ()
                yield _figure("load", subject.title, "", "s", loads, group.problem or subject.problem)
        for name, title in (("python_heap_bytes", "Python's heap"), ("weights_bytes", "weights"),
                            ("device_cache_bytes", "KV cache"), ("device_work_bytes", "work"),
                            ("tokenizer_bytes", "tokenizer")):  # fmt: skip
            if ours.loaded:
                value = ours.loaded["memory"][name] / 1e6
                yield _figure("memory", f"{ours.title}: {title}", "our worker's own count", "MB", (value,))


def _compared(group: _Group, prompt: Prompt) -> Iterator[Figure]:
    """Ours by theirs, sample by sample: those of one turn stand side by side in time."""
    ours = group.subjects[_OURS]
    mine = ours.samples.get(prompt.name, [])
    for key in (*_PEERS, _BARE):
        other = group.subjects.get(key)
        if other is None:
            continue
        theirs = other.samples.get(prompt.name, [])
        note = "" if mine and theirs else group.problem or ours.problem or other.problem or "not measured"
        for measure in ("decode",) if key == _BARE else ("decode", "prefill"):
            ratios = tuple(
                a / b for a, b in zip(_speed(measure, mine), _speed(measure, theirs), strict=False)
            )
            if key == _BARE:
                shares = tuple(100 * ratio for ratio in ratios)
                yield _figure("share", ours.title, prompt.name, "%", shares, note)
            else:
                title = f"slm2 by {other.title}"
                yield _figure(f"{measure}_ratio", title, prompt.name, "times", ratios, note)
    yield _figure("outside", ours.title, prompt.name, "ms", _outside(mine), group.problem or ours.problem)


def _figure(
    measure: str, subject: str, name: str, unit: str, samples: tuple[float, ...], note: str = ""
) -> Figure:
    value = statistics.median(samples) if samples else None
    return Figure(
        measure, subject, name, unit, value, samples, note=note if samples or note else "not measured"
    )


def _remark(samples: Sequence[Mapping[str, Any]], prompt: Prompt) -> str:
    """What a reader must know of samples that are not quite what was asked for."""
    words = []
    if cached := max((s.get("cached_tokens", 0) for s in samples), default=0):
        words.append(f"{cached} of the prompt's tokens were in the KV cache and are not counted")
    found = {s["prompt_tokens"] for s in samples if "prompt_tokens" in s} - {len(prompt.ids)}
    if found:
        words.append(f"it counted {', '.join(map(str, sorted(found)))} tokens in the prompt")
    return "; ".join(words)


def _targets(groups: Sequence[_Group], figures: Sequence[Figure], prompts: Sequence[Prompt]) -> list[Target]:
    """What the project set out to reach: the wasm executor in Chromium, on all cores."""
    values = {(f.measure, f.subject, f.input): f.value for f in figures}
    targets = []
    for group in groups:
        if (group.browser, group.executor) != ("chromium", "wasm"):
            continue
        ours = group.subjects[_OURS].title

        def target(
            what: str, measure: str, subject: str, prompt: Prompt, bound: float, unit: str, least: bool = True
        ) -> None:
            value = values.get((measure, subject, prompt.name))
            targets.append(
                Target(
                    f"{what}, {prompt.name}",
                    f"{'at least' if least else 'under'} {bound:g} {unit}",
                    "" if value is None else f"{value:.3g} {unit}",
                    None if value is None else (value >= bound if least else value < bound),
                )
            )

        for prompt in prompts:
            for key, decode, prefill in (("wllama", 4, 5), ("transformers", 1, 1)):
                other = group.subjects[key].title
                for measure, bound in (("decode", decode), ("prefill", prefill)):
                    what = f"{measure}, by {_NAMES[key]}"
                    target(what, f"{measure}_ratio", f"slm2 by {other}", prompt, bound, "times")
            target("decode, of the bare kernel's speed", "share", ours, prompt, 60, "%")
            target("outside kernels, per step", "outside", ours, prompt, 4, "ms", least=False)
    return targets
