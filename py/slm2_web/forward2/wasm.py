"""The WASM executor: a plan as operations in the memory of worker/wasm/forward.c, for any number of threads.

There are two backends: `bridge/wasm.py` (the browser's, with a pool of workers) and `native_wasm.py`
(wasmtime, outside a browser). The weights lie in the module's own memory from `WEIGHTS_BASE` on, where the
loader put them: nothing is copied. Behind them Python lays out the plan's buffers and its operations.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import DeviceError
from slm2_web.forward2 import exactmath
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.executor import PlanExecutor
from slm2_web.forward2.kernels import KERNELS
from slm2_web.forward2.plan import Dispatch, Plan, build_plan
from slm2_web.forward2.selftest import STEP as TEST_STEP
from slm2_web.forward2.selftest import Layout, check_outputs, lay_out
from slm2_web.manifest import Manifest

PAGE_BYTES = 64 << 10
# What the shared modules are linked for (compile/wasm.py).
MAX_BYTES = 2 << 30
# Below it lie the module's own data.
WEIGHTS_BASE = PAGE_BYTES
# Rows of 32-bit words that make an operation: program.h's Op.
OP_WORDS = 16
MAX_CONSTANTS, MAX_BINDINGS = 8, 7
LINE_BYTES = 64
WORD_BYTES = 4
DIGEST_BYTES = 32
ALIGNMENT_BYTES = 64
STACK_BYTES = 16 << 10
# Tokens that one call takes: a cancel waits for no more than these.
DEFAULT_CHUNK_TOKENS = 32

# program.h numbers the kernels in this order.
KERNEL_NUMBERS: Mapping[str, int] = {
    name: number
    for number, name in enumerate(
        (
            "embed_q4_0",
            "embed_q4_1",
            "embed_q8_0",
            "rmsnorm_quantize",
            "silu_mul_quantize",
            "matmul_q4_0",
            "matmul_q4_1",
            "matmul_q8_0",
            "rope_kv",
            "attn_scores",
            "attn_values",
            "attn_quantize",
            "bias_rope_kv",
            "norm_rope_kv",
        )
    )
}
assert KERNEL_NUMBERS.keys() == KERNELS.keys()


class WasmBackend(Protocol):
    """A memory with the weights in it, and threads that run forward.c on it."""

    @property
    def adapter(self) -> str:
        """What it runs on, for people."""

    @property
    def n_threads(self) -> int:
        """Threads that take part."""

    @property
    def kernel_ms(self) -> float:
        """Milliseconds that the last `run` spent in the kernels."""

    def reserve(self, size: int) -> int:
        """The address of `size` more bytes, zeroed. Raises: DeviceError `device.out_of_memory`."""

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes into the memory."""

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """A copy of bytes of the memory."""

    async def set_up(self, areas: Areas) -> None:
        """Told once, before the first run, where things lie."""

    async def run(self, ops: int, n_ops: int, step: Sequence[int], ids: Sequence[int], size: int) -> F32:
        """Write the step and the ids, run `n_ops` operations from `ops` on, read `size` bytes of logits."""

    def digest(self) -> bytes:
        """The sha256 of the last run's logits. Raises: DeviceError `device.worker`."""


class Areas:
    """Addresses that a backend needs: of the step, the ids, the turns, the logits, and each thread's room."""

    def __init__(self, backend: WasmBackend, plan: Plan, test: Sequence[Dispatch]) -> None:
        n_ops = max(len(plan.decode), len(plan.prefill), len(test)) + len(plan.logits)
        self.turns_bytes = LINE_BYTES * (1 + backend.n_threads) * n_ops
        self.scratch_bytes = _scratch_bytes(
            (*plan.prefill, *test), max(plan.max_chunk_tokens, TEST_STEP.n_tokens)
        )
        self.stack_bytes = STACK_BYTES
        self.buffers = {name: backend.reserve(size) for name, size in plan.buffers.items()}
        self.step, self.ids, self.logits = (self.buffers[name] for name in ("step", "ids", "logits"))
        self.turns = backend.reserve(self.turns_bytes)
        self.stop = backend.reserve(WORD_BYTES)
        self.digest = backend.reserve(DIGEST_BYTES)
        self.scratch = backend.reserve(self.scratch_bytes * backend.n_threads)
        self.stacks = backend.reserve(self.stack_bytes * backend.n_threads)
        starts = {s.buffer: WEIGHTS_BASE + s.start for s in plan.segments}
        self.addresses = {**self.buffers, **starts}

    def as_dict(self) -> dict[str, int]:
        """What pool.js needs to know."""
        names = (
            "turns",
            "turns_bytes",
            "step",
            "ids",
            "logits",
            "scratch",
            "scratch_bytes",
            "stop",
            "stacks",
            "stack_bytes",
            "digest",
        )
        return {name: getattr(self, name) for name in names}


