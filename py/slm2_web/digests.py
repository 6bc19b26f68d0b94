"""The SHA-256 of each step's logits: by it a transcript shows that a run was made again, bit for bit."""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Digests(Protocol):
    """Takes the logits of a reply's steps in order; may compute their digests while the model goes on."""

    def __len__(self) -> int:
        """How many were added."""

    async def add(self, logits: NDArray[np.float32]) -> None:
        """`logits`: f32[vocab_size], which the caller doesn't change any more. Raises: DeviceError."""

    async def take(self) -> tuple[str, ...]:
        """All of them, in order. Raises: DeviceError."""


class OwnDigests:
    """Computes each at once."""

    def __init__(self) -> None:
        self._done: list[str] = []

    def __len__(self) -> int:
        return len(self._done)

    async def add(self, logits: NDArray[np.float32]) -> None:
        """See Digests."""
        self._done.append(digest(logits))

    async def take(self) -> tuple[str, ...]:
        """See Digests."""
        return tuple(self._done)


def digest(logits: NDArray[np.float32]) -> str:
    """sha256 of the logits' bits, little-endian, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(logits, dtype="<f4").data).hexdigest()
