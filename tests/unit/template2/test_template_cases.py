"""Qwen3's template on the recorded renderings and on reported faults: equal, or refused with a code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from slm2_web.errors import InputError
from slm2_web.template2.conversation import parse_conversation
from slm2_web.tokenizer2.runs import Trusted, Untrusted
from template_models import VECTORS
from template_oracles import TemplateOracle
from unit.template2.conftest import Model

CASES = json.loads((VECTORS / "template_cases.json").read_text("utf-8"))
RENDERED: Mapping[str, Any] = CASES["rendered"]
REPORTS: Mapping[str, Any] = {case["id"]: case for case in CASES["reports"]}
TRUST: Mapping[str, Any] = {
    case["id"]: case
    for case in json.loads((VECTORS / "tokenizer_cases.json").read_text("utf-8"))["cases"]
    if case["area"] == "trust-boundary"
}

REFUSED = {
    "think_0": ("template.options", None, "enable_thinking"),
    "think_str": ("template.options", None, "enable_thinking"),
    "tc_no_args": ("template.tool_calls", 1, "tool_calls[0].function.arguments"),
    "tc_name_quote": ("template.tool_calls", 1, "tool_calls[0].name"),
    "tool_first": ("template.order", 0, "role"),
    "tool_between_user": ("template.order", 1, "role"),
    "unknown_role": ("template.role", 1, "role"),
    "user_none": ("template.content", 0, "content"),
    "user_list": ("template.content", 0, "content"),
    "user_missing_content": ("template.content", 0, "content"),
    "system_none": ("template.content", 0, "content"),
    "system_list": ("template.content", 0, "content"),
    "system_none_tools": ("template.content", 0, "content"),
    "assistant_none_last": ("template.content", 1, "content"),
    "assistant_list_last": ("template.content", 1, "content"),
    "tool_none": ("template.content", 2, "content"),
    "tool_list": ("template.content", 2, "content"),
    "tool_dict": ("template.content", 2, "content"),
    "list_user_last_think": ("template.content", 2, "content"),
    "reasoning_nonstring": ("template.reasoning", 1, "reasoning_content"),
    "empty": ("template.order", 0, ""),
    "empty_tools": ("template.order", 0, ""),
    "continue_final": ("template.options", None, "continue_final_message"),
}
# Ours does something with this option, the publisher's nothing.
OPTION_OF_OURS = "preserve_thinking"


def given(name: str) -> tuple[dict[str, Any], bool]:
    """The case's conversation, and whether a reply is asked for."""
    options = dict(RENDERED[name]["kwargs"])
    reply = options.pop("add_generation_prompt", True)
    return {"messages": RENDERED[name]["messages"], **options}, reply


def test_all_cases_are_here() -> None:
    assert len(RENDERED) == 67
    assert set(RENDERED) > set(REFUSED) | {OPTION_OF_OURS}
    assert len(REPORTS) == 11
    assert len(TRUST) == 4


@pytest.mark.parametrize("name", [name for name in RENDERED if name not in (*REFUSED, OPTION_OF_OURS)])
def test_equal(name: str, models: Mapping[str, Model]) -> None:
    raw, reply = given(name)
    model = models["qwen3"]
    runs = model.template.render(parse_conversation(raw), add_generation_prompt=reply)
    assert model.text(runs) == RENDERED[name]["rendered"]
    assert model.tokenizer.decode(model.tokenizer.encode(runs)).decode() == RENDERED[name]["rendered"]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, models: Mapping[str, Model]) -> None:
    raw, reply = given(name)
    with pytest.raises(InputError) as error:
        models["qwen3"].template.render(parse_conversation(raw), add_generation_prompt=reply)
    code, index, field = REFUSED[name]
    assert (error.value.code, error.value.detail.get("index"), error.value.detail["field"]) == (
        code,
        index,
        field,
    )


