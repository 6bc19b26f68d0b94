"""Patterns as automata: equal to a backtracking engine, and a refusal that names what is not in the
subset."""

from __future__ import annotations

import re
import time
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slm2_web.compile.dfa import PATTERNS, compile_pattern, split_automaton
from slm2_web.compile.regex import unicode_sets
from slm2_web.errors import FormatError
from slm2_web.tokenizer2.split import Splitter
from slm2_web.tokenizer2.tables import ACCEPT, DEAD


def splitter_of(pattern: str) -> Splitter:
    split = compile_pattern(pattern)
    return Splitter(split.start, split.classes, split.goto, split.flags)


def assert_equal_pieces(pattern: str, texts: list[str]) -> None:
    splitter = splitter_of(pattern)
    expected = re.compile(pattern)
    for text in texts:
        pieces = [piece.decode() for piece in splitter.split(text.encode())]
        assert pieces == [match.group() for match in expected.finditer(text)], (pattern, text)


SHORT = ["".join(chars) for n in range(6) for chars in product("ab \u00e9", repeat=n)]


@pytest.mark.parametrize(
    "pattern",
    [
        r"a|ab|abc|\s|\S",  # the first alternative wins, not the longest
        r"ab|a|\s|\S",
        r"(?:a|ab)(?:b|a)|\s|\S",
        r"a{2}|\s|\S",
        r"a{1,3}|\s|\S",
        r"a{0,2}b|\s|\S",
        r"a*b|\s|\S",
        r"a?a?a?aaa|\s|\S",
        r"(?:ab)+|\s|\S",
        r"(?:a|b )*\u00e9|\s|\S".replace(r"\u00e9", "\u00e9"),
        r"[ ]+(?![^ ])|[^ab]| +|a+(?!b)|\s|\S",
        r"a+(?!b)|b+(?!a)|\s|\S",
        r"(?:a+|a+b)(?! )|\s|\S",
        r"[^ ]+(?![ ])|\s|\S",
        r"\s+(?!\S)|\s+|\S",
        r"[a-b]+|[^a-b]",
    ],
)
def test_equals_a_backtracking_engine(pattern: str) -> None:
    assert_equal_pieces(pattern, SHORT)


atoms = st.sampled_from(["a", "b", " ", "[ab]", "[^a]", "[^ab]", "\\S", "\\s", "\u00e9", "[^ \u00e9]"])
repeats = st.sampled_from(["", "", "?", "*", "+", "{2}", "{1,2}", "{0,2}"])
sequences = st.lists(st.tuples(atoms, repeats).map("".join), min_size=1, max_size=3).map("".join)
groups = st.lists(sequences, min_size=1, max_size=2).map(lambda some: f"(?:{'|'.join(some)})")
alternatives = st.tuples(
    st.lists(st.one_of(sequences, st.tuples(groups, repeats).map("".join)), min_size=1, max_size=2).map(
        "".join
    ),
    st.sampled_from(["", "", "(?!a)", "(?!\\S)", "(?![^b ])"]),
).map("".join)


