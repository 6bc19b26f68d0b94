"""Pieces equal to those of `regex`, with explicit ranges in place of its own Unicode tables."""

from __future__ import annotations

import json
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.compile.tokenizer import CLASSES_FILE, split_classes
from slm2_web.tokenizer2.split import Splitter
from text_oracles import fuzz_texts, prose_and_code

N_FUZZ = 8_000
SPLITTERS = {pattern: Splitter(pattern, split_classes()) for pattern in ("gpt-2", "smollm")}


def class_of(name: str) -> str:
    """The inside of a character class with the pinned ranges of `name`."""
    parts = []
    for text in json.loads(CLASSES_FILE.read_text("utf-8"))[name]:
        first, _, last = text.partition("-")
        parts.append(rf"\U{int(first, 16):08X}-\U{int(last or first, 16):08X}")
    return "".join(parts)


L, N, S = class_of("\\p{L}"), class_of("\\p{N}"), class_of("\\s")
GPT2 = regex.compile(
    rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{L}]+| ?[{N}]+| ?[^{S}{L}{N}]+|[{S}]+(?![^{S}])|[{S}]+", regex.V0
)
NUMBER = regex.compile(rf"([{N}])", regex.V0)


def expected_pieces(pattern: str, text: str) -> list[str]:
    """The pieces by the definition: isolate numbers first if `smollm`, then the pattern on each part."""
    parts = NUMBER.split(text) if pattern == "smollm" else [text]
    return [piece for part in parts for piece in GPT2.findall(part)]


def assert_pieces(pattern: str, text: str) -> None:
    pieces = SPLITTERS[pattern].split(text.encode())
    assert [piece.decode() for piece in pieces] == expected_pieces(pattern, text), text


@pytest.mark.parametrize("pattern", SPLITTERS)
def test_fuzz_equals_regex(pattern: str) -> None:
    for text in [*fuzz_texts(11, N_FUZZ), *prose_and_code()]:
        assert_pieces(pattern, text)


@pytest.mark.parametrize("pattern", SPLITTERS)
@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("aZ\u00e9 \t\n\u3000\u00a0'1\u00b2.!\u0301\U0001f600stremvld")))
def test_dense_mixtures_equal_regex(pattern: str, text: str) -> None:
    assert_pieces(pattern, text)


@pytest.mark.parametrize("pattern", SPLITTERS)
@given(text=st.text(st.characters(codec="utf-8")))
def test_pieces_tile_the_text(pattern: str, text: str) -> None:
    data = text.encode()
    pieces = SPLITTERS[pattern].split(data)
    assert b"".join(pieces) == data
    assert all(pieces)


@pytest.mark.parametrize(
    ("text", "gpt2", "smollm"),
    [
        ("", [], []),
        ("a  b", ["a", " ", " b"], ["a", " ", " b"]),
        ("a  1", ["a", " ", " 1"], ["a", "  ", "1"]),
        ("a 123", ["a", " 123"], ["a", " ", "1", "2", "3"]),
        ("a\n\nb", ["a", "\n", "\n", "b"], ["a", "\n", "\n", "b"]),
        ("a \n", ["a", " \n"], ["a", " \n"]),
        ("I'll", ["I", "'ll"], ["I", "'ll"]),
        ("I'LL", ["I", "'", "LL"], ["I", "'", "LL"]),
        (" 'll", [" '", "ll"], [" '", "ll"]),
        ("''s", ["''", "s"], ["''", "s"]),
        ("'s's", ["'s", "'s"], ["'s", "'s"]),
        ("'seven", ["'s", "even"], ["'s", "even"]),
        ("1's", ["1", "'s"], ["1", "'s"]),
        ("\u3000\u3000a", ["\u3000", "\u3000", "a"], ["\u3000", "\u3000", "a"]),
        (" \ufeffa", [" \ufeff", "a"], [" \ufeff", "a"]),
        ("e\u0301a", ["e", "\u0301", "a"], ["e", "\u0301", "a"]),
    ],
)
def test_known_pieces(text: str, gpt2: list[str], smollm: list[str]) -> None:
    for pattern, expected in (("gpt-2", gpt2), ("smollm", smollm)):
        assert [piece.decode() for piece in SPLITTERS[pattern].split(text.encode())] == expected
        assert expected_pieces(pattern, text) == expected


def test_the_pinned_classes() -> None:
    rows: list[list[int]] = split_classes().tolist()
    sizes = {kind: sum(last - first + 1 for first, last, k in rows if k == kind) for kind in (1, 2, 3)}
    assert sizes == {1: 141_028, 2: 1_911, 3: 25}


def test_long_runs(benchmark_texts: dict[str, Any]) -> None:
    for text, n_pieces in benchmark_texts.values():
        assert len(SPLITTERS["smollm"].split(text)) == n_pieces


@pytest.fixture
def benchmark_texts() -> dict[str, Any]:
    n = 400_000
    return {
        "letters": (b"a" * n, 1),
        "spaces": (b" " * n, 1),
        "digits": (b"1" * n, n),
        "apostrophes": (b"'s" * n, n),
        "emoji": ("😀".encode() * n, 1),
    }
