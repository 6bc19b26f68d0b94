"""From logits to one id, in a fixed order, replayable at any position.

    mask -> repetition penalty -> frequency, presence penalty -> the profile's steps -> draw

The mask leaves out ids without a token, banned ones, and those that a caller doesn't allow. A profile
(`PROFILES`) is the order of temperature, top-k, top-p and min-p, and how each takes ties.

Temperature 0 takes the largest logit after the penalties (the lowest id among equals) and draws nothing.
The draw needs no floating point: with the kept probabilities as integers w (multiples of 2^-62) of sum W,
and the 53 random bits u of the position, it takes the first kept id, ascending, at which the running sum
of w exceeds floor(u * W / 2^53).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import DeviceError, InputError
from slm2_web.sampling2 import filters
from slm2_web.sampling2.params import SamplingParams
from slm2_web.sampling2.rng import DRAW_BITS, draw_bits


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One sampled id and what it was drawn from: i32[n] ascending ids and their f32[n] probabilities."""

    id: int
    kept_ids: NDArray[np.int32]
    probs: NDArray[np.float32]


# i32[n] ascending ids and their f32[n] values
Candidates = tuple[NDArray[np.int32], NDArray[np.float32]]
Step = Callable[[Candidates, SamplingParams], Candidates]


def sample(
    logits: NDArray[np.float32],
    prompt_ids: Sequence[int],
    generated_ids: Sequence[int],
    params: SamplingParams,
    n_tokens: int,
    *,
    position: int | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> Draw:
    """The id that follows `prompt_ids` and `generated_ids`.

    `logits`: f32[vocab_size]; ids from `n_tokens` on have no token; `allowed`: bool[n_tokens], those that may
    be drawn. `position`, the index in the sequence of the id to come, picks the random bits; by default
    the number of ids before it.

    Raises: DeviceError `device.bad_logits`, with the position, when a logit is not finite, or grows beyond
    float32 under the parameters. InputError `input.params` when `banned_ids` leave nothing.
    """
    assert logits.dtype == np.float32, logits.dtype
    assert 1 <= n_tokens <= logits.size, (n_tokens, logits.size)
    if position is None:
        position = len(prompt_ids) + len(generated_ids)
    _check_finite(logits, position)
    values = filters.with_token(logits, n_tokens)
    if params.repetition_penalty != 1:
        values = filters.penalize_repetition(values, [*prompt_ids, *generated_ids], params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        values = filters.penalize_presence(
            values, generated_ids, params.presence_penalty, params.frequency_penalty
        )
    candidates = _allowed(values, params.banned_ids, allowed)
    best = _check_below_infinity(candidates, position)
    if params.temperature == 0:
        kept = candidates[0][[best]]
        return Draw(int(kept[0]), kept, np.ones(1, dtype=np.float32))
    for step in PROFILES[params.profile]:
        candidates = step(candidates, params)
    _check_below_infinity(candidates, position)
    ids, values = candidates
    probs = filters.softmax(values)
    return Draw(int(ids[choose(probs, draw_bits(params.seed, position))]), ids, probs)


def is_any_left(n_tokens: int, banned_ids: Sequence[int], allowed: NDArray[np.bool_] | None) -> bool:
    """Whether `sample` has an id to draw."""
    if allowed is None:
        return len({token_id for token_id in banned_ids if token_id < n_tokens}) < n_tokens
    n_banned = sum(bool(allowed[token_id]) for token_id in {*banned_ids} if token_id < n_tokens)
    return bool(np.count_nonzero(allowed[:n_tokens]) > n_banned)


@lru_cache(maxsize=1)
def _all_ids(n: int) -> NDArray[np.int32]:
    ids = np.arange(n, dtype=np.int32)
    ids.flags.writeable = False
    return ids


def _allowed(
    values: NDArray[np.float32], banned_ids: Sequence[int], allowed: NDArray[np.bool_] | None
) -> Candidates:
    ids = _all_ids(values.size)
    if allowed is None and not banned_ids:
        return ids, values
    mask = np.ones(values.size, dtype=np.bool_) if allowed is None else allowed.copy()
    mask[[token_id for token_id in banned_ids if token_id < values.size]] = False
    if not mask.any():
        raise InputError(
            "input.params",
            "params.banned_ids: nothing is left to draw from; allowed: at least one id",
            {"place": "params.banned_ids", "found": "every id that may follow", "allowed": "fewer"},
        )
    return ids[mask], values[mask]


def _temperature(candidates: Candidates, params: SamplingParams) -> Candidates:
    ids, values = candidates
    return ids, filters.scale_by_temperature(values, params.temperature)


def _filter(keep: Callable[[NDArray[np.float32], Any], filters.Mask], name: str) -> Step:
    """The step that keeps what `keep(values, parameter)` keeps."""

    def step(candidates: Candidates, params: SamplingParams) -> Candidates:
        ids, values = candidates
        mask = keep(values, getattr(params, name))
        return ids[mask], values[mask]

    return step


# The steps between the penalties and the draw, in order.
PROFILES: Final[Mapping[str, tuple[Step, ...]]] = {
    "transformers": (
        _temperature,
        _filter(filters.keep_top_k, "top_k"),
        _filter(filters.keep_top_p, "top_p"),
        _filter(filters.keep_min_p, "min_p"),
    ),
    "llama.cpp": (
        _filter(filters.keep_largest, "top_k"),
        _filter(filters.keep_nucleus, "top_p"),
        _filter(filters.keep_near_largest, "min_p"),
        _temperature,
    ),
}


def choose(probs: NDArray[np.float32], bits: int) -> int:
    """The index that 53 random bits pick: the first whose running weight exceeds floor(bits * sum / 2^53)."""
    running = np.cumsum(filters.weights(probs))
    target = bits * int(running[-1]) >> DRAW_BITS
    return int(np.searchsorted(running, target, side="right"))


def _check_finite(logits: NDArray[np.float32], position: int) -> None:
    finite = np.isfinite(logits)
    if not finite.all():
        first = int(np.flatnonzero(~finite)[0])
        raise _bad_logits(position, first, float(logits[first]))


def _check_below_infinity(candidates: Candidates, position: int) -> int:
    """The first place of the largest value; refused, if the parameters have driven that to infinity: no
    distribution is left."""
    ids, values = candidates
    best = int(values.argmax())
    if not np.isfinite(values[best]):
        raise _bad_logits(position, int(ids[best]), float(values[best]))
    return best


def _bad_logits(position: int, token_id: int, value: float) -> DeviceError:
    return DeviceError(
        "device.bad_logits",
        f"position {position}: the logit of id {token_id} is {value}; allowed: finite numbers",
        {"position": position, "id": token_id, "found": str(value), "allowed": "finite numbers"},
    )
