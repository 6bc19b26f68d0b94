"""The wasm kernels on wasmtime against the reference, bit for bit, in any number of threads and chunks."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from feeding import feed
from slm2_web.compile.pack import pack_gguf
from slm2_web.errors import DeviceError
from slm2_web.forward2 import wasm
from slm2_web.forward2.executor import digest_of
from slm2_web.forward2.kernels import KERNELS
from slm2_web.forward2.native_wasm import NativeWasmBackend, executor_on, native_wasm_executor
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.forward2.wasm import WasmExecutor
from slm2_web.packed import PackedModel
from tiny_gguf import make_tiny_gguf

GREEDY = json.loads((Path(__file__).parents[1] / "vectors" / "smollm2_greedy.json").read_text())
# 0 is one thread on plain memory.
THREADS = (0, 1, 2, 3)


def make(model: PackedModel, n_threads: int, max_seq_len: int = 96) -> WasmExecutor:
    """A tested executor."""
    return asyncio.run(native_wasm_executor(model, n_threads=n_threads, max_seq_len=max_seq_len))


def test_numbers_name_every_kernel() -> None:
    """program.h's enumeration is the table's, name for name."""
    source = (Path(__file__).parents[3] / "worker" / "wasm" / "program.h").read_text()
    enumeration = source[source.index("enum {") + 6 : source.index("};")]
    names = [name.strip().lower() for name in enumeration.split(",") if name.strip()]
    assert names == list(wasm.KERNEL_NUMBERS)
    assert all(len(k.constants) <= wasm.MAX_CONSTANTS for k in KERNELS.values())


@pytest.mark.parametrize("block", ["q4_0", "q4_1", "q8_0"])
def test_tiny_models_have_the_references_bits(block: str, tmp_path: Path) -> None:
    made = make_tiny_gguf(tmp_path / "tiny.gguf", seed=7, block=block)
    pack_gguf(made.path, tmp_path / "packed", made.spec)
    model = PackedModel.open(tmp_path / "packed")
    ids = [(13 * i) % 250 + 3 for i in range(75)]
    expected = feed(ReferenceExecutor(model, max_seq_len=96, max_chunk_tokens=75), ids, 75)
    for n_threads in THREADS:
        executor = make(model, n_threads)
        for chunk in (1, 7, 32):
            executor.truncate(0)
            assert feed(executor, ids, chunk).tobytes() == expected.tobytes(), (n_threads, chunk)


@pytest.mark.parametrize("n_threads", [0, 2])
def test_sha256_is_hashlibs(n_threads: int) -> None:
    """Around the ends of its blocks of 64 bytes, and of the size of logits."""
    backend = NativeWasmBackend(np.zeros(64, np.uint8), n_threads)
    out, start = backend.reserve(32), backend.reserve(1 << 20)
    stack = backend.reserve(wasm.STACK_BYTES) + wasm.STACK_BYTES
    store, exports = backend.instances[0]
    exports["__stack_pointer"].set_value(store, stack)
    data = np.random.default_rng(3).bytes(1 << 20)
    backend.write(start, data)
    for size in (*range(260), 4 * 49_152, 4 * 151_936, 1 << 20):
        exports["forward_digest"](store, start, size, out)
        assert backend.read(out, 32).tobytes() == hashlib.sha256(data[:size]).digest(), size


def test_digests_are_of_the_logits_that_are_given(packed_tiny: Path) -> None:
    """Of the last ones the kernel makes it; of others, and when a thread was lost meanwhile, Python."""
    model = PackedModel.open(packed_tiny)
    for n_threads in THREADS:
        backend = NativeWasmBackend(model.weights, n_threads)
        executor = asyncio.run(executor_on(backend, model, max_seq_len=96))
        first = feed(executor, [5, 6, 7], 3)
        assert executor.digest(first) == digest_of(first)
        second = feed(executor, [8], 1)
        assert executor.digest(first) == digest_of(first) != digest_of(second)
        assert executor.digest(second) == digest_of(second)

        backend.logits_bytes = 4
        made_by_the_kernel = hashlib.sha256(second.tobytes()[:4]).hexdigest()
        assert executor.digest(second) == made_by_the_kernel

        def lost() -> bytes:
            raise DeviceError("device.worker", "as asked")

        backend.digest = lost  # type: ignore[method-assign]
        assert executor.digest(second) == digest_of(second)


def test_smollm2_has_the_references_bits(packed_smollm2: Path) -> None:
    model = PackedModel.open(packed_smollm2)
    ids = GREEDY["prompt_ids"]
    reference = ReferenceExecutor(model, max_seq_len=96, max_chunk_tokens=37)
    expected = feed(reference, ids, 37)
    executors = [make(model, n) for n in (0, 2)]
    for executor in executors:
        for chunk in (32, 7):
            executor.truncate(0)
            assert feed(executor, ids, chunk).tobytes() == expected.tobytes()
    for token in GREEDY["greedy_new_ids"][:4]:
        expected = feed(reference, [token], 1)
        for executor in executors:
            assert feed(executor, [token], 1).tobytes() == expected.tobytes()


def test_many_steps_in_step(packed_tiny: Path) -> None:
    """64 decode steps, each fed with the likeliest token of the one before."""
    model = PackedModel.open(packed_tiny)
    reference, executor = ReferenceExecutor(model, max_seq_len=96), make(model, 3)
    token = 5
    for _ in range(64):
        expected, found = feed(reference, [token], 1), feed(executor, [token], 1)
        assert found.tobytes() == expected.tobytes()
        token = int(np.argmax(expected))


def test_extreme_weights_have_the_references_bits(tmp_path: Path) -> None:
    """Scales that are zero, subnormal and huge, one row of zeros: as a GGUF may hold them."""
    made = make_tiny_gguf(tmp_path / "tiny.gguf", seed=3, block="q4_1")
    pack_gguf(made.path, tmp_path / "packed", made.spec)
    model = PackedModel.open(tmp_path / "packed")
    weights = model.weights.copy()
    for name, entry in model.manifest.tensors.items():
        if "scales" not in entry.planes or name == "embed":
            continue
        start = entry.planes["scales"]
        halves = weights[start : start + entry.plane_bytes("scales")].view(np.uint16)
        halves[0::17] = 0x0000
        halves[1::23] = 0x0001  # the smallest subnormal
        halves[2::29] = 0x8200  # a negative subnormal
        halves[3::31] = 0x5000  # 32
        halves[4::997] = 0x7C00  # infinity, which the packer refuses: 65536 to every executor
    changed = PackedModel(model.manifest, model.tokenizer_bytes, weights)
    ids = [(7 * i) % 250 + 3 for i in range(40)]
    expected = feed(ReferenceExecutor(changed, max_seq_len=64, max_chunk_tokens=40), ids, 40)
    assert np.isfinite(expected).all()
    for n_threads in (0, 2):
        assert feed(make(changed, n_threads), ids, 32).tobytes() == expected.tobytes()


def test_self_test_finds_a_wrong_kernel(packed_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that runs as another kernel is noticed before the executor is used."""
    numbers = {**wasm.KERNEL_NUMBERS, "bias_rope_kv": wasm.KERNEL_NUMBERS["rope_kv"]}
    monkeypatch.setattr(wasm, "KERNEL_NUMBERS", numbers)
    with pytest.raises(DeviceError) as caught:
        make(PackedModel.open(packed_tiny), 1)
    assert caught.value.code == "device.self_test"
    assert caught.value.detail["wrong"] == ["bias_rope_kv"]
