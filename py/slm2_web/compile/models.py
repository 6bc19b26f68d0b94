"""The models that `compile` knows by name: where each comes from and how it is best sampled.

The bytes are named by an entry of assets.toml and their sha256; what the network looks like is read from
the file itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to pack.

    asset        entry in assets.toml of the file that holds its weights
    file_sha256  that file's hash; empty for a model whose file is taken as it is
    defaults     sampling parameters, over those that the model's own files name
    files        for a Hugging Face model, the entry of each of its files; empty for a GGUF file
    """

    name: str
    title: str
    license: str
    asset: str
    file_sha256: str
    defaults: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)


MODELS: Mapping[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec(
            name="smollm2-135m",
            title="SmolLM2 135M Instruct",
            license="Apache-2.0",
            asset="smollm2-135m-instruct-q4_1.gguf",
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            # Temperature and top_p as the publisher's model card uses them.
            defaults={
                "temperature": 0.2,
                "top_k": 0,
                "top_p": 0.9,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "max_tokens": 512,
            },
        ),
        ModelSpec(
            name="qwen3-0.6b",
            title="Qwen3 0.6B",
            license="Apache-2.0",
            asset="qwen3-0.6b/model.safetensors",
            file_sha256="f47f71177f32bcd101b7573ec9171e6a57f4f4d31148d38e382306f42996874b",
            # The rest is in the publisher's generation_config.json. It thinks before it answers.
            defaults={"max_tokens": 4096},
            files={
                name: f"qwen3-0.6b/{name}"
                for name in (
                    "config.json",
                    "generation_config.json",
                    "tokenizer.json",
                    "tokenizer_config.json",
                    "model.safetensors",
                )
            },
        ),
    )
}
