"""A conversation's values, checked: what no template may be given, whatever its order.

Each refusal is an InputError `template.*` whose detail has the message's `index` and the `field`. Arguments
have to be JSON and names have to stand between quotes as they are, because templates write both so: what
comes out is JSON, or it is refused. A conversation is rendered again for every turn, so what was found about
short texts is remembered.
"""

from __future__ import annotations

import re
from functools import lru_cache

from slm2_web.errors import InputError
from slm2_web.strictjson import NotJson, loads, show
from slm2_web.template2.spec import Conversation, Event, Family, Message, ToolCall
from slm2_web.tokenizer2.runs import Trusted, Untrusted

MAX_JSON_BYTES = 1 << 20
SHORT_BYTES = 1 << 12
_UNFIT_IN_A_NAME = re.compile(rb'["\\\x00-\x1f]')


def refusal(code: str, index: int, field: str, found: str, allowed: str) -> InputError:
    """The error of one message; `index` is the number of messages for what comes after the last."""
    place = f"messages[{index}].{field}" if field else f"messages[{index}]"
    detail = {"index": index, "field": field, "found": found, "allowed": allowed}
    return InputError(code, f"{place}: found {found}; allowed: {allowed}", detail)


def tools_refusal(index: int, found: str, allowed: str) -> InputError:
    """The error of one tool of the list."""
    detail = {"index": index, "field": "tools", "found": found, "allowed": allowed}
    return InputError("template.tools", f"tools[{index}]: found {found}; allowed: {allowed}", detail)


def check_conversation(conversation: Conversation, roles: tuple[str, ...]) -> None:
    """Check the values that every template relies on. roles: those that the template knows.

    Raises: InputError `template.order` for no messages at all; `template.role`, `template.content`,
    `template.reasoning`, `template.tool_calls`, `template.tools`; `input.text` for what is not UTF-8.
    """
    if not conversation.messages:
        raise refusal("template.order", 0, "", "no messages", "at least one")
    for index, message in enumerate(conversation.messages):
        _check_message(message, index, roles)
    for index, tool in enumerate(conversation.tools):
        if not isinstance(tool, bytes):
            raise tools_refusal(index, type(tool).__name__, "JSON text as UTF-8 bytes")
        if fault := _json_fault(tool):
            raise tools_refusal(index, fault, "JSON")


def check_family(conversation: Conversation, family: Family) -> None:
    """Check that `family` has a place for all that the conversation holds.

    Raises: InputError `template.tools`, `template.tool_calls`, `template.reasoning`, `template.options`.
    """
    if conversation.tools and not family.has(Event.TOOLS):
        raise tools_refusal(0, "a tool", "none: the model's template has no place for tools")
    for index, message in enumerate(conversation.messages):
        if message.tool_calls and not family.has(Event.CALL):
            allowed = "none: the model's template has no place for calls"
            raise refusal("template.tool_calls", index, "tool_calls", "a call", allowed)
        if message.reasoning is not None and family.thinking is None:
            allowed = "none: the model's template has no place for it"
            raise refusal("template.reasoning", index, "reasoning_content", "reasoning", allowed)
    if conversation.options.enable_thinking and family.thinking is None:
        raise InputError(
            "template.options",
            "enable_thinking: found true; allowed: false, or nothing: the model does not think",
            {"field": "enable_thinking", "found": "true", "allowed": "false, or nothing"},
        )


def _check_message(message: Message, index: int, roles: tuple[str, ...]) -> None:
    role = message.role
    if role not in roles:
        raise refusal("template.role", index, "role", show(role), " | ".join(roles))
    if not _is_content(message):
        found = type(message.content).__name__
        raise refusal("template.content", index, "content", found, "one text as UTF-8 bytes")
    if isinstance(message.content, bytes):
        _check_utf8(message.content, index, "content")
    if message.reasoning is not None:
        if role != "assistant":
            raise refusal("template.reasoning", index, "reasoning_content", f"reasoning of {role}", "none")
        if not isinstance(message.reasoning, bytes):
            found = type(message.reasoning).__name__
            raise refusal("template.reasoning", index, "reasoning_content", found, "one text as UTF-8 bytes")
        _check_utf8(message.reasoning, index, "reasoning_content")
    if message.tool_calls and role != "assistant":
        raise refusal("template.tool_calls", index, "tool_calls", f"calls of {role}", "none")
    for number, call in enumerate(message.tool_calls):
        _check_call(call, index, f"tool_calls[{number}]")


def _is_content(message: Message) -> bool:
    """Bytes; of a system or user message runs of text too."""
    content = message.content
    if isinstance(content, tuple) and message.role in ("system", "user"):
        return all(isinstance(run, Trusted | Untrusted) for run in content)
    return isinstance(content, bytes)


def _check_call(call: ToolCall, index: int, field: str) -> None:
    if not isinstance(call, ToolCall):
        raise refusal("template.tool_calls", index, field, type(call).__name__, "a call")
    if not isinstance(call.name, bytes) or not call.name:
        raise refusal("template.tool_calls", index, f"{field}.name", show(call.name), "a text, not empty")
    _check_utf8(call.name, index, f"{field}.name")
    if unfit := _UNFIT_IN_A_NAME.search(call.name):
        allowed = "a name that JSON can hold as it is"
        raise refusal("template.tool_calls", index, f"{field}.name", show(unfit[0].decode()), allowed)
    if not isinstance(call.arguments, bytes):
        found = type(call.arguments).__name__
        raise refusal("template.tool_calls", index, f"{field}.arguments", found, "JSON text as UTF-8 bytes")
    if fault := _json_fault(call.arguments):
        raise refusal("template.tool_calls", index, f"{field}.arguments", fault, "JSON")


def _check_utf8(text: bytes, index: int, field: str) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"no UTF-8 at byte {error.start}"
        raise refusal("input.text", index, field, found, "well-formed Unicode") from None


def _json_fault(text: bytes) -> str:
    """What is wrong with JSON text; nothing when it is JSON."""
    return _short_fault(text) if len(text) <= SHORT_BYTES else _fault(text)


@lru_cache(maxsize=1024)
def _short_fault(text: bytes) -> str:
    return _fault(text)


def _fault(text: bytes) -> str:
    try:
        loads(text, max_bytes=MAX_JSON_BYTES)
    except NotJson as error:
        return str(error)
    return ""
