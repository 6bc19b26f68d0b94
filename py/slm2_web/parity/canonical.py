"""A record in one spelling, the digits that stand for it, and floats as bits.

Canonical JSON is what JSON.stringify writes of an object whose keys are sorted by code point, at every depth:
no blanks; in strings `"`, `\\` and the characters below U+0020 are escaped, by JSON's short forms where there
is one (b, t, n, f, r), else as \\u00xx in lower case; nothing else is. Numbers are integers of at most 53
bits. It is written in UTF-8.

Floats are never numbers: they stand as the hexadecimal digits of their little-endian float32.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MARK_DIGITS: Final = 8
_MAX_INTEGER: Final = (1 << 53) - 1

Json = Any
Record = Mapping[str, Json]


def canonical(value: Json) -> bytes:
    """The canonical JSON of `value`, UTF-8. It holds no float, and no lone surrogate."""
    _check(value)
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8")


def mark(line: bytes) -> str:
    """Eight hexadecimal digits that stand for a record's canonical JSON."""
    return hashlib.sha256(line).hexdigest()[:MARK_DIGITS]


class Digest:
    """The digest of a stage: sha256 of its lines, each with a line feed after it; and their marks."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._marks: list[str] = []

    def add(self, line: bytes) -> None:
        """Append a record's canonical JSON."""
        self._sha256.update(line + b"\n")
        self._marks.append(mark(line))

    @property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return self._sha256.hexdigest()

    @property
    def marks(self) -> str:
        """Eight hexadecimal digits for each line."""
        return "".join(self._marks)


def bits(values: float | NDArray[np.float32]) -> str:
    """The hexadecimal digits of little-endian float32: eight for each value. A double is rounded."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes().hex()


def floats(digits: str) -> NDArray[np.float32]:
    """f32[n] of what `bits` wrote."""
    return np.frombuffer(bytes.fromhex(digits), "<f4").astype(np.float32)


def real(digits: str) -> float:
    """The one number that `bits` wrote, as a double."""
    return float(floats(digits)[0])


def _check(value: Json) -> None:
    """Assert that nothing in `value` has a spelling of its own."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            assert isinstance(key, str), key
            _check(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item)
    elif isinstance(value, int):
        assert abs(value) <= _MAX_INTEGER, value
    else:
        assert value is None or isinstance(value, str), value
