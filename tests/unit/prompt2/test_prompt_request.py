"""A conversation, split by authority; and what cannot be asked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from slm2_web.errors import InputError
from slm2_web.prompt2.request import (
    CONTEXT_TOKENS,
    MAX_EVIDENCE,
    MAX_ID_CHARACTERS,
    Evidence,
    PromptRequest,
    check_request,
    exchange_starts,
    prompt_budget,
    request_of,
)
from slm2_web.template2.spec import Conversation, Message, Options, ToolCall

GOOD = Evidence("a", 0.5, b"text")
REQUEST = PromptRequest(None, (), (Message("user", b"hi"),), 100, evidence=(GOOD,))


def messages(roles: str) -> tuple[Message, ...]:
    """`s u a t`: the roles by their first letters; `r` a user's message that holds a tool's response."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "r": "user"}
    contents = {"r": b"<tool_response>\nx\n</tool_response>"}
    return tuple(Message(names[letter], contents.get(letter, b"x")) for letter in roles)


@pytest.mark.parametrize(
    ("roles", "starts"),
    [
        ("", []),
        ("u", [0]),
        ("uaua", [0, 2]),
        ("uatatauatu", [0, 6, 9]),
        ("aua", [0, 1]),
        ("uuaua", [0, 3]),
        ("uasua", [0, 2]),
        ("uarau", [0, 4]),
        ("uas", [0, 2]),
        ("ttt", [0]),
    ],
)
def test_exchanges(roles: str, starts: list[int]) -> None:
    assert exchange_starts(messages(roles)) == starts


@pytest.mark.parametrize(
    ("roles", "n_history", "n_turn"),
    [
        ("u", 0, 1),
        ("su", 0, 1),
        ("suau", 2, 1),
        ("suauatat", 2, 5),
        ("suasu", 2, 2),
        ("ua", 0, 2),
        ("sua", 0, 2),
    ],
)
def test_a_conversation_is_split(roles: str, n_history: int, n_turn: int) -> None:
    options = Options(enable_thinking=False, preserve_thinking=True)
    conversation = Conversation(messages(roles), (b"{}",), options)
    request = request_of(conversation, budget_tokens=9, local_state=b"now", evidence=[GOOD])
    assert (len(request.history), len(request.turn)) == (n_history, n_turn)
    assert request.policy == (b"x" if roles.startswith("s") else None)
    first = int(roles.startswith("s"))
    assert (*request.history, *request.turn) == conversation.messages[first:]
    assert (request.tools, request.options, request.budget_tokens) == ((b"{}",), options, 9)
    assert (request.local_state, request.evidence) == (b"now", (GOOD,))


def test_the_budget_leaves_the_reserve() -> None:
    assert prompt_budget(40_960, 512) == CONTEXT_TOKENS - 512 == 32_256
    assert prompt_budget(8192, 512) == 7680
    assert prompt_budget(8192, 512, 4096) == 3584
    assert prompt_budget(16, 32) < 1


@pytest.mark.parametrize(
    ("evidence", "code", "place"),
    [
        (replace(GOOD, id=""), "input.json", "evidence[1].id"),
        (replace(GOOD, id="x" * (MAX_ID_CHARACTERS + 1)), "input.json", "evidence[1].id"),
        (replace(GOOD, id="\ud800"), "input.json", "evidence[1].id"),
        (Evidence(1, 0.5, b""), "input.json", "evidence[1].id"),  # type: ignore[arg-type]
        (GOOD, "input.json", "evidence[1].id"),
        (Evidence("b", math.nan, b""), "input.json", "evidence[1].relevance"),
        (Evidence("b", -math.inf, b""), "input.json", "evidence[1].relevance"),
        (Evidence("b", 10**400, b""), "input.json", "evidence[1].relevance"),
        (Evidence("b", True, b""), "input.json", "evidence[1].relevance"),
        (Evidence("b", 1.0, b"ab\xff"), "input.text", "evidence[1].content"),
        (Evidence("b", 1.0, "text"), "input.json", "evidence[1].content"),  # type: ignore[arg-type]
    ],
)
def test_evidence_that_cannot_be_used(evidence: Any, code: str, place: str) -> None:
    with pytest.raises(InputError) as error:
        check_request(replace(REQUEST, evidence=(GOOD, evidence)))
    assert error.value.code == code
    assert error.value.detail["place"] == place


def test_a_system_message_alone_is_the_policy() -> None:
    request = request_of(Conversation(messages("s")), budget_tokens=9)
    assert (request.policy, request.history, request.turn) == (b"x", (), ())


def test_other_things_that_cannot_be_asked() -> None:
    with pytest.raises(InputError) as error:
        request_of(Conversation(REQUEST.turn), budget_tokens=9, local_state=b"\xed\xa0\x80")
    assert (error.value.code, error.value.detail) == (
        "input.text",
        {"place": "local_state", "offset_bytes": 0},
    )
    many = tuple(Evidence(str(n), 0.0, b"") for n in range(MAX_EVIDENCE + 1))
    check_request(replace(REQUEST, evidence=many[1:]))
    with pytest.raises(InputError, match="1001 items"):
        check_request(replace(REQUEST, evidence=many))
    for turn in (
        (),
        messages("s"),
        messages("a"),
        (Message("assistant", b"", None, (ToolCall(b"f", b"{}"),)),),
    ):
        with pytest.raises(InputError, match="no user message") as error:
            check_request(replace(REQUEST, turn=turn))
        assert error.value.detail["place"] == "turn"
        check_request(replace(REQUEST, turn=turn, evidence=()))
