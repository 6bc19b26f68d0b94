"""`tojson`: Python's `json.dumps`, piece by piece, so that trust is kept.

Brackets, commas, colons and quotes are the template's; what stands between quotes has the trust of the
string it came from, and every number is untrusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from slm2_web.template2.bounded.text import concat, is_trusted, literal
from slm2_web.template2.bounded.values import MAX_DEPTH, Fault, Limit, Meter

_QUOTE = literal('"')
_WORDS = {None: literal("null"), True: literal("true"), False: literal("false")}


@dataclass(frozen=True, slots=True)
class Style:
    """The keyword arguments of `json.dumps`."""

    ensure_ascii: bool = False
    indent: int | str | None = None
    separators: tuple[str, str] | None = None
    sort_keys: bool = False


def dumps(value: Any, style: Style, meter: Meter) -> str:
    """The JSON text of a value. Raises: Fault for what JSON cannot hold, Limit."""
    own = (literal(", " if style.indent is None else ","), literal(": "))
    writer = _Writer(style, *(style.separators or own), meter)  # a caller's keep their trust
    writer.write(value, 0)
    return concat(writer.parts)


@dataclass(slots=True)
class _Writer:
    style: Style
    item: str
    key: str
    meter: Meter
    parts: list[str] = field(default_factory=list)

    def write(self, value: Any, depth: int) -> None:
        """Append a value's JSON text."""
        self.meter.spend(4)
        if isinstance(value, str):
            self.string(value)
        elif value is None or isinstance(value, bool):
            self.parts.append(_WORDS[value])
        elif isinstance(value, int):
            self.parts.append(int.__repr__(value))
        elif isinstance(value, float):
            self.parts.append(_float(value))
        elif isinstance(value, list | tuple):
            self.group("[]", ([part] for part in value), len(value), depth)
        elif isinstance(value, dict):
            items: Iterable[tuple[Any, Any]] = value.items()
            if self.style.sort_keys:
                items = sorted(items, key=lambda pair: pair[0])
            self.group("{}", ([_key(name), part] for name, part in items), len(value), depth)
        else:
            raise Fault(f"tojson: a {type(value).__name__} is not JSON serializable")

    def string(self, value: str) -> None:
        """Append a string with its quotes."""
        self.meter.spend(len(value) >> 4)
        encode = encode_basestring_ascii if self.style.ensure_ascii else encode_basestring
        inside = encode(str(value))[1:-1]
        self.parts += (_QUOTE, literal(inside) if is_trusted(value) else inside, _QUOTE)

    def group(self, brackets: str, entries: Iterable[list[Any]], count: int, depth: int) -> None:
        """Append a list, or an object whose entries are [key, value]."""
        if depth > MAX_DEPTH:
            raise Limit(f"values nested more than {MAX_DEPTH} deep")
        if not count:
            self.parts.append(literal(brackets))
            return
        indent = self.style.indent
        step = literal(" " * indent) if isinstance(indent, int) else indent
        between = "" if step is None else concat((literal("\n"), *[step] * (depth + 1)))
        before = concat((literal(brackets[0]), between))
        after = concat((self.item, between))
        self.meter.spend(count * (1 + (len(between) >> 4)))
        for entry in entries:
            self.parts.append(before)
            if len(entry) == 2:
                self.string(entry[0])
                self.parts.append(self.key)
            self.write(entry[-1], depth + 1)
            before = after
        closing = () if step is None else (literal("\n"), *[step] * depth)
        self.parts.append(concat((*closing, literal(brackets[1]))))


def _key(key: Any) -> str:
    """A key as a string, as `json.dumps` makes one."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return _WORDS[key]
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, float):
        return _float(key)
    raise Fault(f"tojson: keys must be strings or numbers, not {type(key).__name__}")


def _float(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return float.__repr__(value)
