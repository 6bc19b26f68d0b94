"""The loop of a reply: prompt ids in, events out; the only module that joins stages.

Theory of operation
-------------------
    prefill   forward the prompt's ids that the KV cache lacks, in chunks, the last id always: its logits
              are wanted
    step      sample an id from the logits; release the text that is certain; end, or forward the id

The cache keeps the ids it holds. A new prompt keeps the longest prefix that it has in common with them,
so the next turn of a conversation, a regeneration and an edit all pay for what is new alone. Executors
give the same bits however the ids are cut, so neither reuse nor chunks can show in a reply.

Text goes through two streams: whole characters (utf8.py), then stop strings (stopstrings.py). An added
token (a marker of structure) has no text. So the reply's text is a function of the generated ids alone.

A model that thinks before it answers says so with two added tokens, `<think>` and `</think>`. Their ids, and
nothing that is spelled like them, move the machine:

    answer --<think>--> reasoning --</think>--> answer

It begins where the prompt leaves it: inside a thought if the last of the two ids in the prompt is `<think>`.
Reasoning and answer are two texts, each with streams of its own; stop strings end the answer alone. The line
feeds around a thought are the template's, which writes them anew: there is none at either end of the
reasoning, and none at the start of an answer that follows one.

After each forward pass the session knows exactly what the cache holds; when one fails, it forgets the
cache and the error passes on: the next reply starts from nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import FormatError, InputError, ProtocolError
from slm2_web.forward2.executor import Executor
from slm2_web.sampling2.params import SamplingParams
from slm2_web.sampling2.sampler import sample
from slm2_web.stopstrings import StopStrings
from slm2_web.strictjson import show
from slm2_web.tokenizer2.utf8 import InvalidUtf8, Utf8Stream

Reason = Literal["stop_token", "stop_string", "max_tokens", "context_full", "cancelled", "invalid_utf8"]


class Vocabulary(Protocol):
    """What the session needs of a tokenizer."""

    @property
    def n_tokens(self) -> int:
        """Ids 0 .. n_tokens - 1 have a token."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; of an added token, its marker's text."""

    def is_control(self, token_id: int) -> bool:
        """Whether it is an added token."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """The cache holds the first `done_tokens` of the prompt's `total_tokens`. The first one of a reply tells
    how many it held already."""

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """An id was sampled; `data` is its token, of an added token the marker's text."""

    id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Delta:
    """The answer, or the reasoning, goes on: whole UTF-8 characters, never empty."""

    data: bytes
    is_reasoning: bool = False


