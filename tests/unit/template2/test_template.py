"""The machine and its tables: what is trusted, which orders a family allows, what a vocabulary must have."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.compile.chat_template import CHAT_TEMPLATES
from slm2_web.errors import FormatError, InputError
from slm2_web.manifest import TemplateSpec
from slm2_web.template2.chatml import CHATML
from slm2_web.template2.conversation import parse_conversation
from slm2_web.template2.machine import FAMILIES, Template, template_for
from slm2_web.template2.qwen3 import QWEN3
from slm2_web.template2.qwen25 import QWEN25
from slm2_web.template2.show import diagram_of, table_of, thinking_of
from slm2_web.template2.spec import (
    END,
    ENDS,
    INIT,
    Conversation,
    Event,
    Family,
    Marker,
    Message,
    Options,
    Slot,
    ToolCall,
)
from slm2_web.tokenizer2.runs import Control, Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from template_models import SPECS, qwen3_source, qwen25_source
from template_oracles import TemplateOracle
from text_oracles import VECTORS
from unit.template2.conftest import Model

DOCS = Path(__file__).parents[3] / "docs" / "template.md"
USER = Message("user", b"x")
ALL_FAMILIES = list(FAMILIES.values())
FIELDS = {
    Event.SYSTEM: {Slot.CONTENT},
    Event.USER: {Slot.CONTENT},
    Event.TOOL: {Slot.CONTENT},
    Event.ANSWER: {Slot.CONTENT, Slot.CONTENT_UNLED},
    Event.THOUGHT: {Slot.REASONING},
    Event.SCHEMA: {Slot.SCHEMA},
    Event.CALL: {Slot.NAME, Slot.ARGUMENTS},
}


def conversation(*roles: str) -> Conversation:
    """Messages of these roles; `call` is an assistant that calls a tool."""
    made = []
    for role in roles:
        calls = (ToolCall(b"f", b"{}"),) if role == "call" else ()
        made.append(Message("assistant" if role == "call" else role, b"x", None, calls))
    return Conversation(tuple(made))


@pytest.mark.parametrize("family", ALL_FAMILIES, ids=lambda family: family.name)
def test_the_table_is_closed(family: Family) -> None:
    states = {state for state, _ in family.steps}
    assert {step.then for step in family.steps.values()} | {INIT} == states | {END}
    assert all((step.then == END) == (event in ENDS) for (_, event), step in family.steps.items())
    for (_, event), step in family.steps.items():
        assert {item for item in step.writes if isinstance(item, Slot)} <= FIELDS.get(event, set())


@pytest.mark.parametrize("family", ALL_FAMILIES, ids=lambda family: family.name)
def test_a_turn_can_always_end(family: Family) -> None:
    """What a turn consists of can be followed by its end, and its end cannot."""
    for (_, event), step in family.steps.items():
        if event not in ENDS:
            assert (Event.CLOSE in family.events(step.then)) == (event != Event.CLOSE)


@pytest.mark.parametrize("family", [CHATML, QWEN25, QWEN3], ids=lambda family: family.name)
def test_the_documentation_has_the_tables(family: Family) -> None:
    text = DOCS.read_text("utf-8")
    assert table_of(family) in text
    assert diagram_of(family) in text
    if family.thinking:
        assert thinking_of(family.thinking) in text


def test_the_states_of_the_design_are_there() -> None:
    named = {"SYSTEM_TURN", "USER_TURN", "ASSISTANT_THINKING", "ASSISTANT_RESPONDING", "TOOL_TURN"}
    assert {state for state, _ in QWEN3.steps} > named | {INIT}
    assert {step.then for step in QWEN3.steps.values()} > {END}


def test_the_publishers_templates_are_known_by_hash(smollm2_metadata: dict[str, Any]) -> None:
    sources = {
        "qwen3": qwen3_source(),
        "qwen2.5": qwen25_source(),
        "chatml": smollm2_metadata["tokenizer.chat_template"],
    }
    for family, source in sources.items():
        assert CHAT_TEMPLATES[hashlib.sha256(source.encode()).hexdigest()] == SPECS[family]


def test_golden_prompt(models: Mapping[str, Model]) -> None:
    golden = json.loads((VECTORS / "smollm2_greedy.json").read_text("utf-8"))
    model = models["chatml"]
    runs = model.template.render(Conversation((Message("user", b"What is 2+2?"),)))
    assert model.text(runs) == golden["prompt"]
    assert model.tokenizer.encode(runs) == golden["prompt_ids"]


@pytest.mark.parametrize("family", ["qwen2.5", "chatml"])
def test_the_default_system_prompt_is_trusted(
    family: str, models: Mapping[str, Model], publishers: Mapping[str, TemplateOracle]
) -> None:
    default = SPECS[family].default_system
    assert default is not None
    runs = models[family].template.render(Conversation((USER,)))
    assert Trusted(default.encode()) in runs
    assert [run for run in runs if isinstance(run, Untrusted)] == [Untrusted(b"x")]
    empty = models[family].template.render(Conversation((Message("system", b""), USER)))
    assert Trusted(default.encode()) not in empty
    assert models[family].text(empty).startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user\n")


def test_no_default_system_prompt(smollm2_tokenizer: Tokenizer) -> None:
    runs = template_for(TemplateSpec("chatml", None), smollm2_tokenizer).render(Conversation((USER,)))
    text = b"".join(
        smollm2_tokenizer.token_bytes(run.id) if isinstance(run, Control) else run.data for run in runs
    )
    assert text == b"<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


def test_raw_text_has_no_frame(smollm2_tokenizer: Tokenizer) -> None:
    template = template_for(TemplateSpec("raw", None), smollm2_tokenizer)
    turns = Message("user", b"Once <|im_end|>"), Message("assistant", b" upon"), Message("user", b"")
    assert template.render(Conversation(turns)) == [Untrusted(b"Once <|im_end|>"), Untrusted(b" upon")]
    assert template.render(Conversation(turns[:2]), add_generation_prompt=False) == template.render(
        Conversation(turns)
    )


def test_trust_of_each_part(models: Mapping[str, Model]) -> None:
    call = ToolCall(b"name", b'{"arguments": 1}')
    said = (
        Message("system", b"policy"),
        Message("user", b"question"),
        Message("assistant", b"answer", b"reasoning", (call, call)),
        Message("tool", b"result"),
        Message("tool", b"<|im_end|>"),
    )
    for family, reasoning in (("qwen3", [b"reasoning"]), ("qwen2.5", [])):
        messages = (
            said if reasoning else (*said[:2], Message("assistant", b"answer", None, (call, call)), *said[3:])
        )
        model = models[family]
        runs = model.template.render(Conversation(messages, (b'{"schema": 1}',)))
        calls = [b"name", b'{"arguments": 1}'] * 2
        assert [run.data for run in runs if isinstance(run, Untrusted)] == [
            b"policy", b'{"schema": 1}', b"question", *reasoning, b"answer", *calls, b"result", b"<|im_end|>",
        ]  # fmt: skip
        words = b"".join(run.data for run in runs if isinstance(run, Trusted))
        assert words.count(b'\n{"name": "", "arguments": }\n') == 2
        # A marker that is a token of the vocabulary is never left to be found in words.
        assert not any(marker in words for marker in (b"<|im_", b"<tool_call>", b"</tool_call>", b"think>"))
        assert (b"tool_response>" in words) == (family == "qwen2.5")


def test_runs_of_prompt2_are_written_as_they_are(models: Mapping[str, Model]) -> None:
    framed = (Trusted(b"<evidence>\n"), Untrusted(b"<|im_end|>"), Untrusted(b""), Trusted(b"\n</evidence>"))
    runs = models["qwen3"].template.render(Conversation((Message("user", framed),)))
    at = runs.index(framed[0])
    assert tuple(runs[at : at + 3]) == (framed[0], framed[1], framed[3])


QWEN_ORDERS: list[tuple[list[str], bool]] = [
    (["user"], True),
    (["system"], True),
    (["system"], False),
    (["assistant"], False),
    (["user", "user"], True),
    (["user", "system"], True),
    (["system", "system", "user"], True),
    (["assistant", "user"], True),
    (["user", "assistant", "assistant"], False),
    (["user", "call"], False),
    (["user", "call", "user"], True),
    (["user", "call", "assistant"], False),
    (["system", "call", "tool"], True),
    (["user", "call", "tool", "tool", "tool"], True),
    (["user", "call", "tool", "call", "tool", "assistant", "user"], True),
]


@pytest.mark.parametrize("family", ["qwen3", "qwen2.5"])
@pytest.mark.parametrize(("roles", "reply"), QWEN_ORDERS)
def test_orders_that_qwen_allows(
    family: str,
    roles: list[str],
    reply: bool,
    models: Mapping[str, Model],
    publishers: Mapping[str, TemplateOracle],
) -> None:
    raw: dict[str, Any] = {
        "messages": [
            {"role": "assistant", "content": "x", "tool_calls": [{"name": "f", "arguments": {}}]}
            if role == "call"
            else {"role": role, "content": "x"}
            for role in roles
        ]
    }
    runs = models[family].template.render(conversation(*roles), add_generation_prompt=reply)
    assert models[family].text(runs) == publishers[family].text(raw, reply)


@pytest.mark.parametrize(
    ("family", "roles", "reply", "index"),
    [
        *(
            (family, roles, reply, index)
            for family in ("qwen3", "qwen2.5")
            for roles, reply, index in (
                (["tool"], True, 0),
                (["system", "tool"], True, 1),
                (["user", "tool"], True, 1),
                (["user", "assistant", "tool"], True, 2),
                (["user", "call", "user", "tool"], True, 3),
                (["user", "call", "tool", "assistant", "tool"], True, 4),
                (["user", "assistant"], True, 2),
                (["user", "call"], True, 2),
            )
        ),
        ("chatml", ["system"], True, 1),
        ("chatml", ["system"], False, 1),
        ("chatml", ["assistant"], True, 0),
        ("chatml", ["system", "assistant"], True, 1),
        ("chatml", ["user", "user"], True, 1),
        ("chatml", ["user", "system"], True, 1),
        ("chatml", ["system", "system", "user"], True, 1),
        ("chatml", ["user", "assistant", "assistant"], False, 2),
        ("chatml", ["user", "assistant", "system", "user"], True, 2),
        ("chatml", ["user", "assistant"], True, 2),
    ],
)
def test_orders_that_are_refused(
    family: str, roles: list[str], reply: bool, index: int, models: Mapping[str, Model]
) -> None:
    with pytest.raises(InputError) as error:
        models[family].template.render(conversation(*roles), add_generation_prompt=reply)
    detail = error.value.detail
    assert error.value.code == "template.order"
    assert (detail["index"], detail["field"]) == (index, "role")
    assert detail["found"] in (*roles, "<reply>", "<stop>")
    assert detail["allowed"] == list(FAMILIES[family].events(detail["state"]))
    assert detail["found"] not in detail["allowed"]


_CONTENTS = st.sampled_from(
    [
        "",
        "x",
        "\n",
        "\nx\n",
        "<think>\nr\n</think>\n\nx",
        "</think>",
        "<tool_response>x</tool_response>",
        "<think>",
        " ",
    ]
)
_RAW_CALLS = st.lists(st.just({"name": "f", "arguments": {"a": 1.0}}), max_size=2)
_MESSAGES = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "tool"]),
        _CONTENTS,
    )
    | st.builds(
        lambda content, calls, more: {"role": "assistant", "content": content, "tool_calls": calls, **more},
        _CONTENTS,
        _RAW_CALLS,
        st.just({}) | _CONTENTS.map(lambda text: {"reasoning_content": text}),
    ),
    max_size=7,
)


@settings(max_examples=400)
@given(
    messages=_MESSAGES,
    more=st.sampled_from([{}, {"tools": [{"a": 1}]}, {"enable_thinking": False}, {"enable_thinking": True}]),
    reply=st.booleans(),
)
def test_whatever_it_is_it_is_the_publishers_or_refused(
    messages: list[dict[str, Any]],
    more: dict[str, Any],
    reply: bool,
    models: Mapping[str, Model],
    publishers: Mapping[str, TemplateOracle],
) -> None:
    raw = {"messages": messages, **more}
    for family, model in models.items():
        try:
            runs = model.template.render(parse_conversation(raw), add_generation_prompt=reply)
        except InputError:
            continue  # which ones are refused is said above and below
        assert model.text(runs) == publishers[family].text(raw, reply)
        assert model.tokenizer.encode(runs) == publishers[family].ids_by_trust(raw, reply)


@pytest.mark.parametrize("reply", [False, True])
@pytest.mark.parametrize("family", list(SPECS))
def test_no_messages(family: str, reply: bool, models: Mapping[str, Model]) -> None:
    for tools in ((), (b"{}",)):
        with pytest.raises(InputError) as error:
            models[family].template.render(Conversation((), tools), add_generation_prompt=reply)
        assert error.value.code == "template.order"
        assert error.value.detail["index"] == 0


@pytest.mark.parametrize(
    "role", ["call", "System", "", "user ", "user\nx<|im_end|>", "developer", *ENDS, None, 1, b"user"]
)
@pytest.mark.parametrize("family", list(SPECS))
def test_roles_that_are_refused(family: str, role: Any, models: Mapping[str, Model]) -> None:
    with pytest.raises(InputError) as error:
        models[family].template.render(Conversation((USER, Message(role, b"x"))))
    assert error.value.code == "template.role"
    assert (error.value.detail["index"], error.value.detail["field"]) == (1, "role")
    assert error.value.detail["allowed"] == " | ".join(FAMILIES[family].roles)


_CALL = ToolCall(b"f", b"{}")
_CALLS = "template.tool_calls"
NO_CONTENTS: list[Any] = [None, "text", 1, bytearray(b"x"), (Untrusted(b"x"),)]
NO_NAMES: list[Any] = [b"", b'"', b"\\", b"\n", "f"]
NO_JSON: list[Any] = [
    b"",
    b"x",
    b"{} {}",
    b'{"a": 1, "a": 2}',
    b"NaN",
    b"[1e999]",
    b'"\xff"',
    b"[" * 100_000,
    "{}",
]


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        *(
            (Message("assistant", content), "template.content", "content")
            for content in NO_CONTENTS
        ),
        (Message("user", (b"x",)), "template.content", "content"),  # type: ignore[arg-type]
        (Message("assistant", b"\xff"), "input.text", "content"),
        (Message("user", b"x", b"y"), "template.reasoning", "reasoning_content"),
        (Message("tool", b"x", b"y"), "template.reasoning", "reasoning_content"),
        (Message("assistant", b"x", "y"), "template.reasoning", "reasoning_content"),  # type: ignore[arg-type]
        (Message("assistant", b"x", b"\x80"), "input.text", "reasoning_content"),
        (Message("user", b"x", None, (_CALL,)), "template.tool_calls", "tool_calls"),
        (Message("assistant", b"x", None, ("f",)), "template.tool_calls", "tool_calls[0]"),  # type: ignore[arg-type]
        (Message("assistant", b"x", None, (ToolCall(b"\xff", b"{}"),)), "input.text", "tool_calls[0].name"),
        *(
            (Message("assistant", b"x", None, (_CALL, ToolCall(name, b"{}"))), _CALLS, "tool_calls[1].name")
            for name in NO_NAMES
        ),
        *(
            (Message("assistant", b"x", None, (ToolCall(b"f", text),)), _CALLS, "tool_calls[0].arguments")
            for text in NO_JSON
        ),
    ],
)  # fmt: skip
def test_values_that_are_refused(
    message: Message, code: str, field: str, models: Mapping[str, Model]
) -> None:
    with pytest.raises(InputError) as error:
        models["qwen3"].template.render(Conversation((USER, message)), add_generation_prompt=False)
    assert error.value.code == code
    assert (error.value.detail["index"], error.value.detail["field"]) == (1, field)


@pytest.mark.parametrize("tool", [b"", b"x", b'{"a": 1, "a": 2}', b"NaN", "{}", None])
def test_tools_that_are_refused(tool: Any, models: Mapping[str, Model]) -> None:
    with pytest.raises(InputError) as error:
        models["qwen3"].template.render(Conversation((USER,), (b"{}", tool)))
    assert error.value.code == "template.tools"
    assert (error.value.detail["index"], error.value.detail["field"]) == (1, "tools")


def test_thinking_off_opens_the_reply_with_an_empty_thought(models: Mapping[str, Model]) -> None:
    for family, model in models.items():
        texts = [
            model.text(model.template.render(Conversation((USER,), (), Options(enable_thinking))))
            for enable_thinking in (None, False)
        ]
        extra = "<think>\n\n</think>\n\n" if family == "qwen3" else ""
        assert texts[1] == texts[0] + extra


def test_an_unknown_family_is_refused(smollm2_tokenizer: Tokenizer) -> None:
    with pytest.raises(FormatError) as error:
        template_for(TemplateSpec("llama-3", None), smollm2_tokenizer)
    assert error.value.code == "format.unsupported"
    assert error.value.detail["allowed"] == [*FAMILIES, "compiled"]
    assert list(FAMILIES) == ["chatml", "qwen2.5", "qwen3", "raw"]


@pytest.mark.parametrize("family", [CHATML, QWEN25, QWEN3], ids=lambda family: family.name)
def test_a_vocabulary_without_the_markers_is_refused(family: Family) -> None:
    class Without:
        def __init__(self, lacking: bytes) -> None:
            self.lacking = lacking

        def control_id(self, marker: bytes) -> int:
            if marker == self.lacking:
                raise FormatError("format.unsupported", marker.decode())
            return 1

    steps = family.steps.values()
    for marker in {item.text for step in steps for item in step.writes if isinstance(item, Marker)}:
        with pytest.raises(FormatError) as error:
            Template(family, None, Without(marker))
        assert error.value.message == marker.decode()
