"""The loop of a reply: prompt ids in, events out; the only module that joins stages.

Theory of operation
-------------------
    prefill   forward the prompt's ids that the KV cache lacks, in chunks, the last id always: its logits
              are wanted
    step      sample an id from the logits, among those that may come (guide.py); read it (reply.py); end, or
              forward the id

The cache keeps the ids it holds. A new prompt keeps the longest prefix that it has in common with them,
so the next turn of a conversation, a regeneration and an edit all pay for what is new alone. Executors
give the same bits however the ids are cut, so neither reuse nor chunks can show in a reply.

A reply that was cut short can be continued: the ids that were generated before count as generated, so it
goes on as if it had never stopped.

After each forward pass the session knows exactly what the cache holds. When one fails, it forgets the cache
and asks whoever made the executor for another one (`renew`), which reads the whole context again: the reply
goes on with the same tokens, since executors give the same bits. It does so MAX_LOSSES times in a reply;
then, or when there is no other executor, the error passes on, and the next reply starts from nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from slm2_web.constrain.mask import Language, Tokens
from slm2_web.constrain.schema import parse_format
from slm2_web.errors import DeviceError, InputError, ProtocolError
from slm2_web.forward2.executor import Executor
from slm2_web.guide import Guide
from slm2_web.reply import Call, Delta, Markers, Reply
from slm2_web.sampling2.logprobs import Logprobs, log_probabilities
from slm2_web.sampling2.params import SamplingParams
from slm2_web.sampling2.sampler import is_any_left, sample
from slm2_web.strictjson import show

# Executors that a reply may lose and still go on.
MAX_LOSSES = 4

Reason = Literal[
    "stop_token", "stop_string", "max_tokens", "context_full", "cancelled", "invalid_utf8", "dead_end"
]


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
    """An id was sampled; `data` is its token, of an added token the marker's text. `logprobs`: if wanted."""

    id: int
    data: bytes
    logprobs: Logprobs | None = None


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

    `generated_ids` has every sampled id, an eos id too; `text` is the whole answer, with what was continued,
    `reasoning` the thought, None where there was none, `calls` those of tools; `logit_digests[i]` is the
    sha256, in hexadecimal, of the logits (little-endian float32) that generated_ids[i] was sampled from,
    `logprobs[i]` what they say of it, None where that is not wanted.
    `detail` says more about the reason:

        stop_token    {"id"}
        stop_string   {"stop"}: the string
        invalid_utf8  {"offset", "bytes_hex"}: where in the bytes of the text, the template's line feeds
                      counted, and all of them from there; with {"part": "reasoning"} when the text is that
        dead_end      {}: of the ids that the form of the reply allows next, `banned_ids` leave none
        any           {"partial_hex"}: the beginning of a character that never came; `text` ends before it
        any           {"invalid": [{"offset", "bytes_hex"}]}: what was no UTF-8, where that doesn't end it
        any           {"reasoning_partial_hex", "reasoning_invalid"}: the same of `reasoning`

    `losses`: the executors that failed meanwhile; they leave no trace in the rest.
    """

    reason: Reason
    generated_ids: tuple[int, ...]
    reasoning: bytes | None
    text: bytes
    calls: tuple[Call, ...]
    logit_digests: tuple[str, ...]
    logprobs: tuple[Logprobs, ...] | None
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
    """One model's replies, one at a time, with one KV cache.

    `markers`: the parts of a reply that the vocabulary has added tokens for.
    """

    def __init__(
        self,
        tokenizer: Vocabulary,
        executor: Executor,
        eos_ids: Collection[int],
        markers: Markers = Markers(),  # noqa: B008 - immutable
        renew: Renew | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._executor = executor
        self._renew = renew
        self._eos_ids = frozenset(eos_ids)
        self._markers = markers
        self._cached_ids: list[int] = []
        # The vocabulary laid out for masks, and the last language: made when first needed.
        self._tokens: Tokens | None = None
        self._language: tuple[str, Language | None] = ("", None)
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
        continued_ids: Sequence[int] = (),
        cancelled: Callable[[], bool] = never,
    ) -> AsyncGenerator[Event, None]:
        """The events of one reply; the last is Done. `cancelled` is asked before every forward pass, and once
        more before an id is sampled. `continued_ids`: what was generated before, which this reply goes on
        from; `params.max_tokens` counts what comes after, and the deltas begin with its text.

        Raises: InputError `input.budget`, `input.token_id`, `input.response_format`, and `input.params` for
            continued ids that don't fit; ProtocolError `protocol.state` while another reply is inside a
            forward pass, or when a newer reply was started before this one ended; what the executor (unless
            another one takes over) and the sampler raise.
        """
        self._check(prompt_ids, continued_ids)
        if self._in_forward:
            raise ProtocolError("protocol.state", "another reply is in a forward pass; wait for its end")
        prompt = list(prompt_ids)
        reply = Reply(
            self._tokenizer, self._markers, prompt, params.stop, lenient=params.invalid_utf8 == "show"
        )
        guide = self._guide(reply, prompt, params)
        continued = self._continue(reply, guide, continued_ids)
        self._check_banned(params, guide)
        turn = self._turn = object()
        # What the reply holds, and how much of it was there before.
        written, n_continued = list(continued_ids), len(continued_ids)
        timings = Timings()
        digests: list[str] = []
        logprobs: list[Logprobs] | None = None if params.logprobs is None else []
        losses: list[Loss] = []

        start = time.perf_counter()
        context = prompt + written
        self._keep_common_prefix(context)
        timings.reused_tokens = len(self._cached_ids)
        yield Prefill(len(self._cached_ids), len(context))
        for delta in continued:
            yield delta
        reason: Reason | None = None
        detail: Mapping[str, Any] = {}
        logits: NDArray[np.float32] | None = None
        while reason is None:
            # Prefill, step and recovery alike: forward what the cache lacks of the context.
            reading = not digests
            kernel_ms = 0.0
            while not cancelled() and len(self._cached_ids) < len(context):
                pos = len(self._cached_ids)
                chunk = context[pos : pos + self._executor.max_chunk_tokens]
                try:
                    logits = await self._forward(turn, chunk, want_logits=pos + len(chunk) == len(context))
                except DeviceError as error:
                    losses.append(await self._replace(turn, error, len(digests), losses))
                    reading = True
                    yield Prefill(0, len(context))
                    continue
                kernel_ms += self._executor.kernel_ms
                if not digests:
                    read = len(self._cached_ids) - timings.reused_tokens
                    timings.prefill_tokens = max(timings.prefill_tokens, read)
                    timings.prefill_ms = (time.perf_counter() - start) * 1e3
                    timings.prefill_kernel_ms = kernel_ms
                if reading:
                    yield Prefill(len(self._cached_ids), len(context))
            if cancelled():
                reason = "cancelled"
                break
            self._check_turn(turn)
            assert logits is not None
            if not digests:
                start, kernel_ms = time.perf_counter(), 0.0
            n_tokens = self._tokenizer.n_tokens
            allowed = guide.allowed()
            if not is_any_left(n_tokens, params.banned_ids, allowed):
                reason = "dead_end"
                break
            drawn = sample(logits, prompt, written, params, n_tokens, allowed=allowed)
            token_id = drawn.id
            guide.take(token_id)
            written.append(token_id)
            context.append(token_id)
            now = time.perf_counter()
            timings.decode_ms.append((now - start) * 1e3)
            timings.kernel_ms.append(kernel_ms)
            start = now
            likely: Logprobs | None = None
            if params.logprobs is not None and logprobs is not None:
                likely = log_probabilities(logits, n_tokens, token_id, params.logprobs)
                logprobs.append(likely)
            yield Token(token_id, self._tokenizer.token_bytes(token_id), likely)

            is_end = token_id in self._eos_ids
            for delta in () if is_end else reply.feed(token_id):
                yield delta
            # As late as can be: another thread may be at it since the pass.
            digests.append(self._executor.digest(logits))
            if is_end:
                reason, detail = "stop_token", {"id": token_id}
            elif reply.ending is not None:
                reason, detail = reply.ending
            elif len(digests) == params.max_tokens:
                reason = "max_tokens"
            elif len(context) > self._executor.max_seq_len:
                reason = "context_full"

        for delta in reply.finish():
            yield delta
        yield Done(
            reason=reason,
            generated_ids=tuple(written[n_continued:]),
            reasoning=reply.reasoning,
            text=reply.text,
            calls=tuple(reply.calls),
            logit_digests=tuple(digests),
            logprobs=None if logprobs is None else tuple(logprobs),
            timings=timings,
            detail={**detail, **reply.detail},
            losses=tuple(losses),
        )

    def _guide(self, reply: Reply, prompt: Sequence[int], params: SamplingParams) -> Guide:
        """Raises: InputError `input.response_format`."""
        language: Language | None = None
        text = params.response_format
        if text is not None:
            if self._language[0] != text:
                expression = parse_format(text.encode("utf-8"))
                if expression is not None:
                    self._tokens = self._tokens or Tokens(self._tokenizer)
                    language = Language(expression, self._tokens)
                self._language = (text, language)
            language = self._language[1]
        return Guide(
            reply,
            self._markers,
            prompt,
            self._eos_ids,
            self._tokenizer.n_tokens,
            language=language,
            tokens=self._tokens if language else None,
            max_reasoning_tokens=params.max_reasoning_tokens,
        )

    def _check_banned(self, params: SamplingParams, guide: Guide) -> None:
        """Raises: InputError `input.params` for banned ids that the reply is known to need."""
        found = guide.needed(params.banned_ids)
        if not found and not is_any_left(self._tokenizer.n_tokens, params.banned_ids, guide.allowed()):
            found = "every id that may come next"
        if found:
            raise InputError(
                "input.params",
                f"params.banned_ids: found {found}; allowed: ids that the reply can do without",
                {
                    "place": "params.banned_ids",
                    "found": found,
                    "allowed": "ids that the reply can do without",
                },
            )

    def _continue(self, reply: Reply, guide: Guide, ids: Sequence[int]) -> list[Delta]:
        """Read what was written before. Raises: InputError `input.params` for what no such reply holds."""
        deltas: list[Delta] = []
        for index, token_id in enumerate(ids):
            allowed = guide.allowed()
            over = token_id in self._eos_ids or reply.ending is not None
            if over or not (allowed is None or allowed[token_id]):
                what = "what ends a reply" if over else "an id that could not come there"
                raise InputError(
                    "input.params",
                    f"continue_ids[{index}]: found {token_id}, {what}; allowed: a reply that was cut short",
                    {"place": f"continue_ids[{index}]", "found": token_id, "allowed": "ids that could come"},
                )
            guide.take(token_id)
            deltas += reply.feed(token_id)
        if reply.ending is not None:
            raise InputError(
                "input.params",
                "continue_ids: found a reply that has ended; allowed: one that was cut short",
                {"place": "continue_ids", "found": reply.ending[0], "allowed": "a reply that was cut short"},
            )
        return deltas

    def _check(self, prompt_ids: Sequence[int], continued_ids: Sequence[int]) -> None:
        limit = self._executor.max_seq_len
        n_prompt = len(prompt_ids) + len(continued_ids)
        if not prompt_ids or n_prompt > limit:
            raise InputError(
                "input.budget",
                f"the prompt has {n_prompt} tokens; allowed: 1 to {limit}",
                {"prompt_tokens": n_prompt, "max_seq_len": limit},
            )
        n_tokens = self._tokenizer.n_tokens
        for name, ids in (("prompt_ids", prompt_ids), ("continue_ids", continued_ids)):
            for index, token_id in enumerate(ids):
                if not 0 <= token_id < n_tokens:
                    place, allowed = f"{name}[{index}]", f"0 to {n_tokens - 1}"
                    raise InputError(
                        "input.token_id",
                        f"{place}: found {show(token_id)}; allowed: {allowed}",
                        {"place": place, "found": token_id, "allowed": allowed},
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
