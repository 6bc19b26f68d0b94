"""What is asked of a model, from whomever it comes: a page, the command line, a transcript.

    plain data --parse_request--> Request --prompt_of--> ids and ledger

The plain data is what OpenAI's clients send, with Prompt2's parts beside it. Its texts are UTF-8 bytes or
strings; nothing else differs between a page's message, a line of JSON and a file: all three are read here.

    {"messages": [{"role", "content", "reasoning_content"?, "tool_calls"?: [{"name", "arguments"}]}],
     "tools"?, "enable_thinking"?, "preserve_thinking"?, "local_state"?,
     "evidence"?: [{"id", "relevance", "content"}], "budget_tokens"?,
     "continue_ids"?: what was generated before, of a reply that was cut short}

A key that is absent and a key that is null say the same: nothing. `as_json` gives the data again with every
default filled in; reading that gives the same request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slm2_web.errors import InputError
from slm2_web.prompt2.assemble import Prompt, assemble
from slm2_web.prompt2.request import CONTEXT_TOKENS, Evidence, PromptRequest, prompt_budget, request_of
from slm2_web.sampling2.params import SamplingParams
from slm2_web.strictjson import Checks, real, show
from slm2_web.template2.conversation import parse_conversation
from slm2_web.template2.machine import HasRender
from slm2_web.template2.spec import Conversation, Message
from slm2_web.tokenizer2.tokenizer import Tokenizer

CONVERSATION_KEYS: Final = ("messages", "tools", "enable_thinking", "preserve_thinking")
KEYS: Final = (*CONVERSATION_KEYS, "local_state", "evidence", "budget_tokens", "continue_ids")
MAX_BUDGET_TOKENS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked: a conversation, or the ids of a prompt; exactly one of the two is given.

    `budget_tokens`, `local_state` and `evidence` are a conversation's; with ids the budget is `max_seq_len`.
    """

    conversation: Conversation | None
    prompt_ids: tuple[int, ...] | None
    params: SamplingParams
    max_seq_len: int
    budget_tokens: int
    local_state: bytes | None = None
    evidence: tuple[Evidence, ...] = ()
    continue_ids: tuple[int, ...] = ()

    @classmethod
    def of_ids(
        cls,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        max_seq_len: int,
        continue_ids: Sequence[int] = (),
    ) -> Request:
        """The request of a prompt that somebody else has made."""
        ids = tuple(prompt_ids), tuple(continue_ids)
        return cls(None, ids[0], params, max_seq_len, max_seq_len, continue_ids=ids[1])

    def as_json(self) -> dict[str, Any]:
        """As in a transcript: what `parse_request` takes, with `params` and `max_seq_len`."""
        rest = {
            "continue_ids": list(self.continue_ids),
            "params": self.params.as_json(),
            "max_seq_len": self.max_seq_len,
        }
        if self.conversation is None:
            assert self.prompt_ids is not None
            return {"prompt_ids": list(self.prompt_ids), **rest}
        options = self.conversation.options
        return {
            "messages": [_message_json(message) for message in self.conversation.messages],
            "tools": [tool.decode("utf-8") for tool in self.conversation.tools],
            "enable_thinking": options.enable_thinking,
            "preserve_thinking": options.preserve_thinking,
            "local_state": None if self.local_state is None else self.local_state.decode("utf-8"),
            "evidence": [
                {"id": each.id, "relevance": each.relevance, "content": each.content.decode("utf-8")}
                for each in self.evidence
            ],
            "budget_tokens": self.budget_tokens,
            **rest,
        }


def parse_request(raw: Mapping[str, Any], params: SamplingParams, max_seq_len: int) -> Request:
    """The request that `raw`, with none but KEYS, says.

    Raises: InputError `input.json`, `input.text`, `input.params` for the budget; `template.*` for a message.
    """
    _JSON.object_with(raw, "request", ("messages",), KEYS[1:])
    given = {key: value for key, value in raw.items() if value is not None}
    conversation = parse_conversation({key: given[key] for key in CONVERSATION_KEYS if key in given})
    local_state = given.get("local_state")
    evidence = _JSON.array(given.get("evidence", []), "evidence")
    budget_tokens = given.get("budget_tokens", default_budget(max_seq_len, params.max_tokens))
    request = Request(
        conversation=conversation,
        prompt_ids=None,
        params=params,
        max_seq_len=max_seq_len,
        budget_tokens=check_budget(budget_tokens, max_seq_len),
        local_state=None if local_state is None else _utf8(local_state, "local_state"),
        evidence=tuple(_evidence(each, f"evidence[{i}]") for i, each in enumerate(evidence)),
        continue_ids=_ids(given.get("continue_ids", []), max_seq_len),
    )
    _prompt_request(request)
    return request


