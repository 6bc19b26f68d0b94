"""The session: reuse, chunks, cancellation, failures and every way a reply can end.

Most tests run on an executor that is a small exact function of all ids in its cache (a hash of them gives
the logits), so a wrong, missing or doubled id changes everything after it. The last runs the real model.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slm2_web import protocol
from slm2_web.errors import DeviceError, InputError, ProtocolError
from slm2_web.forward2.executor import Executor, digest_of
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel
from slm2_web.reply import Delta, Markers, Pair
from slm2_web.sampling2.params import SamplingParams, parse_params
from slm2_web.session import MAX_LOSSES, Done, Event, Prefill, Reason, Session, Token
from slm2_web.tokenizer2.tokenizer import Tokenizer

VECTORS = Path(__file__).parent / "vectors"
CASES = {case["id"]: case for case in json.loads((VECTORS / "reply_cases.json").read_bytes())["cases"]}


@dataclass
class Words:
    """A vocabulary by hand; `control` ids are added tokens."""

    tokens: Sequence[bytes]
    control: frozenset[int] = frozenset()

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]

    def is_control(self, token_id: int) -> bool:
        return token_id in self.control


@dataclass
class HashExecutor:
    """Logits from a hash of every id in the cache; checks that it is used as promised."""

    vocab_size: int = 64
    max_seq_len: int = 40
    max_chunk_tokens: int = 8
    fail_at: int = -1  # forward number that fails
    ids: list[int] = field(default_factory=list)
    calls: list[tuple[int, ...]] = field(default_factory=list)
    name: str = "hash"
    adapter: str = "sha256"
    kernel_ms: float = 0.0

    @property
    def pos(self) -> int:
        return len(self.ids)

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> NDArray[np.float32] | None:
        assert 1 <= len(ids) <= self.max_chunk_tokens
        assert self.pos + len(ids) <= self.max_seq_len
        self.calls.append(tuple(ids))
        self.ids += ids[: len(ids) // 2]
        await asyncio.sleep(0)
        if len(self.calls) - 1 == self.fail_at:
            raise DeviceError("device.lost", "as asked")
        self.ids += ids[len(ids) // 2 :]
        return self.logits() if want_logits else None

    def logits(self) -> NDArray[np.float32]:
        seed = hashlib.sha256(json.dumps(self.ids).encode()).digest()
        return (
            np.random.Generator(np.random.PCG64(list(seed))).normal(0, 3, self.vocab_size).astype(np.float32)
        )

    def truncate(self, pos: int) -> None:
        assert 0 <= pos <= self.pos
        del self.ids[pos:]

    def digest(self, logits: NDArray[np.float32]) -> str:
        return digest_of(logits)


@dataclass
class ScriptExecutor(HashExecutor):
    """The greedy reply to any prompt is `script`."""

    script: Sequence[int] = ()
    prompt_tokens: int = 1

    def logits(self) -> NDArray[np.float32]:
        values = np.zeros(self.vocab_size, dtype=np.float32)
        values[self.script[self.pos - self.prompt_tokens]] = 1
        return values


LETTERS = Words([bytes([97 + i % 26]) for i in range(64)])


def params(**raw: Any) -> SamplingParams:
    return parse_params(raw, {"max_tokens": 12})


def collect(
    session: Session,
    prompt: Sequence[int],
    p: SamplingParams,
    cancelled: Callable[[], bool] = lambda: False,
    watch: Callable[[Event], None] = lambda event: None,
) -> tuple[list[Event], Done]:
    async def run() -> list[Event]:
        events = []
        async for event in session.generate(prompt, p, cancelled=cancelled):
            events.append(event)
            watch(event)
        return events

    events = asyncio.run(run())
    last = events[-1]
    assert isinstance(last, Done)
    check(events, last)
    return events, last


def check(events: Sequence[Event], done: Done) -> None:
    """What holds for every reply."""
    deltas = [event for event in events if isinstance(event, Delta)]
    assert all(delta.data for delta in deltas)
    assert b"".join(delta.data for delta in deltas if not delta.is_reasoning) == done.text
    assert b"".join(delta.data for delta in deltas if delta.is_reasoning) == (done.reasoning or b"")
    for delta in deltas:
        delta.data.decode("utf-8")
    assert tuple(event.id for event in events if isinstance(event, Token)) == done.generated_ids
    assert len(done.generated_ids) == len(done.logit_digests) == len(done.timings.decode_ms)
    assert sum(isinstance(event, Done) for event in events) == 1
    json.dumps([done.detail, done.timings.as_json()])


def test_times_of_steps_are_wall_times_and_what_of_them_the_kernels_took() -> None:
    """A step lasts from one id to the next, so what is done with an id meanwhile counts."""
    executor = ScriptExecutor(script=(1, 2, 3, 0), kernel_ms=2.5)
    done = collect(
        Session(LETTERS, executor, {0}),
        [5],
        params(temperature=0),
        watch=lambda event: time.sleep(0.02) if isinstance(event, Token) else None,
    )[1]
    assert done.timings.kernel_ms == [0.0, 2.5, 2.5, 2.5]
    assert done.timings.prefill_kernel_ms == 2.5
    first, *steps = done.timings.decode_ms
    assert min(steps) >= 19
    assert first < min(steps)


def comparable(done: Done) -> tuple[Any, ...]:
    return (done.reason, done.generated_ids, done.reasoning, done.text, done.logit_digests, done.detail)


def cold(prompt: Sequence[int], p: SamplingParams, **executor: Any) -> Done:
    return collect(Session(LETTERS, HashExecutor(**executor), (0,)), prompt, p)[1]


def reply(script: Sequence[int], tokens: Sequence[bytes], *, eos: Sequence[int] = (), **raw: Any) -> Done:
    """The reply whose ids are `script`; the prompt is one more token, which is not in it."""
    words = Words([*tokens, b"?"])
    executor = ScriptExecutor(vocab_size=len(tokens) + 1, script=script, max_seq_len=999)
    return collect(Session(words, executor, eos), [len(tokens)], params(**raw))[1]


# --- the cache and the chunks never show -----------------------------------------------------------------

ids = st.lists(st.integers(0, 63), min_size=1, max_size=20)
sampled = st.sampled_from(
    [params(), params(temperature=1.0, seed=5), params(temperature=0.7, top_k=5, repetition_penalty=1.2)]
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(ids, st.integers(0, 20), sampled), min_size=1, max_size=5), st.integers(1, 9))
def test_reuse_and_chunks_give_the_cold_reply(turns: list[Any], chunk: int) -> None:
    """Each prompt shares a prefix of any length with what the cache holds."""
    session = Session(LETTERS, HashExecutor(max_chunk_tokens=chunk), (0,))
    for fresh, shared, p in turns:
        kept = session.cached_ids[:shared]
        prompt = [*kept, *fresh]
        _, done = collect(session, prompt, p)
        assert comparable(done) == comparable(cold(prompt, p))
        assert done.timings.reused_tokens >= len(kept)
        assert done.timings.reused_tokens + done.timings.prefill_tokens == len(prompt)


def test_the_next_turn_forwards_only_what_is_new() -> None:
    executor = HashExecutor()
    session = Session(LETTERS, executor, (0,))
    _, first = collect(session, [1, 2, 3], params(max_tokens=4))
    executor.calls.clear()
    _, again = collect(session, [1, 2, 3], params(max_tokens=4))
    assert executor.calls[0] == (3,)  # the last id is always forwarded: its logits are wanted
    assert comparable(again) == comparable(first)
    executor.calls.clear()
    events, _ = collect(session, [1, 2, 3, *first.generated_ids, 9], params(max_tokens=1))
    assert executor.calls == [(first.generated_ids[-1], 9)]
    assert events[:2] == [Prefill(6, 8), Prefill(8, 8)]


def test_an_executor_that_somebody_else_used_is_not_trusted() -> None:
    executor = HashExecutor()
    session = Session(LETTERS, executor, (0,))
    collect(session, [1, 2, 3], params(max_tokens=2))
    executor.truncate(1)
    assert comparable(collect(session, [1, 2, 3], params())[1]) == comparable(cold([1, 2, 3], params()))


# --- cancellation and failure ----------------------------------------------------------------------------


@pytest.mark.parametrize("calls", range(16))
def test_cancel_ends_a_reply_within_one_forward_pass(calls: int) -> None:
    """Cancelled after any forward pass: no further one is made, and the session goes on as if fresh."""
    executor = HashExecutor(max_chunk_tokens=4)
    session = Session(LETTERS, executor, (0,))
    prompt = list(range(1, 11))
    p = params(temperature=1.0, seed=3)
    whole = cold(prompt, p)
    _, done = collect(session, prompt, p, cancelled=lambda: len(executor.calls) >= calls)
    if calls <= 3 + len(whole.generated_ids) - 1:
        assert done.reason == "cancelled"
        assert len(executor.calls) == calls
        assert len(done.generated_ids) == max(0, calls - 3)
        assert whole.text.startswith(done.text)
    else:
        assert comparable(done) == comparable(whole)
    assert executor.ids == list(session.cached_ids)
    assert comparable(collect(session, prompt, p)[1]) == comparable(whole)


def test_cancel_releases_the_text_held_for_a_stop_string() -> None:
    words = Words([b"ab", b"c"])
    executor = ScriptExecutor(vocab_size=2, script=[0] * 9)
    session = Session(words, executor, ())
    _, done = collect(session, [1], params(stop=["abc"]), cancelled=lambda: len(executor.calls) >= 3)
    assert (done.reason, done.text) == ("cancelled", b"abab")


@pytest.mark.parametrize("fail_at", range(8))
def test_a_failing_executor_leaves_the_session_usable(fail_at: int) -> None:
    executor = HashExecutor(max_chunk_tokens=3, fail_at=fail_at)
    session = Session(LETTERS, executor, (0,))
    prompt = [5, 6, 7, 8]
    with pytest.raises(DeviceError, match=r"device\.lost"):
        collect(session, prompt, params())
    assert comparable(collect(session, prompt, params())[1]) == comparable(cold(prompt, params()))


@pytest.mark.parametrize("fail_at", range(12))
def test_a_reply_goes_on_with_another_executor(fail_at: int) -> None:
    """Lost while reading or writing, with a prefix in the cache: the reply is the cold one."""
    others = [HashExecutor(max_chunk_tokens=2, name="other")]
    calls: list[tuple[str, int]] = []

    async def renew(error: DeviceError, tries: int) -> Executor:
        calls.append((error.code, tries))
        await asyncio.sleep(0)
        return others.pop()

    executor = HashExecutor(max_chunk_tokens=3)
    session = Session(LETTERS, executor, (0,), renew=renew)
    prompt = [5, 6, 7, 8, 9, 10, 11, 12]
    collect(session, prompt[:2], params(max_tokens=1))
    executor.fail_at = len(executor.calls) + fail_at
    events, done = collect(session, prompt, params())
    assert comparable(done) == comparable(cold(prompt, params()))
    assert done.timings.reused_tokens + done.timings.prefill_tokens == len(prompt)
    (loss,) = done.losses
    assert calls == [("device.lost", 1)]
    # Six ids in two passes give the first token.
    assert (loss.n_tokens, loss.executor, loss.as_json()["code"]) == (
        max(0, fail_at - 1),
        "other",
        "device.lost",
    )
    told = [event for event in events if isinstance(event, Prefill)]
    again = told.index(Prefill(0, len(prompt) + loss.n_tokens))
    assert told[-1] == Prefill(len(prompt) + loss.n_tokens, len(prompt) + loss.n_tokens)
    assert [event.done_tokens for event in told[again:]] == sorted(e.done_tokens for e in told[again:])
    assert comparable(collect(session, prompt, params())[1]) == comparable(done)


def test_executors_that_go_on_failing_end_the_reply() -> None:
    """Each dies in its second pass, so that every one of them brings the reply further, or none does."""
    for n_read, expected in ((1, [1, 1, 1, 1]), (9, [1, 2, 3, 4])):
        tries_seen: list[int] = []

        async def renew(error: DeviceError, tries: int, seen: list[int] = tries_seen) -> Executor:
            seen.append(tries)
            return HashExecutor(max_chunk_tokens=8, fail_at=1)

        session = Session(LETTERS, HashExecutor(max_chunk_tokens=8, fail_at=1), (), renew=renew)
        with pytest.raises(DeviceError, match=r"device\.lost"):
            collect(session, [1] * n_read, params())
        assert tries_seen == expected[:MAX_LOSSES]


def test_no_other_executor_is_the_error_of_the_first() -> None:
    async def renew(error: DeviceError, tries: int) -> Executor:
        raise error

    executor = HashExecutor(fail_at=2)
    session = Session(LETTERS, executor, (0,), renew=renew)
    with pytest.raises(DeviceError, match=r"device\.lost"):
        collect(session, [1, 2, 3], params())
    assert comparable(collect(session, [1, 2, 3], params())[1]) == comparable(cold([1, 2, 3], params()))


def test_bad_logits_pass_through_with_the_position() -> None:
    class Broken(HashExecutor):
        def logits(self) -> NDArray[np.float32]:
            return super().logits() * np.float32(np.nan if self.pos == 5 else 1)

    session = Session(LETTERS, Broken(), (0,))
    with pytest.raises(DeviceError) as caught:
        collect(session, [1, 2, 3], params())
    assert caught.value.code == "device.bad_logits"
    assert caught.value.detail["position"] == 5


def test_a_cancelled_task_leaves_the_session_usable() -> None:
    executor = HashExecutor()
    session = Session(LETTERS, executor, (0,))

    async def run() -> None:
        async def consume() -> None:
            async for _ in session.generate([1, 2, 3], params()):
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert comparable(collect(session, [1, 2, 3], params())[1]) == comparable(cold([1, 2, 3], params()))


def test_an_abandoned_reply_gives_way_to_a_newer_one() -> None:
    session = Session(LETTERS, HashExecutor(), (0,))

    async def run() -> Done:
        old = session.generate([1, 2, 3], params())
        for _ in range(4):
            await anext(old)
        events = [event async for event in session.generate([1, 2, 4], params())]
        with pytest.raises(ProtocolError, match="newer reply"):
            async for _ in old:
                pass
        assert isinstance(events[-1], Done)
        return events[-1]

    assert comparable(asyncio.run(run())) == comparable(cold([1, 2, 4], params()))


def test_two_replies_at_once_are_refused() -> None:
    session = Session(LETTERS, HashExecutor(), (0,))

    async def run() -> None:
        first = session.generate([1, 2, 3], params())
        await anext(first)
        pending = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)  # now inside forward
        with pytest.raises(ProtocolError) as caught:
            await anext(session.generate([1], params()))
        assert caught.value.code == "protocol.state"
        assert isinstance(await pending, Prefill)
        assert isinstance([event async for event in first][-1], Done)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("prompt", "code"),
    [([], "input.budget"), ([1] * 41, "input.budget"), ([64], "input.token_id"), ([1, -1], "input.token_id")],
)
def test_bad_prompts(prompt: list[int], code: str) -> None:
    executor = HashExecutor()
    with pytest.raises(InputError) as caught:
        collect(Session(LETTERS, executor, (0,)), prompt, params())
    assert caught.value.code == code
    assert not executor.calls


# --- how a reply ends ------------------------------------------------------------------------------------


def test_the_reasons_are_those_of_the_protocol() -> None:
    assert get_args(Reason) == tuple(protocol.REASONS)


def test_eos_01_any_eos_id_ends_the_reply() -> None:
    case = CASES["EOS-01"]["input"]
    tokens = [b" Lima", b" is", b".", b"<eos-a>", b"<eos-b>", b"x"]
    done = reply([0, 1, 2, 4, 5], tokens, eos=[3, 4])
    assert len(case["eos_token_id"]) == 2
    assert (done.reason, done.text, done.detail) == (
        "stop_token",
        CASES["EOS-01"]["expected"]["text"].encode(),
        {"id": 4},
    )
    assert done.generated_ids == (0, 1, 2, 4)


def test_eos_wins_over_max_tokens() -> None:
    assert reply([0, 1], [b"a", b"<eos>"], eos=[1], max_tokens=2).reason == "stop_token"
    assert reply([0, 0], [b"a", b"<eos>"], eos=[1], max_tokens=2).reason == "max_tokens"


@pytest.mark.parametrize("n", [37, 39, 40])
def test_context_full(n: int) -> None:
    """The cache's last position is used; one more id is sampled from its logits, and that is the end."""
    session = Session(LETTERS, HashExecutor(), ())
    _, done = collect(session, list(range(1, n + 1)), params())
    assert done.reason == "context_full"
    assert len(done.generated_ids) == 40 - n + 1
    assert len(session.cached_ids) == 40
    _, done = collect(session, list(range(1, n + 1)), params(max_tokens=40 - n + 1))
    assert done.reason == "max_tokens"


