"""The pool of wasm threads as a `WasmBackend` (forward2/wasm.py): worker/wasm/pool.js does the running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import js
import numpy as np
from numpy.typing import NDArray
from pyodide.ffi import JsException, to_js

from slm2_web.bridge.convert import own_error, to_f32, to_object
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.wasm import ALIGNMENT_BYTES, Areas

# More threads than this gain nothing: a pass meets at every operation.
MAX_THREADS = 8
# Seconds that messages may wait while pass follows pass: each wait costs half a millisecond.
WAIT_AFTER_S = 0.05


def wanted_threads() -> int:
    """Threads for a pass: one for each core that the browser admits to; in WebKit for each second one.

    WebKit does not tell the number: it says 4 on a machine with two cores. An operation waits for the parts
    that threads have in hand, and one without a core keeps its own: one too many costs more than too few.
    """
    told = int(getattr(js.navigator, "hardwareConcurrency", 1) or 1)
    agent = str(js.navigator.userAgent)
    if "AppleWebKit/" in agent and "Chrome/" not in agent:
        told //= 2
    return max(1, min(told, MAX_THREADS))


class PoolBackend:
    """A `WasmBackend` on a Pool (worker/wasm/pool.js)."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._waited = time.perf_counter()
        # Without shared memory no word tells of a cancel.
        self._wait_after_s = WAIT_AFTER_S if pool.isShared else 0.0
        self._run = pool.run  # looked up once: each look at JavaScript takes microseconds
        self.n_threads: int = pool.nThreads
        plural = "threads" if self.n_threads > 1 else "thread"
        self.adapter = f"SIMD, {self.n_threads} {plural}"

    def reserve(self, size: int) -> int:
        """See WasmBackend."""
        try:
            address: int = self._pool.reserve(size, ALIGNMENT_BYTES)
        except JsException as error:
            raise own_error(error, "device.worker") from None
        return address

    def write(self, address: int, data: bytes) -> None:
        """See WasmBackend."""
        self._pool.write(address, to_js(data))

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """See WasmBackend."""
        result = np.empty(size, np.uint8)
        self._pool.read(address, size).assign_to(result)
        return result

    async def set_up(self, areas: Areas) -> None:
        """See WasmBackend."""
        try:
            await self._pool.setUp(to_object(areas.as_dict()))
        except JsException as error:
            raise own_error(error, "device.worker") from None

    async def run(self, ops: int, n_ops: int, step: Sequence[int], ids: Sequence[int], size: int) -> F32:
        """See WasmBackend. The worker hears nothing meanwhile: messages come in at waits (soon.js)."""
        if time.perf_counter() - self._waited >= self._wait_after_s:
            await asyncio.sleep(0)
            self._waited = time.perf_counter()
        try:
            return to_f32(self._run(ops, n_ops, to_js(step), to_js(ids), size))
        except JsException as error:
            raise own_error(error, "device.worker") from None

    def digest(self) -> bytes:
        """See WasmBackend."""
        try:
            made: bytes = self._pool.digest().to_bytes()
        except JsException as error:
            if not hasattr(error, "code"):
                raise
            raise own_error(error, "device.worker") from None
        return made

    @property
    def kernel_ms(self) -> float:
        """See WasmBackend."""
        ms: float = self._pool.kernelMs
        return ms

    def dispose(self) -> None:
        """Stop the threads."""
        self._pool.dispose()
