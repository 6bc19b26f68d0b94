"""SmolLM2 beside the float64 network: a short form of tests/perplexity.py, of prose and of code."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from float_llama import FloatLlama
from perplexity import SOURCES, Comparison, compare, joined, windows
from slm2_web.forward2.native_wasm import native_wasm_executor
from slm2_web.packed import PackedModel
from slm2_web.tokenizer2.tokenizer import Tokenizer

N_TOKENS = 256
# On 4,096 predictions: 0.5 % and 0.0034 (docs/forward.md). So few have a standard error of 0.4 %.
EXCESS_BOUND, DIVERGENCE_BOUND, AGREEMENT_BOUND = 0.015, 0.005, 0.94


def test_int8_activations_cost_little(packed_smollm2: Path) -> None:
    model = PackedModel.open(packed_smollm2)
    chosen = windows(Tokenizer.from_bytes(model.tokenizer_bytes), len(SOURCES), N_TOKENS)
    assert [(w.source, len(w.ids)) for w in chosen] == [(source, N_TOKENS + 1) for source in SOURCES]
    network = FloatLlama(model)
    executor = asyncio.run(native_wasm_executor(model, max_seq_len=N_TOKENS))
    found = joined([compare(network, executor, window.ids) for window in chosen])
    print(found)
    assert len(found.exact) == 2 * N_TOKENS
    assert abs(found.excess) <= EXCESS_BOUND
    assert found.divergence.mean() <= DIVERGENCE_BOUND
    assert found.agrees.mean() >= AGREEMENT_BOUND


def test_a_comparison_says_what_differs() -> None:
    exact, found = np.log([[2.0, 4.0]]), np.log([[2.0, 8.0]])
    same, worse = (Comparison(exact[0], x[0], np.zeros(2), np.ones(2, bool)) for x in (exact, found))
    assert same.excess == 0
    assert worse.excess == pytest.approx(2**0.5 - 1)
    assert str(worse).startswith("2 predictions: perplexity 2.828 -> 4.000 (+41.42 %")
