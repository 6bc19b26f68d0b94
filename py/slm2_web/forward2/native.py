"""The WebGPU backend outside a browser: PyPI `wgpu` (wgpu-native, whose compiler is Naga).

For the command line and for the tests of the shaders: the same WGSL files, a second compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slm2_web.errors import DeviceError
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.gpu import GpuExecutor, PipelineKey
from slm2_web.forward2.kernels import KERNELS, SHADERS
from slm2_web.forward2.plan import Dispatch, Extent
from slm2_web.packed import PackedModel


class NativeBackend:
    """A `GpuBackend` on wgpu-native.

    Raises: DeviceError `device.no_webgpu` when the package or an adapter is missing.
    """

    def __init__(self) -> None:
        try:
            import wgpu
        except ImportError as error:
            raise DeviceError("device.no_webgpu", f"the package `wgpu` is not installed: {error}") from None
        self._wgpu = wgpu
        try:
            adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
            self._device = adapter.request_device_sync()
        except RuntimeError as error:
            raise DeviceError("device.no_webgpu", f"no adapter: {error}") from None
        info = adapter.info
        self.adapter = f"{info['device']} ({info['backend_type']}, wgpu {wgpu.__version__})"
        self.is_software = info["adapter_type"] == "CPU"
        self._buffers: dict[str, Any] = {}
        self._pipelines: dict[PipelineKey, Any] = {}
        self._layouts: dict[str, Any] = {}
        self._programs: dict[str, list[tuple[Any, Any, tuple[Extent, Extent, Extent]]]] = {}

    def create_buffer(self, name: str, size: int) -> None:
        """See GpuBackend."""
        usage = self._wgpu.BufferUsage
        kind = usage.UNIFORM if name == "step" else usage.STORAGE
        self._buffers[name] = self._device.create_buffer(
            size=size, usage=kind | usage.COPY_DST | usage.COPY_SRC
        )

    def write(self, name: str, offset: int, data: Any) -> None:
        """See GpuBackend."""
        self._device.queue.write_buffer(self._buffers[name], offset, data)

    async def compile(self, key: PipelineKey, source: str) -> None:
        """See GpuBackend."""
        if key in self._pipelines:
            return
        module = self._device.create_shader_module(label=key.shader, code=source)
        layout = self._device.create_pipeline_layout(bind_group_layouts=[self._layout(SHADERS[key.shader])])
        self._pipelines[key] = self._device.create_compute_pipeline(
            layout=layout, compute={"module": module, "entry_point": "main", "constants": dict(key.constants)}
        )

    def record(self, program: str, dispatches: Sequence[Dispatch]) -> None:
        """See GpuBackend."""
        commands = []
        for dispatch in dispatches:
            step = self._buffers["step"]
            entries = [{"binding": 0, "resource": {"buffer": step, "offset": 0, "size": step.size}}]
            for i, b in enumerate(dispatch.bindings, 1):
                resource = {"buffer": self._buffers[b.buffer], "offset": b.offset, "size": b.size}
                entries.append({"binding": i, "resource": resource})
            group = self._device.create_bind_group(layout=self._layout(dispatch.kernel), entries=entries)
            commands.append((self._pipelines[PipelineKey.of(dispatch)], group, dispatch.grid))
        self._programs[program] = commands

    async def run(
        self, programs: Sequence[str], step: Sequence[int], ids: Sequence[int], read: str, size: int
    ) -> F32:
        """See GpuBackend."""
        self.write("step", 0, np.array(step, np.uint32))
        if ids:
            self.write("ids", 0, np.array(ids, np.uint32))
        encoder = self._device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for program in programs:
            for pipeline, group, grid in self._programs[program]:
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*(e.count(step[1], step[3]) for e in grid))
        compute.end()
        self._device.queue.submit([encoder.finish()])
        data = self._device.queue.read_buffer(self._buffers[read], size=size)
        return np.frombuffer(data, np.float32).copy()

    def free(self, prefix: str) -> None:
        """See GpuBackend."""
        for name in [n for n in self._programs if n.startswith(prefix)]:
            del self._programs[name]
        for name in [n for n in self._buffers if n.startswith(prefix)]:
            self._buffers.pop(name).destroy()

    async def check(self) -> None:
        """See GpuBackend. wgpu-native raises where the fault is made."""

    def _layout(self, kernel: str) -> Any:
        if kernel not in self._layouts:
            usage = {"read": "read-only-storage", "write": "storage"}
            kinds = ["uniform", *(usage[access] for access in KERNELS[kernel].bindings.values())]
            visibility = self._wgpu.ShaderStage.COMPUTE
            self._layouts[kernel] = self._device.create_bind_group_layout(
                entries=[
                    {"binding": i, "visibility": visibility, "buffer": {"type": k}}
                    for i, k in enumerate(kinds)
                ]
            )
        return self._layouts[kernel]


async def native_executor(
    model: PackedModel, *, max_seq_len: int | None = None, max_chunk_tokens: int | None = None
) -> GpuExecutor:
    """A GpuExecutor on wgpu-native, tested before use.

    Raises: DeviceError.
    """
    from slm2_web.forward2.selftest import self_test

    backend = NativeBackend()
    await self_test(backend)
    return await GpuExecutor.create(
        backend,
        model.manifest,
        lambda start, end: model.weights[start:end],
        model.plane("rope.inv_freq", "values").reshape(-1),
        max_seq_len=max_seq_len,
        max_chunk_tokens=max_chunk_tokens,
    )
