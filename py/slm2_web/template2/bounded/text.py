"""Strings that know, character by character, what the template wrote and what came from outside.

Theory of operation
-------------------
A `Text` is a `str` with the ranges of its characters that are trusted: the template's own literals. A plain
`str` is untrusted throughout. So whatever Python does to a string without asking this file gives a plain
`str`: trust can be lost by an oversight, never gained. The functions here keep it where it is plain which
character came from where (joining, cutting, stripping, splitting, replacing); where it isn't, as when a
change of case mixes with its neighbours, the result is untrusted.

`Safe` marks what the `safe` filter returns. Adding a string to it escapes the string for HTML, in a template
for chats too, since that is what Jinja does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

Ranges = tuple[int, ...]  # start, end, start, end ...: ascending, neither touching nor empty


class Text(str):
    """A string with trusted characters."""

    __slots__ = ("trusted",)
    trusted: Ranges


class Safe(Text):
    """A string that the template declared safe for HTML."""

    __slots__ = ()


def literal(value: str) -> str:
    """A string of the template's own."""
    return _text(value, (0, len(value)) if value else ())


def ranges(value: str) -> Ranges:
    """The trusted ranges of a string."""
    return value.trusted if isinstance(value, Text) else ()


def is_trusted(value: str) -> bool:
    """Whether every character is trusted."""
    return not value or ranges(value) == (0, len(value))


def plain(value: str) -> str:
    """The string without `Safe`; its trust stays."""
    return _text(str(value), value.trusted) if isinstance(value, Safe) else value


def safe(value: str) -> str:
    """The string, declared safe."""
    return _text(value, ranges(value), Safe)


def concat(parts: Sequence[str]) -> str:
    """All parts, one after the other; never `Safe`."""
    trusted: list[int] = []
    at, last = 0, -1
    for part in parts:
        if isinstance(part, Text):
            for i in range(0, len(part.trusted), 2):
                start, end = part.trusted[i] + at, part.trusted[i + 1] + at
                if start == last:
                    trusted[-1] = end
                else:
                    trusted += (start, end)
                last = end
        at += len(part)
    return _text("".join(parts), tuple(trusted))


def add(a: str, b: str) -> str:
    """`a + b`. What is added to a `Safe` string is escaped, and the sum is `Safe`."""
    if isinstance(a, Safe) or isinstance(b, Safe):
        return safe(concat([escaped(a), escaped(b)]))
    return concat((a, b))


_ESCAPES = {"&": "&amp;", ">": "&gt;", "<": "&lt;", "'": "&#39;", '"': "&#34;"}


def escaped(value: str) -> str:
    """The string with HTML's five characters escaped, unless it is `Safe` already."""
    if isinstance(value, Safe):
        return value
    table = str.maketrans(_ESCAPES)
    return concat([_text(s := str(p).translate(table), (0, len(s)) if t else ()) for p, t in pieces(value)])


def pieces(value: str) -> Iterator[tuple[str, bool]]:
    """The string as stretches of one trust: (plain string, trusted)."""
    at = 0
    for start, end in _pairs(ranges(value)):
        if at < start:
            yield str.__getitem__(value, slice(at, start)), False
        yield str.__getitem__(value, slice(start, end)), True
        at = end
    if at < len(value):
        yield str.__getitem__(value, slice(at, None)), False


def cut(value: str, start: int, end: int) -> str:
    """`value[start:end]`, for 0 <= start <= end <= len(value)."""
    if not isinstance(value, Text):
        return value[start:end]
    bounds = value.trusted
    at = bisect_right(bounds, start)
    trusted = [0] if at % 2 and start < end else []
    while at < len(bounds) and bounds[at] < end:
        trusted.append(bounds[at] - start)
        at += 1
    if len(trusted) % 2:
        trusted.append(end - start)
    return _text(str.__getitem__(value, slice(start, end)), tuple(trusted), type(value))


