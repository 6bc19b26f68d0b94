"""JSON schemas: what is written is valid (by the package `jsonschema`), what is valid can be written, and
every refusal is by name."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.constrain.automaton import DEAD, Automaton
from slm2_web.constrain.schema import MAX_DIGITS, parse_format
from slm2_web.errors import InputError

ALL_BYTES = bytes(range(256))
KNOWN: dict[str, Automaton] = {}


def automaton(response_format: dict[str, Any]) -> Automaton:
    text = json.dumps(response_format)
    if text not in KNOWN:
        expression = parse_format(text.encode())
        assert expression is not None
        KNOWN[text] = Automaton(expression, ALL_BYTES)
    return KNOWN[text]


def of_schema(schema: Any) -> Automaton:
    return automaton({"type": "json_schema", "json_schema": {"schema": schema}})


def accepts(found: Automaton, text: str) -> bool:
    return found.accepts(found.after(found.start, text.encode("utf-8", "surrogatepass")))


def written(found: Automaton, rng: np.random.Generator, n_bytes: int) -> bytes | None:
    """A text of the language, byte by byte at random; after `n_bytes` the way that ends soonest is taken."""
    state, text = found.start, b""
    every = np.arange(256, dtype=np.uint8)
    while len(text) < 4 * n_bytes:
        after = found.step(np.full(256, state, np.int32), every)
        (choices,) = np.nonzero(after)
        if found.accepts(state) and (not choices.size or rng.random() < 0.3 or len(text) > n_bytes):
            return text
        # Structure now and then, else a text would hardly leave its first string.
        marks = [c for c in choices if c in b'"}],:bc']
        byte = int(rng.choice(marks if marks and (rng.random() < 0.4 or len(text) > n_bytes) else choices))
        text += bytes([byte])
        state = int(after[byte])
    return None


SCHEMAS: list[Any] = [
    {"type": "string"},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": '^[a-z"\\\\\\n]{1,3}$'},
    {"type": "string", "pattern": "b+c"},
    {"type": "integer"},
    {"type": "integer", "minimum": -12, "maximum": 1043},
    {"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 101},
    {"type": "integer", "minimum": 7},
    {"type": "integer", "maximum": -7},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"], "maxLength": 3},
    {"enum": ["rot", 'g"rün', 3, 1.5, None, True, {"a": [1, "é"]}]},
    {"const": {"b": 1, "a": [None]}},
    {"type": "string", "enum": ["a", "b"]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2},
    {"type": "array", "maxItems": 0},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}}},
    {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b\n": {"type": "null"}, "c": {"type": "null"}},
        "required": ["b\n"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "null"}}]},
    {
        "$defs": {"p": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
        "title": "a line",
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/p"}, "to": {"$ref": "#/$defs/p"}},
        "required": ["from", "to"],
    },
    True,
    {},
    {"type": "object"},
    {"type": "array"},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:60])
def test_what_is_written_is_valid(schema: Any) -> None:
    found = of_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    rng = np.random.default_rng(5)
    texts = [text for _ in range(60) if (text := written(found, rng, 40)) is not None]
    assert len(texts) > 20
    for text in texts:
        value = json.loads(text)
        validator.validate(value)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


NAMES = st.text(st.characters(codec="utf-8"), max_size=4)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**MAX_DIGITS) + 1, 10**MAX_DIGITS - 1),
        st.floats(-1e6, 1e6).map(lambda x: round(x, 6)).filter(lambda x: "e" not in repr(x)),
        st.text(st.characters(codec="utf-8"), max_size=6),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(VALUES.filter(lambda value: depth(value) <= 3), st.sampled_from([None, 2]), st.booleans())
def test_any_value_can_be_written_in_the_usual_styles(value: Any, indent: int | None, ascii_: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_)
    assert accepts(of_schema(True), text)
    if isinstance(value, dict):
        assert accepts(automaton({"type": "json_object"}), text)
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_)
    assert accepts(of_schema({}), compact)


@given(VALUES)
def test_a_constant_is_itself(value: Any) -> None:
    assert accepts(of_schema({"const": value}), json.dumps(value, ensure_ascii=False))


@settings(max_examples=60)
@given(st.integers(-2000, 2000), st.integers(0, 1500), st.data())
def test_integer_ranges(low: int, more: int, data: st.DataObject) -> None:
    high = low + more
    found = of_schema({"type": "integer", "minimum": low, "maximum": high})
    for value in {low, high, low - 1, high + 1, data.draw(st.integers(-3000, 5000))}:
        assert accepts(found, str(value)) == (low <= value <= high), value
    for text in ("-0", "00", "01", "+1", "1.0", "1e0", "", "-"):
        assert not accepts(found, text)


@given(st.integers(0, 10**MAX_DIGITS - 1))
def test_open_integer_ranges(bound: int) -> None:
    up = of_schema({"type": "integer", "minimum": bound})
    assert accepts(up, str(bound))
    assert not accepts(up, str(bound - 1))
    down = of_schema({"type": "integer", "maximum": -bound})
    assert accepts(down, str(-bound))
    assert not accepts(down, str(-bound + 1))


@given(st.text(st.characters(codec="utf-8"), max_size=8))
def test_strings_escape_what_they_must(text: str) -> None:
    found = of_schema({"type": "string"})
    assert accepts(found, json.dumps(text))
    assert accepts(found, json.dumps(text, ensure_ascii=False))
    raw = f'"{text}"'
    try:
        parses = isinstance(json.loads(raw), str)
    except ValueError:
        parses = False
    lone = parses and any(0xD800 <= ord(c) < 0xE000 for c in json.loads(raw))
    assert accepts(found, raw) == (parses and not lone)


@pytest.mark.parametrize(
    "bad", ['"\\ud800"', '"\\udc00\\ud800"', '"\\x41"', '"a', "'a'", '"\x01"', '"\ud800"']
)
def test_strings_that_are_none(bad: str) -> None:
    assert not accepts(of_schema({"type": "string"}), bad)


def test_a_pattern_is_about_the_value() -> None:
    found = of_schema({"type": "string", "pattern": '^["\\\\\\n\\u0001é]+$'})
    assert accepts(found, json.dumps('"\\\n\x01é', ensure_ascii=False))
    assert not accepts(found, '"a"')
    assert accepts(of_schema({"type": "string", "pattern": "b"}), '"abc"')
    assert not accepts(of_schema({"type": "string", "pattern": "^b"}), '"abc"')


def test_members_come_in_order_and_each_once() -> None:
    null = {"type": "null"}
    schema = {"type": "object", "properties": {"a": null, "b": null, "c": null}, "required": ["b"]}
    found = of_schema(schema)
    for names, good in (("b", 1), ("ab", 1), ("bc", 1), ("abc", 1), ("", 0), ("ac", 0), ("ba", 0), ("bb", 0)):
        assert accepts(
            found,
            json.dumps(dict.fromkeys(names)) if len(set(names)) == len(names) else '{"b": null, "b": null}',
        ) == bool(good), names


def test_space_is_bounded() -> None:
    found = automaton({"type": "json_object"})
    assert accepts(found, '{\n                "a" : 1\n}')
    for text in (
        '{  "a":1}',
        '{\n\n"a":1}',
        '{\t"a":1}',
        ' {"a":1}',
        '{"a":1} ',
        "{\n" + " " * 17 + '"a":1}',
    ):
        assert not accepts(found, text)


def test_no_constraint() -> None:
    assert parse_format(b'{"type": "text"}') is None


SCHEMA = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("schema", "place", "found"),
    [
        ({"type": "string", "format": "date"}, SCHEMA, "'format'"),
        ({"type": "number", "minimum": 0}, SCHEMA, "'minimum'"),
        ({"type": "integer", "multipleOf": 2}, SCHEMA, "'multipleOf'"),
        ({"oneOf": [{"type": "null"}]}, SCHEMA, "'oneOf'"),
        ({"type": "object", "patternProperties": {}}, SCHEMA, "'patternProperties'"),
        ({"type": "array", "uniqueItems": True}, SCHEMA, "'uniqueItems'"),
        ({"type": "text"}, f"{SCHEMA}.type", "'text'"),
        ({"type": []}, f"{SCHEMA}.type", "[]"),
        ({"minLength": 2}, SCHEMA, "'minLength'"),
        ({"$ref": "#/$defs/x"}, f"{SCHEMA}.$ref", "'#/$defs/x'"),
        ({"$ref": "https://example.org/x"}, f"{SCHEMA}.$ref", "'https://example.org/x'"),
        (
            {"$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"},
            f"{SCHEMA}.$defs.x.items.$ref",
            "refers to itself",
        ),
        ({"type": "object", "properties": {}, "required": ["a"]}, f"{SCHEMA}.required", "'a'"),
        ({"type": "object", "properties": {"a": {"type": "int"}}}, f"{SCHEMA}.properties.a.type", "'int'"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, SCHEMA, "minLength"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, SCHEMA, "minItems"),
        ({"type": "array", "minItems": 1, "maxItems": 0}, SCHEMA, "minItems"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, SCHEMA, "no integer from 3 to 2"),
        ({"type": "integer", "minimum": 1.5}, f"{SCHEMA}.minimum", "1.5"),
        ({"type": "string", "maxLength": -1}, f"{SCHEMA}.maxLength", "-1"),
        ({"enum": []}, f"{SCHEMA}.enum", "[]"),
        ({"type": "string", "enum": ["a", 1]}, f"{SCHEMA}.enum[1]", "1"),
        ({"const": "\ud800"}, f"{SCHEMA}.const", "surrogate"),
        ({"type": "string", "pattern": "("}, f"{SCHEMA}.pattern, character 1", "end of the pattern"),
        ({"anyOf": []}, f"{SCHEMA}.anyOf", "[]"),
        ([], SCHEMA, "[]"),
        (False, SCHEMA, "False"),
        (None, SCHEMA, "None"),
    ],
)
def test_refused_by_name_and_place(schema: Any, place: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_format(json.dumps({"type": "json_schema", "json_schema": {"schema": schema}}).encode())
    assert caught.value.code == "input.response_format"
    assert caught.value.detail["place"] == place
    assert found in caught.value.detail["found"]


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"type": []}', b'{"type": {}}', b'{"type": "xml"}', b'{"type": "regex"}',
     b'{"type": "regex", "pattern": 1}', b'{"type": "json_object", "schema": {}}',
     b'{"type": "json_schema", "json_schema": {}}', b"\xff", b'{"type": "text", "type": "text"}',
     b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_response_format(text: bytes) -> None:
    with pytest.raises(InputError) as caught:
        parse_format(text)
    assert caught.value.code == "input.response_format"


def test_many_schemas_and_long_bounds() -> None:
    assert accepts(of_schema({"anyOf": [{}] * 1000}), "[[null]]")
    with pytest.raises(InputError, match="more than 2000 schemas"):
        of_schema({"anyOf": [{}] * 3000})
    found = of_schema({"type": "integer", "exclusiveMinimum": -(10**4000), "exclusiveMaximum": 10**4000})
    assert accepts(found, "-" + "9" * MAX_DIGITS)


def nested(levels: int) -> Any:
    schema: Any = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_deep_schemas() -> None:
    found = of_schema(nested(20))
    assert accepts(found, "[" * 20 + "null" + "]" * 20)
    with pytest.raises(InputError, match="nested deeper"):
        of_schema(nested(30))


def test_many_members_share_their_states() -> None:
    properties = {f"name{i}": {"type": "integer"} for i in range(64)}
    found = of_schema({"type": "object", "properties": properties})
    assert accepts(found, json.dumps({"name3": 1, "name40": 2, "name63": 3}))
    assert not accepts(found, json.dumps({"name40": 2, "name3": 1}))
    assert found.n_states < 2000
    assert found.after(found.start, b'{"nope') == DEAD
    with pytest.raises(InputError, match="65 members"):
        of_schema({"type": "object", "properties": {f"{i}": {"type": "null"} for i in range(65)}})


def test_numbers_are_finite() -> None:
    found = of_schema({"type": "number"})
    assert math.isfinite(json.loads("9" * 15 + "." + "9" * 15 + "e99"))
    assert accepts(found, "-" + "9" * 15 + "." + "9" * 15 + "e99")
    assert not accepts(found, "1e100")
