"""Conversation -> runs: a family's table made ready for one model, and the machine that follows it.

Theory of operation
-------------------
The machine starts in INIT, takes one step per event of the conversation (events.py) and must be in END
after the last. A step appends what its table entry writes. Markers are looked up in the vocabulary once,
when the model is loaded: a model without them is refused there, not in the middle of a chat. Only this file
makes `Control` runs, and only from the table: what the conversation holds comes out as `Untrusted`,
whatever it says. Nothing is repaired, merged or dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from slm2_web.errors import FormatError, InputError
from slm2_web.manifest import COMPILED, TemplateSpec
from slm2_web.template2.bounded.program import read_program
from slm2_web.template2.chatml import CHATML, RAW
from slm2_web.template2.checks import check_conversation, check_family
from slm2_web.template2.compiled import CompiledTemplate, HasAddedTokens
from slm2_web.template2.events import Part, events_of
from slm2_web.template2.qwen3 import QWEN3
from slm2_web.template2.qwen25 import QWEN25
from slm2_web.template2.spec import END, INIT, Conversation, Event, Family, Item, Marker, Slot, Words
from slm2_web.tokenizer2.runs import Control, Run, Trusted

FAMILIES: Mapping[str, Family] = {family.name: family for family in (CHATML, QWEN25, QWEN3, RAW)}


class HasRender(Protocol):
    """What a template is to the later stages: hand-written or compiled."""

    def render(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> list[Run]:
        """The runs of `conversation`; with the opening of the assistant's turn when `add_generation_prompt`.

        Raises: InputError `template.*` with the message's index and the field.
        """


class HasControlIds(Protocol):
    """What is needed of a tokenizer."""

    def control_id(self, marker: bytes) -> int:
        """The id of the added token with this text."""


class Template:
    """The template of one model."""

    def __init__(self, family: Family, default_system: str | None, tokenizer: HasControlIds) -> None:
        self._family = family
        self._default_system = None if default_system is None else default_system.encode("utf-8")
        self._steps = {
            key: (tuple(_made_ready(item, tokenizer) for item in step.writes), step.then)
            for key, step in family.steps.items()
        }

    @property
    def has_thinking(self) -> bool:
        """Whether it has a place for reasoning, and `enable_thinking` a meaning."""
        return self._family.thinking is not None

    @property
    def has_tools(self) -> bool:
        """Whether it has a place for tools."""
        return self._family.has(Event.TOOLS)

    def render(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> list[Run]:
        """The runs of `conversation`; with the opening of the assistant's turn when `add_generation_prompt`.

        Raises: InputError `template.*`: a value that is not allowed (checks.py), something for which the
        family has no place, or `template.order`; with the message's index and the field.
        """
        check_conversation(conversation, self._family.roles)
        check_family(conversation, self._family)
        runs: list[Run] = []
        state = INIT
        for part in events_of(
            conversation, self._family, self._default_system, add_generation_prompt=add_generation_prompt
        ):
            step = self._steps.get((state, part.event))
            if step is None:
                raise self._out_of_order(part, state)
            written, state = step
            for item in written:
                if isinstance(item, Slot):
                    runs += part.fields[item]
                else:
                    runs.append(item)
        assert state == END
        return runs

    def _out_of_order(self, part: Part, state: str) -> InputError:
        allowed = self._family.events(state)
        return InputError(
            "template.order",
            f"messages[{part.message}]: found {part.event} in state {state}; allowed: {' | '.join(allowed)}",
            {
                "index": part.message,
                "field": "role",
                "found": part.event,
                "state": state,
                "allowed": list(allowed),
            },
        )


class HasMarkers(HasControlIds, HasAddedTokens, Protocol):
    """What is needed of a tokenizer for a template of either kind."""


def template_for(spec: TemplateSpec, tokenizer: HasMarkers) -> Template | CompiledTemplate:
    """The template that `spec` names, for a model with this tokenizer.

    Raises: FormatError `format.unsupported` for an unknown family, or a marker that the vocabulary lacks;
        `format.manifest` for a compiled template's program that is none.
    """
    if spec.family == COMPILED:
        return CompiledTemplate(read_program(spec.program), tokenizer)
    family = FAMILIES.get(spec.family)
    if family is None:
        allowed = [*FAMILIES, COMPILED]
        raise FormatError(
            "format.unsupported",
            f"template.family: found {spec.family!r}; allowed: {' | '.join(allowed)}",
            {"place": "template.family", "found": spec.family, "allowed": allowed},
        )
    return Template(family, spec.default_system, tokenizer)


def _made_ready(item: Item, tokenizer: HasControlIds) -> Run | Slot:
    """The run that `item` writes; a slot as it is."""
    if isinstance(item, Marker):
        return Control(tokenizer.control_id(item.text))
    return Trusted(item.text) if isinstance(item, Words) else item