@dataclass(slots=True)
class Timings:
    """Wall-clock times; never part of a comparison.

    `decode_ms[i]`: from having the generated id before (of the first: from the end of the prefill) to having
    the i-th: handing out the one before, the forward pass, sampling. Their sum is the wall time.
    `kernel_ms[i]`: what of it the kernels' own call took; of the first 0: its logits come from the prefill.
    """

    prefill_ms: float = 0.0
    prefill_tokens: int = 0
    reused_tokens: int = 0
    decode_ms: list[float] = field(default_factory=list)
    prefill_kernel_ms: float = 0.0
    kernel_ms: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Milliseconds with three decimals, as a transcript holds them: without those of the kernels."""
        return {
            "prefill_ms": round(self.prefill_ms, 3),
            "prefill_tokens": self.prefill_tokens,
            "reused_tokens": self.reused_tokens,
            "decode_ms": [round(ms, 3) for ms in self.decode_ms],
        }


@dataclass(frozen=True, slots=True)
class Done:
    """The reply has ended.

    `generated_ids` has every sampled id, an eos id too; `text` is the answer, as its deltas said it, and
    `reasoning` the thought, None where there was none; `logit_digests[i]` is the sha256, in hexadecimal, of
    the logits (little-endian float32) that generated_ids[i] was sampled from. `detail` says more about the
    reason:

        stop_token    {"id"}
        stop_string   {"stop"}: the string
        invalid_utf8  {"offset", "bytes_hex"}: where in the bytes of the text, those line feeds counted, and
                      all of them from there; with {"part": "reasoning"} when the text is the reasoning
        any           {"partial_hex"}: the beginning of a character that never came; `text` ends before it
        any           {"reasoning_partial_hex"}: the same of `reasoning`
    """

    reason: Reason
    generated_ids: tuple[int, ...]
    reasoning: bytes | None
    text: bytes
    logit_digests: tuple[str, ...]
    timings: Timings
    detail: Mapping[str, Any]


Event = Prefill | Token | Delta | Done


class HasControlIds(Protocol):
    """What `ThinkingIds.of` needs of a tokenizer."""

    def control_id(self, marker: bytes) -> int:
        """The id of the added token with this text. Raises: FormatError."""


@dataclass(frozen=True, slots=True)
class ThinkingIds:
    """The ids that open and close a thought."""

    begin: int
    end: int

    @classmethod
    def of(cls, tokenizer: HasControlIds) -> ThinkingIds | None:
        """Those of a vocabulary that has both as added tokens."""
        try:
            return cls(tokenizer.control_id(b"<think>"), tokenizer.control_id(b"</think>"))
        except FormatError:
            return None


def never() -> bool:
    """Not cancelled."""
    return False


class Session:
    """One model's replies, one at a time, with one KV cache.

    `thinking`: the ids around a thought, for a model that thinks.
    """

    def __init__(
        self,
        tokenizer: Vocabulary,
        executor: Executor,
        eos_ids: Collection[int],
        thinking: ThinkingIds | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._executor = executor
        self._eos_ids = frozenset(eos_ids)
        self._thinking = thinking
        self._cached_ids: list[int] = []
        # Whose turn it is: a newer reply ends the turn of an older one that was not read to its end.
        self._turn = object()
        self._in_forward = False

    @property
    def cached_ids(self) -> tuple[int, ...]:
        """What the KV cache holds."""
        return tuple(self._cached_ids)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        cancelled: Callable[[], bool] = never,
    ) -> AsyncGenerator[Event, None]:
        """The events of one reply; the last is Done. `cancelled` is asked before every forward pass.

        Raises: InputError `input.budget`, `input.token_id`; ProtocolError `protocol.state` while another
            reply is inside a forward pass, or when a newer reply was started before this one ended; what
            the executor and the sampler raise.
        """
        self._check(prompt_ids)
        if self._in_forward:
            raise ProtocolError("protocol.state", "another reply is in a forward pass; wait for its end")
        turn = self._turn = object()
        prompt = list(prompt_ids)
        is_thinking = self._opens_thought(prompt)
        thought = _Text((), is_thought=True) if is_thinking else None
        answer = _Text(params.stop)
        timings = Timings()
        generated: list[int] = []
        digests: list[str] = []

        def done(reason: Reason, detail: Mapping[str, Any] | None = None) -> Done:
            everything = dict(detail or {})
            if answer.partial:
                everything["partial_hex"] = answer.partial.hex()
            if thought and thought.partial:
                everything["reasoning_partial_hex"] = thought.partial.hex()
            return Done(
                reason=reason,
                generated_ids=tuple(generated),
                reasoning=bytes(thought.released) if thought else None,
                text=bytes(answer.released),
                logit_digests=tuple(digests),
                timings=timings,
                detail=everything,
            )

        start = time.perf_counter()
        self._keep_common_prefix(prompt)
        timings.reused_tokens = len(self._cached_ids)
        yield Prefill(len(self._cached_ids), len(prompt))
        logits: NDArray[np.float32] | None = None
        while len(self._cached_ids) < len(prompt):
            if cancelled():
                yield done("cancelled")
                return
            pos = len(self._cached_ids)
            chunk = prompt[pos : pos + self._executor.max_chunk_tokens]
            logits = await self._forward(turn, chunk, want_logits=pos + len(chunk) == len(prompt))
            timings.prefill_tokens += len(chunk)
            timings.prefill_kernel_ms += self._executor.kernel_ms
            timings.prefill_ms = (time.perf_counter() - start) * 1e3
            yield Prefill(len(self._cached_ids), len(prompt))

        reason: Reason | None = "cancelled" if cancelled() else None
        detail: Mapping[str, Any] = {}
        kernel_ms = 0.0
        start = time.perf_counter()
        while reason is None:
            self._check_turn(turn)
            assert logits is not None
            context = prompt + generated
            token_id = sample(logits, prompt, generated, params, self._tokenizer.n_tokens).id
            digests.append(digest(logits))
            generated.append(token_id)
            now = time.perf_counter()
            timings.decode_ms.append((now - start) * 1e3)
            timings.kernel_ms.append(kernel_ms)
            start = now
            data = self._tokenizer.token_bytes(token_id)
            yield Token(token_id, data)

            if token_id in self._eos_ids:
                reason, detail = "stop_token", {"id": token_id}
            elif self._thinking and token_id in (self._thinking.begin, self._thinking.end):
                is_thinking = token_id == self._thinking.begin
                thought = thought or (_Text((), is_thought=True) if is_thinking else None)
                answer.follow_thought()
            elif not self._tokenizer.is_control(token_id):
                delta, ending = (thought if thought and is_thinking else answer).feed(data)
                if delta:
                    yield Delta(delta, is_thinking)
                if ending is not None:
                    reason, detail = ending
                    if is_thinking:
                        detail = {**detail, "part": "reasoning"}
            if reason is not None:
                break
            if len(generated) == params.max_tokens:
                reason = "max_tokens"
            elif len(context) + 1 > self._executor.max_seq_len:
                reason = "context_full"
            elif cancelled():
                reason = "cancelled"
            else:
                logits = await self._forward(turn, [token_id], want_logits=True)
                kernel_ms = self._executor.kernel_ms
                if cancelled():
                    reason = "cancelled"

        if reason != "stop_string":
            rest = answer.finish()
            if rest:
                yield Delta(rest)
        yield done(reason, detail)

    def _opens_thought(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends inside a thought."""
        if self._thinking is None:
            return False
        markers = (self._thinking.begin, self._thinking.end)
        last = next((token_id for token_id in reversed(prompt) if token_id in markers), None)
        return last == self._thinking.begin

    def _check(self, prompt_ids: Sequence[int]) -> None:
        limit = self._executor.max_seq_len
        if not 1 <= len(prompt_ids) <= limit:
            raise InputError(
                "input.budget",
                f"the prompt has {len(prompt_ids)} tokens; allowed: 1 to {limit}",
                {"prompt_tokens": len(prompt_ids), "max_seq_len": limit},
            )
        n_tokens = self._tokenizer.n_tokens
        for index, token_id in enumerate(prompt_ids):
            if not 0 <= token_id < n_tokens:
                raise InputError(
                    "input.token_id",
                    f"prompt_ids[{index}]: found {show(token_id)}; allowed: 0 to {n_tokens - 1}",
                    {"place": f"prompt_ids[{index}]", "found": token_id, "allowed": f"0 to {n_tokens - 1}"},
                )

    def _keep_common_prefix(self, prompt: list[int]) -> None:
        """Truncate the cache to what it shares with all of the prompt but its last id."""
        if self._executor.pos != len(self._cached_ids):
            self._forget()  # somebody else has used the executor
        keep = 0
        for cached, wanted in zip(self._cached_ids, prompt[:-1], strict=False):
            if cached != wanted:
                break
            keep += 1
        self._executor.truncate(keep)
        del self._cached_ids[keep:]

    async def _forward(
        self, turn: object, ids: Sequence[int], *, want_logits: bool
    ) -> NDArray[np.float32] | None:
        self._check_turn(turn)
        self._in_forward = True
        try:
            logits = await self._executor.forward(ids, want_logits=want_logits)
        except BaseException:  # a cancelled task too: how far the device came is not known
            self._forget()
            raise
        finally:
            self._in_forward = False
        self._cached_ids += ids
        return logits

    def _check_turn(self, turn: object) -> None:
        if turn is not self._turn:
            raise ProtocolError("protocol.state", "a newer reply was started; this one is over")

    def _forget(self) -> None:
        self._cached_ids = []
        self._executor.truncate(0)


