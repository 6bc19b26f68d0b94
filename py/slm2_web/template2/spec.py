"""The words a template is written in: a conversation, and a family of templates as a table.

Theory of operation
-------------------
A rendering has two passes. The first (events.py) reads the conversation into *events*, the parts that the
template may write: a system prompt, the list of tools, a turn of the user, a thought, an answer, a call,
the end of a turn. Which parts a message has is said by the family's declarations (`Thinking`, `joined`),
not by code of its own. The second (machine.py) walks the family's transition table, `(state, event) ->
Step`: a step writes a sequence of

    Marker(text)    the control id whose token has this text
    Words(text)     text of the template: trusted
    a Slot          what the event carries: untrusted

and names the next state. A pair that is not in the table is refused: the table is the grammar. There is
nothing else: no conditions, no string operations, and no model is known by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from slm2_web.tokenizer2.runs import Trusted, Untrusted

Text = Trusted | Untrusted


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as the assistant writes it.

    name       UTF-8
    arguments  JSON text as the template writes it: a string's text verbatim, or an object spelled as Python's
               `json.dumps(ensure_ascii=False)` spells it
    """

    name: bytes
    arguments: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. All text is UTF-8.

    content     untrusted text; a tuple of text runs only where Prompt2 frames evidence in words of its own
    reasoning   of an assistant: what it thought before it answered; None: it may be in the content
    tool_calls  of an assistant
    """

    role: str
    content: bytes | tuple[Text, ...]
    reasoning: bytes | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """How a conversation is framed.

    enable_thinking    whether the reply begins with a thought; None: the family's own default
    preserve_thinking  every turn keeps its reasoning, so that the next prompt extends the last one
    """

    enable_thinking: bool | None = None
    preserve_thinking: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template renders. tools: each one JSON text, spelled as `json.dumps(ensure_ascii=False)`."""

    messages: tuple[Message, ...]
    tools: tuple[bytes, ...] = ()
    options: Options = Options()


INIT = "INIT"
END = "END"


class Event:
    """The names of the events, in the order in which they can come."""

    SYSTEM = "system"  # a system message, or the model's default system prompt: content
    TOOLS = "tools"  # the list of tools begins
    SCHEMA = "schema"  # one tool of it: schema
    USER = "user"  # a user's message: content
    ASSISTANT = "assistant"  # an assistant's message begins
    THOUGHT = "thought"  # its reasoning: reasoning
    ANSWER = "answer"  # its content, when there is some: content
    CALL = "call"  # one of its calls: name, arguments
    TOOL = "tool"  # a tool's result: content
    CLOSE = "close"  # the turn is over
    REPLY = "<reply>"  # the model is to answer
    REPLY_AT_ONCE = "<reply at once>"  # the model is to answer, and `enable_thinking` is false
    STOP = "<stop>"  # the conversation is over


ENDS = (Event.REPLY, Event.REPLY_AT_ONCE, Event.STOP)


class Slot(Enum):
    """What an event carries. The value is its name in the documentation."""

    CONTENT = "content"
    CONTENT_UNLED = "content less leading line feeds"
    REASONING = "reasoning less line feeds at both ends"
    NAME = "name"
    ARGUMENTS = "arguments"
    SCHEMA = "schema"


@dataclass(frozen=True, slots=True)
class Marker:
    """A structural token, by its text."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Words:
    """Text of the template's own."""

    text: bytes


Item = Marker | Words | Slot


@dataclass(frozen=True, slots=True)
class Step:
    """What a transition writes, and the state after it."""

    writes: tuple[Item, ...]
    then: str


class Fact(Enum):
    """What can be true of an assistant's message. The value is how the documentation says it."""

    AFTER_QUERY = "it comes after the last query"
    LAST = "it is the last message"
    REASONED = "it has reasoning"
    PRESERVED = "`preserve_thinking` is on"


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a family treats reasoning.

    opens, closes  what stands around a thought in an assistant's content. Without a `reasoning` of its own, a
                   message whose content has `closes` is read as: reasoning, all before the first `closes` and
                   after the last `opens` in that, less line feeds at both ends; content, all after the last
                   `closes`, less leading line feeds
    no_query       a user's message that begins and ends so is a tool's result, not a query; every other one
                   is a query
    kept           a message has a `thought` when all the facts of one of these hold
    """

    opens: bytes
    closes: bytes
    no_query: tuple[bytes, bytes]
    kept: tuple[frozenset[Fact], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """Templates of one shape. The machine starts in INIT and is done in END.

    roles     the roles that a message may have
    steps     the transition table
    thinking  None: the family has no place for reasoning
    joined    neighbouring messages of these roles make one turn
    """

    name: str
    roles: tuple[str, ...]
    steps: Mapping[tuple[str, str], Step]
    thinking: Thinking | None = None
    joined: frozenset[str] = field(default=frozenset())

    def events(self, state: str) -> tuple[str, ...]:
        """What may follow in `state`."""
        return tuple(event for at, event in self.steps if at == state)

    def has(self, event: str) -> bool:
        """Whether the event is in the table at all."""
        return any(found == event for _, found in self.steps)


def rows(
    states: tuple[str, ...], event: str, writes: tuple[Item, ...], then: str
) -> dict[tuple[str, str], Step]:
    """The same step from several states."""
    return {(state, event): Step(writes, then) for state in states}
