"""Guided replies of a tiny network that thinks: bounds of thoughts, constraints after one, calls; replayed.

The network is tests/thinking_model.py: it says few words, and the markers of a thought.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

from slm2_web import transcript
from slm2_web.errors import InputError
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel
from slm2_web.reply import Markers
from slm2_web.request import Request, parse_request, prompt_of
from slm2_web.sampling2.params import parse_params
from slm2_web.sampling2.sampler import is_any_left
from slm2_web.session import Done, Session, Token
from slm2_web.template2.machine import template_for
from slm2_web.tokenizer2.runs import Trusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.transcript import Artifacts, ExecutorInfo, Transcript
from thinking_model import ANSWER, HELLO, PARAMS, THOUGHT, make_thinking_model

CONTEXT = 160
OPEN, CLOSE = 151667, 151668
MADE = ExecutorInfo("reference", "numpy")
SCHEMA = {
    "type": "object",
    "properties": {"sea": {"enum": ["wide", "deep"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["sea", "n"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}


class Led(ReferenceExecutor):
    """The model's own logits, but for the ids in `script`, one after the other, which beat all others."""

    script: Sequence[int] = ()
    _next = 0

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> NDArray[np.float32] | None:
        logits = await super().forward(ids, want_logits=want_logits)
        if logits is not None and self._next < len(self.script):
            logits[self.script[self._next]] = 1e9
            self._next += 1
        return logits


