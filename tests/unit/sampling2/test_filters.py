"""Each filter against a slow oracle: exact fractions, one value at a time, float32 scalars at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slm2_web.sampling2 import filters

F32 = NDArray[np.float32]
f32 = np.float32


def array(values: Sequence[float]) -> F32:
    return np.array(values, dtype=np.float32)


def round_to_f32(x: Fraction) -> Fraction:
    """`x` >= 0 rounded to 24 significant bits, ties to even (x is far above the subnormals)."""
    if x == 0:
        return x
    exponent = math.floor(math.log2(x))
    exponent += (x >= Fraction(2) ** (exponent + 1)) - (x < Fraction(2) ** exponent)
    unit = Fraction(2) ** (exponent - 23)
    return round(x / unit) * unit


def oracle_top_p(values: F32, p: float) -> list[int]:
    if p >= 1:
        return list(range(len(values)))
    mass = [round(Fraction(float(q)) * 2**62) for q in filters.softmax(values)]
    limit = Fraction(float(f32(1 - p)))
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    kept, total = [], 0
    for i in order:
        total += mass[i]
        if i == order[-1] or round_to_f32(Fraction(total, 2**62)) > limit:
            kept.append(i)
    return sorted(kept)


def oracle_top_k(values: F32, k: int) -> list[int]:
    if k <= 0:
        return list(range(len(values)))
    kth = sorted(values, reverse=True)[min(k, len(values)) - 1]
    return [i for i, value in enumerate(values) if not value < kth]


def oracle_min_p(values: F32, min_p: float) -> list[int]:
    probs = filters.softmax(values)
    return [i for i, q in enumerate(probs) if not q < f32(min_p) * max(probs)]


def kept(mask: NDArray[np.bool_]) -> list[int]:
    return [int(i) for i in np.flatnonzero(mask)]


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Logits as networks give them, with ties; and anything else.
logits = st.one_of(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60),
    st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0]), min_size=1, max_size=60),
    st.lists(finite, min_size=1, max_size=30),
    st.lists(st.one_of(st.floats(-5, 5, width=32), st.just(-math.inf)), min_size=1, max_size=30).map(
        lambda v: [0.0, *v]
    ),
).map(array)
share = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 1e-9, 0.25, 0.5, 0.75, 0.9, 0.95, 1 - 2**-24, 1 - 2**-53, 1.0])
)


@given(logits)
def test_softmax_is_the_true_one_rounded_to_float32(values: F32) -> None:
    found = filters.softmax(values)
    with localcontext(prec=40):
        shifted = [f32(v) - max(values) for v in values] if max(values) - min(values) < 1e38 else None
        if shifted is None:
            return
        e = [Decimal(float(d)).exp() if d > -math.inf else Decimal(0) for d in shifted]
        for q, true in zip(found, (x / sum(e) for x in e), strict=True):
            # within half a float32 ulp, but for a double's error on top
            spacing = Decimal(float(np.spacing(max(q, f32(1e-38)))))
            assert abs(Decimal(float(q)) - true) <= spacing * Decimal("0.5000001")


@given(logits)
def test_softmax_orders_as_logits_and_sums_to_one(values: F32) -> None:
    probs = filters.softmax(values)
    order = np.argsort(values, kind="stable")
    assert (np.diff(probs[order]) >= 0).all()
    assert abs(float(probs.astype(np.float64).sum()) - 1) < 1e-6
    mass = filters.weights(probs)
    assert [int(w) for w in mass] == [round(Fraction(float(q)) * 2**62) for q in probs]


@given(logits, st.integers(-1, 70))
def test_top_k_equals_the_oracle(values: F32, k: int) -> None:
    assert kept(filters.keep_top_k(values, k)) == oracle_top_k(values, k)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([640, 1023, 5000]),
    st.sampled_from([1, 2, 9, 10, 11, 78, 79, 500]),
    st.sampled_from([0, 1, 3]),
)
def test_top_k_of_many_equals_the_oracle(seed: int, n: int, k: int, decimals: int) -> None:
    """Around the size from which parts have maxima; with rounded values many are equal."""
    rng = np.random.default_rng(seed)
    values = np.round(rng.normal(0, 2, n), decimals).astype(np.float32)
    values[rng.integers(0, n, n // 10)] = -np.inf
    assert kept(filters.keep_top_k(values, k)) == oracle_top_k(values, k)


@given(logits, share)
@example(array(np.log([0.5, 0.25, 0.125, 0.125]).tolist()), 0.75)
def test_top_p_equals_the_oracle(values: F32, p: float) -> None:
    assert kept(filters.keep_top_p(values, p)) == oracle_top_p(values, p)


@given(logits, share)
def test_min_p_equals_the_oracle(values: F32, min_p: float) -> None:
    assert kept(filters.keep_min_p(values, min_p)) == oracle_min_p(values, min_p)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["normal", "flat", "equal", "few values", "peaked"]),
    st.integers(1025, 4000),
    st.sampled_from([1e-9, 0.3, 0.5, 0.9, 0.95, 0.999, 1 - 1e-12]),
)
def test_top_p_equals_the_oracle_where_it_sorts_only_a_part(seed: int, kind: str, n: int, p: float) -> None:
    rng = np.random.default_rng(seed)
    values = {
        "normal": rng.normal(0, 3, n),
        "flat": rng.normal(0, 1e-3, n),
        "equal": np.zeros(n),
        "few values": rng.integers(0, 5, n) / 4,
        "peaked": rng.normal(0, 1, n) + 20 * (rng.uniform(0, 1, n) < 0.002),
    }[kind].astype(np.float32)
    assert kept(filters.keep_top_p(values, p)) == oracle_top_p(values, p)


def test_top_p_removes_the_lower_id_of_a_tie_first() -> None:
    """As the publisher's ascending stable sort does."""
    assert kept(filters.keep_top_p(array([0.0] * 4), 0.5)) == [2, 3]
    assert kept(filters.keep_top_p(array([0.0] * 4), 0.51)) == [1, 2, 3]