@pytest.mark.parametrize("name", ["STP-02", "STP-03", "STP-06", "STP-07"])
def test_reported_stop_strings(name: str) -> None:
    case = CASES[name]
    chunks = [chunk.encode() for chunk in case["input"]["chunks"]]
    done = reply(range(len(chunks)), chunks, stop=case["input"]["stop"], max_tokens=len(chunks))
    assert done.text.decode() == case["expected"]["text"]
    assert done.reason == ("stop_string" if case["expected"]["reason"] == "stop" else "max_tokens")
    if done.reason == "stop_string":
        assert done.detail == {"stop": case["input"]["stop"][0]}


@pytest.mark.parametrize("name", ["UTF-01", "UTF-02", "UTF-06"])
def test_reported_characters_over_token_edges(name: str) -> None:
    case = CASES[name]
    tokens = [bytes.fromhex(data) for data in case["input"]["bytes_hex"]]
    words = Words([*tokens, b"?"])
    executor = ScriptExecutor(vocab_size=len(tokens) + 1, script=range(len(tokens)))
    events, done = collect(Session(words, executor, ()), [len(tokens)], params(max_tokens=len(tokens)))
    deltas: list[str] = []
    for event in events:
        if isinstance(event, Token):
            deltas.append("")
        elif isinstance(event, Delta):
            deltas[-1] += event.data.decode()
    assert deltas == case["expected"]["deltas"]
    assert done.text.decode() == case["expected"]["text"]


