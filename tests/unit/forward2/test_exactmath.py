"""The contract's arithmetic against exact or double-precision truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from slm2_web.forward2 import exactmath as em

F32 = NDArray[np.float32]


def spread(low: float, high: float, count: int = 200_000, seed: int = 1) -> F32:
    """Positive float32 values spread evenly in the exponent."""
    rng = np.random.default_rng(seed)
    return (2.0 ** rng.uniform(low, high, count)).astype(np.float32)


def ulps(found: F32, exact: NDArray[np.float64]) -> float:
    """The largest distance, in units of the last place of the exact value rounded to float32."""
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float((np.abs(found.astype(np.float64) - exact) / unit).max())


def binades(first: int, count: int) -> F32:
    """Every float32 from 2^first to 2^(first + count)."""
    return np.arange((127 + first) << 23, (127 + first + count) << 23, dtype=np.uint32).view(np.float32)


def test_recip_is_within_its_bound_for_every_significand() -> None:
    x = binades(0, 1)
    assert ulps(em.recip(x), 1.0 / x.astype(np.float64)) <= 1.5


def test_recip_scales_with_powers_of_two_and_keeps_zero_and_sign() -> None:
    x = spread(0, 1)
    for power in (-125, -64, -1, 1, 64, 124):
        scaled = em.recip(x * np.float32(2.0**power))
        assert (scaled == em.recip(x) * np.float32(2.0**-power)).all()
    assert (em.recip(-x) == -em.recip(x)).all()
    zeros = em.recip(np.array([0.0, -0.0], np.float32))
    assert zeros.view(np.uint32).tolist() == [0, 0x80000000]


def test_rsqrt_is_within_its_bound_for_every_significand() -> None:
    x = binades(0, 2)
    assert ulps(em.rsqrt(x), 1.0 / np.sqrt(x.astype(np.float64))) <= 2.0


def test_exp_is_within_its_bound_and_clamped() -> None:
    x = np.linspace(-44, 44, 400_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    relative = np.abs(em.exp(x).astype(np.float64) - exact) / exact
    assert relative.max() <= 1.4 * 2.0**-24
    ends = em.exp(np.array([-1e30, -44, 44, 1e30], np.float32))
    assert ends[0] == ends[1]
    assert ends[2] == ends[3]
    # What exp may give times what a quantised value's scale may be stays a normal number.
    smallest_scale = 2.0**-40 / 127 * 0.99
    assert float(ends[0]) * smallest_scale > 2.0**-126


def test_silu_is_close() -> None:
    x = np.linspace(-30, 30, 100_001).astype(np.float32)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    assert np.abs(em.silu(x) - exact).max() <= 1e-5


def test_mean_square_keeps_its_order_and_drops_tiny_squares() -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((5, 576)) * 2.0 ** rng.uniform(-70, 5, (5, 576))).astype(np.float32)
    for row, found in zip(x, em.mean_square(x), strict=True):
        lanes = [np.float32(0)] * em.NORM_LANES
        for col, value in enumerate(row):
            if abs(value) >= np.float32(2.0**-63):
                lanes[col % em.NORM_LANES] = lanes[col % em.NORM_LANES] + value * value
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [lanes[i] + lanes[i + half] for i in range(half)]
        assert (lanes[0] * np.float32(1 / 576)).tobytes() == found.tobytes()


@given(hnp.arrays(np.float32, (2, 64), elements=st.floats(-(2.0**40), 2.0**40, width=32)))
def test_quantize_keeps_each_value_within_half_a_step(x: F32) -> None:
    q, meta = em.quantize(x)
    scale = np.repeat(meta[:, :, 0], em.GROUP, axis=1).astype(np.float64)
    assert np.abs(q.astype(int)).max() <= 127
    small = scale == 0
    assert (np.abs(x[small]) < 2.0**-40).all()
    assert (q[small] == 0).all()
    error = np.abs(q * scale - x)[~small]
    assert (error <= 0.5001 * scale[~small] + 127e-6 * scale[~small]).all()
    totals = q.reshape(2, 2, em.GROUP).sum(axis=2).astype(np.float32)
    assert (meta[:, :, 1] == meta[:, :, 0] * totals).all()


@pytest.mark.parametrize("theta", [1e4, 1e5, 1e6])
def test_rope_table_is_cos_and_sin_rounded_once(theta: float) -> None:
    half, positions = 32, 8192
    inv_freq = np.array([theta ** (-i / half) for i in range(half)], np.float32)
    table = em.rope_table(inv_freq, positions)
    angle = (np.arange(positions, dtype=np.float32)[:, None] * inv_freq).astype(np.float64)
    for part, function in ((0, math.cos), (1, math.sin)):
        exact = np.vectorize(function)(angle)
        # Half an ulp of float32 for the rounding, and a little for the double arithmetic before it.
        bound = 0.5 * np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64) + 1e-15
        assert (np.abs(table[:, :, part] - exact) <= bound).all()
    assert table[0, :, 0].tolist() == [1.0] * half
    assert table[0, :, 1].tolist() == [0.0] * half
