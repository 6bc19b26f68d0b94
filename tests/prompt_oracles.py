"""Oracles for Prompt2, written from docs/prompt.md: a reader of assembled text, and the passes done slowly.

The reader takes the text of a user's message apart again. The slow assembly tries plans one by one, each with
`Tokenizer.encode` of the whole, until one fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from slm2_web.prompt2.ledger import Ledger
from slm2_web.prompt2.request import Evidence, PromptRequest
from slm2_web.template2.machine import HasRender
from slm2_web.template2.spec import Conversation, Message, ToolCall
from slm2_web.tokenizer2.runs import Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer

Text = Trusted | Untrusted
NAMES = rb"(local_state|evidence|history_truncated|user_message)"


# --- reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """What a user's message holds."""

    truncated: bool
    local_state: bytes | None
    evidence: tuple[tuple[str, bytes], ...]
    words: bytes


def read_message(text: bytes) -> Read:
    """The parts of the text of a user's message."""
    truncated, state, evidence = False, None, []
    at = 0
    while True:
        rest = text[at:]
        if rest.startswith(b"<history_truncated>\n"):
            truncated, at = True, at + len(b"<history_truncated>\n")
        elif rest.startswith(b"<local_state>\n"):
            content, length = _content(rest, b"<local_state>\n", b"\n</local_state>\n")
            state, at = content, at + length
        elif rest.startswith(b'<evidence id="'):
            line = rest.split(b"\n", 1)[0] + b"\n"
            content, length = _content(rest, line, b"\n</evidence>\n")
            assert line.endswith(b">\n")
            evidence.append((json.loads(line[len(b"<evidence id=") : -2]), content))
            at += length
        elif rest.startswith(b"<user_message>\n"):
            return Read(truncated, state, tuple(evidence), rest[len(b"<user_message>\n") :])
        else:
            assert at == 0, rest
            return Read(False, None, (), text)


def _content(text: bytes, opening: bytes, closing: bytes) -> tuple[bytes, int]:
    """The content of the block that `text` begins with, unescaped; and the block's length."""
    end = text.index(closing, len(opening) - 1)
    content = text[len(opening) : max(end, len(opening))]
    return unescape(content), end + len(closing) + (end < len(opening))


def unescape(content: bytes) -> bytes:
    """One backslash less in each imitation of a marker."""
    return re.sub(rb"(?i)<\\(\\*[\s/]*" + NAMES + rb")", rb"<\1", content)


# --- assembling, slowly -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slow:
    """What goes in, as lists: exchanges, evidence (by rank), and whether the marker does."""

    exchanges: tuple[tuple[Message, ...], ...]
    evidence: tuple[Evidence, ...]
    marker: bool = False


def exchanges_of(history: Sequence[Message]) -> tuple[tuple[Message, ...], ...]:
    """A history of questions by one user message each, and what follows them."""
    exchanges: list[list[Message]] = []
    for message in history:
        if message.role == "user" or not exchanges:
            exchanges.append([])
        exchanges[-1].append(message)
    return tuple(map(tuple, exchanges))


def everything(request: PromptRequest) -> Slow:
    """All of it."""
    order = sorted(range(len(request.evidence)), key=lambda i: (-request.evidence[i].relevance, i))
    return Slow(exchanges_of(request.history), tuple(request.evidence[i] for i in order))


def steps(start: Slow) -> Iterator[tuple[int, Slow]]:
    """(pass, what is left after one step more), to the last; cuts of evidence are steps of pass 4."""
    at = start
    while len(at.exchanges) > 2:
        at = replace(at, exchanges=at.exchanges[1:])
        yield 1, at
    while len(at.evidence) > 1:
        at = replace(at, evidence=at.evidence[:-1])
        yield 2, at
    while at.exchanges:
        at = replace(at, exchanges=at.exchanges[1:], marker=True)
        yield 3, at
    for evidence in at.evidence:
        text = evidence.content.decode()
        while len(text) > 1:
            text = text[:-1]
            yield 4, replace(at, evidence=(replace(evidence, content=text.encode()),))
        yield 4, replace(at, evidence=())
    if at.marker:
        yield 4, replace(at, evidence=(), marker=False)


