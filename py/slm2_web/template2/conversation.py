"""Plain data, as an OpenAI-shaped request has it, -> Conversation; strictly.

    {"messages": [{"role", "content", "reasoning_content"?, "tool_calls"?, "tool_call_id"?, "name"?}],
     "tools"?, "enable_thinking"?, "preserve_thinking"?}

Text is a string, or UTF-8 bytes. A key that is not known is refused: it would be left out of the prompt in
silence. `id`, `type`, `index`, `tool_call_id` and a tool's `name` are known and carry nothing that a
template writes. `content` may be missing or null in an assistant's message with calls only.

JSON is spelled as Python spells it, `json.dumps(ensure_ascii=False)` of what `json.loads` reads: a blank
after comma and colon, keys in their order, floats by their shortest digits (`1.0` stays `1.0`, `1e2`
becomes `100.0`), integers as long as they are. What has gone through another language's numbers has lost
its spelling, so `tools`, each tool and `tool_calls` may be given as JSON text as well: their numbers cross
as they were written. Arguments that are text are taken as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from slm2_web.errors import InputError
from slm2_web.strictjson import NotJson, loads, show
from slm2_web.template2.checks import MAX_JSON_BYTES, refusal, tools_refusal
from slm2_web.template2.spec import Conversation, Message, Options, ToolCall

KEYS = ("messages", "tools", "enable_thinking", "preserve_thinking")
_MESSAGE_KEYS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
_CALL_KEYS = ("function", "name", "arguments", "id", "type", "index")
_FUNCTION_KEYS = ("name", "arguments")


def parse_conversation(raw: Mapping[str, Any]) -> Conversation:
    """The conversation that `raw` describes.

    Raises: InputError `template.message` for an unknown key or a message that is no object,
    `template.options`, `template.role`, `template.content`, `template.reasoning`, `template.tool_calls`,
    `template.tools`, with the message's index and the field. Order, and what the model's template has a
    place for, are the template's to check.
    """
    for key in raw:
        if key not in KEYS:
            raise _options_refusal(_shown(key), "an unknown key", " | ".join(KEYS))
    messages = raw.get("messages")
    if not isinstance(messages, list | tuple):
        raise refusal("template.order", 0, "", show(messages), "a list of messages")
    return Conversation(
        tuple(_message(message, index) for index, message in enumerate(messages)),
        _tools(raw.get("tools")),
        Options(
            _flag(raw.get("enable_thinking"), "enable_thinking"),
            _flag(raw.get("preserve_thinking"), "preserve_thinking") or False,
        ),
    )


def spell(value: object) -> bytes:
    """A JSON value as the publishers' templates write it: `json.dumps(ensure_ascii=False)`, in UTF-8.

    Raises: NotJson for NaN and infinity, keys that are no strings, lone surrogates, and what JSON has not.
    """
    try:
        _check_keys(value)
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except UnicodeEncodeError as error:
        raise NotJson(f"a lone surrogate at character {error.start}") from None
    except (TypeError, ValueError) as error:
        raise NotJson(str(error)[:200]) from None


def _is_text(value: str) -> bool:
    return not any("\ud800" <= char < "\ue000" for char in value)


def _message(raw: object, index: int) -> Message:
    if not isinstance(raw, Mapping):
        raise refusal("template.message", index, "", show(raw), "an object")
    for key in raw:
        if key not in _MESSAGE_KEYS:
            raise refusal("template.message", index, _shown(key), "an unknown key", " | ".join(_MESSAGE_KEYS))
    role = raw.get("role")
    if not isinstance(role, str):
        raise refusal("template.role", index, "role", show(role), "a string")
    if not _is_text(role):
        raise refusal("template.role", index, "role", show(role), "well-formed Unicode")
    for key in ("tool_call_id", "name"):
        if raw.get(key) is not None and role != "tool":
            raise refusal("template.message", index, key, f"the key in a message of {show(role)}", "none")
    calls = _calls(raw.get("tool_calls"), index)
    content = raw.get("content")
    if content is None and calls:
        content = b""
    reasoning = raw.get("reasoning_content")
    return Message(
        role,
        _text("template.content", content, index, "content"),
        None if reasoning is None else _text("template.reasoning", reasoning, index, "reasoning_content"),
        calls,
    )


def _calls(raw: object, index: int) -> tuple[ToolCall, ...]:
    if isinstance(raw, str | bytes):
        try:
            raw = _loads(raw)
        except NotJson as error:
            raise refusal("template.tool_calls", index, "tool_calls", str(error), "JSON") from None
    if raw is None:
        return ()
    if not isinstance(raw, list | tuple):
        raise refusal("template.tool_calls", index, "tool_calls", show(raw), "a list of calls")
    return tuple(_call(call, index, f"tool_calls[{number}]") for number, call in enumerate(raw))


def _call(raw: object, index: int, place: str) -> ToolCall:
    call = _object(raw, _CALL_KEYS, index, place)
    if call.get("type", "function") not in ("function", b"function"):
        raise refusal("template.tool_calls", index, f"{place}.type", show(call["type"]), "function")
    if "function" in call:
        if "name" in call or "arguments" in call:
            raise refusal("template.tool_calls", index, place, "a function beside a name", "one of them")
        place += ".function"
        call = _object(call["function"], _FUNCTION_KEYS, index, place)
    name = _text("template.tool_calls", call.get("name"), index, f"{place}.name")
    if "arguments" not in call:
        raise refusal(
            "template.tool_calls", index, f"{place}.arguments", "nothing", "an object, or JSON text"
        )
    arguments = call["arguments"]
    if isinstance(arguments, str | bytes):
        return ToolCall(name, _text("template.tool_calls", arguments, index, f"{place}.arguments"))
    try:
        return ToolCall(name, spell(arguments))
    except NotJson as error:
        raise refusal("template.tool_calls", index, f"{place}.arguments", str(error), "JSON") from None


def _object(raw: object, keys: tuple[str, ...], index: int, place: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise refusal("template.tool_calls", index, place, show(raw), "an object")
    for key in raw:
        if key not in keys:
            found = f"the unknown key {show(key)}"
            raise refusal("template.tool_calls", index, place, found, " | ".join(keys))
    return raw


def _tools(raw: object) -> tuple[bytes, ...]:
    if isinstance(raw, str | bytes):
        try:
            raw = _loads(raw)
        except NotJson as error:
            raise tools_refusal(0, str(error), "JSON") from None
    if raw is None:
        return ()
    if not isinstance(raw, list | tuple):
        raise tools_refusal(0, show(raw), "a list of tools")
    return tuple(_tool(tool, index) for index, tool in enumerate(raw))


def _tool(raw: object, index: int) -> bytes:
    """One tool: an object, or its JSON text."""
    try:
        value = _loads(raw) if isinstance(raw, str | bytes) else raw
        if isinstance(value, dict):
            return spell(value)
    except NotJson as error:
        raise tools_refusal(index, str(error), "JSON") from None
    raise tools_refusal(index, show(value), "an object")


def _loads(text: str | bytes) -> Any:
    """The value of JSON text."""
    try:
        data = text.encode("utf-8") if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise NotJson(f"a lone surrogate at character {error.start}") from None
    return loads(data, max_bytes=MAX_JSON_BYTES)


def _text(code: str, value: object, index: int, field: str) -> bytes:
    """The bytes of a text. Whether bytes are UTF-8 is for the tokenizer to say."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise refusal(code, index, field, show(value), "one string")
    if surrogate := re.search("[\ud800-\udfff]", value):
        found = f"the lone surrogate U+{ord(surrogate[0]):04X} at character {surrogate.start()}"
        raise refusal("input.text", index, field, found, "well-formed Unicode")
    return value.encode("utf-8")


def _flag(value: object, field: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise _options_refusal(field, show(value), "true | false")
    return value


def _options_refusal(field: str, found: str, allowed: str) -> InputError:
    detail = {"field": field, "found": found, "allowed": allowed}
    return InputError("template.options", f"{field}: found {found}; allowed: {allowed}", detail)


def _shown(key: object) -> str:
    """A key from outside as the name of a field."""
    is_plain = isinstance(key, str) and key.isidentifier() and key.isascii() and len(key) <= 40
    return str(key) if is_plain else show(key)


def _check_keys(value: object) -> None:
    """`json.dumps` would make strings of other keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {show(key)} is no string")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)
