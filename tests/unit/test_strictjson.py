"""Strict JSON: what json accepts beyond the standard is refused, and nothing crashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.strictjson import MAX_DEPTH, Checks, NotJson, loads, real, show


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


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"[{\\"[":', b"}]")])
def test_depth_is_bounded_whatever_python_can_read(begin: bytes, end: bytes) -> None:
    """Brackets in strings are no brackets, nor is what has been closed deep."""
    per_level = begin.count(b"[", 0, 1) + begin.count(b"{", 0, 2)
    n = MAX_DEPTH // per_level
    text = (b"[" * 300 + b"]" * 300).join([b'"', b'"'])
    good = b"[" + b",".join([b"[" + text + b"]"] * 300) + b"," + begin * (n - 1) + b"1" + end * (n - 1) + b"]"
    loads(good, max_bytes=10**7)
    with pytest.raises(NotJson, match="too deeply"):
        loads(b"[" + begin * n + b"1" + end * n + b"]", max_bytes=10**7)


def test_show_of_what_python_does_not_write() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert show(nested) == "a very large list"
    assert show(10**5000) == "a very large int"


@given(st.integers() | st.floats() | st.sampled_from([10**400, -(10**400)]), st.integers(), st.integers())
def test_real_is_the_number_of_its_range(value: float, low: int, high: int) -> None:
    found = real(value, low, high)
    if low <= value <= high:
        assert found == float(value)
        assert isinstance(found, float)
    else:
        assert found is None


def test_real_takes_numbers_only() -> None:
    for value in (True, "1", None, [1], float("nan")):
        assert real(value, -10, 10) is None


CHECKS = Checks(lambda place, found, allowed: LookupError(f"{place}: {found}; {allowed}"))


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (CHECKS.any_object, [{}, {"a": 1}], [[], "a", None, 1, True]),
        (lambda v, p: CHECKS.object_with(v, p, ("a",), ("b",)), [{"a": 1}, {"b": 1, "a": 2}], [{}, {"b": 1}]),
        (lambda v, p: CHECKS.object_with(v, p, ("a",)), [{"a": None}], [{"a": 1, "b": 1}, [], None]),
        (CHECKS.array, [[], [1] * 99], [{}, "a", None, ()]),
        (lambda v, p: CHECKS.array(v, p, 1, 2), [[1], [1, 2]], [[], [1, 2, 3]]),
        (lambda v, p: CHECKS.integer(v, p, -1, 9), [-1, 0, 9], [-2, 10, 1.0, True, "1", None, 10**400]),
        (CHECKS.string, ["", "a", "\ud800"], [b"", 1, None]),
        (CHECKS.text, ["", "\U0001f600"], ["\ud800", "a\udfff", 1]),
        (lambda v, p: CHECKS.text(v, p, 1, 3), ["a", "abc"], ["", "abcd"]),
        (CHECKS.sha256, ["0" * 64, "af" * 32], ["0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", 0, None]),
    ],
)
def test_checks(check: Callable[[Any, str], Any], good: list[Any], bad: list[Any]) -> None:
    """The value itself, or an error that names its place in one printable line."""
    for value in good:
        assert check(value, "here") is value
    for value in bad:
        with pytest.raises(LookupError, match="here") as caught:
            check(value, "here")
        assert len(str(caught.value)) < 300
        assert str(caught.value).isprintable()


def test_an_unknown_keys_name_is_shown_safely() -> None:
    for key, place in (("c", "here.c"), ("c\n\u202e", "here.'c\\n\\u202e'"), ("é", "here.'\\xe9'")):
        with pytest.raises(LookupError) as caught:
            CHECKS.object_with({key: 1}, "here", ())
        assert caught.value.args[0].startswith(place + ": an unknown key")
