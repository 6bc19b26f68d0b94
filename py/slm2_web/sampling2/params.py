"""Every parameter of a reply, explicit and validated once.

A parameter's value comes from the request, else from the model's manifest (`generation.defaults`, the
publisher's), else from NEUTRAL, which switches it off. What was used is recorded in the transcript.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slm2_web.errors import InputError
from slm2_web.strictjson import real, show

MAX_SEED: Final = (1 << 64) - 1
MAX_SAFE_INTEGER: Final = (1 << 53) - 1  # the largest integer that survives a JSON number in JavaScript
MAX_STOPS: Final = 16
MAX_STOP_BYTES: Final = 1024
MAX_ID: Final = (1 << 31) - 1
MAX_BANNED_IDS: Final = 1024
MAX_LOGPROBS: Final = 20
PROFILE_NAMES: Final = ("transformers", "llama.cpp")
INVALID_UTF8: Final = ("end", "show")
MAX_FORMAT_BYTES: Final = 1 << 18

# Greedy, every filter off.
NEUTRAL: Final[Mapping[str, Any]] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "banned_ids": (),
    "profile": "transformers",
    "logprobs": None,
    "seed": 0,
    "max_tokens": 512,
    "max_reasoning_tokens": None,
    "stop": (),
    "response_format": None,
    "invalid_utf8": "end",
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Checked parameters of one reply."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    banned_ids: tuple[int, ...]
    profile: str
    logprobs: int | None
    seed: int
    max_tokens: int
    max_reasoning_tokens: int | None
    stop: tuple[bytes, ...]
    response_format: str | None  # JSON text
    invalid_utf8: str

    def as_json(self) -> dict[str, Any]:
        """The parameters as `parse_params` takes them; a seed above 2^53 - 1 as a decimal string."""
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "banned_ids": list(self.banned_ids),
            "profile": self.profile,
            "logprobs": self.logprobs,
            "seed": self.seed if self.seed <= MAX_SAFE_INTEGER else str(self.seed),
            "max_tokens": self.max_tokens,
            "max_reasoning_tokens": self.max_reasoning_tokens,
            "stop": [stop.decode("utf-8") for stop in self.stop],
            "response_format": self.response_format,
            "invalid_utf8": self.invalid_utf8,
        }


def parse_params(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> SamplingParams:
    """`raw` over `defaults` over NEUTRAL, checked.

    Raises: InputError `input.params` with the place, what was found and what is allowed.
    """
    for source in (raw, defaults):
        for name in source:
            if name not in RULES:
                raise _bad(str(name), "an unknown parameter", " | ".join(RULES))
    merged = {**NEUTRAL, **defaults, **raw}
    return SamplingParams(**{name: rule.check(name, merged[name]) for name, rule in RULES.items()})


@dataclass(frozen=True, slots=True)
class Rule:
    """What a parameter may be: `accept` gives the checked value, or None to refuse. `null`: or None."""

    allowed: str
    accept: Callable[[Any], Any]
    null: bool = False

    def check(self, place: str, value: object) -> Any:
        """The checked value. Raises: InputError `input.params`."""
        if value is None and self.null:
            return None
        accepted = self.accept(value)
        if accepted is None:
            raise _bad(place, show(value), self.allowed)
        return accepted


def _real(
    low: float, high: float, *, zero: bool = False, above: bool = False
) -> Callable[[Any], float | None]:
    """Numbers from `low` (not itself if `above`) to `high`, and 0 if `zero`."""

    def accept(value: Any) -> float | None:
        number = real(value, 0, high)
        if number == 0:
            return 0.0 if zero or (low == 0 and not above) else None
        return None if number is None or number < low else number

    return accept


def _integer(low: int, high: int) -> Callable[[Any], int | None]:
    def accept(value: Any) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if low <= value <= high else None

    return accept


def _signed(high: float) -> Callable[[Any], float | None]:
    """Numbers from -high to high; -0 is 0."""

    def accept(value: Any) -> float | None:
        number = real(value, -high, high)
        return None if number is None else number + 0.0

    return accept


def _ids(value: Any) -> tuple[int, ...] | None:
    """Distinct ids, ascending."""
    if not isinstance(value, list | tuple) or len(value) > MAX_BANNED_IDS:
        return None
    ids = [_integer(0, MAX_ID)(item) for item in value]
    return None if None in ids else tuple(sorted({token_id for token_id in ids if token_id is not None}))


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str | None]:
    return lambda value: value if value in words else None


def _json_text(value: Any) -> str | None:
    """The JSON text of an object, as it was given; what it says is looked at where it is used."""
    if isinstance(value, dict):
        try:
            value = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return None
    text = _utf8(value)
    return text.decode("utf-8") if 0 < len(text) <= MAX_FORMAT_BYTES else None


def _seed(value: Any) -> int | None:
    if isinstance(value, str):
        value = int(value) if re.fullmatch("0|[1-9][0-9]{0,19}", value) else None
    return _integer(0, MAX_SEED)(value)


def _stops(value: Any) -> tuple[bytes, ...] | None:
    if not isinstance(value, list | tuple) or len(value) > MAX_STOPS:
        return None
    stops = tuple(_utf8(item) for item in value)
    return stops if all(1 <= len(stop) <= MAX_STOP_BYTES for stop in stops) else None


def _utf8(value: Any) -> bytes:
    """UTF-8 of a string, or bytes that are UTF-8; empty, which is refused, for anything else."""
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        return value.decode("utf-8").encode("utf-8") if isinstance(value, bytes) else b""
    except UnicodeError:
        return b""


# The ranges keep float32 arithmetic on logits finite for every network that is not broken.
RULES: Final[Mapping[str, Rule]] = {
    "temperature": Rule("0 (greedy), or a number from 0.000001 to 1000", _real(1e-6, 1000, zero=True)),
    "top_k": Rule("an integer from 0 (off) to 2147483647", _integer(0, (1 << 31) - 1)),
    "top_p": Rule("a number above 0, at most 1 (off)", _real(0, 1, above=True)),
    "min_p": Rule("a number from 0 (off) to 1", _real(0, 1)),
    "repetition_penalty": Rule(
        "a number from 0.001 to 1000, above 0; 1 is off",
        _real(1e-3, 1000),
    ),
    "presence_penalty": Rule("a number from -2 to 2; 0 is off", _signed(2)),
    "frequency_penalty": Rule("a number from -2 to 2; 0 is off", _signed(2)),
    "banned_ids": Rule(f"a list of at most {MAX_BANNED_IDS} ids, integers from 0 to {MAX_ID}", _ids),
    "profile": Rule(" | ".join(PROFILE_NAMES), _one_of(PROFILE_NAMES)),
    "logprobs": Rule(f"null (off), or an integer from 0 to {MAX_LOGPROBS}", _integer(0, MAX_LOGPROBS), True),
    "seed": Rule(f"an integer from 0 to {MAX_SEED}, or its decimal digits as a string", _seed),
    "max_tokens": Rule("an integer from 1 to 1048576", _integer(1, 1 << 20)),
    "max_reasoning_tokens": Rule(
        "null (no bound), or an integer from 0 to 1048576", _integer(0, 1 << 20), True
    ),
    "stop": Rule(
        f"a list of at most {MAX_STOPS} non-empty strings, each at most {MAX_STOP_BYTES} bytes of UTF-8",
        _stops,
    ),
    "response_format": Rule(
        f"null, or an object, or its JSON text of at most {MAX_FORMAT_BYTES} bytes", _json_text, True
    ),
    "invalid_utf8": Rule(" | ".join(INVALID_UTF8), _one_of(INVALID_UTF8)),
}


def _bad(place: str, found: str, allowed: str) -> InputError:
    return InputError(
        "input.params",
        f"params.{place}: found {found}; allowed: {allowed}",
        {"place": f"params.{place}", "found": found, "allowed": allowed},
    )
