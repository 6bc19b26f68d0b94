"""Checks of what was read: each gives the value that a stage takes, or raises InputError with the place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import InputError
from slm2_web.strictjson import Checks, real, show
from slm2_web.tokenizer2.runs import Run, Trusted, Untrusted

MAX_LOGITS: Final = 1 << 22


def bad(code: str, place: str, found: str, allowed: str) -> InputError:
    """The error of a value that is not what it should be."""
    detail = {"place": place, "found": found, "allowed": allowed}
    return InputError(code, f"{place}: found {found}; allowed: {allowed}", detail)


def bad_json(place: str, found: str, allowed: str) -> InputError:
    """`input.json`."""
    return bad("input.json", place, found, allowed)


def bad_text(place: str, found: str, allowed: str) -> InputError:
    """`input.text`."""
    return bad("input.text", place, found, allowed)


JSON: Final = Checks(bad_json)
_TEXT: Final = Checks(bad_text)


def one_of(value: Any, keys: tuple[str, ...], *, optional: tuple[str, ...] = ()) -> Any:
    """An object with exactly one of `keys`; plain text as it is."""
    if isinstance(value, bytes):
        return value
    request = JSON.object_with(value, "request", (), (*keys, *optional))
    given = [key for key in keys if key in request]
    if len(given) != 1:
        raise bad_json("request", " and ".join(given) or f"none of {', '.join(keys)}", "exactly one of them")
    return request


def runs(value: object) -> list[Run]:
    """Texts, each trusted or not."""
    return [_run(run, f"runs[{i}]") for i, run in enumerate(JSON.array(value, "runs"))]


def _run(value: object, place: str) -> Run:
    run = JSON.object_with(value, place, ("text", "trusted"))
    data = utf8(run["text"], f"{place}.text")
    return Trusted(data) if flag(run["trusted"], f"{place}.trusted") else Untrusted(data)


def params(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request's parameters, not yet checked one by one."""
    return JSON.any_object(request.get("params", {}), "params")


def logits(value: object) -> NDArray[np.float32]:
    """f32[n]; what does not fit becomes infinite, and is then refused by the sampler."""
    numbers = JSON.array(value, "logits", 1, MAX_LOGITS)
    for index, number in enumerate(numbers):
        if real(number, -1e308, 1e308) is None:
            raise bad_json(f"logits[{index}]", show(number), "a number")
    with np.errstate(over="ignore"):
        return np.array(numbers, dtype=np.float64).astype(np.float32)


def ids(value: object, place: str) -> list[int]:
    """Integers; whether the model has them is for its tokenizer to say."""
    found = JSON.array(value, place)
    for index, token_id in enumerate(found):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise bad_json(f"{place}[{index}]", show(token_id), "an id")
    return found


def flag(value: object, place: str) -> bool:
    """true or false, not 1 or 0."""
    if not isinstance(value, bool):
        raise bad_json(place, show(value), "true | false")
    return value


def utf8(value: object, place: str) -> bytes:
    """The bytes of a string."""
    return _TEXT.text(JSON.string(value, place), place).encode("utf-8")


def from_hex(value: object, place: str) -> bytes:
    """The bytes that pairs of digits say."""
    if not isinstance(value, str) or not re.fullmatch("(?:[0-9A-Fa-f]{2})*", value):
        raise bad_json(place, show(value), "pairs of hexadecimal digits")
    return bytes.fromhex(value)