def _scratch_bytes(dispatches: Sequence[Dispatch], tokens: int) -> int:
    """Room that one thread needs to widen the activations of the widest matmul: matmul.h's Wide."""
    cols = max(int(d.constants["COLS"]) for d in dispatches if d.kernel.startswith("matmul"))
    quads = -(-cols // (4 * exactmath.GROUP))
    return tokens * quads * (4 * exactmath.GROUP * 2 + 3 * 4 * 4)


def encode_ops(dispatches: Sequence[Dispatch], addresses: Mapping[str, int]) -> bytes:
    """The dispatches as program.h's Ops."""
    return b"".join(_encode_op(d, addresses) for d in dispatches)


def _encode_op(dispatch: Dispatch, addresses: Mapping[str, int]) -> bytes:
    names = KERNELS[dispatch.kernel].constants
    # A constant is an integer or, where the kernel table's shader says so, a float; a kernel takes its bits.
    constants = [_word(dispatch.constants[name]) for name in names]
    buffers = [addresses[b.buffer] + b.offset for b in dispatch.bindings]
    words = [
        KERNEL_NUMBERS[dispatch.kernel],
        *constants,
        *[0] * (MAX_CONSTANTS - len(constants)),
        *buffers,
        *[0] * (MAX_BINDINGS - len(buffers)),
    ]
    return struct.pack(f"<{OP_WORDS}I", *words)


def _word(value: float) -> int:
    if isinstance(value, int):
        return value
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)


class WasmExecutor(PlanExecutor):
    """A plan in wasm memory (forward2/executor.py)."""

    name = "wasm"

    def __init__(self, backend: WasmBackend, plan: Plan, programs: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(plan)
        self._backend = backend
        self._programs = programs
        self._logits: F32 | None = None
        self.adapter = backend.adapter

    @classmethod
    async def create(
        cls,
        backend: WasmBackend,
        manifest: Manifest,
        inv_freq: F32,
        *,
        max_seq_len: int | None = None,
        max_chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    ) -> WasmExecutor:
        """Lay out the plan behind the weights, start the threads, test the kernels.

        Raises: DeviceError `device.out_of_memory`, `device.self_test`; FormatError `format.unsupported`.
        """
        plan = build_plan(manifest, max_seq_len=max_seq_len, max_chunk_tokens=max_chunk_tokens)
        test = lay_out()
        areas = Areas(backend, plan, test.dispatches)
        backend.write(areas.buffers["rope"], exactmath.rope_table(inv_freq, plan.max_seq_len).tobytes())
        programs = {}
        for body in ("decode", "prefill"):
            dispatches = getattr(plan, body)
            ops = encode_ops((*dispatches, *plan.logits), areas.addresses)
            programs[body] = (_place(backend, ops), len(dispatches))
        await backend.set_up(areas)
        await _self_test(backend, test)
        return cls(backend, plan, programs)

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> F32 | None:
        """See forward2/executor.py."""
        self.check_step(ids)
        address, n_ops = self._programs["decode" if len(ids) == 1 else "prefill"]
        step = (0, len(ids), self.pos, self.pos + len(ids))
        if want_logits:
            n_ops += len(self.plan.logits)
        size = self.plan.vocab_size * 4 if want_logits else 0
        self._logits = None
        logits = await self._backend.run(address, n_ops, step, ids, size)
        self.kernel_ms = self._backend.kernel_ms
        self.pos += len(ids)
        self._logits = logits if want_logits else None
        return self._logits

    def digest(self, logits: F32) -> str:
        """See forward2/executor.py. A thread makes it right after the pass, while the caller goes on."""
        if logits is not self._logits:
            return super().digest(logits)
        try:
            return self._backend.digest().hex()
        except DeviceError:
            # A thread was lost since, of which the next pass will tell. The logits are whole.
            return super().digest(logits)


def _place(backend: WasmBackend, data: bytes) -> int:
    """The address of a copy of `data`."""
    address = backend.reserve(len(data))
    backend.write(address, data)
    return address


async def _self_test(backend: WasmBackend, test: Layout) -> None:
    """Raises: DeviceError `device.self_test`."""
    addresses = {
        "test.in": _place(backend, test.inputs.tobytes()),
        "test.out": _place(backend, test.outputs.tobytes()),
    }
    ops = _place(backend, encode_ops(test.dispatches, addresses))
    step = (0, TEST_STEP.n_tokens, TEST_STEP.pos, TEST_STEP.seq_len)
    await backend.run(ops, len(test.dispatches), step, (), 0)
    check_outputs(test, backend.read(addresses["test.out"], test.outputs.size), backend.adapter)
