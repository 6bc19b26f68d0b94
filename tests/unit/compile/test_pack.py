"""Packing: the values kept exactly, what is unsupported refused by name, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slm2_web.compile.chat_template import CHAT_TEMPLATES
from slm2_web.compile.models import MODELS
from slm2_web.compile.pack import pack_gguf
from slm2_web.compile.quantize import dequantize_planes
from slm2_web.compile.weights import half_split_rows, inverse_frequencies, nearest_f32
from slm2_web.errors import FormatError
from slm2_web.manifest import MAX_SHARD_BYTES, PLANE_ALIGNMENT_BYTES, PLANE_BYTES, Manifest
from slm2_web.packed import PackedModel
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_gguf import CHAT_TEMPLATE, TinyGguf, interleaved, make_tiny_gguf, stored_values

Floats = NDArray[np.float32]


def values_of(model: PackedModel, name: str) -> Floats:
    """f32[rows, cols]: a packed tensor, dequantised."""
    entry = model.manifest.tensors[name]
    planes = {plane: model.plane(name, plane).reshape(-1).view(np.uint8) for plane in entry.planes}
    return dequantize_planes(entry.type, planes, *entry.shape)


def unfused(manifest: Manifest, tensors: dict[str, Floats]) -> dict[str, Floats]:
    """The tensors with attn_qkv and ffn_gate_up cut into their parts."""
    config = manifest.config
    q_rows, kv_rows = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    result: dict[str, Floats] = {}
    for name, values in tensors.items():
        layer, _, last = name.rpartition(".")
        if last == "attn_qkv":
            parts = np.split(values, [q_rows, q_rows + kv_rows])
            result |= {f"{layer}.attn_{x}": part for x, part in zip("qkv", parts, strict=True)}
        elif last == "ffn_gate_up":
            result[f"{layer}.ffn_gate"], result[f"{layer}.ffn_up"] = np.split(values, 2)
        elif last == "qkv_bias":
            parts = np.split(values, [q_rows, q_rows + kv_rows], axis=1)
            result |= {f"{layer}.{x}_bias": part for x, part in zip("qkv", parts, strict=True)}
        elif last == "qk_norm":
            result[f"{layer}.q_norm"], result[f"{layer}.k_norm"] = np.split(values, 2, axis=1)
        else:
            result[name] = values
    return result


def pack(tiny: TinyGguf, out: Path) -> PackedModel:
    pack_gguf(tiny.path, out, tiny.spec)
    return PackedModel.open(out)


@pytest.mark.parametrize("block", ["q4_0", "q4_1", "q8_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_packed_values_equal_gguf(tmp_path: Path, block: str, tied: bool) -> None:
    tiny = make_tiny_gguf(tmp_path / "t.gguf", seed=5, block=block, tied=tied, n_heads=2, n_layers=3)
    model = pack(tiny, tmp_path / "out")
    found = unfused(model.manifest, {name: values_of(model, name) for name in model.manifest.tensors})
    inv_freq = found.pop("rope.inv_freq")
    assert inv_freq.shape == (1, 16)
    assert found.keys() == tiny.weights.keys()
    for name, values in tiny.weights.items():
        assert np.array_equal(found[name].view(np.uint32), values.view(np.uint32)), name
    assert "layers.2.attn_qkv" in model.manifest.tensors
    assert model.manifest.tensors["layers.0.ffn_down"].type == block
    assert model.manifest.tensors["embed"].type == "q8_0"


@pytest.mark.parametrize(("architecture", "head_dim"), [("qwen2", None), ("qwen3", 64), ("qwen3", 32)])
def test_values_of_other_architectures_are_kept(
    tmp_path: Path, architecture: str, head_dim: int | None
) -> None:
    """Biases and head norms exactly, the rows of q and k in the file's order, heads of their own length."""
    tiny = make_tiny_gguf(
        tmp_path / "t.gguf", seed=6, architecture=architecture, head_dim=head_dim, n_heads=2
    )
    model = pack(tiny, tmp_path / "out")
    config = model.manifest.config
    assert (config.architecture, config.head_dim) == (architecture, head_dim or 32)
    found = unfused(model.manifest, {name: values_of(model, name) for name in model.manifest.tensors})
    found.pop("rope.inv_freq")
    assert found.keys() == tiny.weights.keys()
    for name, values in tiny.weights.items():
        assert np.array_equal(found[name].view(np.uint32), values.view(np.uint32)), name


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_float_matrices_become_q8_0(tmp_path: Path, kind: str) -> None:
    tiny = make_tiny_gguf(
        tmp_path / "t.gguf", block=kind, embed_block=kind, blocks={"output_norm.weight": kind}
    )
    model = pack(tiny, tmp_path / "out")
    found = unfused(model.manifest, {name: values_of(model, name) for name in model.manifest.tensors})
    for name, values in tiny.weights.items():
        if values.shape[0] == 1:
            assert np.array_equal(found[name], values), name  # norms stay exact
        else:
            assert np.abs(found[name] - values).max() <= np.abs(values).max() / 250, name
    types = {entry.type for entry in model.manifest.tensors.values() if entry.shape[0] > 1}
    assert types == {"q8_0"}


