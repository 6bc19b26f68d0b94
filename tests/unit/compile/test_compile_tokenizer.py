"""The tokenizer compiler: exact for what it knows, and a refusal that names the rest."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slm2_web.compile.gguf import read_gguf
from slm2_web.compile.tokenizer import compile_gguf_tokenizer
from slm2_web.compile.vocabulary import byte_alphabet
from slm2_web.errors import FormatError
from slm2_web.tokenizer2.runs import Trusted, Untrusted
from slm2_web.tokenizer2.tables import parse
from slm2_web.tokenizer2.tokenizer import Tokenizer
from text_oracles import bpe_oracle, fuzz_texts
from tiny_bpe import MARKERS, as_gguf, tiny_metadata

P = "tokenizer.ggml."


def tokenizer_of(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_bytes(compile_gguf_tokenizer(as_gguf(metadata)))


def refusal(metadata: dict[str, Any]) -> dict[str, Any]:
    """The detail of the refusal of `metadata`."""
    with pytest.raises(FormatError) as error:
        compile_gguf_tokenizer(as_gguf(metadata))
    assert error.value.code == "format.unsupported"
    return error.value.detail


def test_the_real_model(smollm2_gguf: Path, packed_smollm2: Path, smollm2_metadata: dict[str, Any]) -> None:
    with read_gguf(smollm2_gguf) as gguf:
        data = compile_gguf_tokenizer(gguf)
    assert data == (packed_smollm2 / "tokenizer.slm2tok").read_bytes()
    assert data == compile_gguf_tokenizer(as_gguf(smollm2_metadata))
    tables = parse(data)
    assert (tables.n_tokens, len(tables.merged), len(tables.added)) == (49_152, 48_900, 17)
    missing = np.flatnonzero(tables.byte_ids == 0xFFFFFFFF).tolist()
    controls = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D]
    assert missing == [*controls, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)]


@pytest.mark.parametrize("pre", ["gpt-2", "smollm"])
def test_a_tiny_vocabulary_equals_tokenizers(pre: str) -> None:
    metadata = tiny_metadata(pre=pre)
    tokenizer = tokenizer_of(metadata)
    untrusted, trusted = bpe_oracle(metadata, added=False), bpe_oracle(metadata, added=True)
    parts = [
        "hello",
        " hello",
        "hell",
        "aaaa",
        "aaa",
        "  ",
        "12",
        "im_",
        "<|im_start|>",
        "<|im_end|>!",
        "<|im_end|>",
    ]
    for text in fuzz_texts(21, 3000, parts):
        data = text.encode()
        assert tokenizer.encode([Untrusted(data)]) == untrusted.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode([Trusted(data)]) == trusted.encode(text, add_special_tokens=False).ids


def test_user_defined_tokens_are_added_and_shown() -> None:
    metadata = tiny_metadata()
    metadata[P + "token_type"][:3] = [3, 4, 2]
    tokenizer = tokenizer_of(metadata)
    assert [tokenizer.is_control(i) for i in range(4)] == [True, True, True, False]
    assert tokenizer.encode([Trusted("".join(MARKERS).encode())]) == [0, 1, 2]
    assert tokenizer.decode([0, 1, 2], special="hide") == b"<|im_end|>"


def test_markers_are_spelled_as_they_are() -> None:
    metadata = tiny_metadata(markers=["<\uff5cUser\uff5c>", "Ġ x"])
    tokenizer = tokenizer_of(metadata)
    assert tokenizer.token_bytes(0) == "<\uff5cUser\uff5c>".encode()
    assert tokenizer.encode([Trusted("a<\uff5cUser\uff5c>Ġ x".encode())])[1:] == [0, 1]


def test_unused_tokens_at_the_end_are_none() -> None:
    metadata = tiny_metadata()
    n_tokens = len(metadata[P + "tokens"])
    metadata[P + "tokens"] += ["[PAD0]", "[PAD1]"]
    metadata[P + "token_type"] += [5, 5]
    assert tokenizer_of(metadata).n_tokens == n_tokens
    metadata[P + "eos_token_id"] = n_tokens
    assert refusal(metadata)["place"] == P + "eos_token_id"


def test_bytes_that_text_does_not_need_may_be_missing() -> None:
    alphabet = byte_alphabet()
    for char, byte in alphabet.items():
        metadata = tiny_metadata()
        at = metadata[P + "tokens"].index(char)
        del metadata[P + "tokens"][at], metadata[P + "token_type"][at]
        metadata[P + "merges"] = [m for m in metadata[P + "merges"] if char not in m]
        control = byte == 0x7F or (byte < 0x20 and byte not in b"\t\n\r")
        if control or byte in (0xC0, 0xC1, 0xF1, 0xF2) or byte >= 0xF5:
            assert tokenizer_of(metadata).n_tokens == len(metadata[P + "tokens"])
        else:
            assert f"0x{byte:02X}" in refusal(metadata)["found"]


CHANGES: dict[str, tuple[str, object]] = {
    "another model": ("model", "llama"),
    "no model": ("model", None),
    "another pre-tokenizer": ("pre", "llama-v3"),
    "no pre-tokenizer": ("pre", None),
    "a list for a name": ("pre", ["smollm"]),
    "beginning of text added": ("add_bos_token", True),
    "end of text added": ("add_eos_token", True),
    "prefix space": ("add_space_prefix", True),
    "prefix space by its other name": ("add_prefix_space", True),
    "a flag that is no flag": ("add_bos_token", 0),
    "a normalizer": ("precompiled_charsmap", b"x"),
    "an unknown key": ("new_thing", 1),
    "an id out of range": ("bos_token_id", 1 << 20),
    "a negative id": ("bos_token_id", -1),
    "an id that is no id": ("bos_token_id", "1"),
    "no tokens": ("tokens", []),
    "tokens missing": ("tokens", None),
    "tokens as text": ("tokens", "abc"),
    "tokens that are no text": ("tokens", [1, 2]),
    "types missing": ("token_type", None),
    "types of another length": ("token_type", [1, 1]),
    "merges missing": ("merges", None),
    "no merges": ("merges", []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_understood_is_named(name: str) -> None:
    key, value = CHANGES[name]
    metadata = tiny_metadata()
    metadata[P + key] = value
    if value is None:
        del metadata[P + key]
    assert refusal(metadata)["place"] == P + key


@pytest.mark.parametrize(
    ("token_id", "token"),
    [
        (3, "<|im_end|>"),  # twice, as control and normal
        (10, "!"),  # twice
        (260, "a b"),  # not byte-level
        (260, "日"),
        (260, ""),
        (0, ""),
    ],
)
def test_wrong_tokens_are_refused(token_id: int, token: str) -> None:
    metadata = tiny_metadata()
    metadata[P + "tokens"][token_id] = token
    # Twice is found where the second one stands.
    assert refusal(metadata)["place"] in {f"{P}tokens[{i}]" for i in range(len(metadata[P + "tokens"]))}


@pytest.mark.parametrize("kind", [0, 5, 6, 7, -1, 1.0, "1", True])
def test_wrong_types_are_refused(kind: object) -> None:
    metadata = tiny_metadata()
    metadata[P + "token_type"][100] = kind
    assert refusal(metadata)["place"].startswith(P + "token_type")


@pytest.mark.parametrize(
    "merge",
    [
        "xyz a",  # no such left part
        "a xyz",  # no such right part
        "a b",  # no such result
        "h e",  # twice
        "<|im_end|> !",  # a control token's text as a part, and as the result
        "ab",
        " a",
        "a ",
        "a  b",
        "a b c",
        "",
    ],
)
def test_wrong_merges_are_refused(merge: str) -> None:
    metadata = tiny_metadata()
    metadata[P + "merges"].append(merge)
    assert refusal(metadata)["place"] == f"{P}merges[{len(metadata[P + 'merges']) - 1}]"


def test_merges_cannot_make_a_control_token() -> None:
    metadata = tiny_metadata(markers=["he"])
    metadata[P + "eos_token_id"] = 0
    assert refusal(metadata)["place"] == P + "merges[0]"


def test_fuzzed_metadata_compiles_or_is_refused() -> None:
    rng = random.Random(31)
    codes = set()
    values: list[object] = [None, True, -1, 0, 3, 1 << 40, 0.5, "", "a", "a a", [], ["a"], [1], b"x", {}]
    for _ in range(400):
        metadata = tiny_metadata()
        for _ in range(rng.randint(1, 3)):
            key = rng.choice([key for key in metadata if key.startswith(P)])
            value = metadata[key]
            if isinstance(value, list) and value and rng.random() < 0.8:
                value[rng.randrange(len(value))] = rng.choice([*values, rng.choice(value)])
            else:
                metadata[key] = rng.choice(values)
        try:
            tokenizer = tokenizer_of(metadata)
        except FormatError as error:
            codes.add(error.code)
            continue
        codes.add("none")
        assert tokenizer.decode(tokenizer.encode([Untrusted(b"hello hello 12")])) == b"hello hello 12"
    assert codes == {"none", "format.unsupported"}
