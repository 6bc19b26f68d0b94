"""The WGSL kernels on wgpu-native (Naga, lavapipe) against the reference, bit for bit."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from feeding import feed
from slm2_web.compile.pack import pack_gguf
from slm2_web.errors import DeviceError
from slm2_web.forward2 import selftest
from slm2_web.forward2.exactmath import ATTENTION_BLOCK
from slm2_web.forward2.kernels import SHADERS, shader_source
from slm2_web.forward2.native import NativeBackend, native_executor
from slm2_web.forward2.plan import Extent, build_plan
from slm2_web.forward2.reference import REFERENCE, ReferenceExecutor, Step
from slm2_web.packed import PackedModel
from tiny_gguf import make_tiny_gguf

GREEDY = json.loads((Path(__file__).parents[1] / "vectors" / "smollm2_greedy.json").read_text())


def test_recorded_answers_are_the_references() -> None:
    layout = selftest.lay_out()
    assert selftest.digests(layout, selftest.reference_outputs(layout)) == selftest.known_answers()
    assert {case.shader for case in selftest.cases()} == set(SHADERS)


def test_self_test_passes() -> None:
    asyncio.run(selftest.self_test(NativeBackend()))


@pytest.mark.parametrize(
    ("shader", "right", "wrong"),
    [
        ("matmul_q4_1", "sep(w.offset * x.offset)", "sep(w.offset * x.scale)"),
        ("matmul_q8_0", "group.x * TILE_ROWS + index;", "group.x * TILE_ROWS + index + 1u;"),
        ("matmul_tile_q4_0", "lanes[place + 24u] = acc1.y;", "lanes[place + 24u] = acc0.y;"),
        ("matmul_tile_q4_1", "* TILE_ROWS + index]", "* TILE_ROWS + (index ^ 1u)]"),
        ("rope_kv", "sep4(straight - crossed)", "sep4(straight + crossed)"),
        ("rmsnorm_quantize", "INV_COLS) + EPS", "INV_COLS)"),
        ("attn_scores", "score = max(score, eighths[i]);", "score = max(score, all[i]);"),
        ("attn_values", "min(BLOCK, seen - start)", "BLOCK"),
        ("attn_quantize", "/ BLOCK + 1u", "/ BLOCK"),
        ("silu_mul_quantize", "xq[at] = word_of(q);", "xq[at + 1u] = word_of(q);"),
    ],
)
def test_self_test_finds_a_wrong_kernel(
    shader: str, right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slm2_web.forward2 import gpu

    def broken(name: str) -> str:
        source = shader_source(name)
        assert name != shader or right in source
        return source.replace(right, wrong) if name == shader else source

    monkeypatch.setattr(gpu, "shader_source", broken)
    with pytest.raises(DeviceError) as caught:
        asyncio.run(selftest.self_test(NativeBackend()))
    assert caught.value.code == "device.self_test"
    shaders = {case.name: case.shader for case in selftest.cases()}
    assert {shaders[name] for name in caught.value.detail["wrong"]} == {shader}


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


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_attention_over_many_blocks_has_the_references_bits(head_dim: int) -> None:
    """More blocks than a workgroup has invocations; tokens on both sides of a block's edge."""
    rng = np.random.default_rng(head_dim)
    step = Step(n_tokens=3, pos=34 * ATTENTION_BLOCK - 2)
    n_heads, n_kv, max_seq = 3, 1, 35 * ATTENTION_BLOCK + 7
    heads = {"N_HEADS": n_heads, "N_KV_HEADS": n_kv, "HEAD_DIM": head_dim, "MAX_SEQ": max_seq}
    rows, blocks = step.n_tokens * n_heads, 36

    def ints(size: int) -> NDArray[np.uint8]:
        return rng.integers(-127, 128, size).astype(np.int8).view(np.uint8)

    def floats(size: int) -> NDArray[np.uint8]:
        return rng.uniform(0.01, 0.03, size).astype(np.float32).view(np.uint8)

    def blank(size: int) -> NDArray[np.uint8]:
        return np.full(size, selftest.GUARD, np.uint8)

    cache = 2 * max_seq * n_kv * head_dim
    kvq, kvs = ints(cache), floats(cache // 32)
    q, scale = ints(rows * head_dim), floats(rows * head_dim // 32)
    by_block = (Extent("seq_len", 1, ATTENTION_BLOCK), Extent("one", n_heads), Extent("n_tokens"))
    scores, peaks = blank(rows * max_seq * 4), blank(rows * blocks * 4)
    masses, values = blank(rows * blocks * 4), blank(rows * blocks * head_dim * 4)
    given: tuple[NDArray[np.uint8], ...] = (q, scale, kvq, kvs, scores, peaks)
    # Each kernel is given what the reference's one before it leaves.
    first = selftest.Case("scores", "attn_scores", {**heads, "SCALE": 0.125}, given, by_block)
    places = [array.copy() for array in given]
    REFERENCE["attn_scores"](step, first.constants, *places)
    given = (*places[4:], kvq, kvs, masses, values)
    second = selftest.Case("values", "attn_values", heads, given, by_block)
    places = [array.copy() for array in given]
    REFERENCE["attn_values"](step, heads, *places)
    third = selftest.Case(
        "quantize",
        "attn_quantize",
        {name: value for name, value in heads.items() if name != "N_KV_HEADS"},
        (*places[4:], blank(rows * head_dim), blank(rows * head_dim // 4)),
        (Extent("one", n_heads), Extent("n_tokens"), Extent("one")),
    )
    layout = selftest.lay_out((first, second, third), step)
    found = asyncio.run(selftest.outputs_of(NativeBackend(), layout))
    expected = selftest.reference_outputs(layout)
    assert selftest.digests(layout, found) == selftest.digests(layout, expected)
    start, end = layout.ranges["scores"]
    assert len(np.unique(expected[start:end].view(np.uint32))) > 1000


def test_extreme_values_have_the_same_bits() -> None:
    """Each case of the self-test with its float inputs scaled to extremes: zero, tiny, huge."""
    # Where a kernel binds its first floats of any size.
    floats = {"rmsnorm_quantize": 1, "silu_mul_quantize": 1, "attn_quantize": 2} | dict.fromkeys(
        ("rope_kv", "bias_rope_kv", "norm_rope_kv"), 1
    )
    for factor in (0.0, 2.0**-60, 2.0**-35, 2.0**30):
        layout = selftest.lay_out()
        inputs = layout.inputs.copy()
        for dispatch in layout.dispatches:
            if place := floats.get(dispatch.kernel):
                b = dispatch.bindings[place - 1]
                inputs[b.offset : b.offset + b.size].view(np.float32)[:] *= np.float32(factor)
        scaled = dataclasses.replace(layout, inputs=inputs)
        expected = selftest.reference_outputs(scaled)
        backend = NativeBackend()
        found = asyncio.run(selftest.outputs_of(backend, scaled))
        assert selftest.digests(scaled, found) == selftest.digests(scaled, expected), factor