def test_preserve_thinking_is_ours(models: Mapping[str, Model]) -> None:
    raw, reply = given(OPTION_OF_OURS)
    model = models["qwen3"]
    rendered = RENDERED[OPTION_OF_OURS]["rendered"]
    assert model.text(model.template.render(parse_conversation({**raw, OPTION_OF_OURS: False}))) == rendered
    kept = rendered.replace("assistant\nans1", "assistant\n<think>\nr1\n</think>\n\nans1")
    assert model.text(model.template.render(parse_conversation(raw), add_generation_prompt=reply)) == kept


@pytest.mark.parametrize("name", [name for name in REPORTS if name != "TPL-06"])
def test_reported_faults(
    name: str, models: Mapping[str, Model], publishers: Mapping[str, TemplateOracle]
) -> None:
    raw, expected = dict(REPORTS[name]["input"]), REPORTS[name]["expected"]
    conversations = [(raw["messages"], expected["v2"]["text"])]
    if "more" in raw:
        conversations.append((raw["more"], expected["v2_more"]["text"]))
    model, publisher = models["qwen3"], publishers["qwen3"]
    for messages, text in conversations:
        options = {"enable_thinking": raw["enable_thinking"]} if "enable_thinking" in raw else {}
        conversation = {"messages": messages, **options}
        reply = raw.get("add_generation_prompt", False)
        runs = model.template.render(parse_conversation(conversation), add_generation_prompt=reply)
        ids = model.tokenizer.encode(runs)
        assert model.text(runs) == text
        assert len(publisher.ids(conversation, reply)) == expected.get("n_ids", len(ids))
        # In TPL-17 the user's text holds markers.
        assert (ids == publisher.ids(conversation, reply)) == (name != "TPL-17")
        assert ids == publisher.ids_by_trust(conversation, reply)


def test_tpl_06_a_list_of_parts_is_never_dropped(models: Mapping[str, Model]) -> None:
    messages = REPORTS["TPL-06"]["input"]["messages"]
    with pytest.raises(InputError) as error:
        parse_conversation({"messages": messages})
    assert error.value.code == "template.content"
    joined = "".join(part["text"] for part in messages[0]["content"])
    model = models["qwen3"]
    runs = model.template.render(parse_conversation({"messages": [{"role": "user", "content": joined}]}))
    assert model.text(runs) == "<|im_start|>user\nfirst part second part<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("name", [name for name in TRUST if name != "SEC-06"])
def test_the_trust_boundary(
    name: str, models: Mapping[str, Model], publishers: Mapping[str, TemplateOracle]
) -> None:
    raw, expected = dict(TRUST[name]["input"]), TRUST[name]["expected"]
    reply = raw.pop("add_generation_prompt")
    model, publisher = models["qwen3"], publishers["qwen3"]
    ids = model.tokenizer.encode(model.template.render(parse_conversation(raw), add_generation_prompt=reply))
    assert ids == expected["ids"]
    assert sum(map(model.tokenizer.is_control, ids)) == expected["n_added_token_ids"]
    assert model.tokenizer.decode(ids).decode() == publisher.text(raw, reply)
    naive = publisher.ids(raw, reply)
    assert (ids == naive) == expected["equals_naive_ids"]
    assert sum(map(model.tokenizer.is_control, naive)) == expected["naive_n_added_token_ids"]


def test_sec_06_a_combining_mark_stays_on_its_side(models: Mapping[str, Model]) -> None:
    case = TRUST["SEC-06"]
    content = case["input"]["content"]
    model = models["qwen3"]
    assert (
        model.tokenizer.encode(
            [Trusted(case["input"]["template_text"].encode()), Untrusted(content.encode())]
        )
        == case["expected"]["ids"]
    )
    runs = model.template.render(parse_conversation({"messages": [{"role": "user", "content": content}]}))
    ids = case["expected"]["ids"]
    assert model.tokenizer.encode(runs)[: len(ids)] == ids
