"""NFC of Unicode 9.0: the publisher's vectors, and Python's `unicodedata` where the two versions must
agree."""

from __future__ import annotations

import gzip
import json
import random
import unicodedata
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.compile.nfc import DATA_FILE, nfc_tables
from slm2_web.tokenizer2.normalize import JAMO_L, JAMO_T, JAMO_V, SYLLABLES, Normalizer
from text_oracles import VECTORS

# Marks of many classes, letters that compose with them, jamo and syllables, singletons, exclusions.
DENSE = [
    *"aeioAEO \u00e9\u1eb9\u1e69\u0152",
    *(chr(c) for c in range(0x0300, 0x0370)),
    *"\u0323\u0307\u031b\u0345\u05b4\u05bc\u064b\u3099\u309a\u0f71\u0f72\u0f74",
    *"\u212b\u2126\u0958\u0f43\ufb2c\U0001d15e\U00011131\U00011127\U0001109a\u0344\u0f73",
    *"\u1100\u1161\u11a8\uac00\uac01\u1112\u1175\u11c2\u11a7\u09c7\u09be\u0b47\u0b3e",
]


def make_normalizer() -> Normalizer:
    nfc = nfc_tables()
    tables: Any = SimpleNamespace(
        norm_index=nfc.index,
        norm_blocks=nfc.blocks,
        norm_records=nfc.records,
        norm_decomposed=nfc.decomposed,
        norm_compositions=nfc.compositions,
    )
    return Normalizer(tables)


NORMALIZER = make_normalizer()


def normalized(text: str) -> str:
    return NORMALIZER.normalize(text.encode()).decode()


@cache
def newer() -> frozenset[str]:
    """What Python's Unicode knows of canonical equivalence and Unicode 9.0 did not."""
    ours = {char for char in map(chr, (*range(0xD800), *range(0xE000, 0x110000))) if _has_properties(char)}
    data = json.loads(DATA_FILE.read_text("utf-8"))
    known = {chr(int(code, 16)) for code in data["decompositions"]} | set(map(chr, SYLLABLES))
    for text in data["combining_classes"]:
        first, last = (int(code, 16) for code in text.split("-"))
        known |= set(map(chr, range(first, last + 1)))
    return frozenset(ours - known)


def _has_properties(char: str) -> bool:
    return bool(unicodedata.combining(char)) or unicodedata.normalize("NFD", char) != char


def test_the_publishers_vectors() -> None:
    vectors = json.loads(gzip.decompress((VECTORS / "nfc_ucd9.json.gz").read_bytes()))
    assert len(vectors) == 20_828
    for text, expected in vectors:
        assert normalized(text) == expected, ascii(text)
        assert normalized(expected) == expected, ascii(expected)


def test_every_scalar_equals_unicodedata() -> None:
    chars = [chr(c) for c in (*range(0xD800), *range(0xE000, 0x110000)) if chr(c) not in newer()]
    some = [char for n, char in enumerate(chars) if n % 101 == 0 or (_has_properties(char) and n % 3 == 0)]
    for context, used in (("{}", chars), ("a{}", some), ("e{}\u0301", some), ("\u1100{}", some)):
        # U+0000 keeps them apart: it composes with nothing.
        text = "\0".join(context.format(char) for char in used)
        assert normalized(text) == unicodedata.normalize("NFC", text)


def test_what_is_newer_is_left_as_it_is() -> None:
    text = "\0".join(sorted(newer()))
    assert newer()
    assert normalized(text) == text


def test_all_pairs_of_jamo() -> None:
    text = "\0".join(chr(a) + chr(b) for a in JAMO_L for b in JAMO_V)
    text += "\0".join(chr(a) + chr(b) for a in (0xAC00, 0xAC01, 0xD788, 0x1161) for b in (*JAMO_T, 0x11A7))
    assert normalized(text) == unicodedata.normalize("NFC", text)


@given(text=st.text(st.sampled_from(DENSE), max_size=30))
def test_dense_mixtures_equal_unicodedata(text: str) -> None:
    assert normalized(text) == unicodedata.normalize("NFC", text)
    assert normalized(unicodedata.normalize("NFD", text)) == unicodedata.normalize("NFC", text)


@given(text=st.text(st.characters(codec="utf-8")))
def test_any_text(text: str) -> None:
    once = normalized(text)
    assert normalized(once) == once
    if not newer().intersection(text):
        assert once == unicodedata.normalize("NFC", text)


def test_long_runs_of_marks() -> None:
    rng = random.Random(1)
    text = "a" + "".join(rng.choices("\u0301\u0323\u0345\u0334", k=30_000))
    assert normalized(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    "text", ["", "plain", "\u00e9t\u00e9", "\u4f60\u597d\u3002", "\u0915\u093f", "\U0001f600"]
)
def test_what_is_normalized_is_returned_itself(text: str) -> None:
    data = text.encode()
    assert NORMALIZER.normalize(data) is data


@given(text=st.text(st.sampled_from(DENSE), max_size=12), more=st.text(st.sampled_from(DENSE), max_size=12))
def test_nothing_composes_over_a_boundary(text: str, more: str) -> None:
    if more and NORMALIZER.is_boundary(ord(more[0])):
        assert normalized(text + more) == normalized(text) + normalized(more)
