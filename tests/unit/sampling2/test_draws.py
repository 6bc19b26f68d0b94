"""10,000 draws in a row: pinned, and resumed in the middle; e2e/test_pyodide_draws.py has them in Pyodide."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from draws import SETTINGS, VOCAB_SIZE, digest, draws
from slm2_web.sampling2 import filters
from slm2_web.sampling2.rng import MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1, draw_bits
from slm2_web.sampling2.sampler import choose

EXPECTED = "09cd78fd9a8f120a3a7deb6438d593102130a31e7ecf787e048f4d663b74ab5d"


@pytest.fixture(scope="module")
def run() -> list[int]:
    return draws([], 10_000)


def test_the_ids_are_pinned(run: list[int]) -> None:
    assert digest(run) == EXPECTED


def test_a_resume_gives_the_same_tail(run: list[int]) -> None:
    assert draws(run[:5000], 600) == run[:5600]


def test_they_are_draws_indeed(run: list[int]) -> None:
    assert len(set(run)) > VOCAB_SIZE // 2
    assert len(SETTINGS) == 7


def bits_of_many(seed: int, count: int) -> NDArray[np.int64]:
    """draw_bits(seed, 0 .. count - 1), all at once."""
    low = np.uint64(0xFFFFFFFF)
    c = [np.arange(count, dtype=np.uint64), *(np.zeros(count, np.uint64) for _ in range(3))]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(ROUNDS):
        p0, p1 = np.uint64(MULTIPLIER_0) * c[0], np.uint64(MULTIPLIER_1) * c[2]
        shift = np.uint64(32)
        c = [(p1 >> shift) ^ c[1] ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + WEYL_0) & 0xFFFFFFFF, (k1 + WEYL_1) & 0xFFFFFFFF
    return ((c[1] << np.uint64(32) | c[0]) >> np.uint64(11)).astype(np.int64)


def test_chi_square_of_a_million_draws() -> None:
    weights = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.015, 0.005])
    probs = filters.softmax(np.log(weights).astype(np.float32))
    n = 1_000_000
    bits = bits_of_many(2024, n)
    assert [draw_bits(2024, i) for i in range(0, n, 9973)] == bits[::9973].tolist()
    # choose() for all at once, by the bits where each id begins; some are held against choose() itself.
    running = np.cumsum(filters.weights(probs)).tolist()
    total = running[-1]
    edges = [-(-(edge << 53) // total) for edge in running]  # the first bits that lie beyond each
    picks = np.searchsorted(np.array(edges), bits, side="right")
    assert [choose(probs, int(b)) for b in bits[:3000]] == picks[:3000].tolist()
    counts = Counter(picks.tolist())
    expected = n * probs.astype(np.float64)
    chi_square = sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected))
    assert chi_square < 26.1  # 8 degrees of freedom, 0.1 %
