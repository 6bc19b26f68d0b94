"""Stop strings: reported faults, an oracle that looks at the whole text, and every way to cut it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slm2_web.stopstrings import StopStrings

VECTORS = json.loads((Path(__file__).parent / "vectors" / "reply_cases.json").read_bytes())
CASES: list[dict[str, Any]] = [case for case in VECTORS["cases"] if case["area"] == "stop-string"]


def run(chunks: list[bytes], stops: list[bytes]) -> tuple[list[bytes], bytes | None]:
    """The released texts, one per chunk and one at the end, and the stop string found."""
    stream = StopStrings(stops)
    deltas: list[bytes] = []
    for chunk in chunks:
        delta, stop = stream.feed(chunk)
        deltas.append(delta)
        if stop is not None:
            return deltas, stop
    deltas.append(stream.finish())
    return deltas, None


def oracle(text: bytes, stops: list[bytes]) -> tuple[bytes, bytes | None]:
    """The first end of any stop string; the longest of those that end there."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_reported_faults(case: dict[str, Any]) -> None:
    chunks = [chunk.encode() for chunk in case["input"]["chunks"]]
    stops = [stop.encode() for stop in case["input"]["stop"]]
    deltas, stop = run(chunks, stops)
    expected = [delta.encode() for delta in case["expected"]["deltas"]]
    expected += [b""] * (len(deltas) - len(expected))  # the cases leave out what comes after the stop
    assert deltas == expected[: len(deltas)]
    assert not any(expected[len(deltas) :])
    assert b"".join(deltas) == case["expected"]["text"].encode()
    assert (stop is not None) == (case["expected"]["reason"] == "stop")


ab = st.text("ab", max_size=30).map(str.encode)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=6).map(str.encode), max_size=5)


@given(ab, stop_lists, st.data())
@example(b"aab", [b"aab", b"ab"], None)
@example(b"xyz", [b"yz", b"z"], None)
@example(b"abab", [b"ba", b"abab"], None)
def test_equals_the_oracle_however_the_text_is_cut(text: bytes, stops: list[bytes], data: Any) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8))) if data else []
    edges = [0, *cuts, len(text)]
    chunks = [text[a:b] for a, b in itertools.pairwise(edges)]
    deltas, stop = run(chunks, stops)
    assert (b"".join(deltas), stop) == oracle(text, stops)


@given(ab, stop_lists)
def test_holds_exactly_what_may_become_a_stop_string(text: bytes, stops: list[bytes]) -> None:
    stream = StopStrings(stops)
    delta, stop = stream.feed(text)
    if stop is not None:
        return
    suffixes = [n for n in range(len(text) + 1) if any(s.startswith(text[len(text) - n :]) for s in stops)]
    held = max(suffixes, default=0)
    assert delta == text[: len(text) - held]
    assert stream.finish() == text[len(text) - held :]


@given(
    st.text(st.sampled_from("aé漢🫠\u0301"), max_size=20),
    st.lists(st.text(st.sampled_from("aé漢🫠\u0301"), min_size=1, max_size=3), max_size=3),
)
def test_releases_whole_characters(text: str, stops: list[str]) -> None:
    deltas, _ = run([character.encode() for character in text], [stop.encode() for stop in stops])
    for delta in deltas:
        delta.decode("utf-8")


def test_a_long_text_of_near_misses_takes_linear_time() -> None:
    stream = StopStrings([b"a" * 1023 + b"b"])
    released = 0
    for _ in range(200):
        delta, stop = stream.feed(b"a" * 1000)
        assert stop is None
        released += len(delta)
    assert released == 200_000 - 1023
