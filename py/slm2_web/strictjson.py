"""JSON from outside, read strictly: UTF-8, no key twice, no NaN or infinity, no silent repair.

`loads` reads it, `Checks` looks at what it holds. An integer may have thousands of digits: its range is
compared before anything is made of it (`real`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Values within values. Each takes its part of the stack, and where a browser's is used up, the program ends.
MAX_DEPTH = 200
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|([\[{])|([\]}])', re.DOTALL)


class NotJson(ValueError):
    """The data is not JSON in the strict sense; the message says where or why."""


def loads(data: bytes, *, max_bytes: int) -> Any:
    """The value in `data`. Strings may hold lone surrogates (`"\\ud800"`): who encodes them has to look.

    Raises: NotJson, for data above `max_bytes`, too, and for nesting deeper than MAX_DEPTH.
    """
    if len(data) > max_bytes:
        raise NotJson(f"{len(data)} bytes; allowed: {max_bytes}")
    if _depth(data) > MAX_DEPTH:
        raise NotJson(f"nested too deeply; allowed: {MAX_DEPTH} values within values")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise NotJson(f"not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise NotJson(str(error)[:200]) from None


def _depth(data: bytes) -> int:
    """How deep the brackets go, at least as far as `data` is JSON."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        if match[1]:
            depth += 1
            deepest = max(deepest, depth)
            if deepest > MAX_DEPTH:
                break
        elif match[2]:
            depth -= 1
    return deepest


def show(value: object) -> str:
    """A value for an error message: one line of ASCII, short."""
    try:
        text = ascii(value)
    except (RecursionError, ValueError):  # nested to the stack's end; more digits than Python writes
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def real(value: object, low: float, high: float) -> float | None:
    """A number from `low` to `high` as a float; None for anything else, NaN too."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return None
    return float(value)


@dataclass(frozen=True, slots=True)
class Checks:
    """Checks of JSON values: each gives the value back, or raises what `bad(place, found, allowed)` makes."""

    bad: Callable[[str, str, str], Exception]

    def any_object(self, value: object, place: str) -> dict[str, Any]:
        """An object, whatever its keys."""
        if not isinstance(value, dict):
            raise self.bad(place, show(value), "an object")
        return value

    def object_with(
        self, value: object, place: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """An object with all required keys and no unknown ones."""
        allowed = ", ".join((*required, *(f"{key} (optional)" for key in optional)))
        if not isinstance(value, dict):
            raise self.bad(place, show(value), f"an object with {allowed}")
        for key in value:
            if key not in required and key not in optional:
                name = key if key.isidentifier() and key.isascii() and len(key) <= 40 else show(key)
                raise self.bad(f"{place}.{name}", "an unknown key", allowed)
        for key in required:
            if key not in value:
                raise self.bad(f"{place}.{key}", "nothing", "a value")
        return value

    def array(self, value: object, place: str, least: int = 0, most: int | None = None) -> list[Any]:
        """A list of so many items."""
        if not isinstance(value, list):
            raise self.bad(place, show(value), "a list")
        if len(value) < least or (most is not None and len(value) > most):
            upper = "" if most is None else f" to {most}"
            raise self.bad(place, f"a list of {len(value)}", f"a list of {least}{upper}")
        return value

    def integer(self, value: object, place: str, low: int, high: int) -> int:
        """An integer of a range; 1.0 is none, nor is true."""
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(place, show(value), f"an integer from {low} to {high}")
        return value

    def string(self, value: object, place: str) -> str:
        """A string; UTF-8 may not be able to hold it."""
        if not isinstance(value, str):
            raise self.bad(place, show(value), "a string")
        return value

    def text(self, value: object, place: str, least: int = 0, most: int | None = None) -> str:
        """A string of so many characters that has no lone surrogates: UTF-8 can hold it."""
        value = self.string(value, place)
        if len(value) < least or (most is not None and len(value) > most):
            upper = "" if most is None else f" to {most}"
            raise self.bad(place, f"{len(value)} characters", f"a string of {least}{upper} characters")
        if surrogate := re.search("[\ud800-\udfff]", value):
            found = f"the lone surrogate U+{ord(surrogate[0]):04X} at character {surrogate.start()}"
            raise self.bad(place, found, "well-formed Unicode")
        return value

    def sha256(self, value: object, place: str) -> str:
        """A hash as this project writes it."""
        if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
            raise self.bad(place, show(value), "64 lower-case hexadecimal digits")
        return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise NotJson(f"the key {show(twice)} occurs twice in an object")
    return result


def _no_constant(name: str) -> float:
    raise NotJson(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NotJson(f"the number {digits[:40]} is too large")
    return value
