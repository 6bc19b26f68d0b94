"""Pieces equal to those of `regex`, with explicit ranges in place of its own Unicode tables, and of
`tokenizers`."""

from __future__ import annotations

import json
import time

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from slm2_web.compile.dfa import PATTERNS, compile_pattern, split_automaton
from slm2_web.compile.regex import CLASSES_FILE
from slm2_web.tokenizer2.split import Splitter
from split_rules import Splitter as RulesSplitter
from split_rules import split_classes
from text_oracles import any_text, fuzz_texts, prose_and_code

N_FUZZ = 8_000


def splitter_of(pattern: str) -> Splitter:
    split = compile_pattern(pattern) if pattern not in PATTERNS else split_automaton(pattern)
    return Splitter(split.start, split.classes, split.goto, split.flags)


SPLITTERS = {name: splitter_of(name) for name in PATTERNS}


def class_of(name: str) -> str:
    """The inside of a character class with the pinned ranges of `name`."""
    parts = []
    for text in json.loads(CLASSES_FILE.read_text("utf-8"))[name]:
        first, _, last = text.partition("-")
        parts.append(rf"\U{int(first, 16):08X}-\U{int(last or first, 16):08X}")
    return "".join(parts)


L, M, N, S = (class_of(name) for name in ("\\p{L}", "\\p{M}", "\\p{N}", "\\s"))
NUMBER = regex.compile(rf"([{N}])", regex.V0)
SPACES = rf"[{S}]+(?![^{S}])|[{S}]+"
LINES = rf"[{S}]*[\r\n]+"
ANY_CASE = "'[sS\u017f]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{L}]+| ?[{N}]+| ?[^{S}{L}{N}]+|{SPACES}"
EXPECTED = {
    name: regex.compile(pattern, regex.V0)
    for name, pattern in {
        "gpt-2": GPT2,
        "smollm": GPT2,
        "qwen2": rf"{ANY_CASE}|[^\r\n{L}{N}]?[{L}]+|[{N}]| ?[^{S}{L}{N}]+[\r\n]*|{LINES}|{SPACES}",
        "llama-bpe": rf"{ANY_CASE}|[^\r\n{L}{N}]?[{L}]+|[{N}]{{1,3}}| ?[^{S}{L}{N}]+[\r\n]*|{LINES}|{SPACES}",
        "qwen35": rf"{ANY_CASE}|[^\r\n{L}{N}]?[{L}{M}]+|[{N}]| ?[^{S}{L}{M}{N}]+[\r\n]*|{LINES}|{SPACES}",
    }.items()
}


def expected_pieces(name: str, text: str) -> list[str]:
    """The pieces by the definition; `smollm` isolates numbers first, then splits each part."""
    parts = NUMBER.split(text) if name == "smollm" else [text]
    return [piece for part in parts for piece in EXPECTED[name].findall(part)]


def assert_pieces(name: str, text: str) -> None:
    pieces = SPLITTERS[name].split(text.encode())
    assert [piece.decode() for piece in pieces] == expected_pieces(name, text), text


@pytest.mark.parametrize("name", PATTERNS)
def test_fuzz_equals_regex(name: str) -> None:
    for text in [*fuzz_texts(11, N_FUZZ, accept=any_text), *prose_and_code()]:
        assert_pieces(name, text)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.sampled_from("aZ\u00e9 \t\r\n\u3000\u00a0'1\u00b2.!\u0301\U0001f600stremvldSTL\u017f"))
)
def test_dense_mixtures_equal_regex(name: str, text: str) -> None:
    assert_pieces(name, text)


@pytest.mark.parametrize("name", ["qwen2", "llama-bpe", "qwen35"])
def test_fuzz_equals_tokenizers(name: str) -> None:
    oracle = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")
    for text in [*fuzz_texts(12, N_FUZZ, accept=any_text), *prose_and_code()]:
        expected = [piece for piece, _ in oracle.pre_tokenize_str(text)]
        assert [piece.decode() for piece in SPLITTERS[name].split(text.encode())] == expected, text


@pytest.mark.parametrize("name", ["gpt-2", "smollm"])
def test_fuzz_equals_rules_over_classes(name: str) -> None:
    rules = RulesSplitter(name, split_classes())
    for text in [*fuzz_texts(13, N_FUZZ, accept=any_text), *prose_and_code()]:
        assert SPLITTERS[name].split(text.encode()) == rules.split(text.encode()), text


