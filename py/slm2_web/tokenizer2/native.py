"""The kernel outside a browser: worker/wasm/tokenizer.wasm run by PyPI `wasmtime`.

For the command line and for the tests of the kernel: the same module that the browser runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import wasmtime

from slm2_web import shipped
from slm2_web.tokenizer2.kernel import Kernel, KernelRefused, KernelTokenizer, Status

_PAGE_BYTES = 1 << 16
_ALIGNMENT = 64
_SCRATCH_BYTES = 1 << 20


@lru_cache(maxsize=2)
def kernel_module(*, has_fuel: bool = False) -> tuple[wasmtime.Engine, wasmtime.Module]:
    """The compiled module and its engine. With `has_fuel`, stores must be given fuel: a bound for tests."""
    config = wasmtime.Config()
    config.consume_fuel = has_fuel
    engine = wasmtime.Engine(config)
    return engine, wasmtime.Module(engine, shipped.read("wasm", "tokenizer.wasm"))


class WasmtimeKernel:
    """A `Kernel` over one tokenizer.slm2tok."""

    def __init__(self, data: bytes | memoryview) -> None:
        engine, module = kernel_module()
        self._store = wasmtime.Store(engine)
        self._memory = wasmtime.Memory(self._store, wasmtime.MemoryType(wasmtime.Limits(1, None)))
        self._exports = wasmtime.Instance(self._store, module, [self._memory]).exports(self._store)
        self._file = _ALIGNMENT
        self._file_bytes = len(data)
        self._work = _aligned(self._file + len(data))
        self._reserve(self._work)
        self._memory.write(self._store, bytes(data), self._file)

    def encode(self, text: bytes, spans: array[int]) -> list[int]:
        """See Kernel."""
        out_cap = self._call("tok_out_cap", len(text)) & 0xFFFFFFFF
        bound = self._call("tok_scratch_bytes", len(text)) & 0xFFFFFFFF
        for scratch_bytes in _scratch_sizes(bound):
            text_at, spans_at, out, scratch = self._place(
                len(text), 4 * len(spans), 4 * out_cap, scratch_bytes
            )
            self._memory.write(self._store, text, text_at)
            self._memory.write(self._store, spans.tobytes(), spans_at)
            text_and_spans = (text_at, len(text), spans_at, len(spans) // 3)
            count = self._call_with_file("tok_encode", *text_and_spans, out, out_cap, scratch, scratch_bytes)
            if count != Status.SCRATCH_TOO_SMALL:
                break
        if count < 0:
            raise KernelRefused(count, self._read_u32(out, 1)[0] if count in _WITH_OFFSET else 0)
        return self._read_u32(out, count)

    def split(self, text: bytes) -> list[int]:
        """The offsets at which the pieces of `text` end: no normalization, no added tokens.

        Raises: KernelRefused.
        """
        cap = len(text)
        text_at, out, scratch = self._place(len(text), 4 * cap, _SCRATCH_BYTES)
        self._memory.write(self._store, text, text_at)
        count = self._call_with_file("tok_split", text_at, len(text), out, cap, scratch, _SCRATCH_BYTES)
        if count < 0:
            raise KernelRefused(count)
        return self._read_u32(out, count)

    def normalize(self, text: bytes) -> bytes:
        """`text` as the file's normalizer makes it.

        Raises: KernelRefused.
        """
        cap, scratch_bytes = 3 * len(text), self._call("tok_scratch_bytes", len(text))
        text_at, out, scratch = self._place(len(text), cap, scratch_bytes)
        self._memory.write(self._store, text, text_at)
        count = self._call_with_file("tok_normalize", text_at, len(text), out, cap, scratch, scratch_bytes)
        if count < 0:
            raise KernelRefused(count)
        return bytes(self._memory.read(self._store, out, out + count))

    def _place(self, *sizes: int) -> list[int]:
        """Where areas of these sizes lie, one after the other behind the file; the memory reaches so far."""
        places = []
        at = self._work
        for size in sizes:
            places.append(at)
            at = _aligned(at + size)
        self._reserve(at)
        return places

    def _reserve(self, end: int) -> None:
        missing = end - self._memory.data_len(self._store)
        if missing > 0:
            self._memory.grow(self._store, -(-missing // _PAGE_BYTES))

    def _call(self, name: str, *arguments: int) -> int:
        function: Any = self._exports[name]
        return int(function(self._store, *arguments))

    def _call_with_file(self, name: str, *arguments: int) -> int:
        return self._call(name, self._file, self._file_bytes, *arguments)

    def _read_u32(self, start: int, count: int) -> list[int]:
        return memoryview(self._memory.read(self._store, start, start + 4 * count)).cast("I").tolist()


_WITH_OFFSET = (Status.NOT_UTF8, Status.NO_TOKEN_FOR)


def _scratch_sizes(bound: int) -> Iterator[int]:
    """The sizes of scratch to try, where `bound` is always enough.

    The first is for nearly every text; the second, a third of the bound, for any whose size NFC leaves alone.
    """
    if bound > _SCRATCH_BYTES:
        yield _SCRATCH_BYTES
    if bound > 3 * _SCRATCH_BYTES:
        yield -(-bound // 3)
    yield bound


def _aligned(at: int) -> int:
    return at + -at % _ALIGNMENT


def native_tokenizer(data: bytes | memoryview) -> KernelTokenizer:
    """The tokenizer in `data`, which encodes by the kernel.

    Raises: FormatError `format.tokenizer_file`.
    """

    def make_kernel() -> Kernel:
        return WasmtimeKernel(data)

    return KernelTokenizer.with_kernel(data, make_kernel)
