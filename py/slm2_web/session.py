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

After each forward pass the session knows exactly what the cache holds. When one fails, it forgets the cache
and asks whoever made the executor for another one (`renew`), which reads the whole context again: the reply
goes on with the same tokens, since executors give the same bits. It does so MAX_LOSSES times in a reply;
then, or when there is no other executor, the error passes on, and the next reply starts from nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import DeviceError, InputError, ProtocolError
from slm2_web.forward2.executor import Executor
from slm2_web.sampling2.params import SamplingParams
from slm2_web.sampling2.sampler import sample
from slm2_web.stopstrings import StopStrings
from slm2_web.strictjson import show
from slm2_web.tokenizer2.utf8 import InvalidUtf8, Utf8Stream

# Executors that a reply may lose and still go on.
MAX_LOSSES = 4

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
    how many it held already. After a loss it begins again, and what was generated counts as prompt."""

    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """An id was sampled; `data` is its token, of an added token the marker's text."""

    id: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Delta:
    """The text goes on: whole UTF-8 characters, never empty."""

    data: bytes


@dataclass(slots=True)
class Timings:
    """Wall-clock times; never part of a comparison.

    `decode_ms[i]`: from asking for the i-th generated id to having it; its forward pass, except for the
    first, whose logits come from the prefill.
    """

    prefill_ms: float = 0.0
    prefill_tokens: int = 0
    reused_tokens: int = 0
    decode_ms: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Milliseconds with three decimals."""
        return {
            "prefill_ms": round(self.prefill_ms, 3),
            "prefill_tokens": self.prefill_tokens,
            "reused_tokens": self.reused_tokens,
            "decode_ms": [round(ms, 3) for ms in self.decode_ms],
        }


@dataclass(frozen=True, slots=True)
class Loss:
    """An executor that failed after `n_tokens` generated ids, and the one that took over; `ms` went by until
    that was ready."""

    error: DeviceError
    n_tokens: int
    executor: str
    adapter: str
    ms: float

    def as_json(self) -> dict[str, Any]:
        """`{"code", "message", "n_tokens", "executor", "adapter", "ms"}`."""
        return {
            "code": self.error.code,
            "message": self.error.message,
            "n_tokens": self.n_tokens,
            "executor": self.executor,
            "adapter": self.adapter,
            "ms": round(self.ms, 3),
        }


@dataclass(frozen=True, slots=True)
class Done:
    """The reply has ended.

    `generated_ids` has every sampled id, an eos id too; `text` is what the deltas said; `logit_digests[i]`
    is the sha256, in hexadecimal, of the logits (little-endian float32) that generated_ids[i] was sampled
    from. `detail` says more about the reason:

        stop_token    {"id"}
        stop_string   {"stop"}: the string
        invalid_utf8  {"offset", "bytes_hex"}: where in the bytes of the reply, and all of them from there
        any           {"partial_hex"}: the beginning of a character that never came; `text` ends before it

    `losses`: the executors that failed meanwhile; they leave no trace in the rest.
    """

    reason: Reason
    generated_ids: tuple[int, ...]
    text: bytes
    logit_digests: tuple[str, ...]
    timings: Timings
    detail: Mapping[str, Any]
    losses: tuple[Loss, ...] = ()


Event = Prefill | Token | Delta | Done

# `renew(error, tries)`: another executor, with an empty cache, after the last one failed with `error`;
# `tries` counts the failures since the reply's last token. Raises: DeviceError, as a rule `error`, when there
# is none.
Renew = Callable[[DeviceError, int], Awaitable[Executor]]


def never() -> bool:
    """Not cancelled."""
    return False


class Session:
    """One model's replies, one at a time, with one KV cache."""

    def __init__(
        self, tokenizer: Vocabulary, executor: Executor, eos_ids: Collection[int], renew: Renew | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._executor = executor
        self._renew = renew
        self._eos_ids = frozenset(eos_ids)
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
        """The events of one reply; the last is Done. `cancelled` is asked before every forward pass, and once
        more before an id is sampled.

        Raises: InputError `input.budget`, `input.token_id`; ProtocolError `protocol.state` while another
            reply is inside a forward pass, or when a newer reply was started before this one ended; what
            the executor (unless another one takes over) and the sampler raise.
        """
        self._check(prompt_ids)
        if self._in_forward:
            raise ProtocolError("protocol.state", "another reply is in a forward pass; wait for its end")
        turn = self._turn = object()
        context = list(prompt_ids)
        text = _Text(params.stop)
        timings = Timings()
        generated: list[int] = []
        digests: list[str] = []
        losses: list[Loss] = []

        start = time.perf_counter()
        self._keep_common_prefix(context)
        timings.reused_tokens = len(self._cached_ids)
        yield Prefill(len(self._cached_ids), len(context))
        reason: Reason | None = None
        detail: Mapping[str, Any] = {}
        logits: NDArray[np.float32] | None = None
        while reason is None:
            # Prefill, step and recovery alike: forward what the cache lacks of the context.
            reading = not generated
            while not cancelled() and len(self._cached_ids) < len(context):
                pos = len(self._cached_ids)
                chunk = context[pos : pos + self._executor.max_chunk_tokens]
                try:
                    logits = await self._forward(turn, chunk, want_logits=pos + len(chunk) == len(context))
                except DeviceError as error:
                    losses.append(await self._replace(turn, error, len(generated), losses))
                    reading = True
                    yield Prefill(0, len(context))
                    continue
                if not generated:
                    read = len(self._cached_ids) - timings.reused_tokens
                    timings.prefill_tokens = max(timings.prefill_tokens, read)
                    timings.prefill_ms = (time.perf_counter() - start) * 1e3
                if reading:
                    yield Prefill(len(self._cached_ids), len(context))
            if cancelled():
                reason = "cancelled"
                break
            self._check_turn(turn)
            assert logits is not None
            if not generated:
                start = time.perf_counter()
            token_id = sample(logits, context, params, len(context), self._tokenizer.n_tokens).id
            digests.append(digest(logits))
            generated.append(token_id)
            timings.decode_ms.append((time.perf_counter() - start) * 1e3)
            data = self._tokenizer.token_bytes(token_id)
            yield Token(token_id, data)

            if token_id in self._eos_ids:
                reason, detail = "stop_token", {"id": token_id}
            elif not self._tokenizer.is_control(token_id):
                delta, ending = text.feed(data)
                if delta:
                    yield Delta(delta)
                if ending is not None:
                    reason, detail = ending
            if reason is not None:
                break
            if len(generated) == params.max_tokens:
                reason = "max_tokens"
            elif len(context) + 1 > self._executor.max_seq_len:
                reason = "context_full"
            context.append(token_id)
            start = time.perf_counter()

        if reason != "stop_string":
            rest = text.finish()
            if rest:
                yield Delta(rest)
        partial = text.partial
        if partial:
            detail = {**detail, "partial_hex": partial.hex()}
        yield Done(
            reason,
            tuple(generated),
            bytes(text.released),
            tuple(digests),
            timings,
            dict(detail),
            tuple(losses),
        )

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

    async def _replace(self, turn: object, error: DeviceError, n_tokens: int, losses: Sequence[Loss]) -> Loss:
        """Put another executor in the place of the one that failed.

        Raises: DeviceError: `error`, when there is none.
        """
        if self._renew is None or len(losses) == MAX_LOSSES:
            raise error
        self._check_turn(turn)
        tries = 1 + sum(loss.n_tokens == n_tokens for loss in losses)
        start = time.perf_counter()
        self._in_forward = True
        try:
            self._executor = await self._renew(error, tries)
        finally:
            self._in_forward = False
        ms = (time.perf_counter() - start) * 1e3
        return Loss(error, n_tokens, self._executor.name, self._executor.adapter, ms)

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
    """From the bytes of tokens to the text that is certain."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        self.released = bytearray()
        self.partial = b""
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
        delta, stop = self._stops.feed(whole)
        if stop is not None:
            self.partial = b""
            return self._release(delta), ("stop_string", {"stop": stop.decode("utf-8")})
        if invalid is not None:
            self.partial = b""
        return self._release(delta), invalid

    def finish(self) -> bytes:
        """The text that was held for a stop string which did not come."""
        return self._release(self._stops.finish())

    def _release(self, data: bytes) -> bytes:
        self.released += data
        return data
