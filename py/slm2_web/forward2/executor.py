"""What the session asks of an executor: ids in, logits out, with a KV cache behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import DeviceError
from slm2_web.forward2.plan import Plan


class Executor(Protocol):
    """Runs one model. All executors give the same bits (the contract in docs/forward.md)."""

    @property
    def name(self) -> str:
        """`reference`, `wasm` or `webgpu`."""

    @property
    def adapter(self) -> str:
        """What it runs on, for people."""

    @property
    def max_seq_len(self) -> int:
        """Positions that the KV cache holds."""

    @property
    def max_chunk_tokens(self) -> int:
        """Most ids that one `forward` takes."""

    @property
    def pos(self) -> int:
        """Ids in the KV cache."""

    @property
    def kernel_ms(self) -> float:
        """Milliseconds that the last `forward` spent in the kernels' own call."""

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> NDArray[np.float32] | None:
        """Append `ids` at `pos`; the logits after the last one, f32[vocab_size], if they are wanted.

        Raises: DeviceError when the device fails.
        """

    def truncate(self, pos: int) -> None:
        """Forget everything from position `pos` on."""

    def digest(self, logits: NDArray[np.float32]) -> str:
        """`digest_of` logits that `forward` gave: for those of the last one it may be known already."""


class PlanExecutor:
    """What the executors share: the plan, and how many positions of its KV cache are in use."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.max_seq_len = plan.max_seq_len
        self.max_chunk_tokens = plan.max_chunk_tokens
        self.pos = 0
        self.kernel_ms = 0.0

    def check_step(self, ids: Sequence[int]) -> None:
        """Assert that a step fits the plan; the session keeps to this.

        Raises: DeviceError `device.limit` when the cache is full.
        """
        assert 1 <= len(ids) <= self.max_chunk_tokens, len(ids)
        assert all(0 <= i < self.plan.vocab_size for i in ids)
        end = self.pos + len(ids)
        if end > self.max_seq_len:
            raise DeviceError("device.limit", f"position {end} is past the context of {self.max_seq_len}")

    def truncate(self, pos: int) -> None:
        """See Executor."""
        assert 0 <= pos <= self.pos
        self.pos = pos

    def digest(self, logits: NDArray[np.float32]) -> str:
        """See Executor."""
        return digest_of(logits)


def digest_of(logits: NDArray[np.float32]) -> str:
    """sha256 of the logits' bits, little-endian, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(logits, dtype="<f4").data).hexdigest()
