"""Where we differ from the publishers' templates: data of a table in docs/template.md, and of its tests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """A conversation that we refuse.

    what   the conversation, in words
    theirs what the publishers' templates do, in words
    raw    the conversation
    shows  what the publisher's text has in it; the error's name where there is none
    code, index, field  of our error
    """

    families: tuple[str, ...]
    what: str
    theirs: str
    raw: Raw
    shows: str
    code: str
    index: int | None
    field: str
    reply: bool = True


ALL = ("qwen3", "qwen2.5", "chatml")
QWEN = ("qwen3", "qwen2.5")
_BEGIN = "<|im_start|>"


def says(*turns: tuple[str, Any], **options: Any) -> Raw:
    """A conversation of plain messages."""
    return {"messages": [{"role": role, "content": content} for role, content in turns], **options}


def calls(call: Any, **options: Any) -> Raw:
    """A conversation with one call, and its result."""
    raw = says(("user", "x"), ("assistant", ""), ("tool", "r"), **options)
    raw["messages"][1]["tool_calls"] = [call]
    return raw


def with_key(role: str, key: str, value: Any) -> Raw:
    """A user's turn and another message that has a key of its own."""
    raw = says(("user", "x"), (role, "y"))
    raw["messages"][1][key] = value
    return raw


_FUNCTION = {"name": "f", "arguments": {}}

