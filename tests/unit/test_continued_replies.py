"""Replies that were cut short and go on: the pieces are one reply, bit for bit, of a tiny real network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slm2_web import transcript
from slm2_web.errors import InputError
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel
from slm2_web.request import Request
from slm2_web.sampling2.params import SamplingParams, parse_params
from slm2_web.session import Done, Event, Session, Token
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.transcript import Artifacts

N_TOKENS = 24
CONTEXT = 120
ASKED: dict[str, Any] = {"temperature": 1.3, "seed": 11, "max_tokens": N_TOKENS, "invalid_utf8": "show"}


class Tiny:
    """The tiny network, a session with it that is used again and again, and a prompt."""

    def __init__(self, directory: Path) -> None:
        self.packed = PackedModel.open(directory)
        self.tokenizer = Tokenizer.from_bytes(self.packed.tokenizer_bytes)
        self.prompt = list(range(40, 60))
        self.session = self.fresh()

    def fresh(self) -> Session:
        """A session with an empty cache."""
        self.executor = ReferenceExecutor(self.packed, max_seq_len=CONTEXT)
        return Session(self.tokenizer, self.executor, self.packed.manifest.eos_ids)

    def events(
        self, params: SamplingParams, continued: Sequence[int] = (), session: Session | None = None
    ) -> list[Event]:
        async def run() -> list[Event]:
            used = session or self.session
            return [e async for e in used.generate(self.prompt, params, continued_ids=continued)]

        return asyncio.run(run())

    def reply(
        self, params: SamplingParams, continued: Sequence[int] = (), session: Session | None = None
    ) -> Done:
        done = self.events(params, continued, session)[-1]
        assert isinstance(done, Done)
        return done


@pytest.fixture(scope="module")
def tiny(packed_tiny: Path) -> Tiny:
    return Tiny(packed_tiny)


def check_pieces(tiny: Tiny, params: SamplingParams, cuts: Sequence[int]) -> Done:
    """The whole reply, which its pieces, cut before each of `cuts`, are equal to."""
    whole = tiny.reply(params, session=tiny.fresh())
    cuts = sorted({cut for cut in cuts if 0 < cut < len(whole.generated_ids)})
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, params.max_tokens], strict=True)]
    session = tiny.fresh()
    ids: list[int] = []
    digests: list[str] = []
    logprobs: list[Any] = []
    piece: Done | None = None
    for size in sizes:
        if piece is not None:
            assert piece.reason == "max_tokens"
            assert whole.text.startswith(piece.text) or whole.reason == "stop_string"
        piece = tiny.reply(replace(params, max_tokens=size), ids, session)
        if ids:
            # The last id of the piece before was sampled, and never read.
            assert piece.timings.reused_tokens == len(tiny.prompt) + len(ids) - 1
            assert piece.timings.prefill_tokens == 1
        ids += piece.generated_ids
        digests += piece.logit_digests
        logprobs += piece.logprobs or ()
    assert piece is not None
    assert (tuple(ids), tuple(digests)) == (whole.generated_ids, whole.logit_digests)
    assert (tuple(logprobs) if params.logprobs is not None else None) == whole.logprobs
    for name in ("reason", "text", "reasoning", "calls", "detail"):
        assert getattr(piece, name) == getattr(whole, name), name
    return whole


sampled = st.fixed_dictionaries(
    {"seed": st.integers(0, 99)},
    optional={
        "temperature": st.sampled_from([0, 0.7, 1.3]),
        "top_k": st.sampled_from([0, 5]),
        "top_p": st.sampled_from([0.5, 1]),
        "repetition_penalty": st.sampled_from([1, 1.3]),
        "presence_penalty": st.sampled_from([-0.5, 0.8]),
        "frequency_penalty": st.sampled_from([-0.3, 0.6]),
        "banned_ids": st.just([30, 31, 32]),
        "profile": st.just("llama.cpp"),
        "logprobs": st.integers(0, 3),
        "invalid_utf8": st.sampled_from(["end", "show"]),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(sampled, st.lists(st.integers(1, N_TOKENS - 1), min_size=1, max_size=4))
def test_the_pieces_are_the_whole(tiny: Tiny, asked: dict[str, Any], cuts: list[int]) -> None:
    check_pieces(tiny, parse_params({**ASKED, **asked}, {}), cuts)


def test_a_stop_string_may_lie_across_the_seam(tiny: Tiny) -> None:
    """Each stretch of the reply's text that spans tokens is a stop string in turn; it is cut within each."""
    params = parse_params(ASKED, {})
    whole = tiny.reply(params)
    text = whole.text.decode()
    crossed = 0
    for start in range(0, len(text) - 4, 11):
        stop = text[start : start + 5]
        stopped = tiny.reply(replace(params, stop=(stop.encode(),)))
        assert (stopped.reason, stopped.text.decode()) == ("stop_string", text[: text.index(stop)])
        n = len(stopped.generated_ids)
        for cut in {n - 1, n - 2, n // 2}:
            check_pieces(tiny, replace(params, stop=(stop.encode(),)), [cut])
            crossed += cut == n - 1
    assert crossed > 3


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "regex", "pattern": "[a-zé ]{6,60}"},
        {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {"type": "integer"}}}},
        {"type": "json_object"},
    ],
    ids=["regex", "schema", "object"],
)
def test_a_constraint_goes_on_over_the_seam(tiny: Tiny, response_format: dict[str, Any]) -> None:
    lengths = set()
    for seed in range(4):
        params = parse_params(
            {**ASKED, "seed": seed, "response_format": response_format, "logprobs": 1, "stop": ["]]"]}, {}
        )
        n = len(check_pieces(tiny, params, range(1, N_TOKENS, 2)).generated_ids)
        lengths.add(n)
    assert max(lengths) > 8


