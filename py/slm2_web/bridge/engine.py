"""One model on one device: the choice of the device, and of the next one when it fails.

Theory of operation
-------------------
A device may fail at any moment: a laptop sleeps, a driver restarts, a thread dies. The weights stay in the
worker's memory, so another device can be made from them, and the session reads its ids again (session.py): a
reply goes on with the same tokens. First on a fresh device of the same kind; if that can't be had, or fails
before the next token, on wasm where `auto` was asked for; else the error ends the reply. The next reply
begins this anew.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from pyodide.ffi import JsException, jsnull, to_js

from slm2_web import __version__, transcript
from slm2_web.bridge.convert import own_error, to_object
from slm2_web.bridge.kernel import JsKernel, JsSource
from slm2_web.bridge.wasm import PoolBackend, wanted_threads
from slm2_web.bridge.webgpu import WebGpuBackend
from slm2_web.errors import AssetError, DeviceError, ProtocolError, Slm2Error
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.executor import Executor
from slm2_web.forward2.gpu import GpuExecutor
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.forward2.selftest import self_test
from slm2_web.forward2.wasm import WEIGHTS_BASE, WasmExecutor
from slm2_web.manifest import Manifest, parse_manifest
from slm2_web.packed import PackedModel, check_tensors
from slm2_web.parity import suite
from slm2_web.parity.canonical import canonical
from slm2_web.parity.subject import Subject
from slm2_web.reply import Delta, Markers
from slm2_web.request import parse_request, prompt_of
from slm2_web.sampling2.logprobs import Logprobs
from slm2_web.sampling2.params import parse_params
from slm2_web.session import Done, Prefill, Session, Token
from slm2_web.template2.machine import HasRender, Template, template_for
from slm2_web.tokenizer2.kernel import KernelTokenizer
from slm2_web.tokenizer2.tables import parse, parse_remote
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.transcript import Artifacts

T = TypeVar("T")


@dataclass(slots=True)
class _Loading:
    """What the making of an executor needs, and how long its stages took."""

    manifest: Manifest
    weights: Any
    memory: Any
    host: Any
    max_seq_len: int | None
    emit: Callable[[str, int, int, str], None]
    timings: dict[str, float] = field(default_factory=dict)
    fallback: DeviceError | None = None

    @property
    def inv_freq(self) -> F32:
        """RoPE's inverse frequencies, copied out of the shared weights."""
        entry = self.manifest.tensors["rope.inv_freq"]
        start = entry.planes["values"]
        values = np.empty(entry.plane_bytes("values"), np.uint8)
        self.weights.subarray(start, start + values.size).assign_to(values)
        return values.view(np.float32)

    async def timed(self, stage: str, work: Awaitable[T]) -> T:
        """The work, told and timed as a stage of one step."""
        self.emit(stage, 0, 1, "steps")
        start = time.perf_counter()
        result = await work
        self.timings[f"{stage}_ms"] = _since(start)
        self.emit(stage, 1, 1, "steps")
        return result


@dataclass(frozen=True, slots=True)
class _Device:
    """An executor and how to free it, which may be done again."""

    executor: GpuExecutor | WasmExecutor | ReferenceExecutor
    free: Callable[[], None]


async def _reference(loading: _Loading) -> _Device:
    held = np.empty(loading.manifest.weights_bytes, np.uint8)
    loading.weights.assign_to(held)
    loading.emit("upload", held.size, held.size, "bytes")
    model = PackedModel(loading.manifest, b"", held)
    executor = ReferenceExecutor(model, max_seq_len=loading.max_seq_len)
    return _Device(executor, lambda: None)


async def _wasm(loading: _Loading) -> _Device:
    """Raises: DeviceError `device.out_of_memory`, `device.self_test`; AssetError, when there is no kernel."""
    end = WEIGHTS_BASE + loading.manifest.weights_bytes
    try:
        pool = await loading.host.makePool(
            loading.memory, loading.weights, WEIGHTS_BASE, end, wanted_threads()
        )
    except JsException as error:
        raise own_error(error, "device.worker") from None
    backend = PoolBackend(pool)
    try:
        work = WasmExecutor.create(
            backend, loading.manifest, loading.inv_freq, max_seq_len=loading.max_seq_len
        )
        return _Device(await loading.timed("self_test", work), backend.dispose)
    except BaseException:
        backend.dispose()
        raise


