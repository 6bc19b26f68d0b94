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

WEIGHT_BITS: Final = 62
# Top-p sorts at most about this many values, cutting down before; never seen in a result.
_SORT_SIZE: Final = 1024


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


def scale_by_temperature(values: F32, temperature: float) -> F32:
    """`values / temperature`; `temperature` > 0."""
    with np.errstate(over="ignore"):
        return values / np.float32(temperature)


def keep_top_k(values: F32, k: int) -> Mask:
    """The k largest and all ties with the k-th. k <= 0 or k >= n keeps all."""
    n = values.size
    if not 0 < k < n:
        return np.ones(n, dtype=np.bool_)
    kept: Mask = values >= np.partition(values, n - k)[n - k]
    return kept


def keep_top_p(values: F32, p: float) -> Mask:
    """The smallest set of largest values whose probability exceeds p. p >= 1 keeps all.

    Seen from below, as the publisher's pipeline has it: sort ascending (ties by id ascending), add up the
    probabilities, remove while float32(sum) <= float32(1 - p); the last one stays.
    """
    n = values.size
    if p >= 1:
        return np.ones(n, dtype=np.bool_)
    limit = np.float32(1 - p) * np.float32(2.0**WEIGHT_BITS)
    kept = np.zeros(n, dtype=np.bool_)
    # Cut the part that needs sorting down by value: sums of integers tell without order on which side of a
    # value the boundary lies. `below` is the mass of all that is removed already.
    part, ids, mass, below = values, np.arange(n), weights(softmax(values)), np.int64(0)
    share = 16  # most often the boundary lies near the top; after that, halve
    while part.size > _SORT_SIZE:
        middle = part.size - part.size // share
        high = part >= np.partition(part, middle)[middle]
        if high.all():
            break  # at least half are equal
        low_mass = mass[~high].sum()
        if (below + low_mass).astype(np.float32) <= limit:
            below += low_mass
        else:
            kept[ids[high]] = True
            high = ~high
        part, ids, mass = part[high], ids[high], mass[high]
        share = 2
    order = np.argsort(part, kind="stable")
    stays = (np.cumsum(mass[order]) + below).astype(np.float32) > limit
    kept[ids[order[stays]]] = True
    kept[ids[order[-1]]] |= not kept.any()
    return kept


def keep_min_p(values: F32, min_p: float) -> Mask:
    """Those at least `min_p` times as probable as the most probable. min_p <= 0 keeps all."""
    if min_p <= 0:
        return np.ones(values.size, dtype=np.bool_)
    probs = softmax(values)
    kept: Mask = probs >= np.float32(min_p) * probs.max()
    return kept
