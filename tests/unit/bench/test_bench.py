"""A tiny run of the tokenizer's bench: real jobs in real Pythons, no peers; and what reports are made of."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from slm2_web.bench import corpus, tokenizer
from slm2_web.bench.report import FORMAT, Figure, Report, Target, page, write_reports
from slm2_web.bench.run import BENCHES
from slm2_web.cli.app import run
from slm2_web.cli.bench import BENCH_NAMES
from slm2_web.cli.stdio import EXIT_ERROR
from slm2_web.compile.assets import Fetcher
from slm2_web.tokenizer2.runs import Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer

ROOT = Path(__file__).parents[3]
OPTIONS = tokenizer.Options(max_bytes=600, repeats=1, passes=2, seconds=5, has_peers=False, has_browser=False)


@pytest.fixture(scope="module")
def report(qwen3_file: bytes) -> Report:
    """A run with every text, of two subjects."""
    vocabulary = tokenizer.Vocabulary("Qwen3", qwen3_file, None)
    said: list[str] = []
    fetcher = Fetcher.from_environment(ROOT)
    found = tokenizer.bench(vocabulary, ROOT, fetcher, OPTIONS, command="the command", say=said.append)
    assert said == [*found.inputs]
    return found


def test_every_subject_and_text_has_a_figure(report: Report) -> None:
    names = ("english", "code", "chinese", "mixed", "adversarial", "one-letter", "emoji")
    assert tuple(report.inputs) == names
    found = [(f.measure, f.subject, f.input) for f in report.figures]
    titles = [subject.title for subject in tokenizer.SUBJECTS]
    assert found == [
        *(("load", title, "") for title in titles),
        *((measure, title, name) for measure in ("first", "warm") for name in names for title in titles),
    ]


def test_what_was_measured_is_a_number_and_what_was_not_says_why(report: Report) -> None:
    for figure in report.figures:
        if figure.subject in ("slm2 kernel, wasmtime", "slm2 Python, CPython"):
            assert figure.value is not None, figure
            assert figure.value > 0
            assert figure.note == ""
            assert len(figure.samples) == {"load": 7, "first": 1, "warm": 2}[figure.measure]
            assert figure.same is (None if figure.measure == "load" else True), figure
        else:
            assert figure.value is None, figure
            assert figure.note in ("no browser was asked for", "no peers were asked for")
    assert report.targets == ()


def test_ids_are_compared(qwen3_tokenizer: Tokenizer) -> None:
    """The digest is that of the ids, so subjects that agree have the same one and others don't."""
    text = corpus.Text("t", "Hello there", "")
    ids = qwen3_tokenizer.encode([Untrusted(b"Hello there")])
    good = {
        "load_ms": 1.0,
        "first_ms": 2.0,
        "warm_ms": [1.0, 0.5],
        "n_ids": len(ids),
        "sha256": hashlib.sha256(array("I", ids).tobytes()).hexdigest(),
    }
    first, second, *_, reference = tokenizer.SUBJECTS
    answers = {
        (first, "t"): [
            good,
            {**good, "first_ms": 4.0, "warm_ms": []},
            {**good, "first_ms": 9.0, "warm_ms": []},
        ],
        (second, "t"): [good, {**good, "sha256": "0" * 64}],
        (reference, "t"): [good],
    }
    found = list(tokenizer._figures([text], answers, {}))
    firsts = {f.subject: f for f in found if f.measure == "first"}
    assert firsts[first.title].value == pytest.approx(len("Hello there") / 1e3 / 4)
    figures = {f.subject: f for f in found if f.measure == "warm"}
    assert [figures[s.title].same for s in (first, second, reference)] == [True, False, True]
    assert figures[first.title].value == pytest.approx(len("Hello there") / 1e3 / 0.5)
    assert figures[tokenizer.SUBJECTS[3].title].note == "not measured"


def test_targets_need_a_megabyte_and_are_judged(report: Report) -> None:
    facts = {name: {**each, "characters": 10**6, "bytes": 10**6} for name, each in report.inputs.items()}
    kernel = tokenizer.KERNEL.title
    wanted = {
        ("load", kernel, ""): 20.0,
        ("first", kernel, "english"): 30.0,
        ("first", kernel, "one-letter"): 0.5,
        ("first", tokenizer.HUGGINGFACE.title, "english"): 1.0,
    }
    figures = [replace(f, value=wanted.get((f.measure, f.subject, f.input)), note="") for f in report.figures]
    # Load, 30 times @huggingface/tokenizers, tiktoken that wasn't measured, 2 s for one letter, no emoji.
    assert [target.met for target in tokenizer._targets(figures, facts)] == [True, True, None, False, None]


