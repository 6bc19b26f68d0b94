"""What an expression of a compiled template can be, besides Python's own plain values.

    None, bool, int, float, str (see text.py), list, tuple, dict, range, a dict's views, iterators
    Undefined   a name or a member that isn't there: empty, false, and an error to look into
    Namespace   what `namespace()` makes: the only thing that a template can change
    Loop        the variable `loop`
    Method      a method of a string, a dict or a list, not called yet
    Macro       a macro
    Builtin     `namespace`, `range`, `raise_exception`

`attribute` and `item` look into a value in the order that Jinja's sandbox does: `a.b` asks for Python's
attribute first and then for the item, `a['b']` the other way round. Everything that a value can do is named
in this file; what Python would do beyond it is refused, not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from slm2_web.template2.bounded import text
from slm2_web.template2.bounded.text import Text

MAX_DEPTH = 64  # of values in values
MAX_CALLS = 32  # of macros in macros
MAX_INT = 1 << 63  # of what arithmetic makes
MAX_RANGE = 100_000  # as Jinja's sandbox


class Fault(Exception):
    """The template cannot be rendered for this conversation; the message says why."""


class Limit(Exception):
    """The rendering needs more than it may: steps, depth, or what this form does not offer."""


class Undefined:
    """What isn't there."""

    __slots__ = ("name",)

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Undefined)

    def __hash__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __repr__(self) -> str:
        return "Undefined"


class Namespace:
    """What `namespace()` makes."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields


@dataclass(slots=True, eq=False)
class Method:
    """A method, not called yet."""

    owner: Any
    name: str


@dataclass(slots=True, eq=False)
class Builtin:
    """A function that a template finds there."""

    name: str


@dataclass(slots=True, eq=False)
class Macro:
    """A macro. `call(positional, named)` renders it."""

    name: str
    call: Callable[[list[Any], dict[str, Any]], str]


_NOTHING = object()


class Loop:
    """The variable `loop`; also the iterator over the loop's values. It looks ahead only when asked to."""

    __slots__ = ("_ahead", "_current", "_iterator", "_length", "_previous", "_source", "index0")

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self._iterator = iterator(source)
        self._previous = self._current = self._ahead = _NOTHING
        self._length: int | None = None
        self.index0 = -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ahead is not _NOTHING:
            value, self._ahead = self._ahead, _NOTHING
        else:
            value = next(self._iterator)
        self.index0 += 1
        self._previous, self._current = self._current, value
        return value

    def _peek(self) -> Any:
        if self._ahead is _NOTHING:
            self._ahead = next(self._iterator, _NOTHING)
        return self._ahead

    def _count(self) -> int:
        if self._length is None:
            if isinstance(self._source, Sized):
                self._length = len(self._source)
            else:
                rest = list(self._iterator)
                self._iterator = iter(rest)
                self._length = len(rest) + self.index0 + 1 + (self._ahead is not _NOTHING)
        return self._length

    def get(self, name: str) -> Any:
        """An attribute of `loop`."""
        if name == "index":
            return self.index0 + 1
        if name == "index0":
            return self.index0
        if name == "first":
            return self.index0 == 0
        if name == "last":
            return self._peek() is _NOTHING
        if name == "length":
            return self._count()
        if name == "revindex":
            return self._count() - self.index0
        if name == "revindex0":
            return self._count() - self.index0 - 1
        if name == "previtem":
            return Undefined("there is no previous item") if self.index0 == 0 else self._previous
        if name == "nextitem":
            return Undefined("there is no next item") if self._peek() is _NOTHING else self._ahead
        if name in ("depth", "depth0"):
            return int(name == "depth")
        if name in ("cycle", "changed"):
            raise Limit(f"loop.{name}")
        return Undefined(name)


def _words(text_: str) -> frozenset[str]:
    return frozenset(text_.split())


# Per type: methods that can be called; those that the sandbox denies, since they change the value; and what
# Python has besides, which is not offered here.
METHODS: Mapping[type, frozenset[str]] = {
    str: _words(
        "capitalize count endswith find format index isalnum isalpha isascii isdecimal isdigit islower"
        " isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace"
        " rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
    ),
    dict: _words("get items keys values"),
    list: _words("count index"),
    tuple: _words("count index"),
}
DENIED: Mapping[type, frozenset[str]] = {
    dict: _words("clear pop popitem setdefault update"),
    list: _words("append clear extend insert pop remove reverse sort"),
}
OTHERS: Mapping[type, frozenset[str]] = {
    str: _words(
        "casefold center encode expandtabs format_map isidentifier isprintable ljust maketrans rjust"
        " translate zfill"
    ),
    dict: _words("copy fromkeys"),
    list: _words("copy"),
}
_NUMBERS = _words(
    "as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag is_integer"
    " numerator real to_bytes"
)
_RARE = _words(
    "arguments caller catch_kwargs catch_varargs close count explicit_caller index isdisjoint mapping name"
    " send start step stop throw"
)
_KINDS = (str, dict, list, tuple)