class Thinker:
    """The model, and its replies: recorded, written, read, run again by a new session and compared."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self.packed = PackedModel.open(directory)
        self.tokenizer = tokenizer
        self.template = template_for(self.packed.manifest.template, tokenizer)
        self.artifacts = Artifacts.of(
            self.packed.manifest, (directory / "manifest.json").read_bytes(), "0.1.0"
        )

    def session(self, script: Sequence[int]) -> Session:
        executor = Led(self.packed, max_seq_len=CONTEXT)
        executor.script = script
        eos_ids = self.packed.manifest.eos_ids
        return Session(self.tokenizer, executor, eos_ids, Markers.of(self.tokenizer))

    def request(self, asked: dict[str, Any], **raw: Any) -> Request:
        params = parse_params({**PARAMS, **raw}, {})
        return parse_request({"messages": [{"role": "user", "content": HELLO}], **asked}, params, CONTEXT)

    def ask(
        self, asked: dict[str, Any], *, script: Sequence[int] = (), replays: bool = True, **raw: Any
    ) -> tuple[Transcript, Done]:
        request = self.request(asked, **raw)
        prompt = prompt_of(request, self.template, self.tokenizer)

        async def run() -> Done:
            events = self.session(script).generate(
                prompt.ids, request.params, continued_ids=request.continue_ids
            )
            found = [event async for event in events]
            assert isinstance(found[-1], Done)
            ids = tuple(event.id for event in found if isinstance(event, Token))
            assert ids == found[-1].generated_ids
            return found[-1]

        done = asyncio.run(run())
        ledger = prompt.ledger.as_json()
        recorded = transcript.record(self.artifacts, request, prompt.ids, ledger, done, MADE)
        if replays:
            read = transcript.parse(transcript.write(recorded))
            again = asyncio.run(transcript.rerun(read, self.session(script)))
            found = transcript.record(self.artifacts, read.request, read.prompt_ids, read.ledger, again, MADE)
            assert transcript.compare(recorded, found) is None
            assert found.sha256 == recorded.sha256
        return recorded, done


@pytest.fixture(scope="module")
def thinker(
    tmp_path_factory: pytest.TempPathFactory, qwen3_file: bytes, qwen3_tokenizer: Tokenizer
) -> Thinker:
    return Thinker(make_thinking_model(tmp_path_factory.mktemp("thinking"), qwen3_file), qwen3_tokenizer)


def test_the_thought_and_the_answer_of_the_model(thinker: Thinker) -> None:
    _, done = thinker.ask({})
    assert done.reason == "stop_token"
    assert (done.reasoning, done.text) == (THOUGHT.encode(), ANSWER.encode())


def led_to_think(thinker: Thinker, n_thought: int) -> list[int]:
    """A thought of so many ids, and its end."""
    words = thinker.tokenizer.encode([Trusted(b" the sea is wide and deep and the sea is wide.")])
    return [OPEN, *(words * 9)[:n_thought], CLOSE]


@pytest.mark.parametrize("most", [0, 3, 20, 1000])
def test_a_bound_closes_the_thought_by_its_id_and_the_answer_comes(thinker: Thinker, most: int) -> None:
    """The thought has 20 ids. The draws of the answer are those of its positions."""
    script = led_to_think(thinker, 20)
    _, free = thinker.ask({}, script=script)
    assert free.reasoning is not None
    _, done = thinker.ask({}, script=script[: 1 + min(most, 20)], max_reasoning_tokens=most)
    kept = min(most, 20)
    assert list(done.generated_ids[: 1 + kept]) == script[: 1 + kept]
    if most <= 20:
        assert done.generated_ids[1 + kept] == CLOSE
        said = thinker.tokenizer.decode(script[1 : 1 + kept])
        assert done.reasoning == said.lstrip(b"\n").rstrip(b"\n")
        assert len(done.generated_ids) > 2 + kept
    if most == 20:
        assert done.generated_ids == free.generated_ids
        assert done.logit_digests[: 1 + kept] == free.logit_digests[: 1 + kept]


def test_a_bound_that_is_not_reached_changes_nothing(thinker: Thinker) -> None:
    free, _ = thinker.ask({})
    bounded, _ = thinker.ask({}, max_reasoning_tokens=1000)
    assert bounded.generated_ids == free.generated_ids
    assert bounded.logit_digests == free.logit_digests


def test_the_ids_of_a_thought_before_the_bound_are_those_without_it(thinker: Thinker) -> None:
    """By its own thoughts, of whatever length they are, once it was led into one."""
    closed = 0
    for seed in range(6):
        raw: dict[str, Any] = {"script": [OPEN], "seed": seed, "max_tokens": 9, "replays": False}
        free, _ = thinker.ask({}, **raw)
        _, done = thinker.ask({}, max_reasoning_tokens=1, **raw)
        ids, other = list(free.generated_ids), list(done.generated_ids)
        if ids == other:
            continue
        at = next(i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b)
        assert other[at] == CLOSE
        assert at == 2
        assert done.logit_digests[: at + 1] == free.logit_digests[: at + 1]
        closed += 1
    assert closed >= 2


ONE_OF_TWO = {"type": "json_schema", "json_schema": {"schema": {"enum": ["wide", "deep"]}}}


@pytest.mark.parametrize("case", ["end of a thought", "ends", "first ids"])
def test_banned_ids_that_are_known_to_be_needed_are_refused_before_the_reply(
    thinker: Thinker, case: str
) -> None:
    cases: dict[str, dict[str, Any]] = {
        "end of a thought": {"max_reasoning_tokens": 3, "banned_ids": [CLOSE]},
        "ends": {"response_format": ONE_OF_TWO, "banned_ids": sorted(thinker.packed.manifest.eos_ids)},
        "first ids": {
            "response_format": ONE_OF_TWO,
            "banned_ids": [OPEN, *ids_that_begin(thinker, b'"wide"', b'"deep"')],
        },
    }
    with pytest.raises(InputError) as caught:
        thinker.ask({}, **cases[case])
    assert caught.value.code == "input.params"
    assert caught.value.detail["place"] == "params.banned_ids"


def test_whether_an_id_is_left() -> None:
    assert not is_any_left(5, range(5), None)
    assert is_any_left(5, [0, 1, 2, 4, 7], None)
    assert not is_any_left(3, [1, 1, 9], np.array([False, True, False]))
    assert is_any_left(3, [1, 1, 9], np.array([False, True, True]))


def ids_that_begin(thinker: Thinker, *texts: bytes) -> list[int]:
    """Every id whose token is the beginning of one of the texts."""
    found = []
    for token_id in range(thinker.tokenizer.n_tokens):
        try:
            data = thinker.tokenizer.token_bytes(token_id)
        except InputError:
            continue  # an id without a token
        if any(text.startswith(data) for text in texts):
            found.append(token_id)
    return found


def test_a_reply_that_runs_into_banned_ids_ends_there(thinker: Thinker) -> None:
    """The opening quote may come, and nothing after it. Replays, like any other reply."""
    (quote,) = thinker.tokenizer.encode([Trusted(b'"')])
    banned = ids_that_begin(thinker, b"wide", b"deep", b'"')
    banned += [i for i in ids_that_begin(thinker, b'"wide', b'"deep') if i != quote]
    banned = [i for i in banned if i != quote]
    raw: dict[str, Any] = {"response_format": ONE_OF_TWO, "banned_ids": banned}
    recorded, done = thinker.ask({}, script=[quote], **raw)
    assert (done.reason, done.text, done.generated_ids) == ("dead_end", b'"', (quote,))
    assert len(done.logit_digests) == 1
    assert recorded.reason == "dead_end"


def test_a_bound_without_thoughts_needs_no_end_of_one(thinker: Thinker) -> None:
    _, done = thinker.ask({}, banned_ids=[CLOSE], max_tokens=4)
    assert done.reason == "max_tokens"


def test_a_thought_may_be_continued_within_its_bound(thinker: Thinker) -> None:
    """What was thought before counts."""
    script = led_to_think(thinker, 20)
    _, whole = thinker.ask({}, script=script[:6], max_reasoning_tokens=5)
    _, first = thinker.ask({}, script=script[:4], max_reasoning_tokens=5, max_tokens=4)
    asked = {"continue_ids": list(first.generated_ids)}
    _, rest = thinker.ask(asked, script=script[4:6], max_reasoning_tokens=5, max_tokens=36)
    assert first.generated_ids + rest.generated_ids == whole.generated_ids
    assert (rest.reasoning, rest.text, rest.reason) == (whole.reasoning, whole.text, whole.reason)


# --- a constraint after a thought ------------------------------------------------------------------------


def test_json_comes_after_the_thought(thinker: Thinker) -> None:
    thoughts = line_feeds = 0
    for seed in range(8):
        raw: dict[str, Any] = {
            "seed": seed,
            "max_tokens": 120,
            "max_reasoning_tokens": 6,
            "response_format": FORMAT,
        }
        recorded, done = thinker.ask({}, replays=seed < 3, **raw)
        assert done.reason == "stop_token", done
        jsonschema.validate(json.loads(done.text), SCHEMA)
        assert done.text == done.text.strip()
        ids = list(done.generated_ids)
        assert ids.count(OPEN) <= 1
        if done.reasoning is not None:
            thoughts += 1
            after = thinker.tokenizer.token_bytes(ids[ids.index(CLOSE) + 1])
            line_feeds += after.startswith(b"\n")
        assert (OPEN in ids) == (done.reasoning is not None)
        value = json.loads(transcript.write(recorded))
        other = {**FORMAT, "json_schema": {"schema": {**SCHEMA, "required": ["sea"]}}}
        value["request"]["params"]["response_format"] = json.dumps(other)
        changed = transcript.from_json(value)
        difference = transcript.compare(recorded, changed)
        assert difference is not None
        assert difference.place == "request.params.response_format"
        assert transcript.check_unaltered(changed) is not None
    assert thoughts > 2
    assert line_feeds > 0


def test_the_template_s_line_feeds_are_no_part_of_the_json(thinker: Thinker) -> None:
    script = [*led_to_think(thinker, 2), 271]
    _, done = thinker.ask({}, script=script, max_tokens=120, response_format=FORMAT)
    assert list(done.generated_ids[:5]) == script
    assert done.reasoning == b" the sea"
    assert done.text.startswith(b"{")
    jsonschema.validate(json.loads(done.text), SCHEMA)


def test_json_comes_at_once_where_thinking_is_off(thinker: Thinker) -> None:
    for seed in range(3):
        _, done = thinker.ask({"enable_thinking": False}, seed=seed, max_tokens=120, response_format=FORMAT)
        assert OPEN not in done.generated_ids
        assert (done.reason, done.reasoning) == ("stop_token", None)
        assert done.text.startswith(b"{")
        jsonschema.validate(json.loads(done.text), SCHEMA)


def test_a_constrained_reply_goes_on_over_every_seam(thinker: Thinker) -> None:
    """Within the thought, after it, within the JSON."""
    raw: dict[str, Any] = {"seed": 2, "max_reasoning_tokens": 4, "response_format": FORMAT}
    _, whole = thinker.ask({}, max_tokens=120, **raw)
    assert whole.reasoning is not None
    for cut in range(1, len(whole.generated_ids), 5):
        asked = {"continue_ids": list(whole.generated_ids[:cut])}
        _, rest = thinker.ask(asked, max_tokens=120, replays=cut == 6, **raw)
        assert rest.generated_ids == whole.generated_ids[cut:]
        assert rest.logit_digests == whole.logit_digests[cut:]
        assert (rest.reasoning, rest.text, rest.detail) == (whole.reasoning, whole.text, whole.detail)


# --- calls -----------------------------------------------------------------------------------------------


def test_calls_are_in_the_reply_and_in_the_transcript(thinker: Thinker) -> None:
    """One that is a call and one that is none, after a thought."""
    said = (
        b"<think>\nhm\n</think>\n\nLet me see.\n<tool_call>\n"
        b'{"name": "add", "arguments": {"a": 2.0, "b": [1e2]}}\n</tool_call>\n'
        b"<tool_call>\nadd(2, 3)\n</tool_call><|im_end|>"
    )
    script = thinker.tokenizer.encode([Trusted(said)])
    recorded, done = thinker.ask({}, script=script, max_tokens=len(script))
    assert list(done.generated_ids) == script
    good, bad = recorded.tool_calls
    assert good == {"name": "add", "arguments": '{"a": 2.0, "b": [1e2]}'}
    assert bad["text"] == "\nadd(2, 3)\n"
    assert [call.as_json() for call in done.calls] == [good, bad]
    assert (done.reasoning, done.text, done.reason) == (b"hm", b"Let me see.", "stop_token")
    value = json.loads(transcript.write(recorded))
    value["tool_calls"][0]["arguments"] = '{"a": 2, "b": [1e2]}'
    difference = transcript.compare(recorded, transcript.from_json(value))
    assert difference is not None
    assert difference.place == "tool_calls"


def test_a_call_may_be_continued(thinker: Thinker) -> None:
    said = b'Now.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>'
    script = thinker.tokenizer.encode([Trusted(said)])
    for cut in range(1, len(script), 2):
        asked = {"continue_ids": script[:cut], "enable_thinking": False}
        _, done = thinker.ask(asked, script=script[cut:], max_tokens=30, replays=False)
        assert [call.as_json() for call in done.calls] == [{"name": "f", "arguments": "{}"}]
        assert (done.text, done.reason) == (b"Now.", "stop_token")
