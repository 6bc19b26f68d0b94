"""A JSON schema -> the language of the texts that are valid by it.

    {"type": "json_object"}                          any object
    {"type": "json_schema", "json_schema": {"schema": {...}}}
    {"type": "regex", "pattern": "..."}              pattern.py
    {"type": "text"}                                 anything: no constraint

Every text of the language parses as JSON and is valid by the schema. The reverse need not hold: an object's
members come in the order of `properties`, members that the schema doesn't declare don't come, numbers have at
most 15 digits before and after the point, and space between tokens is at most one blank, or one line feed and
up to 16 blanks. What the schema says and this file doesn't do is refused by name, never passed over.

Source: JSON Schema 2020-12 (Validation); RFC 8259.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from slm2_web.constrain.automaton import bad
from slm2_web.constrain.language import (
    EMPTY,
    Alt,
    Chars,
    Expression,
    Repeat,
    Seq,
    chars,
    literal,
    one_of,
    optional,
    outside,
)
from slm2_web.constrain.pattern import parse_pattern
from slm2_web.sampling2.params import MAX_FORMAT_BYTES
from slm2_web.strictjson import NotJson, loads, show

MAX_NESTING: Final = 24
MAX_PROPERTIES: Final = 64
MAX_SCHEMAS: Final = 2_000
MAX_COUNT: Final = 10_000
MAX_ANY_DEPTH: Final = 3  # containers within a value that the schema says nothing about
MAX_DIGITS: Final = 15  # every integer of so many digits is a double

# Keywords that say nothing about what is valid.
_NOTES: Final = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"} | {
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
}

_SPACE: Expression = Alt((EMPTY, one_of(" "), Seq((one_of("\n"), Repeat(one_of(" "), 0, 16)))))
_DIGIT = one_of("0123456789")
_DIGIT_1 = one_of("123456789")
_HEX = one_of("0123456789abcdefABCDEF")

_NATURAL: Expression = Alt((one_of("0"), Seq((_DIGIT_1, Repeat(_DIGIT, 0, MAX_DIGITS - 1)))))
_INTEGER: Expression = Alt(
    (one_of("0"), Seq((optional(one_of("-")), _DIGIT_1, Repeat(_DIGIT, 0, MAX_DIGITS - 1))))
)
_NUMBER: Expression = Seq(
    (
        optional(one_of("-")),
        _NATURAL,
        optional(Seq((one_of("."), Repeat(_DIGIT, 1, MAX_DIGITS)))),
        optional(Seq((one_of("eE"), optional(one_of("+-")), Repeat(_DIGIT, 1, 2)))),
    )
)

_CONTROLS = (0, 0x1F)
_UNESCAPED = outside(chars([_CONTROLS, (0x22, 0x22), (0x5C, 0x5C)]))
_SHORT_ESCAPES: Final = {
    '"': '"',
    "\\": "\\",
    "/": "/",
    "\b": "b",
    "\f": "f",
    "\n": "n",
    "\r": "r",
    "\t": "t",
}
_ESCAPE: Expression = Seq(
    (
        one_of("\\"),
        Alt(
            (
                one_of("".join(_SHORT_ESCAPES.values())),
                # \uXXXX of a character that is no surrogate, or of a pair of them
                Seq(
                    (
                        one_of("u"),
                        Alt(
                            (
                                Seq((one_of("0123456789abcefABCEF"), _HEX, _HEX, _HEX)),
                                Seq((one_of("dD"), one_of("01234567"), _HEX, _HEX)),
                            )
                        ),
                    )
                ),
                Seq(
                    (
                        literal("u"),
                        one_of("dD"),
                        one_of("89abAB"),
                        _HEX,
                        _HEX,
                        literal("\\u"),
                        one_of("dD"),
                        one_of("cdefCDEF"),
                        _HEX,
                        _HEX,
                    )
                ),
            )
        ),
    )
)
_CHARACTER: Expression = Alt((_UNESCAPED, _ESCAPE))
_QUOTE = one_of('"')
_STRING: Expression = Seq((_QUOTE, Repeat(_CHARACTER, 0, None), _QUOTE))
_BOOLEAN: Expression = Alt((literal("true"), literal("false")))
_NULL: Expression = literal("null")


def parse_format(text: bytes) -> Expression | None:
    """The language of a `response_format`, a JSON text; None for {"type": "text"}.

    Raises: InputError `input.response_format` with the place, what was found and what is allowed.
    """
    try:
        value = loads(text, max_bytes=MAX_FORMAT_BYTES)
    except NotJson as error:
        raise bad(str(error), "one JSON object") from None
    checked = _object(value, "response_format")
    kinds = {
        "text": ((), ()),
        "json_object": ((), ()),
        "json_schema": (("json_schema",), ()),
        "regex": (("pattern",), ()),
    }
    kind = checked.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise bad(show(kind), " | ".join(kinds), "response_format.type")
    _keys(checked, "response_format", ("type", *kinds[kind][0]), ())
    match kind:
        case "json_object":
            return _any_object(MAX_ANY_DEPTH)
        case "json_schema":
            place = "response_format.json_schema"
            outer = _object(checked["json_schema"], place)
            _keys(outer, place, ("schema",), ("name", "description", "strict"))
            return _Schema(outer["schema"], f"{place}.schema").language()
        case "regex":
            pattern = checked["pattern"]
            if not isinstance(pattern, str):
                raise bad(show(pattern), "a string", "response_format.pattern")
            return parse_pattern(pattern, "response_format.pattern")
        case _:
            return None


class _Schema:
    """One schema document: what `$ref` refers to, and what was made of it already."""

    def __init__(self, root: Any, place: str) -> None:
        self._root = root
        self._place = place
        self._known: dict[str, Expression] = {}
        self._open: list[str] = []
        self._n_schemas = 0

    def language(self) -> Expression:
        return self.value(self._root, self._place, 0)

    def value(self, schema: Any, place: str, depth: int) -> Expression:
        if depth > MAX_NESTING:
            raise bad(f"schemas nested deeper than {MAX_NESTING}", "a flatter schema", place)
        self._n_schemas += 1
        if self._n_schemas > MAX_SCHEMAS:
            raise bad(f"more than {MAX_SCHEMAS} schemas", "a smaller schema", place)
        if schema is True or schema == {}:
            return _any_value(MAX_ANY_DEPTH)
        found = {k: v for k, v in _object(schema, place).items() if k not in _NOTES}
        if "$ref" in found:
            _keys(found, place, ("$ref",), ())
            return self.reference(found["$ref"], f"{place}.$ref", depth)
        if "const" in found:
            _keys(found, place, ("const",), ("type",))
            return self.constants([found["const"]], found, f"{place}.const")
        if "enum" in found:
            _keys(found, place, ("enum",), ("type",))
            if not isinstance(found["enum"], list) or not 1 <= len(found["enum"]) <= MAX_COUNT:
                raise bad(show(found["enum"]), "a list of values", f"{place}.enum")
            return self.constants(found["enum"], found, f"{place}.enum")
        if "anyOf" in found:
            _keys(found, place, ("anyOf",), ())
            schemas = found["anyOf"]
            if not isinstance(schemas, list) or not schemas:
                raise bad(show(schemas), "a list of schemas", f"{place}.anyOf")
            return Alt(tuple(self.value(s, f"{place}.anyOf[{i}]", depth + 1) for i, s in enumerate(schemas)))
        kinds = found.get("type")
        if isinstance(kinds, list) and kinds and len(set(map(str, kinds))) == len(kinds):
            # A keyword of another type says nothing about a value.
            return Alt(tuple(self.typed(kind, _about(kind, found, kinds), place, depth) for kind in kinds))
        return self.typed(kinds, found, place, depth)

    def reference(self, target: Any, place: str, depth: int) -> Expression:
        if not isinstance(target, str) or not target.startswith(("#/$defs/", "#/definitions/")):
            raise bad(show(target), '"#/$defs/NAME"', place)
        if target in self._open:
            raise bad(f"{show(target)}, which refers to itself", "schemas without recursion", place)
        if target not in self._known:
            _, section, name = target.split("/", 2)
            name = name.replace("~1", "/").replace("~0", "~")
            sections = self._root.get(section) if isinstance(self._root, dict) else None
            if not isinstance(sections, dict) or name not in sections:
                raise bad(show(target), "the name of a definition", place)
            self._open.append(target)
            self._known[target] = self.value(sections[name], f"{self._place}.{section}.{name}", depth + 1)
            self._open.pop()
        return self._known[target]

    def constants(self, values: list[Any], schema: Mapping[str, Any], place: str) -> Expression:
        kinds = schema.get("type")
        if kinds is not None:
            allowed = kinds if isinstance(kinds, list) else [kinds]
            for index, value in enumerate(values):
                if not any(_has_type(value, kind) for kind in allowed):
                    raise bad(show(value), f"of type {show(kinds)}", f"{place}[{index}]")
        try:
            texts = [json.dumps(value, ensure_ascii=False, allow_nan=False) for value in values]
            for text in texts:
                text.encode("utf-8")
        except UnicodeEncodeError:
            raise bad("a lone surrogate", "characters", place) from None
        return Alt(tuple(literal(text) for text in dict.fromkeys(texts)))

    def typed(self, kind: Any, schema: Mapping[str, Any], place: str, depth: int) -> Expression:
        match kind:
            case "string":
                return self.string(schema, place)
            case "integer":
                return self.integer(schema, place)
            case "number":
                _keys(schema, place, ("type",), ())
                return _NUMBER
            case "boolean":
                _keys(schema, place, ("type",), ())
                return _BOOLEAN
            case "null":
                _keys(schema, place, ("type",), ())
                return _NULL
            case "array":
                return self.array(schema, place, depth)
            case "object":
                return self.object(schema, place, depth)
            case None:
                _keys(schema, place, (), ())  # names what is there
                raise bad("a schema without a type", "type, enum, const, anyOf or $ref", place)
            case _:
                allowed = "string | integer | number | boolean | null | array | object"
                raise bad(show(kind), allowed, f"{place}.type")

    def string(self, schema: Mapping[str, Any], place: str) -> Expression:
        _keys(schema, place, ("type",), ("minLength", "maxLength", "pattern"))
        if "pattern" in schema:
            _keys(schema, place, ("type", "pattern"), ())
            if not isinstance(schema["pattern"], str):
                raise bad(show(schema["pattern"]), "a string", f"{place}.pattern")
            inner = parse_pattern(schema["pattern"], f"{place}.pattern", search=True)
            return Seq((_QUOTE, _escaped(inner, {}), _QUOTE))
        least = _count(schema, "minLength", place, 0)
        most = _count(schema, "maxLength", place, None)
        return (
            Seq((_QUOTE, _repeat(_CHARACTER, least, most, place, "minLength"), _QUOTE))
            if (least or most is not None)
            else _STRING
        )

    def integer(self, schema: Mapping[str, Any], place: str) -> Expression:
        _keys(schema, place, ("type",), ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
        if len(schema) == 1:
            return _INTEGER
        limit = 10**MAX_DIGITS - 1
        low = max(
            _bound(schema, "minimum", place, -limit),
            _bound(schema, "exclusiveMinimum", place, -limit - 1) + 1,
        )
        high = min(
            _bound(schema, "maximum", place, limit), _bound(schema, "exclusiveMaximum", place, limit + 1) - 1
        )
        if low > high:
            raise bad(f"no integer from {low} to {high}", "a range that holds one", place)
        items: list[Expression] = []
        if low < 0:
            items.append(Seq((one_of("-"), _natural_range(max(1, -high), -low))))
        if high >= 0:
            items.append(_natural_range(max(0, low), high))
        return Alt(tuple(items))

    def array(self, schema: Mapping[str, Any], place: str, depth: int) -> Expression:
        _keys(schema, place, ("type",), ("items", "minItems", "maxItems"))
        item = self.value(schema.get("items", True), f"{place}.items", depth + 1)
        least = _count(schema, "minItems", place, 0)
        most = _count(schema, "maxItems", place, None)
        return _array(item, least, most, place)

    def object(self, schema: Mapping[str, Any], place: str, depth: int) -> Expression:
        _keys(schema, place, ("type",), ("properties", "required", "additionalProperties"))
        properties = _object(schema.get("properties", {}), f"{place}.properties")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise bad(show(required), "a list of names", f"{place}.required")
        for name in required:
            if name not in properties:
                raise bad(f"{show(name)}, which properties lack", "declared names", f"{place}.required")
        if len(properties) > MAX_PROPERTIES:
            raise bad(f"{len(properties)} members", f"at most {MAX_PROPERTIES}", f"{place}.properties")
        more = schema.get("additionalProperties", True)
        if not properties and more is not False:
            member = self.value(more, f"{place}.additionalProperties", depth + 1)
            return _map(member)
        if not isinstance(more, bool | dict):
            raise bad(show(more), "a boolean or a schema", f"{place}.additionalProperties")
        members = [
            (name, self.value(value, f"{place}.properties.{name}", depth + 1), name in required)
            for name, value in properties.items()
        ]
        return _record(members, f"{place}.properties")


# --- containers ------------------------------------------------------------------------------------------

_COMMA: Expression = Seq((_SPACE, one_of(","), _SPACE))
_COLON: Expression = Seq((_SPACE, one_of(":"), _SPACE))


def _array(item: Expression, least: int, most: int | None, place: str) -> Expression:
    if most == 0:
        if least:
            raise bad("minItems above maxItems", "counts in order", place)
        return Seq((one_of("["), _SPACE, one_of("]")))
    after = Seq((_COMMA, item))
    more = _repeat(after, max(0, least - 1), None if most is None else most - 1, place, "minItems")
    inner: Expression = Seq((item, more, _SPACE))
    return Seq((one_of("["), _SPACE, inner if least else optional(inner), one_of("]")))


def _map(value: Expression) -> Expression:
    member = Seq((_STRING, _COLON, value))
    inner = Seq((member, Repeat(Seq((_COMMA, member)), 0, None), _SPACE))
    return Seq((one_of("{"), _SPACE, optional(inner), one_of("}")))


def _record(members: list[tuple[str, Expression, bool]], place: str) -> Expression:
    """An object with `members` (name, value, whether required) in order. `tails` are what may follow before
    the i-th member, when none has come yet and when one has."""
    first_tail: Expression = EMPTY
    later_tail: Expression = EMPTY
    for name, value, required in reversed(members):
        try:
            key = json.dumps(name, ensure_ascii=False)
            key.encode("utf-8")
        except UnicodeEncodeError:
            raise bad("a lone surrogate", "characters", place) from None
        member = Seq((literal(key), _COLON, value))
        first: Expression = Seq((member, later_tail))
        later: Expression = Seq((_COMMA, member, later_tail))
        first_tail = first if required else Alt((first, first_tail))
        later_tail = later if required else Alt((later, later_tail))
    return Seq((one_of("{"), _SPACE, first_tail, _SPACE, one_of("}")))


@cache
def _any_value(depth: int) -> Expression:
    """Any JSON value of at most `depth` containers within each other."""
    scalars = (_STRING, _NUMBER, _BOOLEAN, _NULL)
    if depth == 0:
        return Alt(scalars)
    inner = _any_value(depth - 1)
    return Alt((*scalars, _array(inner, 0, None, ""), _map(inner)))


@cache
def _any_object(depth: int) -> Expression:
    return _map(_any_value(depth - 1))


# --- numbers and strings ---------------------------------------------------------------------------------


def _natural_range(low: int, high: int) -> Expression:
    """The decimal spellings of `low` to `high`, 0 <= low <= high, without leading zeros."""
    items = []
    for n_digits in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (n_digits - 1) if n_digits > 1 else 0)
        last = min(high, 10**n_digits - 1)
        items.append(_digits(str(first), str(last)))
    return Alt(tuple(items))


def _digits(low: str, high: str) -> Expression:
    """The texts of as many digits as both have, from `low` to `high`."""
    if not low:
        return EMPTY
    if low[0] == high[0]:
        return Seq((one_of(low[0]), _digits(low[1:], high[1:])))
    rest = len(low) - 1
    items: list[Expression] = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != "0" * rest:
        items.append(Seq((one_of(low[0]), _digits(low[1:], "9" * rest))))
        first += 1
    if high[1:] != "9" * rest:
        items.append(Seq((one_of(high[0]), _digits("0" * rest, high[1:]))))
        last -= 1
    if first <= last:
        middle = chars([(0x30 + first, 0x30 + last)])
        items.append(Seq((middle, Repeat(_DIGIT, rest, rest))))
    return Alt(tuple(items))


def _escaped(expression: Expression, known: dict[int, tuple[Expression, Expression]]) -> Expression:
    """The same texts as a JSON string spells them: what must be escaped is, and nothing else."""
    if id(expression) not in known:
        match expression:
            case Chars():
                result: Expression = _escaped_chars(expression)
            case Seq(items):
                result = Seq(tuple(_escaped(item, known) for item in items))
            case Alt(items):
                result = Alt(tuple(_escaped(item, known) for item in items))
            case Repeat(item, least, most):
                result = Repeat(_escaped(item, known), least, most)
        known[id(expression)] = (expression, result)
    return known[id(expression)][1]


def _escaped_chars(some: Chars) -> Expression:
    def has(code: int) -> bool:
        return any(first <= code <= last for first, last in some.ranges)

    items: list[Expression] = []
    left_out = outside(some).ranges
    plain = outside(chars([*left_out, _CONTROLS, (0x22, 0x22), (0x5C, 0x5C)]))
    if plain.ranges:
        items.append(plain)
    for code in (*range(0x20), 0x22, 0x5C):
        if has(code):
            short = _SHORT_ESCAPES.get(chr(code))
            items.append(literal("\\" + short if short else f"\\u{code:04x}"))
    return Alt(tuple(items))


def _repeat(item: Expression, least: int, most: int | None, place: str, keyword: str) -> Repeat:
    if most is not None and least > most:
        raise bad(f"{keyword} above its maximum", "counts in order", place)
    return Repeat(item, least, most)


# --- checks ----------------------------------------------------------------------------------------------


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad(show(value), "an object", place)
    return value


def _keys(
    value: Mapping[str, Any], place: str, required: tuple[str, ...], optional_keys: tuple[str, ...]
) -> None:
    for key in required:
        if key not in value:
            raise bad("nothing", f"the key {key}", place)
    for key in value:
        if key not in required and key not in optional_keys:
            allowed = " | ".join((*required, *optional_keys)) or "nothing else"
            raise bad(f"the keyword {show(key)}", allowed, place)


def _count(schema: Mapping[str, Any], name: str, place: str, default: Any) -> Any:
    value = schema.get(name, default)
    if value is default:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise bad(show(value), f"an integer from 0 to {MAX_COUNT}", f"{place}.{name}")
    return value


def _bound(schema: Mapping[str, Any], name: str, place: str, default: int) -> int:
    value = schema.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(show(value), "an integer", f"{place}.{name}")
    # Beyond what is ever written all bounds say the same.
    edge: int = 10 ** (MAX_DIGITS + 1)
    return max(-edge, min(edge, value))


# The keywords of a type.
_KEYWORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength", "pattern"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}


def _about(kind: Any, schema: Mapping[str, Any], kinds: list[Any]) -> dict[str, Any]:
    """`schema` for one of its types, less the keywords of the others."""
    others = {word for other in kinds if other != kind for word in _KEYWORDS.get(str(other), ())}
    return {k: v for k, v in schema.items() if k not in others - set(_KEYWORDS.get(str(kind), ()))}


def _has_type(value: Any, kind: Any) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return not isinstance(value, bool) and (
                isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            )
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return False
