"""Random bits by position: draw p of a seed is a pure function of (seed, p).

Philox4x32-10 encrypts a counter under a key. The key is the seed, the counter is the position, so any
step can be replayed or resumed alone, and drawing one step never moves another.

    key      (seed mod 2^32, seed div 2^32)
    counter  (position mod 2^32, position div 2^32, 0, 0)
    bits     the upper 53 of the 64 bits (word 1, word 0) of the output: an integer u in [0, 2^53)
    number   u * 2^-53, a double in [0, 1)

Source: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011); Random123.
"""

from __future__ import annotations

from typing import Final

Words4 = tuple[int, int, int, int]

MULTIPLIER_0: Final = 0xD2511F53
MULTIPLIER_1: Final = 0xCD9E8D57
WEYL_0: Final = 0x9E3779B9  # golden ratio
WEYL_1: Final = 0xBB67AE85  # sqrt(3) - 1
ROUNDS: Final = 10
DRAW_BITS: Final = 53

_MASK: Final = 0xFFFFFFFF


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Philox4x32-10 of `counter` under `key`; all words are 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product_0 = MULTIPLIER_0 * c0
        product_1 = MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0 = (k0 + WEYL_0) & _MASK
        k1 = (k1 + WEYL_1) & _MASK
    return c0, c1, c2, c3


def draw_bits(seed: int, position: int) -> int:
    """The 53 random bits of `position` under `seed`; both 0 .. 2^64 - 1."""
    assert 0 <= seed < 1 << 64, seed
    assert 0 <= position < 1 << 64, position
    words = philox4x32((position & _MASK, position >> 32, 0, 0), (seed & _MASK, seed >> 32))
    return (words[1] << 32 | words[0]) >> (64 - DRAW_BITS)


def uniform(seed: int, position: int) -> float:
    """The draw as a double in [0, 1): `draw_bits * 2^-53`, exact."""
    return draw_bits(seed, position) * 2.0**-DRAW_BITS
