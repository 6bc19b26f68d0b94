"""Models for Prompt2's tests: a template and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from slm2_web.compile.gguf import GgufFile
from slm2_web.compile.tokenizer import compile_gguf_tokenizer
from slm2_web.manifest import TemplateSpec, parse_manifest
from slm2_web.template2.machine import HasRender, template_for
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_bpe import as_gguf, tiny_metadata


class Model(NamedTuple):
    """What a prompt is made with."""

    template: HasRender
    tokenizer: Tokenizer


def _tiny_tokenizer() -> Tokenizer:
    data: Any = compile_gguf_tokenizer(cast(GgufFile, as_gguf(tiny_metadata())))
    return Tokenizer.from_bytes(data)


@pytest.fixture(scope="session")
def tiny() -> Model:
    """ChatML with eleven merges and no normalization: its ids are nearly its bytes."""
    tokenizer = _tiny_tokenizer()
    return Model(template_for(TemplateSpec("chatml", None), tokenizer), tokenizer)


@pytest.fixture(scope="session")
def tiny_raw() -> Model:
    """The same without any frame: everything is one stretch."""
    tokenizer = _tiny_tokenizer()
    return Model(template_for(TemplateSpec("raw", None), tokenizer), tokenizer)


@pytest.fixture(scope="session")
def smollm2(packed_smollm2: Path, smollm2_tokenizer: Tokenizer) -> Model:
    """SmolLM2: ChatML with a default system prompt."""
    manifest = parse_manifest((packed_smollm2 / "manifest.json").read_bytes())
    return Model(template_for(manifest.template, smollm2_tokenizer), smollm2_tokenizer)


@pytest.fixture(scope="session")
def qwen3(qwen3_tokenizer: Tokenizer) -> Model:
    """Qwen3: tools, thoughts, NFC."""
    return Model(template_for(TemplateSpec("qwen3", None), qwen3_tokenizer), qwen3_tokenizer)
