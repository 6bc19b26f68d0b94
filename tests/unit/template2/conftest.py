"""Fixtures of the three models' templates, and the publishers' own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slm2_web.compile.tokenizer_json import compile_tokenizer_json
from slm2_web.manifest import parse_manifest
from slm2_web.template2.machine import HasRender, template_for
from slm2_web.tokenizer2.runs import Control, Run
from slm2_web.tokenizer2.tokenizer import Tokenizer
from template_models import SPECS, qwen3_source, qwen25_data, qwen25_source
from template_oracles import TemplateOracle
from text_oracles import control_markers, json_oracle


class Model(NamedTuple):
    """A template and the vocabulary that it is for."""

    template: HasRender
    tokenizer: Tokenizer

    def text(self, runs: list[Run]) -> str:
        """The text of `runs`, markers included."""
        parts = [self.tokenizer.token_bytes(r.id) if isinstance(r, Control) else r.data for r in runs]
        return b"".join(parts).decode()


@pytest.fixture(scope="session")
def models(
    smollm2_tokenizer: Tokenizer, qwen3_tokenizer: Tokenizer, qwen3_data: dict[str, Any], packed_smollm2: Path
) -> dict[str, Model]:
    """By family: Qwen3, Qwen2.5, and SmolLM2 for ChatML."""
    qwen25 = Tokenizer.from_bytes(compile_tokenizer_json(json.dumps(qwen25_data(qwen3_data)).encode()))
    packed = parse_manifest((packed_smollm2 / "manifest.json").read_bytes()).template
    assert packed == SPECS["chatml"]
    tokenizers = {"qwen3": qwen3_tokenizer, "qwen2.5": qwen25, "chatml": smollm2_tokenizer}
    return {
        family: Model(template_for(SPECS[family], tokenizer), tokenizer)
        for family, tokenizer in tokenizers.items()
    }


@pytest.fixture(scope="session")
def publishers(
    smollm2_metadata: dict[str, Any], text_oracle: Any, trusted_oracle: Any, qwen3_data: dict[str, Any]
) -> Mapping[str, TemplateOracle]:
    """By family: the publisher's template."""
    made = {}
    for family, data, source in (
        ("qwen3", qwen3_data, qwen3_source()),
        ("qwen2.5", qwen25_data(qwen3_data), qwen25_source()),
    ):
        markers = {token["content"]: token["id"] for token in data["added_tokens"]}
        oracles = json_oracle(data, added=True), json_oracle(data, added=False)
        made[family] = TemplateOracle(source, *oracles, markers)
    source = smollm2_metadata["tokenizer.chat_template"]
    markers = control_markers(smollm2_metadata)
    return {**made, "chatml": TemplateOracle(source, trusted_oracle, text_oracle, markers)}
