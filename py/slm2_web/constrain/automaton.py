"""An expression -> an automaton over UTF-8 bytes, of which only what a reply comes by is made.

Theory of operation
-------------------
1. The expression becomes a graph from back to front: `build(expression, end)` gives the state from which
   `expression` leads to `end`. Equal questions have one answer, so what is shared in the expression is shared
   in the graph. A set of characters becomes the byte ranges of its UTF-8.
2. Bytes that the vocabulary has no token for lead nowhere, and states from which the end can't be reached are
   cut. So every state that is left can be finished, byte by byte if need be.
3. A state of the automaton is the set of graph states that a text leads to. Rows are made when they are first
   asked for: a schema with a million states costs what one reply walks through. A state's number is a place
   in a table that may be full; then all are forgotten, and what is needed is made again.
4. Bytes that no edge tells apart form one class.

State 0 is dead: nothing that follows makes the text one of the language.

Source: R. Cox, "Regular Expression Matching Can Be Simple And Fast"; Unicode 16.0, table 3-7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slm2_web.constrain.language import Alt, Chars, Expression, Repeat, Seq
from slm2_web.errors import InputError

DEAD: Final = 0
MAX_GRAPH_STATES: Final = 100_000
MAX_STATES: Final = 50_000
# Sums of the sizes of sets: of what is reached without a byte, and of the states that are held.
MAX_REACHED: Final = 1_000_000
MAX_HELD: Final = 5_000_000
MAX_EXPRESSION_DEPTH: Final = 300

_UNKNOWN: Final = -1
_ACCEPT: Final = 0  # the graph's only end


# The states of the graph that a text leads to.
State = frozenset[int]


class TooManyStates(Exception):
    """More states at a time than are held. `forget` makes room."""


class Automaton:
    """`start`: the state before any text."""

    def __init__(self, expression: Expression, known_bytes: bytes) -> None:
        """`known_bytes`: those that are a token by themselves.

        Raises: InputError `input.response_format` for a language that is too large, or that no text of the
        vocabulary belongs to.
        """
        graph = _Graph()
        start = graph.build(expression, _ACCEPT, 0)
        graph.keep_bytes(known_bytes)
        alive = graph.alive()
        if start not in alive:
            raise bad("a language that this vocabulary has no text of", "one that some text belongs to")
        self.classes = graph.byte_classes()
        self._n_classes = int(self.classes.max()) + 1
        self._graph = graph
        self._alive = alive
        self._closures: dict[int, State] = {}
        self._reached = 0
        # All of them now: what is too large is refused before a reply begins.
        for at in {start, *(to for edges in graph.edges for _, _, to in edges if to in alive)}:
            self._closure(at)
        self._start_set = self._closure(start)
        self.forget()

    def forget(self) -> None:
        """Drop all states that were come by, and their numbers, but the dead one and `start`."""
        dead: State = frozenset()
        self._numbers: dict[State, int] = {dead: DEAD}
        self._sets = [dead]
        self._held = 0
        self._table = np.full((64, self._n_classes), _UNKNOWN, np.int32)
        self._table[DEAD] = DEAD
        self.start = self.number_of(self._start_set)

    def set_of(self, state: int) -> State:
        """What a number stands for, whatever is forgotten."""
        return self._sets[state]

    @property
    def n_states(self) -> int:
        """How many states were come by so far."""
        return len(self._sets)

    def accepts(self, state: int) -> bool:
        """Whether the text so far is one of the language."""
        return _ACCEPT in self._sets[state]

    def step(self, states: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.int32]:
        """i32[n]: where each of `states` goes with its byte of `data`."""
        for state in np.flatnonzero(np.bincount(states, minlength=1)):
            if self._table[state, 0] == _UNKNOWN:
                self._make_row(int(state))
        after: NDArray[np.int32] = self._table[states, self.classes[data]]
        return after

    def after(self, state: int, data: bytes) -> int:
        """The state after the bytes of `data`."""
        for byte in data:
            if self._table[state, 0] == _UNKNOWN:
                self._make_row(state)
            state = int(self._table[state, self.classes[byte]])
        return state

    def _make_row(self, state: int) -> None:
        targets: list[set[int]] = [set() for _ in range(self._n_classes)]
        for at in self._sets[state]:
            for first, last, to in self._graph.edges[at]:
                if to in self._alive:
                    closure = self._closure(to)
                    for byte_class in range(self.classes[first], self.classes[last] + 1):
                        targets[byte_class] |= closure
        row = [self.number_of(frozenset(some)) for some in targets]
        self._table[state] = row  # after the numbers: they may make the table anew

    def number_of(self, some: State) -> int:
        """The number of a set, a new one where it has none. Raises: TooManyStates."""
        number = self._numbers.get(some)
        if number is None:
            number = len(self._sets)
            self._held += len(some)
            if number == MAX_STATES or self._held > MAX_HELD:
                raise TooManyStates
            self._numbers[some] = number
            self._sets.append(some)
            if number == len(self._table):
                self._table = np.concatenate([self._table, np.full_like(self._table, _UNKNOWN)])
        return number

    def _closure(self, at: int) -> State:
        """The states with edges, and the end, that are reached from `at` without a byte."""
        known = self._closures.get(at)
        if known is None:
            seen, waiting = {at}, [at]
            while waiting:
                self._reached += 1
                if self._reached > MAX_REACHED:
                    raise bad("a language with too many ways to be empty", "a simpler language")
                for to in self._graph.jumps[waiting.pop()]:
                    if to in self._alive and to not in seen:
                        seen.add(to)
                        waiting.append(to)
            known = frozenset(s for s in seen if self._graph.edges[s] or s == _ACCEPT)
            self._closures[at] = known
        return known


def bad(found: str, allowed: str, place: str = "response_format") -> InputError:
    """The error for a language that can't be had."""
    return InputError(
        "input.response_format",
        f"{place}: found {found}; allowed: {allowed}",
        {"place": place, "found": found, "allowed": allowed},
    )


