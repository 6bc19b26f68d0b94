"""A template in the bounded instruction form, for one model: conversation -> runs.

Theory of operation
-------------------
The program (bounded/program.py) is given what Hugging Face's `apply_chat_template` gives a Jinja template:
`messages`, `tools`, `documents`, `add_generation_prompt`, `enable_thinking` where it is set, and the model's
special tokens by name. A message has `role`, `content`, and, where there is one, `reasoning_content` and
`tool_calls`, each `{"type": "function", "function": {"name", "arguments"}}`.

The program's own literals, the roles and the special tokens are trusted; the rest is not, character by
character, through every operation (bounded/text.py). What it writes is cut where trust changes: trusted text
is searched for the vocabulary's added tokens, which become `Control` runs; nothing else can.

Arguments come as text. Text that is an object's as Python spells it is given as the object, any other as a
string: a template that writes either as it is writes the same.

What the template has no place for is refused, not left out: tools, calls or reasoning that the program never
asks for. Where the template itself refuses (`raise_exception`) or fails, that is `template.refused`; where it
asks for more than a rendering may take, or for what the form lacks, `template.limit`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from slm2_web.errors import InputError
from slm2_web.strictjson import NotJson, loads
from slm2_web.template2.bounded.program import Program
from slm2_web.template2.bounded.text import concat, literal, pieces
from slm2_web.template2.bounded.values import Fault, Limit, Meter
from slm2_web.template2.checks import MAX_JSON_BYTES, check_conversation, refusal, tools_refusal
from slm2_web.template2.spec import Conversation, Message, ToolCall
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.special import AddedTokens

# Steps that a rendering may take: some for the template itself, and in proportion to what it is given; the
# square is for templates that look from every message at every other.
STEPS = 2_000_000
STEPS_PER_CHARACTER = 64
STEPS_PER_MESSAGE_PAIR = 500
MAX_STEPS = 200_000_000


class HasAddedTokens(Protocol):
    """What is needed of a tokenizer."""

    @property
    def added_tokens(self) -> AddedTokens:
        """What finds markers in trusted text."""


class CompiledTemplate:
    """A compiled template with a model's vocabulary."""

    def __init__(self, program: Program, tokenizer: HasAddedTokens) -> None:
        self.program = program
        self._find = tokenizer.added_tokens.find

    @property
    def has_thinking(self) -> bool:
        """Whether `enable_thinking` has a meaning for it."""
        return "enable_thinking" in self.program.words

    @property
    def has_tools(self) -> bool:
        """Whether it has a place for tools."""
        return "tools" in self.program.words

    def render(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> list[Run]:
        """The runs of `conversation`; with the opening of the assistant's turn when `add_generation_prompt`.

        Raises: InputError `template.*`, with the message's index and the field where it is one's.
        """
        check_conversation(conversation, self.program.roles)
        self._check_places(conversation)
        text = write(self.program, names_of(conversation, add_generation_prompt=add_generation_prompt))
        runs: list[Run] = []
        for part, trusted in pieces(text):
            try:
                data = part.encode("utf-8")
            except UnicodeEncodeError as error:
                raise _refused(f"it writes a lone surrogate U+{ord(part[error.start]):04X}", 0) from None
            runs += self._marked(data) if trusted else [Untrusted(data)]
        return runs

    def _marked(self, data: bytes) -> list[Run]:
        """Trusted text as runs, its added tokens as controls."""
        runs: list[Run] = []
        at = 0
        for start, end, token_id in self._find(data)[0]:
            if at < start:
                runs.append(Trusted(data[at:start]))
            runs.append(Control(token_id))
            at = end
        if at < len(data):
            runs.append(Trusted(data[at:]))
        return runs

    def _check_places(self, conversation: Conversation) -> None:
        words = self.program.words
        if conversation.tools and "tools" not in words:
            raise tools_refusal(0, "a tool", "none: the model's template has no place for tools")
        for index, message in enumerate(conversation.messages):
            if message.tool_calls and "tool_calls" not in words:
                allowed = "none: the model's template has no place for calls"
                raise refusal("template.tool_calls", index, "tool_calls", "a call", allowed)
            if message.reasoning is not None and "reasoning_content" not in words:
                allowed = "none: the model's template has no place for it"
                raise refusal("template.reasoning", index, "reasoning_content", "reasoning", allowed)
        if conversation.options.enable_thinking and not self.has_thinking:
            raise _option("enable_thinking", "false, or nothing: the model's template has no such switch")
        if conversation.options.preserve_thinking:
            raise _option("preserve_thinking", "false: only the families of docs/template.md have it")


def write(program: Program, names: dict[str, Any]) -> str:
    """The text that the template writes when it finds `names`, with its trust.

    Raises: InputError `template.refused`, `template.limit`.
    """
    meter = Meter(steps_for(names))
    try:
        return program.run(names, meter)
    except Fault as error:
        raise _refused(str(error), meter.line) from None
    except Limit as error:
        raise InputError(
            "template.limit",
            f"chat_template, line {meter.line}: found {error}; allowed: what docs/template.md lists",
            {"line": meter.line, "found": str(error)},
        ) from None


def steps_for(names: dict[str, Any]) -> int:
    """How many steps a rendering may take."""
    messages = names.get("messages", ())
    n_characters = _characters(list(names.values()))
    return min(
        MAX_STEPS,
        STEPS + STEPS_PER_CHARACTER * n_characters + STEPS_PER_MESSAGE_PAIR * len(messages) ** 2,
    )


def names_of(conversation: Conversation, *, add_generation_prompt: bool) -> dict[str, Any]:
    """What the template finds by name."""
    names: dict[str, Any] = {
        "messages": [_message(message, index) for index, message in enumerate(conversation.messages)],
        "tools": [_tool(tool, index) for index, tool in enumerate(conversation.tools)] or None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    if conversation.options.enable_thinking is not None:
        names["enable_thinking"] = conversation.options.enable_thinking
    return names


def _message(message: Message, index: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "role": literal(message.role),
        "content": _content(message.content, index),
    }
    if message.reasoning is not None:
        made["reasoning_content"] = _decoded(message.reasoning, index, "reasoning_content")
    if message.tool_calls:
        made["tool_calls"] = [_call(call, index, number) for number, call in enumerate(message.tool_calls)]
    return made


def _content(content: bytes | Sequence[Trusted | Untrusted], index: int) -> str:
    if isinstance(content, bytes):
        return _decoded(content, index, "content")
    parts = []
    for run in content:
        part = _decoded(run.data, index, "content")
        parts.append(literal(part) if isinstance(run, Trusted) else part)
    return concat(parts)


def _call(call: ToolCall, index: int, number: int) -> dict[str, Any]:
    field = f"tool_calls[{number}]"
    return {
        "type": literal("function"),
        "function": {
            "name": _decoded(call.name, index, f"{field}.name"),
            "arguments": _arguments(call.arguments, index, f"{field}.arguments"),
        },
    }


def _arguments(data: bytes, index: int, field: str) -> Any:
    spelled = _decoded(data, index, field)
    try:
        value = loads(data, max_bytes=MAX_JSON_BYTES)
        if isinstance(value, dict) and json.dumps(value, ensure_ascii=False) == spelled:
            return value
    except (NotJson, RecursionError):
        return spelled
    return spelled


def _tool(data: bytes, index: int) -> Any:
    try:
        return loads(data, max_bytes=MAX_JSON_BYTES)
    except NotJson as error:
        raise tools_refusal(index, str(error), "JSON") from None


def _decoded(data: bytes, index: int, field: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"no UTF-8 at byte {error.start}"
        raise refusal("input.text", index, field, found, "well-formed Unicode") from None


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values())) + sum(map(_characters, value)) + len(value)
    return sum(map(_characters, value)) + len(value) if isinstance(value, list) else 1


def _option(field: str, allowed: str) -> InputError:
    return InputError(
        "template.options",
        f"{field}: found true; allowed: {allowed}",
        {"field": field, "found": "true", "allowed": allowed},
    )


def _refused(message: str, line: int) -> InputError:
    return InputError(
        "template.refused",
        f"the model's template refuses the conversation, line {line}: {message:.400}",
        {"line": line, "found": message[:400]},
    )
