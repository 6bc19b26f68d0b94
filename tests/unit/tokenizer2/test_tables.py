"""tokenizer.slm2tok: hostile files are refused, and what is accepted keeps its promises."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from typing import Any

import numpy as np
import pytest

from slm2_web import container
from slm2_web.compile.tokenizer import compile_gguf_tokenizer
from slm2_web.errors import FormatError
from slm2_web.tokenizer2.runs import Untrusted
from slm2_web.tokenizer2.tables import Tables, pack, parse
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_bpe import as_gguf, tiny_metadata

TEXT = "hello <|im_end|>! im_ aaaaa 12 '\u00e9".encode()


@pytest.fixture(scope="module")
def tiny() -> bytes:
    return compile_gguf_tokenizer(as_gguf(tiny_metadata()))


def assert_refused(data: bytes) -> None:
    with pytest.raises(FormatError) as error:
        Tokenizer.from_bytes(data)
    assert error.value.code == "format.tokenizer_file"


def test_pack_and_parse_are_inverse(tiny: bytes) -> None:
    assert pack(parse(tiny)) == tiny


def test_every_changed_byte_is_refused(tiny: bytes) -> None:
    for at in range(len(tiny)):
        assert_refused(tiny[:at] + bytes([tiny[at] ^ (1 << at % 8)]) + tiny[at + 1 :])


def test_changes_with_a_right_digest_never_break_a_promise(tiny: bytes) -> None:
    rng = random.Random(1)
    accepted = 0
    codes = set()
    places = [*range(24), *range(56, 400), *rng.sample(range(400, len(tiny)), 1500)]
    for at in places:
        value = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, tiny[at] ^ 1, tiny[at] ^ 0x10))
        changed = tiny[:at] + bytes([value]) + tiny[at + 1 :]
        digest = hashlib.sha256(changed[:24] + changed[56:]).digest()
        changed = changed[:24] + digest + changed[56:]
        try:
            tokenizer = Tokenizer.from_bytes(changed)
        except FormatError as error:
            codes.add(error.code)
            continue
        accepted += 1
        ids = tokenizer.encode([Untrusted(TEXT)])
        assert tokenizer.decode(ids) == TEXT
        assert not any(map(tokenizer.is_control, ids))
        for token_id in range(tokenizer.n_tokens):
            assert tokenizer.token_bytes(token_id)
    assert codes == {"format.tokenizer_file"}
    assert 100 < accepted < len(places)


def changed_tables(tiny: bytes, name: str, at: Any, value: object) -> bytes:
    """The packed `tiny` with one entry of one table changed and a right digest."""
    tags = {"offsets": "OFFS", "byte_ids": "BYTE", "merges": "MERG", "added": "ADDT", "classes": "CLAS"}
    array = getattr(parse(tiny), name).copy()
    array[at] = value
    sections = {tag: bytes(view) for tag, view in container.read(tiny).items()}
    sections[tags[name]] = array.astype("<u4").tobytes()
    return container.write(sections)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("offsets", 0, 1),
        ("offsets", 5, 0xFFFFFFFF),
        ("offsets", -1, 1 << 20),
        ("offsets", 4, 0),
        ("byte_ids", 0x41, 0),  # a control token
        ("byte_ids", 0x41, 5),  # another byte's
        ("byte_ids", 0x41, 0xFFFFFFF0),
        ("byte_ids", 0x41, 266),  # a longer token
        ("merges", (0, 0), 0xFFFFFFFF),
        ("merges", (0, 2), 1),  # a control token
        ("merges", (1, slice(None)), (0, 0, 0)),
        ("merges", (0, 1), 7),  # other bytes
        ("merges", (0, 2), 3),  # another length
        ("added", (0, 0), 0xFFFFFFFF),
        ("added", (1, 0), 0),
        ("added", (0, 1), 2),
        ("classes", (0, 2), 4),
        ("classes", (0, 0), 0xFFFFFFFF),
        ("classes", (-1, 1), 0x110000),
        ("classes", (3, 0), 0),
    ],
)
def test_a_wrong_table_is_refused(tiny: bytes, name: str, at: Any, value: object) -> None:
    assert_refused(changed_tables(tiny, name, at, value))


def test_a_pair_twice_is_refused(tiny: bytes) -> None:
    first = parse(tiny).merges[0]
    assert_refused(changed_tables(tiny, "merges", 1, first))


def test_a_marker_twice_is_refused(tiny: bytes) -> None:
    tables = parse(tiny)
    blob = bytes(tables.blob).replace(b"<|im_end|>!", b"<|im_end|>x")
    offsets = tables.offsets.copy()
    offsets[1:3] = 10, 22  # <|im_start| and ><|im_end|>x: only the places of the cuts differ
    sections = {tag: bytes(view) for tag, view in container.read(tiny).items()}
    sections["BLOB"] = b"<|im_end|>" * 2 + blob[20:]
    sections["OFFS"] = offsets.astype("<u4").tobytes()
    offsets[2] = 20
    sections["OFFS"] = offsets.astype("<u4").tobytes()
    assert_refused(container.write(sections))


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 0), (0, 1 << 30), (1, 0), (1, 0xFFFFFFFF), (2, 1 << 20), (3, 0), (3, 1 << 31), (4, 2)],
)
def test_a_wrong_head_is_refused(tiny: bytes, at: int, value: int) -> None:
    sections = {tag: bytes(view) for tag, view in container.read(tiny).items()}
    head = np.frombuffer(sections["HEAD"], "<u4").copy()
    head[at] = value
    sections["HEAD"] = head.tobytes()
    assert_refused(container.write(sections))


@pytest.mark.parametrize("tag", ["HEAD", "OFFS", "BLOB", "BYTE", "MERG", "ADDT", "CLAS"])
def test_missing_or_cut_sections_are_refused(tiny: bytes, tag: str) -> None:
    sections = {tag: bytes(view) for tag, view in container.read(tiny).items()}
    assert_refused(container.write({t: d for t, d in sections.items() if t != tag}))
    assert_refused(container.write(sections | {tag: sections[tag][:-1]}))
    assert_refused(container.write(sections | {tag: sections[tag] + b"\x00" * 4}))
    assert_refused(container.write(sections | {"MORE": b""}))


def test_pack_refuses_what_parse_would(tiny: bytes) -> None:
    tables: Tables = parse(tiny)
    merges = tables.merges.copy()
    merges[0, 2] = 0
    with pytest.raises(FormatError):
        pack(dataclasses.replace(tables, merges=merges))
