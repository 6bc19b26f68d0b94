"""tokenizer.slm2tok: hostile files are refused, and what is accepted keeps its promises."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import struct
from typing import Any

import numpy as np
import pytest

from slm2_web import container
from slm2_web.compile.dfa import compile_pattern
from slm2_web.compile.tokenizer import compile_gguf_tokenizer
from slm2_web.errors import FormatError, InputError
from slm2_web.tokenizer2 import tables as module
from slm2_web.tokenizer2.runs import Trusted, Untrusted
from slm2_web.tokenizer2.tables import NO_TOKEN, Tables, Vocabulary, pack, parse, parse_remote
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_bpe import as_gguf, tiny_metadata

TEXT = "hello <|im_end|>! im_ aaaaa 12 '\u00e9e\u0301".encode()
TAGS = {
    "offsets": ("OFFS", "<u4"),
    "byte_ids": ("BYTE", "<u4"),
    "merged": ("MERG", "<u4"),
    "added": ("ADDT", "<u4"),
    "pair_base": ("PBAS", "<u4"),
    "pair_slots": ("PSLT", "<u4"),
    "words": ("WORD", "<u4"),
    "marker_classes": ("MCLS", "u1"),
    "marker_goto": ("MGTO", "<u2"),
    "marker_ends": ("MEND", "<u4"),
    "split_classes": ("SCLS", "u1"),
    "split_next": ("SNXT", "<u2"),
    "split_flags": ("SFLG", "u1"),
    "norm_index": ("NIDX", "<u2"),
    "norm_blocks": ("NBLK", "<u2"),
    "norm_records": ("NREC", "<u4"),
    "norm_decomposed": ("NDEC", "<u4"),
    "norm_compositions": ("NCMP", "<u4"),
}
BIG = 0xFFFFFFFF


@pytest.fixture(scope="module")
def tiny() -> bytes:
    """A small file: few tokens, and a pattern with few states."""
    tables = parse(compile_gguf_tokenizer(as_gguf(tiny_metadata())))
    split = compile_pattern(r"[ ]+(?![ab])|[^\n]|\n+")
    return pack(
        dataclasses.replace(
            tables, split_classes=split.classes, split_next=split.goto, split_flags=split.flags
        )
    )


@pytest.fixture(scope="module")
def tiny_nfc() -> bytes:
    """A file with all tables."""
    return compile_gguf_tokenizer(as_gguf(tiny_metadata(pre="qwen2")))


def redigest(data: bytes) -> bytes:
    digest = hashlib.sha256(data[:24] + data[56:]).digest()
    return data[:24] + digest + data[56:]


class Elsewhere:
    """A file in another memory; `largest`: bytes that were copied of it at once, at the most."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.largest = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, start: int, end: int) -> bytes:
        assert 0 <= start <= end <= len(self._data)
        self.largest = max(self.largest, end - start)
        return self._data[start:end]


def assert_refused(data: bytes) -> None:
    """In this memory; in another one, too, unless the file's own digest alone is wrong."""
    with pytest.raises(FormatError) as error:
        Tokenizer.from_bytes(data)
    assert error.value.code == "format.tokenizer_file"
    assert set(error.value.detail) == {"place", "found", "allowed"}
    if error.value.detail["place"] == "sha256":
        return
    with pytest.raises(FormatError) as again:
        parse_remote(Elsewhere(data))
    assert again.value.detail == error.value.detail


def assert_keeps_its_promises(data: bytes) -> bool:
    """Whether `data` is accepted; if so, it neither loses a byte nor gives a control id."""
    try:
        tokenizer = Tokenizer.from_bytes(data)
    except FormatError as error:
        if error.code != "format.tokenizer_file":
            raise
        return False
    try:
        ids = tokenizer.encode([Untrusted(TEXT)])
        tokenizer.encode([Trusted(TEXT)])
    except InputError as error:
        if error.code != "input.character":
            raise
        return True
    assert not any(map(tokenizer.is_control, ids))
    if tokenizer.normalizer is None:
        assert tokenizer.decode(ids) == TEXT
    return True


def test_pack_and_parse_are_inverse(
    tiny: bytes, tiny_nfc: bytes, smollm2_file: bytes, qwen3_file: bytes
) -> None:
    for data in (tiny, tiny_nfc, smollm2_file, qwen3_file):
        assert pack(parse(data)) == data