def class_edges() -> list[str]:
    """The characters at both sides of every edge of a class, and some of all others."""
    edges = {0, 0x10FFFF, *range(0, 0x110000, 257)}
    for ranges in json.loads(CLASSES_FILE.read_text("utf-8")).values():
        for text in ranges:
            first, _, last = text.partition("-")
            edges |= {int(first, 16) - 1, int(first, 16), int(last or first, 16), int(last or first, 16) + 1}
    return [chr(c) for c in sorted(edges) if 0 <= c < 0xD800 or 0xE000 <= c < 0x110000]


@pytest.mark.parametrize("name", PATTERNS)
def test_the_edges_of_classes(name: str) -> None:
    # docs/tokenizer.md has the result of a run over every scalar.
    for context in (" {}", "a{}b"):
        text = "\x00".join(context.format(char) for char in class_edges())
        assert_pieces(name, text)


@pytest.mark.parametrize("name", PATTERNS)
@given(text=st.text(st.characters(codec="utf-8")))
def test_pieces_tile_the_text(name: str, text: str) -> None:
    data = text.encode()
    pieces = SPLITTERS[name].split(data)
    assert b"".join(pieces) == data
    assert all(pieces)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=500, deadline=None)
@given(
    text=st.text(st.sampled_from("a \r\n\u30001.'sl\u00e9\u4e00")),
    more=st.text(st.sampled_from("a \n1.'l\u4e00")),
)
def test_stable_cuts_do_not_depend_on_what_follows(name: str, text: str, more: str) -> None:
    cuts = SPLITTERS[name].cuts(text.encode())
    after = SPLITTERS[name].cuts((text + more).encode()).ends
    stable = [end for end in cuts.ends if end <= cuts.stable]
    assert cuts.stable in cuts.ends
    assert after[: len(stable)] == stable


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


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("I'\u017fee", ["I", "'\u017f", "ee"]),  # `'` U+017F is 's without case
        ("DON'Time", ["DON", "'T", "ime"]),
        ("a\n\n\n\nb \n \n  c", ["a", "\n\n\n\n", "b", " \n \n", " ", " c"]),
        ("x.\r\n\r\ny", ["x", ".\r\n\r\n", "y"]),
        ("1234 12", ["1", "2", "3", "4", " ", "1", "2"]),
        ("\u0928\u093f", ["\u0928", "\u093f"]),
        ("  \u0301a", [" ", " \u0301", "a"]),
    ],
)
def test_known_pieces_of_qwen2(text: str, pieces: list[str]) -> None:
    assert [piece.decode() for piece in SPLITTERS["qwen2"].split(text.encode())] == pieces


N_LONG = 400_000
LONG = {
    "letters": (b"a" * N_LONG, 1),
    "spaces": (b" " * N_LONG, 1),
    "digits": (b"1" * N_LONG, N_LONG),
    "apostrophes": (b"'s" * N_LONG, N_LONG),
    "emoji": ("😀".encode() * N_LONG, 1),
    "a line, and spaces that no line follows": (b"\n" + b" " * N_LONG + b"x", None),
    "letters of two bytes, broken off": ("\u00e9".encode() * N_LONG + "\u20ac".encode(), None),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("name", PATTERNS)
def test_long_pieces_take_linear_time(name: str, kind: str) -> None:
    data, n_pieces = LONG[kind]
    started = time.process_time()
    pieces = SPLITTERS[name].split(data)
    # Quadratic work would take days; this takes well under a second on one core of an ordinary machine.
    assert time.process_time() - started < 10
    assert b"".join(pieces) == data
    if kind == "digits" and name in ("gpt-2", "llama-bpe"):
        assert len(pieces) == (1 if name == "gpt-2" else -(-N_LONG // 3))
    elif n_pieces is not None:
        assert len(pieces) == n_pieces


def test_a_run_that_reports_no_match_takes_a_character() -> None:
    split = compile_pattern(r"\s+|\S+")
    silent = Splitter(split.start, split.classes, split.goto, 0 * split.flags)
    assert silent.split("a é😀".encode()) == [b"a", b" ", "é".encode(), "😀".encode()]
