"""A pattern's program -> the split automaton: bytes in, the end of the leftmost-first match out.

Theory of operation
-------------------
1. Characters that no set of the program tells apart form one class; surrogates are a class of their own.
2. A state is the list of the program's threads, in the order of preference, as in Pike's machine. What stands
   after a thread that matches is cut: it would never be preferred. A thread at `NotNext` waits for one more
   character; if that is not in its set, there is a match before that character, and what stands after the
   thread is cut. So the match that a run remembers last, of those that its states report, is the one that a
   backtracking engine finds first.
3. States that no text tells apart are one (Moore's refinement).
4. Each transition of a character class becomes a trie of the UTF-8 bytes of its characters; equal tries are
   shared. Only well-formed UTF-8 leads anywhere.
5. Bytes that no state tells apart form one class.

A pattern has to match at every position, and never the empty string: then its matches tile the text, and
there is no gap for which publishers' behaviours would differ. Any other is refused.

Source: R. Cox, "Regular Expression Matching in the Wild" (leftmost-first DFA); Unicode 16.0, table 3-7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slm2_web.compile.regex import Fork, Instruction, Jump, Match, NotNext, Take, parse
from slm2_web.errors import FormatError
from slm2_web.tokenizer2.tables import ACCEPT, ACCEPT_AT_END, ACCEPT_BEFORE, DEAD, MAX_STATES, Bytes, Shorts

_REST = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+"
_ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"

# Name -> the pattern that one automaton is made of. `smollm` is a pipeline at the publisher's: each number by
# itself, then GPT-2's pattern on what lies between. So no space joins a number, and a number ends the text
# for the lookahead.
PATTERNS: Mapping[str, str] = {
    "gpt-2": _GPT2_WORDS + r"| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "smollm": _GPT2_WORDS + r"|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+",
    "qwen2": _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _REST,
    "llama-bpe": _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _REST,
    "qwen35": _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + _REST,
}

_SURROGATES = slice(0xD800, 0xE000)
MAX_CHAR_STATES = 512
_BLOCK = 64  # code points of one last byte


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """What the sections SCLS, SNXT and SFLG hold; state 0 is dead."""

    start: int
    classes: Bytes  # u8[256]
    goto: Shorts  # u16[n_states, n_classes]
    flags: Bytes  # u8[n_states]
    n_char_states: int  # those between characters; the others are within one

    @property
    def table_bytes(self) -> int:
        """The size of the three tables."""
        return self.classes.nbytes + self.goto.nbytes + self.flags.nbytes


@lru_cache(maxsize=len(PATTERNS))
def split_automaton(name: str) -> Automaton:
    """The automaton of the pre-tokenizer `name`."""
    return compile_pattern(PATTERNS[name])


def compile_pattern(pattern: str) -> Automaton:
    """The automaton of `pattern`.

    Raises: FormatError `format.unsupported`, with the place in the pattern and the construct.
    """
    program = parse(pattern)
    char_classes, takes = _classify(program)
    goto, flags = _minimized(*_determinized(pattern, program, takes))
    surrogate = char_classes[_SURROGATES][0]
    _check_tiles(pattern, np.delete(goto[1], surrogate), flags)
    return _to_bytes(char_classes, goto, flags)


def _classify(program: Sequence[Instruction]) -> tuple[NDArray[np.intp], list[NDArray[np.bool_]]]:
    """Code point -> class, and for each instruction bool[n_classes]: whether its set has the class."""
    sets = {id(i.chars): i.chars for i in program if isinstance(i, Take | NotNext)}
    distinct = list({chars.tobytes(): chars for chars in sets.values()}.values())
    signature = np.zeros(0x110000, np.uint64)
    assert len(distinct) < 63
    for bit, chars in enumerate(distinct):
        signature |= chars.astype(np.uint64) << np.uint64(bit)
    signature[_SURROGATES] = 1 << 63
    signatures, first, classes = np.unique(signature, return_index=True, return_inverse=True)
    none = np.zeros(len(signatures), np.bool_)
    takes = []
    for instruction in program:
        has = none
        if isinstance(instruction, Take | NotNext):
            has = instruction.chars[first] & (signatures < 1 << 63)
        takes.append(has)
    return classes.reshape(-1), takes


def _determinized(
    pattern: str, program: Sequence[Instruction], takes: Sequence[NDArray[np.bool_]]
) -> tuple[list[list[int]], list[int]]:
    """goto[state][class] and flags; state 0 is dead, state 1 the start."""

    def follow(at: int, threads: list[int]) -> bool:
        """Append the threads at `at`, most preferred first; whether one matches, which cuts the rest."""
        waiting = [at]
        while waiting:
            at = waiting.pop()
            instruction = program[at]
            if isinstance(instruction, Jump):
                waiting.append(instruction.to)
            elif isinstance(instruction, Fork):
                waiting += (instruction.second, instruction.first)
            elif at not in threads:
                threads.append(at)
                if isinstance(instruction, Match):
                    return True
        return False

    State = tuple[tuple[int, ...], bool]  # threads; whether a match ended before the last character

    def step(threads: Sequence[int], char_class: int) -> State:
        after: list[int] = []
        for at in threads:
            instruction = program[at]
            if isinstance(instruction, NotNext):
                if not takes[at][char_class]:
                    return tuple(after), True
            elif isinstance(instruction, Take) and takes[at][char_class] and follow(at + 1, after):
                break
        return tuple(after), False

    start: list[int] = []
    follow(0, start)
    states: dict[State, int] = {((), False): DEAD, (tuple(start), False): 1}
    order = list(states)
    goto: list[list[int]] = []
    flags: list[int] = []
    for threads, before in order:  # grows on the way
        kinds = {type(program[at]) for at in threads}
        # Where both hold, the match after the character is the preferred one.
        flags.append(
            ACCEPT if Match in kinds else ACCEPT_BEFORE * before | ACCEPT_AT_END * (NotNext in kinds)
        )
        row = []
        for char_class in range(len(takes[0])):
            state = step(threads, char_class)
            if state not in states:
                if len(order) == MAX_CHAR_STATES:
                    raise _unsupported(pattern, f"more than {MAX_CHAR_STATES} states", "simpler patterns")
                states[state] = len(order)
                order.append(state)
            row.append(states[state])
        goto.append(row)
    return goto, flags


def _minimized(goto: list[list[int]], flags: list[int]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The same automaton with its equivalent states made one; 0 is dead, 1 the start."""
    block = list(flags)
    while True:
        keys = [(block[state], *(block[to] for to in row)) for state, row in enumerate(goto)]
        numbers = {key: n for n, key in enumerate(dict.fromkeys(keys))}
        refined = [numbers[key] for key in keys]
        if len(numbers) == len(set(block)):
            break
        block = refined
    first = {number: state for state, number in reversed(list(enumerate(refined)))}
    rows = [[refined[to] for to in goto[first[n]]] for n in range(len(numbers))]
    return np.array(rows, np.intp), np.array([flags[first[n]] for n in range(len(numbers))], np.intp)


