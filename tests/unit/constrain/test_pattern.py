"""Patterns against Python's `re`, and every refusal."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.constrain.automaton import Automaton
from slm2_web.constrain.language import Chars, outside
from slm2_web.constrain.pattern import parse_pattern
from slm2_web.errors import InputError

ALL_BYTES = bytes(range(256))
PATTERNS = [
    "",
    "a|b|",
    "^abc$",
    "(ab)+c?",
    "(?:ab|a)(bc|c)*",
    "a{2}b{1,}c{0,3}",
    "[a-c^]+[^a-c]",
    "[\\]a]?",
    "[-a]+[a-]",
    "\\d{3}-\\d{4}",
    "\\w+\\s\\W\\S\\D",
    "\\u00e9\\x41\\n\\t\\.\\*\\/",
    ".{2,4}",
    "é+€?",
    "[à-ü𝄞]+",
    "(((a)))",
    "[^\\d\\s]{1,3}",
]


def accepts(pattern: str, text: str, *, search: bool = False) -> bool:
    found = Automaton(parse_pattern(pattern, "here", search=search), ALL_BYTES)
    return found.accepts(found.after(found.start, text.encode()))


def compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        # ECMA's '.' leaves out the carriage return too, and its '$' is the very end.
        return re.compile(pattern.replace("$", "\\Z").replace(".{", "[^\\n\\r]{"), re.ASCII)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(data=st.data())
def test_equal_to_re(pattern: str, data: st.DataObject) -> None:
    expected = compiled(pattern)
    alphabet = st.sampled_from("abcAé€𝄞ü12-_ \n\r\t.*/^]$")
    text = data.draw(st.one_of(st.text(alphabet, max_size=8), st.from_regex(expected, fullmatch=True)))
    text = text.encode("utf-8", "ignore").decode()
    assert accepts(pattern, text) == bool(expected.fullmatch(text))
    assert accepts(pattern, text, search=True) == bool(expected.search(text))


@pytest.mark.parametrize(
    ("pattern", "at"),
    [
        ("a**", 2),
        ("a+?", 2),
        ("(a", 2),
        ("a)", 1),
        ("[a", 2),
        ("[a-", 3),
        ("[b-a]", 4),
        ("[\\d-z]", 5),
        ("(?=a)", 0),
        ("(?<n>a)", 0),
        ("\\bword", 0),
        ("\\p{L}", 0),
        ("\\1", 0),
        ("a\\", 1),
        ("a{", 2),
        ("a{,3}", 2),
        ("a{3,2}", 2),
        ("a{99999}", 2),
        ("a{x}", 2),
        ("*a", 0),
        ("a^", 1),
        ("a$b", 2),
        ("^a|b$", 5),
        ("\\uD800", 2),
        ("\\u12", 2),
        ("]", 0),
        ("}", 0),
        ("(" * 40 + ")" * 40, 33),
    ],
)
def test_refused_with_its_place(pattern: str, at: int) -> None:
    with pytest.raises(InputError) as caught:
        parse_pattern(pattern, "here")
    assert caught.value.code == "input.response_format"
    assert caught.value.detail["place"] == f"here, character {at}"


@given(st.text(st.sampled_from("ab()[]{}|?*+.^$\\-,0123dwsux€"), max_size=14))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    # Too large, or of no text, as [^…] of everything is.
    with suppress(InputError):
        Automaton(parse_pattern(text, "here"), ALL_BYTES)


def test_outside_of_everything_is_nothing() -> None:
    assert outside(outside(Chars(()))).ranges == ()
