"""exp, log and sums: against decimal, against the platform's libm, against a plain loop."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slm2_web.sampling2 import exactmath

F64 = NDArray[np.float64]


def ulps(found: float, true: Decimal) -> float:
    return float(abs(Decimal(found) - true) / Decimal(math.ulp(float(true))))


def hard_arguments(rng: np.random.Generator, low: float, high: float) -> F64:
    """Uniform ones, tiny ones, and those next to (k + 1/2) ln 2, where the reduction is at its edge."""
    edges = (np.arange(-1021, 1022) + 0.5) * math.log(2)
    edges = np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges, -np.inf)])
    tiny = np.ldexp(rng.uniform(-1, 1, 300), rng.integers(-60, 0, 300))
    all_of_them = np.concatenate([rng.uniform(low, high, 1000), rng.uniform(-1, 1, 500), tiny, edges])
    return all_of_them[(all_of_them >= low) & (all_of_them <= high)]


def test_exp_is_within_1_ulp() -> None:
    x = hard_arguments(np.random.default_rng(1), exactmath.EXP_MIN, exactmath.EXP_MAX)
    with localcontext(prec=40):
        worst = max(
            ulps(y, Decimal(v).exp()) for v, y in zip(x.tolist(), exactmath.exp(x).tolist(), strict=True)
        )
    assert 0.5 < worst < 1


def test_log_is_within_1_ulp() -> None:
    rng = np.random.default_rng(2)
    near_one = 1 + np.ldexp(rng.uniform(-1, 1, 500), rng.integers(-50, 0, 500))
    wide = np.ldexp(rng.uniform(0.5, 1, 1000), rng.integers(-1021, 1024, 1000))
    near_edge = math.sqrt(0.5) * (1 + np.ldexp(rng.uniform(-1, 1, 300), rng.integers(-52, -1, 300)))
    x = np.concatenate([near_one, wide, near_edge, [1.0, 2.0, 0.5, math.sqrt(0.5), 5e-324 * 2**52]])
    x = x[x >= 2.0**-1022]
    with localcontext(prec=40):
        true = [Decimal(v).ln() for v in x.tolist()]
    worst = max(ulps(y, t) for y, t in zip(exactmath.log(x).tolist(), true, strict=True) if t)
    assert 0.5 < worst < 1
    assert exactmath.log(np.ones(1))[0] == 0


def test_exp_and_log_next_to_libm() -> None:
    x = np.random.default_rng(3).uniform(-700, 700, 100_000)
    found = exactmath.exp(x)
    libm = np.array([math.exp(v) for v in x.tolist()])
    assert np.abs(found.view(np.int64) - libm.view(np.int64)).max() <= 2
    back = exactmath.log(found)
    assert np.abs(back - x).max() < 1e-12


def test_exp_at_the_ends() -> None:
    x = np.array([0.0, -0.0, -708.0, np.nextafter(-708.0, -np.inf), -1e300, -np.inf, 709.0])
    assert exactmath.exp(x).tolist()[:2] == [1.0, 1.0]
    assert exactmath.exp(x)[2] >= 2.0**-1022
    assert exactmath.exp(x).tolist()[3:6] == [0.0, 0.0, 0.0]
    assert np.isfinite(exactmath.exp(x)[6])
    assert exactmath.exp(np.empty(0)).size == 0


def test_blocks_do_not_show() -> None:
    x = np.random.default_rng(4).uniform(-50, 0, 20_001)
    alone = np.concatenate([exactmath.exp(x[i : i + 1]) for i in range(x.size)])
    assert (exactmath.exp(x).view(np.int64) == alone.view(np.int64)).all()


def test_bits_are_pinned() -> None:
    """The same bits on every platform: CPython and Pyodide 314 gave this digest."""
    x = (np.arange(1, 60_001, dtype=np.float64) - 40_000) / 128  # exact
    e = exactmath.exp(x)
    parts = (
        e.tobytes() + exactmath.log(e).tobytes() + np.float64(exactmath.sum_in_order(e[:40_000])).tobytes()
    )
    assert (
        hashlib.sha256(parts).hexdigest()
        == "11e5c19a850eff6142690506a2d218ba6fe934d253660e27c1cf37b2e35be791"
    )


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 127, 128, 129, 1000, 8191, 50_000])
def test_sum_equals_a_loop_bit_for_bit(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.uniform(0, 1, n) * 10.0 ** rng.integers(-12, 12, n)
    for values in (x, x[::-1].copy(), -x, x * rng.choice([-1.0, 1.0], n)):
        total = 0.0
        for value in values.tolist():
            total += value
        assert exactmath.sum_in_order(values) == total


def test_sum_is_not_numpys_pairwise_sum() -> None:
    """On this array the order shows; were it not so, the test above would prove nothing."""
    x = np.random.default_rng(5).uniform(0, 1, 50_000)
    assert exactmath.sum_in_order(x) != float(x.sum())


@given(st.lists(st.floats(-1e300, 1e300), max_size=40))
def test_sum_of_anything(values: list[float]) -> None:
    total = 0.0
    for value in values:
        total += value
    assert exactmath.sum_in_order(np.array(values, dtype=np.float64)) == total