def test_the_penalties_count_what_was_continued(tiny: Tiny) -> None:
    """The same ids as a part of the prompt give another reply: there the two penalties don't see them."""
    params = parse_params({**ASKED, "frequency_penalty": 2, "presence_penalty": 2}, {})
    whole = check_pieces(tiny, params, [12])
    tiny.prompt = [*tiny.prompt, *whole.generated_ids[:12]]
    try:
        as_prompt = tiny.reply(replace(params, max_tokens=N_TOKENS - 12))
    finally:
        del tiny.prompt[-12:]
    assert as_prompt.logit_digests[0] == whole.logit_digests[12]
    assert as_prompt.generated_ids != whole.generated_ids[12:]


def test_a_cancelled_reply_goes_on(tiny: Tiny) -> None:
    params = parse_params(ASKED, {})
    whole = tiny.reply(params)
    seen: list[Event] = []

    async def run() -> Done:
        session = tiny.fresh()
        events = session.generate(
            tiny.prompt, params, cancelled=lambda: sum(isinstance(e, Token) for e in seen) == 7
        )
        async for event in events:
            seen.append(event)
        assert isinstance(seen[-1], Done)
        return seen[-1]

    first = asyncio.run(run())
    assert first.reason == "cancelled"
    rest = tiny.reply(replace(params, max_tokens=N_TOKENS - 7), first.generated_ids)
    assert first.generated_ids + rest.generated_ids == whole.generated_ids
    assert rest.text == whole.text


def test_a_full_context_goes_on_in_a_larger_one(tiny: Tiny) -> None:
    params = parse_params(ASKED, {})
    whole = tiny.reply(params)
    small = Session(tiny.tokenizer, ReferenceExecutor(tiny.packed, max_seq_len=len(tiny.prompt) + 5), ())
    first = tiny.reply(params, session=small)
    assert (first.reason, len(first.generated_ids)) == ("context_full", 6)
    rest = tiny.reply(replace(params, max_tokens=N_TOKENS - 6), first.generated_ids)
    assert first.generated_ids + rest.generated_ids == whole.generated_ids
    with pytest.raises(InputError, match=r"input\.budget"):
        tiny.reply(params, first.generated_ids, small)
    again = tiny.reply(params, first.generated_ids[:5], small)
    assert (again.reason, again.generated_ids) == ("context_full", first.generated_ids[5:])


# --- ids that no reply holds -----------------------------------------------------------------------------

SCHEMA = {"type": "regex", "pattern": "[a-z]{30}"}


def refused(tiny: Tiny, continued: Sequence[int], **raw: Any) -> InputError:
    forwards = tiny.session.cached_ids
    with pytest.raises(InputError) as caught:
        tiny.reply(parse_params({**ASKED, **raw}, {}), continued)
    assert tiny.session.cached_ids == forwards
    json.dumps(caught.value.as_json())
    return caught.value


def test_what_ends_a_reply_is_refused(tiny: Tiny) -> None:
    (eos, *_) = tiny.packed.manifest.eos_ids
    whole = tiny.reply(parse_params(ASKED, {})).generated_ids
    for ids, place in (([eos], 0), ([*whole[:3], eos], 3), ([eos, *whole[:3]], 0)):
        error = refused(tiny, ids)
        assert (error.code, error.detail["place"]) == ("input.params", f"continue_ids[{place}]")
        assert error.detail["found"] == eos


def test_a_reply_that_has_ended_is_refused(tiny: Tiny) -> None:
    params = parse_params(ASKED, {})
    stop = tiny.reply(params).text.decode()[4:7]
    ended = tiny.reply(replace(params, stop=(stop.encode(),)))
    assert ended.reason == "stop_string"
    error = refused(tiny, ended.generated_ids, stop=[stop])
    assert (error.code, error.detail["place"], error.detail["found"]) == (
        "input.params",
        "continue_ids",
        "stop_string",
    )
    error = refused(tiny, [*ended.generated_ids, 40], stop=[stop])
    assert error.detail["place"] == f"continue_ids[{len(ended.generated_ids)}]"
    bad = next(i for i in range(300) if tiny.tokenizer.token_bytes(i) == b"\xff")
    error = refused(tiny, [bad], invalid_utf8="end")
    assert (error.detail["place"], error.detail["found"]) == ("continue_ids", "invalid_utf8")