def test_parts_of_different_types_stay_apart(tmp_path: Path) -> None:
    blocks = {"blk.0.attn_k.weight": "q8_0", "blk.1.ffn_up.weight": "q4_0"}
    tiny = make_tiny_gguf(tmp_path / "t.gguf", blocks=blocks)
    model = pack(tiny, tmp_path / "out")
    tensors = model.manifest.tensors
    kinds = [tensors[f"layers.0.attn_{x}"].type for x in "qkv"]
    assert kinds == ["q4_1", "q8_0", "q4_1"]
    assert "layers.0.attn_qkv" not in tensors
    assert "layers.1.attn_qkv" in tensors
    assert tensors["layers.1.ffn_up"].type == "q4_0"
    assert "layers.0.ffn_gate_up" in tensors
    found = unfused(model.manifest, {name: values_of(model, name) for name in tensors})
    for name, values in tiny.weights.items():
        assert np.array_equal(found[name], values), name


def test_float_parts_fuse_with_q8_0(tmp_path: Path) -> None:
    tiny = make_tiny_gguf(tmp_path / "t.gguf", block="q8_0", blocks={"blk.0.attn_k.weight": "bf16"})
    assert "layers.0.attn_qkv" in pack(tiny, tmp_path / "out").manifest.tensors


@given(st.integers(1, 5), st.integers(1, 8), st.integers(1, 5), st.integers(0, 99))
def test_half_split_inverts_the_converter(heads: int, half: int, width: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (heads * half * 2, width), np.uint8)
    assert np.array_equal(half_split_rows(interleaved(rows, heads), heads), rows)
    assert np.array_equal(interleaved(half_split_rows(rows, heads), heads), rows)


def test_half_split_makes_the_same_attention_scores() -> None:
    """Rotating neighbours of the file's rows equals rotating halves of ours: what the order is for."""
    heads, head_dim, dim = 2, 8, 16
    rng = np.random.default_rng(0)
    w_file = rng.standard_normal((2, heads * head_dim, dim))  # q, k as the GGUF has them
    rows = [half_split_rows(w, heads) for w in w_file.view(np.uint8).reshape(2, heads * head_dim, -1)]
    w_ours = np.stack(rows).reshape(-1).view(np.float64).reshape(w_file.shape)
    x = rng.standard_normal((2, dim))
    angle = 10_000.0 ** (-np.arange(0, head_dim, 2) / head_dim)

    def scores(weights: NDArray[np.float64], halves: bool) -> NDArray[np.float64]:
        rotated = []
        for w, vector, pos in zip(weights, x, (7, 3), strict=True):
            v = (w @ vector).reshape(heads, head_dim)
            a, b = np.split(v, 2, axis=1) if halves else (v[:, 0::2], v[:, 1::2])
            sin, cos = np.sin(pos * angle), np.cos(pos * angle)
            rotated.append((a * cos - b * sin, b * cos + a * sin))
        (qa, qb), (ka, kb) = rotated
        return np.asarray((qa * ka + qb * kb).sum(axis=1))

    assert np.allclose(scores(w_file, halves=False), scores(w_ours, halves=True), rtol=1e-12)
    assert not np.allclose(scores(w_file, halves=True), scores(w_ours, halves=True), rtol=1e-3)


