"""A conversation -> its events, as a family's declarations read it: the first of the two passes.

    [system] [tools schema…] close              what stands before the first turn, if there is any of it
    user close | tool … close | system close    a turn each; results of tools that follow each other share one
    assistant [thought] [answer] [call…] close
    <reply> | <reply at once> | <stop>          the end

The system prompt is message 0 when its role is system, else the model's default when it has one. The
default is ours, so its text is trusted; everything else that an event carries is untrusted. Nothing is
trimmed but line feeds around reasoning, where the family declares so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slm2_web.template2.spec import Conversation, Event, Fact, Family, Message, Slot, Text, Thinking
from slm2_web.tokenizer2.runs import Trusted, Untrusted

Fields = Mapping[Slot, tuple[Text, ...]]


class Part(NamedTuple):
    """One event, the index of its message, and what it carries."""

    event: str
    message: int
    fields: Fields


def events_of(
    conversation: Conversation, family: Family, default_system: bytes | None, *, add_generation_prompt: bool
) -> Iterator[Part]:
    """The events of a checked conversation. Events of the end have the number of messages as their index."""
    messages, options = conversation.messages, conversation.options
    head = list(_head(conversation, default_system))
    yield from head
    last_query = _last_query(messages, family.thinking)
    turn_role = "system" if head else ""
    start = 1 if messages[0].role == "system" else 0
    for index, message in enumerate(messages[start:], start):
        if turn_role and not (turn_role == message.role and turn_role in family.joined):
            yield Part(Event.CLOSE, index, {})
        turn_role = message.role
        if message.role != Event.ASSISTANT:
            yield Part(message.role, index, {Slot.CONTENT: _text(message.content)})
            continue
        facts = {Fact.AFTER_QUERY} if index > last_query else set()
        if index == len(messages) - 1:
            facts.add(Fact.LAST)
        if options.preserve_thinking:
            facts.add(Fact.PRESERVED)
        yield from _assistant(message, index, facts, family.thinking)
    yield Part(Event.CLOSE, len(messages), {})
    end = Event.REPLY if add_generation_prompt else Event.STOP
    if end == Event.REPLY and family.thinking and options.enable_thinking is False:
        end = Event.REPLY_AT_ONCE
    yield Part(end, len(messages), {})


def _head(conversation: Conversation, default_system: bytes | None) -> Iterator[Part]:
    """System prompt and tools."""
    first = conversation.messages[0]
    if first.role == Event.SYSTEM:
        yield Part(Event.SYSTEM, 0, {Slot.CONTENT: _text(first.content)})
    elif default_system is not None:
        yield Part(Event.SYSTEM, 0, {Slot.CONTENT: (Trusted(default_system),)})
    if conversation.tools:
        yield Part(Event.TOOLS, 0, {})
    for tool in conversation.tools:
        yield Part(Event.SCHEMA, 0, {Slot.SCHEMA: _text(tool)})


def _assistant(message: Message, index: int, facts: set[Fact], thinking: Thinking | None) -> Iterator[Part]:
    """The parts of an assistant's message."""
    assert isinstance(message.content, bytes)
    reasoning, content = message.reasoning or b"", message.content
    if thinking and message.reasoning is None:
        reasoning, content = _split(content, thinking)
    if reasoning:
        facts.add(Fact.REASONED)
    yield Part(Event.ASSISTANT, index, {})
    if thinking and any(kept <= facts for kept in thinking.kept):
        yield Part(Event.THOUGHT, index, {Slot.REASONING: _text(reasoning.strip(b"\n"))})
    if content:
        fields = {Slot.CONTENT: _text(content), Slot.CONTENT_UNLED: _text(content.lstrip(b"\n"))}
        yield Part(Event.ANSWER, index, fields)
    for call in message.tool_calls:
        yield Part(Event.CALL, index, {Slot.NAME: _text(call.name), Slot.ARGUMENTS: _text(call.arguments)})


def _split(content: bytes, thinking: Thinking) -> tuple[bytes, bytes]:
    """Reasoning and content of a content that holds both; `Thinking` says how it is read."""
    thoughts = content.split(thinking.closes)
    if len(thoughts) == 1:
        return b"", content
    return thoughts[0].split(thinking.opens)[-1].strip(b"\n"), thoughts[-1].lstrip(b"\n")


def _last_query(messages: tuple[Message, ...], thinking: Thinking | None) -> int:
    """The index of the last query; of the last message when there is none."""
    last = len(messages) - 1
    if thinking is None:
        return last
    begin, end = thinking.no_query
    for index in range(last, -1, -1):
        message = messages[index]
        if message.role == Event.USER:
            text = b"".join(run.data for run in _text(message.content))
            if not (text.startswith(begin) and text.endswith(end)):
                return index
    return last


def _text(content: bytes | tuple[Text, ...]) -> tuple[Text, ...]:
    """Untrusted text as runs; nothing for none."""
    if isinstance(content, tuple):
        return tuple(run for run in content if run.data)
    return (Untrusted(content),) if content else ()
