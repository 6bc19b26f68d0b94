"""The reference against slow loops, against a float64 network, and against itself in other chunks."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from float_llama import FloatLlama
from slm2_web.compile.pack import pack_gguf
from slm2_web.errors import DeviceError
from slm2_web.forward2 import exactmath as em
from slm2_web.forward2 import reference
from slm2_web.forward2.reference import ReferenceExecutor, Step, unpack_quants, unpack_scales
from slm2_web.packed import PackedModel
from tiny_gguf import make_tiny_gguf

F32 = NDArray[np.float32]
GREEDY = json.loads((Path(__file__).parents[1] / "vectors" / "smollm2_greedy.json").read_text())


@pytest.fixture(scope="module")
def smollm2(packed_smollm2: Path) -> PackedModel:
    return PackedModel.open(packed_smollm2)


@pytest.fixture(scope="module")
def tiny(packed_tiny: Path) -> PackedModel:
    return PackedModel.open(packed_tiny)


def feed(executor: ReferenceExecutor, ids: Sequence[int], cuts: Sequence[int] = ()) -> F32:
    """The logits after `ids`, forwarded in pieces that end at `cuts`."""
    bounds = [executor.pos, *[executor.pos + c for c in cuts], executor.pos + len(ids)]
    base, logits = executor.pos, None
    for start, end in itertools.pairwise(bounds):
        if end > start:
            piece = ids[start - base : end - base]
            logits = asyncio.run(executor.forward(piece, want_logits=end == bounds[-1]))
    assert logits is not None
    return logits


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
@pytest.mark.parametrize("add", [0, 1])
def test_matmul_is_its_definition(kind: str, add: int) -> None:
    """One float32 operation at a time, in the contract's order, with Python integers for the dot products."""
    rng = np.random.default_rng(3)
    rows, cols, tokens, stride, offset = 5, 352, 2, 9, 3
    groups = cols // em.GROUP
    quants = rng.integers(0, 256, rows * cols // (1 if kind == "q8_0" else 2), dtype=np.uint8)
    halves = rng.standard_normal(rows * groups * (2 if kind == "q4_1" else 1)).astype(np.float16)
    xq, meta = em.quantize(rng.standard_normal((tokens, cols)).astype(np.float32))
    y = rng.standard_normal(tokens * stride).astype(np.float32)
    expected = y.copy().reshape(tokens, stride)
    w = unpack_quants(kind, quants, rows, cols)
    d, m = unpack_scales(kind, halves.view(np.uint8), rows, cols)
    for t in range(tokens):
        for row in range(rows):
            total = np.float32(0)
            for lane in range(em.LANES):
                acc = np.float32(0)
                for g in range(lane, groups, em.LANES):
                    at = slice(g * em.GROUP, (g + 1) * em.GROUP)
                    dot = sum(int(a) * int(b) for a, b in zip(w[row, at], xq[t, at], strict=True))
                    assert abs(dot) < 1 << 24
                    term = np.float32(dot) * (d[row, g] * meta[t, g, 0])
                    if m is not None:
                        term = term + m[row, g] * meta[t, g, 1]
                    acc = acc + term
                total = total + acc
            before = expected[t, offset + row] if add else np.float32(0)
            expected[t, offset + row] = before + total if add else total
    constants = {"COLS": cols, "ROWS": rows, "STRIDE": stride, "OFFSET": offset, "ADD": add, "LAST": 0}
    arrays = (xq.reshape(-1).view(np.uint8), meta.reshape(-1).view(np.uint8), quants, halves.view(np.uint8))
    reference.REFERENCE[f"matmul_{kind}"](Step(tokens, 0), constants, *arrays, y.view(np.uint8))
    assert y.tobytes() == expected.tobytes()


def test_a_part_of_one_row() -> None:
    """Its scales plane is bound as a whole word, with 2 bytes of padding."""
    y = np.zeros(16, np.uint8)
    c = {"COLS": 32, "ROWS": 1, "STRIDE": 1, "OFFSET": 0, "ADD": 0, "LAST": 0}
    xq, meta = em.quantize(np.ones((1, 32), np.float32))
    one = np.array([1.0, 9.0], np.float16).view(np.uint8)
    arrays = (
        xq.reshape(-1).view(np.uint8),
        meta.reshape(-1).view(np.uint8),
        np.full(16, 0x99, np.uint8),
        one,
        y,
    )
    reference.REFERENCE["matmul_q4_0"](Step(1, 0), c, *arrays)
    assert y.view(np.float32)[0] == pytest.approx(32)


def test_halves_are_decoded_by_integers() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    found, finite = em.half_to_f32(bits), (bits & 0x7C00) != 0x7C00
    assert found[finite].tobytes() == bits.view(np.float16)[finite].astype(np.float32).tobytes()
    assert np.isfinite(found).all()


@pytest.mark.parametrize("block", ["q4_0", "q4_1", "q8_0"])
def test_tiny_models_are_close_to_float64(block: str, tmp_path: Path) -> None:
    made = make_tiny_gguf(tmp_path / "tiny.gguf", seed=5, block=block)
    pack_gguf(made.path, tmp_path / "packed", made.spec)
    model = PackedModel.open(tmp_path / "packed")
    ids = list(range(3, 43))
    exact = FloatLlama(model).logits(ids)[-1]
    found = feed(ReferenceExecutor(model, max_seq_len=64), ids, [32])
    assert (
        np.sqrt(np.square(found - exact).mean() / np.square(exact).mean()) <= 0.05
    )  # int8 activations at dim 64


def test_smollm2_is_the_publishers_network(smollm2: PackedModel) -> None:
    """Float64 on our unpacked weights gives transformers' logits: tensors, row order and RoPE are right."""
    exact = FloatLlama(smollm2).logits(GREEDY["prompt_ids"])[-1]
    assert np.abs(exact[GREEDY["top_ids"]] - GREEDY["top_logits"]).max() <= 1e-4
    assert np.argsort(-exact)[:5].tolist() == GREEDY["top_ids"]
    found = feed(ReferenceExecutor(smollm2, max_seq_len=64), GREEDY["prompt_ids"], [32])
    p, q = softmax(exact), softmax(found)
    # What int8 activations and cache cost at this position.
    assert float((p * np.log(p / q)).sum()) <= 0.02


def softmax(x: NDArray[np.floating]) -> NDArray[np.float64]:
    e: NDArray[np.float64] = np.exp(x.astype(np.float64) - x.max())
    e /= e.sum()
    return e


def test_smollm2_answers_as_transformers_does(smollm2: PackedModel) -> None:
    executor = ReferenceExecutor(smollm2, max_seq_len=64)
    logits = feed(executor, GREEDY["prompt_ids"], [32])
    out: list[int] = []
    for _ in GREEDY["greedy_new_ids"]:
        out.append(int(logits.argmax()))
        logits = feed(executor, out[-1:])
    assert out == GREEDY["greedy_new_ids"]


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(1, 39), max_size=6, unique=True).map(sorted))
def test_chunks_do_not_show(tiny: PackedModel, cuts: list[int]) -> None:
    ids = [(7 * i) % 250 + 3 for i in range(40)]
    whole = feed(ReferenceExecutor(tiny, max_seq_len=128, max_chunk_tokens=40), ids)
    cut = feed(ReferenceExecutor(tiny, max_seq_len=128, max_chunk_tokens=40), ids, cuts)
    assert cut.tobytes() == whole.tobytes()


def test_chunks_do_not_show_across_attention_blocks(tiny: PackedModel) -> None:
    ids = [(11 * i) % 250 + 3 for i in range(150)]
    whole = feed(ReferenceExecutor(tiny, max_seq_len=160, max_chunk_tokens=150), ids)
    cut = feed(ReferenceExecutor(tiny, max_seq_len=200, max_chunk_tokens=64), ids, [50, 63, 64, 127, 149])
    assert cut.tobytes() == whole.tobytes()


def test_truncated_cache_is_as_good_as_new(tiny: PackedModel) -> None:
    executor = ReferenceExecutor(tiny, max_seq_len=64)
    feed(executor, [5, 6, 7, 8, 9, 10])
    executor.truncate(2)
    assert executor.pos == 2
    again = feed(executor, [30, 31])
    assert again.tobytes() == feed(ReferenceExecutor(tiny, max_seq_len=64), [5, 6, 30, 31]).tobytes()


def test_a_full_cache_is_an_error(tiny: PackedModel) -> None:
    executor = ReferenceExecutor(tiny, max_seq_len=8)
    feed(executor, [5] * 8)
    with pytest.raises(DeviceError) as caught:
        feed(executor, [5])
    assert caught.value.code == "device.limit"
    assert executor.pos == 8