@settings(max_examples=40, deadline=None)
@given(some=st.lists(alternatives, min_size=1, max_size=3))
def test_any_pattern_equals_a_backtracking_engine(some: list[str]) -> None:
    pattern = "|".join([*some, "\\s|\\S"])
    assume(not re.compile(pattern).match(""))
    try:
        splitter = splitter_of(pattern)
    except FormatError as error:
        # Random patterns may also come to more states than are allowed, which others test.
        why = "may be empty|leaves characters|more than [0-9]+ states"
        if error.code == "format.unsupported" and re.search(why, error.message):
            return
        raise
    expected = re.compile(pattern)
    for text in SHORT[:: max(1, len(SHORT) // 150)]:
        pieces = [piece.decode() for piece in splitter.split(text.encode())]
        assert pieces == [match.group() for match in expected.finditer(text)], (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"a.b|[^x]", "'.b|[^x'"),
        (r"^a|[^x]", "'^a|[^x'"),
        (r"a$|[^x]", "'$|[^x]'"),
        (r"(a)|[^x]", "'(a)|[^'"),
        (r"(?=a)a|[^x]", "'(?=a)a'"),
        (r"(?<!a)a|[^x]", "'(?<!a)'"),
        (r"(?>a)|[^x]", "'(?>a)|'"),
        (r"(?i)a|[^x]", "'(?i)a|'"),
        (r"a+?|[^x]", "a repeat that '?|[^x]' follows"),
        (r"a++|[^x]", "a repeat that '+|[^x]' follows"),
        (r"a{2}{2}|[^x]", "a repeat that '{2}|[^' follows"),
        (r"a{2,}|[^x]", "{2,"),
        (r"a{,2}|[^x]", "{,2"),
        (r"a{99}|[^x]", "{99}"),
        (r"a{3,2}|[^x]", "{3,2}"),
        (r"a{0}|[^x]", "{0}"),
        (r"*a|[^x]", "'*a|[^x'"),
        (r"\d|[^x]", "'\\\\d|[^x'"),
        (r"\p{Lu}|[^x]", "'\\\\p{Lu}'"),
        (r"\P{L}|[^x]", "'\\\\P{L}|'"),
        (r"\w|[^x]", "'\\\\w|[^x'"),
        (r"\1|[^x]", "'\\\\1|[^x'"),
        (r"[a&&b]|[^x]", "'&&b]|['"),
        (r"[a[b]]|[^x]", "'[b]]|['"),
        (r"[b-a]|[^x]", "a range without two ends in order"),
        (r"[\s-a]|[^x]", "a range without two ends in order"),
        (r"[a", "the end of the pattern"),
        (r"(?:a", "the end of the pattern"),
        (r"a)|[^x]", "a ')' that closes nothing"),
        (r"(?!a)b|[^x]", "'(?!' that something follows"),
        (r"(?:a(?!b))c|[^x]", "'(?!' that something follows"),
        (r"(?:a(?!b))+|[^x]", "a repeated '(?!'"),
        (r"(?:a?)+|[^x]", "an unbounded repeat of what may be empty"),
        (r"(?:a*|b)*|[^x]", "an unbounded repeat of what may be empty"),
        (r"(?!ab)|[^x]", "'b)|[^x'"),
        (r"(?i:st)|[^x]", "'st' without case"),
        (r"(?i:\u00e9)|[^x]".replace(r"\u00e9", "\u00e9"), "'\u00e9' without case"),
        (r"(?:" * 10 + "a" + ")" * 10, "groups nested deeper than 8"),
        ("\\", "'\\\\'"),
    ],
)
def test_what_is_not_in_the_subset_is_named(pattern: str, found: str) -> None:
    with pytest.raises(FormatError) as error:
        compile_pattern(pattern)
    assert error.value.code == "format.unsupported"
    assert error.value.detail["place"].startswith("pattern, character ")
    assert error.value.detail["found"] == found


@pytest.mark.parametrize(
    "pattern", ["a", r"\S+", "", "a*", r"a*|[^x]|x", r"\s+|\S*", "(?!a)|[^a]|a", r"aa|[^a]", "[^x]"]
)
def test_a_pattern_that_leaves_gaps_or_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(FormatError) as error:
        compile_pattern(pattern)
    assert error.value.code == "format.unsupported"
    assert "leaves characters between its matches" in error.value.message


def test_the_pinned_classes() -> None:
    sizes = {name: int(chars.sum()) for name, chars in unicode_sets().items()}
    assert sizes == {"\\p{L}": 141_028, "\\p{M}": 2_501, "\\p{N}": 1_911, "\\s": 25}


def test_sizes() -> None:
    # docs/tokenizer.md has these.
    sizes = {
        name: (len(a.goto), a.n_char_states, a.goto.shape[1])
        for name, a in ((name, split_automaton(name)) for name in PATTERNS)
    }
    assert sizes == {
        "gpt-2": (1097, 13, 108),
        "smollm": (1218, 12, 108),
        "qwen2": (1342, 16, 110),
        "llama-bpe": (1526, 18, 110),
        "qwen35": (1347, 16, 110),
    }


@pytest.mark.parametrize("name", PATTERNS)
def test_only_utf8_is_followed_and_each_character_is_a_match(name: str) -> None:
    split = split_automaton(name)

    def follow(data: bytes) -> int:
        state = split.start
        for byte in data:
            state = int(split.goto[state, split.classes[byte]])
        return state

    for char in map(chr, (*range(0x800), *range(0x800, 0xD800, 61), *range(0xE000, 0x110000, 997), 0x10FFFF)):
        assert split.flags[follow(char.encode())] == ACCEPT
    bad = [
        "80",
        "c080",
        "c1bf",
        "e08080",
        "e09fbf",
        "eda080",
        "edbfbf",
        "f0808080",
        "f08fbfbf",
        "f4908080",
        "f5",
        "ff",
    ]
    for text in bad:
        assert follow(bytes.fromhex(text)) == DEAD


def test_compiling_is_quick() -> None:
    started = time.process_time()
    compile_pattern(PATTERNS["qwen2"])
    assert time.process_time() - started < 5