@pytest.mark.parametrize(("theta", "head_dim"), [(1e4, 64), (1e5, 64), (1e6, 128), (500_000.0, 32)])
def test_inverse_frequencies(theta: float, head_dim: int) -> None:
    found = inverse_frequencies(theta, head_dim)
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    assert np.array_equal(found, (1.0 / theta**exponents).astype(np.float32))
    assert found[0] == 1
    # Exact: the nearest float32 by the ratio of powers, (theta^2i)^(1/head_dim), another way to 80 digits.
    with localcontext() as context:
        context.prec = 80
        for i, value in enumerate(found):
            exact = 1 / (Decimal(theta).ln() * 2 * i / head_dim).exp()
            gap = abs(Decimal(float(value)) - exact)
            for other in (np.nextafter(value, np.float32(0)), np.nextafter(value, np.float32(2))):
                assert gap <= abs(Decimal(float(other)) - exact)


@given(st.integers(1 << 23, (1 << 24) - 2), st.integers(-60, 60))
def test_nearest_f32_breaks_ties_to_even(mantissa: int, exponent: int) -> None:
    lower, unit = Fraction(mantissa) * Fraction(2) ** exponent, Fraction(2) ** exponent
    even = lower if mantissa % 2 == 0 else lower + unit
    assert Fraction(float(nearest_f32(lower + unit / 2))) == even
    # A hair beside the middle, less than a float64 can tell: rounding twice would go to the even one.
    hair = unit / (1 << 60)
    assert Fraction(float(nearest_f32(lower + unit / 2 - hair))) == lower
    assert Fraction(float(nearest_f32(lower + unit / 2 + hair))) == lower + unit