def test_an_id_outside_the_vocabulary_is_refused(tiny: Tiny) -> None:
    for token_id in (-1, tiny.tokenizer.n_tokens, 2**31):
        error = refused(tiny, [40, token_id])
        assert (error.code, error.detail["place"]) == ("input.token_id", "continue_ids[1]")


def test_an_id_that_the_language_has_not_is_refused(tiny: Tiny) -> None:
    letter, digit = (
        next(i for i in range(300) if tiny.tokenizer.token_bytes(i) == text) for text in (b"q", b"7")
    )
    error = refused(tiny, [letter, digit], response_format=SCHEMA)
    assert (error.code, error.detail["place"], error.detail["found"]) == (
        "input.params",
        "continue_ids[1]",
        digit,
    )


# --- transcripts -----------------------------------------------------------------------------------------


def test_a_continued_reply_replays_and_its_continued_ids_are_compared(tiny: Tiny) -> None:
    directory_bytes = b"{}"
    artifacts = Artifacts.of(tiny.packed.manifest, directory_bytes, "0")
    params = parse_params({**ASKED, "logprobs": 2, "stop": ["no such text"]}, {})
    whole = tiny.reply(params)
    for cut in (1, 9):
        continued = whole.generated_ids[:cut]
        rest = replace(params, max_tokens=N_TOKENS - cut)
        request = Request.of_ids(tiny.prompt, rest, CONTEXT, continued)
        done = tiny.reply(rest, continued)
        recorded = transcript.record(artifacts, request, tiny.prompt, None, done, tiny.executor)
        read = transcript.parse(transcript.write(recorded))
        again = asyncio.run(transcript.rerun(read, tiny.fresh()))
        found = transcript.record(artifacts, read.request, read.prompt_ids, None, again, tiny.executor)
        assert transcript.compare(read, found) is None
        assert found.sha256 == recorded.sha256
        value = json.loads(transcript.write(recorded))
        value["request"]["continue_ids"][0] += 1
        difference = transcript.compare(recorded, transcript.from_json(value))
        assert difference is not None
        assert difference.place == "request.continue_ids[0]"


def test_lenient_bytes_are_shown_and_listed(tiny: Tiny) -> None:
    """The random network soon says what is no UTF-8: strict, that ends the reply where lenient goes on."""
    lenient = tiny.reply(parse_params(ASKED, {}))
    strict = tiny.reply(parse_params({**ASKED, "invalid_utf8": "end"}, {}))
    assert (lenient.reason, strict.reason) == ("max_tokens", "invalid_utf8")
    first = lenient.detail["invalid"][0]
    assert strict.detail["offset"] == first["offset"] == len(strict.text)
    assert strict.detail["bytes_hex"].startswith(first["bytes_hex"])
    n = len(strict.generated_ids)
    assert strict.generated_ids == lenient.generated_ids[:n]
    shown = "".join(f"\\x{byte:02X}" for byte in bytes.fromhex(first["bytes_hex"]))
    assert lenient.text.startswith(strict.text + shown.encode())
    assert b"\xef\xbf\xbd" not in lenient.text


class Recording(ReferenceExecutor):
    """Keeps the logits that it gave."""

    given: list[NDArray[np.float32]]

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> NDArray[np.float32] | None:
        logits = await super().forward(ids, want_logits=want_logits)
        if logits is not None:
            self.given.append(logits.copy())
        return logits


def test_log_probabilities_are_those_of_the_logits(tiny: Tiny) -> None:
    executor = Recording(tiny.packed, max_seq_len=CONTEXT)
    executor.given = []
    session = Session(tiny.tokenizer, executor, ())
    params = parse_params({**ASKED, "logprobs": 3, "repetition_penalty": 1.5}, {})
    events = tiny.events(params, session=session)
    tokens = [event for event in events if isinstance(event, Token)]
    done = events[-1]
    assert isinstance(done, Done)
    assert [token.logprobs for token in tokens] == list(done.logprobs or ())
    for logits, token in zip(executor.given, tokens, strict=True):
        values = logits[: tiny.tokenizer.n_tokens].astype(np.float64)
        exact = values - values.max() - np.log(np.exp(values - values.max()).sum())
        likely = token.logprobs
        assert likely is not None
        assert np.isclose(likely.chosen, exact[token.id], rtol=1e-12)
        assert [i for i, _ in likely.top] == np.argsort(-values, kind="stable")[:3].tolist()
        assert np.allclose([p for _, p in likely.top], np.sort(exact)[::-1][:3], rtol=1e-12)


def test_banned_ids_never_come(tiny: Tiny) -> None:
    usual = tiny.reply(parse_params(ASKED, {}))
    banned = sorted(set(usual.generated_ids[:6]))
    other = tiny.reply(parse_params({**ASKED, "banned_ids": banned}, {}))
    assert not set(other.generated_ids) & set(banned)
    assert other.logit_digests[0] == usual.logit_digests[0]
