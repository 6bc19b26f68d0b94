"""From logits to one id, in a fixed order, replayable at any position.

    mask ids without a token -> repetition penalty -> temperature -> top-k -> top-p -> min-p -> draw

Temperature 0 takes the largest logit after the penalty (the lowest id among equals) and draws nothing.
The draw needs no floating point: with the kept probabilities as integers w (multiples of 2^-62) of sum W,
and the 53 random bits u of the position, it takes the first kept id, ascending, at which the running sum
of w exceeds floor(u * W / 2^53).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import DeviceError
from slm2_web.sampling2 import filters
from slm2_web.sampling2.params import SamplingParams
from slm2_web.sampling2.rng import DRAW_BITS, draw_bits


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One sampled id and what it was drawn from: i32[n] ascending ids and their f32[n] probabilities."""

    id: int
    kept_ids: NDArray[np.int32]
    probs: NDArray[np.float32]


def sample(
    logits: NDArray[np.float32],
    context_ids: Sequence[int],
    params: SamplingParams,
    position: int,
    n_tokens: int,
) -> Draw:
    """The id at `position`, the index in the sequence of the id to come.

    `logits`: f32[vocab_size]; `context_ids`: prompt and generated ids; ids from `n_tokens` on have no token.

    Raises: DeviceError `device.bad_logits`, with the position, when a logit is not finite, or grows beyond
    float32 under the parameters.
    """
    assert logits.dtype == np.float32, logits.dtype
    assert 1 <= n_tokens <= logits.size, (n_tokens, logits.size)
    _check_finite(logits, position)
    values = filters.with_token(logits, n_tokens)
    if params.repetition_penalty != 1:
        values = filters.penalize_repetition(values, context_ids, params.repetition_penalty)
    if params.temperature == 0:
        _check_below_infinity(values, position)
        best = int(values.argmax())
        return Draw(best, np.array([best], dtype=np.int32), np.ones(1, dtype=np.float32))
    values = filters.scale_by_temperature(values, params.temperature)
    _check_below_infinity(values, position)

    ids = np.arange(n_tokens, dtype=np.int32)
    if params.top_k > 0:
        ids, values = _keep(ids, values, filters.keep_top_k(values, params.top_k))
    if params.top_p < 1:
        ids, values = _keep(ids, values, filters.keep_top_p(values, params.top_p))
    if params.min_p > 0:
        ids, values = _keep(ids, values, filters.keep_min_p(values, params.min_p))
    probs = filters.softmax(values)
    return Draw(int(ids[choose(probs, draw_bits(params.seed, position))]), ids, probs)


def choose(probs: NDArray[np.float32], bits: int) -> int:
    """The index that 53 random bits pick: the first whose running weight exceeds floor(bits * sum / 2^53)."""
    running = np.cumsum(filters.weights(probs))
    target = bits * int(running[-1]) >> DRAW_BITS
    return int(np.searchsorted(running, target, side="right"))


def _keep(
    ids: NDArray[np.int32], values: NDArray[np.float32], mask: filters.Mask
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    return ids[mask], values[mask]


def _check_finite(logits: NDArray[np.float32], position: int) -> None:
    finite = np.isfinite(logits)
    if not finite.all():
        first = int(np.flatnonzero(~finite)[0])
        raise _bad_logits(position, first, float(logits[first]))


def _check_below_infinity(values: NDArray[np.float32], position: int) -> None:
    """Refuse a largest value that the parameters have driven to infinity: no distribution is left."""
    best = int(values.argmax())
    if not np.isfinite(values[best]):
        raise _bad_logits(position, best, float(values[best]))


def _bad_logits(position: int, token_id: int, value: float) -> DeviceError:
    return DeviceError(
        "device.bad_logits",
        f"position {position}: the logit of id {token_id} is {value}; allowed: finite numbers",
        {"position": position, "id": token_id, "found": str(value), "allowed": "finite numbers"},
    )
