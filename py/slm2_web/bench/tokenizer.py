"""The tokenizer's bench: load time and speed of kernel and Python, beside others on the same vocabulary.

Every job is (subject, text) in a fresh worker or a fresh Python: load, encode the text for the first time,
encode it again. Nobody has seen the text before, so the first pass is what a page has to wait for. All
subjects get the same texts in the same run, one job after the other, and ids are compared with a reference:
PyPI `tokenizers` where it is measured, else the first subject.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slm2_web.bench.browser import NoBrowser, chromium
from slm2_web.bench.corpus import Text, chinese_words, texts
from slm2_web.bench.machine import machine_facts, package_version, python_version
from slm2_web.bench.peers import as_tiktoken, lay_out, peer_versions
from slm2_web.bench.report import Figure, Report, Target
from slm2_web.compile.assets import Fetcher
from slm2_web.errors import AssetError
from slm2_web.tokenizer2.tokenizer import Tokenizer

NAME: Final = "tokenizer"
MEASURES: Final[Mapping[str, str]] = {
    "load": "Load: files in memory to the first encoded text",
    "first": "First pass over a text: the median of fresh starts",
    "warm": "Warm: the best of the passes after it",
}

# (subject, text's name) -> what its jobs answered, one after the other.
Answers = dict[tuple["Subject", str], list[dict[str, Any]]]

_PAGE: Final = Path(__file__).with_name("page")
_PACKAGES: Final = Path(__file__).parents[2]  # jobs run the code that this process runs


@dataclass(frozen=True, slots=True)
class Subject:
    """Who is measured. `job`: its name in the job's table; needs: a PyPI package, or a peer of peers.toml."""

    name: str
    where: str
    job: str
    needs: str = ""
    peer: str = ""

    @property
    def title(self) -> str:
        """The name in figures."""
        return f"{self.name}, {self.where}"


