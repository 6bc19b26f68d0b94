"""JSON from outside, read strictly: UTF-8, no key twice, no NaN or infinity, no silent repair."""

from __future__ import annotations

import json
import math
from typing import Any


class NotJson(ValueError):
    """The data is not JSON in the strict sense; the message says where or why."""


def loads(data: bytes, *, max_bytes: int) -> Any:
    """The value in `data`. Strings may hold lone surrogates (`"\\ud800"`): who encodes them has to look.

    Raises: NotJson, for data above `max_bytes`, too, and for nesting deeper than Python's stack.
    """
    if len(data) > max_bytes:
        raise NotJson(f"{len(data)} bytes; allowed: {max_bytes}")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise NotJson(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except ValueError as error:
        raise NotJson(str(error)[:200]) from None


def show(value: object) -> str:
    """A value for an error message: one line of ASCII, short."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
