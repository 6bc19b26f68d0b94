"""The WebGPU executor: a plan's buffers, pipelines and programs on a backend that speaks WebGPU.

There are two backends: `bridge/webgpu.py` (the browser's WebGPU through pyodide.ffi) and `native.py`
(wgpu-native, outside a browser). A program is a recorded list of dispatches; running programs is one call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from slm2_web.forward2 import exactmath
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.executor import PlanExecutor
from slm2_web.forward2.kernels import shader_source
from slm2_web.forward2.plan import Dispatch, Plan, build_plan
from slm2_web.manifest import Manifest

# Bytes handed to the queue at a time while weights are uploaded: progress moves, staging memory stays small.
UPLOAD_BYTES = 8 << 20
# Tokens that one submission takes: a cancel waits for no more than these. A GPU wants many, to wait seldom; a
# program that plays one needs seconds for a few.
CHUNK_TOKENS, SOFTWARE_CHUNK_TOKENS = 64, 16

Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True)
class PipelineKey:
    """A shader with its override constants, as a hashable key."""

    shader: str
    constants: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, dispatch: Dispatch) -> PipelineKey:
        """The pipeline that a dispatch needs."""
        return cls(dispatch.shader, tuple(sorted(dispatch.constants.items())))


class GpuBackend(Protocol):
    """What the executor needs of WebGPU. Buffers, pipelines and programs are known by name."""

    @property
    def adapter(self) -> str:
        """The adapter, for people."""

    @property
    def is_software(self) -> bool:
        """Whether the CPU plays the GPU: such an adapter is exact, and slower than the wasm kernels."""

    def create_buffer(self, name: str, size: int) -> None:
        """A zeroed storage buffer (the one called `step` is a uniform)."""

    def write(self, name: str, offset: int, data: Any) -> None:
        """Copy bytes into a buffer; `data` is whatever the backend's own callers hold bytes in."""

    async def compile(self, key: PipelineKey, source: str) -> None:
        """Make a pipeline. Raises: DeviceError."""

    def record(self, program: str, dispatches: Sequence[Dispatch]) -> None:
        """Prepare a program: bind groups and grids. Its pipelines are compiled and its buffers made."""

    async def run(
        self, programs: Sequence[str], step: Sequence[int], ids: Sequence[int], read: str, size: int
    ) -> F32:
        """Write the step and the ids, run programs, read `size` bytes of buffer `read` as float32.

        Raises: DeviceError `device.lost`, `device.out_of_memory`.
        """

    def free(self, prefix: str) -> None:
        """Destroy the buffers and programs whose name begins with `prefix`."""

    async def check(self) -> None:
        """Wait for what was queued. Raises: DeviceError for what went wrong meanwhile."""


async def compile_all(
    backend: GpuBackend, dispatches: Sequence[Dispatch], progress: Callable[[int, int], None]
) -> None:
    """Make every pipeline that the dispatches need, as many at a time as the device likes."""
    keys = list(dict.fromkeys(PipelineKey.of(d) for d in dispatches))
    done = 0

    async def make(key: PipelineKey) -> None:
        nonlocal done
        await backend.compile(key, shader_source(key.shader))
        done += 1
        progress(done, len(keys))

    progress(0, len(keys))
    await asyncio.gather(*(make(key) for key in keys))


class GpuExecutor(PlanExecutor):
    """A plan on a WebGPU device (forward2/executor.py)."""

    name = "webgpu"

    def __init__(self, backend: GpuBackend, plan: Plan) -> None:
        super().__init__(plan)
        self._backend = backend

    @property
    def adapter(self) -> str:
        """The adapter, for people."""
        return self._backend.adapter

    @classmethod
    async def create(
        cls,
        backend: GpuBackend,
        manifest: Manifest,
        weights: Callable[[int, int], Any],
        inv_freq: F32,
        *,
        max_seq_len: int | None = None,
        max_chunk_tokens: int | None = None,
        progress: Progress = lambda stage, done, total, unit: None,
    ) -> GpuExecutor:
        """Upload the weights and make the pipelines.

        `weights(start, end)` gives those bytes of the model's weights in the backend's own type. Without
        `max_chunk_tokens`, the adapter decides.
        Raises: DeviceError; FormatError `format.unsupported`.
        """
        if max_chunk_tokens is None:
            max_chunk_tokens = SOFTWARE_CHUNK_TOKENS if backend.is_software else CHUNK_TOKENS
        plan = build_plan(manifest, max_seq_len=max_seq_len, max_chunk_tokens=max_chunk_tokens)
        for name, size in plan.buffers.items():
            backend.create_buffer(name, size)
        total = sum(s.end - s.start for s in plan.segments)
        done = 0
        for segment in plan.segments:
            backend.create_buffer(segment.buffer, segment.end - segment.start)
            for start in range(segment.start, segment.end, UPLOAD_BYTES):
                end = min(start + UPLOAD_BYTES, segment.end)
                backend.write(segment.buffer, start - segment.start, weights(start, end))
                await backend.check()
                done += end - start
                progress("upload", done, total, "bytes")
        table = exactmath.rope_table(inv_freq, plan.max_seq_len)
        backend.write("rope", 0, np.ascontiguousarray(table).view(np.uint8).reshape(-1))
        await compile_all(
            backend,
            (*plan.decode, *plan.prefill, *plan.logits),
            lambda done, total: progress("compile", done, total, "steps"),
        )
        for program in ("decode", "prefill", "logits"):
            backend.record(program, getattr(plan, program))
        await backend.check()
        return cls(backend, plan)

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> F32 | None:
        """See forward2/executor.py."""
        self.check_step(ids)
        body = "decode" if len(ids) == 1 else "prefill"
        programs = (body, "logits") if want_logits else (body,)
        step = (0, len(ids), self.pos, self.pos + len(ids))
        # Without logits, 16 bytes are read all the same: the call returns when the work is done, so that
        # progress is honest and a cancel finds a short queue.
        size = self.plan.vocab_size * 4 if want_logits else 16
        start = time.perf_counter()
        values = await self._backend.run(programs, step, ids, "logits", size)
        self.kernel_ms = (time.perf_counter() - start) * 1e3
        self.pos += len(ids)
        return values if want_logits else None