def test_utf_05_bytes_that_never_become_text_end_the_reply() -> None:
    """The report wants U+FFFD; we end the reply and say where, and nothing is replaced."""
    tokens = [bytes.fromhex(data) for data in CASES["UTF-05"]["input"]["bytes_hex"]]
    done = reply(range(6), tokens)
    assert done.reason == "invalid_utf8"
    assert done.detail == {"offset": 0, "bytes_hex": "f09f61"}
    assert (done.text, len(done.generated_ids)) == (b"", 3)


def test_invalid_utf8_keeps_the_text_before_it() -> None:
    done = reply(range(3), [b"ok ", b"\xc3", b"\xa9x\xffy"])
    assert (done.reason, done.text) == ("invalid_utf8", "ok éx".encode())
    assert done.detail == {"offset": 6, "bytes_hex": "ff79"}
    # the text held for a stop string is released; a stop string before the fault wins
    assert reply(range(2), [b"ab", b"\xff"], stop=["abc"]).text == b"ab"
    stopped = reply(range(2), [b"ab", b"c\xff"], stop=["abc"])
    assert (stopped.reason, stopped.text, stopped.detail) == ("stop_string", b"", {"stop": "abc"})


def test_a_genuine_replacement_character_passes() -> None:
    done = reply([0], ["\ufffd".encode()], max_tokens=1)
    assert (done.reason, done.text) == ("max_tokens", "\ufffd".encode())


