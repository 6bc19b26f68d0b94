"""The filters, tests and methods of Jinja and Python that a compiled template may use, each by name.

A filter is `function(call, value, *arguments, **named)`; its signature says what it takes, with Jinja's own
names and defaults, and `call` gives what it needs of the rendering. FILTERS and TESTS are the only lists: the
compiler refuses what isn't in them, and so does the reader of compiled programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from slm2_web.template2.bounded import spelling, text
from slm2_web.template2.bounded.values import (
    METHODS,
    Fault,
    Limit,
    Meter,
    Method,
    Undefined,
    item,
    iterator,
    to_text,
)

MAX_INDENT = 32
# What one character taken by itself costs, and one part of a string that is split.
CHARACTER_STEPS = 3
PART_STEPS = 3


@dataclass(frozen=True, slots=True)
class Call:
    """What a filter needs of the rendering."""

    meter: Meter

    def text(self, value: Any) -> str:
        """Python's `str`."""
        return text.plain(to_text(value, self.meter))

    def soft(self, value: Any) -> str:
        """The string itself, or what is written for another value."""
        return value if isinstance(value, str) else to_text(value, self.meter)

    def each(self, value: Any) -> Iterator[Any]:
        """The values in `value`, each a step."""
        for part in iterator(value):
            self.meter.spend(1)
            yield part


