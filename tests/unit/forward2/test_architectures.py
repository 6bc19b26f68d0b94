"""Qwen3, Qwen2 and Llama: PyTorch's network within a bound, and the same bits in every executor."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bit_matrix import executors
from feeding import feed
from float_llama import FloatLlama
from network_cases import IDS, MODELS, POSITIONS, packed_case
from slm2_web.compile.pack_hf import QUANTIZATIONS, pack_hf
from slm2_web.forward2 import exactmath as em
from slm2_web.forward2 import reference
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.plan import Dispatch, build_plan
from slm2_web.forward2.reference import ReferenceExecutor, Step
from slm2_web.manifest import ModelConfig
from slm2_web.packed import PackedModel
from tiny_safetensors import make_tiny_hf

GOLDENS = json.loads((Path(__file__).parents[1] / "vectors" / "network_goldens.json").read_text("utf-8"))
# Against PyTorch in float32: the network itself in float64 (largest difference), and what int8 activations
# and an int8 cache cost at these sizes (root mean square of the difference over that of the logits).
NETWORK_BOUND, REFERENCE_BOUND = 2e-5, 0.05


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PackedModel]:
    """The golden models, each packed when it is first asked for."""
    made: dict[str, PackedModel] = {}

    def get(name: str) -> PackedModel:
        if name not in made:
            _, made[name] = packed_case(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_pytorchs(name: str, packed: Callable[[str], PackedModel]) -> None:
    model, golden = packed(name), GOLDENS["models"][name]
    assert (GOLDENS["ids"], tuple(GOLDENS["positions"])) == (IDS, POSITIONS)
    assert hashlib.sha256(model.weights.data).hexdigest() == golden["packed_sha256"], "make the goldens again"
    expected = np.array(golden["logits"])
    exact = FloatLlama(model).logits(IDS)[list(POSITIONS)]
    assert np.abs(exact - expected).max() <= NETWORK_BOUND
    executor = ReferenceExecutor(model, max_seq_len=96, max_chunk_tokens=80)
    for position, want in zip(POSITIONS, expected, strict=True):
        found = feed(executor, IDS[executor.pos : position + 1], 80)
        assert np.sqrt(np.square(found - want).mean() / np.square(want).mean()) <= REFERENCE_BOUND


@pytest.mark.parametrize("name", MODELS)
def test_the_networks_differ_in_what_sets_them_apart(name: str, packed: Callable[[str], PackedModel]) -> None:
    """Without its biases or head norms a model gives other logits: the goldens do look at them."""
    model = packed(name)
    plain = dataclasses.replace(
        model.manifest, config=dataclasses.replace(model.manifest.config, architecture="llama")
    )
    same = np.abs(
        FloatLlama(model).logits(IDS[:8])
        - FloatLlama(dataclasses.replace(model, manifest=plain)).logits(IDS[:8])
    ).max()
    assert (same == 0) == (model.manifest.config.architecture == "llama")
    assert same == 0 or same > 0.05


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_extreme_weights_have_the_same_bits(architecture: str, tmp_path: Path) -> None:
    """Zero rows, a huge value, scales that are subnormal in f16, norm weights of 0 and of either sign."""
    rng = np.random.default_rng(8)
    dim = 64 if architecture == "qwen3" else 128
    head_dim = 64 if architecture == "qwen3" else 32
    layer = "model.layers.0.self_attn."
    q = rng.standard_normal((4 * head_dim, dim)).astype(np.float32)
    q[:head_dim] = 0
    q[head_dim] *= np.float32(3000)
    k = rng.standard_normal((2 * head_dim, dim)).astype(np.float32) * np.float32(1e-6)
    tensors: dict[str, NDArray[Any] | None] = {layer + "q_proj.weight": q, layer + "k_proj.weight": k}
    if architecture == "qwen3":
        weight = rng.standard_normal(head_dim).astype(np.float32)
        weight[:32] = 0
        weight[40] = 900
        tensors |= {layer + "q_norm.weight": weight, layer + "k_norm.weight": -weight[::-1].copy()}
    else:
        bias = rng.standard_normal(2 * head_dim).astype(np.float32)
        bias[:32], bias[40] = 0, 250
        tensors |= {layer + "k_proj.bias": bias}
    made = make_tiny_hf(tmp_path / "hf", architecture, dtype="F32", tensors=tensors)
    for quantization in ("q4_1", "q8_0"):
        out = tmp_path / quantization
        pack_hf(
            made.files,
            out,
            made.spec,
            quantization=QUANTIZATIONS[quantization],
            compile_tokenizer=made.compile_tokenizer,
        )
        model = PackedModel.open(out)
        want = feed(ReferenceExecutor(model, max_seq_len=112, max_chunk_tokens=80), IDS, 80)
        assert np.isfinite(want).all()
        for kind, make in executors(model, max_seq_len=80, max_chunk_tokens=32).items():
            assert feed(asyncio.run(make()), IDS, 32).tobytes() == want.tobytes(), kind


@pytest.mark.parametrize("head_dim", [32, 96, 128])
@pytest.mark.parametrize("kernel", ["bias_rope_kv", "norm_rope_kv"])
def test_what_comes_before_rope_is_its_definition(kernel: str, head_dim: int) -> None:
    """One float32 operation at a time, in the contract's order; then rope_kv's own result on that."""
    rng = np.random.default_rng(4)
    n_heads, n_kv, tokens, max_seq = 3, 1, 2, 16
    units, half = n_heads + 2 * n_kv, head_dim // 2
    qkv = rng.standard_normal((tokens, units, head_dim)).astype(np.float32)
    qkv[0, 0, :5] = [0, -0.0, 1e-30, 1e5, -3]
    rope = np.ascontiguousarray(em.rope_table(np.float32(0.8) ** np.arange(half, dtype=np.float32), max_seq))
    eps, inverse = np.float32(1e-6), np.float32(1.0 / head_dim)
    expected = qkv.copy()
    if kernel == "bias_rope_kv":
        extra = rng.standard_normal((units, head_dim)).astype(np.float32)
        for index in np.ndindex(expected.shape):
            expected[index] = qkv[index] + extra[index[1:]]
    else:
        extra = rng.standard_normal((2, head_dim)).astype(np.float32)
        for t in range(tokens):
            for u in range(n_heads + n_kv):
                lanes = [np.float32(0)] * em.NORM_LANES
                for d in range(head_dim):
                    v = qkv[t, u, d]
                    if abs(v) >= np.float32(2.0**-63):
                        lanes[d % 32] = lanes[d % 32] + v * v
                while len(lanes) > 1:
                    width = len(lanes) // 2
                    lanes = [lanes[i] + lanes[i + width] for i in range(width)]
                mean = np.array([lanes[0] * inverse + eps], np.float32)
                factor = em.rsqrt(mean)[0]
                for d in range(head_dim):
                    expected[t, u, d] = (qkv[t, u, d] * factor) * extra[int(u >= n_heads), d]
    constants = {"N_HEADS": n_heads, "N_KV_HEADS": n_kv, "HEAD_DIM": head_dim, "MAX_SEQ": max_seq}
    more = {"INV_HEAD_DIM": float(inverse), "EPS": float(eps)} if kernel == "norm_rope_kv" else {}

    def places() -> list[NDArray[np.uint8]]:
        cache = 2 * max_seq * n_kv * head_dim
        sizes = (tokens * n_heads * head_dim, tokens * n_heads * head_dim // 8, cache, cache // 8)
        return [np.zeros(size, np.uint8) for size in sizes]

    def flat(values: F32) -> NDArray[np.uint8]:
        return np.ascontiguousarray(values).reshape(-1).view(np.uint8)

    found, want = places(), places()
    step = Step(tokens, 5)
    reference.REFERENCE[kernel](step, {**constants, **more}, flat(qkv), flat(rope), *found, flat(extra))
    reference.REFERENCE["rope_kv"](step, constants, flat(expected), flat(rope), *want)
    for a, b in zip(found, want, strict=True):
        assert a.tobytes() == b.tobytes()
        assert a.any()


def kernels(dispatches: Sequence[Dispatch]) -> list[str]:
    return [dispatch.kernel for dispatch in dispatches]


def test_a_plan_differs_only_in_what_comes_before_rope(packed: Callable[[str], PackedModel]) -> None:
    plans = {
        name: build_plan(packed(name).manifest, max_seq_len=64, max_chunk_tokens=8)
        for name in ("llama", "qwen2", "qwen3")
    }
    renamed = [
        [kernel.removeprefix(prefix) for kernel in kernels(plans[name].decode)]
        for name, prefix in (("llama", ""), ("qwen2", "bias_"), ("qwen3", "norm_"))
    ]
    assert renamed[0] == renamed[1] == renamed[2]


def test_qwen3s_embedding_is_split_under_the_binding_limit(packed: Callable[[str], PackedModel]) -> None:
    """Qwen3-0.6B's shape, without its bytes: 151,936 rows in two bindings, and nothing above 128 MiB."""
    from slm2_web.compile.weights import PlannedTensor, lay_out

    config = ModelConfig("qwen3", 1024, 3072, 2, 16, 8, 128, 151936, 1e-6, 40960)
    tiny = packed("qwen3").manifest
    shapes = {
        "embed": (config.vocab_size, config.dim),
        "attn_norm": (1, 1024),
        "attn_qkv": (4096, 1024),
        "qk_norm": (1, 256),
        "attn_out": (1024, 2048),
        "ffn_norm": (1, 1024),
        "ffn_gate_up": (6144, 1024),
        "ffn_down": (1024, 3072),
        "final_norm": (1, 1024),
        "inv_freq": (1, 64),
    }
    plan = [
        PlannedTensor(name, entry.type, shapes[name.rpartition(".")[2]], ())
        for name, entry in tiny.tensors.items()
    ]
    tensors, n_bytes = lay_out(plan)
    manifest = dataclasses.replace(tiny, config=config, tensors=tensors, weights_bytes=n_bytes)
    built = build_plan(manifest, max_seq_len=4096, max_chunk_tokens=32)
    for segment in built.segments:
        assert segment.end - segment.start <= 128 << 20
    rows = [d.constants["ROWS"] for d in built.logits if d.kernel == "matmul_q8_0"]
    assert (len(rows), sum(rows)) == (2, 151936)
    assert [d.constants["ROWS"] for d in built.decode if d.kernel == "embed_q8_0"] == rows
    for dispatch in (*built.decode, *built.prefill, *built.logits):
        assert all(b.size <= 128 << 20 for b in dispatch.bindings)
