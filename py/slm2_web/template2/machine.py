"""Messages -> runs: a family's transition table, made ready for one model, and the machine that follows it.

Theory of operation
-------------------
The machine starts in INIT, takes one step per message (the event is its role), then one for the end of the
messages (REPLY or STOP), and must be in END. A step appends what its table entry writes. Markers are looked
up in the vocabulary once, when the model is loaded: a model without them is refused there, not in the middle
of a chat. Only this file makes `Control` runs, and only from the table: content comes out as `Untrusted`,
whatever it says. Nothing is repaired, trimmed, merged or dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from slm2_web.errors import FormatError, InputError
from slm2_web.manifest import TemplateSpec
from slm2_web.template2.chatml import CHATML
from slm2_web.template2.spec import CONTENT, END, INIT, REPLY, STOP, Family, Item, Marker, Message, Words
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted

FAMILIES: Mapping[str, Family] = {family.name: family for family in (CHATML,)}


class HasControlIds(Protocol):
    """What is needed of a tokenizer."""

    def control_id(self, marker: bytes) -> int:
        """The id of the added token with this text."""


class Template:
    """The template of one model."""

    def __init__(self, family: Family, default_system: str | None, tokenizer: HasControlIds) -> None:
        default_turn: list[Run] = []
        if default_system is not None:
            words = Words(default_system.encode("utf-8"))
            items = (words if item is CONTENT else item for item in family.default_turn)
            default_turn = [run for run in _runs(items, [], tokenizer) if run is not None]
        self._family = family
        self._steps = {
            key: (_runs(step.writes, default_turn, tokenizer), step.then)
            for key, step in family.steps.items()
        }

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[Run]:
        """The runs of `messages`; with the opening of the assistant's turn when `add_generation_prompt`.

        Raises: InputError `template.role`, `template.content`, `template.order`, with the message's index.
        """
        runs: list[Run] = []
        state = INIT
        for index, message in enumerate(messages):
            self._check(message, index)
            written, state = self._step(state, message.role, index)
            runs += [Untrusted(message.content) if run is None else run for run in written]
        written, state = self._step(state, REPLY if add_generation_prompt else STOP, len(messages))
        assert state == END
        assert None not in written
        runs += [run for run in written if run is not None]
        return runs

    def _step(self, state: str, event: str, index: int) -> tuple[list[Run | None], str]:
        step = self._steps.get((state, event))
        if step is None:
            allowed = self._family.events(state)
            raise InputError(
                "template.order",
                f"messages[{index}]: found {event} in state {state}; allowed: {' | '.join(allowed)}",
                {"index": index, "found": event, "state": state, "allowed": list(allowed)},
            )
        return step

    def _check(self, message: Message, index: int) -> None:
        roles = self._family.roles
        if message.role not in roles:
            raise InputError(
                "template.role",
                f"messages[{index}].role: found {message.role!r:.80}; allowed: {' | '.join(roles)}",
                {"index": index, "field": "role", "allowed": list(roles)},
            )
        if not isinstance(message.content, bytes):
            raise InputError(
                "template.content",
                f"messages[{index}].content: found {type(message.content).__name__}; allowed: UTF-8 bytes",
                {"index": index, "field": "content"},
            )


def template_for(spec: TemplateSpec, tokenizer: HasControlIds) -> Template:
    """The template that `spec` names, for a model with this tokenizer.

    Raises: FormatError `format.unsupported` for an unknown family, or a marker that the vocabulary lacks.
    """
    family = FAMILIES.get(spec.family)
    if family is None:
        raise FormatError(
            "format.unsupported",
            f"template.family: found {spec.family!r}; allowed: {' | '.join(FAMILIES)}",
            {"place": "template.family", "found": spec.family, "allowed": list(FAMILIES)},
        )
    return Template(family, spec.default_system, tokenizer)


def _runs(items: Iterable[Item], default_turn: Sequence[Run], tokenizer: HasControlIds) -> list[Run | None]:
    """The runs that `items` write; None where the message's content goes."""
    runs: list[Run | None] = []
    for item in items:
        if isinstance(item, Marker):
            runs.append(Control(tokenizer.control_id(item.text)))
        elif isinstance(item, Words):
            runs.append(Trusted(item.text))
        elif item is CONTENT:
            runs.append(None)
        else:
            runs += default_turn
    return runs
