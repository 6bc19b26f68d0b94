"""The tokenizer's kernel as a `Kernel` (tokenizer2/kernel.py): worker/wasm/tokenizer.js does the running.

And the file that it works on, which stays where the loader put it, as a `Source` (container.py).
"""

from __future__ import annotations

from array import array
from typing import Any

from pyodide.ffi import JsException, to_js

from slm2_web.errors import DeviceError
from slm2_web.tokenizer2.kernel import KernelRefused


class JsSource:
    """A `Source` on a Uint8Array."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        size: int = self._data.byteLength
        return size

    def read(self, start: int, end: int) -> bytes:
        """See Source."""
        copy: bytes = self._data.subarray(start, end).to_bytes()
        return copy


class JsKernel:
    """A `Kernel` on a TokenizerKernel (worker/wasm/tokenizer.js)."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def encode(self, text: bytes, spans: array[int]) -> list[int]:
        """See Kernel.

        Raises: KernelRefused, DeviceError `device.out_of_memory`.
        """
        try:
            ids = self._kernel.encode(to_js(text), to_js(spans))
        except JsException as error:
            status = getattr(error, "status", None)
            if status is None:  # none of the kernel's: its memory did not grow
                full = f"no memory to encode {len(text)} bytes: {error.message}"
                raise DeviceError("device.out_of_memory", full, {"bytes": len(text)}) from None
            raise KernelRefused(int(status), int(error.offset)) from None
        result: list[int] = ids.to_memoryview().tolist()
        return result