async def _webgpu(loading: _Loading, backend: WebGpuBackend) -> _Device:
    """Raises: DeviceError."""
    try:
        await loading.timed("self_test", self_test(backend))
        start = time.perf_counter()

        def progress(stage: str, done: int, total: int, unit: str) -> None:
            nonlocal start
            loading.emit(stage, done, total, unit)
            if done == total:
                loading.timings[f"{stage}_ms"] = _since(start)
                start = time.perf_counter()

        weights = loading.weights
        executor = await GpuExecutor.create(
            backend,
            loading.manifest,
            lambda low, high: weights.subarray(low, high),
            loading.inv_freq,
            max_seq_len=loading.max_seq_len,
            progress=progress,
        )
    except BaseException:
        backend.dispose()
        raise
    return _Device(executor, backend.dispose)


async def _fastest(loading: _Loading) -> _Device:
    """WASM, unless there is a real GPU that passes the self-test and takes a token in less time.

    Which one it is never changes a token: both have the reference's bits. Why WebGPU was not taken is kept in
    `loading.fallback`.
    """
    gpu: _Device | None = None
    try:
        gpu = await _real_gpu(loading)
        loading.timings["benchmark_webgpu_ms"] = gpu_ms = await _token_ms(gpu)
    except DeviceError as error:
        loading.fallback = error
        if gpu is not None:
            gpu.free()
        return await _wasm(loading)
    try:
        wasm = await _wasm(loading)
    except (AssetError, DeviceError):
        return gpu
    try:
        loading.timings["benchmark_wasm_ms"] = wasm_ms = await _token_ms(wasm)
    except DeviceError:
        wasm.free()
        return gpu
    winner, loser = (gpu, wasm) if gpu_ms < wasm_ms else (wasm, gpu)
    loser.free()
    return winner


async def _real_gpu(loading: _Loading) -> _Device:
    """Raises: DeviceError."""
    backend = await WebGpuBackend.create(loading.host.makeReplay)
    if backend.is_software:
        backend.dispose()
        raise DeviceError("device.no_webgpu", f"{backend.adapter} is a program, not a GPU")
    return await _webgpu(loading, backend)


async def _token_ms(device: _Device) -> float:
    """Milliseconds for one token, after one to warm up. Raises: DeviceError."""
    for _ in range(2):
        start = time.perf_counter()
        logits = await device.executor.forward([0], want_logits=True)
        assert logits is not None
        device.executor.digest(logits)
        device.executor.truncate(0)
    return _since(start)


async def _device_of(kind: str, loading: _Loading) -> _Device:
    """The executor that is asked for; `auto` is the fastest. Raises: AssetError, DeviceError."""
    match kind:
        case "reference":
            return await _reference(loading)
        case "wasm":
            return await _wasm(loading)
        case "webgpu":
            return await _webgpu(loading, await WebGpuBackend.create(loading.host.makeReplay))
        case _:
            return await _fastest(loading)


def _since(start: float) -> float:
    return round((time.perf_counter() - start) * 1e3, 3)


async def _answer(work: Awaitable[dict[str, Any]]) -> Any:
    """`{ok: what the work gives}`, or `{error}`."""
    try:
        return to_object({"ok": await work})
    except Slm2Error as error:
        return to_object({"error": error.as_json()})
    except MemoryError as error:
        full = DeviceError("device.out_of_memory", f"the worker's memory is full: {error}")
        return to_object({"error": full.as_json()})
    except Exception as error:
        # A bug of ours. The page must hear of it all the same, with what a report needs.
        trace = "".join(traceback.format_exception(error))[-4000:]
        bug = ProtocolError("protocol.internal", f"{type(error).__name__}: {error}", {"traceback": trace})
        return to_object({"error": bug.as_json()})


