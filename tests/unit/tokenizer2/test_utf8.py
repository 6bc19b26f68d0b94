"""Whole characters as they come; the same wherever the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.tokenizer2.utf8 import InvalidUtf8, Utf8Stream

chunked = st.one_of(
    st.lists(st.binary(max_size=6), max_size=8),
    st.tuples(st.text(st.characters(codec="utf-8")), st.integers(1, 5)).map(
        lambda p: [p[0].encode()[at : at + p[1]] for at in range(0, len(p[0].encode()), p[1])]
    ),
)


def feed_all(chunks: list[bytes]) -> tuple[list[bytes], bytes, int | None]:
    """What each chunk released, what was held at the end, and where the stream was found invalid."""
    stream = Utf8Stream()
    released = []
    for chunk in chunks:
        try:
            released.append(stream.feed(chunk))
        except InvalidUtf8 as error:
            return [*released, error.data], b"", error.offset
    return released, stream.finish(), None


def prefixes() -> frozenset[bytes]:
    """Every proper beginning of a character of two or more bytes. (64 neighbours share theirs.)"""
    scalars = [*range(0x80, 0xD800, 64), *range(0xE000, 0x110000, 64)]
    characters = [chr(scalar).encode() for scalar in scalars]
    return frozenset(data[:size] for data in characters for size in range(1, len(data)))


PREFIXES = prefixes()


def oracle(chunks: list[bytes]) -> tuple[list[bytes], bytes, int | None]:
    """The same by enumeration. (CPython's incremental decoder is late to refuse a surrogate: ED A0.)"""
    released: list[bytes] = []
    held = b""
    done = 0
    for chunk in chunks:
        whole = b""
        for byte in chunk:
            held += bytes([byte])
            if is_character(held):
                whole += held
                held = b""
            elif held not in PREFIXES:
                return [*released, whole], b"", done + len(whole)
        released.append(whole)
        done += len(whole)
    return released, held, None


def is_character(data: bytes) -> bool:
    """Whether CPython decodes `data` to one character."""
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


@given(chunks=chunked)
def test_equals_the_oracle(chunks: list[bytes]) -> None:
    assert feed_all(chunks) == oracle(chunks)


@given(chunks=chunked)
def test_byte_at_a_time_equals_all_at_once(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    whole, whole_held, whole_invalid = feed_all([data])
    single, single_held, single_invalid = feed_all([bytes([byte]) for byte in data])
    assert (b"".join(whole), whole_held, whole_invalid) == (b"".join(single), single_held, single_invalid)


def test_every_lead_and_every_next_byte() -> None:
    for pair in itertools.product(range(256), repeat=2):
        for rest in (b"", b"\x80", b"\xbf\xbfa"):
            data = bytes(pair) + rest
            assert feed_all([data]) == oracle([data])


def test_every_scalar_comes_out_whole() -> None:
    for code_point in [*range(0xD800), *range(0xE000, 0x110000, 7)]:
        data = chr(code_point).encode()
        stream = Utf8Stream()
        assert [stream.feed(data[:-1]), stream.feed(data[-1:]), stream.finish()] == [b"", data, b""]


@pytest.mark.parametrize(
    ("chunks", "released"),
    [
        (["4869", "20", "f09f", "ab", "a0", "21"], ["Hi", " ", "", "", "🫠", "!"]),
        (["d180d0bed0b7", "20d1", "89"], ["роз", " ", "щ"]),
        (["efbbbf", "6869"], ["\ufeff", "hi"]),
    ],
)
def test_tokens_that_cut_characters(chunks: list[str], released: list[str]) -> None:
    assert feed_all([bytes.fromhex(chunk) for chunk in chunks])[0] == [text.encode() for text in released]


def test_an_invalid_byte_loses_nothing_before_it() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"ab\xf0\x9f") == b"ab"
    with pytest.raises(InvalidUtf8) as error:
        stream.feed(b"a")
    assert (error.value.offset, error.value.data) == (2, b"")
    stream = Utf8Stream()
    assert stream.feed("é".encode()) == "é".encode()
    with pytest.raises(InvalidUtf8) as error:
        stream.feed("ж".encode() + b"\xff!")
    assert (error.value.offset, error.value.data) == (4, "ж".encode())


def test_what_is_unfinished_at_the_end_is_reported() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"x\xe2\x82") == b"x"
    assert stream.finish() == b"\xe2\x82"