def prompt_of(request: Request, template: HasRender, tokenizer: Tokenizer) -> Prompt:
    """The prompt of a request with a conversation, within its budget.

    Raises: InputError `input.budget` with the numbers; `template.*` and `input.*` of the stages.
    """
    return assemble(template, tokenizer, _prompt_request(request))


def default_budget(max_seq_len: int, max_tokens: int) -> int:
    """The context less room for the reply: for all of `max_tokens`, but no more than a quarter of it."""
    context = min(CONTEXT_TOKENS, max_seq_len)
    return prompt_budget(max_seq_len, max(1, min(max_tokens, context // 4)))


def check_budget(value: object, max_seq_len: int) -> int:
    """A budget that leaves room for a token of the reply. Raises: InputError `input.params`."""
    limit = min(MAX_BUDGET_TOKENS, max_seq_len - 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise _bad_params("budget_tokens", show(value), f"an integer from 1 to {limit}")
    return value


def _prompt_request(request: Request) -> PromptRequest:
    assert request.conversation is not None
    return request_of(
        request.conversation,
        budget_tokens=request.budget_tokens,
        local_state=request.local_state,
        evidence=request.evidence,
    )


def _ids(value: object, max_seq_len: int) -> tuple[int, ...]:
    ids = _JSON.array(value, "continue_ids")
    if len(ids) > max_seq_len:
        raise _bad_json("continue_ids", f"{len(ids)} ids", f"at most {max_seq_len}")
    for index, token_id in enumerate(ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise _bad_json(f"continue_ids[{index}]", show(token_id), "an id")
    return tuple(ids)


def _evidence(raw: object, place: str) -> Evidence:
    value = _JSON.object_with(raw, place, ("id", "relevance", "content"))
    relevance = real(value["relevance"], -1e308, 1e308)
    if relevance is None:
        raise _bad_json(f"{place}.relevance", show(value["relevance"]), "a finite number")
    return Evidence(
        id=_id(value["id"], f"{place}.id"),
        relevance=relevance,
        content=_utf8(value["content"], f"{place}.content"),
    )


def _id(value: object, place: str) -> str:
    try:
        return _utf8(value, place).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_text(place, f"no UTF-8 at byte {error.start}", "well-formed UTF-8") from None


def _message_json(message: Message) -> dict[str, Any]:
    assert isinstance(message.content, bytes)
    result: dict[str, Any] = {"role": message.role, "content": message.content.decode("utf-8")}
    if message.reasoning is not None:
        result["reasoning_content"] = message.reasoning.decode("utf-8")
    if message.tool_calls:
        result["tool_calls"] = [
            {"name": call.name.decode("utf-8"), "arguments": call.arguments.decode("utf-8")}
            for call in message.tool_calls
        ]
    return result


def _utf8(value: object, place: str) -> bytes:
    """The bytes of a text."""
    if isinstance(value, bytes):
        return value
    return _TEXT.text(_JSON.string(value, place), place).encode("utf-8")


def _bad_json(place: str, found: str, allowed: str) -> InputError:
    return _bad("input.json", place, found, allowed)


def _bad_text(place: str, found: str, allowed: str) -> InputError:
    return _bad("input.text", place, found, allowed)


def _bad_params(place: str, found: str, allowed: str) -> InputError:
    return _bad("input.params", place, found, allowed)


def _bad(code: str, place: str, found: str, allowed: str) -> InputError:
    detail = {"place": place, "found": found, "allowed": allowed}
    return InputError(code, f"{place}: found {found}; allowed: {allowed}", detail)


_JSON: Final = Checks(_bad_json)
_TEXT: Final = Checks(_bad_text)
