"""The browser's side of the package: the engine that the worker drives, and WebGPU through pyodide.ffi.

The only module that imports `js` or `pyodide`. Python makes the device, buffers, pipelines and bind groups,
once; worker/gpu/replay.js replays them, one call for a forward pass. Every call that JavaScript makes here is
answered with `{ok: ...}` or `{error: {code, message, detail}}`: no Python exception crosses.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import js
import numpy as np
from pyodide.ffi import JsException, JsProxy, to_js

from slm2_web import __version__, transcript
from slm2_web.errors import CODES, DeviceError, ProtocolError, Slm2Error
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.gpu import GpuExecutor, PipelineKey
from slm2_web.forward2.kernels import KERNELS
from slm2_web.forward2.plan import Dispatch, Extent
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.forward2.selftest import self_test
from slm2_web.manifest import Manifest, TensorEntry, parse_manifest
from slm2_web.packed import PackedModel, check_file, check_tensors
from slm2_web.prompt2.assemble import assemble
from slm2_web.sampling2.params import parse_params
from slm2_web.session import Delta, Done, Prefill, Session, Token
from slm2_web.template2.machine import Template, template_for
from slm2_web.template2.spec import Message
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.transcript import Artifacts, Request

# dot4I8Packed; a WGSL feature rather than a device feature, and everywhere that WebGPU is current.
LANGUAGE_FEATURE = "packed_4x8_integer_dot_product"

_VARIABLES = ("one", "n_tokens", "seq_len")


def _object(value: Any) -> Any:
    """A Python value as a plain JavaScript one; dicts become objects, bytes typed arrays."""
    return to_js(value, dict_converter=js.Object.fromEntries)


class JsBackend:
    """A `GpuBackend` (forward2/gpu.py) on the browser's WebGPU. Made by `create`."""

    def __init__(self, adapter: Any, device: Any, make_replay: Callable[[Any], Any]) -> None:
        info = adapter.info
        words = [str(w) for w in (info.vendor, info.architecture, info.description) if w]
        self.adapter = " ".join(dict.fromkeys(words)) or "unnamed adapter"
        self._device = device
        self._replay = make_replay(device)
        self._layouts: dict[str, Any] = {}
        self._modules: dict[str, Any] = {}
        self._pipelines: dict[PipelineKey, Any] = {}

    @classmethod
    async def create(cls, make_replay: Callable[[Any], Any]) -> JsBackend:
        """A device on the browser's best adapter; `make_replay(device)` gives a Replay (gpu/replay.js).

        Raises: DeviceError `device.no_webgpu`.
        """
        gpu = getattr(js.navigator, "gpu", None)
        if not gpu:
            raise DeviceError("device.no_webgpu", "this browser has no navigator.gpu in workers")
        if not gpu.wgslLanguageFeatures.has(LANGUAGE_FEATURE):
            raise DeviceError("device.no_webgpu", f"this browser's WGSL lacks {LANGUAGE_FEATURE}")
        adapter = await gpu.requestAdapter(_object({"powerPreference": "high-performance"}))
        if not adapter:
            raise DeviceError("device.no_webgpu", "the browser offers no adapter")
        try:
            device = await adapter.requestDevice()
        except JsException as error:
            raise DeviceError("device.no_webgpu", f"the adapter gives no device: {error.message}") from None
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
        if key.kernel not in self._modules:
            module = self._device.createShaderModule(_object({"label": key.kernel, "code": source}))
            self._modules[key.kernel] = module
        layouts = [self._layout(key.kernel)]
        descriptor = {
            "label": key.kernel,
            "layout": self._device.createPipelineLayout(_object({"bindGroupLayouts": layouts})),
            "compute": {
                "module": self._modules[key.kernel],
                "entryPoint": "main",
                "constants": dict(key.constants),
            },
        }
        try:
            self._pipelines[key] = await self._device.createComputePipelineAsync(_object(descriptor))
        except JsException as error:
            raise DeviceError(
                "device.limit", f"kernel {key.kernel}: {error.message}", {"kernel": key.kernel}
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
            group = self._device.createBindGroup(_object({"layout": layout, "entries": entries}))
            pipeline = self._pipelines[PipelineKey.of(dispatch)]
            commands.append(
                {"pipeline": pipeline, "group": group, "grid": [_extent(e) for e in dispatch.grid]}
            )
        self._replay.record(program, _object(commands))

    async def run(
        self, programs: Sequence[str], step: Sequence[int], ids: Sequence[int], read: str, size: int
    ) -> F32:
        """See GpuBackend."""
        try:
            values = await self._replay.run(to_js(programs), to_js(step), to_js(ids), read, size)
        except JsException as error:
            raise _device_error(error) from None
        result = np.empty(size // 4, np.float32)
        values.assign_to(result)
        return result

    def free(self, prefix: str) -> None:
        """See GpuBackend."""
        self._replay.free(prefix)

    async def check(self) -> None:
        """See GpuBackend."""
        try:
            await self._replay.check()
        except JsException as error:
            raise _device_error(error) from None

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
                _object({"label": kernel, "entries": entries})
            )
        return self._layouts[kernel]


def _extent(extent: Extent) -> list[int]:
    return [_VARIABLES.index(extent.variable), extent.mul, extent.div]


def _device_error(error: JsException) -> DeviceError:
    """The DeviceError that replay.js named in its error; anything else is a lost device."""
    code = error.name if error.name in CODES and error.name.startswith("device.") else "device.lost"
    return DeviceError(code, error.message)


async def _executor_of(
    kind: str, manifest: Manifest, weights: Any, make_replay: Callable[[Any], Any], emit: Callable[..., None]
) -> tuple[GpuExecutor | ReferenceExecutor, Callable[[], None], dict[str, float]]:
    """(executor, how to free it, milliseconds by stage). `auto` is WebGPU; the reference only when asked for.

    Raises: DeviceError.
    """
    timings: dict[str, float] = {}
    if kind == "reference":
        start = time.perf_counter()
        held = np.empty(manifest.weights_bytes, np.uint8)
        weights.assign_to(held)
        emit("upload", held.size, held.size, "bytes")
        timings["upload_ms"] = _since(start)
        return ReferenceExecutor(PackedModel(manifest, b"", held)), lambda: None, timings
    backend = await JsBackend.create(make_replay)
    try:
        emit("self_test", 0, 1, "steps")
        start = time.perf_counter()
        await self_test(backend)
        timings["self_test_ms"] = _since(start)
        emit("self_test", 1, 1, "steps")

        def progress(stage: str, done: int, total: int, unit: str) -> None:
            nonlocal start
            emit(stage, done, total, unit)
            if done == total:
                timings[f"{stage}_ms"] = _since(start)
                start = time.perf_counter()

        start = time.perf_counter()
        entry = manifest.tensors["rope.inv_freq"]
        executor = await GpuExecutor.create(
            backend,
            manifest,
            lambda low, high: weights.subarray(low, high),
            _read_f32(weights, entry),
            progress=progress,
        )
    except BaseException:
        backend.dispose()
        raise
    return executor, backend.dispose, timings


def _read_f32(weights: Any, entry: TensorEntry) -> F32:
    """An f32 tensor's values, copied out of the shared weights."""
    start = entry.planes["values"]
    result = np.empty(entry.plane_bytes("values"), np.uint8)
    weights.subarray(start, start + result.size).assign_to(result)
    values: F32 = result.view(np.float32)
    return values


def _since(start: float) -> float:
    return round((time.perf_counter() - start) * 1e3, 3)


async def _answer(work: Awaitable[dict[str, Any]]) -> Any:
    """`{ok: what the work gives}`, or `{error}`."""
    try:
        return _object({"ok": await work})
    except Slm2Error as error:
        return _object({"error": error.as_json()})
    except MemoryError as error:
        full = DeviceError("device.out_of_memory", f"the worker's memory is full: {error}")
        return _object({"error": full.as_json()})
    except Exception as error:
        # A bug of ours. The page must hear of it all the same, with what a report needs.
        trace = "".join(traceback.format_exception(error))[-4000:]
        bug = ProtocolError("protocol.internal", f"{type(error).__name__}: {error}", {"traceback": trace})
        return _object({"error": bug.as_json()})


class Engine:
    """One model on one device, for worker.js. `make_replay(device)` makes a Replay (worker/gpu/replay.js)."""

    def __init__(self, make_replay: Callable[[Any], Any]) -> None:
        self._make_replay = make_replay
        self._model: _Model | None = None

    async def load(self, manifest: Any, tokenizer: Any, weights: Any, executor: str, emit: Any) -> Any:
        """`{ok: info}`: executor, adapter, model, vocab_size, max_seq_len, defaults, memory, timings.

        manifest, tokenizer: Uint8Array, whose size and hash the loader has checked. weights: Uint8Array,
        maybe on a SharedArrayBuffer. `emit(stage, done, total, unit)` tells of progress.
        """
        return await _answer(self._load(manifest.to_bytes(), tokenizer.to_bytes(), weights, executor, emit))

    async def _load(
        self, manifest_bytes: bytes, tokenizer_bytes: bytes, weights: Any, kind: str, emit: Any
    ) -> dict[str, Any]:
        if self._model is not None:
            raise ProtocolError("protocol.state", "a model is loaded already")
        manifest = parse_manifest(manifest_bytes)
        check_tensors(manifest)
        check_file(manifest.tokenizer, tokenizer_bytes)
        start = time.perf_counter()
        tokenizer = Tokenizer.from_bytes(tokenizer_bytes)
        template = template_for(manifest.template, tokenizer)
        timings = {"tokenizer_ms": _since(start)}
        executor, free, stages = await _executor_of(kind, manifest, weights, self._make_replay, emit)
        self._model = _Model(
            manifest=manifest,
            artifacts=Artifacts.of(manifest, manifest_bytes, __version__),
            tokenizer=tokenizer,
            template=template,
            executor=executor,
            session=Session(tokenizer, executor, manifest.eos_ids),
            free=free,
        )
        device = executor.plan.memory_bytes()
        return {
            "executor": executor.name,
            "adapter": executor.adapter,
            "model": {
                "name": manifest.name,
                "title": manifest.title,
                "license": manifest.license,
                "default_system": manifest.template.default_system,
            },
            "vocab_size": manifest.config.vocab_size,
            "max_seq_len": executor.max_seq_len,
            "defaults": dict(manifest.defaults),
            "memory": {
                "tokenizer_bytes": len(tokenizer_bytes),
                "device_weights_bytes": device["weights"],
                "device_cache_bytes": device["kv_cache"],
                "device_work_bytes": device["work"],
            },
            "timings": {**timings, **stages},
        }

    async def chat(self, request: Any, emit: Any, cancelled: Any) -> Any:
        """`{ok: {reason, transcript, stats}}` of one reply.

        request: `{messages: [{role, content: Uint8Array}], params}`. `emit("prefill", done, total)`,
        `emit("token", id, null)`, `emit("delta", Uint8Array, null)`; `cancelled()` is asked before each pass.
        """
        return await _answer(self._chat(request.to_py(), emit, cancelled))

    async def _chat(self, request: dict[str, Any], emit: Any, cancelled: Any) -> dict[str, Any]:
        model = self._model
        if model is None:
            raise ProtocolError("protocol.state", "no model is loaded")
        messages = tuple(Message(m["role"], bytes(m["content"])) for m in request["messages"])
        params = parse_params(_plain(request["params"]), model.manifest.defaults)
        max_seq_len = model.executor.max_seq_len
        prompt_ids = assemble(
            model.template, model.tokenizer, messages, max_seq_len=max_seq_len, reserve_tokens=1
        )
        done: Done | None = None
        async for event in model.session.generate(prompt_ids, params, cancelled=cancelled):
            match event:
                case Prefill(done_tokens, total_tokens):
                    emit("prefill", done_tokens, total_tokens)
                case Token(token_id):
                    emit("token", token_id, None)
                case Delta(data):
                    emit("delta", to_js(data), None)
                case Done():
                    done = event
        assert done is not None
        record = transcript.record(
            model.artifacts, Request(messages, None, params, max_seq_len), prompt_ids, done, model.executor
        )
        stats = {
            "prompt_tokens": len(prompt_ids),
            "generated_tokens": len(done.generated_ids),
            **done.timings.as_json(),
        }
        text = transcript.write(record).decode("utf-8")
        return {"reason": done.reason, "detail": dict(done.detail), "transcript": text, "stats": stats}

    def dispose(self) -> None:
        """Free the device's memory. Nothing may be called after it."""
        if self._model is not None:
            self._model.free()
            self._model = None


def _plain(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as `parse_params` takes them: typed arrays of stop strings become bytes."""
    stop = params.get("stop")
    if isinstance(stop, list):
        return {**params, "stop": [bytes(s) if isinstance(s, memoryview) else s for s in stop]}
    return params


@dataclass(frozen=True, slots=True)
class _Model:
    """What `load` made."""

    manifest: Manifest
    artifacts: Artifacts
    tokenizer: Tokenizer
    template: Template
    executor: GpuExecutor | ReferenceExecutor
    session: Session
    free: Callable[[], None]
