"""The GPU bench on whatever adapter there is: a small shape runs; each is one that a packer could make."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from slm2_web.bench.gpu import SHAPES, measure, random_model
from slm2_web.forward2.plan import build_plan
from slm2_web.manifest import ModelConfig
from slm2_web.packed import check_tensors


def small(shape: str) -> ModelConfig:
    """A shape's small sister."""
    return replace(SHAPES[shape], dim=128, hidden_dim=192, n_layers=2, vocab_size=512)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_models(shape: str) -> None:
    manifest, weights = random_model(small(shape), "q4_1")
    check_tensors(manifest)
    assert weights.size >= manifest.weights_bytes
    assert weights.any()


def test_figures_of_a_small_model() -> None:
    config = small("qwen3-0.6b")
    figures = asyncio.run(measure(config, "q4_0", prompt=20, steps=3, context=64))
    plan = build_plan(random_model(config, "q4_0")[0], max_seq_len=64, max_chunk_tokens=8)
    assert figures["dispatches_per_token"] == len(plan.decode) + len(plan.logits)
    for name in ("prefill_tokens_s", "decode_tokens_s", "decode_ms", "read_gb_s", "ready_s"):
        assert figures[name] > 0, name