def test_a_partial_character_at_the_end_is_reported() -> None:
    for raw, reason in (({"max_tokens": 2}, "max_tokens"), ({}, "stop_token")):
        done = reply([0, 1, 2], [b"hi ", b"\xf0\x9f\xab", b"<eos>"], eos=[2], **raw)
        assert (done.reason, done.text) == (reason, b"hi ")
        assert done.detail["partial_hex"] == "f09fab"


def test_added_tokens_have_no_text() -> None:
    words = Words([b"a", b"<mark>", b"\xc3", b"\xa9", b"?"], control=frozenset({1}))
    executor = ScriptExecutor(vocab_size=5, script=[0, 1, 2, 1, 3])
    events, done = collect(Session(words, executor, ()), [4], params(max_tokens=5))
    assert done.text == "aé".encode()
    assert Token(1, b"<mark>") in events


@given(
    st.lists(
        st.sampled_from([b"a", b"b", b"ab", b"\xc3", b"\xa9", b"c\xc3", b"\xf0\x9f", b"\xff"]),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.sampled_from(["ab", "ba", "é", "aé", "abc"]), max_size=3),
)
@settings(deadline=None)
def test_the_text_does_not_depend_on_how_tokens_cut_it(tokens: list[bytes], stop: list[str]) -> None:
    bytewise = [bytes([byte]) for byte in b"".join(tokens)]
    whole = reply(range(len(tokens)), tokens, stop=stop, max_tokens=len(tokens))
    single = reply(range(len(bytewise)), bytewise, stop=stop, max_tokens=len(bytewise))
    assert (whole.reason, whole.text) == (single.reason, single.text)
    if whole.reason == "stop_string":
        assert whole.detail == single.detail
    if whole.reason == "invalid_utf8":
        assert whole.detail["offset"] == single.detail["offset"]


