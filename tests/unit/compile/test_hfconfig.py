"""config.json and generation_config.json: real ones are understood, and a field that is not is named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.compile.assets import parse_assets
from slm2_web.compile.hfconfig import CLASSES, FIXED, IDLE, READ, HfConfig, parse_config, parse_generation
from slm2_web.compile.models import MODELS
from slm2_web.errors import FormatError
from slm2_web.manifest import ARCHITECTURES, ModelConfig
from slm2_web.sampling2.params import parse_params
from tiny_safetensors import CLASS_NAMES, GENERATION, OF_FAMILY, TINY

ROOT = Path(__file__).parents[3]
QWEN3 = Path(__file__).parents[1] / "vectors" / "qwen3-0.6b"
REAL, REAL_GENERATION = ((QWEN3 / f"{name}.json").read_bytes() for name in ("config", "generation_config"))

# What publishers of the other two families write.
QWEN25 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}


def parse(config: Mapping[str, Any]) -> HfConfig:
    return parse_config(json.dumps(config).encode())


def tiny(architecture: str, **fields: Any) -> dict[str, Any]:
    merged = {
        "architectures": [CLASS_NAMES[architecture]],
        "model_type": architecture,
        **TINY,
        **OF_FAMILY[architecture],
        **fields,
    }
    return {key: value for key, value in merged.items() if value is not ...}


def test_the_real_qwen3_is_understood() -> None:
    assert parse_config(REAL) == HfConfig(
        ModelConfig(
            architecture="qwen3",
            dim=1024,
            hidden_dim=3072,
            n_layers=28,
            n_heads=16,
            n_kv_heads=8,
            head_dim=128,
            vocab_size=151936,
            norm_eps=float(np.float32(1e-6)),
            max_seq_len=40960,
        ),
        rope_theta=1e6,
        tied=True,
    )
    eos_ids, defaults = parse_generation(REAL_GENERATION, REAL, 151936)
    assert eos_ids == (151645, 151643)
    assert defaults == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert parse_params({"seed": 1}, {**defaults, **MODELS["qwen3-0.6b"].defaults}).max_tokens == 4096


def test_the_files_here_are_those_of_assets_toml() -> None:
    assets = parse_assets((ROOT / "assets.toml").read_text("utf-8"))
    spec = MODELS["qwen3-0.6b"]
    for file, data in (("config.json", REAL), ("generation_config.json", REAL_GENERATION)):
        asset = assets[spec.files[file]]
        assert (asset.file, asset.bytes) == (file, len(data))
        assert asset.sha256 == hashlib.sha256(data).hexdigest()
    weights = assets[spec.asset]
    assert (weights.sha256, weights.bytes) == (spec.file_sha256, 1_503_300_328)
    assert spec.files["model.safetensors"] == spec.asset


def test_publishers_of_the_other_families_are_understood() -> None:
    qwen, smol = parse(QWEN25), parse(SMOLLM2)
    assert (qwen.config.architecture, qwen.config.head_dim, qwen.rope_theta) == ("qwen2", 64, 1e6)
    assert (smol.config.architecture, smol.config.head_dim, smol.rope_theta) == ("llama", 64, 1e5)


def test_every_class_is_an_architecture() -> None:
    assert set(CLASSES.values()) == set(ARCHITECTURES)
    assert not READ & IDLE
    assert not FIXED.keys() & (READ | IDLE)


def test_transformers_5_writes_rope_elsewhere() -> None:
    parameters = {"rope_theta": 1000000.0, "rope_type": "default"}
    assert parse(tiny("qwen3", rope_theta=..., rope_parameters=parameters)).rope_theta == 1e6
    full = ["full_attention"] * 2
    assert parse(tiny("qwen3", layer_types=full)) == parse(tiny("qwen3"))


def test_what_says_what_we_do_anyway() -> None:
    """As the publisher of Qwen2.5's base models writes it."""
    assert parse({**QWEN25, "use_mrope": False}) == parse(QWEN25)


