"""tokenizer.json: exact for what is known, and a refusal that names the construct and where it stands."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from slm2_web.compile.dfa import PATTERNS
from slm2_web.compile.tokenizer_json import PRE_TOKENIZERS, compile_tokenizer_json
from slm2_web.compile.vocabulary import byte_alphabet
from slm2_web.errors import FormatError
from slm2_web.tokenizer2.runs import Trusted, Untrusted
from slm2_web.tokenizer2.tables import parse
from slm2_web.tokenizer2.tokenizer import Tokenizer
from text_oracles import any_text, fuzz_texts, json_oracle
from tiny_bpe import MARKERS, MERGES

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def pre_tokenizer(name: str) -> dict[str, Any]:
    """The pre-tokenizer `name` as `tokenizers` writes it."""
    if name == "gpt-2":
        return {**BYTE_LEVEL, "use_regex": True}
    first = {"type": "Digits", "individual_digits": True}
    if name != "smollm":
        pattern = {"Regex": PATTERNS[name]}
        first = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [first, {**BYTE_LEVEL, "use_regex": name == "smollm"}]}


def tiny_json(name: str = "qwen2") -> dict[str, Any]:
    """A small tokenizer.json with the pre-tokenizer `name`."""
    vocab = {char: n for n, char in enumerate(byte_alphabet())}
    for merge in MERGES:
        vocab.setdefault(merge.replace(" ", ""), len(vocab))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(vocab) + n, "content": text, **flags} for n, text in enumerate(MARKERS)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": pre_tokenizer(name),
        "post_processor": dict(BYTE_LEVEL),
        "decoder": dict(BYTE_LEVEL),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [merge.split(" ") for merge in MERGES],
        },
    }


def compiled(data: object) -> Tokenizer:
    return Tokenizer.from_bytes(compile_tokenizer_json(json.dumps(data).encode()))


def place_of_refusal(data: object) -> str:
    with pytest.raises(FormatError) as error:
        compiled(data)
    assert error.value.code == "format.unsupported"
    assert set(error.value.detail) >= {"place", "found", "allowed"}
    place: str = error.value.detail["place"]
    return place


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_each_pre_tokenizer_equals_tokenizers(name: str) -> None:
    data = tiny_json(name)
    tokenizer = compiled(data)
    assert tokenizer._tables.split == name
    untrusted, trusted = json_oracle(data, added=False), json_oracle(data, added=True)
    parts = ["hello", " hello", "aaaa", "12", "im_", *MARKERS, "1234", "I'LL", "\u0301"]
    newer = {*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)} if name == "smollm" else set()
    for text in fuzz_texts(41, 2000, parts, any_text):
        if newer.isdisjoint(map(ord, text)):
            assert tokenizer.encode([Untrusted(text.encode())]) == untrusted.encode(text).ids, ascii(text)
            assert tokenizer.encode([Trusted(text.encode())]) == trusted.encode(text).ids, ascii(text)


def test_merges_as_text_and_parts_that_may_be_missing() -> None:
    data = tiny_json()
    expected = compile_tokenizer_json(json.dumps(data).encode())
    data["model"]["merges"] = list(MERGES)
    del data["model"]["ignore_merges"], data["model"]["type"]
    data["post_processor"] = None
    assert compile_tokenizer_json(json.dumps(data).encode()) == expected


def test_normalization_is_a_recorded_choice() -> None:
    data = tiny_json()
    text = json.dumps(data).encode()
    assert parse(compile_tokenizer_json(text)).normalizer == "nfc-9.0"
    assert parse(compile_tokenizer_json(text, normalize=False)).normalizer == "as-received"
    data["normalizer"] = None
    text = json.dumps(data).encode()
    assert parse(compile_tokenizer_json(text)).normalizer == "none"
    assert parse(compile_tokenizer_json(text, normalize=False)).normalizer == "none"


def test_ignore_merges_is_taken_where_it_has_no_effect() -> None:
    data = tiny_json()
    data["model"]["ignore_merges"] = True
    compiled(data)
    # A token that no merge makes would be taken as a whole.
    data["model"]["vocab"]["xyz"] = 1000
    assert place_of_refusal(data) == "model ignore_merges"
    data["model"]["ignore_merges"] = False
    assert compiled(data).n_tokens == 1001


def test_an_added_token_that_the_vocabulary_has() -> None:
    data = tiny_json()
    token_id = data["model"]["vocab"]["<|x|>"] = 600
    data["added_tokens"].append({**data["added_tokens"][0], "id": token_id, "content": "<|x|>"})
    tokenizer = compiled(data)
    assert tokenizer.is_control(token_id)
    assert tokenizer.encode([Trusted(b"<|x|>")]) == [token_id]
    assert token_id not in tokenizer.encode([Untrusted(b"<|x|>")])
    data["added_tokens"][-1]["id"] = 601
    assert place_of_refusal(data) == "added_tokens[3].id"


SPLIT = ("pre_tokenizer", "pretokenizers", 0)
CHANGES: list[tuple[tuple[str | int, ...], object, str]] = [
    (("version",), "2.0", "tokenizer.json.version"),
    (("truncation",), {"max_length": 5}, "tokenizer.json.truncation"),
    (("padding",), {"strategy": "BatchLongest"}, "tokenizer.json.padding"),
    (("new_thing",), 1, "tokenizer.json.new_thing"),
    (("normalizer",), {"type": "NFKC"}, "tokenizer.json.normalizer"),
    (("normalizer",), {"type": "Sequence", "normalizers": [{"type": "NFC"}]}, "tokenizer.json.normalizer"),
    (("normalizer", "strip"), True, "tokenizer.json.normalizer.strip"),
    (("normalizer",), "NFC", "tokenizer.json.normalizer"),
    (("pre_tokenizer",), None, "pre_tokenizer"),
    (("pre_tokenizer",), {"type": "Metaspace"}, "pre_tokenizer"),
    (("pre_tokenizer", "extra"), 1, "pre_tokenizer.extra"),
    (("pre_tokenizer", "pretokenizers"), [], "pre_tokenizer.pretokenizers"),
    ((*SPLIT, "pattern"), {"Regex": r"\p{N}"}, "pre_tokenizer.pretokenizers[0].pattern.Regex"),
    ((*SPLIT, "pattern"), {"String": " "}, "pre_tokenizer.pretokenizers[0].pattern.String"),
    ((*SPLIT, "behavior"), "Removed", "pre_tokenizer.pretokenizers[0].behavior"),
    ((*SPLIT, "invert"), True, "pre_tokenizer.pretokenizers[0].invert"),
    (("pre_tokenizer", "pretokenizers", 1, "use_regex"), True, "pre_tokenizer.pretokenizers[1].use_regex"),
    (
        ("pre_tokenizer", "pretokenizers", 1, "add_prefix_space"),
        True,
        "pre_tokenizer.pretokenizers[1].add_prefix_space",
    ),
    (("post_processor",), {"type": "TemplateProcessing", "single": []}, "tokenizer.json.post_processor"),
    (("decoder",), None, "tokenizer.json.decoder"),
    (("decoder",), {"type": "ByteFallback"}, "tokenizer.json.decoder"),
    (("model",), None, "model"),
    (("model", "type"), "WordPiece", "model.type"),
    (("model", "dropout"), 0.1, "model.dropout"),
    (("model", "unk_token"), "a", "model.unk_token"),
    (("model", "continuing_subword_prefix"), "##", "model.continuing_subword_prefix"),
    (("model", "end_of_word_suffix"), "</w>", "model.end_of_word_suffix"),
    (("model", "fuse_unk"), True, "model.fuse_unk"),
    (("model", "byte_fallback"), True, "model.byte_fallback"),
    (("model", "byte_fallback"), 0, "model.byte_fallback"),
    (("model", "ignore_merges"), 1, "model.ignore_merges"),
    (("model", "cache"), 1, "model.cache"),
    (("model", "vocab"), [], "model.vocab"),
    (("model", "vocab", "he"), -1, "model.vocab['he']"),
    (("model", "vocab", "he"), "5", "model.vocab['he']"),
    (("model", "vocab", "he"), True, "model.vocab['he']"),
    (("model", "vocab", "he"), 5, "model.vocab[5]"),  # an id twice
    (("model", "vocab", "a b"), 900, "model.vocab[900]"),  # not byte-level
    (("model", "vocab", ""), 900, "model.vocab[900]"),
    (("model", "merges"), "h e", "model.merges"),
    (("model", "merges"), [], "model.merges"),
    (("model", "merges", 0), "he", "model.merges[0]"),
    (("model", "merges", 0), ["h", "e", "l"], "model.merges[0]"),
    (("model", "merges", 0), ["h", 1], "model.merges[0]"),
    (("model", "merges", 0), ["h", "x"], "model.merges[0]"),  # no such result
    (("model", "merges", 1), ["h", "e"], "model.merges[1]"),  # twice
    (("added_tokens",), {}, "added_tokens"),
    (("added_tokens", 0), "x", "added_tokens[0]"),
    (("added_tokens", 0, "lstrip"), True, "added_tokens[0].lstrip"),
    (("added_tokens", 1, "rstrip"), True, "added_tokens[1].rstrip"),
    (("added_tokens", 0, "single_word"), True, "added_tokens[0].single_word"),
    (("added_tokens", 0, "normalized"), True, "added_tokens[0].normalized"),
    (("added_tokens", 0, "special"), 1, "added_tokens[0].special"),
    (("added_tokens", 0, "other"), 1, "added_tokens[0].other"),
    (("added_tokens", 0, "content"), "", "added_tokens[0].content"),
    (("added_tokens", 1, "content"), MARKERS[0], "added_tokens[1].content"),
    (("added_tokens", 0, "content"), "\ud800", "model.vocab[267]"),
    (("added_tokens", 0, "id"), 1 << 30, "added_tokens[0].id"),
    (("added_tokens", 0, "id"), 3, "model.vocab[3]"),
    (("added_tokens", 0, "content"), "he", "added_tokens[0].id"),
]


@pytest.mark.parametrize(("path", "value", "place"), CHANGES)
def test_what_is_not_understood_is_named(path: tuple[str | int, ...], value: object, place: str) -> None:
    data: Any = copy.deepcopy(tiny_json())
    part = data
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert place_of_refusal(data) == place


@pytest.mark.parametrize(
    "key", ["normalizer", "decoder", "model", "added_tokens", "pre_tokenizer", "post_processor"]
)
def test_a_missing_part_is_named(key: str) -> None:
    data = tiny_json()
    del data[key]
    assert place_of_refusal(data) == f"tokenizer.json.{key}"


def test_every_byte_needs_a_token() -> None:
    for char, byte in list(byte_alphabet().items())[::5]:
        data = tiny_json()
        del data["model"]["vocab"][char]
        data["model"]["merges"] = [m for m in data["model"]["merges"] if char not in "".join(m)]
        with pytest.raises(FormatError) as error:
            compiled(data)
        assert error.value.detail["found"] == f"no token for byte 0x{byte:02X}"


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"\xff", b'{"version": "1.0", "version": "1.0"}', b"1", b"null"]
)
def test_what_is_no_tokenizer_json(data: bytes) -> None:
    with pytest.raises(FormatError) as error:
        compile_tokenizer_json(data)
    assert error.value.code == "format.unsupported"
