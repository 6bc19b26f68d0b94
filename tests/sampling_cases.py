"""Logits and parameters for samplers, made from a case's number: the same on every machine.

A case is hard on purpose: ties at every boundary, -inf, huge, tiny and subnormal values, both zeros. Made of
integer hashes and exactly rounded operations only, so a golden needs to hold nothing but results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_CASES = 20_000
KINDS = ("plain", "ties", "few values", "masked", "huge", "tiny", "subnormal", "zeros", "one leads", "flat")
# Every so many cases the logits are as many as a real vocabulary has.
REAL_SIZES = (49_152, 151_936)
REAL_EVERY = 500


@dataclass(frozen=True, slots=True)
class Case:
    """One case: f32[n] logits (-inf allowed), prompt and generated ids, sampling parameters."""

    kind: str
    logits: NDArray[np.float32]
    prompt_ids: list[int]
    generated_ids: list[int]
    params: dict[str, Any]


def words(case: int, stream: int, count: int) -> NDArray[np.uint64]:
    """u64[count] of 32 random bits each: a hash of (case, stream, index) by the finaliser of MurmurHash3."""
    index = np.arange(count, dtype=np.uint64)
    h = (index * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64((case * 16 + stream) * 0xD1B54A32D192ED03 % 2**64)
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h ^= h >> np.uint64(33)
        h *= np.uint64(multiplier)
    return (h ^ h >> np.uint64(33)) >> np.uint64(32)


def make_case(number: int) -> Case:
    """Case `number`, 0 to N_CASES - 1."""
    pick = [int(word) for word in words(number, 0, 16)]
    kind = KINDS[number % len(KINDS)]
    size = 4 + pick[0] % (508 if pick[1] % 4 else 28)
    if number % REAL_EVERY == REAL_EVERY - 1:
        size = REAL_SIZES[number // REAL_EVERY % 2]
        kind = KINDS[number // REAL_EVERY % len(KINDS)]
    # A sum of four uniform numbers is nearly normal, and exact: multiples of 2^-28.
    uniform = [words(number, 1 + i, size).astype(np.float64) / 2**32 for i in range(4)]
    normal = (uniform[0] + uniform[1] + uniform[2] + uniform[3] - 2) * 1.75
    values: NDArray[np.float32] = (normal * (0.5 + pick[2] % 64 / 8)).astype(np.float32)
    bits = words(number, 5, size)
    match kind:
        case "ties":
            values = (np.round(values * np.float32(2)) / np.float32(2)).astype(np.float32)
        case "few values":
            values = np.round(values / np.float32(4)).astype(np.float32)
        case "masked":
            values[bits % 3 == 0] = -np.inf
            values[pick[3] % size] = np.float32(1)
        case "huge":
            values *= np.float32(2.0**100)
        case "tiny":
            values *= np.float32(2.0**-90)
        case "subnormal":
            values = (bits % 4096).astype(np.uint32).view(np.float32) * np.float32(1)
        case "zeros":
            values = np.where(bits % 2 == 0, np.float32(-0.0), np.float32(0.0)).astype(np.float32)
            values[pick[3] % size] = np.float32(pick[4] % 3)
        case "one leads":
            values[pick[3] % size] = np.float32(40)
        case "flat":
            values[:] = np.float32(pick[3] % 7 - 3)
    params = {
        "temperature": (0.1, 0.6, 0.7, 1.0, 1.5)[pick[5] % 5],
        "top_k": (0, 1, 5, 20, 50, size, size + 7)[pick[6] % 7],
        "top_p": (1.0, 0.95, 0.9, 0.5, 0.1, 0.999, 1e-6)[pick[7] % 7],
        "min_p": (0.0, 0.0, 0.05, 0.5, 1.0)[pick[8] % 5],
        "repetition_penalty": (1.0, 1.0, 1.1, 1.5, 0.8)[pick[9] % 5],
    }
    ids = [int(word) % size for word in words(number, 6, 12)]
    return Case(kind, values, ids[:8], ids[8:], params)
