"""WebGPU through pyodide.ffi: a `GpuBackend` (forward2/gpu.py).

Python makes the device, buffers, pipelines and bind groups, once; worker/gpu/replay.js replays them, one call
for a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import js
from pyodide.ffi import JsException, JsProxy, to_js

from slm2_web.bridge.convert import own_error, to_f32, to_object
from slm2_web.errors import DeviceError
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.gpu import PipelineKey
from slm2_web.forward2.kernels import KERNELS, SHADERS
from slm2_web.forward2.plan import Dispatch, Extent

# dot4I8Packed; a WGSL feature rather than a device feature, and everywhere that WebGPU is current.
LANGUAGE_FEATURE = "packed_4x8_integer_dot_product"

# What software adapters call themselves where the browser doesn't flag them.
SOFTWARE_ADAPTERS = ("swiftshader", "llvmpipe", "lavapipe", "basic render")

_VARIABLES = ("one", "n_tokens", "seq_len")


class WebGpuBackend:
    """A `GpuBackend` (forward2/gpu.py) on the browser's WebGPU. Made by `create`."""

    def __init__(self, adapter: Any, device: Any, make_replay: Callable[[Any], Any]) -> None:
        info = getattr(adapter, "info", None)
        words = [str(getattr(info, key, "") or "") for key in ("vendor", "architecture", "description")]
        self.adapter = " ".join(filter(None, dict.fromkeys(words))) or "unnamed adapter"
        fallback = getattr(info, "isFallbackAdapter", False) or getattr(adapter, "isFallbackAdapter", False)
        self.is_software = bool(fallback) or any(w in self.adapter.lower() for w in SOFTWARE_ADAPTERS)
        self._device = device
        self._replay = make_replay(device)
        self._layouts: dict[str, Any] = {}
        self._modules: dict[str, Any] = {}
        self._pipelines: dict[PipelineKey, Any] = {}

    @classmethod
    async def create(cls, make_replay: Callable[[Any], Any]) -> WebGpuBackend:
        """A device on the browser's best adapter; `make_replay(device)` gives a Replay (gpu/replay.js).

        Raises: DeviceError `device.no_webgpu`.
        """
        gpu = getattr(js.navigator, "gpu", None)
        if not gpu:
            raise DeviceError("device.no_webgpu", "this browser has no navigator.gpu in workers")
        features = getattr(gpu, "wgslLanguageFeatures", None)  # early WebGPU has none
        if not features or not features.has(LANGUAGE_FEATURE):
            raise DeviceError("device.no_webgpu", f"this browser's WGSL lacks {LANGUAGE_FEATURE}")
        try:
            adapter = await gpu.requestAdapter(to_object({"powerPreference": "high-performance"}))
            if not adapter:
                raise DeviceError("device.no_webgpu", "the browser offers no adapter")
            device = await adapter.requestDevice()
        except JsException as error:
            raise DeviceError("device.no_webgpu", f"the browser gives no device: {error.message}") from None
        return cls(adapter, device, make_replay)

    def create_buffer(self, name: str, size: int) -> None:
        """See GpuBackend."""
        usage = js.GPUBufferUsage
        kind = usage.UNIFORM if name == "step" else usage.STORAGE
        self._replay.createBuffer(name, size, kind | usage.COPY_DST | usage.COPY_SRC)

    def write(self, name: str, offset: int, data: Any) -> None:
        """See GpuBackend. `data` is a numpy array or a JavaScript view."""
        self._replay.write(name, offset, data if isinstance(data, JsProxy) else to_js(data))

    async def compile(self, key: PipelineKey, source: str) -> None:
        """See GpuBackend."""
        if key in self._pipelines:
            return
        if key.shader not in self._modules:
            module = self._device.createShaderModule(to_object({"label": key.shader, "code": source}))
            self._modules[key.shader] = module
        layouts = [self._layout(SHADERS[key.shader])]
        descriptor = {
            "label": key.shader,
            "layout": self._device.createPipelineLayout(to_object({"bindGroupLayouts": layouts})),
            "compute": {
                "module": self._modules[key.shader],
                "entryPoint": "main",
                "constants": dict(key.constants),
            },
        }
        try:
            self._pipelines[key] = await self._device.createComputePipelineAsync(to_object(descriptor))
        except JsException as error:
            raise DeviceError(
                "device.limit", f"shader {key.shader}: {error.message}", {"shader": key.shader}
            ) from None

    def record(self, program: str, dispatches: Sequence[Dispatch]) -> None:
        """See GpuBackend."""
        step = self._replay.buffer("step")
        commands = []
        for dispatch in dispatches:
            entries = [{"binding": 0, "resource": {"buffer": step}}]
            for i, b in enumerate(dispatch.bindings, 1):
                resource = {"buffer": self._replay.buffer(b.buffer), "offset": b.offset, "size": b.size}
                entries.append({"binding": i, "resource": resource})
            layout = self._layout(dispatch.kernel)
            group = self._device.createBindGroup(to_object({"layout": layout, "entries": entries}))
            pipeline = self._pipelines[PipelineKey.of(dispatch)]
            commands.append(
                {"pipeline": pipeline, "group": group, "grid": [_extent(e) for e in dispatch.grid]}
            )
        self._replay.record(program, to_object(commands))

    async def run(
        self, programs: Sequence[str], step: Sequence[int], ids: Sequence[int], read: str, size: int
    ) -> F32:
        """See GpuBackend."""
        try:
            values = await self._replay.run(to_js(programs), to_js(step), to_js(ids), read, size)
        except JsException as error:
            raise own_error(error, "device.lost") from None
        found = to_f32(values)
        if found.nbytes != size:
            # A device that is lost takes along what was mapped.
            raise DeviceError("device.lost", "the device was lost while its values were read")
        return found

    def free(self, prefix: str) -> None:
        """See GpuBackend."""
        self._replay.free(prefix)

    async def check(self) -> None:
        """See GpuBackend."""
        try:
            await self._replay.check()
        except JsException as error:
            raise own_error(error, "device.lost") from None

    def dispose(self) -> None:
        """Destroy the device and all that it holds."""
        self._replay.dispose()

    def _layout(self, kernel: str) -> Any:
        if kernel not in self._layouts:
            kinds = {"read": "read-only-storage", "write": "storage"}
            types = ["uniform", *(kinds[access] for access in KERNELS[kernel].bindings.values())]
            visibility = js.GPUShaderStage.COMPUTE
            entries = [
                {"binding": i, "visibility": visibility, "buffer": {"type": t}} for i, t in enumerate(types)
            ]
            self._layouts[kernel] = self._device.createBindGroupLayout(
                to_object({"label": kernel, "entries": entries})
            )
        return self._layouts[kernel]


def _extent(extent: Extent) -> list[int]:
    return [_VARIABLES.index(extent.variable), extent.mul, extent.div]
