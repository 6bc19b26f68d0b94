"""Plain data -> Conversation: spellings against Python's `json`, strictness, and no other error."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.errors import InputError
from slm2_web.strictjson import NotJson
from slm2_web.template2.conversation import parse_conversation, spell
from slm2_web.template2.spec import Conversation, Message, Options, ToolCall

USER = {"role": "user", "content": "x"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def with_calls(calls: object) -> dict[str, Any]:
    """A conversation whose assistant calls."""
    return {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": calls}]}


def arguments_of(raw: dict[str, Any]) -> bytes:
    """The arguments of its first call."""
    return parse_conversation(raw).messages[1].tool_calls[0].arguments


def test_every_field() -> None:
    raw = {
        "messages": [
            {"role": "system", "content": b"s"},
            {"role": "user", "content": "ü"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "r",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "index": 0,
                        "function": {"name": "f", "arguments": {"ü": 1.0}},
                    },
                    {"name": b"g", "arguments": b'{"a":1}'},
                ],
            },
            {"role": "tool", "content": "t", "tool_call_id": "1", "name": "f"},
            {"role": "assistant", "content": "a", "reasoning_content": None, "tool_calls": None},
        ],
        "tools": [{"b": 1, "a": [True, None]}, b'{"n":1e2}', '{"n":1e2}'],
        "enable_thinking": False,
        "preserve_thinking": True,
    }
    calls = (ToolCall(b"f", '{"ü": 1.0}'.encode()), ToolCall(b"g", b'{"a":1}'))
    assert parse_conversation(raw) == Conversation(
        (
            Message("system", b"s"),
            Message("user", "ü".encode()),
            Message("assistant", b"", b"r", calls),
            Message("tool", b"t"),
            Message("assistant", b"a"),
        ),
        (b'{"b": 1, "a": [true, null]}', b'{"n": 100.0}', b'{"n": 100.0}'),
        Options(False, True),
    )


def test_what_is_absent_is_the_default() -> None:
    assert parse_conversation({"messages": [USER]}) == Conversation((Message("user", b"x"),))
    nothing = {"tools": None, "enable_thinking": None, "preserve_thinking": None}
    assert parse_conversation({"messages": [USER], **nothing}) == Conversation((Message("user", b"x"),))


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("1.0", "1.0"),
        ("1.50", "1.5"),
        ("1E5", "100000.0"),
        ("1e16", "1e+16"),
        ("1e-7", "1e-07"),
        ("0.1", "0.1"),
        ("-0.0", "-0.0"),
        ("-0", "0"),
        ("9007199254740993", "9007199254740993"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("5e-324", "5e-324"),
        ('"\\u00fc\\n\\u0000\\/"', '"ü\\n\\u0000/"'),
        ('{"b":1,"a":{}}', '{"b": 1, "a": {}}'),
        ("[1,2 ,3]", "[1, 2, 3]"),
    ],
)
def test_numbers_keep_the_spelling_that_python_gives_them(text: str, spelled: str) -> None:
    calls = f'[{{"name": "f", "arguments": {{"v": {text}}}}}]'
    assert arguments_of(with_calls(calls)) == f'{{"v": {spelled}}}'.encode()
    assert arguments_of(with_calls(calls.encode())) == f'{{"v": {spelled}}}'.encode()
    tools = f'[{{"v": {text}}}]'
    assert parse_conversation({"messages": [USER], "tools": tools.encode()}).tools == (
        f'{{"v": {spelled}}}'.encode(),
    )


def test_arguments_that_are_text_are_taken_as_they_are() -> None:
    text = '{"x": 7, "y":[1,2], "z": 1E5}'
    assert arguments_of(with_calls([{"name": "f", "arguments": text}])) == text.encode()
    assert arguments_of(with_calls(json.dumps([{"name": "f", "arguments": text}]))) == text.encode()


@given(VALUES)
def test_spelling_is_pythons_or_refused(value: Any) -> None:
    try:
        spelled = spell(value)
    except NotJson:
        with pytest.raises(ValueError, match=r"not JSON compliant|surrogates not allowed"):
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    else:
        assert spelled == json.dumps(value, ensure_ascii=False).encode()


def nested(depth: int) -> Any:
    """A list of lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        {"a": [-math.inf]},
        {1: 2},
        [{None: 1}],
        "\ud800",
        {"\udfff": 1},
        {1, 2},
        b"x",
        nested(100_000),
    ],
    ids=range(10),
)
def test_what_json_has_not_is_refused(value: Any) -> None:
    with pytest.raises(NotJson):
        spell(value)
    with pytest.raises(InputError) as error:
        parse_conversation({"messages": [USER], "tools": [{}, {"v": value}]})
    assert error.value.code == "template.tools"
    assert error.value.detail["index"] == 1


