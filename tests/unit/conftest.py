"""Fixtures of the default model's text: its tokenizer, and the oracles for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slm2_web.manifest import parse_manifest
from slm2_web.tokenizer2.tokenizer import Tokenizer
from text_oracles import bpe_oracle, gguf_metadata


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_gguf: Path) -> dict[str, Any]:
    """The GGUF's metadata, read by PyPI `gguf`."""
    return gguf_metadata(smollm2_gguf)


@pytest.fixture(scope="session")
def smollm2_tokenizer(packed_smollm2: Path) -> Tokenizer:
    """The packed model's tokenizer."""
    manifest = parse_manifest((packed_smollm2 / "manifest.json").read_bytes())
    return Tokenizer.from_bytes((packed_smollm2 / manifest.tokenizer.file).read_bytes())


@pytest.fixture(scope="session")
def text_oracle(smollm2_metadata: dict[str, Any]) -> Any:
    """`tokenizers` without added tokens: the oracle for untrusted text."""
    return bpe_oracle(smollm2_metadata, added=False)


@pytest.fixture(scope="session")
def trusted_oracle(smollm2_metadata: dict[str, Any]) -> Any:
    """`tokenizers` with the control tokens: the oracle for trusted text."""
    return bpe_oracle(smollm2_metadata, added=True)
