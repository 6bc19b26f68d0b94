"""config.json and generation_config.json of Hugging Face: every field is used, fixed, idle or refused.

A field can change what the network computes. So the tables below name each that we know: READ ones make
our configuration, FIXED ones must say what we do anyway, IDLE ones have no say in inference. A field that
is in none of them is refused by name, and so is one with another value: nothing is ignored because nobody
looked.

Source: configuration_llama.py, configuration_qwen2.py, configuration_qwen3.py, configuration_utils.py of
transformers 4.57.1; generation/configuration_utils.py for the sampling parameters and their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slm2_web.compile.gguf import unsupported
from slm2_web.compile.safetensors import bad
from slm2_web.manifest import BLOCK, ModelConfig
from slm2_web.strictjson import Checks, NotJson, loads, real, show

MAX_CONFIG_BYTES = 1 << 20
_CHECK = Checks(bad)
CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"

# architectures[0] -> model_type, which is our name of the architecture too.
CLASSES: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

# Fields that may be there as long as they say one of these.
FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "pretraining_tp": (1,),
    "partial_rotary_factor": (1, 1.0),
    "rope_interleaved": (False,),
    "is_llama_config": (True,),
}
# Fields that have no say in inference. `max_window_layers` has none without a sliding window.
IDLE = frozenset(
    {
        "_name_or_path",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "eos_token_id",  # read apart, by eos_ids
        "initializer_range",
        "max_window_layers",
        "pad_token_id",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
    }
)
READ = frozenset(
    {
        "architectures",
        "attention_bias",
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "max_position_embeddings",
        "model_type",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_parameters",
        "rope_theta",
        "sliding_window",
        "tie_word_embeddings",
        "vocab_size",
    }
)
FULL_ATTENTION = "full_attention"

# generation_config.json: sampling parameter -> what transformers samples with where the file says nothing.
SAMPLING_DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
GREEDY: Mapping[str, float] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
_GENERATION_IDLE = frozenset(
    {
        "_from_model_config",
        "bos_token_id",
        "pad_token_id",
        "eos_token_id",
        "transformers_version",
        "use_cache",
    }
    | {"max_length", "max_new_tokens", "do_sample"}
)


@dataclass(frozen=True, slots=True)
class HfConfig:
    """A config.json, understood: our configuration, RoPE's theta, whether the output is the embedding."""

    config: ModelConfig
    rope_theta: float
    tied: bool


