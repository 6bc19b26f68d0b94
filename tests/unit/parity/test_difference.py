"""Shrinking: what is left is as little as still differs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slm2_web.parity import suite
from slm2_web.parity.canonical import canonical
from slm2_web.parity.difference import PARTS, difference, shrink
from slm2_web.parity.subject import Subject


def shrunk(stage: str, made: Any, differs: Any) -> Any:
    async def ask(candidate: Any) -> bool:
        return bool(differs(candidate))

    return asyncio.run(shrink(stage, made, ask))


def test_a_text_by_its_characters() -> None:
    made = {"op": "encode", "text": "a lot of wörds and éé, the rest", "trusted": False}
    found = shrunk("tokenizer", made, lambda one: "ö" in one["text"] and "é" in one["text"])
    assert found == {"op": "encode", "text": "öé", "trusted": False}
    assert len(made["text"]) > 20


def test_a_conversation_by_its_messages_and_their_texts() -> None:
    messages = [{"role": "user", "content": f"number {i} is here"} for i in range(9)]
    made = {"family": "chatml", "conversation": {"messages": messages}}
    found = shrunk(
        "template", made, lambda one: any("5" in each["content"] for each in one["conversation"]["messages"])
    )
    assert found["conversation"]["messages"] == [{"role": "user", "content": "5"}]


def test_digits_by_bytes_and_floats() -> None:
    found = shrunk("tokenizer", {"op": "encode_bytes", "hex": "6162ff6364"}, lambda one: "ff" in one["hex"])
    assert found["hex"] == "ff"
    made = {
        "logits": "0000803f" * 20 + "0000c03f" + "00000040" * 9,
        "n_tokens": 29,
        "prompt_ids": [1, 28, 3],
        "generated_ids": [],
        "allowed": [2, 20, 25],
        "params": {"banned_ids": [4, 5]},
    }
    found = shrunk("sampling", made, lambda one: "0000c03f" in one["logits"])
    assert found["logits"] == "0000c03f"
    assert (found["n_tokens"], found["prompt_ids"], found["allowed"]) == (1, [], [0])


def test_a_list_keeps_its_least() -> None:
    made = {"prompt_ids": [5, 6, 7], "warm_ids": [5, 6, 9]}
    assert shrunk("forward", made, lambda one: True) == {"prompt_ids": [7], "warm_ids": []}


@pytest.mark.parametrize("name", suite.STAGES)
def test_parts_are_parts_of_inputs(subject: Subject, name: str) -> None:
    """Each path leads somewhere in some input, and what is left is an input still."""
    keys = {path.split(".")[0] for path, _, _ in PARTS[name]}
    made = [suite.STAGES[name].make(subject, index) for index in range(suite.STAGES[name].sizes["quick"])]
    assert keys <= set().union(*made)
    small = shrunk(name, made[0], lambda one: True)
    assert canonical(asyncio.run(suite.output(subject, name, small)))
    assert len(canonical(small)) < len(canonical(made[0]))


def test_no_difference(subject: Subject) -> None:
    async def same(made: Any) -> Any:
        return await suite.output(subject, "stream", made)

    made = suite.STAGES["stream"].make(subject, 0)
    assert asyncio.run(difference("stream", 0, made, same, same)) is None
