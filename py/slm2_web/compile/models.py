"""The models that `compile` knows by name: where each comes from and how it is best sampled.

The bytes are named by an entry of assets.toml and their sha256; what the network looks like is read from
the file itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to pack: `asset` is its entry in assets.toml, `defaults` its sampling parameters."""

    name: str
    title: str
    license: str
    asset: str
    file_sha256: str
    defaults: Mapping[str, Any]


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
    )
}