def test_layout(packed_tiny: Path) -> None:
    """Arena order, alignment, padding of zeros, shards that are consecutive slices."""
    model = PackedModel.open(packed_tiny)
    manifest = model.manifest
    assert list(manifest.tensors)[:4] == ["rope.inv_freq", "embed", "layers.0.attn_norm", "layers.0.attn_qkv"]
    used = np.zeros(manifest.weights_bytes, bool)
    end = 0
    for entry in manifest.tensors.values():
        assert list(entry.planes) == list(PLANE_BYTES[entry.type])
        for plane, offset in entry.planes.items():
            assert offset == -(-end // PLANE_ALIGNMENT_BYTES) * PLANE_ALIGNMENT_BYTES
            end = offset + entry.plane_bytes(plane)
            used[offset:end] = True
    assert end == manifest.weights_bytes
    assert not model.weights[~used].any()
    joined = b"".join((packed_tiny / shard.file).read_bytes() for shard in manifest.shards)
    assert joined == model.weights.tobytes()


def test_shards_are_cut_at_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = make_tiny_gguf(tmp_path / "t.gguf")
    whole = pack(tiny, tmp_path / "whole")
    monkeypatch.setattr("slm2_web.compile.pack.MAX_SHARD_BYTES", 10_000)
    cut = pack(tiny, tmp_path / "cut")
    sizes = [shard.bytes for shard in cut.manifest.shards]
    assert sizes[:-1] == [10_000] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= 10_000
    assert np.array_equal(whole.weights, cut.weights)
    for i, shard in enumerate(cut.manifest.shards):
        assert shard.file == f"weights-{i:02}.{shard.sha256[:8]}.bin"


def test_same_bytes_each_time_and_nothing_else_left(tmp_path: Path) -> None:
    tiny = make_tiny_gguf(tmp_path / "t.gguf")
    pack(tiny, tmp_path / "a" / "model")
    pack(tiny, tmp_path / "b" / "model")
    first = {path.name: path.read_bytes() for path in (tmp_path / "a" / "model").iterdir()}
    (tmp_path / "b" / "model" / "old.bin").write_bytes(b"x")
    pack(tiny, tmp_path / "b" / "model")  # replaces the directory whole
    assert {path.name: path.read_bytes() for path in (tmp_path / "b" / "model").iterdir()} == first
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["model"]
    text = first["manifest.json"].decode("ascii")
    assert text.endswith("}\n")
    assert list(json.loads(text)) == [
        *("format", "version", "name", "title", "license", "source", "config", "tokenizer", "template"),
        *("generation", "weights", "tensors"),
    ]


def test_progress_reaches_its_total(tmp_path: Path) -> None:
    tiny = make_tiny_gguf(tmp_path / "t.gguf")
    calls: list[tuple[str, int, int]] = []
    manifest = pack_gguf(tiny.path, tmp_path / "out", tiny.spec, lambda *call: calls.append(call))
    last = {stage: (done, total) for stage, done, total in calls}
    size = tiny.path.stat().st_size
    assert last == {
        "hash": (size, size),
        "tokenizer": (1, 1),
        "weights": (manifest.weights_bytes, manifest.weights_bytes),
    }


def test_packed_tokenizer_works(packed_tiny: Path, tiny_gguf: TinyGguf) -> None:
    tokenizer = Tokenizer.from_bytes(PackedModel.open(packed_tiny).tokenizer_bytes)
    assert tokenizer.n_tokens == len(tiny_gguf.tokens)
    assert tokenizer.control_id(b"<|im_end|>") == 2


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    # name: (arguments of make_tiny_gguf, code, what the message names)
    "architecture": ({"metadata": {"general.architecture": "gemma3"}}, "format.unsupported", "gemma3"),
    "adapter": ({"metadata": {"general.type": "adapter"}}, "format.unsupported", "general.type"),
    "split": ({"metadata": {"split.count": 2}}, "format.unsupported", "split.count"),
    "old blocks": (
        {"metadata": {"general.quantization_version": 1}},
        "format.unsupported",
        "general.quantization_version",
    ),
    "blocks of no version": (
        {"metadata": {"general.quantization_version": None}},
        "format.gguf",
        "general.quantization_version",
    ),
    "rope scaling": (
        {"metadata": {"llama.rope.scaling.type": "linear"}},
        "format.unsupported",
        "llama.rope.scaling.type",
    ),
    "rope scaling factor": (
        {"metadata": {"llama.rope.scaling.factor": 2.0}},
        "format.unsupported",
        "llama.rope.scaling.factor",
    ),
    "part of the head rotated": (
        {"metadata": {"llama.rope.dimension_count": 16}},
        "format.unsupported",
        "llama.rope.dimension_count",
    ),
    "keys longer than values": (
        {"metadata": {"llama.attention.key_length": 64}},
        "format.unsupported",
        "llama.attention.value_length",
    ),
    "a head of another length than its rows": (
        {"metadata": {"llama.attention.key_length": 64, "llama.attention.value_length": 64}},
        "format.unsupported",
        "llama.rope.dimension_count",
    ),
    "value length": (
        {"metadata": {"llama.attention.value_length": 64}},
        "format.unsupported",
        "llama.attention.value_length",
    ),
    "sliding window": (
        {"metadata": {"llama.attention.sliding_window": 128}},
        "format.unsupported",
        "llama.attention.sliding_window",
    ),
    "experts": ({"metadata": {"llama.expert_count": 8}}, "format.unsupported", "llama.expert_count"),
    "a key of tomorrow": (
        {"metadata": {"llama.logit_scale": 2.0}},
        "format.unsupported",
        "llama.logit_scale",
    ),
    "heads by layer": (
        {"metadata": {"llama.attention.head_count": [2, 2]}},
        "format.gguf",
        "llama.attention.head_count",
    ),
    "heads that do not divide": (
        {"metadata": {"llama.attention.head_count": 3}},
        "format.gguf",
        "llama.attention.head_count",
    ),
    "kv heads that do not divide": (
        {"metadata": {"llama.attention.head_count_kv": 3}},
        "format.gguf",
        "llama.attention.head_count_kv",
    ),
    "no layers": ({"metadata": {"llama.block_count": 0}}, "format.gguf", "llama.block_count"),
    "no context length": (
        {"metadata": {"llama.context_length": None}},
        "format.gguf",
        "llama.context_length",
    ),
    "no eps": (
        {"metadata": {"llama.attention.layer_norm_rms_epsilon": None}},
        "format.gguf",
        "llama.attention.layer_norm_rms_epsilon",
    ),
    "eps of infinity": ({"norm_eps": float("inf")}, "format.gguf", "layer_norm_rms_epsilon"),
    "eps of NaN": ({"norm_eps": float("nan")}, "format.gguf", "layer_norm_rms_epsilon"),
    "theta of NaN": ({"rope_theta": float("nan")}, "format.gguf", "llama.rope.freq_base"),
    "theta of 0": ({"rope_theta": 0.0}, "format.gguf", "llama.rope.freq_base"),
    "hidden_dim of part of a block": (
        {"hidden_dim": 144, "block": "f32"},
        "format.unsupported",
        "hidden_dim",
    ),
    "vocab_size": ({"metadata": {"llama.vocab_size": 299}}, "format.gguf", "tokenizer.ggml.tokens"),
    "eos beyond the vocabulary": (
        {"metadata": {"tokenizer.ggml.eos_token_id": 300}},
        "format.gguf",
        "tokenizer.ggml.eos_token_id",
    ),
    "no eos": ({"metadata": {"tokenizer.ggml.eos_token_id": None}}, "format.gguf", "eos_token_id"),
    "a bos to add": (
        {"metadata": {"tokenizer.ggml.add_bos_token": True}},
        "format.unsupported",
        "add_bos_token",
    ),
    "a template that can't be compiled": (
        {"metadata": {"tokenizer.chat_template": "x\n{{ messages | from_json }}"}},
        "format.unsupported",
        "key 'tokenizer.chat_template', line 2: found the filter from_json",
    ),
    "a template that fails": (
        {"metadata": {"tokenizer.chat_template": "{{ messages.x.y }}"}},
        "format.unsupported",
        "key 'tokenizer.chat_template', canary 0: found a refusal of a plain question",
    ),
    "attention bias": (
        {"tensors": {"blk.0.attn_q.bias": np.zeros(64, np.float32)}},
        "format.unsupported",
        "blk.0.attn_q.bias",
    ),
    "a bias missing": (
        {"architecture": "qwen2", "tensors": {"blk.1.attn_k.bias": None}},
        "format.gguf",
        "blk.1.attn_k.bias",
    ),
    "a head norm missing": (
        {"architecture": "qwen3", "tensors": {"blk.1.attn_k_norm.weight": None}},
        "format.gguf",
        "blk.1.attn_k_norm.weight",
    ),
    "a head norm of a whole row": (
        {"architecture": "qwen3", "tensors": {"blk.0.attn_q_norm.weight": np.ones(64, np.float32)}},
        "format.gguf",
        "blk.0.attn_q_norm.weight",
    ),
    "another family's key": (
        {"architecture": "qwen3", "metadata": {"qwen3.attention.scale": 2.0}},
        "format.unsupported",
        "qwen3.attention.scale",
    ),
    "q_norm": (
        {"tensors": {"blk.0.attn_q_norm.weight": np.ones(32, np.float32)}},
        "format.unsupported",
        "blk.0.attn_q_norm.weight",
    ),
    "rope_freqs": (
        {"tensors": {"rope_freqs.weight": np.ones(16, np.float32)}},
        "format.unsupported",
        "rope_freqs.weight",
    ),
    "a layer too many": (
        {"metadata": {"llama.block_count": 1}},
        "format.unsupported",
        "blk.1.",
    ),
    "a layer too few": ({"metadata": {"llama.block_count": 3}}, "format.gguf", "blk.2.attn_norm.weight"),
    "a tensor missing": ({"tensors": {"blk.1.ffn_up.weight": None}}, "format.gguf", "blk.1.ffn_up.weight"),
    "a shape": (
        {"tensors": {"blk.1.ffn_norm.weight": np.ones(32, np.float32)}},
        "format.gguf",
        "blk.1.ffn_norm.weight",
    ),
    "three dimensions": (
        {"tensors": {"blk.1.ffn_up.weight": np.ones((1, 128, 64), np.float32)}},
        "format.unsupported",
        "blk.1.ffn_up.weight",
    ),
    "a type that we lack": (
        {"blocks": {"blk.0.ffn_down.weight": "q5_0"}},
        "format.unsupported",
        "blk.0.ffn_down.weight",
    ),
    "a norm in blocks": (
        {"blocks": {"blk.0.ffn_norm.weight": "q8_0"}},
        "format.unsupported",
        "blk.0.ffn_norm.weight",
    ),
    "a norm with NaN": (
        {"tensors": {"output_norm.weight": np.full(64, np.nan, np.float32)}},
        "format.unsupported",
        "output_norm.weight",
    ),
    "a matrix with infinity": (
        {"tensors": {"blk.0.attn_v.weight": np.full((32, 64), np.inf, np.float32)}},
        "format.unsupported",
        "blk.0.attn_v.weight",
    ),
    "a matrix beyond f16 scales": (
        {"tensors": {"blk.0.attn_v.weight": np.full((32, 64), 1e9, np.float32)}},
        "format.unsupported",
        "blk.0.attn_v.weight",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_by_name(tmp_path: Path, name: str) -> None:
    arguments, code, names = REFUSED[name]
    tiny = make_tiny_gguf(tmp_path / "t.gguf", **arguments)
    out = tmp_path / "models" / "out"
    with pytest.raises(FormatError) as caught:
        pack_gguf(tiny.path, out, tiny.spec)
    assert caught.value.code == code, caught.value
    assert names in caught.value.message
    assert not out.exists()
    assert not out.parent.exists() or not list(out.parent.iterdir())


HARMLESS: dict[str, dict[str, Any]] = {
    "scaling none": {"llama.rope.scaling.type": "none"},
    "no experts": {"llama.expert_count": 0, "llama.expert_used_count": 0},
    "lengths that agree": {"llama.attention.key_length": 32, "llama.attention.value_length": 32},
    "defaults": {
        "llama.rope.freq_base": None,
        "llama.rope.dimension_count": None,
        "llama.vocab_size": None,
        "general.type": None,
    },
    "keys of others": {"quantize.imatrix.entries_count": 5, "acme.note": "x"},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_accepts_what_changes_nothing(tmp_path: Path, tiny_gguf: TinyGguf, name: str) -> None:
    tiny = make_tiny_gguf(tmp_path / "t.gguf", metadata=HARMLESS[name])
    plain = pack_gguf(tiny_gguf.path, tmp_path / "plain", tiny_gguf.spec)
    manifest = pack_gguf(tiny.path, tmp_path / "out", tiny.spec)
    assert replace(manifest, source=plain.source) == plain


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
@pytest.mark.parametrize("pattern", [0x7C00, 0xFC00, 0x7E00])
def test_refuses_scales_that_are_not_finite(tmp_path: Path, kind: str, pattern: int) -> None:
    tiny = make_tiny_gguf(tmp_path / "t.gguf", block=kind)
    tensor = next(t for t in gguf.GGUFReader(tiny.path).tensors if t.name == "blk.1.ffn_gate.weight")
    data = bytearray(tiny.path.read_bytes())
    # The last scale of the third block: q4_1 has two.
    block_bytes = {"q4_0": 18, "q4_1": 20, "q8_0": 34}[kind]
    at = int(tensor.data_offset) + 3 * block_bytes + (2 if kind == "q4_1" else 0)
    data[at : at + 2] = pattern.to_bytes(2, "little")
    tiny.path.write_bytes(data)
    spec = replace(tiny.spec, file_sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(FormatError, match=r"^format\.unsupported.*'blk\.1\.ffn_gate\.weight'"):
        pack_gguf(tiny.path, tmp_path / "out", spec)
    assert not (tmp_path / "out").exists()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changed_bytes_pack_or_fail(tmp_path: Path, tiny_gguf: TinyGguf, data: st.DataObject) -> None:
    """A damaged file is packed (a weight may have any value) or refused; nothing is left of a refused one."""
    file = bytearray(tiny_gguf.path.read_bytes())
    start = int(gguf.GGUFReader(tiny_gguf.path).tensors[0].data_offset)
    for _ in range(data.draw(st.integers(1, 3))):
        where = data.draw(st.integers(0, start - 1) | st.integers(start, len(file) - 1))
        file[where] = data.draw(st.integers(0, 255))
    path, out = tmp_path / "changed.gguf", tmp_path / "models" / "out"
    path.write_bytes(file)
    spec = replace(tiny_gguf.spec, file_sha256=hashlib.sha256(file).hexdigest())
    try:
        pack_gguf(path, out, spec)
    except FormatError as error:
        event(error.code)
    else:
        PackedModel.open(out)
        shutil.rmtree(out)
    assert not out.parent.exists() or not list(out.parent.iterdir())


def test_refuses_another_file(tmp_path: Path, tiny_gguf: TinyGguf) -> None:
    spec = replace(tiny_gguf.spec, file_sha256="0" * 64)
    with pytest.raises(FormatError, match=r"^format\.model_file"):
        pack_gguf(tiny_gguf.path, tmp_path / "out", spec)
    assert not (tmp_path / "out").exists()


def test_eos_ids_come_from_every_key(tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 2}
    tiny = make_tiny_gguf(tmp_path / "t.gguf", metadata=keys)
    assert pack_gguf(tiny.path, tmp_path / "out", tiny.spec).eos_ids == (2, 0)


def test_tiny_template_is_a_known_one() -> None:
    assert hashlib.sha256(CHAT_TEMPLATE.encode()).hexdigest() in CHAT_TEMPLATES


def test_tiny_files_are_the_same_each_time(tmp_path: Path) -> None:
    first = make_tiny_gguf(tmp_path / "a.gguf", seed=3)
    second = make_tiny_gguf(tmp_path / "b.gguf", seed=3)
    other = make_tiny_gguf(tmp_path / "c.gguf", seed=4)
    assert first.spec.file_sha256 == second.spec.file_sha256 != other.spec.file_sha256


def test_real_model(smollm2_gguf: Path, tmp_path: Path) -> None:
    """Every packed value of the real model equals PyPI gguf's dequantisation of the file."""
    pack_gguf(smollm2_gguf, tmp_path / "model", MODELS["smollm2-135m"])
    model = PackedModel.open(tmp_path / "model")
    manifest = model.manifest
    assert manifest.name == "smollm2-135m"
    assert manifest.source.sha256 == MODELS["smollm2-135m"].file_sha256
    config = manifest.config
    assert (config.dim, config.hidden_dim, config.n_layers) == (576, 1536, 30)
    assert (config.n_heads, config.n_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_seq_len) == (49_152, 8192)
    assert np.float32(config.norm_eps) == np.float32(1e-5)
    assert config.norm_eps == float(np.float32(1e-5))
    assert manifest.eos_ids == (2,)
    assert manifest.template.family == "chatml"
    assert all(shard.bytes <= MAX_SHARD_BYTES for shard in manifest.shards)
    assert "output" not in manifest.tensors

    reader = gguf.GGUFReader(smollm2_gguf)
    names = {"token_embd": "embed", "output_norm": "final_norm"}
    ours_of_theirs = {"attn_output": "attn_out"}
    expected: dict[str, Any] = {}
    for tensor in reader.tensors:
        parts = tensor.name.removesuffix(".weight").split(".")
        name = names.get(parts[0]) or f"layers.{parts[1]}.{ours_of_theirs.get(parts[2], parts[2])}"
        expected[name] = tensor
    compared = 0
    for packed_name in manifest.tensors:
        if packed_name == "rope.inv_freq":
            continue
        for name, found in unfused(manifest, {packed_name: values_of(model, packed_name)}).items():
            tensor = expected.pop(name)
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if name.endswith(("attn_q", "attn_k")):
                heads = config.n_heads if name.endswith("q") else config.n_kv_heads
                found = interleaved(found, heads)
            assert np.array_equal(found.reshape(values.shape).view(np.uint32), values.view(np.uint32)), name
            compared += values.size
    assert not expected
    assert compared == 134_515_008  # the model's parameters
    frequencies = 100_000.0 ** -(np.arange(32) / 32)
    assert np.array_equal(model.plane("rope.inv_freq", "values")[0], frequencies.astype(np.float32))


def test_stored_values_is_what_gguf_stores(tmp_path: Path) -> None:
    """The helper's oracle itself: the file's blocks dequantise to `tiny.weights`."""
    tiny = make_tiny_gguf(tmp_path / "t.gguf")
    tensor = next(t for t in gguf.GGUFReader(tiny.path).tensors if t.name == "blk.0.ffn_up.weight")
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    assert np.array_equal(values, tiny.weights["layers.0.ffn_up"])
    assert np.array_equal(stored_values(values, "f32"), values)
