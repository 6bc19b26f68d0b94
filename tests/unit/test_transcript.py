"""Transcripts: stable bytes, every change caught, hostile files refused."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slm2_web import transcript
from slm2_web.errors import FormatError
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.manifest import parse_manifest
from slm2_web.packed import PackedModel
from slm2_web.request import parse_request, prompt_of
from slm2_web.sampling2.params import parse_params
from slm2_web.session import Done, Session, Timings
from slm2_web.template2.machine import template_for
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.transcript import Artifacts, Transcript

REPO = Path(__file__).resolve().parents[2]


# Two texts stand before the question, of which there is room for one.
ASKED: dict[str, Any] = {
    "local_state": "the morning",
    "evidence": [
        {"id": "a", "relevance": 1, "content": "the station"},
        {"id": "b", "relevance": 0.5, "content": "the capital of France is Paris " * 3},
    ],
    "budget_tokens": 170,
}


class Tiny:
    """The tiny model with a session, and a recorded reply of it."""

    def __init__(self, directory: Path) -> None:
        model = PackedModel.open(directory)
        data = (directory / "manifest.json").read_bytes()
        self.artifacts = Artifacts.of(parse_manifest(data), data, "0.1.0")
        self.tokenizer = Tokenizer.from_bytes(model.tokenizer_bytes)
        self.template = template_for(model.manifest.template, self.tokenizer)
        self.executor = ReferenceExecutor(model, max_seq_len=200)
        self.session = Session(self.tokenizer, self.executor, model.manifest.eos_ids)
        # A random model soon says bytes that are no text; take the first seed with a whole reply.
        replies = (self.record("Hello there!", seed=seed) for seed in range(2**64 - 1, 2**63, -1))
        self.recorded = next(reply for reply in replies if reply.reason == "max_tokens")

    def record(self, content: str, *, cancel_after: int = 10**9, **raw: Any) -> Transcript:
        asked = {"temperature": 1.0, "max_tokens": 6, "stop": ["é"], "logprobs": 2, **raw}
        params = parse_params(asked, {})
        request = parse_request({**ASKED, "messages": [{"role": "user", "content": content}]}, params, 200)
        prompt = prompt_of(request, self.template, self.tokenizer)
        seed_run = Transcript(
            self.artifacts,
            request,
            tuple(prompt.ids),
            prompt.ledger.as_json(),
            generated_ids=(0,) * cancel_after if cancel_after < 100 else (),
            logit_digests=(),
            logprobs=None,
            reason="cancelled" if cancel_after < 100 else "max_tokens",
            detail={},
            reasoning=None,
            text=b"",
            tool_calls=(),
            sha256="",
            executor=transcript.ExecutorInfo("", ""),
            timings=Timings(),
        )
        done = asyncio.run(transcript.rerun(seed_run, self.session))
        return self.again(seed_run, done)

    def again(self, of: Transcript, done: Done) -> Transcript:
        return transcript.record(self.artifacts, of.request, of.prompt_ids, of.ledger, done, self.executor)


@pytest.fixture(scope="module")
def tiny(packed_tiny: Path) -> Tiny:
    return Tiny(packed_tiny)


def test_written_and_read_it_is_the_same(tiny: Tiny) -> None:
    data = transcript.write(tiny.recorded)
    again = transcript.parse(data)
    assert transcript.write(again) == data
    assert transcript.compare(tiny.recorded, again) is None
    assert transcript.check_unaltered(again) is None
    assert tuple(json.loads(data)) == transcript.KEYS
    assert again.ledger is not None
    states = {(part["label"], part["state"]) for part in again.ledger["parts"] if part["kind"] == "evidence"}
    assert states == {("a", "kept"), ("b", "dropped")}
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1


def test_a_detour_through_javascript_changes_nothing(tiny: Tiny) -> None:
    """There all numbers are doubles, 1.0 is written as 1, and the file may be indented."""
    value = json.loads(transcript.write(tiny.recorded), parse_int=lambda digits: int(float(digits)))
    text = json.dumps(value, indent=2).replace(": 1.0,", ": 1,")
    again = transcript.parse(text.encode())
    assert again.request.params.seed == tiny.recorded.request.params.seed > 2**63
    assert transcript.check_unaltered(again) is None
    assert transcript.compare(tiny.recorded, again) is None


def test_a_replay_is_equal_and_so_is_one_of_a_cancelled_reply(tiny: Tiny) -> None:
    for n in (0, 1, 4, 10**9):
        recorded = tiny.record("Hello there!", cancel_after=n, seed=tiny.recorded.request.params.seed)
        assert recorded.reason == ("cancelled" if n < 100 else "max_tokens")
        assert len(recorded.generated_ids) == min(n, 6)
        done = asyncio.run(transcript.rerun(recorded, tiny.session))
        again = tiny.again(recorded, done)
        assert transcript.compare(recorded, again) is None
        assert again.sha256 == recorded.sha256


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, (*path, index))]
    return [path]


# Another value of what can't be changed by rule.
OTHERS: dict[str, Any] = {
    "enable_thinking": True,
    "preserve_thinking": True,
    "in_pass": 1,
    "top_p": 0.5,
    "profile": "llama.cpp",
    "invalid_utf8": "show",
    "logprobs": 0,
    "max_reasoning_tokens": 0,
    "response_format": '{"type": "text"}',
    "local_state": "x",
    "reasoning": "x",
}


def changed(path: tuple[Any, ...], value: Any) -> Any:
    if path[-1] in OTHERS:
        return OTHERS[path[-1]]
    if isinstance(value, str):
        if len(value) == 64:
            return ("0" if value[0] != "0" else "1") + value[1:]
        return str(int(value) - 1) if value.isdigit() else value + "x"
    return value / 2 if isinstance(value, float) and value else value + 1


def test_one_changed_token_parameter_or_hash_is_caught(tiny: Tiny) -> None:
    """Each value of the comparable part is changed alone; the sha256 and the comparison both see it."""
    original = json.loads(transcript.write(tiny.recorded))
    skipped = {("artifacts", "package"), ("version",), ("sha256",), ("reason",)}
    for path in leaves(original):
        if path in skipped or path[0] in ("executor", "timings"):
            continue
        value = copy.deepcopy(original)
        at = value
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = changed(path, at[path[-1]])
        if path[-1] == "role":
            value["request"].update(evidence=[], local_state=None)  # which stand before a user's words
        altered = transcript.from_json(value)
        assert transcript.check_unaltered(altered) is not None, path
        difference = transcript.compare(tiny.recorded, altered)
        assert difference is not None, path
        assert str(path[0]) in difference.place, (path, difference)
        if path[0] in ("generated_ids", "logit_digests", "logprobs"):
            assert difference.step == path[1]


def test_what_is_not_compared(tiny: Tiny) -> None:
    value = json.loads(transcript.write(tiny.recorded))
    value["artifacts"]["package"] = "9.9"
    value["executor"] = {"name": "webgpu", "adapter": "another"}
    value["timings"]["prefill_ms"] = 1
    other = transcript.from_json(value)
    assert transcript.compare(tiny.recorded, other) is None
    assert transcript.check_unaltered(other) is None


def test_the_first_difference_is_named(tiny: Tiny) -> None:
    def differ(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        value = json.loads(transcript.write(tiny.recorded))
        change(value)
        difference = transcript.compare(tiny.recorded, transcript.from_json(value))
        assert difference is not None
        return difference.as_json()

    digests = list(tiny.recorded.logit_digests)

    def shorter(value: dict[str, Any]) -> None:
        for key in ("generated_ids", "logit_digests", "logprobs"):
            del value[key][3:]

    found = differ(shorter)
    assert found == {"place": "logit_digests[3]", "expected": digests[3], "found": None, "step": 3}

    def both(value: dict[str, Any]) -> None:
        value["generated_ids"][4] += 1
        value["logit_digests"][2] = "0" * 64

    assert differ(both) == {"place": "logit_digests[2]", "expected": digests[2], "found": "0" * 64, "step": 2}

    def message(value: dict[str, Any]) -> None:
        value["request"]["messages"].append({"role": "user", "content": "more"})

    assert differ(message) == {
        "place": "request.messages[1]",
        "expected": None,
        "found": {"role": "user", "content": "more"},
    }

    def instead(value: dict[str, Any]) -> None:
        request = value["request"]
        rest = {key: request[key] for key in ("continue_ids", "params", "max_seq_len")}
        value["request"] = {"prompt_ids": value["prompt_ids"], **rest}

    assert differ(instead)["place"] == "request.messages[0]"


# --- hostile files ---------------------------------------------------------------------------------------


def put(*path: Any) -> Callable[[Any, Any], None]:
    def change(value: Any, new: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        if new is DELETE:
            del value[path[-1]]
        else:
            value[path[-1]] = new

    return change


DELETE = object()
HOSTILE: list[tuple[tuple[Any, ...], Any]] = [
    *(((key,), DELETE) for key in transcript.KEYS),
    *(((key,), None) for key in transcript.KEYS if key not in ("ledger", "reasoning", "logprobs")),
    *(((key,), 7) for key in transcript.KEYS if key != "version"),
    (("extra",), 1),
    (("version",), 1),
    (("version",), 3),
    (("version",), True),
    (("artifacts", "model"), "../../etc"),
    (("artifacts", "model"), "a/b"),
    (("artifacts", "model"), ""),
    (("artifacts", "manifest_sha256"), "F" * 64),
    (("artifacts", "weights_sha256"), ["x"]),
    (("artifacts", "weights_sha256"), ["0" * 64] * 5000),
    (("artifacts", "extra"), 1),
    (("request", "prompt_ids"), [1]),
    (("request", "messages"), DELETE),
    (("request", "messages"), [1]),
    (("request", "messages", 0, "role"), 1),
    (("request", "messages", 0, "content"), "\ud800"),
    (("request", "messages", 0, "name"), "x"),
    (("request", "messages", 0, "reasoning_content"), 1),
    (("request", "messages", 0, "tool_calls"), [{"name": "f"}]),
    (("request", "messages", 0, "tool_calls"), [{"name": "f", "arguments": "\ud800"}]),
    (("request", "messages"), {}),
    (("request", "messages"), [{"role": "user", "content": "x"}] * 10_001),
    (("request", "tools"), None),
    (("request", "tools"), [{"name": "f"}]),
    (("request", "tools"), ["{"]),
    (("request", "tools"), ["7"]),
    (("request", "enable_thinking"), 1),
    (("request", "preserve_thinking"), None),
    (("request", "local_state"), 1),
    (("request", "local_state"), "\ud800"),
    (("request", "local_state"), DELETE),
    (("request", "evidence"), None),
    (("request", "evidence", 1, "id"), "a"),
    (("request", "evidence", 0, "relevance"), "1"),
    (("request", "evidence", 0, "relevance"), 10**400),
    (("request", "evidence", 0, "more"), 1),
    (("request", "budget_tokens"), None),
    (("request", "budget_tokens"), 200),
    (("request", "budget_tokens"), 0),
    (("ledger",), {}),
    (("ledger", "prompt_tokens"), -1),
    (("ledger", "parts"), {}),
    (("ledger", "parts", 0), None),
    (("ledger", "parts", 0, "kind"), "\ud800"),
    (("ledger", "parts", 0, "in_pass"), 0),
    (("ledger", "parts", 0, "tokens"), 1.5),
    (("ledger", "parts", 0, "tokens"), 10**400),
    (("ledger", "parts", 0, "more"), 1),
    (("reasoning",), "\ud800"),
    (("request", "params", "top_k"), -1),
    (("request", "params", "seed"), 2**64),
    (("request", "params", "stop"), [""]),
    (("request", "params", "min_p"), DELETE),
    (("request", "params", "profile"), "another"),
    (("request", "params", "logprobs"), 21),
    (("request", "params", "banned_ids"), [-1]),
    (("request", "params", "banned_ids"), [[]]),
    (("request", "params", "response_format"), 7),
    (("request", "params", "presence_penalty"), 2.5),
    (("request", "params", "max_reasoning_tokens"), -1),
    (("request", "continue_ids"), None),
    (("request", "continue_ids"), ["1"]),
    (("request", "continue_ids"), [-1]),
    (("request", "continue_ids"), [2**31]),
    (("request", "continue_ids"), [1] * 201),
    (("logprobs",), []),
    (("logprobs", 0), None),
    (("logprobs", 0, "logprob"), 0.5),
    (("logprobs", 0, "logprob"), 10**400),
    (("logprobs", 0, "top", 1), {"id": 1}),
    (("logprobs", 0, "top", 1, "id"), -1),
    (("logprobs", 0, "top"), [{"id": 1, "logprob": -1}] * 21),
    (("tool_calls",), [1]),
    (("tool_calls",), [{"name": "f"}]),
    (("tool_calls",), [{"name": "f", "arguments": {}}]),
    (("tool_calls",), [{"text": "f", "error": None}]),
    (("tool_calls",), [{"name": "f", "arguments": "{}", "text": "x"}]),
    (("tool_calls",), [{"name": "\ud800", "arguments": "{}"}]),
    (("request", "params", "extra"), 1),
    (("request", "max_seq_len"), 0),
    (("request", "max_seq_len"), 10**9),
    (("prompt_ids",), []),
    (("prompt_ids", 0), -1),
    (("prompt_ids", 0), 2**31),
    (("prompt_ids", 0), True),
    (("prompt_ids", 0), 1.0),
    (("generated_ids",), [1]),
    (("generated_ids", 0), "1"),
    (("logit_digests", 0), "0" * 63),
    (("reason",), "because"),
    (("reason",), ["max_tokens"]),
    (("detail",), {"extra": 1}),
    (("detail",), {"id": -1}),
    (("text",), "\udfff"),
    (("sha256",), "0"),
    (("executor", "name"), 1),
    (("executor", "adapter"), "x" * 1001),
    (("request", "params", "temperature"), 10**400),
    (("request", "params", "seed"), 10**400),
    (("prompt_ids", 0), 10**400),
    (("timings", "prefill_ms"), 10**400),
    (("timings", "decode_ms"), [10**400]),
    (("timings", "prefill_ms"), -1),
    (("timings", "prefill_ms"), "0"),
    (("timings", "decode_ms"), [None]),
    (("timings", "prefill_tokens"), 0.5),
]


@pytest.mark.parametrize(("path", "new"), HOSTILE)
def test_hostile_values_are_refused_with_their_place(tiny: Tiny, path: tuple[Any, ...], new: Any) -> None:
    value = json.loads(transcript.write(tiny.recorded))
    put(*path)(value, new)
    with pytest.raises(FormatError) as caught:
        transcript.parse(json.dumps(value).encode())
    assert caught.value.code == "format.transcript"
    assert set(caught.value.detail) == {"place", "found", "allowed"}
    json.dumps(caught.value.as_json(), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"\xff", b'{"version":1,"version":1}', b"[" * 99_999, b'{"version":NaN}']
)
def test_what_is_no_transcript_at_all(data: bytes) -> None:
    with pytest.raises(FormatError):
        transcript.parse(data)


def test_too_large_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(FormatError, match="bytes"):
        transcript.parse(b" " * (transcript.MAX_BYTES + 1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=6), st.integers(0, 6))
def test_fuzzed_files_parse_or_are_refused(tiny: Tiny, at: int, data: bytes, cut: int) -> None:
    original = transcript.write(tiny.recorded)
    at %= len(original)
    fuzzed = original[:at] + data + original[at + cut :]
    try:
        parsed = transcript.parse(fuzzed)
    except FormatError:
        return
    transcript.parse(transcript.write(parsed))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(st.data(), json_values)
def test_any_value_at_any_place_parses_or_is_refused(tiny: Tiny, data: st.DataObject, new: Any) -> None:
    value = json.loads(transcript.write(tiny.recorded))
    put(*data.draw(st.sampled_from(leaves(value))))(value, new)
    with contextlib.suppress(FormatError):
        transcript.from_json(value)


def test_every_field_is_in_the_docs(tiny: Tiny) -> None:
    page = (REPO / "docs" / "transcript.md").read_text(encoding="utf-8")
    value = json.loads(transcript.write(tiny.recorded))
    names = {key for path in leaves(value) for key in path if isinstance(key, str)}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
