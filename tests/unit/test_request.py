"""What is asked, from strings, bytes or a transcript: one request; anything else an error with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.errors import InputError
from slm2_web.request import KEYS, Request, default_budget, parse_request
from slm2_web.sampling2.params import parse_params

PARAMS = parse_params({"max_tokens": 9}, {})
CALL = {"name": "weather", "arguments": {"city": "Zürich", "days": 1.0}}
FULL: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it raining? \U0001f600"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "content": "<tool_response>"},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "number": 1e2}}],
    "enable_thinking": False,
    "preserve_thinking": True,
    "local_state": "noon",
    "evidence": [
        {"id": "é", "relevance": 1, "content": "wet"},
        {"id": "b", "relevance": -0.5, "content": ""},
    ],
    "budget_tokens": 700,
}


def parse(raw: Any) -> Request:
    return parse_request(raw, PARAMS, 2048)


def as_bytes(value: Any) -> Any:
    """As a page sends it: texts as UTF-8, JSON as its text, what is not there as null."""
    messages = [
        {
            "role": message["role"],
            "content": message["content"].encode(),
            "reasoning_content": message["reasoning_content"].encode()
            if "reasoning_content" in message
            else None,
            "tool_calls": json.dumps(message["tool_calls"]).encode() if "tool_calls" in message else None,
        }
        for message in value["messages"]
    ]
    evidence = [
        {"id": each["id"].encode(), "relevance": each["relevance"], "content": each["content"].encode()}
        for each in value["evidence"]
    ]
    return {
        **value,
        "messages": messages,
        "tools": json.dumps(value["tools"]).encode(),
        "local_state": value["local_state"].encode(),
        "evidence": evidence,
    }


def test_strings_bytes_and_a_transcript_say_the_same() -> None:
    request = parse(FULL)
    assert parse(as_bytes(FULL)) == request
    written = request.as_json()
    assert list(written) == [*KEYS, "params", "max_seq_len"]
    again = json.loads(json.dumps({key: written[key] for key in KEYS}))
    assert parse(again) == request
    assert parse(again).as_json() == written
    assert written["tools"] == ['{"type": "function", "function": {"name": "weather", "number": 100.0}}']
    (call,) = written["messages"][2]["tool_calls"]
    assert call == {"name": "weather", "arguments": '{"city": "Zürich", "days": 1.0}'}


def test_what_is_not_given_and_what_is_null_are_nothing() -> None:
    messages = [{"role": "user", "content": "x"}]
    bare = parse({"messages": messages})
    assert parse({"messages": messages, **dict.fromkeys(KEYS[1:])}) == bare
    assert bare.budget_tokens == 2048 - 9
    assert (bare.local_state, bare.evidence) == (None, ())


@pytest.mark.parametrize(
    ("max_seq_len", "max_tokens", "budget"),
    [
        (2048, 512, 1536),
        (2048, 513, 1536),
        (2048, 1, 2047),
        (40_960, 512, 32_768 - 512),
        (40_960, 1 << 20, 32_768 - 8192),
        (2, 512, 1),
    ],
)
def test_the_default_budget(max_seq_len: int, max_tokens: int, budget: int) -> None:
    assert default_budget(max_seq_len, max_tokens) == budget


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from([10**400, 1e308])
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "id", "relevance", "name", "arguments", "tool_calls", "function"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*KEYS, "more"]), values), st.sampled_from(KEYS), values)
def test_anything_is_a_request_or_an_error_with_what_was_found(raw: Any, key: str, new: Any) -> None:
    """All of it, and one odd value in a good request."""
    for wrong in (raw, {**FULL, key: new}):
        found = refusal(wrong)
        if found is not None:
            assert found.message.isprintable()
            assert len(found.message) < 600
            json.dumps(found.as_json())


def refusal(raw: Any) -> InputError | None:
    try:
        parse(raw)
    except InputError as error:
        return error
    return None
