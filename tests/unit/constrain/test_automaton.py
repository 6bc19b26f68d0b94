"""The automaton of an expression against a matcher that tries everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.constrain import automaton
from slm2_web.constrain.automaton import DEAD, Automaton, TooManyStates, utf8_ranges
from slm2_web.constrain.language import (
    Alt,
    Chars,
    Expression,
    Repeat,
    Seq,
    chars,
    literal,
    one_of,
    optional,
    outside,
)
from slm2_web.errors import InputError

ALL_BYTES = bytes(range(256))
LETTERS = "abé€𝄞"


def ends(expression: Expression, text: str, start: int) -> set[int]:
    """Where a match of `expression` from `start` may end, by definition."""
    match expression:
        case Chars(ranges):
            fits = start < len(text) and any(a <= ord(text[start]) <= b for a, b in ranges)
            return {start + 1} if fits else set()
        case Seq(items):
            found = {start}
            for item in items:
                found = {end for at in found for end in ends(item, text, at)}
            return found
        case Alt(items):
            return {end for item in items for end in ends(item, text, start)}
        case Repeat(item, least, most):
            found, reached = {start}, {start} if least == 0 else set()
            for count in range(1, (len(text) + least if most is None else most) + 1):
                found = {end for at in found for end in ends(item, text, at)}
                if count >= least:
                    reached |= found
            return reached


sets = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3).map(lambda some: one_of("".join(some)))
expressions: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(sets, sets.map(outside), st.just(Seq(()))),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda items: Seq(tuple(items))),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: Alt(tuple(items))),
        st.builds(
            lambda item, least, more: Repeat(item, least, None if more is None else least + more),
            inner,
            st.integers(0, 2),
            st.one_of(st.none(), st.integers(0, 2)),
        ),
    ),
    max_leaves=6,
)


@given(expressions, st.lists(st.text(st.sampled_from(LETTERS), max_size=5), min_size=1, max_size=8))
def test_equal_to_the_definition(expression: Expression, texts: list[str]) -> None:
    found = Automaton(expression, ALL_BYTES)
    for text in texts:
        state = found.after(found.start, text.encode())
        assert found.accepts(state) == (len(text) in ends(expression, text, 0)), text


@given(expressions, st.text(st.sampled_from(LETTERS), max_size=4))
def test_what_lives_can_be_finished(expression: Expression, text: str) -> None:
    found = Automaton(expression, ALL_BYTES)
    data = text.encode()
    for length in range(len(data) + 1):
        state = found.after(found.start, data[:length])
        seen, waiting = {state}, [state] if state != DEAD else []
        while waiting and not any(found.accepts(s) for s in seen):
            after = found.step(np.full(256, waiting.pop(), np.int32), np.arange(256, dtype=np.uint8))
            new = {int(s) for s in after} - seen - {DEAD}
            seen |= new
            waiting += new
        assert state == DEAD or any(found.accepts(s) for s in seen)


def test_many_at_once_go_where_one_goes() -> None:
    found = Automaton(Repeat(Alt((literal("ab"), literal("é"))), 0, None), ALL_BYTES)
    states, data = np.zeros(512, np.int32), np.tile(np.arange(256, dtype=np.uint8), 2)
    states[:256] = found.start
    states[256:] = found.after(found.start, "é".encode()[:1])
    expected = [found.after(int(s), bytes([b])) for s, b in zip(states, data, strict=True)]
    assert found.step(states, data).tolist() == expected


@settings(max_examples=300)
@given(st.integers(0, 0x10FFFF), st.integers(0, 3000))
def test_byte_ranges_are_the_characters_utf8(first: int, more: int) -> None:
    for low, high in chars([(first, min(first + more, 0x10FFFF))]).ranges:
        texts = {chr(code).encode() for code in range(low, high + 1)}
        count = 0
        for sequence in utf8_ranges(low, high):
            size = 1
            for a, b in sequence:
                size *= b - a + 1
            count += size
            for corner in (bytes(a for a, _ in sequence), bytes(b for _, b in sequence)):
                assert corner in texts
        assert count == len(texts)


def test_every_character_and_nothing_else_is_text() -> None:
    everything = Automaton(Repeat(outside(Chars(())), 0, None), ALL_BYTES)
    total = sum(np.prod([b - a + 1 for a, b in s]) for s in utf8_ranges(0, 0xD7FF)) + sum(
        np.prod([b - a + 1 for a, b in s]) for s in utf8_ranges(0xE000, 0x10FFFF)
    )
    assert total == 0x110000 - 0x800
    for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xe0\x80\x80"):
        assert everything.after(everything.start, bad) == DEAD


def test_bytes_without_a_token_lead_nowhere() -> None:
    expression = Alt((literal("ab"), literal("cd")))
    found = Automaton(expression, b"abc")
    assert found.after(found.start, b"c") == DEAD  # d could not follow
    assert found.accepts(found.after(found.start, b"ab"))
    with pytest.raises(InputError, match="no text of"):
        Automaton(literal("d"), b"abc")
    with pytest.raises(InputError, match="no text of"):
        Automaton(Alt(()), ALL_BYTES)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="places in the text"):
        Automaton(Repeat(Repeat(literal("ab"), 0, 1000), 0, 1000), ALL_BYTES)
    deep: Expression = literal("a")
    for _ in range(400):
        deep = Seq((deep, literal("b")))
    with pytest.raises(InputError, match="nesting"):
        Automaton(deep, ALL_BYTES)
    monkeypatch.setattr(automaton, "MAX_STATES", 50)
    # "an a, 20 characters before the end" needs 2^20 states
    many = Seq((Repeat(one_of("ab"), 0, None), one_of("a"), Repeat(one_of("ab"), 20, 20)))
    found = Automaton(many, ALL_BYTES)
    texts = b"".join(f"{i:08b}".replace("0", "a").replace("1", "b").encode() for i in range(200))
    with pytest.raises(TooManyStates):
        found.after(found.start, texts)
    found.forget()
    assert found.n_states == 2
    assert found.accepts(found.after(found.start, b"a" + b"b" * 20))


def test_ways_to_be_empty_are_bounded() -> None:
    with pytest.raises(InputError, match="too many ways") as caught:
        Automaton(Repeat(optional(one_of("a")), 4000, 4000), ALL_BYTES)
    assert caught.value.code == "input.response_format"
