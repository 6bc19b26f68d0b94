"""What the session asks of an executor: ids in, logits out, with a KV cache behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# The context that is made when nobody asks for another: its KV cache is part of the device's memory.
DEFAULT_SEQ_LEN = 2048


class Executor(Protocol):
    """Runs one model. All executors give the same bits (the contract in docs/forward.md)."""

    @property
    def name(self) -> str:
        """`reference` or `webgpu`."""

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

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> NDArray[np.float32] | None:
        """Append `ids` at `pos`; the logits after the last one, f32[vocab_size], if they are wanted.

        Raises: DeviceError when the device fails.
        """

    def truncate(self, pos: int) -> None:
        """Forget everything from position `pos` on."""
