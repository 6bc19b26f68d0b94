"""The benches of the forward pass and of loading: a tiny run in a real browser; what figures are made of."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from slm2_web.bench import browser, forward, layout, load, prompts
from slm2_web.bench.report import Figure, page
from slm2_web.cli import bench as command
from slm2_web.compile import serve
from slm2_web.compile.assets import Fetcher
from slm2_web.forward2.plan import build_plan
from slm2_web.packed import PackedModel
from slm2_web.template2.machine import template_for
from slm2_web.template2.spec import Conversation, Message
from slm2_web.tokenizer2.tokenizer import Tokenizer

ROOT = Path(__file__).parents[3]
WHERE = forward._group("chromium", "wasm").where
PROMPT = prompts.Prompt("3 tokens", ({"role": "user", "content": "hi"},), "hi", (1, 2, 3))


@pytest.fixture(scope="module")
def figures(packed_smollm2: Path) -> dict[tuple[str, str, str], Figure]:
    """A run of a few tokens in Chromium, without peers."""
    options = forward.Options(
        executors=("wasm",), lengths=(37,), n_tokens=6, repeats=1, has_peers=False, is_quick=True
    )
    said: list[str] = []
    fetcher = Fetcher.from_environment(ROOT)
    report = forward.bench(packed_smollm2, ROOT, fetcher, options, command="c", say=said.append)
    assert report.versions["Chromium"]
    assert report.inputs["37 tokens"]["tokens"] == 37
    assert any("loading" in line for line in said)
    assert "tokens/s" in page(report)
    return {(f.measure, f.subject.replace(f", {WHERE}", ""), f.input): f for f in report.figures}


def test_ours_is_measured(figures: dict[tuple[str, str, str], Figure]) -> None:
    for measure in ("decode", "prefill", "ttft", "outside"):
        figure = figures[measure, "slm2", "37 tokens"]
        assert figure.value is not None, figure
        assert figure.value > 0
        assert len(figure.samples) == (5 if measure == "outside" else 1)
    # The template's beginning is the one thing that another conversation leaves in the cache.
    assert "3 of the prompt's tokens" in figures["prefill", "slm2", "37 tokens"].note
    # The step's time and that outside the kernels belong together.
    step_ms = 1e3 / (figures["decode", "slm2", "37 tokens"].value or 0)
    assert (figures["outside", "slm2", "37 tokens"].value or 0) < 2 * step_ms


def test_the_bare_kernel_is_the_limit(figures: dict[tuple[str, str, str], Figure]) -> None:
    ours, bare = (figures["decode", name, "37 tokens"].value or 0 for name in ("slm2", "bare kernel"))
    assert bare > 1
    # On a busy machine a single sample may be anything; what it is a share of is certain.
    assert figures["share", "slm2", "37 tokens"].value == pytest.approx(100 * ours / bare)


def test_memory_is_told(figures: dict[tuple[str, str, str], Figure]) -> None:
    for name, least_mb in (("Python's heap", 20), ("weights", 90), ("KV cache", 1)):
        assert (figures["memory", f"slm2: {name}", "our worker's own count"].value or 0) > least_mb
    # Of a later subject it may be anything: the browser frees what an earlier one has left.
    assert (figures["memory", "slm2", "growth of the browser's processes"].value or 0) > 90


def test_who_is_left_out_says_why(figures: dict[tuple[str, str, str], Figure]) -> None:
    for name in ("wllama", "transformers.js"):
        figure = figures["decode", name, "37 tokens"]
        assert (figure.value, figure.note) == (None, "no peers were asked for")


def test_prompts_have_the_length_that_was_asked_for(packed_smollm2: Path) -> None:
    model = PackedModel.open(packed_smollm2, verify=False)
    tokenizer = Tokenizer.from_bytes(model.tokenizer_bytes)
    made = prompts.prompts_of(model.manifest, tokenizer, (1, 37, 200, 512))
    assert [len(prompt.ids) for prompt in made[1:]] == [37, 200, 512]
    # Not even an empty message makes a prompt of one token.
    assert made[0].name == f"{len(made[0].ids)} tokens"
    for prompt in made:
        message = Message("user", prompt.messages[0]["content"].encode())
        runs = template_for(model.manifest.template, tokenizer).render(Conversation((message,)))
        assert tuple(tokenizer.encode(runs)) == prompt.ids
        assert prompt.text.startswith("<|im_start|>system\n")
        assert prompt.text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_matrices_are_those_of_a_decode_step(packed_smollm2: Path) -> None:
    manifest = PackedModel.open(packed_smollm2, verify=False).manifest
    plan = build_plan(manifest, max_seq_len=64, max_chunk_tokens=8)
    products = [d for d in (*plan.decode, *plan.logits) if d.kernel.startswith("matmul")]
    weights = sum(int(d.constants["ROWS"]) * int(d.constants["COLS"]) for d in products)
    assert sum(rows * cols for _, rows, cols in forward._matrices(manifest)) == weights


def _sample(decode_ms: float, ttft_ms: float, outside_ms: float = 1.0) -> dict[str, Any]:
    stats = {"decode_ms": [9.0, 10.0, 10.0], "kernel_ms": [0.0, 10.0 - outside_ms, 10.0 - outside_ms]}
    return {
        "prompt_tokens": 3,
        "cached_tokens": 1,
        "ttft_ms": ttft_ms,
        "decode_ms": decode_ms,
        "decode_tokens": 10,
        "stats": stats,
    }


@pytest.fixture
def group() -> forward._Group:
    """Ours three times as fast as wllama, transformers.js failed, the bare kernel twice as fast as ours."""
    found = forward._group("chromium", "wasm")
    ours, wllama, transformers, bare = found.subjects.values()
    ours.samples["3 tokens"] = [_sample(100, 20), _sample(200, 40, 2.0), _sample(50, 10, 5.0)]
    wllama.samples["3 tokens"] = [_sample(300, 100), _sample(600, 200), _sample(150, 50)]
    transformers.problem = "it broke"
    bare.samples["3 tokens"] = [{"decode_ms": ms, "decode_tokens": 10} for ms in (50, 100, 25)]
    return found


def test_figures_are_medians_and_ratios_of_one_turn(group: forward._Group) -> None:
    found = {(f.measure, f.subject.partition(",")[0]): f for f in forward._figures([group], [PROMPT])}
    decode = found["decode", "slm2"]
    assert decode.value == pytest.approx(100)
    assert decode.samples == pytest.approx((100, 50, 200))
    assert found["prefill", "slm2"].value == pytest.approx(2 / 0.020)
    assert found["ttft", "slm2"].value == pytest.approx(0.020)
    assert found["decode_ratio", "slm2 by wllama"].samples == pytest.approx((3, 3, 3))
    assert found["prefill_ratio", "slm2 by wllama"].value == pytest.approx(5)
    assert found["share", "slm2"].value == pytest.approx(50)
    assert found["outside", "slm2"].samples == pytest.approx((1, 1, 2, 2, 5, 5))
    assert found["outside", "slm2"].value == pytest.approx(2)
    for measure, subject in (
        ("decode", "transformers.js"),
        ("decode_ratio", "slm2 by transformers.js"),
    ):
        assert (found[measure, subject].value, found[measure, subject].note) == (None, "it broke")


def test_a_missing_browser_is_a_line_of_the_report(group: forward._Group) -> None:
    for subject in group.subjects.values():
        subject.samples.clear()
    group.problem = "no Firefox is installed"
    for figure in forward._figures([group], [PROMPT]):
        assert figure.value is None
        assert figure.note == ("it broke" if not group.problem else "no Firefox is installed")


def test_targets_are_judged(group: forward._Group) -> None:
    figures = list(forward._figures([group], [PROMPT]))
    met = {t.name: t.met for t in forward._targets([group], figures, [PROMPT])}
    assert met == {
        "decode, by wllama, 3 tokens": False,  # 3 times; wanted: 4
        "prefill, by wllama, 3 tokens": True,
        "decode, by transformers.js, 3 tokens": None,
        "prefill, by transformers.js, 3 tokens": None,
        "decode, of the bare kernel's speed, 3 tokens": False,
        "outside kernels, per step, 3 tokens": True,
    }


def test_odd_samples_are_remarked_on() -> None:
    assert forward._remark([{**_sample(1, 1), "cached_tokens": 0}], PROMPT) == ""
    words = forward._remark([{**_sample(1, 1), "prompt_tokens": 4}], PROMPT)
    assert words == (
        "1 of the prompt's tokens were in the KV cache and are not counted; it counted 4 tokens in the prompt"
    )


def test_figures_of_loading() -> None:
    timings = {"runtime_ms": 1500.0, "weights_ms": 500.0}
    answers: load.Answers = {
        ("chromium", "slm2", "cold"): [
            {"now_ms": ms, "bytes": 2_000_000, "timings": timings} for ms in (3000, 2000, 9000)
        ],
        ("chromium", "slm2", "warm"): [{"error": "it broke"}],
    }
    found = {(f.measure, f.subject, f.input): f for f in load._figures(answers)}
    assert found["ready", "slm2, Chromium", "cold"].value == 3
    assert found["bytes", "slm2, Chromium", "cold"].value == 2
    assert found["stages", "slm2 runtime", "cold, Chromium"].value == 1.5
    warm = found["ready", "slm2, Chromium", "warm"]
    assert (warm.value, warm.note) == (None, "it broke")


def test_a_server_counts_what_it_sends(tmp_path: Path) -> None:
    import urllib.request

    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    for is_ours in (True, False):
        with layout.serving(tmp_path, is_ours=is_ours) as (url, counter):
            with urllib.request.urlopen(f"{url}a.txt") as answer:
                assert answer.read() == b"x" * 1000
                assert ("Content-Security-Policy" in answer.headers) is is_ours
                assert ("max-age" in answer.headers["Cache-Control"]) is not is_ours
            assert counter.take() == 1000
            assert counter.take() == 0


def test_failures_in_a_page_are_answers() -> None:
    """A module that is not there, an export that throws, one that is late; and the memory of processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "index.html").write_text("<!doctype html><title>t</title>")
        (folder / "m.js").write_text(
            "export const good = ({ x }) => ({ y: x + 1 });"
            "export const bad = () => { throw new Error('as asked'); };"
            "export const slow = () => new Promise(() => {});"
        )
        with browser.chromium(folder) as (tab, version):
            assert version
            assert tab.call("./m.js", "good", {"x": 1}, 10)["y"] == 2
            assert "as asked" in tab.call("./m.js", "bad", {}, 10)["error"]
            assert "error" in tab.call("./none.js", "good", {}, 10)
            start = time.monotonic()
            assert tab.call("./m.js", "slow", {}, 0.2) == {"error": "not done after 0.2 s"}
            assert tab.poll("() => false", 0.2) == {"error": "not done after 0.2 s"}
            assert tab.poll("() => ({ state: 'ready' })", 5) == {"state": "ready"}
            assert time.monotonic() - start < 5


def test_names_on_the_command_line_are_those_of_the_benches() -> None:
    assert tuple(browser.BROWSERS) == command.BROWSER_NAMES
    assert forward.EXECUTORS == command.EXECUTOR_NAMES
    assert ",".join(forward.DEFAULT_EXECUTORS) == command.DEFAULT_EXECUTORS
    assert serve.Handler.protocol_version == "HTTP/1.1"
