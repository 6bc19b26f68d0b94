"""Logits of random tiny models by PyTorch in float32: tests/unit/vectors/network_goldens.json.

    python -m venv V && V/bin/pip install torch==2.13.0 transformers==4.57.1 gguf==0.19.0
    PYTHONPATH=py:tests V/bin/python tests/unit/vectors/make_network_goldens.py

Each model is made by tests/tiny_safetensors.py and packed; transformers then runs it on the dequantised
weights of the packed model, so that what is compared is the network, not the quantisation. The file records
the sha256 of the packed weights: when packing changes, the test says so, and this is run again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from network_cases import IDS, MODELS, POSITIONS, packed_case
from slm2_web.compile.quantize import dequantize_planes
from slm2_web.compile.weights import SAFETENSORS
from slm2_web.manifest import ModelConfig
from slm2_web.packed import PackedModel

OUT = Path(__file__).with_name("network_goldens.json")


def parts_of(name: str, config: ModelConfig) -> list[tuple[str, int]]:
    """(our key, length along the joined axis) of the tensors that a packed one joins."""
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    return {
        "attn_qkv": [("attn_q", q), ("attn_k", kv), ("attn_v", kv)],
        "ffn_gate_up": [("ffn_gate", config.hidden_dim), ("ffn_up", config.hidden_dim)],
        "qkv_bias": [("q_bias", q), ("k_bias", kv), ("v_bias", kv)],
        "qk_norm": [("q_norm", config.head_dim), ("k_norm", config.head_dim)],
    }.get(name, [(name, 0)])


def state_dict(model: PackedModel) -> dict[str, torch.Tensor]:
    """The packed model's values under the publisher's names."""
    config = model.manifest.config
    state: dict[str, torch.Tensor] = {}
    for name, entry in model.manifest.tensors.items():
        if name == "rope.inv_freq":
            continue
        planes = {plane: model.plane(name, plane).reshape(-1).view(np.uint8) for plane in entry.planes}
        values = dequantize_planes(entry.type, planes, *entry.shape)
        if entry.shape[0] == 1:
            values = values.reshape(-1)
        _, layer, key = ("", "0", name) if "." not in name else name.split(".")
        start = 0
        for part, length in parts_of(key, config):
            end = start + length if length else len(values)
            state[SAFETENSORS.theirs(part, int(layer))] = torch.from_numpy(values[start:end].copy())
            start = end
    if "output" not in model.manifest.tensors:
        state[SAFETENSORS.theirs("output")] = state[SAFETENSORS.theirs("embed")]
    return state


def golden(name: str, directory: Path) -> dict[str, Any]:
    """One model's entry of the file."""
    made, model = packed_case(name, directory)
    config = transformers.AutoConfig.for_model(**made.config, attn_implementation="eager")
    network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    missing, unexpected = network.load_state_dict(state_dict(model), strict=False)
    assert not missing, missing
    assert not unexpected, unexpected
    with torch.no_grad():
        logits = network(torch.tensor([IDS])).logits[0]
    assert logits.dtype == torch.float32
    return {
        "packed_sha256": hashlib.sha256(model.weights.data).hexdigest(),
        "logits": [[float(f"{x:.7g}") for x in logits[p].tolist()] for p in POSITIONS],
    }


def main() -> None:
    """Write network_goldens.json."""
    with tempfile.TemporaryDirectory() as folder:
        models = {name: golden(name, Path(folder) / name) for name in MODELS}
    made_by = {"torch": torch.__version__, "transformers": transformers.__version__}
    result = {"made_by": made_by, "ids": IDS, "positions": POSITIONS, "models": models}
    OUT.write_text(json.dumps(result).replace("]], ", "]],\n ").replace("], [", "],\n  [") + "\n", "utf-8")
    print(OUT, OUT.stat().st_size)


if __name__ == "__main__":
    main()
