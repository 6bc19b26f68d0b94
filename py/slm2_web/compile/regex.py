"""Pattern text -> a program of ordered choices, for the part of regular expressions that pre-tokenizers use.

    pattern     alternative ('|' alternative)*              tried from left to right
    alternative (atom repeat?)*
    repeat      '?' '*' '+' '{m}' '{m,n}'                   greedy
    atom        a literal character, an escape, a class, '(?:' pattern ')', '(?i:' pattern ')',
                '(?!' class ')' at the end of an alternative
    class       '[' '^'? (character | escape | range)* ']' or one escape
    escape      \\s \\S \\p{L} \\p{M} \\p{N} \\r \\n \\t, and a backslash before punctuation

Everything else is refused, with its place in the pattern. Classes are sets of code points of a pinned Unicode
version, never the host's. `(?i:` is simple case folding of ASCII letters; with it, `s` is also U+017F and `k`
U+212A.

A program is a list of instructions, as in Thompson's and Pike's machines: `Take` a character of a set and go
on to the next instruction; `Fork` into two, the first preferred; `Jump`; `NotNext`, which stands before the
end and holds at the end of the text and before a character that is not in its set; `Match`.

Source: Oniguruma's syntax, which `tokenizers` uses; R. Cox, "Regular Expression Matching: the Virtual Machine
Approach".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import FormatError

CLASSES_FILE = Path(__file__).with_name("split_classes_ucd16.json")
N_CODE_POINTS = 0x110000
MAX_REPEAT = 16
MAX_NESTING = 8

Set = NDArray[np.bool_]  # bool[N_CODE_POINTS]


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    chars: Set


@dataclass(frozen=True, slots=True, eq=False)
class NotNext:
    chars: Set


@dataclass(frozen=True, slots=True)
class Fork:
    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Jump:
    to: int


@dataclass(frozen=True, slots=True)
class Match:
    pass


Instruction = Take | NotNext | Fork | Jump | Match

# Parsed pieces: instructions whose jumps are relative to the first of them.
_Code = list[Instruction]

_CONTROLS = {"r": "\r", "n": "\n", "t": "\t"}
_PUNCTUATION = frozenset("\\|()[]{}?*+.^$-/'\"#&~")
_SPECIAL = frozenset("\\|()[]{}?*+.^$")
_ALSO_FOLDED = {"s": "\u017f", "k": "\u212a"}
# Two letters that one character folds to (U+00DF, the ligatures U+FB00 to U+FB06, U+1E9A): not one for one.
_FOLDED_PAIRS = frozenset(("ss", "st", "ff", "fi", "fl"))


@lru_cache(maxsize=1)
def unicode_sets() -> Mapping[str, Set]:
    """\\p{L}, \\p{M}, \\p{N} and \\s of Unicode 16.0, by their names."""
    ranges = json.loads(CLASSES_FILE.read_text("utf-8"))
    sets = {}
    for name in ("\\p{L}", "\\p{M}", "\\p{N}", "\\s"):
        chars = np.zeros(N_CODE_POINTS, np.bool_)
        for text in ranges[name]:
            first, _, last = text.partition("-")
            chars[int(first, 16) : int(last or first, 16) + 1] = True
        sets[name] = chars
    return sets


def parse(pattern: str) -> list[Instruction]:
    """The program of `pattern`; its last instruction is the only `Match`.

    Raises: FormatError `format.unsupported`, with the place in the pattern.
    """
    parser = _Parser(pattern)
    code = parser.alternation(depth=0, folds=False)
    if parser.at != len(pattern):
        parser.refuse("a ')' that closes nothing")
    program = [*_shifted(code, 0), Match()]
    for at, instruction in enumerate(program):
        if isinstance(instruction, NotNext) and not isinstance(program[_landing(program, at + 1)], Match):
            parser.refuse("'(?!' that something follows", "'(?!' at the end of an alternative")
    return program


def _landing(program: list[Instruction], at: int) -> int:
    while isinstance(instruction := program[at], Jump):
        at = instruction.to
    return at


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def refuse(self, found: str, allowed: str = "what compile/regex.py lists") -> NoReturn:
        place = f"pattern, character {self.at}"
        raise FormatError(
            "format.unsupported",
            f"{place}: found {found}; allowed: {allowed}",
            {"place": place, "found": found, "allowed": allowed, "pattern": self.pattern},
        )

    def alternation(self, depth: int, folds: bool) -> _Code:
        if depth > MAX_NESTING:
            self.refuse(f"groups nested deeper than {MAX_NESTING}")
        alternatives = [self.sequence(depth, folds)]
        while self.took("|"):
            alternatives.append(self.sequence(depth, folds))
        code = alternatives.pop()
        while alternatives:
            first = alternatives.pop()
            # Fork into the first alternative, which jumps over the others, and the others.
            code = [
                Fork(1, len(first) + 2),
                *_shifted(first, 1),
                Jump(len(first) + 2 + len(code)),
                *_shifted(code, len(first) + 2),
            ]
        return code

    def sequence(self, depth: int, folds: bool) -> _Code:
        code: _Code = []
        previous = ""
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            char = self.pattern[self.at]
            if folds and (previous + char).lower() in _FOLDED_PAIRS:
                self.refuse(f"{previous + char!r} without case", "letters that fold one by one")
            previous = char
            atom = self.repeated(self.atom(depth, folds))
            code += _shifted(atom, len(code))
        return code

    def atom(self, depth: int, folds: bool) -> _Code:
        if self.took("(?:"):
            return self.closed(self.alternation(depth + 1, folds))
        if self.took("(?i:"):
            return self.closed(self.alternation(depth + 1, True))
        if self.took("(?!"):
            code = self.closed([NotNext(self.one_class(folds))])
            if self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
                self.refuse("'(?!' that something follows", "'(?!' at the end of an alternative")
            return code
        return [Take(self.one_class(folds))]

    def closed(self, code: _Code) -> _Code:
        if not self.took(")"):
            self.refuse(self.next_text(), "')'")
        return code

    def repeated(self, code: _Code) -> _Code:
        least, most = 1, 1
        if self.took("?"):
            least, most = 0, 1
        elif self.took("*"):
            least, most = 0, -1
        elif self.took("+"):
            least, most = 1, -1
        elif self.took("{"):
            least, most = self.counts()
        else:
            return code
        if self.pattern[self.at : self.at + 1] in ("?", "+", "*", "{"):
            self.refuse(f"a repeat that {self.next_text()} follows", "greedy repeats")
        if any(isinstance(instruction, NotNext) for instruction in code):
            self.refuse("a repeated '(?!'")
        if most < 0 and _may_be_empty(code):
            self.refuse("an unbounded repeat of what may be empty")
        result: _Code = []
        for _ in range(least):
            result += _shifted(code, len(result))
        if most < 0:
            loop = len(result)
            result += [Fork(loop + 1, loop + len(code) + 2), *_shifted(code, loop + 1), Jump(loop)]
        for _ in range(least, most):
            begin = len(result)
            # Each further one is optional, and without it the later ones are not tried.
            end = begin + (most - least) * (len(code) + 1)
            most -= 1
            result += [Fork(begin + 1, end), *_shifted(code, begin + 1)]
        return result

    def counts(self) -> tuple[int, int]:
        close = self.pattern.find("}", self.at)
        text = self.pattern[self.at : max(close, self.at)]
        least_text, comma, most_text = text.partition(",")
        if not least_text.isascii() or not least_text.isdigit() or (comma and not most_text.isdigit()):
            self.refuse(f"{{{text}", "{m} or {m,n}")
        least = int(least_text)
        most = int(most_text) if comma else least
        if not 0 <= least <= most <= MAX_REPEAT or most == 0:
            self.refuse(f"{{{text}}}", f"counts from 0 to {MAX_REPEAT}")
        self.at = close + 1
        return least, most

    def one_class(self, folds: bool) -> Set:
        if self.took("["):
            return self.bracketed(folds)
        char = self.pattern[self.at : self.at + 1]
        if not char or (char in _SPECIAL and char != "\\"):
            self.refuse(self.next_text())
        return self.class_atom(folds)[0]

    def bracketed(self, folds: bool) -> Set:
        negated = self.took("^")
        chars = np.zeros(N_CODE_POINTS, np.bool_)
        while not self.took("]"):
            if self.at >= len(self.pattern):
                self.refuse("the end of the pattern", "']'")
            if self.pattern[self.at] == "[" or self.pattern.startswith("&&", self.at):
                self.refuse(self.next_text(), "no sets within sets")
            some, first = self.class_atom(folds)
            if self.pattern[self.at : self.at + 1] == "-" and self.pattern[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                _, last = self.class_atom(folds)
                if first is None or last is None or last < first or folds:
                    self.refuse("a range without two ends in order", "a range of characters, with case")
                chars[first : last + 1] = True
            chars |= some
        return ~chars if negated else chars

    def class_atom(self, folds: bool) -> tuple[Set, int | None]:
        """A set, and the code point if it is a single character."""
        char = self.pattern[self.at]
        if char == "\\":
            for name, chars in unicode_sets().items():
                if self.took(name):
                    return chars, None
            if self.took("\\S"):
                return ~unicode_sets()["\\s"], None
            escaped = self.pattern[self.at + 1 : self.at + 2]
            if not escaped or (escaped not in _CONTROLS and escaped not in _PUNCTUATION):
                self.refuse(self.next_text(), "\\s \\S \\p{L} \\p{M} \\p{N} \\r \\n \\t")
            char = _CONTROLS.get(escaped, escaped)
            self.at += 1
        self.at += 1
        chars = np.zeros(N_CODE_POINTS, np.bool_)
        chars[ord(char)] = True
        if folds:
            if not char.isascii():
                self.refuse(f"{char!r} without case", "ASCII")
            for other in (char.lower(), char.upper(), _ALSO_FOLDED.get(char.lower(), char)):
                chars[ord(other)] = True
        return chars, ord(char)

    def took(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def next_text(self) -> str:
        text = self.pattern[self.at : self.at + 6]
        return repr(text) if text else "the end of the pattern"


def _may_be_empty(code: _Code) -> bool:
    """Whether some way through `code` takes no character."""
    waiting, seen = [0], set()
    while waiting:
        at = waiting.pop()
        if at == len(code):
            return True
        if at in seen:
            continue
        seen.add(at)
        instruction = code[at]
        if isinstance(instruction, Fork):
            waiting += (instruction.first, instruction.second)
        elif isinstance(instruction, Jump):
            waiting.append(instruction.to)
        elif isinstance(instruction, NotNext):
            waiting.append(at + 1)
    return False


def _shifted(code: _Code, by: int) -> _Code:
    shifted: _Code = []
    for instruction in code:
        if isinstance(instruction, Fork):
            shifted.append(Fork(instruction.first + by, instruction.second + by))
        elif isinstance(instruction, Jump):
            shifted.append(Jump(instruction.to + by))
        else:
            shifted.append(instruction)
    return shifted