# --- reasoning -------------------------------------------------------------------------------------------

E_ACUTE = "é".encode()
PARTS = [b"a", E_ACUTE[:1], E_ACUTE[1:], b"<think>", b"</think>", b"\xff", b"<think>", b"</think>", b"\n"]
OPEN, CLOSE = 6, 7  # 3 and 4 only look like them
LF = 8


def thoughts(script: Sequence[int], prompt: Sequence[int] = (), **raw: Any) -> Done:
    words = Words([*PARTS, b"?"], control=frozenset({OPEN, CLOSE}))
    n_prompt = len(prompt) + 1
    executor = ScriptExecutor(vocab_size=10, script=script, prompt_tokens=n_prompt, max_seq_len=999)
    session = Session(words, executor, (), Markers(Pair(OPEN, CLOSE)))
    return collect(session, [*prompt, 9], params(max_tokens=len(script), **raw))[1]


@pytest.mark.parametrize(
    ("prompt", "script", "reasoning", "text", "detail"),
    [
        ([], [0, 0], None, "aa", {}),
        ([], [OPEN, 0, CLOSE, 0, 0], "a", "aa", {}),
        ([], [OPEN, 3, 4, 0, CLOSE, 4, 3], "<think></think>a", "</think><think>", {}),
        ([], [OPEN, CLOSE, 0], "", "a", {}),
        ([], [OPEN, 0, 0], "aa", "", {}),
        ([], [CLOSE, 0], None, "a", {}),
        ([], [0, OPEN, 0, OPEN, 0, CLOSE, 0], "aa", "aa", {}),
        ([OPEN], [0, CLOSE, 0], "a", "a", {}),
        ([OPEN, 0, CLOSE], [0], None, "a", {}),
        ([OPEN, CLOSE, 0, OPEN], [0, 0], "aa", "", {}),
        ([], [OPEN, LF, LF, 0, LF, 0, LF, CLOSE, LF, LF, 0, LF], "a\na", "a\n", {}),
        ([], [OPEN, LF, CLOSE, LF], "", "", {}),
        ([], [OPEN, 0, LF, OPEN, 0, LF, CLOSE, LF, 0], "a\na", "a", {}),
        ([], [LF, 0, LF], None, "\na\n", {}),
        ([], [LF, OPEN, CLOSE, LF, 0], "", "\n\na", {}),
        ([OPEN], [LF, 0, LF, CLOSE, LF, 0], "a", "a", {}),
        ([OPEN, CLOSE], [LF, 0], None, "\na", {}),
        ([], [OPEN, 1, CLOSE, 0], "", "a", {"reasoning_partial_hex": "c3"}),
        ([], [OPEN, 1, CLOSE, 1], "", "", {"reasoning_partial_hex": "c3", "partial_hex": "c3"}),
        ([], [1, OPEN, 0, CLOSE, 2], "a", "é", {}),
        ([], [OPEN, 0, 5], "a", "", {"offset": 1, "bytes_hex": "ff", "part": "reasoning"}),
        ([], [OPEN, 0, CLOSE, 0, 5], "a", "a", {"offset": 1, "bytes_hex": "ff"}),
    ],
)
def test_ids_and_nothing_spelled_like_them_separate_thought_and_answer(
    prompt: list[int], script: list[int], reasoning: str | None, text: str, detail: dict[str, Any]
) -> None:
    done = thoughts(script, prompt)
    assert (done.reasoning, done.text) == (None if reasoning is None else reasoning.encode(), text.encode())
    assert done.detail == detail
    assert done.reason == ("invalid_utf8" if "offset" in detail else "max_tokens")


