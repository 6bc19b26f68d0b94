"""Finds the stop strings of a reply, and holds back only what may still become one.

Theory of operation
-------------------
The stop strings form an Aho-Corasick automaton over bytes: a state is the longest suffix of the text so
far that begins a stop string, so its depth is exactly the number of bytes that must be held back. When a
state's text, or a suffix of it, is a whole stop string, the reply ends: the earliest end wins, and among
those that end together the longest. The text then ends where that string begins. The automaton sees single
bytes, so how the text was cut into tokens cannot show.

Text and stop strings are UTF-8, so a stop string begins and ends between characters, and what is released
consists of whole characters whenever what is fed does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _State:
    depth: int
    next: dict[int, _State] = field(default_factory=dict)
    # The state of the longest proper suffix that begins a stop string; None for the start.
    shorter: _State | None = None
    # The longest stop string that is a suffix of this state's text.
    stop: bytes | None = None


class StopStrings:
    """A stream of text that ends before the first stop string."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        assert all(stops), "a stop string is empty"
        self._start = self._state = _automaton(stops)
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """(text that no stop string can claim any more, the stop string that has ended the text or None).

        After a stop string has been found the stream is of no more use.
        """
        text = self._held + data
        state = self._state
        for end in range(len(self._held) + 1, len(text) + 1):
            state = _advance(state, text[end - 1])
            if state.stop is not None:
                self._held = b""
                return text[: end - len(state.stop)], state.stop
        self._state = state
        cut = len(text) - state.depth
        self._held = text[cut:]
        return text[:cut], None

    def finish(self) -> bytes:
        """The text that is still held: it has become no stop string. What comes next begins anew."""
        held, self._held = self._held, b""
        self._state = self._start
        return held


def _advance(state: _State, byte: int) -> _State:
    while byte not in state.next:
        if state.shorter is None:
            return state
        state = state.shorter
    return state.next[byte]


def _automaton(stops: Sequence[bytes]) -> _State:
    """The start state."""
    start = _State(0)
    for stop in stops:
        state = start
        for byte in stop:
            state = state.next.setdefault(byte, _State(state.depth + 1))
        state.stop = stop
    level = [start]  # by depth, so that shorter states are complete before they are asked
    for state in level:
        for byte, child in state.next.items():
            child.shorter = start if state.shorter is None else _advance(state.shorter, byte)
            if child.stop is None:
                child.stop = child.shorter.stop
            level.append(child)
    return start
