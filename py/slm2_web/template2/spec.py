"""The words a template is written in: messages, and a family of templates as a table.

A family is one transition table, `(state, event) -> Step`. An event is the role of the next message, or the
end of the messages: REPLY when the model is to answer, STOP when not. What a step writes is a sequence of

    Marker(text)    the control id whose token has this text
    Words(text)     text of the template: trusted
    CONTENT         the message's content: untrusted
    DEFAULT_SYSTEM  the family's `default_turn` with the model's default system prompt, which is trusted, as
                    its content; nothing when the model has none

A pair that is not in the table is refused. There is nothing else: no conditions, no string operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

INIT = "INIT"
END = "END"
REPLY = "<reply>"
STOP = "<stop>"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. The content is UTF-8."""

    role: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Marker:
    """A structural token, by its text."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Words:
    """Text of the template's own."""

    text: bytes


class Slot(Enum):
    """What a rendering fills in."""

    CONTENT = "content"
    DEFAULT_SYSTEM = "default system turn"


CONTENT = Slot.CONTENT
DEFAULT_SYSTEM = Slot.DEFAULT_SYSTEM

Item = Marker | Words | Slot


@dataclass(frozen=True, slots=True)
class Step:
    """What a transition writes, and the state after it."""

    writes: tuple[Item, ...]
    then: str


@dataclass(frozen=True, slots=True)
class Family:
    """Templates of one shape. The machine starts in INIT and is done in END."""

    name: str
    default_turn: tuple[Item, ...]
    steps: Mapping[tuple[str, str], Step]

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that a message may have, in the order of the table."""
        return tuple(dict.fromkeys(event for _, event in self.steps if event not in (REPLY, STOP)))

    def events(self, state: str) -> tuple[str, ...]:
        """What may follow in `state`."""
        return tuple(event for at, event in self.steps if at == state)


def table_of(family: Family) -> str:
    """The transition table in Markdown, as docs/template.md shows it."""
    lines = ["| state | next | writes | then |", "|---|---|---|---|"]
    for (state, event), step in family.steps.items():
        written = " ".join(_show(item) for item in step.writes) or "nothing"
        lines.append(f"| {state} | `{event}` | {written} | {step.then} |")
    return "\n".join(lines) + "\n"


def _show(item: Item) -> str:
    if isinstance(item, Slot):
        return f"*{item.value}*"
    text = item.text.decode("utf-8").replace("\n", "\\n").replace("|", "\\|")
    return f"**`{text}`**" if isinstance(item, Marker) else f"`{text}`"