def sliced(value: str, index: slice) -> str:
    """`value[index]`."""
    start, stop, step = index.indices(len(value))
    if step == 1:
        return cut(value, start, max(start, stop))
    if not isinstance(value, Text):
        return value[index]
    return _as(value, concat(list(characters(value))[index]))


def characters(value: str) -> Iterator[str]:
    """What iterating over the string gives."""
    return (literal(char) if trusted else char for part, trusted in pieces(value) for char in part)


def strip(value: str, chars: str | None = None, *, left: bool = True, right: bool = True) -> str:
    """`strip`, `lstrip` (not right) and `rstrip` (not left)."""
    start = len(value) - len(str.lstrip(value, chars)) if left else 0
    end = len(str.rstrip(value, chars)) if right else len(value)
    return cut(value, start, max(start, end))


def split(value: str, sep: str | None = None, limit: int = -1, *, right: bool = False) -> list[str]:
    """`split`, or `rsplit`."""
    parts = str.rsplit(value, sep, limit) if right else str.split(value, sep, limit)
    if not isinstance(value, Text):
        return parts
    at, cuts = 0, []
    for part in parts:
        # Without a separator there is only white space between two parts, and none at a part's beginning.
        at = at if sep is not None else str.find(value, part, at)
        cuts.append(cut(value, at, at + len(part)))
        at += len(part) + len(sep or "")
    return cuts


def splitlines(value: str, keepends: bool = False) -> list[str]:
    """`splitlines`."""
    ended = str.splitlines(value, True)
    starts = [0]
    for line in ended:
        starts.append(starts[-1] + len(line))
    lines = str.splitlines(value, keepends)
    return [cut(value, at, at + len(line)) for at, line in zip(starts, lines, strict=False)]


def partition(value: str, sep: str, *, right: bool = False) -> tuple[str, str, str]:
    """`partition`, or `rpartition`."""
    a, b, _ = str.rpartition(value, sep) if right else str.partition(value, sep)
    return cut(value, 0, len(a)), cut(value, len(a), len(a) + len(b)), cut(value, len(a) + len(b), len(value))


def join(sep: str, parts: Iterable[str]) -> str:
    """`sep.join(parts)`."""
    joined: list[str] = []
    for part in parts:
        joined += (sep, part)
    return concat(joined[1:])


def replace(value: str, old: str, new: str, count: int = -1) -> str:
    """`replace`: what stays keeps its trust, and `new` brings its own."""
    if not isinstance(value, Text) and not isinstance(new, Text):
        return str.replace(value, old, new, count)
    if not old:
        n = len(value) + 1 if count < 0 else min(count, len(value) + 1)
        spread = [part for char in characters(value) for part in (new, char)] + [new]
        return concat([*spread[: 2 * n], cut(value, n, len(value))] if n <= len(value) else spread)
    kept, at = [], 0
    while count and (found := str.find(value, old, at)) >= 0:
        kept += [cut(value, at, found), new]
        at = found + len(old)
        count -= 1
    return concat([*kept, cut(value, at, len(value))])


def mapped(value: str, change: Callable[[str], str]) -> str:
    """`change(value)`, which keeps trust where it changes each stretch by itself."""
    whole = change(str(value))
    if not isinstance(value, Text):
        return whole
    parts = [literal(change(part)) if trusted else change(part) for part, trusted in pieces(value)]
    kept = concat(parts)
    return _as(value, kept if str(kept) == whole else whole)


def _text(value: str, trusted: Ranges, kind: type[Text] = Text) -> str:
    if not trusted and kind is Text:
        return str(value)
    text = kind(value)
    text.trusted = trusted
    return text


def _as(like: str, value: str) -> str:
    return safe(value) if isinstance(like, Safe) else value


def _pairs(trusted: Ranges) -> Iterator[tuple[int, int]]:
    return zip(trusted[::2], trusted[1::2], strict=True)
