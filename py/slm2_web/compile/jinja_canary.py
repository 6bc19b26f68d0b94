"""A compiled template's proof before it is packed: canary conversations, rendered by it and by jinja2.

The texts must be equal, and where jinja2 fails the program must refuse. A plain question must succeed. And
each added token that a reader would see in the text must come out as a control: a template that makes its
markers of what is not its own, such as a name out of the conversation, would leave them text, and is refused.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2

from slm2_web.compile.gguf import unsupported
from slm2_web.compile.jinja import date_text, environment
from slm2_web.errors import InputError
from slm2_web.template2.bounded.program import Program
from slm2_web.template2.compiled import CompiledTemplate, HasAddedTokens, names_of, write
from slm2_web.template2.conversation import parse_conversation
from slm2_web.template2.spec import Conversation
from slm2_web.tokenizer2.runs import Control

_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number", "description": "one"}, "b": {"type": "number"}},
            "required": ["a"],
        },
    },
}
_CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}
_USER = {"role": "user", "content": "What is 1 + 2.5?"}
_SYSTEM = {"role": "system", "content": "Be brief."}
_ANSWER = {"role": "assistant", "content": "It is 3.5."}
_THOUGHT = {**_ANSWER, "reasoning_content": "One and two and a half."}
_ASKS = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "content": "3.5"}

# What a template must be able to frame, and what it may refuse as long as jinja2 does.
PLAIN: Mapping[str, Any] = {"messages": [_USER]}
OTHERS: tuple[Mapping[str, Any], ...] = (
    {"messages": [_USER, _ANSWER, _USER]},
    {"messages": [_SYSTEM, _USER, _ANSWER, _USER]},
    {"messages": [_USER, _THOUGHT, _USER]},
    {"messages": [_USER], "enable_thinking": False},
    {"messages": [_SYSTEM, _USER], "tools": [_TOOL], "enable_thinking": True},
    {"messages": [_USER, _ASKS, _RESULT], "tools": [_TOOL]},
    {"messages": [_USER, _ASKS, _RESULT, _ANSWER, _USER], "tools": [_TOOL]},
)


def check(
    place: str, source: str, program: Program, date: datetime.date | None, tokenizer: HasAddedTokens
) -> None:
    """Nothing, when the program does what the template does.

    Raises: FormatError `format.unsupported` with the conversation's number and what came out.
    """
    template = environment()
    template.filters["tojson"] = _tojson
    template.globals["raise_exception"] = _raise_exception
    if date is not None:
        template.globals["strftime_now"] = lambda form: date_text(form, date)
    compiled = template.from_string(source)
    runnable = CompiledTemplate(program, tokenizer)
    for number, raw in enumerate((PLAIN, *OTHERS)):
        conversation = parse_conversation(raw)
        for reply in (True, False):
            where = f"{place}, canary {number}"
            found = _found(where, program, conversation, reply)
            expected = _expected(compiled, program, conversation, reply)
            if found != expected:
                raise unsupported(where, _first_difference(found, expected), "what jinja2 writes")
            if found is None:
                if raw is PLAIN and reply:
                    raise unsupported(where, "a refusal of a plain question", "a prompt")
                continue
            _check_markers(where, found, runnable, conversation, reply, tokenizer)


def _found(where: str, program: Program, conversation: Conversation, reply: bool) -> str | None:
    """Raises: FormatError where the program stops at its limit: jinja2 has none, and might never end."""
    try:
        return str(write(program, names_of(conversation, add_generation_prompt=reply)))
    except InputError as error:
        if error.code == "template.limit":
            allowed = "a template within the limits of docs/template.md"
            raise unsupported(where, error.message, allowed) from None
        return None


def _expected(
    template: jinja2.Template, program: Program, conversation: Conversation, reply: bool
) -> str | None:
    names = dict(program.variables) | names_of(conversation, add_generation_prompt=reply)
    try:
        return template.render(**names)
    except Exception:  # whatever a template can make Python say
        return None


def _check_markers(
    where: str,
    text: str,
    template: CompiledTemplate,
    conversation: Conversation,
    reply: bool,
    tokenizer: HasAddedTokens,
) -> None:
    seen = [found.id for found in tokenizer.added_tokens.find(text.encode("utf-8"))[0]]
    try:
        runs = template.render(conversation, add_generation_prompt=reply)
    except InputError:
        return  # the template has no place for what this conversation holds
    made = [run.id for run in runs if isinstance(run, Control)]
    if seen != made:
        allowed = "markers of the template's own literals only"
        raise unsupported(where, f"{len(made)} of {len(seen)} markers are the template's own", allowed)


def _first_difference(found: str | None, expected: str | None) -> str:
    if found is None or expected is None:
        return "a refusal" if found is None else "a prompt where jinja2 fails"
    at = next(
        (i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]),
        min(len(found), len(expected)),
    )
    return f"another text from character {at}: {found[at : at + 40]!r}"


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
