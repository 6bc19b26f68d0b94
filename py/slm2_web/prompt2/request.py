"""What is asked to go into the context, by whose authority, within which budget.

Authority, highest first: policy, current turn, local state, evidence, history, tools. A conversation is split
at its questions. A question is a run of user messages (a system message among them belongs to it); it begins
an exchange, to which all belongs that follows it: answer, tool calls, tool results, the answer to those. The
last exchange is the current turn, those before it are the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slm2_web.errors import InputError
from slm2_web.strictjson import Checks, real, show
from slm2_web.template2.spec import Conversation, Message, Options

CONTEXT_TOKENS = 32_768  # of prompt and reply, where nothing else is asked for
MAX_EVIDENCE = 1_000
MAX_ID_CHARACTERS = 200
MAX_RELEVANCE = 1e308


@dataclass(frozen=True, slots=True)
class Evidence:
    """One retrieved text. `relevance`: the higher the longer it is kept; of equals the earlier."""

    id: str
    relevance: float
    content: bytes


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """The parts of a prompt. All text is UTF-8.

    policy         the system message's content; None: the template's own default, if it has one
    history        whole exchanges, oldest first
    turn           the current question and its tool loop so far
    local_state    what the application knows now
    budget_tokens  the most that the prompt may have
    """

    policy: bytes | None
    history: tuple[Message, ...]
    turn: tuple[Message, ...]
    budget_tokens: int
    local_state: bytes | None = None
    evidence: tuple[Evidence, ...] = ()
    tools: tuple[bytes, ...] = ()
    options: Options = field(default_factory=Options)


def prompt_budget(max_seq_len: int, reserve_tokens: int, context_tokens: int = CONTEXT_TOKENS) -> int:
    """The most tokens of a prompt that leaves `reserve_tokens` for the reply: of `context_tokens`, and of
    what the executor holds (`max_seq_len`), whichever is less. It may come out below 1: nothing fits then."""
    assert reserve_tokens >= 0
    return min(context_tokens, max_seq_len) - reserve_tokens


def request_of(
    conversation: Conversation,
    *,
    budget_tokens: int,
    local_state: bytes | None = None,
    evidence: Sequence[Evidence] = (),
) -> PromptRequest:
    """The request for a reply to `conversation`: its first message is the policy if it is the system's.

    Raises: InputError `input.json`, `input.text` for evidence and local state that cannot be used, with the
    place.
    """
    messages = conversation.messages
    policy = None
    if messages and messages[0].role == "system" and isinstance(messages[0].content, bytes):
        policy, messages = messages[0].content, messages[1:]
    starts = exchange_starts(messages)
    turn = starts[-1] if starts else 0
    request = PromptRequest(
        policy=policy,
        history=messages[:turn],
        turn=messages[turn:],
        budget_tokens=budget_tokens,
        local_state=local_state,
        evidence=tuple(evidence),
        tools=conversation.tools,
        options=conversation.options,
    )
    check_request(request)
    return request


def exchange_starts(messages: Sequence[Message]) -> list[int]:
    """Where the exchanges of `messages` begin; the first one at 0, question or not."""
    starts: list[int] = [0] if messages else []
    for index in range(1, len(messages)):
        if _asks(messages[index]) and not _asks(messages[index - 1]):
            starts.append(index)
    return starts


def check_request(request: PromptRequest) -> None:
    """Raises: InputError `input.json`, `input.text`, as `request_of`."""
    if request.local_state is not None:
        _check_utf8(request.local_state, "local_state")
    if len(request.evidence) > MAX_EVIDENCE:
        raise _bad("evidence", f"{len(request.evidence)} items", f"at most {MAX_EVIDENCE}")
    seen: set[str] = set()
    for index, evidence in enumerate(request.evidence):
        place = f"evidence[{index}]"
        evidence_id = _JSON.text(evidence.id, f"{place}.id", 1, MAX_ID_CHARACTERS)
        if evidence_id in seen:
            raise _bad(f"{place}.id", f"{show(evidence_id)} again", "an id of its own")
        seen.add(evidence_id)
        if real(evidence.relevance, -MAX_RELEVANCE, MAX_RELEVANCE) is None:
            allowed = f"a number from -{MAX_RELEVANCE:g} to {MAX_RELEVANCE:g}"
            raise _bad(f"{place}.relevance", show(evidence.relevance), allowed)
        _check_utf8(evidence.content, f"{place}.content")
    if (request.evidence or request.local_state is not None) and question_of(request.turn) is None:
        raise _bad("turn", "no user message", "one, for local state and evidence to stand before its words")


def question_of(messages: Sequence[Message]) -> Message | None:
    """The first user message, before whose words something can stand."""
    return next((message for message in messages if message.role == "user"), None)


def _asks(message: Message) -> bool:
    """Whether it is of a question. A user message that holds tool responses goes on with a tool loop."""
    if message.role == "user" and isinstance(message.content, bytes):
        content = message.content
        return not (content.startswith(b"<tool_response>") and content.endswith(b"</tool_response>"))
    return message.role in ("user", "system")


def _check_utf8(content: bytes, place: str) -> None:
    if not isinstance(content, bytes):
        raise _bad(place, type(content).__name__, "UTF-8 bytes")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            "input.text",
            f"{place}: not UTF-8 at byte {error.start}; allowed: well-formed UTF-8",
            {"place": place, "offset_bytes": error.start},
        ) from None


def _bad(place: str, found: str, allowed: str) -> InputError:
    return InputError(
        "input.json",
        f"{place}: found {found}; allowed: {allowed}",
        {"place": place, "found": found, "allowed": allowed},
    )


_JSON = Checks(_bad)