def test_the_files_are_small(smollm2_file: bytes, qwen3_file: bytes) -> None:
    assert len(smollm2_file) < 3_000_000
    assert len(qwen3_file) < 8_000_000


def test_tables_are_used_where_they_lie(qwen3_file: bytes) -> None:
    tables = parse(qwen3_file)
    for name in TAGS:
        array = getattr(tables, name)
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_a_file_elsewhere_gives_the_same_vocabulary_a_part_at_a_time(
    tiny: bytes, tiny_nfc: bytes, smollm2_file: bytes, qwen3_file: bytes
) -> None:
    for data in (tiny, tiny_nfc, smollm2_file, qwen3_file):
        source = Elsewhere(data)
        found, want = parse_remote(source), parse(data)
        assert not isinstance(found, Tables)
        for field in dataclasses.fields(Vocabulary):
            one, other = getattr(found, field.name), getattr(want, field.name)
            assert np.array_equal(np.asarray(one), np.asarray(other)), field.name
        # BLOB is kept. What is bigger is read a part at a time.
        assert source.largest <= max(len(want.blob), want.offsets.nbytes, want.split_next.nbytes, 64 << 10)
    assert source.largest < want.pair_slots.nbytes


def test_every_changed_byte_is_refused(tiny: bytes) -> None:
    for at in range(len(tiny)):
        assert_refused(tiny[:at] + bytes([tiny[at] ^ (1 << at % 8)]) + tiny[at + 1 :])


def test_every_length_field_is_checked(tiny: bytes) -> None:
    # Number of sections, file size, and the alignment, offset and size of each section, with a right digest.
    fields = [(12, "<I"), (16, "<Q")]
    n_sections = struct.unpack_from("<I", tiny, 12)[0]
    for entry in range(56, 56 + 24 * n_sections, 24):
        fields += [(entry + 4, "<I"), (entry + 8, "<Q"), (entry + 16, "<Q")]
    for at, kind in fields:
        (value,) = struct.unpack_from(kind, tiny, at)
        most = (1 << 8 * struct.calcsize(kind)) - 1
        others = {
            0,
            1,
            value - 1,
            value + 1,
            value + 4,
            value + 64,
            value * 2,
            len(tiny),
            most,
            most - 63,
            most >> 1,
        }
        for other in others - {value, -1}:
            changed = bytearray(tiny)
            struct.pack_into(kind, changed, at, other)
            assert_refused(redigest(bytes(changed)))


def test_every_size_in_the_head_is_checked(tiny: bytes, tiny_nfc: bytes) -> None:
    for data in (tiny, tiny_nfc):
        sections = {tag: bytes(view) for tag, view in container.read(data).items()}
        head = np.frombuffer(sections["HEAD"], "<u4")
        for at, name in enumerate(module._HEAD_FIELDS):
            for value in {
                0,
                1,
                int(head[at]) - 1,
                int(head[at]) + 1,
                int(head[at]) * 2,
                1 << 16,
                1 << 30,
                BIG,
            }:
                if value in (int(head[at]), -1):
                    continue
                changed = head.copy()
                changed[at] = value
                file = container.write(sections | {"HEAD": changed.tobytes()})
                # What the split was made from and the start state are no sizes; what they may be is.
                if name in ("split", "start_state", "max_word_bytes", "normalizer"):
                    assert_keeps_its_promises(file)
                else:
                    assert_refused(file)


def test_changes_with_a_right_digest_never_break_a_promise(tiny: bytes, tiny_nfc: bytes) -> None:
    rng = random.Random(1)
    for data, n in ((tiny, 5000), (tiny_nfc, 1500)):
        places = [*range(24), *range(56, 56 + 24 * 20), *rng.choices(range(56, len(data)), k=n)]
        accepted = 0
        for at in places:
            value = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, data[at] ^ 1, data[at] ^ 0x10))
            accepted += assert_keeps_its_promises(redigest(data[:at] + bytes([value]) + data[at + 1 :]))
        assert 100 < accepted < len(places)