def test_texts_are_the_same_each_time_and_no_larger_than_asked(qwen3_tokenizer: Tokenizer) -> None:
    tokens = [qwen3_tokenizer.token_bytes(i) for i in range(100_000, 101_000)]
    words = corpus.chinese_words(iter(tokens))
    assert words
    made = [corpus.texts(2000, words, "\u03b1 \u03b2\n\u05d0\n") for _ in range(2)]
    assert made[0] == made[1]
    for text in made[0]:
        n_bytes = text.facts()["bytes"]
        assert 1500 < n_bytes <= (8000 if text.name == "emoji" else 2000), text.name
        assert text.provenance
    assert len({text.text for text in made[0]}) == len(made[0])


def test_reports_are_files(report: Report, tmp_path: Path) -> None:
    results, html = write_reports([report], tmp_path)
    data = json.loads(results.read_bytes())
    assert (data["format"], data["bench"], data["command"]) == (FORMAT, "tokenizer", "the command")
    assert {figure["command"] for figure in data["figures"]} == {"the command"}
    assert {"processor", "cores", "memory_gib", "system"} <= set(data["machine"])
    assert data["versions"]["Python"].startswith("CPython ")
    assert len(data["figures"]) == len(report.figures)
    text = html.read_text("utf-8")
    assert "the command" in text
    for reference in ("http:", "https:", "src=", "<script", "@import", "url("):
        assert reference not in text


def test_page_escapes_and_draws() -> None:
    figure = Figure("speed", "<b>one</b>", "a & b", "MB/s", 20.0)
    figures = [
        figure,
        replace(figure, subject="two", value=10.0, same=False),
        replace(figure, subject="none", value=None, note="<late>"),
    ]
    targets = [Target("t", "more", "<less>", False), Target("u", "more", "", None)]
    text = page(Report("b", "B", "c", {}, {}, {"speed": "Speed"}, {}, figures, targets))
    assert "<b>" not in text
    assert "<late>" not in text
    assert "<less>" not in text
    assert "&lt;b&gt;one&lt;/b&gt;" in text
    assert "not met" in text
    assert "not measured" in text
    assert "other ids than the reference" in text
    widths = [float(width) for width in re.findall(r'<rect class="bar" [^>]*width="([\d.]+)"', text)]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert widths[2] == 0


def test_plots_mark_samples_and_keep_durations_linear() -> None:
    speeds = [
        Figure("m", "slow", "", "MB/s", 1.0, (0.5, 1.0, 2.0)),
        Figure("m", "fast", "", "MB/s", 30.0, (30.0, 40.0)),
    ]
    text = page(Report("b", "B", "c", {}, {}, {"m": "M"}, {}, speeds))
    assert "MB/s, logarithmic scale" in text
    marks = re.findall(r'<path class="mark" d="([^"]*)"', text)
    assert [path.count("M") for path in marks] == [3, 2]
    space = 760 - 230 - 100
    assert (
        re.findall(r"M([\d.]+)", marks[1])[1] == f"{230 + space:.1f}"
    )  # the largest sample is the scale's end
    times = [replace(figure, unit="s") for figure in speeds]
    text = page(Report("b", "B", "c", {}, {}, {"m": "M"}, {}, times))
    assert "s, linear scale" in text
    widths = [float(width) for width in re.findall(r'<rect class="bar" [^>]*width="([\d.]+)"', text)]
    assert widths == pytest.approx([space / 40, space * 30 / 40], abs=0.06)
    nothing = [Figure("m", "none", "", "MB", 0.0, (0.0,)), Figure("m", "less", "", "MB", -1.0, (-1.0,))]
    text = page(Report("b", "B", "c", {}, {}, {"m": "M"}, {}, nothing))
    assert "0 MB" in text
    assert re.findall(r'<rect class="bar" [^>]*width="([\d.]+)"', text) == ["0.0", "0.0"]


def test_command_line_knows_the_benches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(BENCHES) == BENCH_NAMES
    for option in ("--only", "--browsers", "--executors"):
        assert run(["bench", option, "nothing", "--out", str(tmp_path)]) == EXIT_ERROR
        assert "found 'nothing'; allowed: " in capsys.readouterr().err
