"""A second opinion on the split: the package `regex`, by the publishers' patterns, with its own tables.

Ours is an automaton with the classes of Unicode 16 (tokenizer2/split.py). `regex` is of a later version; so a
text is put to it only if all of its characters were assigned in the version that Python here knows, which is
not later.

Source: Qwen2's tokenizer.json; transformers' GPT-2 (ByteLevel), which SmolLM2 applies between single digits.
"""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache
from typing import Any, Final

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Name -> (what is a piece by itself, before all else; the pattern).
PATTERNS: Final = {
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (
        None,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}


def answer(pattern: str, text: str) -> str:
    """JSON: the pieces of `text`, or null where a character may be younger than ours are."""
    return json.dumps(pieces(pattern, text) if is_known(text) else None, ensure_ascii=True)


def is_known(text: str) -> bool:
    """Whether every character is assigned, in this Python's version of Unicode."""
    return all(unicodedata.category(character) != "Cn" for character in text)


def pieces(pattern: str, text: str) -> list[str]:
    """The pieces of `text` by `regex`. Raises: KeyError for a pattern that there is not."""
    alone, each = _compiled(pattern)
    parts = [text] if alone is None else alone.split(text)
    return [piece for part in parts for piece in each.findall(part)]


@lru_cache
def _compiled(pattern: str) -> tuple[Any, Any]:
    import regex

    alone, each = PATTERNS[pattern]
    return alone and regex.compile(f"({alone})", regex.V0), regex.compile(each, regex.V0)