class _Graph:
    """States with byte edges (first, last, to) and jumps that take no byte."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = [[]]
        self.jumps: list[list[int]] = [[]]
        # The expression is kept beside its state: an id is one object's only while that lives.
        self._built: dict[tuple[int, int], tuple[Expression, int]] = {}

    def build(self, expression: Expression, end: int, depth: int) -> int:
        """The state from which `expression` leads to `end`."""
        if depth > MAX_EXPRESSION_DEPTH:
            raise bad(f"nesting deeper than {MAX_EXPRESSION_DEPTH}", "a simpler language")
        key = (id(expression), end)
        if key not in self._built:
            self._built[key] = (expression, self._build(expression, end, depth + 1))
        return self._built[key][1]

    def _build(self, expression: Expression, end: int, depth: int) -> int:
        match expression:
            case Chars(ranges):
                return self._chars(ranges, end)
            case Seq(items):
                for item in reversed(items):
                    end = self.build(item, end, depth)
                return end
            case Alt(items):
                return self._new(jumps=[self.build(item, end, depth) for item in items])
            case Repeat(item, least, most):
                if most is None:
                    loop = self._new(jumps=[end])
                    self.jumps[loop].append(self.build(item, loop, depth))
                    begin = loop
                else:
                    begin = end
                    for _ in range(most - least):
                        begin = self._new(jumps=[self.build(item, begin, depth), end])
                for _ in range(least):
                    begin = self.build(item, begin, depth)
                return begin

    def _new(self, edges: list[tuple[int, int, int]] | None = None, jumps: list[int] | None = None) -> int:
        if len(self.edges) == MAX_GRAPH_STATES:
            raise bad(f"more than {MAX_GRAPH_STATES} places in the text", "a simpler language")
        self.edges.append(edges or [])
        self.jumps.append(jumps or [])
        return len(self.edges) - 1

    def _chars(self, ranges: tuple[tuple[int, int], ...], end: int) -> int:
        tails: dict[tuple[tuple[int, int], ...], int] = {(): end}

        def state_before(tail: tuple[tuple[int, int], ...]) -> int:
            if tail not in tails:
                tails[tail] = self._new([(*tail[0], state_before(tail[1:]))])
            return tails[tail]

        sequences = [s for first, last in ranges for s in utf8_ranges(first, last)]
        return self._new([(*sequence[0], state_before(sequence[1:])) for sequence in sequences])

    def keep_bytes(self, known: bytes) -> None:
        """Cut the edges of all other bytes."""
        runs: list[tuple[int, int]] = []
        for byte in sorted(set(known)):
            if runs and byte == runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], byte)
            else:
                runs.append((byte, byte))
        if runs == [(0, 255)]:
            return
        for at, edges in enumerate(self.edges):
            self.edges[at] = [
                (max(first, low), min(last, high), to)
                for first, last, to in edges
                for low, high in runs
                if max(first, low) <= min(last, high)
            ]

    def alive(self) -> set[int]:
        """The states from which the end can be reached."""
        before: list[list[int]] = [[] for _ in self.edges]
        for at, edges in enumerate(self.edges):
            for to in (*(edge[2] for edge in edges), *self.jumps[at]):
                before[to].append(at)
        alive, waiting = {_ACCEPT}, [_ACCEPT]
        while waiting:
            for at in before[waiting.pop()]:
                if at not in alive:
                    alive.add(at)
                    waiting.append(at)
        return alive

    def byte_classes(self) -> NDArray[np.int32]:
        """i32[256]: byte -> class, ascending; an edge takes whole classes."""
        begins = np.zeros(257, np.int32)
        for edges in self.edges:
            for first, last, _ in edges:
                begins[first] = begins[last + 1] = 1
        begins[0] = 0
        classes: NDArray[np.int32] = np.cumsum(begins[:256], dtype=np.int32)
        return classes


def utf8_ranges(first: int, last: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The UTF-8 of the characters `first` to `last`, as sequences of one to four byte ranges (low, high)."""
    for low, high in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)):
        if max(first, low) <= min(last, high):
            yield from _same_length(max(first, low), min(last, high))


def _same_length(first: int, last: int) -> Iterator[tuple[tuple[int, int], ...]]:
    low, high = chr(first).encode("utf-8", "surrogatepass"), chr(last).encode("utf-8", "surrogatepass")
    for tail in range(1, len(low)):
        # Cut where the last `tail` bytes begin anew, until they go through all their values or differ alone.
        mask = (1 << 6 * tail) - 1
        if first & ~mask != last & ~mask:
            if first & mask:
                yield from _same_length(first, first | mask)
                yield from _same_length((first | mask) + 1, last)
                return
            if last & mask != mask:
                yield from _same_length(first, (last & ~mask) - 1)
                yield from _same_length(last & ~mask, last)
                return
    yield tuple(zip(low, high, strict=True))
