"""Fixtures of the two models' text: their tokenizers, and the oracles for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slm2_web.compile.tokenizer_json import compile_tokenizer_json
from slm2_web.manifest import parse_manifest
from slm2_web.tokenizer2.tokenizer import Tokenizer
from text_oracles import bpe_oracle, gguf_metadata, json_oracle


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_gguf: Path) -> dict[str, Any]:
    """The GGUF's metadata, read by PyPI `gguf`."""
    return gguf_metadata(smollm2_gguf)


@pytest.fixture(scope="session")
def smollm2_file(packed_smollm2: Path) -> bytes:
    """The packed model's tokenizer.slm2tok."""
    manifest = parse_manifest((packed_smollm2 / "manifest.json").read_bytes())
    return (packed_smollm2 / manifest.tokenizer.file).read_bytes()


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_file: bytes) -> Tokenizer:
    """The packed model's tokenizer."""
    return Tokenizer.from_bytes(smollm2_file)


@pytest.fixture(scope="session")
def text_oracle(smollm2_metadata: dict[str, Any]) -> Any:
    """`tokenizers` without added tokens: the oracle for untrusted text."""
    return bpe_oracle(smollm2_metadata, added=False)


@pytest.fixture(scope="session")
def trusted_oracle(smollm2_metadata: dict[str, Any]) -> Any:
    """`tokenizers` with the control tokens: the oracle for trusted text."""
    return bpe_oracle(smollm2_metadata, added=True)


@pytest.fixture(scope="session")
def qwen3_data(qwen3_json: Path) -> dict[str, Any]:
    """What Qwen3's tokenizer.json says. Copy it before changing it."""
    data: dict[str, Any] = json.loads(qwen3_json.read_bytes())
    return data


@pytest.fixture(scope="session")
def qwen3_file(qwen3_json: Path) -> bytes:
    """Qwen3's tokenizer.slm2tok."""
    return compile_tokenizer_json(qwen3_json.read_bytes())


@pytest.fixture(scope="session")
def qwen3_tokenizer(qwen3_file: bytes) -> Tokenizer:
    """Qwen3's tokenizer."""
    return Tokenizer.from_bytes(qwen3_file)


@pytest.fixture(scope="session")
def qwen3_text_oracle(qwen3_data: dict[str, Any]) -> Any:
    """`tokenizers` without added tokens: the oracle for untrusted text."""
    return json_oracle(qwen3_data, added=False)


@pytest.fixture(scope="session")
def qwen3_trusted_oracle(qwen3_data: dict[str, Any]) -> Any:
    """`tokenizers` with the added tokens: the oracle for trusted text."""
    return json_oracle(qwen3_data, added=True)