KERNEL: Final = Subject("slm2 kernel", "Chromium", "kernel")
HUGGINGFACE: Final = Subject("@huggingface/tokenizers", "Chromium", "huggingface", peer="huggingface")
TIKTOKEN: Final = Subject("tiktoken WASM", "Chromium", "tiktoken", peer="tiktoken")
SUBJECTS: Final = (
    KERNEL,
    HUGGINGFACE,
    TIKTOKEN,
    Subject("slm2 kernel", "wasmtime", "kernel", needs="wasmtime"),
    Subject("slm2 Python", "CPython", "python"),
    Subject("tokenizers", "native", "native", needs="tokenizers", peer="native"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured, and how long. repeats: jobs a subject and text. limit_s: for one job."""

    max_bytes: int = 1_000_000
    repeats: int = 3
    passes: int = 5
    seconds: float = 3.0
    limit_s: float = 40.0
    has_peers: bool = True
    has_browser: bool = True


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary that all subjects use: our file, and the publisher's where peers are measured."""

    name: str
    file: bytes
    tokenizer_json: bytes | None


def qwen3(fetcher: Fetcher) -> Vocabulary:
    """Qwen3's vocabulary, compiled from the publisher's file.

    Raises: AssetError.
    """
    from slm2_web.compile.tokenizer_json import compile_tokenizer_json

    data = fetcher.fetch("qwen3-0.6b/tokenizer.json").read_bytes()
    return Vocabulary("Qwen3", compile_tokenizer_json(data), data)


def bench(
    vocabulary: Vocabulary,
    root: Path,
    fetcher: Fetcher,
    options: Options,
    *,
    command: str,
    say: Callable[[str], None],
) -> Report:
    """The report. `root`: the checkout, which has the kernel and the page's part of the bench."""
    tokenizer = Tokenizer.from_bytes(vocabulary.file)
    scripts = (root / "tests" / "unit" / "vectors" / "scripts.txt").read_text("utf-8")
    tokens = (tokenizer.token_bytes(i) for i in range(tokenizer.n_tokens) if not tokenizer.is_control(i))
    corpus = [t for t in texts(options.max_bytes, chinese_words(tokens), scripts) if t.text]
    machine = machine_facts()
    versions = {"vocabulary": vocabulary.name, "Python": python_version()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _lay_out(folder, root, vocabulary, corpus)
        missing = {
            s: reason for s in SUBJECTS if (reason := _missing(s, options, vocabulary, folder, fetcher))
        }
        answers: Answers = {}
        browser_subjects = [s for s in SUBJECTS if s.where == "Chromium" and s not in missing]
        if browser_subjects:
            try:
                with chromium(folder) as (tab, found):
                    versions["Chromium"] = found

                    def in_browser(subject: Subject, text: Text, passes: int) -> dict[str, Any]:
                        request = _request(subject, text, passes, options)
                        return tab.job("tokenizer_job.js", request, options.limit_s)

                    answers |= _measure(browser_subjects, corpus, options, say, in_browser)
            except NoBrowser as error:
                missing |= dict.fromkeys(browser_subjects, str(error))
        others = [s for s in SUBJECTS if s.where != "Chromium" and s not in missing]

        def in_python(subject: Subject, text: Text, passes: int) -> dict[str, Any]:
            return _in_python(_request(subject, text, passes, options), folder, options)

        answers |= _measure(others, corpus, options, say, in_python)
    for subject in SUBJECTS:
        if subject.needs and (version := package_version(subject.needs)):
            versions[f"PyPI {subject.needs}"] = version
        if subject.peer in peer_versions() and subject not in missing:
            versions[subject.name] = peer_versions()[subject.peer]
    figures = list(_figures(corpus, answers, missing))
    inputs = {text.name: text.facts() for text in corpus}
    return Report(
        bench=NAME,
        title=f"Tokenizers on the vocabulary of {vocabulary.name}",
        command=command,
        machine=machine,
        versions=versions,
        measures=MEASURES,
        inputs=inputs,
        figures=figures,
        targets=_targets(figures, inputs) if options.max_bytes >= 1_000_000 else (),
    )


def _lay_out(folder: Path, root: Path, vocabulary: Vocabulary, corpus: Sequence[Text]) -> None:
    """Everything that jobs read, in one folder that can be served."""
    shutil.copytree(_PAGE, folder, dirs_exist_ok=True)
    (folder / "worker" / "wasm").mkdir(parents=True)
    for name in ("tokenizer.js", "tokenizer.wasm"):
        shutil.copyfile(root / "worker" / "wasm" / name, folder / "worker" / "wasm" / name)
    (folder / "tokenizer.slm2tok").write_bytes(vocabulary.file)
    if vocabulary.tokenizer_json is not None:
        (folder / "tokenizer.json").write_bytes(vocabulary.tokenizer_json)
    for text in corpus:
        (folder / f"{text.name}.txt").write_bytes(text.text.encode())


def _missing(
    subject: Subject, options: Options, vocabulary: Vocabulary, folder: Path, fetcher: Fetcher
) -> str:
    """Why the subject can't be measured, or ""; its files are in `folder` afterwards."""
    if subject.where == "Chromium" and not options.has_browser:
        return "no browser was asked for"
    if subject.peer and not options.has_peers:
        return "no peers were asked for"
    if subject.needs and package_version(subject.needs) is None:
        return f"PyPI {subject.needs} is not installed"
    if subject.peer and vocabulary.tokenizer_json is None:
        return "there is no tokenizer.json of this vocabulary"
    if subject.where == "Chromium" and subject.peer:
        try:
            lay_out(subject.peer, fetcher, folder)
        except AssetError as error:
            return str(error).splitlines()[0]
        if subject is TIKTOKEN:
            assert vocabulary.tokenizer_json is not None
            (folder / "tiktoken.json").write_text(json.dumps(as_tiktoken(vocabulary.tokenizer_json)), "utf-8")
    return ""


def _measure(
    subjects: Sequence[Subject],
    corpus: Sequence[Text],
    options: Options,
    say: Callable[[str], None],
    run: Callable[[Subject, Text, int], dict[str, Any]],
) -> Answers:
    """What `run(subject, text, passes)` gives, `options.repeats` times each; warm passes the first time only.

    The subjects take turns, so that a busy moment of the machine is nobody's alone. Who fails is not asked
    again.
    """
    answers: Answers = {}
    for text in corpus:
        say(text.name)
        for repeat in range(options.repeats):
            for subject in subjects:
                before = answers.setdefault((subject, text.name), [])
                if not any("error" in answer for answer in before):
                    before.append(run(subject, text, 0 if repeat else options.passes))
    return answers


def _request(subject: Subject, text: Text, passes: int, options: Options) -> dict[str, Any]:
    """What page/tokenizer_job.js and tokenizer_job.py both take."""
    return {
        "subject": subject.job,
        "text": f"{text.name}.txt",
        "passes": passes,
        "seconds": options.seconds,
    }


def _in_python(request: Mapping[str, Any], folder: Path, options: Options) -> dict[str, Any]:
    request = {**request, "folder": str(folder)}
    command = [sys.executable, "-m", "slm2_web.bench.tokenizer_job", json.dumps(request)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=options.limit_s,
            env=os.environ | {"PYTHONPATH": str(_PACKAGES)},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {options.limit_s:g} s"}
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return {"error": lines[-1] if lines else f"exit status {done.returncode}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _figures(corpus: Sequence[Text], answers: Answers, missing: Mapping[Subject, str]) -> Iterator[Figure]:
    """Load times by subject, then speeds by text: the median of first passes, the best of warm ones."""
    for subject in SUBJECTS:
        loads = tuple(
            answer["load_ms"]
            for (who, _), each in answers.items()
            for answer in each
            if who == subject and "error" not in answer
        )
        note = missing.get(subject, "" if loads else "every job failed")
        value = statistics.median(loads) if loads else None
        yield Figure("load", subject.title, "", "ms", value, loads, note=note)
    for measure in ("first", "warm"):
        for text in corpus:
            n_bytes = len(text.text.encode())
            reference = _reference(text, answers)
            for subject in SUBJECTS:
                each = answers.get((subject, text.name), [{"error": missing.get(subject, "not measured")}])
                errors = [answer["error"] for answer in each if "error" in answer]
                if errors:
                    yield Figure(measure, subject.title, text.name, "MB/s", None, note=errors[0])
                    continue
                is_first = measure == "first"
                times = [ms for a in each for ms in ([a["first_ms"]] if is_first else a["warm_ms"])]
                samples = tuple(n_bytes / 1e3 / ms for ms in times if ms > 0)
                value = (statistics.median(samples) if is_first else max(samples)) if samples else None
                same = None if reference is None else all(a["sha256"] == reference for a in each)
                yield Figure(measure, subject.title, text.name, "MB/s", value, samples, same)


def _reference(text: Text, answers: Answers) -> str | None:
    """The digest of the ids that others are compared with."""
    for subject in (SUBJECTS[-1], *SUBJECTS[:-1]):
        for answer in answers.get((subject, text.name), ()):
            if "sha256" in answer:
                return str(answer["sha256"])
    return None


def _targets(figures: Sequence[Figure], inputs: Mapping[str, Mapping[str, Any]]) -> list[Target]:
    """What the project set out to reach with a megabyte of text, in Chromium."""
    values = {(f.measure, f.subject, f.input): f.value for f in figures}
    load = values["load", KERNEL.title, ""]
    english = values["first", KERNEL.title, "english"]
    targets = [
        Target(
            "load in Chromium",
            "under 50 ms",
            "" if load is None else f"{load:.1f} ms",
            None if load is None else load < 50,
        )
    ]
    for peer, factor in ((HUGGINGFACE, 20), (TIKTOKEN, 3)):
        other = values["first", peer.title, "english"]
        ratio = None if english is None or other is None else english / other
        targets.append(
            Target(
                f"first pass over English, against {peer.title}",
                f"at least {factor} times as fast",
                "" if ratio is None else f"{ratio:.1f} times",
                None if ratio is None else ratio >= factor,
            )
        )
    for name in ("one-letter", "emoji"):
        speed = values["first", KERNEL.title, name]
        seconds = None if speed is None else inputs[name]["bytes"] / 1e6 / speed
        targets.append(
            Target(
                f"{inputs[name]['characters']:,} times one character in one piece ({name})",
                "under 1 s",
                "" if seconds is None else f"{seconds:.2f} s",
                None if seconds is None else seconds < 1,
            )
        )
    return targets