def _kind(value: object) -> type | None:
    return next((kind for kind in _KINDS if isinstance(value, kind)), None)


def attribute(value: Any, name: str) -> Any:
    """`value.name`."""
    found = _python_attribute(value, name)
    if found is not _NOTHING:
        return found
    if isinstance(value, dict):
        return value.get(name, _NOTHING) if name in value else Undefined(name)
    return Undefined(name)


def item(value: Any, key: Any) -> Any:
    """`value[key]`."""
    if isinstance(value, Undefined):
        raise Fault(f"{value.name!r} is undefined; it has no item")
    try:
        if isinstance(value, str):
            return _character(value, key)
        return value[key]
    except (TypeError, LookupError):
        found = _python_attribute(value, key) if isinstance(key, str) else _NOTHING
        return Undefined(str(key)[:80] if isinstance(key, str | int) else "") if found is _NOTHING else found


def _character(value: str, key: Any) -> str:
    char = str.__getitem__(value, key)
    at = key.__index__()
    at += len(value) if at < 0 else 0
    return text.cut(value, at, at + 1) if isinstance(value, Text) else char


def _python_attribute(value: Any, name: str) -> Any:
    """What Python's `getattr` behind the sandbox's checks gives; _NOTHING where it finds nothing."""
    kind = _kind(value)
    if kind is not None:
        if name in METHODS[kind]:
            return Method(value, name)
        if name in DENIED.get(kind, ()) or (name.startswith("__") and hasattr(kind, name)):
            return Undefined(name)
        if name in OTHERS.get(kind, ()):
            raise Limit(f"the method {name}")
        return _NOTHING
    if isinstance(value, Undefined):
        raise Fault(f"{value.name!r} is undefined; it has no {name!r}")
    if isinstance(value, Namespace):
        return value.fields.get(name, _NOTHING)
    if isinstance(value, Loop):
        return value.get(name)
    if isinstance(value, int | float):
        if name in _NUMBERS:
            raise Limit(f"the attribute {name} of a number")
    elif value is not None and not isinstance(value, Method) and name in _RARE:
        raise Limit(f"the attribute {name} of a {type(value).__name__}")
    return _NOTHING


def iterator(value: Any) -> Iterator[Any]:
    """`iter(value)`; the characters of a string keep their trust."""
    return text.characters(value) if isinstance(value, Text) else iter(value)


class Meter:
    """Counts steps. A step is about one node of an expression, one value of a list or sixteen characters."""

    __slots__ = ("depth", "left", "line")

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.depth = 0
        self.line = 0

    def spend(self, steps: int) -> None:
        """Raises: Limit when that is more than there is left."""
        self.left -= steps
        if self.left < 0:
            raise Limit("more steps than a rendering may take")

    def weigh(self, value: Any, depth: int = 0) -> None:
        """Spend what it costs to look at all of a value. Raises: Limit, for one nested too deeply, too."""
        if isinstance(value, str):
            self.spend(1 + (len(value) >> 4))
        elif isinstance(value, dict | list | tuple):
            if depth > MAX_DEPTH:
                raise Limit(f"values nested more than {MAX_DEPTH} deep")
            self.spend(1 + len(value))
            for part in value:
                self.weigh(part, depth + 1)
            if isinstance(value, dict):
                for part in value.values():
                    self.weigh(part, depth + 1)
        else:
            self.spend(1)


def to_text(value: Any, meter: Meter) -> str:
    """What `{{ value }}` writes: Python's `str`, with an undefined value empty."""
    if isinstance(value, str):
        return text.plain(value)
    if isinstance(value, Undefined):
        return ""
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    meter.weigh(value)
    _printable(value)
    return str(value)


def _printable(value: Any) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _printable(key)
            _printable(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _printable(part)
    elif isinstance(value, text.Safe) or not isinstance(
        value, str | int | float | bool | Undefined | range | None
    ):
        raise Limit(f"writing a {type(value).__name__} as text")