def slow_ids(template: HasRender, tokenizer: Tokenizer, request: PromptRequest, what: Slow) -> list[int]:
    """The ids of a prompt of `what`."""
    before: list[Text] = [Trusted(b"<history_truncated>\n")] if what.marker else []
    messages = [] if request.policy is None else [Message("system", request.policy)]
    for exchange in what.exchanges:
        messages += [_worded(exchange[0], before), *exchange[1:]]
        before = []
    if request.local_state is not None:
        content = _escaped(request.local_state)
        before += [Trusted(b"<local_state>\n"), Untrusted(content), Trusted(b"\n</local_state>\n")]
    for evidence in what.evidence:
        name = json.dumps(evidence.id, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
        before += [Trusted(b"<evidence id="), Untrusted(name.encode()), Trusted(b">\n")]
        before += [Untrusted(_escaped(evidence.content)), Trusted(b"\n</evidence>\n")]
    messages += [_worded(request.turn[0], before), *request.turn[1:]]
    return tokenizer.encode(template.render(Conversation(tuple(messages), request.tools, request.options)))


def _worded(question: Message, before: list[Text]) -> Message:
    assert isinstance(question.content, bytes)
    if before or re.match(rb"(?i)<\\*[\s/]*" + NAMES, question.content):
        return replace(question, content=(*before, Trusted(b"<user_message>\n"), Untrusted(question.content)))
    return question


def _escaped(content: bytes) -> bytes:
    return re.sub(rb"(?i)<(\\*[\s/]*" + NAMES + rb")", rb"<\\\1", content)


def of_ledger(request: PromptRequest, ledger: Ledger) -> Slow:
    """What a ledger says is in the prompt; of evidence that was cut, all."""
    full = everything(request)
    kept = {part.label for part in ledger.parts if part.kind == "evidence" and part.state != "dropped"}
    n_kept = sum(part.kind == "history" and part.state == "kept" for part in ledger.parts)
    return Slow(
        full.exchanges[len(full.exchanges) - n_kept :],
        tuple(evidence for evidence in full.evidence if evidence.id in kept),
        any(part.kind == "history_truncated" for part in ledger.parts),
    )


# --- requests ---------------------------------------------------------------------------------------------

_FRAGMENTS = [
    *("<evidence", "</evidence>", "\n</evidence>\n", '<evidence id="a">\n', "<\\evidence>", "</\\evidence"),
    *("<local_state>\n", "</local_state>\n", "<history_truncated>\n", "<user_message>\n", "< / EVIDENCE"),
    *(
        "<",
        ">",
        "\\",
        "/",
        '"',
        "id=",
        " ",
        "\n",
        "\n\n",
        "<|im_end|>",
        "<|im_start|>",
        "system\n",
        "\t",
        "\r\n",
    ),
    *(
        "</think>",
        "<tool_call>",
        "e\u0301",
        "\u0338",
        "\u212a",
        "\u65e5\u672c",
        "\U0001f600",
        "hello",
        " world",
        ".",
    ),
]
hostile = st.lists(st.sampled_from(_FRAGMENTS) | st.text(max_size=4), max_size=8).map("".join)
contents = hostile.map(lambda text: text.encode())


@st.composite
def requests(draw: st.DrawFn, *, tools: bool) -> PromptRequest:
    """Requests of up to 5 exchanges and 4 texts of evidence, for any budget. tools: with tool loops."""
    history: list[Message] = []
    for _ in range(draw(st.integers(0, 5))):
        history += [_question(draw), *_loop(draw, tools), Message("assistant", draw(contents))]
    ids = draw(st.lists(hostile.filter(lambda text: 0 < len(text) < 40), max_size=4, unique=True))
    relevance = st.sampled_from([0.0, 0.5, 0.5, 1.0])
    return PromptRequest(
        policy=draw(st.none() | contents),
        history=tuple(history),
        turn=(_question(draw), *_loop(draw, tools)),
        budget_tokens=1 << 20,
        local_state=draw(st.none() | contents),
        evidence=tuple(Evidence(name, draw(relevance), draw(contents)) for name in ids),
        tools=(b'{"type": "function"}',) * draw(st.integers(0, 1)) if tools else (),
    )


def _question(draw: st.DrawFn) -> Message:
    return Message("user", draw(contents.filter(lambda words: not words.startswith(b"<tool_response>"))))


def _loop(draw: st.DrawFn, tools: bool) -> list[Message]:
    loop: list[Message] = []
    for _ in range(draw(st.integers(0, 2)) if tools else 0):
        call = ToolCall(b"look", b'{"at": "x"}')
        loop += [Message("assistant", draw(contents), tool_calls=(call,)), Message("tool", draw(contents))]
    return loop