def digest(logits: NDArray[np.float32]) -> str:
    """sha256 of the logits' bits, little-endian, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(logits, dtype="<f4").data).hexdigest()


class _Text:
    """From the bytes of tokens to the text that is certain. A thought has no line feeds at its ends."""

    def __init__(self, stops: Sequence[bytes], *, is_thought: bool = False) -> None:
        self.released = bytearray()
        self.partial = b""
        self._is_thought = is_thought
        self._skips_line_feeds = is_thought
        self._held_line_feeds = b""
        self._characters = Utf8Stream()
        self._stops = StopStrings(stops)

    def feed(self, data: bytes) -> tuple[bytes, tuple[Reason, Mapping[str, Any]] | None]:
        """(text to release now, the ending that `data` brings or None)."""
        invalid: tuple[Reason, Mapping[str, Any]] | None = None
        unfinished = self._characters.finish()
        try:
            whole = self._characters.feed(data)
        except InvalidUtf8 as error:
            # What came before the fault may still hold a stop string, which then ends the text.
            whole = error.data
            bad = (unfinished + data)[len(whole) :]
            invalid = ("invalid_utf8", {"offset": error.offset, "bytes_hex": bad.hex()})
        else:
            self.partial = self._characters.finish()
        delta, stop = self._stops.feed(self._trim(whole))
        if stop is not None:
            self.partial = b""
            return self._release(delta), ("stop_string", {"stop": stop.decode("utf-8")})
        if invalid is not None:
            self.partial = b""
        return self._release(delta), invalid

    def follow_thought(self) -> None:
        """The text stands right before or after a thought: if none of it is there yet, it begins with no line
        feed."""
        self._skips_line_feeds = not self.released

    def _trim(self, data: bytes) -> bytes:
        if self._skips_line_feeds:
            data = data.lstrip(b"\n")
            self._skips_line_feeds = not data
        if self._is_thought:
            data = self._held_line_feeds + data
            kept = data.rstrip(b"\n")
            self._held_line_feeds, data = data[len(kept) :], kept
        return data

    def finish(self) -> bytes:
        """The text that was held for a stop string which did not come."""
        return self._release(self._stops.finish())

    def _release(self, data: bytes) -> bytes:
        self.released += data
        return data
