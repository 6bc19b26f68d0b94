"""Added tokens: earliest, then longest, within one trusted stretch."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slm2_web.tokenizer2.special import AddedTokens

MARKERS = {b"<|a|>": 10, b"<|a|>b": 11, b"<|": 12, b"aab": 13, b"ab": 14, b"\xc3\xa9<": 15}

pieces = st.lists(st.sampled_from([*MARKERS, b"<", b"|", b"a", b"b", b">", b"\xc3\xa9", b""]), max_size=12)
texts = st.lists(st.tuples(pieces.map(b"".join), st.booleans()), max_size=6)


def oracle_find(data: bytes) -> list[tuple[int, int, int]]:
    """Python's `re` is leftmost-first: with the longest alternative first, leftmost-longest."""
    pattern = b"|".join(re.escape(marker) for marker in sorted(MARKERS, key=len, reverse=True))
    return [(match.start(), match.end(), MARKERS[match.group()]) for match in re.finditer(pattern, data)]


@given(data=pieces.map(b"".join))
def test_find_equals_the_oracle(data: bytes) -> None:
    assert list(AddedTokens(MARKERS).find(data)) == oracle_find(data)


@given(texts=texts)
def test_spans_tile_the_text_and_only_trusted_bytes_match(texts: list[tuple[bytes, bool]]) -> None:
    by_id = {token_id: marker for marker, token_id in MARKERS.items()}
    spans = list(AddedTokens(MARKERS).scan(texts))
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
    spans = list(AddedTokens(MARKERS).scan((data, False) for data, _ in texts))
    assert spans in ([], [b"".join(data for data, _ in texts)])


@given(texts=texts)
def test_trusted_text_is_one_stretch(texts: list[tuple[bytes, bool]]) -> None:
    data = b"".join(d for d, _ in texts)
    spans = AddedTokens(MARKERS).scan((d, True) for d, _ in texts)
    assert [s for s in spans if isinstance(s, int)] == [token_id for _, _, token_id in oracle_find(data)]


def test_no_markers() -> None:
    assert list(AddedTokens({}).scan([(b"<|a|>", True), (b"x", False)])) == [b"<|a|>x"]