@given(logits, st.lists(st.integers(0, 80), max_size=40), st.floats(0.01, 10))
def test_repetition_penalty_equals_the_oracle(values: F32, context: list[int], penalty: float) -> None:
    before = values.copy()
    with np.errstate(over="ignore"):
        expected = [
            v if i not in context else (v * f32(penalty) if v < 0 else v / f32(penalty))
            for i, v in enumerate(values)
        ]
    found = filters.penalize_repetition(values, context, penalty)
    assert found.tobytes() == array([float(v) for v in expected]).tobytes()
    assert values.tobytes() == before.tobytes()


def test_repetition_penalty_counts_no_occurrences() -> None:
    values = array([2.0, -2.0, 1.0])
    once = filters.penalize_repetition(values, [0, 1], 1.5)
    assert once.tobytes() == filters.penalize_repetition(values, [1, 0, 0, 1, 1] * 9, 1.5).tobytes()


@given(logits, st.floats(1e-6, 1000))
def test_temperature_equals_the_oracle(values: F32, temperature: float) -> None:
    with np.errstate(over="ignore"):
        expected = [float(v / f32(temperature)) for v in values]
    assert filters.scale_by_temperature(values, temperature).tolist() == expected


@given(logits, st.integers(0, 60), share, share)
def test_every_filter_keeps_a_largest_value(values: F32, k: int, p: float, min_p: float) -> None:
    best = values == values.max()
    for mask in (
        filters.keep_top_k(values, k),
        filters.keep_top_p(values, p),
        filters.keep_min_p(values, min_p),
    ):
        assert (mask & best).any()


# --- metamorphic: how a change of the input must show ---------------------------------------------------


@given(logits, st.integers(1, 60), st.integers(0, 60))
def test_a_larger_k_keeps_more(values: F32, k: int, more: int) -> None:
    assert not (filters.keep_top_k(values, k) & ~filters.keep_top_k(values, k + more)).any()


@given(logits, share, share)
def test_a_larger_p_keeps_more(values: F32, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert not (filters.keep_top_p(values, low) & ~filters.keep_top_p(values, high)).any()
    assert not (filters.keep_min_p(values, high) & ~filters.keep_min_p(values, low)).any()


@given(logits, st.integers(-64, 64))
def test_a_shift_of_all_logits_changes_nothing_where_it_is_exact(values: F32, shift: int) -> None:
    values = np.round(np.clip(values, -1000, 1000) * 64) / f32(64)  # so that the addition is exact
    moved = values + f32(shift)
    assert filters.softmax(moved).tobytes() == filters.softmax(values).tobytes()
    assert (filters.keep_top_p(moved, 0.8) == filters.keep_top_p(values, 0.8)).all()
    assert (filters.keep_min_p(moved, 0.1) == filters.keep_min_p(values, 0.1)).all()
    assert (filters.keep_top_k(moved, 3) == filters.keep_top_k(values, 3)).all()


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=50, unique=True), share)
def test_a_permutation_moves_with_the_ids(whole: list[int], p: float) -> None:
    values = array([v / 64 for v in whole])
    order = np.array(sorted(range(len(whole)), key=lambda i: hash((whole[i], 7))))
    assert (filters.keep_top_k(values[order], 5) == filters.keep_top_k(values, 5)[order]).all()
    assert (filters.keep_min_p(values[order], 0.2) == filters.keep_min_p(values, 0.2)[order]).all()
    # top-p adds e in id order, so a permutation may move the last bit of the sum and with it a boundary
    # that is hit exactly: the number kept may differ by one.
    a, b = filters.keep_top_p(values[order], p), filters.keep_top_p(values, p)[order]
    assert abs(int(a.sum()) - int(b.sum())) <= 1


@pytest.mark.parametrize("n", [1, 2, 1024, 1025, 5000])
def test_p_of_0_keeps_exactly_one(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    assert kept(filters.keep_top_p(values, 0.0)) == [int(values.argmax())]
    assert kept(filters.keep_top_p(np.zeros(n, dtype=np.float32), 0.0)) == [n - 1]
