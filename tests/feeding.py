"""Ids into an executor, in chunks: what the tests of every executor compare."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.executor import Executor


def feed(executor: Executor, ids: Sequence[int], chunk: int) -> F32:
    """The logits after `ids`, forwarded in chunks."""

    async def run() -> F32:
        logits = None
        for start in range(0, len(ids), chunk):
            piece = ids[start : start + chunk]
            logits = await executor.forward(piece, want_logits=start + chunk >= len(ids))
        assert logits is not None
        return logits

    return asyncio.run(run())