def changed_tables(data: bytes, name: str, at: Any, value: object) -> bytes:
    """The packed `data` with one entry of one table changed and a right digest."""
    tag, kind = TAGS[name]
    array = getattr(parse(data), name).copy()
    array[at] = value
    sections = {tag: bytes(view) for tag, view in container.read(data).items()}
    sections[tag] = array.astype(kind).tobytes()
    return container.write(sections)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("offsets", 0, 1),
        ("offsets", 5, BIG),
        ("offsets", -1, 1 << 20),
        ("offsets", 4, 0),
        ("byte_ids", 0x41, 0),  # a control token
        ("byte_ids", 0x41, 5),  # another byte's
        ("byte_ids", 0x41, 0xFFFFFFF0),
        ("byte_ids", 0x41, 266),  # a longer token
        ("merged", 0, BIG),
        ("merged", 0, 1),  # a control token
        ("merged", 0, 7),  # another length
        ("merged", 0, 260),  # other bytes
        ("added", (0, 0), BIG),
        ("added", (1, 0), 0),
        ("added", (0, 1), 2),
        ("pair_base", 20, BIG - 1),
        ("pair_slots", (slice(None), 0), NO_TOKEN),
        ("pair_slots", (0, 1), 1 << 20),
        ("words", 0, BIG),
        ("words", slice(None), 1),  # a control token, in every slot
        ("words", slice(None), 8),  # full: a search would have no end
        ("marker_classes", 0, 255),
        ("marker_goto", (0, 0), 0xFFFF),
        ("marker_goto", (0, 0), 5),  # deeper than one byte can be
        ("marker_ends", (0, 0), 5),
        ("marker_ends", (slice(None), 0), 0),  # no markers
        ("marker_ends", (-1, 1), 1),
        ("marker_ends", (0, 2), 1),
        ("split_classes", 0, 255),
        ("split_next", (0, 0), 1),
        ("split_next", (1, 0), 0xFFFF),
        ("split_flags", 0, 1),
        ("split_flags", 1, 1),
        ("split_flags", 2, 8),
        ("split_flags", 2, 3),
    ],
)
def test_a_wrong_table_is_refused(tiny: bytes, name: str, at: Any, value: object) -> None:
    assert_refused(changed_tables(tiny, name, at, value))


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("byte_ids", 0x41, NO_TOKEN),  # NFC could make it
        ("norm_index", 0, 0xFFFF),
        ("norm_blocks", (0, 0), 0xFFFF),
        ("norm_records", (0, 0), 1),
        ("norm_records", (5, 1), 1 << 20),
        ("norm_records", (5, 0), 0xFF << 16),
        ("norm_decomposed", 0, 0x110000),
        ("norm_decomposed", 0, 0xD800),
        ("norm_compositions", (0, 2), 0xDFFF),
        ("norm_compositions", (1, 0), 0),
    ],
)
def test_a_wrong_table_of_nfc_is_refused(tiny_nfc: bytes, name: str, at: Any, value: object) -> None:
    assert_refused(changed_tables(tiny_nfc, name, at, value))


def test_a_rank_twice_is_refused(tiny: bytes) -> None:
    slots = parse(tiny).pair_slots.copy()
    used = np.flatnonzero(slots[:, 0] != NO_TOKEN)
    assert_refused(changed_tables(tiny, "pair_slots", (used[0], 1), slots[used[1], 1]))


def test_a_marker_twice_is_refused(tiny: bytes) -> None:
    tables = parse(tiny)
    offsets = tables.offsets.copy()
    offsets[1:3] = 10, 20
    sections = {tag: bytes(view) for tag, view in container.read(tiny).items()}
    sections["BLOB"] = b"<|im_end|>" * 2 + bytes(tables.blob)[20:]
    sections["OFFS"] = offsets.astype("<u4").tobytes()
    assert_refused(container.write(sections))


@pytest.mark.parametrize("tag", ["HEAD", "BLOB", *(tag for tag, _ in TAGS.values())])
def test_missing_or_cut_sections_are_refused(tiny_nfc: bytes, tag: str) -> None:
    sections = {tag: bytes(view) for tag, view in container.read(tiny_nfc).items()}
    assert_refused(container.write({t: d for t, d in sections.items() if t != tag}))
    assert_refused(container.write(sections | {tag: sections[tag][:-1]}))
    assert_refused(container.write(sections | {tag: sections[tag] + b"\x00" * 4}))
    assert_refused(container.write(sections | {"MORE": b""}))


def test_another_alignment_is_refused(tiny: bytes) -> None:
    sections = {tag: bytes(view) for tag, view in container.read(tiny).items()}
    assert container.write(sections) == tiny
    assert_refused(container.write(sections, alignment=32))


def test_pack_refuses_what_parse_would(tiny: bytes) -> None:
    tables: Tables = parse(tiny)
    merged = tables.merged.copy()
    merged[0] = 0
    with pytest.raises(FormatError):
        pack(dataclasses.replace(tables, merged=merged))
