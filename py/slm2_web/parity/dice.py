"""Numbers of the suite's inputs: splitmix64 of a counter that starts at a hash of a record's name.

Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")
_MASK: Final = (1 << 64) - 1


class Dice:
    """Random integers that depend on `name` alone."""

    def __init__(self, name: str) -> None:
        self._state = int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "little")

    def word(self) -> int:
        """64 random bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """0 to n - 1."""
        return self.word() % n

    def percent(self, chance: int) -> bool:
        """True so many times in a hundred."""
        return self.below(100) < chance

    def one(self, choices: Sequence[T]) -> T:
        """One of them."""
        return choices[self.below(len(choices))]
