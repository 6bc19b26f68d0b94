"""One pure function per step from logits to the ids that stay, as Hugging Face transformers takes them.

Arithmetic is float32, one rounding an operation, where the publisher's pipeline (torch on CPU) does the
same elementwise operation. Where its result depends on the machine (the exp and the sum inside softmax)
we take the correctly rounded one: `softmax` computes in double in a written order and rounds once.
Probabilities are then added as integers, multiples of 2^-62: exact and so in any order.

A filter gives a mask over the values it got: True stays. It never removes everything: a largest value
stays. Values hold no NaN and no +inf; -inf counts as probability 0.

Source: transformers 5.24.0, generation/logits_process.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slm2_web.sampling2 import exactmath

F32 = NDArray[np.float32]
Mask = NDArray[np.bool_]
Ids = NDArray[np.int64]

WEIGHT_BITS: Final = 62
# Top-p sorts at once at most this many values; never seen in a result.
_SORT_SIZE: Final = 1024
# How many values share a maximum in the search for the k-th largest; never seen in a result.
_PART_SIZE: Final = 64


def softmax(values: F32) -> F32:
    """Probabilities of `values`: f32[n], n >= 1, at least one finite.

    e[i] = exp(float32(values[i] - max)) in double; their sum in index order; e[i] / sum, to float32.
    """
    with np.errstate(over="ignore"):  # a difference below float32's range is -inf, which exp takes to 0
        shifted = values - values.max()
    e = exactmath.exp(shifted.astype(np.float64))
    e /= exactmath.sum_in_order(e)
    return e.astype(np.float32)


def weights(probs: F32) -> NDArray[np.int64]:
    """`probs` as multiples of 2^-62, rounded to nearest: exact from 2^-39 up. Their sum stays below 2^63."""
    scaled = probs.astype(np.float64) * 2.0**WEIGHT_BITS
    # Above 2^52 a double is an integer already; below, adding 2^52 rounds it to one.
    rounded = np.where(scaled < 2.0**52, (scaled + 2.0**52) - 2.0**52, scaled)
    return rounded.astype(np.int64)


def with_token(logits: F32, n_tokens: int) -> F32:
    """The logits of the ids that have a token: 0 .. n_tokens - 1. The rows above are padding."""
    return logits[:n_tokens]


def penalize_repetition(values: F32, context_ids: Sequence[int] | NDArray[np.int64], penalty: float) -> F32:
    """`values` with each id of `context_ids` made less likely, once, however often it occurs.

    A negative logit is multiplied by the penalty, another divided. So the effect depends on where zero
    lies, which softmax does not care about: a known flaw, kept because the publisher's pipeline has it.
    Ids beyond `values` are passed over.
    """
    ids = np.asarray(context_ids, dtype=np.int64)
    ids = ids[ids < values.size]
    factor = np.float32(penalty)
    result = values.copy()
    chosen = values[ids]
    with np.errstate(over="ignore"):
        # A repeated id is written repeatedly with one and the same value.
        result[ids] = np.where(chosen < 0, chosen * factor, chosen / factor)
    return result


def penalize_presence(values: F32, generated_ids: Sequence[int], presence: float, frequency: float) -> F32:
    """`values` less `count * frequency`, then less `presence`, for each generated id, in float32.

    Ids beyond `values` are passed over. Source: OpenAI's API reference, presence and frequency penalties.
    """
    ids, counts = np.unique(np.asarray(generated_ids, dtype=np.int64), return_counts=True)
    known = ids < values.size
    ids, counts = ids[known], counts[known].astype(np.float32)
    result = values.copy()
    with np.errstate(over="ignore"):
        result[ids] = result[ids] - counts * np.float32(frequency) - np.float32(presence)
    return result


def scale_by_temperature(values: F32, temperature: float) -> F32:
    """`values / temperature`; `temperature` > 0."""
    with np.errstate(over="ignore"):
        return values / np.float32(temperature)


def keep_top_k(values: F32, k: int) -> Mask:
    """The k largest and all ties with the k-th. k <= 0 or k >= n keeps all."""
    if not 0 < k < values.size:
        return np.ones(values.size, dtype=np.bool_)
    kept: Mask = values >= _kth_largest(values, k)
    return kept


def _kth_largest(values: F32, k: int) -> np.float32:
    """The k-th largest. Of many values, the k-th largest of parts' maxima bounds it from below: only what
    reaches that is partitioned."""
    n_parts = values.size // _PART_SIZE
    if k <= n_parts:
        parts = values[: n_parts * _PART_SIZE].reshape(_PART_SIZE, n_parts)
        values = values[values >= np.partition(parts.max(axis=0), n_parts - k)[n_parts - k]]
    last = values.size - k
    result: np.float32 = np.partition(values, last)[last]
    return result


def keep_top_p(values: F32, p: float) -> Mask:
    """The smallest set of largest values whose probability exceeds p. p >= 1 keeps all.

    Seen from below, as the publisher's pipeline has it: sort ascending (ties by id ascending), add up the
    probabilities, remove while float32(sum) <= float32(1 - p); the last one stays.
    """
    if p >= 1:
        return np.ones(values.size, dtype=np.bool_)
    limit = np.float32(1 - p) * np.float32(2.0**WEIGHT_BITS)
    mass = weights(softmax(values))
    above, part, below = _around(values, mass, limit)
    order = part[np.argsort(values[part], kind="stable")]
    kept = above
    kept[order[(np.cumsum(mass[order]) + below).astype(np.float32) > limit]] = True
    kept[order[-1]] |= not kept.any()
    return kept


def _around(values: F32, mass: NDArray[np.int64], limit: np.float32) -> tuple[Mask, Ids, np.int64]:
    """Where the running sum of `mass`, by value ascending, passes `limit`: (the values above that place, the
    ids around it, the mass below them). Only those around it need sorting.

    A histogram over the upper half of a value's bits, in the order of values, finds the place in linear time.
    """
    if values.size <= _SORT_SIZE:
        return np.zeros(values.size, dtype=np.bool_), np.arange(values.size), np.int64(0)
    bits = (values + np.float32(0)).view(np.int32)  # -0 becomes +0: they are equal
    bins = ((bits ^ (bits >> 31 & 0x7FFFFFFF)) >> 16) + (1 << 15)
    # Sums of doubles below 2^53 are exact: 31 bits of each mass at a time.
    high, low = (np.bincount(bins, half, minlength=1 << 16) for half in (mass >> 31, mass & 0x7FFFFFFF))
    ends = np.cumsum((high.astype(np.int64) << 31) + low.astype(np.int64))
    edge = min(int(np.searchsorted(ends.astype(np.float32), limit, side="right")), int(bins.max()))
    return bins > edge, np.flatnonzero(bins == edge), ends[edge - 1] if edge else np.int64(0)


def keep_largest(values: F32, k: int) -> Mask:
    """The k largest, of equals the lower ids. k <= 0 or k >= n keeps all."""
    kept = keep_top_k(values, k)
    surplus = int(np.count_nonzero(kept)) - k
    if 0 < k < values.size and surplus:
        kept[np.flatnonzero(kept & (values == values[kept].min()))[-surplus:]] = False
    return kept


def keep_nucleus(values: F32, p: float) -> Mask:
    """The fewest values, by (value descending, id ascending), whose probability reaches p. p >= 1 keeps all.

    float32 of the running sum is compared with float32(p).
    """
    if p >= 1:
        return np.ones(values.size, dtype=np.bool_)
    mass = weights(softmax(values))
    order = np.argsort(-values, kind="stable")
    reached = np.cumsum(mass[order]).astype(np.float32) >= np.float32(p) * np.float32(2.0**WEIGHT_BITS)
    kept = np.zeros(values.size, dtype=np.bool_)
    kept[order[: int(reached.argmax()) + 1 if reached.any() else values.size]] = True
    return kept


def keep_near_largest(values: F32, min_p: float) -> Mask:
    """Those not below `max + log(min_p)`, in float32. A min_p that float32 takes for 0 keeps all."""
    share = np.float64(np.float32(min_p))  # a double's normal number even where float32's is subnormal
    if share <= 0:
        return np.ones(values.size, dtype=np.bool_)
    distance = np.float32(exactmath.log(np.array([share]))[0])
    kept: Mask = values >= values.max() + distance
    return kept


def keep_min_p(values: F32, min_p: float) -> Mask:
    """Those at least `min_p` times as probable as the most probable. min_p <= 0 keeps all."""
    if min_p <= 0:
        return np.ones(values.size, dtype=np.bool_)
    probs = softmax(values)
    kept: Mask = probs >= np.float32(min_p) * probs.max()
    return kept