@pytest.mark.parametrize(
    ("raw", "code", "field"),
    [
        ({"messages": None}, "template.order", ""),
        ({}, "template.order", ""),
        ({"messages": "x"}, "template.order", ""),
        ({"messages": [USER], "temperature": 1}, "template.options", "temperature"),
        ({"messages": [USER], "enable_thinking": 1}, "template.options", "enable_thinking"),
        ({"messages": [USER], "preserve_thinking": "false"}, "template.options", "preserve_thinking"),
        ({"messages": [USER], "tools": {}}, "template.tools", "tools"),
        ({"messages": [USER], "tools": b"[}"}, "template.tools", "tools"),
        ({"messages": [USER], "tools": "\ud800"}, "template.tools", "tools"),
        ({"messages": [USER], "tools": ["f"]}, "template.tools", "tools"),
        ({"messages": [USER], "tools": [b'{"a": 1, "a": 2}']}, "template.tools", "tools"),
        ({"messages": ["x"]}, "template.message", ""),
        ({"messages": [{**USER, "images": []}]}, "template.message", "images"),
        ({"messages": [{**USER, "name": "Bob"}]}, "template.message", "name"),
        ({"messages": [{**USER, "tool_call_id": "1"}]}, "template.message", "tool_call_id"),
        ({"messages": [{"content": "x"}]}, "template.role", "role"),
        ({"messages": [{"role": b"user", "content": "x"}]}, "template.role", "role"),
        ({"messages": [{"role": "us\ud800er", "content": "x"}]}, "template.role", "role"),
        ({"messages": [{"role": "user"}]}, "template.content", "content"),
        ({"messages": [{"role": "user", "content": None, "tool_calls": []}]}, "template.content", "content"),
        ({"messages": [{"role": "user", "content": 1}]}, "template.content", "content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "input.text", "content"),
        ({"messages": [{**USER, "reasoning_content": 1}]}, "template.reasoning", "reasoning_content"),
    ],
)  # fmt: skip
def test_refused(raw: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(InputError) as error:
        parse_conversation(raw)
    assert (error.value.code, error.value.detail["field"]) == (code, field)


@pytest.mark.parametrize(
    ("calls", "field"),
    [
        ({}, "tool_calls"),
        (b"[", "tool_calls"),
        ('[{"name": "f", "arguments": {"a": 1, "a": 2}}]', "tool_calls"),
        ('[{"name": "f", "arguments": {"a": NaN}}]', "tool_calls"),
        (["f"], "tool_calls[0]"),
        ([{"name": "f", "arguments": {}, "args": {}}], "tool_calls[0]"),
        ([{"type": "custom", "name": "f", "arguments": {}}], "tool_calls[0].type"),
        ([{"function": {"name": "f", "arguments": {}}, "name": "f"}], "tool_calls[0]"),
        ([{"function": None}], "tool_calls[0].function"),
        ([{"function": {"name": "f", "arguments": {}, "x": 1}}], "tool_calls[0].function"),
        ([{"arguments": {}}], "tool_calls[0].name"),
        ([{"name": 1, "arguments": {}}], "tool_calls[0].name"),
        ([{"name": "f"}], "tool_calls[0].arguments"),
        ([{"name": "f", "arguments": {1: 2}}], "tool_calls[0].arguments"),
        ([{"name": "f", "arguments": {"a": math.nan}}], "tool_calls[0].arguments"),
    ],
)  # fmt: skip
def test_refused_calls(calls: object, field: str) -> None:
    with pytest.raises(InputError) as error:
        parse_conversation(with_calls(calls))
    assert error.value.code == "template.tool_calls"
    assert (error.value.detail["index"], error.value.detail["field"]) == (1, field)


_MESSAGE_KEYS = (
    "role",
    "content",
    "reasoning_content",
    "tool_calls",
    "name",
    "function",
    "arguments",
    "type",
    "x",
)
_KEYS = ("messages", "tools", "enable_thinking", "preserve_thinking", "x")
_ANY = st.recursive(
    VALUES | st.binary(max_size=8) | st.sampled_from(["user", "assistant", "function", b"[]"]),
    lambda inner: (
        st.dictionaries(st.sampled_from(_MESSAGE_KEYS), inner, max_size=5) | st.lists(inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(_KEYS), _ANY))
def test_anything_is_a_conversation_or_an_input_error(raw: dict[str, Any]) -> None:
    try:
        conversation = parse_conversation(raw)
    except InputError as error:
        json.dumps(error.as_json())
    else:
        assert isinstance(conversation, Conversation)
