"""What an executor says of the time in its kernels: of the last pass, and within its wall time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from slm2_web.forward2.executor import Executor
from slm2_web.forward2.native import native_executor
from slm2_web.forward2.native_wasm import native_wasm_executor
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel


@pytest.mark.parametrize("name", ["reference", "wasm", "webgpu"])
def test_kernel_time_lies_within_the_pass(name: str, packed_tiny: Path) -> None:
    model = PackedModel.open(packed_tiny)

    async def run() -> None:
        executor: Executor
        if name == "reference":
            executor = ReferenceExecutor(model)
        elif name == "wasm":
            executor = await native_wasm_executor(model)
        else:
            executor = await native_executor(model)
        before = 0.0
        for ids in ([3, 4, 5], [6]):
            start = time.perf_counter()
            await executor.forward(ids, want_logits=True)
            wall_ms = (time.perf_counter() - start) * 1e3
            assert 0 < executor.kernel_ms <= wall_ms
            assert executor.kernel_ms != before
            before = executor.kernel_ms

    asyncio.run(run())
