"""Strict JSON: what json accepts beyond the standard is refused, and nothing crashes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.strictjson import NotJson, loads, show


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"a":1,"a":1}', "'a' occurs twice"),
        (b'[{"x":{"b":1,"c":2,"b":3}}]', "'b' occurs twice"),
        (b"NaN", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"-Infinity", "-Infinity"),
        (b"1e999", "too large"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b'"\xed\xa0\x80"', "not UTF-8 at byte 1"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 100_000, "too deeply"),
        (b'{"a":' * 100_000, "too deeply"),
        (b"9" * 5000, "4300"),
        (b"1 2", "Extra data"),
        (b"'a'", "Expecting value"),
        (b"[1,]", ""),
        (b'"\n"', "control character"),
        (b" " * 101, "101 bytes"),
    ],
)
def test_refused(data: bytes, says: str) -> None:
    limit = 100 if data == b" " * 101 else 1 << 20
    with pytest.raises(NotJson) as caught:
        loads(data, max_bytes=limit)
    assert says.lower() in str(caught.value).lower()
    assert len(str(caught.value)) <= 200


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_json_passes_unchanged(value: Any) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            continue
        assert loads(data, max_bytes=1 << 20) == value


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    try:
        loads(data, max_bytes=50)
    except NotJson:
        return
    assert len(data) <= 50


def test_show_is_short_ascii() -> None:
    assert show("\ud800") == "'\\ud800'"
    assert len(show("x" * 10_000)) == 80
