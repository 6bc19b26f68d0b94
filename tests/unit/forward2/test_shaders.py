"""The WGSL kernels on wgpu-native (Naga, lavapipe) against the reference, bit for bit."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from feeding import feed
from slm2_web.compile.pack import pack_gguf
from slm2_web.errors import DeviceError
from slm2_web.forward2 import selftest
from slm2_web.forward2.kernels import KERNELS, shader_source
from slm2_web.forward2.native import NativeBackend, native_executor
from slm2_web.forward2.plan import build_plan
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel
from tiny_gguf import make_tiny_gguf

GREEDY = json.loads((Path(__file__).parents[1] / "vectors" / "smollm2_greedy.json").read_text())


def test_recorded_answers_are_the_references() -> None:
    layout = selftest.lay_out()
    assert selftest.digests(layout, selftest.reference_outputs(layout)) == selftest.known_answers()
    assert {case.kernel for case in selftest.cases()} == set(KERNELS)


def test_self_test_passes() -> None:
    asyncio.run(selftest.self_test(NativeBackend()))


@pytest.mark.parametrize(
    ("kernel", "right", "wrong"),
    [
        ("matmul_q4_1", "sep(m * x_meta.y)", "sep(m * x_meta.x)"),
        ("rmsnorm_quantize", "INV_COLS) + EPS", "INV_COLS)"),
        ("attn_softmax", "total = sep(total + sums[b])", "total = max(total, sums[b])"),
        ("attn_scores", "j > step.pos + t", "j > step.pos + t + 1u"),
        ("quantize", "xq[8u * at + i] = word_of(q);", "xq[8u * at + i + 1u] = word_of(q);"),
    ],
)
def test_self_test_finds_a_wrong_kernel(
    kernel: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slm2_web.forward2 import gpu

    def broken(name: str) -> str:
        source = shader_source(name)
        assert name != kernel or right in source
        return source.replace(right, wrong) if name == kernel else source

    monkeypatch.setattr(gpu, "shader_source", broken)
    with pytest.raises(DeviceError) as caught:
        asyncio.run(selftest.self_test(NativeBackend()))
    assert caught.value.code == "device.self_test"
    assert {name.split(".")[0] for name in caught.value.detail["wrong"]} == {kernel}


@pytest.mark.parametrize("block", ["q4_0", "q4_1", "q8_0"])
def test_tiny_models_have_the_references_bits(block: str, tmp_path: Path) -> None:
    made = make_tiny_gguf(tmp_path / "tiny.gguf", seed=7, block=block)
    pack_gguf(made.path, tmp_path / "packed", made.spec)
    model = PackedModel.open(tmp_path / "packed")
    ids = [(13 * i) % 250 + 3 for i in range(75)]
    expected = feed(ReferenceExecutor(model, max_seq_len=96, max_chunk_tokens=75), ids, 75)
    for chunk in (1, 7, 32):
        gpu = asyncio.run(native_executor(model, max_seq_len=96, max_chunk_tokens=32))
        assert feed(gpu, ids, chunk).tobytes() == expected.tobytes(), chunk


def test_split_tensors_have_the_same_bits(packed_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slm2_web.forward2 import gpu

    model = PackedModel.open(packed_tiny)
    ids = list(range(3, 23))
    expected = feed(ReferenceExecutor(model, max_seq_len=64), ids, 20)
    small = lambda *a, **k: build_plan(*a, **k, max_binding_bytes=40_000)  # noqa: E731
    monkeypatch.setattr(gpu, "build_plan", small)
    executor = asyncio.run(native_executor(model, max_seq_len=64, max_chunk_tokens=8))
    assert len(executor.plan.segments) > 1
    assert feed(executor, ids, 8).tobytes() == expected.tobytes()


def test_smollm2_has_the_references_bits_in_any_chunks(packed_smollm2: Path) -> None:
    model = PackedModel.open(packed_smollm2)
    ids = GREEDY["prompt_ids"]
    reference = ReferenceExecutor(model, max_seq_len=64, max_chunk_tokens=37)
    expected = feed(reference, ids, 37)
    gpu = asyncio.run(native_executor(model, max_seq_len=64, max_chunk_tokens=32))
    for chunk in (32, 7):
        gpu.truncate(0)
        assert feed(gpu, ids, chunk).tobytes() == expected.tobytes(), chunk
    for token in GREEDY["greedy_new_ids"][:4]:
        assert feed(gpu, [token], 1).tobytes() == feed(reference, [token], 1).tobytes()


def test_extreme_values_have_the_same_bits() -> None:
    """Each case of the self-test with its float inputs scaled to extremes: zero, tiny, huge."""
    for factor in (0.0, 2.0**-60, 2.0**-35, 2.0**30):
        layout = selftest.lay_out()
        inputs = layout.inputs.copy()
        for dispatch in layout.dispatches:
            if dispatch.kernel in ("rmsnorm_quantize", "quantize", "silu_mul_quantize", "rope_kv"):
                b = dispatch.bindings[0]
                inputs[b.offset : b.offset + b.size].view(np.float32)[:] *= np.float32(factor)
        scaled = dataclasses.replace(layout, inputs=inputs)
        expected = selftest.reference_outputs(scaled)
        backend = NativeBackend()
        found = asyncio.run(selftest.outputs_of(backend, scaled))
        assert selftest.digests(scaled, found) == selftest.digests(scaled, expected), factor
