"""Stage `template`: conversations to runs and ids, by every family that the vocabulary has the markers of.

    {"family", "default_system", "conversation": {"messages", "tools"?, "enable_thinking"?, ...},
     "add_generation_prompt"}
    {"runs": [["control", id] | ["trusted", text] | ["untrusted", text]], "ids"} or {"error": code}

Calls and tools are JSON text. The family "compiled" is the template of template.jinja, as `slm2-web`
compiles it. One conversation in six is broken in some way; what it is refused with is its output.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from slm2_web.errors import FormatError, InputError
from slm2_web.manifest import COMPILED, TemplateSpec
from slm2_web.parity.canonical import Json
from slm2_web.parity.conversations import conversation
from slm2_web.parity.dice import Dice
from slm2_web.parity.subject import Stage, Subject, refused
from slm2_web.template2.conversation import parse_conversation, spell
from slm2_web.template2.machine import HasRender, template_for
from slm2_web.tokenizer2.runs import Control, Run, Trusted

# The family, its default system prompt, and whose conversations it gets.
FAMILIES: Final = (
    ("chatml", "You are a helpful AI assistant.", "chatml"),
    (COMPILED, None, "qwen2.5"),
    ("qwen2.5", "You are a helpful assistant.", "qwen2.5"),
    ("qwen3", None, "qwen3"),
)
PROGRAM: Final = Path(__file__).with_name("template.json")
SOURCE: Final = Path(__file__).with_name("template.jinja")
_BROKEN_ONE_IN: Final = 6


def make(subject: Subject, index: int) -> Json:
    """The input of a record."""
    families = families_of(subject)
    family, default_system, corpus = families[index % len(families)]
    number = index // len(families)
    case = conversation(corpus, number)
    raw: dict[str, Any] = case.raw
    add = case.add_generation_prompt
    if number % _BROKEN_ONE_IN == _BROKEN_ONE_IN - 1:
        raw, add = _broken(raw, add, Dice(f"parity template {family} {number}"))
    return {
        "family": family,
        "default_system": default_system,
        "conversation": _as_text(raw),
        "add_generation_prompt": add,
    }


async def run(subject: Subject, made: Json) -> Json:
    """The output of a record."""
    template = template_of(subject, made["family"], made["default_system"])
    try:
        conversation = parse_conversation(made["conversation"])
        runs = template.render(conversation, add_generation_prompt=made["add_generation_prompt"])
        return {"runs": [_shown(run) for run in runs], "ids": subject.tokenizer.encode(runs)}
    except InputError as error:
        return refused(error)


def template_of(subject: Subject, family: str, default_system: str | None) -> HasRender:
    """A family's template for the subject's vocabulary. Raises: FormatError where it lacks a marker."""
    made = subject.templates.get(family)
    if made is None:
        program = _program() if family == COMPILED else None
        made = template_for(TemplateSpec(family, default_system, program), subject.tokenizer)
        subject.templates[family] = made
    return made


def families_of(subject: Subject) -> list[tuple[str, str | None, str]]:
    """Those that the vocabulary has the markers of."""
    return [each for each in FAMILIES if _has_markers(subject, each[0], each[1])]


def _has_markers(subject: Subject, family: str, default_system: str | None) -> bool:
    try:
        template_of(subject, family, default_system)
    except FormatError:
        return False
    return True


@lru_cache(maxsize=1)
def _program() -> dict[str, Any]:
    program: dict[str, Any] = json.loads(PROGRAM.read_text("utf-8"))
    return program


def _as_text(raw: dict[str, Any]) -> Json:
    """The conversation with calls and tools as JSON text: numbers stay as they are spelled."""
    result = dict(raw)
    if "tools" in raw:
        result["tools"] = spell(raw["tools"]).decode("utf-8")
    result["messages"] = [
        {**message, "tool_calls": spell(message["tool_calls"]).decode("utf-8")}
        if message.get("tool_calls") is not None
        else message
        for message in raw["messages"]
    ]
    return result


def _broken(raw: dict[str, Any], add: bool, dice: Dice) -> tuple[dict[str, Any], bool]:
    """The conversation with one thing wrong, or at least odd."""
    messages = [dict(message) for message in raw["messages"]]
    at = dice.below(len(messages))
    match dice.below(10):
        case 0:
            messages[at]["role"] = dice.one(("developer", "User", "", "function", "tool", "system"))
        case 1:
            messages[at]["content"] = dice.one((None, 7, ["text"], {"type": "text"}))
        case 2:
            messages.insert(at, {"role": dice.one(("system", "assistant", "tool")), "content": "x"})
        case 3:
            messages[at]["reasoning_content"] = dice.one(("why", 1, ""))
        case 4:
            messages[at]["extra"] = "x"
        case 5:
            messages = dice.one(([], messages[::-1]))
        case 6:
            messages[at]["tool_calls"] = dice.one(
                ([{"name": "f"}], "x", [{"name": "", "arguments": {}}], [{"name": "f", "arguments": "{"}])
            )
        case 7:
            raw = {
                **raw,
                "tools": dice.one(([], [{}], "x", [{"type": "function", "function": {"name": "f"}}])),
            }
        case 8:
            raw = {**raw, "enable_thinking": dice.one((True, False)), "preserve_thinking": True}
        case _:
            messages, add = [*messages, {"role": "assistant", "content": "and"}], True
    return {**raw, "messages": messages}, add


def _shown(run: Run) -> list[Any]:
    if isinstance(run, Control):
        return ["control", run.id]
    return ["trusted" if isinstance(run, Trusted) else "untrusted", run.data.decode("utf-8")]


STAGE: Final = Stage("template", {"quick": 96, "reduced": 480, "full": 2400}, make, run)
