"""Added tokens: earliest, then longest, within one trusted stretch."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slm2_web.compile.trie import marker_automaton
from slm2_web.tokenizer2.special import AddedTokens

MARKERS = {b"<|a|>": 10, b"<|a|>b": 11, b"<|": 12, b"aab": 13, b"ab": 14, b"\xc3\xa9<": 15}
ADDED = AddedTokens(*marker_automaton(MARKERS))

pieces = st.lists(st.sampled_from([*MARKERS, b"<", b"|", b"a", b"b", b">", b"\xc3\xa9", b""]), max_size=12)
texts = st.lists(st.tuples(pieces.map(b"".join), st.booleans()), max_size=6)


def oracle_find(data: bytes) -> list[tuple[int, int, int]]:
    """Python's `re` is leftmost-first: with the longest alternative first, leftmost-longest."""
    pattern = b"|".join(re.escape(marker) for marker in sorted(MARKERS, key=len, reverse=True))
    return [(match.start(), match.end(), MARKERS[match.group()]) for match in re.finditer(pattern, data)]


@given(data=pieces.map(b"".join))
def test_find_equals_the_oracle(data: bytes) -> None:
    assert ADDED.find(data)[0] == oracle_find(data)


@given(data=pieces.map(b"".join), more=pieces.map(b"".join))
def test_what_is_decided_does_not_depend_on_what_follows(data: bytes, more: bytes) -> None:
    found, undecided = ADDED.find(data)
    decided = [match for match in found if match.start < undecided]
    assert all(match.end <= undecided for match in decided)
    longer = oracle_find(data + more)
    assert longer[: len(decided)] == decided
    assert all(start >= undecided for start, _, _ in longer[len(decided) :])


@given(
    markers=st.lists(st.binary(min_size=1, max_size=4), unique=True, max_size=6),
    at=st.lists(st.integers(0, 5), max_size=12),
)
def test_any_markers(markers: list[bytes], at: list[int]) -> None:
    by_text = {marker: token_id for token_id, marker in enumerate(markers)}
    data = b"".join(markers[n % len(markers)][n % 2 :] for n in at) if markers else b"abc"
    pattern = b"|".join(re.escape(marker) for marker in sorted(markers, key=len, reverse=True))
    expected = [m.group() for m in re.finditer(pattern, data, re.DOTALL)] if markers else []
    found = AddedTokens(*marker_automaton(by_text)).find(data)[0]
    assert [data[start:end] for start, end, _ in found] == expected
    assert [markers[token_id] for _, _, token_id in found] == expected


def test_a_marker_within_a_longer_one_that_does_not_come() -> None:
    added = AddedTokens(*marker_automaton({b"bc": 1, b"abcde": 2, b"abcd|": 3}))
    assert added.find(b"abcd bc abcde")[0] == [(1, 3, 1), (5, 7, 1), (8, 13, 2)]
    assert added.find(b"abcd") == ([(1, 3, 1)], 0)


@given(texts=texts)
def test_spans_tile_the_text_and_only_trusted_bytes_match(texts: list[tuple[bytes, bool]]) -> None:
    by_id = {token_id: marker for marker, token_id in MARKERS.items()}
    spans = list(ADDED.scan(texts))
    assert b"".join(by_id[s] if isinstance(s, int) else s for s in spans) == b"".join(d for d, _ in texts)
    trusted = [t for data, t in texts for _ in data]
    at = 0
    for span in spans:
        size = len(by_id[span]) if isinstance(span, int) else len(span)
        assert size > 0
        assert not isinstance(span, int) or all(trusted[at : at + size])
        at += size
    # Text spans are as long as they can be: no two side by side.
    assert not any(isinstance(x, bytes) and isinstance(y, bytes) for x, y in pairwise(spans))


@given(texts=texts)
def test_untrusted_text_gives_no_id(texts: list[tuple[bytes, bool]]) -> None:
    spans = list(ADDED.scan((data, False) for data, _ in texts))
    assert spans in ([], [b"".join(data for data, _ in texts)])


@given(texts=texts)
def test_trusted_text_is_one_stretch(texts: list[tuple[bytes, bool]]) -> None:
    data = b"".join(d for d, _ in texts)
    spans = ADDED.scan((d, True) for d, _ in texts)
    assert [s for s in spans if isinstance(s, int)] == [token_id for _, _, token_id in oracle_find(data)]


def test_no_markers() -> None:
    assert list(AddedTokens(*marker_automaton({})).scan([(b"<|a|>", True), (b"x", False)])) == [b"<|a|>x"]