def test_a_stop_string_ends_the_answer_and_no_thought() -> None:
    done = thoughts([OPEN, 0, 0, CLOSE, 0, 0], stop=["aa"])
    assert (done.reason, done.reasoning, done.text) == ("stop_string", b"aa", b"")
    assert done.detail == {"stop": "aa"}
    done = thoughts([OPEN, LF, LF, 0, LF, LF, CLOSE, LF, LF, 0, LF, LF], stop=["\n\n"])
    assert (done.reason, done.reasoning, done.text) == ("stop_string", b"a", b"a")


def test_the_thought_about_the_tag(qwen3_tokenizer: Tokenizer) -> None:
    """ggml-org/llama.cpp#27661: the reasoning spells `</think>` in ordinary tokens."""
    script = [151667, 198, 1782, 690, 26865, 29, 4772, 198, 151668, 271, 10438, 151645]
    executor = ScriptExecutor(vocab_size=151936, script=script, max_seq_len=999)
    session = Session(qwen3_tokenizer, executor, (151645,), Markers.of(qwen3_tokenizer))
    _, done = collect(session, [9707], params())
    assert (done.reasoning, done.text) == (b"the </think> tag", b"done")
    assert done.reason == "stop_token"


def test_a_vocabulary_without_the_markers_has_no_thoughts(smollm2_tokenizer: Tokenizer) -> None:
    assert Markers.of(smollm2_tokenizer) == Markers()