def _check_tiles(pattern: str, after_one: NDArray[np.intp], flags: NDArray[np.intp]) -> None:
    if flags[1] or np.any(flags[after_one] != ACCEPT):
        found = "one that leaves characters between its matches, or matches nothing"
        raise _unsupported(pattern, found, "one that matches at every character")


def _unsupported(pattern: str, found: str, allowed: str) -> FormatError:
    return FormatError(
        "format.unsupported",
        f"pattern: found {found}; allowed: {allowed}",
        {"place": "pattern", "found": found, "allowed": allowed, "pattern": pattern},
    )


def _to_bytes(
    char_classes: NDArray[np.intp], char_goto: NDArray[np.intp], char_flags: NDArray[np.intp]
) -> Automaton:
    blocks, block_of = np.unique(char_classes.reshape(-1, _BLOCK), axis=0, return_inverse=True)
    block_of = block_of.reshape(-1)
    rows: list[NDArray[np.intp]] = [np.zeros(256, np.intp) for _ in char_goto]
    known: dict[tuple[int, bytes], int] = {}

    def states_of(depth: int, targets: NDArray[np.intp]) -> NDArray[np.intp]:
        """The states that wait for `depth` more bytes: intp[n] for intp[n, 64], where the next byte leads."""
        distinct, which = np.unique(targets, axis=0, return_inverse=True)
        numbers = []
        for row in distinct:
            number = DEAD
            if row.any():
                number = known.setdefault((depth, row.tobytes()), len(rows))
                if number == len(rows):
                    rows.append(np.zeros(256, np.intp))
                    rows[number][0x80:0xC0] = row
            numbers.append(number)
        return np.array(numbers, np.intp)[which.reshape(-1)]

    for state, goto in enumerate(char_goto):
        row = rows[state]
        row[:0x80] = goto[char_classes[:0x80]]
        depth_1 = states_of(1, goto[blocks])[block_of]  # one for each 64 code points
        row[0xC2:0xE0] = depth_1[2:32]
        in_64 = depth_1.reshape(-1, 64).copy()
        in_64[0, :32] = DEAD  # longer than needed
        depth_2 = states_of(2, in_64)  # one for each 4,096
        row[0xE0:0xF0] = depth_2[:16]
        in_4096 = np.zeros((5, 64), np.intp)
        in_4096.reshape(-1)[16 : len(depth_2)] = depth_2[16:]
        row[0xF0:0xF5] = states_of(3, in_4096)

    table = np.stack(rows)
    assert len(table) <= MAX_STATES, len(table)
    columns, classes = np.unique(table, axis=1, return_inverse=True)
    flags = np.zeros(len(table), np.uint8)
    flags[: len(char_flags)] = char_flags
    return Automaton(
        1, classes.reshape(-1).astype(np.uint8), columns.astype(np.uint16), flags, len(char_goto)
    )


def main() -> None:
    """Print the size of each automaton."""
    print("pattern     states  between characters  byte classes  table bytes")
    for name in PATTERNS:
        automaton = split_automaton(name)
        n_states, n_classes = automaton.goto.shape
        print(
            f"{name:10} {n_states:7} {automaton.n_char_states:19} {n_classes:13} {automaton.table_bytes:12}"
        )


if __name__ == "__main__":
    main()