DIFFERENCES = (
    Difference(
        QWEN, "no messages", "an exception of Jinja's", says(), "UndefinedError", "template.order", 0, ""
    ),
    Difference(
        ("chatml",),
        "no messages",
        "the opening of a reply and nothing else",
        says(),
        _BEGIN,
        "template.order",
        0,
        "",
    ),
    Difference(
        QWEN,
        "a role that is none of system, user, assistant, tool",
        "the message is left out",
        says(("user", "x"), ("developer", "y")),
        "x",
        "template.role",
        1,
        "role",
    ),
    Difference(
        ("chatml",),
        "a role that is none of system, user, assistant (`tool`, too)",
        "written into the prompt as it is",
        says(("user", "x"), ("tool", "y")),
        "<|im_start|>tool\ny",
        "template.role",
        1,
        "role",
    ),
    Difference(
        ("qwen3",),
        "content that is no string (null, a number, a list of parts)",
        "an empty content",
        says(("user", [{"type": "text", "text": "x"}])),
        "<|im_start|>user\n<|im_end|>",
        "template.content",
        0,
        "content",
    ),
    Difference(
        ("qwen2.5", "chatml"),
        "content that is no string (null, a number, a list of parts)",
        "an exception of Python's",
        says(("user", [{"type": "text", "text": "x"}])),
        "TypeError",
        "template.content",
        0,
        "content",
    ),
    Difference(
        ("qwen3",),
        "no content, in an assistant's message without calls",
        "an empty content",
        says(("user", "x"), ("assistant", None)),
        "</think>\n\n<|im_end|>",
        "template.content",
        1,
        "content",
        reply=False,
    ),
    Difference(
        QWEN,
        "a tool's result that answers no call (first, or after a message that calls nothing)",
        "rendered",
        says(("user", "x"), ("tool", "y")),
        "<tool_response>\ny",
        "template.order",
        1,
        "role",
    ),
    Difference(
        QWEN,
        "a reply asked for when the assistant has spoken last",
        "a second assistant turn is opened",
        says(("user", "x"), ("assistant", "y")),
        "y<|im_end|>\n<|im_start|>assistant\n",
        "template.order",
        2,
        "role",
    ),
    Difference(
        ("chatml",),
        "two users or two assistants in a row; the assistant first",
        "rendered",
        says(("user", "x"), ("user", "y")),
        "<|im_start|>user\ny",
        "template.order",
        1,
        "role",
    ),
    Difference(
        ("chatml",),
        "only a system message; a system message anywhere but first",
        "rendered",
        says(("user", "x"), ("system", "y"), ("user", "z")),
        "<|im_start|>system\ny",
        "template.order",
        1,
        "role",
    ),
    Difference(
        ("chatml",),
        "a reply asked for when the assistant has spoken last",
        "a second assistant turn is opened",
        says(("user", "x"), ("assistant", "y")),
        "y<|im_end|>\n<|im_start|>assistant\n",
        "template.order",
        2,
        "role",
    ),
    Difference(
        ALL,
        "reasoning in a message that is not the assistant's",
        "left out",
        {"messages": [{"role": "user", "content": "x", "reasoning_content": "why"}]},
        "x<|im_end|>",
        "template.reasoning",
        0,
        "reasoning_content",
    ),
    Difference(
        ("qwen3",),
        "reasoning that is no string (null says that there is none)",
        "as if there were none",
        with_key("assistant", "reasoning_content", 5),
        "<think>\n\n</think>\n\ny",
        "template.reasoning",
        1,
        "reasoning_content",
        reply=False,
    ),
    Difference(
        ("qwen2.5", "chatml"),
        "reasoning, of a model that does not think",
        "left out",
        with_key("assistant", "reasoning_content", "why"),
        "y<|im_end|>",
        "template.reasoning",
        1,
        "reasoning_content",
        reply=False,
    ),
    Difference(
        ALL,
        "calls in a message that is not the assistant's",
        "left out",
        {"messages": [{"role": "user", "content": "x", "tool_calls": [_FUNCTION]}]},
        "x<|im_end|>",
        "template.tool_calls",
        0,
        "tool_calls",
    ),
    Difference(
        ("chatml",),
        "calls, of a model without tools",
        "left out",
        with_key("assistant", "tool_calls", [_FUNCTION]),
        "y<|im_end|>",
        "template.tool_calls",
        1,
        "tool_calls",
        reply=False,
    ),
    Difference(
        ("chatml",),
        "tools, for a model without tools",
        "left out",
        says(("user", "x"), tools=[{"name": "f"}]),
        "x<|im_end|>",
        "template.tools",
        0,
        "tools",
    ),
    Difference(
        QWEN,
        "a call without arguments",
        "an exception of Python's",
        calls({"name": "f"}),
        "TypeError",
        "template.tool_calls",
        1,
        "tool_calls[0].arguments",
    ),
    Difference(
        ("qwen3",),
        "arguments that are text but not JSON (a key twice, NaN, nothing at all)",
        "written as they are",
        calls({"name": "f", "arguments": "{'a': 1}"}),
        "\"arguments\": {'a': 1}}",
        "template.tool_calls",
        1,
        "tool_calls[0].arguments",
    ),
    Difference(
        QWEN,
        "arguments with NaN or infinity",
        "written so, which is not JSON",
        calls({"name": "f", "arguments": {"a": math.nan}}),
        '{"a": NaN}',
        "template.tool_calls",
        1,
        "tool_calls[0].arguments",
    ),
    Difference(
        QWEN,
        "a key of arguments or of a schema that is no string",
        "made a string",
        calls({"name": "f", "arguments": {1: 2}}),
        '{"1": 2}',
        "template.tool_calls",
        1,
        "tool_calls[0].arguments",
    ),
    Difference(
        QWEN,
        "a tool's name with a quote, a backslash or a control character; an empty one; one that is no string",
        "written between quotes as it is, which is not JSON",
        calls({"name": 'f", "x": "', "arguments": {}}),
        '{"name": "f", "x": "", "arguments"',
        "template.tool_calls",
        1,
        "tool_calls[0].name",
    ),
    Difference(
        QWEN,
        "a call that is no function's",
        "its type is left out",
        calls({"type": "custom", **_FUNCTION}),
        '{"name": "f", "arguments": {}}',
        "template.tool_calls",
        1,
        "tool_calls[0].type",
    ),
    Difference(
        QWEN,
        "a call with a `function` and a name beside it",
        "the name beside it is left out",
        calls({"name": "g", "function": _FUNCTION}),
        '{"name": "f", "arguments": {}}',
        "template.tool_calls",
        1,
        "tool_calls[0]",
    ),
    Difference(
        QWEN,
        "a tool that is no object",
        "written as JSON",
        says(("user", "x"), tools=[["f"]]),
        '\n["f"]\n',
        "template.tools",
        0,
        "tools",
    ),
    Difference(
        QWEN,
        "a tool with NaN or infinity",
        "written so, which is not JSON",
        says(("user", "x"), tools=[{"a": 1}, {"a": math.inf}]),
        '{"a": Infinity}',
        "template.tools",
        1,
        "tools",
    ),
    Difference(
        ALL,
        "a message with a field that no template writes (images; a user's name)",
        "left out",
        {"messages": [{"role": "user", "content": "x", "images": ["y"]}]},
        "x<|im_end|>",
        "template.message",
        0,
        "images",
    ),
    Difference(
        ALL,
        "a field of the conversation that we do not know (`continue_final_message`)",
        "left out; transformers cuts the end of the text",
        says(("user", "x"), continue_final_message=True),
        "x<|im_end|>",
        "template.options",
        None,
        "continue_final_message",
    ),
    Difference(
        ALL,
        '`enable_thinking` that is neither true, false nor null (0, `"false"`)',
        "as if it were true",
        says(("user", "x"), enable_thinking=0),
        "x<|im_end|>\n<|im_start|>assistant\n",
        "template.options",
        None,
        "enable_thinking",
    ),
    Difference(
        ("qwen2.5", "chatml"),
        "`enable_thinking` true, for a model that does not think",
        "left out",
        says(("user", "x"), enable_thinking=True),
        "x<|im_end|>\n<|im_start|>assistant\n",
        "template.options",
        None,
        "enable_thinking",
    ),
    Difference(
        ALL,
        "text with a lone surrogate",
        "an exception of Python's when it is encoded",
        says(("user", "x\ud800")),
        "x\ud800",
        "input.text",
        0,
        "content",
    ),
)

TITLES = {"qwen3": "Qwen3", "qwen2.5": "Qwen2.5", "chatml": "SmolLM2"}


def table() -> str:
    """The table as the documentation has it."""
    lines = ["| conversation | models | the publisher's template | here |", "|---|---|---|---|"]
    for each in DIFFERENCES:
        titles = "all" if each.families == ALL else ", ".join(TITLES[family] for family in each.families)
        lines.append(f"| {each.what} | {titles} | {each.theirs} | `{each.code}` |")
    return "\n".join(lines) + "\n"
