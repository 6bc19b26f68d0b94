"""Log-probabilities of the chosen id and of the likeliest ones: what the network says, before any parameter.

    logprob(i) = (logits[i] - max) - log(sum exp(logits[j] - max))    over the ids that have a token

in double, with the exp, log and order of sums of exactmath.py: the same bits everywhere. Penalties,
temperature and filters change what is drawn and not these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slm2_web.sampling2 import exactmath


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms: of the chosen id, and of the likeliest as (id, logprob), by (logprob descending,
    id ascending)."""

    chosen: float
    top: tuple[tuple[int, float], ...]

    def as_json(self) -> dict[str, Any]:
        """`{"logprob", "top": [{"id", "logprob"}, ...]}`."""
        return {"logprob": self.chosen, "top": [{"id": i, "logprob": value} for i, value in self.top]}


def log_probabilities(logits: NDArray[np.float32], n_tokens: int, chosen_id: int, n_top: int) -> Logprobs:
    """Of `chosen_id` and the `n_top` likeliest ids. `logits`: f32[vocab_size], finite."""
    known = logits[:n_tokens]
    values = known.astype(np.float64) - np.float64(known.max())
    log_sum = exactmath.log(np.array([exactmath.sum_in_order(exactmath.exp(values))]))[0]
    ids = np.arange(n_tokens)
    if n_top < n_tokens:
        last = n_tokens - n_top - 1
        ids = np.flatnonzero(known >= np.partition(known, last)[last])
    likeliest = ids[np.argsort(-known[ids], kind="stable")][:n_top]
    return Logprobs(
        float(values[chosen_id] - log_sum),
        tuple((int(i), float(values[i] - log_sum)) for i in likeliest),
    )