class Engine:
    """One model on one device, for worker.js.

    `host` makes the JavaScript halves of the devices: `makeReplay(device)` a Replay (worker/gpu/replay.js),
    `makePool(memory, weights, base, end, nThreads)` a Pool (worker/wasm/pool.js), and the tokenizer's:
    `makeTokenizer(file)` a TokenizerKernel (worker/wasm/tokenizer.js).
    """

    def __init__(self, host: Any) -> None:
        self._host = host
        self._model: _Model | None = None

    async def load(self, files: Any, executor: str, max_seq_len: Any, emit: Any) -> Any:
        """`{ok: info}`: what `slm.info` is in docs/client.md, as far as the engine knows it.

        files: `{manifest, tokenizer, tokenizerMemory, weights, memory}`, the loader's, which has checked
        sizes and hashes: Uint8Arrays. tokenizer and weights may be views of shared WebAssembly.Memories,
        given beside them; these are null where none is shared. max_seq_len: most tokens of the context, or
        null.
        `emit(stage, done, total, unit)` tells of progress.
        """
        return await _answer(self._load(files, executor, _plain(max_seq_len), emit))

    async def _load(self, files: Any, kind: str, max_seq_len: int | None, emit: Any) -> dict[str, Any]:
        if self._model is not None:
            raise ProtocolError("protocol.state", "a model is loaded already")
        manifest_bytes = files.manifest.to_bytes()
        manifest = parse_manifest(manifest_bytes)
        check_tensors(manifest)
        start = time.perf_counter()
        source = JsSource(files.tokenizer)
        vocabulary = parse_remote(source)
        try:
            kernel = await self._host.makeTokenizer(files.tokenizer, files.tokenizerMemory)
        except JsException as error:
            raise own_error(error, "device.out_of_memory") from None
        tokenizer = KernelTokenizer(vocabulary, JsKernel(kernel), lambda: parse(source.read(0, len(source))))
        template = template_for(manifest.template, tokenizer)
        timings = {"tokenizer_ms": _since(start)}
        loading = _Loading(manifest, files.weights, files.memory, self._host, max_seq_len, emit)
        device = await _device_of(kind, loading)
        executor = device.executor

        async def renew(error: DeviceError, tries: int) -> Executor:
            return await self._renew(kind, loading, error, tries)

        self._model = _Model(
            manifest=manifest,
            artifacts=Artifacts.of(manifest, manifest_bytes, __version__),
            tokenizer=tokenizer,
            template=template,
            device=device,
            session=Session(tokenizer, executor, manifest.eos_ids, Markers.of(tokenizer), renew),
        )
        memory_bytes = executor.plan.memory_bytes()
        return {
            "executor": executor.name,
            "adapter": executor.adapter,
            "fallback": loading.fallback and loading.fallback.as_json(),
            "model": {
                "name": manifest.name,
                "title": manifest.title,
                "license": manifest.license,
                "default_system": manifest.template.default_system,
            },
            "template": {
                "family": manifest.template.family,
                "thinking": template.has_thinking,
                "preserve_thinking": template.has_thinking and isinstance(template, Template),
                "tools": template.has_tools,
            },
            "vocab_size": manifest.config.vocab_size,
            "max_seq_len": executor.max_seq_len,
            "defaults": dict(manifest.defaults),
            "memory": {
                "tokenizer_bytes": manifest.tokenizer.bytes,
                "device_weights_bytes": memory_bytes["weights"],
                "device_cache_bytes": memory_bytes["kv_cache"],
                "device_work_bytes": memory_bytes["work"],
            },
            "timings": {**timings, **loading.timings},
        }

    async def chat(self, request: Any, emit: Any, cancelled: Any) -> Any:
        """`{ok: {reason, transcript, stats, more: {tool_calls, logprobs}}}` of one reply.

        request: the page's `chat`, less its id (protocol.py). `emit("context", ledger, null, 0)`,
        `emit("prefill", done, total, 0)`, `emit("delta", Uint8Array, part, n_tokens)`; `cancelled()` is
        asked before each pass.
        """
        return await _answer(self._chat(_plain(request.to_py()), emit, cancelled))

    async def _chat(self, request: dict[str, Any], emit: Any, cancelled: Any) -> dict[str, Any]:
        model = self._model
        if model is None:
            raise ProtocolError("protocol.state", "no model is loaded")
        params = parse_params(request["params"], model.manifest.defaults)
        asked = {key: value for key, value in request.items() if key != "params"}
        wanted = parse_request(asked, params, model.device.executor.max_seq_len)
        prompt = prompt_of(wanted, model.template, model.tokenizer)
        ledger = prompt.ledger.as_json()
        emit("context", to_object(ledger), None, 0)
        done: Done | None = None
        n_tokens = 0
        events = model.session.generate(
            prompt.ids, params, continued_ids=wanted.continue_ids, cancelled=cancelled
        )
        async for event in events:
            match event:
                case Prefill(done_tokens, total_tokens):
                    emit("prefill", done_tokens, total_tokens, 0)
                case Token():
                    n_tokens += 1
                case Delta(data, is_reasoning):
                    emit("delta", to_js(data), "reasoning" if is_reasoning else "text", n_tokens)
                case Done():
                    done = event
        assert done is not None
        executor = model.device.executor
        record = transcript.record(model.artifacts, wanted, prompt.ids, ledger, done, executor)
        stats = {
            "prompt_tokens": len(prompt.ids),
            "generated_tokens": len(done.generated_ids),
            **done.timings.as_json(),
            "prefill_kernel_ms": round(done.timings.prefill_kernel_ms, 3),
            "kernel_ms": [round(ms, 3) for ms in done.timings.kernel_ms],
            "executor": executor.name,
            "adapter": executor.adapter,
            "losses": [loss.as_json() for loss in done.losses],
        }
        text = transcript.write(record).decode("utf-8")
        return {
            "reason": done.reason,
            "transcript": text,
            "stats": stats,
            "more": {
                "tool_calls": [call.as_json() for call in done.calls],
                "logprobs": None
                if done.logprobs is None
                else [
                    _logprobs_json(token_id, likely, model.tokenizer)
                    for token_id, likely in zip(done.generated_ids, done.logprobs, strict=True)
                ],
            },
        }

    async def parity(self, request: Any, emit: Any, cancelled: Any) -> Any:
        """`{ok: {suite, size, artifacts, executor, adapter}}` when the stages have run.

        request: the page's `parity`, less its id. `emit(message)`: a `parity_progress` or a `parity_stage`,
        less its id; `cancelled()` is asked before each vector.
        """
        return await _answer(self._parity(_plain(request.to_py()), emit, cancelled))

    async def _parity(self, request: dict[str, Any], emit: Any, cancelled: Any) -> dict[str, Any]:
        subject = self._subject()
        async for event in suite.run(subject, request["stages"], request["size"], cancelled=cancelled):
            emit(to_object(event.as_message()))
        return suite.info(subject, request["size"])

    async def parity_record(self, request: Any) -> Any:
        """`{ok: {record}}`: one vector, canonical JSON. request: the page's `parity_record`, less its id."""
        return await _answer(self._parity_record(_plain(request.to_py())))

    async def _parity_record(self, request: dict[str, Any]) -> dict[str, Any]:
        made = await suite.record(self._subject(), request["stage"], request["index"], request["size"])
        return {"record": canonical(made)}

    async def parity_output(self, request: Any) -> Any:
        """`{ok: {record}}`: what an input comes to. request: the page's `parity_output`, less its id."""
        return await _answer(self._parity_output(_plain(request.to_py())))

    async def _parity_output(self, request: dict[str, Any]) -> dict[str, Any]:
        made = suite.read_input(request["input"])
        found = await suite.output_of_any(self._subject(), request["stage"], made)
        return {"record": canonical({"id": "", "input": made, "output": found})}

    def _subject(self) -> Subject:
        model = self._model
        if model is None:
            raise ProtocolError("protocol.state", "no model is loaded")
        return Subject(
            model.manifest, model.artifacts, model.tokenizer, model.template, model.device.executor
        )

    async def _renew(self, kind: str, loading: _Loading, error: DeviceError, tries: int) -> Executor:
        """Another executor in place of the model's, which failed with `error`.

        Raises: DeviceError: `error`, when there is none.
        """
        model = self._model
        if model is None:  # disposed of meanwhile
            raise error
        failed = model.device.executor.name
        model.device.free()
        kinds = [failed] if tries == 1 else []
        if kind == "auto" and failed != "wasm":
            kinds.append("wasm")
        for each in kinds:
            try:
                device = await _device_of(each, loading)
            except (AssetError, DeviceError) as another:
                error.detail.setdefault("then", []).append(another.as_json())
                continue
            if self._model is not model:  # disposed of meanwhile
                device.free()
                raise error
            model.device = device
            return device.executor
        raise error

    def dispose(self) -> None:
        """Free the device's memory. Nothing may be called after it."""
        if self._model is not None:
            self._model.device.free()
            self._model = None


def _logprobs_json(token_id: int, found: Logprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    """Of a drawn id: `{id, bytes, logprob, top: [{id, bytes, logprob}]}`, bytes as a list of numbers."""

    def one(an_id: int, logprob: float) -> dict[str, Any]:
        return {"id": an_id, "bytes": list(tokenizer.token_bytes(an_id)), "logprob": logprob}

    return {**one(token_id, found.chosen), "top": [one(*each) for each in found.top]}


def _plain(value: Any) -> Any:
    """What a page has sent, as the stages take it: bytes, ids as a list, null as None."""
    if isinstance(value, memoryview):
        return bytes(value) if value.itemsize == 1 else value.tolist()
    if value is jsnull:
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


@dataclass(slots=True)
class _Model:
    """What `load` made; the device is replaced when it fails."""

    manifest: Manifest
    artifacts: Artifacts
    tokenizer: Tokenizer
    template: HasRender
    device: _Device
    session: Session