def parse_object(data: bytes, file: str, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object in a file. Raises: FormatError `format.safetensors`."""
    try:
        root = loads(data, max_bytes=max_bytes)
    except NotJson as error:
        raise bad(file, str(error), "UTF-8 JSON without duplicate keys") from None
    return _CHECK.any_object(root, file)


def parse_config(data: bytes) -> HfConfig:
    """config.json, understood.

    Raises: FormatError `format.safetensors` for what is missing or out of range, `format.unsupported` for a
        field or value that we do not honour, by name.
    """
    raw = parse_object(data, CONFIG)
    classes = raw.get("architectures")
    if not isinstance(classes, list) or len(classes) != 1 or classes[0] not in list(CLASSES):
        raise unsupported(f"{CONFIG}, architectures", show(classes), " | ".join(CLASSES))
    architecture = CLASSES[classes[0]]
    _check(raw, "model_type", architecture)
    for key in sorted(raw.keys() - READ - IDLE):
        if key not in FIXED:
            raise unsupported(f"{CONFIG}, {show(key)}", show(raw[key]), f"a {architecture} model without it")
        _check(raw, key, *FIXED[key])
    if raw.get("hidden_act") is None:
        raise bad(f"{CONFIG}, hidden_act", show(None), "silu")
    # qwen2 has its biases whatever the field says; the others have none.
    _check(raw, "attention_bias", architecture == "qwen2")
    _check_windows(raw)

    def number(key: str, high: int) -> int:
        return _CHECK.integer(raw.get(key), f"{CONFIG}, {key}", 1, high)

    dim, n_heads = number("hidden_size", 1 << 16), number("num_attention_heads", 1024)
    n_kv_heads = number("num_key_value_heads", 1024)
    if n_heads % n_kv_heads:
        raise bad(f"{CONFIG}, num_attention_heads", str(n_heads), f"a multiple of {n_kv_heads}")
    if raw.get("head_dim") is not None:
        head_dim = number("head_dim", 1024)
    elif architecture == "qwen3" or dim % n_heads:
        raise bad(f"{CONFIG}, head_dim", "nothing", "an integer: it does not follow from the others")
    else:
        head_dim = dim // n_heads
    norm_eps = _real(raw, "rms_norm_eps")
    if not 0 < np.float32(norm_eps) < 1:
        raise bad(f"{CONFIG}, rms_norm_eps", show(norm_eps), "a number between 0 and 1")
    tied = raw.get("tie_word_embeddings")
    if not isinstance(tied, bool):
        raise bad(f"{CONFIG}, tie_word_embeddings", show(tied), "true or false")
    config = ModelConfig(
        architecture=architecture,
        dim=dim,
        hidden_dim=number("intermediate_size", 1 << 18),
        n_layers=number("num_hidden_layers", 1024),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=number("vocab_size", 1 << 22),
        norm_eps=float(np.float32(norm_eps)),
        max_seq_len=number("max_position_embeddings", 1 << 20),
    )
    for name in ("dim", "hidden_dim", "head_dim"):
        if getattr(config, name) % BLOCK:
            raise unsupported(f"{CONFIG}, {name}", str(getattr(config, name)), f"a multiple of {BLOCK}")
    return HfConfig(config, _rope_theta(raw), tied)


def _check(raw: Mapping[str, Any], key: str, *allowed: Any) -> None:
    """Nothing, when the field is absent or one of `allowed`, in type as in value."""
    if key in raw and not any(type(raw[key]) is type(a) and raw[key] == a for a in allowed):
        raise unsupported(f"{CONFIG}, {key}", show(raw[key]), " | ".join(map(show, allowed)))


def _check_windows(raw: Mapping[str, Any]) -> None:
    """Nothing, when every layer attends to all positions."""
    # A window's length is idle where use_sliding_window says, in so many words, that there is none.
    if raw.get("use_sliding_window") is not False:
        _check(raw, "sliding_window", None)
    kinds = raw.get("layer_types")
    if kinds is None:
        return
    if not isinstance(kinds, list) or kinds != [FULL_ATTENTION] * len(kinds):
        raise unsupported(f"{CONFIG}, layer_types", show(kinds), f"only {FULL_ATTENTION!r}")
    if len(kinds) != raw.get("num_hidden_layers"):
        raise bad(f"{CONFIG}, layer_types", f"{len(kinds)} layers", show(raw.get("num_hidden_layers")))


def _rope_theta(raw: Mapping[str, Any]) -> float:
    """RoPE's base, from `rope_theta` or transformers 5's `rope_parameters`."""
    parameters = raw.get("rope_parameters")
    if parameters is None:
        parameters = {"rope_theta": raw.get("rope_theta")}
    else:
        _CHECK.any_object(parameters, f"{CONFIG}, rope_parameters")
        if parameters.get("rope_type", "default") != "default" or parameters.keys() - {
            "rope_type",
            "rope_theta",
        }:
            raise unsupported(
                f"{CONFIG}, rope_parameters", show(parameters), "rope_type 'default', rope_theta"
            )
        _check(raw, "rope_theta", parameters.get("rope_theta"))
    theta = _real(parameters, "rope_theta")
    if not 1 < theta < 1e30:
        raise bad(f"{CONFIG}, rope_theta", show(theta), "a number between 1 and 1e30")
    return theta


def _real(raw: Mapping[str, Any], key: str) -> float:
    value = real(raw.get(key), -1e300, 1e300)
    if value is None:
        raise bad(f"{CONFIG}, {key}", show(raw.get(key)), "a number")
    return value


def parse_generation(
    data: bytes | None, config: bytes, vocab_size: int
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """(eos ids, sampling parameters) of generation_config.json, or of config.json where there is none.

    Raises: FormatError, as `parse_config` does.
    """
    file = CONFIG if data is None else GENERATION_CONFIG
    raw = parse_object(config if data is None else data, file)
    eos = raw.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [eos]
    if not ids or not all(type(i) is int and 0 <= i < vocab_size for i in ids):
        raise bad(f"{file}, eos_token_id", show(eos), f"an id below {vocab_size}, or a list of them")
    eos_ids = tuple(dict.fromkeys(ids))
    if data is None:
        return eos_ids, {**SAMPLING_DEFAULTS, **GREEDY}
    for key in sorted(raw.keys() - SAMPLING_DEFAULTS.keys() - _GENERATION_IDLE):
        raise unsupported(f"{file}, {show(key)}", show(raw[key]), "a model that is sampled without it")
    sampled = raw.get("do_sample", False)
    if not isinstance(sampled, bool):
        raise bad(f"{file}, do_sample", show(sampled), "true or false")
    given = {key: raw[key] for key in SAMPLING_DEFAULTS if raw.get(key) is not None}
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad(f"{file}, {key}", show(value), "a number")
    return eos_ids, {**SAMPLING_DEFAULTS, **given, **({} if sampled else GREEDY)}
