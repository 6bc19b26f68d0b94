"""The container: one layout, and any other bytes are refused."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web import container
from slm2_web.errors import FormatError

SECTIONS = {"HEAD": b"\x01\x02\x03", "NULL": b"", "DATA": bytes(range(100))}
HEAD_BYTES, TABLE_AT, ENTRY_BYTES = 24, 56, 24

tags = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abc", min_size=4, max_size=4)


def redigest(data: bytes) -> bytes:
    """`data` with the digest that its content has: damage that the digest does not show."""
    if len(data) < TABLE_AT:
        return data
    digest = hashlib.sha256(data[:HEAD_BYTES] + data[TABLE_AT:]).digest()
    return data[:HEAD_BYTES] + digest + data[TABLE_AT:]


def assert_refused(data: bytes) -> None:
    with pytest.raises(FormatError) as error:
        container.read(data)
    assert error.value.code == "format.tokenizer_file"
    assert set(error.value.detail) == {"place", "found", "allowed"}


@given(sections=st.dictionaries(tags, st.binary(max_size=200), max_size=8), bits=st.integers(0, 8))
def test_reads_what_was_written(sections: dict[str, bytes], bits: int) -> None:
    data = container.write(sections, alignment=1 << bits)
    read = container.read(data)
    assert {tag: bytes(view) for tag, view in read.items()} == sections
    assert list(read) == list(sections)
    assert data == container.write(sections, alignment=1 << bits)


def test_layout() -> None:
    data = container.write(SECTIONS)
    assert data[:24] == b"\x93SLM2TOK" + struct.pack("<IIQ", 2, 3, len(data))
    assert data[24:56] == hashlib.sha256(data[:24] + data[56:]).digest()
    assert struct.unpack_from("<4sIQQ", data, 56) == (b"HEAD", 64, 128, 3)
    assert struct.unpack_from("<4sIQQ", data, 80) == (b"NULL", 64, 192, 0)
    assert struct.unpack_from("<4sIQQ", data, 104) == (b"DATA", 64, 192, 100)
    assert len(data) == 292


def test_a_reader_may_demand_an_alignment() -> None:
    data = container.write(SECTIONS, alignment=16)
    assert container.read(data, alignment=16) == container.read(data)
    with pytest.raises(FormatError) as error:
        container.read(data, alignment=64)
    assert error.value.detail["allowed"] == "64"


def test_sections_are_read_only_views() -> None:
    data = bytearray(container.write(SECTIONS))
    view = container.read(memoryview(data))["DATA"]
    assert view.readonly
    data[-1] ^= 1
    assert view[-1] == 99 ^ 1


def test_every_changed_byte_is_refused() -> None:
    data = container.write(SECTIONS)
    for at in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            assert_refused(data[:at] + bytes([data[at] ^ change]) + data[at + 1 :])


def test_every_other_length_is_refused() -> None:
    data = container.write(SECTIONS)
    for size in range(len(data)):
        assert_refused(data[:size])
        assert_refused(redigest(data[:size]))
    assert_refused(data + b"\x00")
    assert_refused(redigest(data + b"\x00"))


def test_changes_with_a_right_digest_are_refused_or_harmless() -> None:
    data = container.write(SECTIONS)
    codes = set()
    table_end = TABLE_AT + 3 * ENTRY_BYTES
    for at in [*range(HEAD_BYTES), *range(TABLE_AT, len(data))]:
        for value in {0, 1, 0x7F, 0xFF, data[at] ^ 1, data[at] ^ 0x80} - {data[at]}:
            changed = redigest(data[:at] + bytes([value]) + data[at + 1 :])
            try:
                sections = container.read(changed)
            except FormatError as error:
                codes.add(error.code)
                continue
            # Accepted: a tag, an alignment that gives the same places, or content; never a place or a size.
            assert [len(view) for view in sections.values()] == [3, 0, 100]
            in_entry = (at - TABLE_AT) % ENTRY_BYTES
            assert at >= table_end or in_entry < 8
    assert codes == {"format.tokenizer_file"}


@pytest.mark.parametrize(
    ("at", "code", "value"),
    [
        (8, "<I", 1),  # version
        (12, "<I", 65),  # sections
        (12, "<I", 0xFFFFFFFF),
        (16, "<Q", 1 << 63),  # size
        (60, "<I", 0),  # alignment
        (60, "<I", 3),
        (60, "<I", 1 << 17),
        (64, "<Q", 64),  # offset: into the table
        (64, "<Q", 192),  # offset: a gap
        (64, "<Q", (1 << 64) - 64),
        (72, "<Q", 200),  # size: over the next
        (72, "<Q", (1 << 64) - 1),
        (80, "<4s", b"HEAD"),  # twice
        (80, "<4s", b"NU\x00L"),
        (150, "<B", 1),  # padding
    ],
)
def test_damage_with_a_right_digest(at: int, code: str, value: object) -> None:
    data = bytearray(container.write(SECTIONS))
    struct.pack_into(code, data, at, value)
    assert_refused(redigest(bytes(data)))
    assert_refused(bytes(data))


@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert_refused(data)
    assert_refused(redigest(container.MAGIC + data))
