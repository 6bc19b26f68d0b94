"""Log-probabilities against decimal arithmetic, and their order."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slm2_web.sampling2.logprobs import log_probabilities

F32 = NDArray[np.float32]

logits = st.lists(
    st.one_of(st.floats(-100, 100, width=32), st.sampled_from([-1.0, 0.0, -0.0, 1.0])),
    min_size=1,
    max_size=60,
).map(lambda values: np.array(values, np.float32))


@given(logits, st.integers(0, 70), st.integers(0, 2), st.data())
def test_equal_to_decimal_arithmetic(values: F32, n_top: int, less: int, data: st.DataObject) -> None:
    n_tokens = max(1, values.size - less)
    chosen = data.draw(st.integers(0, n_tokens - 1))
    found = log_probabilities(values, n_tokens, chosen, n_top)
    with localcontext(prec=60):
        exact = [Decimal(float(v)) for v in values[:n_tokens]]
        log_sum = sum((v.exp() for v in exact), Decimal(0)).ln()
        true = [v - log_sum for v in exact]
    assert abs(Decimal(found.chosen) - true[chosen]) < Decimal("1e-13")
    order = sorted(range(n_tokens), key=lambda i: (-values[i], i))
    assert [i for i, _ in found.top] == order[:n_top]
    assert all(abs(Decimal(lp) - true[i]) < Decimal("1e-13") for i, lp in found.top)


def test_far_away_is_a_number() -> None:
    found = log_probabilities(np.array([3e38, -3e38], np.float32), 2, 1, 2)
    assert np.isfinite(found.chosen)
    assert found.top[0] == (0, 0.0)
