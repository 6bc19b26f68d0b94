"""A small byte-level BPE vocabulary as GGUF metadata, for tests that damage it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from slm2_web.compile.vocabulary import byte_alphabet

MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello", "a a", "aa aa", "Ġ Ġ", "1 2", "i m", "im _")
MARKERS = ("<|im_start|>", "<|im_end|>", "<|im_end|>!")


def tiny_metadata(
    *, pre: str = "smollm", merges: Sequence[str] = MERGES, markers: Sequence[str] = MARKERS
) -> dict[str, Any]:
    """The markers (control tokens), the 256 byte tokens, and one token for each merge."""
    tokens = [*markers, *byte_alphabet()]
    for merge in merges:
        token = merge.replace(" ", "")
        if token not in tokens:
            tokens.append(token)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(markers) + [1] * (len(tokens) - len(markers)),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.eos_token_id": 1,
    }


def as_gguf(metadata: dict[str, Any]) -> SimpleNamespace:
    """What `compile_gguf_tokenizer` takes."""
    return SimpleNamespace(metadata=metadata)
