"""Text -> pieces: the pre-tokenizer, as one automaton over bytes that the compiler made of its pattern.

Theory of operation
-------------------
A piece is what one match of the pattern takes where the last piece ended. The automaton (compile/dfa.py) is
run over the bytes from there until it is dead or the text ends. A state says whether a match ends after the
byte just taken (ACCEPT), before the character just taken (ACCEPT_BEFORE: `(?!\\S)` needs to see one character
more), or here if the text does (ACCEPT_AT_END). The match that was reported last is the one that a
backtracking engine finds; patterns are such that there is always one. (A damaged file may have none: then a
character is a piece, so that there is always progress.)

Most pieces end right before the byte where the automaton dies, and the state before says so: ACCEPT. Only for
the others the run is looked at again. For every pattern that the compiler knows, a text is read at most three
times, whatever it is: what a match looks at after its end has no second match that looks as far.

A state's row is a list of the rows that its bytes lead to, filled in when first needed: one indexing a byte.

There is no regular expression at run time, and none of the host's Unicode data.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from slm2_web.tokenizer2.tables import ACCEPT, ACCEPT_AT_END, ACCEPT_BEFORE, DEAD, Bytes, Shorts, int_view

# A row has 256 entries, the rows that its bytes lead to: None where that has not been looked up, _DEAD where
# no match continues. Then come its state and the state's flags.
_Row = list[Any]
_DEAD: _Row = []
_STATE, _FLAGS = 256, 257


class Cuts(NamedTuple):
    """Where pieces end: 0, and the end of each. Those up to `stable` are so whatever follows the text."""

    ends: list[int]
    stable: int


class Splitter:
    """The split automaton of a file: the sections SCLS, SNXT and SFLG."""

    def __init__(self, start_state: int, classes: Bytes, goto: Shorts, flags: Bytes) -> None:
        self._classes = classes.tobytes()
        self._goto = int_view(goto)
        self._n_classes = goto.shape[1]
        self._flags = flags.tobytes()
        self._rows: dict[int, _Row] = {DEAD: _DEAD}
        self._start = self._row(start_state)

    def split(self, data: bytes) -> list[bytes]:
        """The pieces of `data`, which is valid UTF-8; joined they are `data`."""
        return [data[start:end] for start, end in pairwise(self.cuts(data).ends)]

    def cuts(self, data: bytes) -> Cuts:
        """Where the pieces of `data` end, and up to where that is so whatever follows `data`."""
        ends = [0]
        n_bytes = len(data)
        stable = n_bytes
        begin = self._start
        view = memoryview(data)
        start = 0
        while start < n_bytes:
            row = begin
            for at, byte in enumerate(view[start:], start):
                following = row[byte]
                if following:
                    row = following
                    continue
                if following is None and (following := self._follow(row, byte)):
                    row = following
                    continue
                if row[_FLAGS] != ACCEPT:
                    start = self._end(data, start, at, row)
                    ends.append(start)
                    break
                # The byte that ends this piece begins the next one.
                ends.append(at)
                start = at
                row = begin[byte] or self._follow(begin, byte) or begin
            else:
                stable = min(stable, start)
                ends_here = row[_FLAGS] & (ACCEPT | ACCEPT_AT_END)
                start = n_bytes if ends_here else self._end(data, start, n_bytes, row)
                ends.append(start)
        return Cuts(ends, stable)

    def _end(self, data: bytes, start: int, dead_at: int, row: _Row) -> int:
        """The end of the piece at `start`, whose run came to `dead_at` in the state of `row`, not its end."""
        end = start
        if dead_at > start:
            # What counts is the state before the last character, which may be one that broke off.
            end = _last_start(data, dead_at)
            if not row[_FLAGS] & ACCEPT_BEFORE:
                row = self._start
                for byte in data[start:end]:
                    row = row[byte]
                if row[_FLAGS] & ACCEPT_BEFORE and end > start:
                    end = _last_start(data, end)
                elif not row[_FLAGS] & ACCEPT:
                    end = self._remembered_end(data, start, end)
        return end if end > start else _first_end(data, start)

    def _remembered_end(self, data: bytes, start: int, stop: int) -> int:
        """The end of the last match that the states up to `stop` report; `start` if they report none."""
        end = char = start
        row = self._start
        for at in range(start, stop):
            if data[at] & 0xC0 != 0x80:
                char = at
            row = row[data[at]]
            if row[_FLAGS] & ACCEPT:
                end = at + 1
            elif row[_FLAGS] & ACCEPT_BEFORE:
                end = char
        return end

    def _follow(self, row: _Row, byte: int) -> _Row:
        """The row that `byte` leads to, written into `row`."""
        if row[byte] is None:
            row[byte] = self._row(self._goto[row[_STATE] * self._n_classes + self._classes[byte]])
        following: _Row = row[byte]
        return following

    def _row(self, state: int) -> _Row:
        row = self._rows.get(state)
        if row is None:
            row = self._rows[state] = [*[None] * 256, state, self._flags[state]]
        return row


def _last_start(data: bytes, end: int) -> int:
    """Where the character that ends (or breaks off) at `end` begins."""
    end -= 1
    while end > 0 and data[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _first_end(data: bytes, start: int) -> int:
    """Where the character at `start` ends."""
    start += 1
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return start
