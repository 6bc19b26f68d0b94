"""The counter-based generator: Random123's known answers, and that a position alone decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.sampling2.rng import draw_bits, philox4x32, uniform

U64 = st.integers(0, 2**64 - 1)

# Random123, tests/kat_vectors: philox4x32 10 rounds.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    assert philox4x32((c0, c1, c2, c3), (k0, k1)) == words(expected)


def test_bits_are_the_upper_53_of_words_1_and_0() -> None:
    assert draw_bits(0, 0) == 0xE169C58D6627E8D5 >> 11


@given(U64, U64)
def test_seed_is_the_key_and_position_the_counter(seed: int, position: int) -> None:
    low = 0xFFFFFFFF
    out = philox4x32((position & low, position >> 32, 0, 0), (seed & low, seed >> 32))
    assert draw_bits(seed, position) == (out[1] * 2**32 + out[0]) // 2**11


@given(U64, U64)
def test_uniform_is_exact_and_below_one(seed: int, position: int) -> None:
    number = uniform(seed, position)
    assert 0 <= number < 1
    assert number * 2**53 == draw_bits(seed, position)


def test_seeds_and_positions_do_not_repeat_each_other() -> None:
    seen = {draw_bits(seed, position) for seed in range(64) for position in range(64)}
    assert len(seen) == 64 * 64
    # A neighbour in seed or position flips about half of the bits.
    flips = [(draw_bits(9, p) ^ draw_bits(9, p + 1)).bit_count() for p in range(1000)]
    flips += [(draw_bits(s, 9) ^ draw_bits(s + 1, 9)).bit_count() for s in range(1000)]
    assert abs(sum(flips) / len(flips) - 26.5) < 0.5
