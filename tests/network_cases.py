"""The random tiny models whose logits are in vectors/network_goldens.json, and the ids they are given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slm2_web.compile.pack_hf import QUANTIZATIONS, pack_hf
from slm2_web.packed import PackedModel
from tiny_safetensors import TinyHf, make_tiny_hf

IDS = [(37 * i * i + 11 * i) % 309 + 3 for i in range(80)]
POSITIONS = (0, 64, 79)

# name -> (arguments of make_tiny_hf, --quant)
MODELS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "qwen3": ({"architecture": "qwen3", "seed": 31}, "q4_1"),
    "qwen3-q8_0": ({"architecture": "qwen3", "seed": 32, "dtype": "F32", "keep_copy": True}, "q8_0"),
    "qwen3-untied": (
        {"architecture": "qwen3", "seed": 33, "config": {"tie_word_embeddings": False, "head_dim": 96}},
        "q4_1",
    ),
    "qwen2": ({"architecture": "qwen2", "seed": 34}, "q4_1"),
    "qwen2-q4_0": ({"architecture": "qwen2", "seed": 35, "dtype": "F16"}, "q4_0"),
    "llama": ({"architecture": "llama", "seed": 36, "config": {"tie_word_embeddings": False}}, "q4_1"),
}


def packed_case(name: str, directory: Path) -> tuple[TinyHf, PackedModel]:
    """(the model as it was made, packed), in `directory`."""
    arguments, quantization = MODELS[name]
    made = make_tiny_hf(directory / "hf", **arguments)
    out = directory / "packed"
    pack_hf(
        made.files,
        out,
        made.spec,
        quantization=QUANTIZATIONS[quantization],
        compile_tokenizer=made.compile_tokenizer,
    )
    return made, PackedModel.open(out)
