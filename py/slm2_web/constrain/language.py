"""Regular languages of text, as expressions: what schema.py and pattern.py write and automaton.py reads.

    Chars      one character of a set
    Seq        one after the other; of nothing: the empty text
    Alt        one of several
    Repeat     at least `least` times, at most `most` times or without end

Expressions are shared: where the same object occurs twice before the same continuation, its states do too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_CODE_POINT = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """`ranges`: (first, last) code points, ascending, apart from each other, without surrogates."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Seq:
    """The items in order."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alt:
    """Any of the items."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """`item`, `least` to `most` times; most None: without end."""

    item: Expression
    least: int
    most: int | None


Expression = Chars | Seq | Alt | Repeat

EMPTY = Seq(())


def chars(ranges: Iterable[tuple[int, int]]) -> Chars:
    """The characters in any of `ranges`, which may overlap; surrogates, which no UTF-8 has, are left out."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    whole: list[tuple[int, int]] = []
    for first, last in merged:
        whole += [(first, min(last, SURROGATES[0] - 1))] if first < SURROGATES[0] else []
        whole += [(max(first, SURROGATES[1] + 1), last)] if last > SURROGATES[1] else []
    return Chars(tuple(whole))


def one_of(text: str) -> Chars:
    """Any character of `text`."""
    return chars((ord(c), ord(c)) for c in text)


def outside(some: Chars) -> Chars:
    """The characters that `some` lacks."""
    ends = [-1, *(end for first, last in some.ranges for end in (first - 1, last)), MAX_CODE_POINT]
    return chars((a + 1, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b)


def literal(text: str) -> Seq:
    """`text` and nothing else."""
    return Seq(tuple(one_of(c) for c in text))


def optional(item: Expression) -> Repeat:
    """`item` or nothing."""
    return Repeat(item, 0, 1)