# --- what is recorded ------------------------------------------------------------------------------------


def test_digests_are_of_the_logits_each_id_was_sampled_from() -> None:
    executor = HashExecutor()
    done = cold([1, 2, 3], params(max_tokens=3))
    for step, recorded in enumerate(done.logit_digests):
        executor.ids = [1, 2, 3, *done.generated_ids[:step]]
        assert recorded == hashlib.sha256(executor.logits().astype("<f4").tobytes()).hexdigest()
    assert digest_of(np.zeros(1, dtype=np.float32)) == hashlib.sha256(bytes(4)).hexdigest()


def test_the_position_in_the_sequence_seeds_the_draw() -> None:
    """A reply continued from its own ids goes on as if it had never stopped."""
    p = params(temperature=1.5, seed=8)
    whole = cold([1, 2, 3], p).generated_ids
    rest = cold([1, 2, 3, *whole[:5]], p).generated_ids
    assert rest[: len(whole) - 5] == whole[5:]


# --- the real model --------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_greedy_reply_of_the_real_model(packed_smollm2: Path) -> None:
    """The ids of transformers in float32 (smollm2_greedy.json)."""
    expected = json.loads((VECTORS / "smollm2_greedy.json").read_bytes())
    model = PackedModel.open(packed_smollm2)
    tokenizer = Tokenizer.from_bytes(model.tokenizer_bytes)
    executor: Executor = ReferenceExecutor(model, max_seq_len=64)
    session = Session(tokenizer, executor, model.manifest.eos_ids)
    p = parse_params({"temperature": 0, "max_tokens": 20}, model.manifest.defaults)
    _, done = collect(session, expected["prompt_ids"], p)
    assert list(done.generated_ids) == expected["greedy_new_ids"]
    assert done.reason == "stop_token"
    assert done.text.decode() + "<|im_end|>" == expected["text"]
