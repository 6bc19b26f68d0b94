"""Pattern text -> an expression, for the part of regular expressions that means the same everywhere.

    pattern     '^'? alternative ('|' alternative)* '$'?
    alternative (atom repeat?)*
    repeat      '?' '*' '+' '{m}' '{m,}' '{m,n}'
    atom        a character, '.', an escape, a class, '(' alternatives ')', '(?:' alternatives ')'
    class       '[' '^'? (character | escape | range)* ']'
    escape      \\d \\w \\s \\D \\W \\S, which are about ASCII; \\n \\r \\t \\f \\v, \\uXXXX, \\xXX, and a
                backslash before punctuation

'.' is any character but a line feed and a carriage return. Everything else (lookaround, backreferences,
\\b, \\p, lazy repeats, anchors in the middle) is refused, with its place.

Source: ECMA-262, section 22.2.1 (Patterns), which JSON Schema refers to.
"""

from __future__ import annotations

import string
from typing import Final, NoReturn

from slm2_web.constrain.automaton import bad
from slm2_web.constrain.language import (
    MAX_CODE_POINT,
    Alt,
    Chars,
    Expression,
    Repeat,
    Seq,
    chars,
    one_of,
    outside,
)

MAX_PATTERN_CHARS: Final = 10_000
MAX_NESTING: Final = 32
MAX_REPEAT: Final = 10_000

_DIGIT = chars([(0x30, 0x39)])
_WORD = one_of(string.ascii_letters + string.digits + "_")
_SPACE = one_of(" \t\n\r\f\v")
_CLASSES: Final = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "D": outside(_DIGIT),
    "W": outside(_WORD),
    "S": outside(_SPACE),
}
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_ANY = outside(one_of("\n\r"))
_EVERY = chars([(0, MAX_CODE_POINT)])
_SPECIAL: Final = frozenset("\\|()[]{}?*+.^$")


def parse_pattern(pattern: str, place: str, *, search: bool = False) -> Expression:
    """The texts that `pattern` matches as a whole; with `search`, those that hold a match.

    Raises: InputError `input.response_format`, with `place` and the place in the pattern.
    """
    return _Parser(pattern, place).whole(search)


