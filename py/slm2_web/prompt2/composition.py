"""A request and a plan -> the conversation that the template renders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from slm2_web.prompt2.markers import HISTORY_TRUNCATED, evidence_block, local_state_block, user_content
from slm2_web.prompt2.request import PromptRequest, exchange_starts
from slm2_web.template2.spec import Conversation, Message
from slm2_web.tokenizer2.runs import Trusted, Untrusted

Blocks = tuple[Trusted | Untrusted, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes in: the exchanges from `first_exchange` on, and the first `n_evidence` by rank.

    marker   whether `<history_truncated>` is shown
    missing  how many characters the evidence lacks at its end; above 0 only where there is one
    """

    first_exchange: int
    n_evidence: int
    marker: bool = False
    missing: int = 0


class Composition:
    """The parts of a request, ready to be put together.

    exchanges  the history, oldest first
    evidence   by rank: the most relevant first, of equals the earlier
    """

    def __init__(self, request: PromptRequest) -> None:
        self.request = request
        starts = exchange_starts(request.history)
        ends = [*starts[1:], len(request.history)]
        self.exchanges = [request.history[start:end] for start, end in zip(starts, ends, strict=False)]
        self.evidence = sorted(request.evidence, key=lambda item: -item.relevance)
        self.evidence_blocks = [evidence_block(item.id, item.content) for item in self.evidence]
        state = request.local_state
        self.state_block: Blocks = () if state is None else local_state_block(state)
        self.best_text = self.evidence[0].content.decode("utf-8") if self.evidence else ""

    @property
    def everything(self) -> Plan:
        """The plan that leaves nothing out."""
        return Plan(0, len(self.evidence))

    def conversation(self, plan: Plan) -> Conversation:
        """The conversation after `plan`. What stands before words is put before the first user message: the
        marker of the oldest exchange that is left, the rest of the turn."""
        before: Blocks = HISTORY_TRUNCATED if plan.marker else ()
        messages: list[Message] = []
        for exchange in self.exchanges[plan.first_exchange :]:
            worded, before = _with_blocks(exchange, before)
            messages += worded
        before = tuple(chain(before, self.state_block, *self.blocks(plan)))
        worded, _ = _with_blocks(self.request.turn, before)
        return self.after_policy([*messages, *worded], self.request.tools)

    def blocks(self, plan: Plan) -> list[Blocks]:
        """The evidence after `plan`, framed."""
        if plan.missing:
            kept = self.best_text[: -plan.missing].encode("utf-8")
            return [evidence_block(self.evidence[0].id, kept)]
        return self.evidence_blocks[: plan.n_evidence]

    def after_policy(self, messages: Iterable[Message], tools: tuple[bytes, ...] = ()) -> Conversation:
        """`messages`, after the policy's if there is one."""
        policy = self.request.policy
        system = () if policy is None else (Message("system", policy),)
        return Conversation((*system, *messages), tools, self.request.options)


def _with_blocks(messages: Sequence[Message], before: Blocks) -> tuple[list[Message], Blocks]:
    """`messages` with `before` in the first question; and what found no place."""
    worded = []
    for message in messages:
        if message.role == "user" and isinstance(message.content, bytes):
            message = replace(message, content=user_content(before, message.content))
            before = ()
        worded.append(message)
    return worded, before