def _tojson(
    call: Call,
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> str:
    if isinstance(indent, bool) or not (indent is None or isinstance(indent, int | str)):
        raise Limit("tojson with an indent that is no number")
    if (len(indent) if isinstance(indent, str) else indent or 0) > MAX_INDENT:
        raise Limit(f"tojson with an indent above {MAX_INDENT}")
    if separators is not None:
        if not isinstance(separators, list | tuple) or len(separators) != 2:
            raise Limit("tojson with separators that are no pair")
        if not all(isinstance(part, str) for part in separators):
            raise Limit("tojson with separators that are no strings")
        separators = (text.plain(separators[0]), text.plain(separators[1]))
    return spelling.dumps(
        value, spelling.Style(bool(ensure_ascii), indent, separators, bool(sort_keys)), call.meter
    )


def _default(call: Call, value: Any, default_value: Any = "", boolean: Any = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _length(call: Call, value: Any) -> int:
    return len(value)


def _list(call: Call, value: Any) -> list[Any]:
    return list(call.each(value))


def _first(call: Call, value: Any) -> Any:
    return next(iterator(value), Undefined("No first item, sequence was empty."))


def _last(call: Call, value: Any) -> Any:
    if isinstance(value, str):
        return text.cut(value, len(value) - 1, len(value)) if value else Undefined("No last item")
    return next(iter(reversed(value)), Undefined("No last item, sequence was empty."))


def _reverse(call: Call, value: Any) -> Any:
    if isinstance(value, str):
        return sliced(call.meter, value, slice(None, None, -1))
    if isinstance(value, list | tuple | dict | range):
        call.meter.spend(len(value))
        return reversed(value)
    return list(call.each(value))[::-1]


def sliced(meter: Meter, value: str, index: slice) -> str:
    """`value[index]`, paid for before it is made: with a step, every character is taken by itself."""
    by_character = index.step not in (None, 1)
    meter.spend(1 + (CHARACTER_STEPS * len(value) if by_character else len(value) >> 4))
    return text.sliced(value, index)


def _join(call: Call, value: Any, d: Any = "", attribute: Any = None) -> str:
    parts = call.each(value)
    if attribute is not None:
        parts = map(_getter(call, attribute), parts)
    texts = [call.text(part) for part in parts]
    sep = call.text(d)
    call.meter.spend(len(sep) * len(texts) + sum(map(len, texts)) >> 4)
    return text.join(sep, texts)


def _string(call: Call, value: Any) -> str:
    return call.soft(value)


def _safe(call: Call, value: Any) -> str:
    return text.safe(call.soft(value))


def _trim(call: Call, value: Any, chars: Any = None) -> str:
    return text.strip(call.soft(value), chars)


def _upper(call: Call, value: Any) -> str:
    return text.mapped(call.soft(value), str.upper)


def _lower(call: Call, value: Any) -> str:
    return text.mapped(call.soft(value), str.lower)


def _capitalize(call: Call, value: Any) -> str:
    return text.mapped(call.soft(value), str.capitalize)


def _title(call: Call, value: Any) -> str:
    def change(whole: str) -> str:
        words = re.split(r"([-\s({\[<]+)", whole)
        return "".join(word[0].upper() + word[1:].lower() for word in words if word)

    return text.mapped(call.soft(value), change)


def _replace(call: Call, s: Any, old: Any, new: Any, count: Any = None) -> str:
    limit = -1 if count is None else count
    return replaced(call, call.text(s), call.text(old), call.text(new), limit)


def replaced(call: Call, value: str, old: str, new: str, count: int) -> str:
    """`value.replace(old, new, count)`, paid for before it is made."""
    call.meter.spend(1 + (len(value) + str.count(value, old) * len(new) >> 4))
    return text.replace(value, old, new, count)


def _indent(call: Call, s: Any, width: Any = 4, first: Any = False, blank: Any = False) -> str:
    if isinstance(s, text.Safe):
        raise Limit("indent of a safe string")
    if isinstance(width, str):
        indention = width
    elif width > MAX_INDENT:
        raise Limit(f"an indent above {MAX_INDENT}")
    else:
        indention = text.literal(" " * width)
    lines = text.splitlines(text.add(s, text.literal("\n")))
    call.meter.spend(len(lines) * (1 + (len(indention) >> 4)))
    later = [
        part for line in lines[1:] for part in (text.literal("\n"), indention if line or blank else "", line)
    ]
    return text.concat([indention if first else "", lines[0], *later])


def _items(call: Call, value: Any) -> Iterator[tuple[Any, Any]]:
    # A generator, as in Jinja: what is wrong with the value is found when the first item is asked for.
    if isinstance(value, Undefined):
        return
    if not isinstance(value, dict):
        raise Fault("items: can only get item pairs from a mapping")
    yield from value.items()


def _dictsort(
    call: Call, value: Any, case_sensitive: Any = False, by: Any = "key", reverse: Any = False
) -> list[tuple[Any, Any]]:
    if by not in ("key", "value"):
        raise Fault("dictsort: by must be 'key' or 'value'")
    if not isinstance(value, dict):
        raise Fault("dictsort: not a mapping")
    call.meter.weigh(value)
    place = int(by == "value")
    key = _folded(case_sensitive)
    return sorted(value.items(), key=lambda pair: key(pair[place]), reverse=bool(reverse))


def _sort(
    call: Call, value: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None
) -> list[Any]:
    values = list(call.each(value))
    call.meter.weigh(values)
    names = str(attribute).split(",") if isinstance(attribute, str) else [attribute]
    getters = [_getter(call, name) for name in names]
    fold = _folded(case_sensitive)
    return sorted(values, key=lambda v: [fold(get(v)) for get in getters], reverse=bool(reverse))


def _unique(call: Call, value: Any, case_sensitive: Any = False, attribute: Any = None) -> Iterator[Any]:
    get = _getter(call, attribute)
    fold = _folded(case_sensitive)
    seen = set()
    for part in call.each(value):
        key = fold(get(part))
        call.meter.weigh(key)
        if key not in seen:
            seen.add(key)
            yield part


def _least(call: Call, value: Any, case_sensitive: Any = False, attribute: Any = None) -> Any:
    return _extreme(call, value, case_sensitive, attribute, min)


def _most(call: Call, value: Any, case_sensitive: Any = False, attribute: Any = None) -> Any:
    return _extreme(call, value, case_sensitive, attribute, max)


def _extreme(call: Call, value: Any, case_sensitive: Any, attribute: Any, choose: Any) -> Any:
    values = list(call.each(value))
    if not values:
        return Undefined("No aggregated item, sequence was empty.")
    call.meter.weigh(values)
    get, fold = _getter(call, attribute), _folded(case_sensitive)
    return choose(values, key=lambda v: fold(get(v)))


def _int(call: Call, value: Any, default: Any = 0, base: Any = 10) -> Any:
    try:
        return int(str(value), base) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        try:
            return int(float(value))
        except (TypeError, ValueError, OverflowError):
            return default


def _float(call: Call, value: Any, default: Any = 0.0) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return default


def _abs(call: Call, x: Any) -> Any:
    return abs(x)


def _map(call: Call, value: Any, *args: Any, attribute: Any = None, default: Any = None) -> Iterator[Any]:
    # Jinja makes nothing of an empty value, not even a complaint about the arguments.
    if not value:
        return
    if not args and attribute is not None:
        get = _getter(call, attribute, default)
        for part in call.each(value):
            yield get(part)
        return
    if not args or attribute is not None or default is not None:
        raise Fault("map: needs a filter's name, or an attribute")
    use = _named(FILTERS, "filter", args[0])
    for part in call.each(value):
        yield use(call, part, *args[1:])


def _chosen(attribute_first: bool, wanted: bool) -> Callable[..., Iterator[Any]]:
    def choose(call: Call, value: Any, *args: Any) -> Iterator[Any]:
        if not value:
            return
        get: Callable[[Any], Any] = lambda part: part  # noqa: E731
        if attribute_first:
            if not args:
                raise Fault("the filter needs an attribute")
            get, args = _getter(call, args[0]), args[1:]
        use = _named(TESTS, "test", args[0]) if args else None
        for part in call.each(value):
            found = get(part)
            if bool(use(call, found, *args[1:]) if use else found) == wanted:
                yield part

    return choose


def _named(table: Mapping[str, Callable[..., Any]], what: str, name: Any) -> Callable[..., Any]:
    if not isinstance(name, str) or name not in table:
        raise Limit(f"the {what} {name!r:.60}")
    return table[name]


def _getter(call: Call, name: Any, default: Any = None) -> Callable[[Any], Any]:
    """Jinja's `make_attrgetter`: dotted names, digits are positions; the value itself without a name."""
    if name is None:
        return lambda value: value
    parts = [name] if isinstance(name, int) else [int(p) if p.isdigit() else p for p in str(name).split(".")]

    def get(value: Any) -> Any:
        for part in parts:
            value = item(value, part)
            if default is not None and isinstance(value, Undefined):
                value = default
        return value

    return get


def _folded(case_sensitive: Any) -> Callable[[Any], Any]:
    return lambda v: v if case_sensitive or not isinstance(v, str) else str(v).lower()


FILTERS: Mapping[str, Callable[..., Any]] = {
    "abs": _abs,
    "capitalize": _capitalize,
    "count": _length,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "first": _first,
    "float": _float,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": _list,
    "lower": _lower,
    "map": _map,
    "max": _most,
    "min": _least,
    "reject": _chosen(False, False),
    "rejectattr": _chosen(True, False),
    "replace": _replace,
    "reverse": _reverse,
    "safe": _safe,
    "select": _chosen(False, True),
    "selectattr": _chosen(True, True),
    "sort": _sort,
    "string": _string,
    "title": _title,
    "tojson": _tojson,
    "trim": _trim,
    "unique": _unique,
    "upper": _upper,
}


def _is_iterable(call: Call, value: Any) -> bool:
    return hasattr(type(value), "__iter__")


def _is_sequence(call: Call, value: Any) -> bool:
    return isinstance(value, str | list | tuple | dict | range | Undefined)


def equal(call: Call, a: Any, b: Any) -> bool:
    """`a == b`, paid for."""
    if isinstance(a, dict | list | tuple):
        call.meter.weigh(a)
    elif isinstance(a, str):
        call.meter.spend(len(a) >> 8)
    return bool(a == b)


def contains(call: Call, a: Any, b: Any) -> bool:
    """`a in b`, paid for."""
    if isinstance(a, dict | list | tuple):
        call.meter.weigh(a)
    if isinstance(b, str):
        call.meter.spend(len(b) >> 4)
    elif isinstance(b, list | tuple):
        call.meter.spend(len(b) * (1 + (len(a) >> 8) if isinstance(a, str) else 1))
        if isinstance(a, dict | list | tuple):
            call.meter.weigh(b)
    return a in b


def _not_weighed(compare: Callable[[Any, Any], bool]) -> Callable[[Call, Any, Any], bool]:
    def test(call: Call, a: Any, b: Any) -> bool:
        if isinstance(a, list | tuple):
            call.meter.weigh(a)
        return compare(a, b)

    return test


less = _not_weighed(lambda a, b: a < b)
less_equal = _not_weighed(lambda a, b: a <= b)
greater = _not_weighed(lambda a, b: a > b)
greater_equal = _not_weighed(lambda a, b: a >= b)

TESTS: Mapping[str, Callable[..., bool]] = {
    "boolean": lambda call, v: v is True or v is False,
    "defined": lambda call, v: not isinstance(v, Undefined),
    "divisibleby": lambda call, v, num: v % num == 0 if not isinstance(v, str) else _no_format(),
    "even": lambda call, v: v % 2 == 0 if not isinstance(v, str) else _no_format(),
    "false": lambda call, v: v is False,
    "float": lambda call, v: isinstance(v, float),
    "in": contains,
    "integer": lambda call, v: isinstance(v, int) and v is not True and v is not False,
    "iterable": _is_iterable,
    "mapping": lambda call, v: isinstance(v, dict),
    "none": lambda call, v: v is None,
    "number": lambda call, v: isinstance(v, int | float),
    "odd": lambda call, v: v % 2 == 1 if not isinstance(v, str) else _no_format(),
    "sequence": _is_sequence,
    "string": lambda call, v: isinstance(v, str),
    "true": lambda call, v: v is True,
    "undefined": lambda call, v: isinstance(v, Undefined),
    "lower": lambda call, v: call.text(v).islower(),
    "upper": lambda call, v: call.text(v).isupper(),
    **dict.fromkeys(("==", "eq", "equalto"), equal),
    **dict.fromkeys(("!=", "ne"), lambda call, a, b: not equal(call, a, b)),
    **dict.fromkeys(("<", "lt", "lessthan"), less),
    **dict.fromkeys(("<=", "le"), less_equal),
    **dict.fromkeys((">", "gt", "greaterthan"), greater),
    **dict.fromkeys((">=", "ge"), greater_equal),
}


def _no_format() -> bool:
    raise Limit("% on a string")


def takes(table: Mapping[str, Callable[..., Any]], name: str, n: int, named: Iterable[str]) -> bool:
    """Whether the filter or test takes so many arguments after its value, and these named ones."""
    try:
        signature(table[name]).bind(None, None, *([None] * n), **dict.fromkeys(named))
    except TypeError:
        return False
    return True


def call_method(call: Call, method: Method, args: list[Any], named: dict[str, Any]) -> Any:
    """The method's result."""
    owner, name = method.owner, method.name
    if isinstance(owner, str):
        return _string_method(call, owner, name, args, named)
    if named:
        raise Fault(f"{name}() takes no keyword arguments")
    call.meter.spend(len(owner) if name in ("count", "index") else 1)
    for arg in args:
        if isinstance(arg, list | tuple | dict):
            call.meter.weigh(arg)
            call.meter.weigh(owner)
    return getattr(owner, name)(*args)


def _string_method(call: Call, s: str, name: str, args: list[Any], named: dict[str, Any]) -> Any:
    call.meter.spend(1 + (len(s) >> 4))
    if name in ("strip", "lstrip", "rstrip"):
        _no_names(name, named)
        _at_most(name, args, 1)
        return text.strip(s, *args, left=name != "rstrip", right=name != "lstrip")
    if name in ("split", "rsplit"):
        given = dict(zip(("sep", "maxsplit"), args, strict=False)) | named
        if len(args) > 2 or len(given) != len(args) + len(named) or given.keys() - {"sep", "maxsplit"}:
            raise Fault(f"{name}(): wrong arguments")
        sep, limit = given.get("sep"), given.get("maxsplit", -1)
        # Between two parts there is a separator, or at least one character of white space.
        most = str.count(s, sep) if isinstance(sep, str) and sep else len(s) // 2
        call.meter.spend(
            PART_STEPS * (1 + (min(most, limit) if isinstance(limit, int) and limit >= 0 else most))
        )
        return text.split(s, sep, limit, right=name == "rsplit")
    if name == "splitlines":
        _at_most(name, args, 1)
        lines = text.splitlines(s, *args, **named)
        call.meter.spend(PART_STEPS * len(lines))
        return lines
    if name in ("partition", "rpartition"):
        _no_names(name, named)
        return text.partition(s, *args, right=name == "rpartition")
    if isinstance(s, text.Safe) and name in ("replace", "join", "format"):
        raise Limit(f"{name} of a safe string")
    if name == "replace":
        if named or not 2 <= len(args) <= 3:
            raise Fault("replace(): wrong arguments")
        old, new, count = (*args, -1)[:3]
        if not isinstance(old, str) or not isinstance(new, str):
            raise Fault("replace() takes strings")
        return replaced(call, s, old, text.plain(new), count)
    if name == "join":
        _no_names(name, named)
        (values,) = args
        parts = list(call.each(values))
        if not all(isinstance(part, str) for part in parts):
            raise Fault("join() takes strings")
        call.meter.spend(len(s) * len(parts) + sum(map(len, parts)) >> 4)
        return text.join(s, parts)
    if name == "format":
        return _format(call, s, args, named)
    if name in ("removeprefix", "removesuffix"):
        _no_names(name, named)
        (affix,) = args
        if name == "removeprefix":
            return text.cut(s, len(affix) if s.startswith(affix) else 0, len(s))
        return text.cut(s, 0, len(s) - len(affix) if s.endswith(affix) else len(s))
    if name in ("upper", "lower", "title", "capitalize", "swapcase"):
        _no_names(name, named)
        _at_most(name, args, 0)
        return text.mapped(s, getattr(str, name))
    assert name in METHODS[str]
    return getattr(str(s), name)(*args, **named)


def _format(call: Call, s: str, args: list[Any], named: dict[str, Any]) -> str:
    """`str.format` with plain fields only: `{}`, `{0}`, `{name}`."""
    parts: list[str] = []
    at = automatic = 0
    for match in re.finditer(r"\{\{|\}\}|\{([A-Za-z_]\w*|[0-9]{0,3})\}|[{}]", s, re.ASCII):
        parts.append(text.cut(s, at, match.start()))
        at = match.end()
        field = match[1]
        if field is None:
            if len(match[0]) == 1:
                raise Limit("format with more than plain fields")
            parts.append(text.cut(s, match.start(), match.start() + 1))
        elif field.isdigit() or not field:
            if not field:
                field, automatic = str(automatic), automatic + 1
            elif automatic:
                raise Fault("format(): both automatic and manual fields")
            if int(field) >= len(args):
                raise Fault("format(): too few arguments")
            parts.append(call.text(args[int(field)]))
        elif field in named:
            parts.append(call.text(named[field]))
        else:
            raise Fault(f"format(): no argument {field!r}")
    parts.append(text.cut(s, at, len(s)))
    return text.concat(parts)


def _no_names(name: str, named: dict[str, Any]) -> None:
    if named:
        raise Fault(f"{name}() takes no keyword arguments")


def _at_most(name: str, args: list[Any], most: int) -> None:
    if len(args) > most:
        raise Fault(f"{name}() takes at most {most} arguments")