class _Parser:
    def __init__(self, pattern: str, place: str) -> None:
        self.pattern = pattern
        self.place = place
        self.at = 0
        if len(pattern) > MAX_PATTERN_CHARS:
            self.refuse(f"{len(pattern)} characters", f"at most {MAX_PATTERN_CHARS}")

    def refuse(self, found: str, allowed: str = "what docs/sampling.md lists") -> NoReturn:
        raise bad(found, allowed, f"{self.place}, character {self.at}")

    def whole(self, search: bool) -> Expression:
        begins = self.took("^")
        expression = self.alternatives(0)
        ends = self.took("$")
        if self.at != len(self.pattern):
            self.refuse(self.next_text())
        if (begins or ends) and isinstance(expression, Alt):
            self.refuse("an anchor beside '|'", "the alternatives in a group: ^(?:a|b)$")
        anything = Repeat(_EVERY, 0, None)
        before = (anything,) if search and not begins else ()
        after = (anything,) if search and not ends else ()
        return Seq((*before, expression, *after))

    def alternatives(self, depth: int) -> Expression:
        if depth > MAX_NESTING:
            self.refuse(f"groups nested deeper than {MAX_NESTING}")
        items = [self.sequence(depth)]
        while self.took("|"):
            items.append(self.sequence(depth))
        return items[0] if len(items) == 1 else Alt(tuple(items))

    def sequence(self, depth: int) -> Expression:
        items: list[Expression] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)$":
            items.append(self.repeated(self.atom(depth)))
        return Seq(tuple(items))

    def atom(self, depth: int) -> Expression:
        if self.took("(?:"):
            return self.closed(self.alternatives(depth + 1))
        if self.took("(?"):
            self.at -= 2
            self.refuse(self.next_text(), "(…) and (?:…)")
        if self.took("("):
            return self.closed(self.alternatives(depth + 1))
        if self.took("."):
            return _ANY
        if self.took("["):
            return self.bracketed()
        if self.pattern[self.at] in _SPECIAL and self.pattern[self.at] != "\\":
            self.refuse(self.next_text())
        return self.class_atom()[0]

    def closed(self, expression: Expression) -> Expression:
        if not self.took(")"):
            self.refuse(self.next_text(), "')'")
        return expression

    def repeated(self, item: Expression) -> Expression:
        if self.took("?"):
            least, most = 0, 1
        elif self.took("*"):
            least, most = 0, -1
        elif self.took("+"):
            least, most = 1, -1
        elif self.took("{"):
            least, most = self.counts()
        else:
            return item
        if self.pattern[self.at : self.at + 1] in ("?", "+", "*", "{"):
            self.refuse(f"a repeat that {self.next_text()} follows", "one repeat")
        return Repeat(item, least, None if most < 0 else most)

    def counts(self) -> tuple[int, int]:
        close = self.pattern.find("}", self.at)
        text = self.pattern[self.at : max(close, self.at)]
        least_text, comma, most_text = text.partition(",")
        for digits in (least_text, most_text):
            if digits and not (digits.isascii() and digits.isdigit() and len(digits) < 6):
                self.refuse(f"{{{text}", "{m}, {m,} or {m,n}")
        if not least_text:
            self.refuse(f"{{{text}", "{m}, {m,} or {m,n}")
        least = int(least_text)
        most = int(most_text) if most_text else (-1 if comma else least)
        if max(least, most) > MAX_REPEAT or 0 <= most < least:
            self.refuse(f"{{{text}}}", f"counts in order, at most {MAX_REPEAT}")
        self.at = close + 1
        return least, most

    def bracketed(self) -> Chars:
        negated = self.took("^")
        ranges: list[tuple[int, int]] = []
        while not self.took("]"):
            if self.at >= len(self.pattern):
                self.refuse("the end of the pattern", "']'")
            some, first = self.class_atom()
            if self.pattern[self.at : self.at + 1] == "-" and self.pattern[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                if self.at >= len(self.pattern):
                    self.refuse("the end of the pattern", "']'")
                _, last = self.class_atom()
                if first is None or last is None or last < first:
                    self.refuse("a range without two ends in order", "a range of characters")
                ranges.append((first, last))
            ranges += some.ranges
        found = chars(ranges)
        return outside(found) if negated else found

    def class_atom(self) -> tuple[Chars, int | None]:
        """A set, and the code point if it is a single character."""
        char = self.pattern[self.at]
        self.at += 1
        if char == "\\":
            escaped = self.pattern[self.at : self.at + 1]
            self.at += 1
            if escaped in _CLASSES:
                return _CLASSES[escaped], None
            if escaped in ("u", "x"):
                return self.numbered(4 if escaped == "u" else 2)
            if not escaped or (escaped not in _CONTROLS and escaped not in string.punctuation):
                self.at -= 2
                self.refuse(self.next_text(), "the escapes that docs/sampling.md lists")
            char = _CONTROLS.get(escaped, escaped)
        if 0xD800 <= ord(char) < 0xE000:
            self.refuse("a lone surrogate", "characters")
        return one_of(char), ord(char)

    def numbered(self, n_digits: int) -> tuple[Chars, int | None]:
        digits = self.pattern[self.at : self.at + n_digits]
        if len(digits) < n_digits or not all(c in string.hexdigits for c in digits):
            self.refuse(self.next_text(), f"{n_digits} hexadecimal digits")
        code = int(digits, 16)
        if 0xD800 <= code < 0xE000:
            self.refuse(f"\\u{digits}, a surrogate", "the character itself")
        self.at += n_digits
        return one_of(chr(code)), code

    def took(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def next_text(self) -> str:
        text = self.pattern[self.at : self.at + 6]
        return ascii(text) if text else "the end of the pattern"
