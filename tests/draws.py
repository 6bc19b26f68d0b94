"""A long run of draws from logits that need no model: what every interpreter and browser must agree on.

Each step's logits are a hash of its position and the id before it, made of integers and one exact division;
the parameters change from step to step, so every filter, penalty and profile takes part. Imports numpy and
the package alone: tests run this file's text in Pyodide as it stands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slm2_web.sampling2.params import SamplingParams, parse_params
from slm2_web.sampling2.sampler import sample

VOCAB_SIZE = 800
PROMPT = [3, 1, 4, 1, 5]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 0.8, "top_p": 0.9, "min_p": 0.05, "presence_penalty": 0.5},
    {"temperature": 1.3, "top_p": 0.999, "frequency_penalty": 0.02},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "profile": "llama.cpp"},
    {"temperature": 0.7, "repetition_penalty": 1.1, "banned_ids": [0, 7]},
    {"temperature": 0},
]
PARAMS: list[SamplingParams] = [parse_params({**s, "seed": 2**63 + 5}, {}) for s in SETTINGS]


def logits(position: int, last_id: int) -> NDArray[np.float32]:
    """f32[VOCAB_SIZE], from -8 to 8, in steps of 2^-12."""
    h = np.arange(VOCAB_SIZE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    h ^= np.uint64((position * 0xD1B54A32D192ED03 + last_id * 0x2545F4914F6CDD1D) % 2**64)
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h ^= h >> np.uint64(33)
        h *= np.uint64(multiplier)
    return ((h >> np.uint64(48)).astype(np.float32) - np.float32(32768)) / np.float32(4096)


def draws(generated: Sequence[int], count: int) -> list[int]:
    """`generated` and `count` further ids."""
    ids = list(generated)
    for _ in range(count):
        position = len(PROMPT) + len(ids)
        last = ids[-1] if ids else PROMPT[-1]
        # The context of a real reply is bounded; so is this one.
        drawn = sample(
            logits(position, last),
            PROMPT,
            ids[-64:],
            PARAMS[position % len(PARAMS)],
            VOCAB_SIZE - 3,
            position=position,
        )
        ids.append(drawn.id)
    return ids


def digest(ids: Sequence[int]) -> str:
    """sha256 of the ids as little-endian int32."""
    return hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()
