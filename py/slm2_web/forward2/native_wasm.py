"""The WASM backend outside a browser: PyPI `wasmtime`, with real threads on one shared memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slm2_web import shipped
from slm2_web.errors import DeviceError
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.wasm import (
    ALIGNMENT_BYTES,
    DEFAULT_CHUNK_TOKENS,
    DIGEST_BYTES,
    MAX_BYTES,
    PAGE_BYTES,
    WEIGHTS_BASE,
    Areas,
    WasmExecutor,
)
from slm2_web.packed import PackedModel


class NativeWasmBackend:
    """A `WasmBackend` on wasmtime: `n_threads` threads on a shared memory, or one on a plain one (0).

    Raises: DeviceError `device.no_wasm` when the package is missing.
    """

    def __init__(self, weights: Any, n_threads: int) -> None:
        try:
            import wasmtime
        except ImportError as error:
            message = f"the package `wasmtime` is not installed: {error}"
            raise DeviceError("device.no_wasm", message) from None
        shared = n_threads > 0
        self.n_threads = max(n_threads, 1)
        self.adapter = f"wasmtime, {self.n_threads} threads" if shared else "wasmtime, plain memory"
        config = wasmtime.Config()
        config.wasm_threads = True
        config.shared_memory = True
        engine = wasmtime.Engine(config)
        name = "forward.shared.wasm" if shared else "forward.wasm"
        module = wasmtime.Module(engine, shipped.read("wasm", name))
        pages = -(-(WEIGHTS_BASE + weights.size) // PAGE_BYTES)
        kind = wasmtime.MemoryType(wasmtime.Limits(pages, MAX_BYTES // PAGE_BYTES), shared=shared)
        stores = [wasmtime.Store(engine) for _ in range(self.n_threads)]
        self._memory: Any = _shared_memory(engine, kind) if shared else wasmtime.Memory(stores[0], kind)
        self._store = stores[0]
        self._shared = shared
        self.instances: list[tuple[Any, Any]] = [
            (store, wasmtime.Instance(store, module, [self._memory]).exports(store)) for store in stores
        ]
        self._pool = ThreadPoolExecutor(self.n_threads)
        self.kernel_ms = 0.0
        self.logits_bytes = 0
        self._end: int = WEIGHTS_BASE + weights.size
        self.write(WEIGHTS_BASE, weights)

    def _bytes(self) -> Any:
        """The memory as u8[size]."""
        size = self._memory.data_len() if self._shared else self._memory.data_len(self._store)
        start = self._memory.data_ptr() if self._shared else self._memory.data_ptr(self._store)
        return np.ctypeslib.as_array(ctypes.cast(start, ctypes.POINTER(ctypes.c_ubyte)), (size,))

    def reserve(self, size: int) -> int:
        """See WasmBackend."""
        address = -(-self._end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._end = address + size
        missing = -(-self._end // PAGE_BYTES) - len(self._bytes()) // PAGE_BYTES
        if missing > 0:
            try:
                if self._shared:
                    self._memory.grow(missing)
                else:
                    self._memory.grow(self._store, missing)
            except Exception as error:
                raise DeviceError(
                    "device.out_of_memory", f"wasm memory of {self._end} bytes: {error}"
                ) from None
        return address

    def write(self, address: int, data: Any) -> None:
        """See WasmBackend."""
        source = np.frombuffer(data, np.uint8)
        self._bytes()[address : address + source.size] = source

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """See WasmBackend."""
        copy: NDArray[np.uint8] = self._bytes()[address : address + size].copy()
        return copy

    async def set_up(self, areas: Areas) -> None:
        """See WasmBackend."""
        self._areas = areas
        for thread, (store, exports) in enumerate(self.instances):
            exports["__stack_pointer"].set_value(store, areas.stacks + (thread + 1) * areas.stack_bytes)

    async def run(self, ops: int, n_ops: int, step: Sequence[int], ids: Sequence[int], size: int) -> F32:
        """See WasmBackend."""
        areas = self._areas
        self.write(areas.step, np.array(step, np.uint32))
        self.write(areas.ids, np.array(ids, np.uint32))
        self.write(areas.turns, bytes(areas.turns_bytes))

        def work(thread: int) -> None:
            store, exports = self.instances[thread]
            where = (ops, n_ops, areas.step, areas.turns, areas.scratch, areas.scratch_bytes, areas.stop)
            try:
                if not exports["forward_run"](store, *where, thread, self.n_threads):
                    raise DeviceError("device.worker", "a thread did not do its part of a pass")
            except Exception:
                self.write(areas.stop, b"\1\0\0\0")
                raise

        start = time.perf_counter()
        list(self._pool.map(work, range(self.n_threads)))
        self.kernel_ms = (time.perf_counter() - start) * 1e3
        self.logits_bytes = size
        logits: F32 = self._bytes()[areas.logits : areas.logits + size].view(np.float32).copy()
        return logits

    def digest(self) -> bytes:
        """See WasmBackend."""
        areas, (store, exports) = self._areas, self.instances[0]
        exports["forward_digest"](store, areas.logits, self.logits_bytes, areas.digest)
        return self.read(areas.digest, DIGEST_BYTES).tobytes()


def _shared_memory(engine: Any, kind: Any) -> Any:
    """A SharedMemory that can be imported: wasmtime 50's wraps its pointer once too often when it is."""
    import wasmtime
    from wasmtime import _ffi

    class SharedMemory(wasmtime.SharedMemory):
        def _as_extern(self) -> Any:
            union = _ffi.wasmtime_extern_union(sharedmemory=self.ptr())
            return _ffi.wasmtime_extern_t(_ffi.WASMTIME_EXTERN_SHAREDMEMORY, union)

    return SharedMemory(engine, kind)


async def native_wasm_executor(
    model: PackedModel,
    *,
    n_threads: int = 2,
    max_seq_len: int | None = None,
    max_chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> WasmExecutor:
    """A WasmExecutor on wasmtime; `n_threads` 0 is one thread on plain memory. Raises: DeviceError."""
    backend = NativeWasmBackend(model.weights, n_threads)
    return await executor_on(backend, model, max_seq_len=max_seq_len, max_chunk_tokens=max_chunk_tokens)


async def executor_on(
    backend: NativeWasmBackend,
    model: PackedModel,
    *,
    max_seq_len: int | None = None,
    max_chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> WasmExecutor:
    """A WasmExecutor on a backend that holds the model's weights. Raises: DeviceError."""
    return await WasmExecutor.create(
        backend,
        model.manifest,
        model.plane("rope.inv_freq", "values").reshape(-1),
        max_seq_len=max_seq_len,
        max_chunk_tokens=max_chunk_tokens,
    )