SAME = ("llama", "qwen2", "qwen3")
REFUSED: dict[str, tuple[tuple[str, ...], dict[str, Any], str, str]] = {
    # name: (families, fields, code, what the message names)
    "another class": (SAME, {"architectures": ["Gemma3ForCausalLM"]}, "format.unsupported", "architectures"),
    "two classes": (
        SAME,
        {"architectures": ["LlamaForCausalLM", "Qwen2ForCausalLM"]},
        "format.unsupported",
        "architectures",
    ),
    "no class": (SAME, {"architectures": ...}, "format.unsupported", "architectures"),
    "another type": (SAME, {"model_type": "mistral"}, "format.unsupported", "model_type"),
    "rope scaling": (
        SAME,
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        "format.unsupported",
        "rope_scaling",
    ),
    "rope parameters of yarn": (
        SAME,
        {"rope_theta": ..., "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}},
        "format.unsupported",
        "rope_parameters",
    ),
    "two thetas": (
        SAME,
        {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 1000000.0}},
        "format.unsupported",
        "rope_theta",
    ),
    "a sliding window": (SAME, {"use_sliding_window": True}, "format.unsupported", "use_sliding_window"),
    "a window that nobody turns off": (
        SAME,
        {"sliding_window": 4096, "use_sliding_window": ...},
        "format.unsupported",
        "sliding_window",
    ),
    "positions of pictures": (SAME, {"use_mrope": True}, "format.unsupported", "use_mrope"),
    "llama 3's rope": (
        SAME,
        {"rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0}},
        "format.unsupported",
        "rope_scaling",
    ),
    "layers with a window": (
        SAME,
        {"layer_types": ["full_attention", "sliding_attention"]},
        "format.unsupported",
        "layer_types",
    ),
    "layer types of another model": (
        SAME,
        {"layer_types": ["full_attention"]},
        "format.safetensors",
        "layer_types",
    ),
    "gelu": (SAME, {"hidden_act": "gelu"}, "format.unsupported", "hidden_act"),
    "no activation": (SAME, {"hidden_act": ...}, "format.safetensors", "hidden_act"),
    "attention bias": (("llama", "qwen3"), {"attention_bias": True}, "format.unsupported", "attention_bias"),
    "no attention bias": (("qwen2",), {"attention_bias": False}, "format.unsupported", "attention_bias"),
    "mlp bias": (SAME, {"mlp_bias": True}, "format.unsupported", "mlp_bias"),
    "0 for false": (SAME, {"mlp_bias": 0}, "format.unsupported", "mlp_bias"),
    "tensor parallel pretraining": (SAME, {"pretraining_tp": 2}, "format.unsupported", "pretraining_tp"),
    "part of the head rotated": (
        SAME,
        {"partial_rotary_factor": 0.5},
        "format.unsupported",
        "partial_rotary_factor",
    ),
    "quantised already": (
        SAME,
        {"quantization_config": {"bits": 4}},
        "format.unsupported",
        "quantization_config",
    ),
    "a field of tomorrow": (SAME, {"logit_scale": 1.0}, "format.unsupported", "logit_scale"),
    "no hidden size": (SAME, {"hidden_size": ...}, "format.safetensors", "hidden_size"),
    "layers as text": (SAME, {"num_hidden_layers": "2"}, "format.safetensors", "num_hidden_layers"),
    "true layers": (SAME, {"num_hidden_layers": True}, "format.safetensors", "num_hidden_layers"),
    "layers without end": (SAME, {"num_hidden_layers": 1 << 70}, "format.safetensors", "num_hidden_layers"),
    "heads that do not divide": (
        SAME,
        {"num_key_value_heads": 3},
        "format.safetensors",
        "num_attention_heads",
    ),
    "no head size": (("qwen3",), {"head_dim": ...}, "format.safetensors", "head_dim"),
    "a head of half a block": (SAME, {"head_dim": 48}, "format.unsupported", "head_dim"),
    "eps of 0": (SAME, {"rms_norm_eps": 0.0}, "format.safetensors", "rms_norm_eps"),
    "eps that float32 has not": (SAME, {"rms_norm_eps": 1e-60}, "format.safetensors", "rms_norm_eps"),
    "no theta": (SAME, {"rope_theta": ...}, "format.safetensors", "rope_theta"),
    "theta beyond all": (SAME, {"rope_theta": 10**400}, "format.safetensors", "rope_theta"),
    "nothing about ties": (SAME, {"tie_word_embeddings": ...}, "format.safetensors", "tie_word_embeddings"),
    "ties of 1": (SAME, {"tie_word_embeddings": 1}, "format.safetensors", "tie_word_embeddings"),
}


@pytest.mark.parametrize(
    ("architecture", "name"), [(family, name) for name, case in REFUSED.items() for family in case[0]]
)
def test_refuses_by_name(architecture: str, name: str) -> None:
    _, fields, code, names = REFUSED[name]
    with pytest.raises(FormatError) as caught:
        parse(tiny(architecture, **fields))
    assert caught.value.code == code
    assert names in caught.value.detail["place"]
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"a": 1, "a": 1}', b'{"a": Infinity}', b"\xff", b"x" * (2 << 20)]
)
def test_refuses_what_is_no_object(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^format\.safetensors"):
        parse_config(data)
    with pytest.raises(FormatError, match=r"^format\.safetensors"):
        parse_generation(data, REAL, 100)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from(SAME),
    st.dictionaries(st.sampled_from(sorted(READ | IDLE | FIXED.keys())) | st.text(), json_values, max_size=4),
)
def test_any_config_is_understood_or_refused(architecture: str, fields: dict[str, Any]) -> None:
    with suppress(FormatError):
        parse(tiny(architecture, **fields))
    with suppress(FormatError):
        parse_generation(json.dumps({**GENERATION, **fields}).encode(), REAL, 320)


def test_generation() -> None:
    def read(**fields: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
        return parse_generation(json.dumps({**GENERATION, **fields}).encode(), REAL, 320)

    assert read(eos_token_id=7)[0] == (7,)
    assert read(eos_token_id=[7, 7, 3])[0] == (7, 3)
    assert read(do_sample=False)[1]["temperature"] == 0.0
    assert read(top_k=None)[1]["top_k"] == 50
    assert read(repetition_penalty=1.1)[1]["repetition_penalty"] == 1.1
    assert parse_generation(None, REAL, 151936) == (
        (151645,),
        {**read(do_sample=False)[1], "repetition_penalty": 1.0},
    )
    for fields, names in (
        ({"eos_token_id": 320}, "eos_token_id"),
        ({"eos_token_id": []}, "eos_token_id"),
        ({"eos_token_id": None}, "eos_token_id"),
        ({"eos_token_id": True}, "eos_token_id"),
        ({"do_sample": 1}, "do_sample"),
        ({"top_p": "0.9"}, "top_p"),
        ({"num_beams": 4}, "num_beams"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size"),
    ):
        with pytest.raises(FormatError) as caught:
            read(**fields)
        assert names in caught.value.message
