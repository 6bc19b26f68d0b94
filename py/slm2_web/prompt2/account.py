"""A plan -> the ledger: what every part takes, and what became of it.

A part's tokens are those that it adds, with the markers or the turns around it, to the shortest prompt: the
policy and an empty question. (The policy's are those that it adds to an empty policy.) `frame` is that
shortest prompt without the policy's words, and the lines `<user_message>` that keep words apart from what
stands before them.

Parts of one stretch are encoded as one string, so a prompt need not have as many tokens as its parts:
`seams` is the difference, and makes the sums exact. It is 0 between turns that are framed in control ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from slm2_web.errors import InputError
from slm2_web.prompt2.composition import Composition, Plan
from slm2_web.prompt2.ledger import Kind, Ledger, Part
from slm2_web.prompt2.markers import HISTORY_TRUNCATED, USER_MESSAGE, begins_like_a_marker, user_content
from slm2_web.prompt2.request import question_of
from slm2_web.template2.spec import Conversation, Message

_EMPTY_QUESTION = Message("user", b"")


class Account:
    """Counts the parts of one request. `count`: how many tokens the template makes of a conversation."""

    def __init__(self, composition: Composition, count: Callable[[Conversation], int]) -> None:
        self._composition = composition
        self._count = count
        # A template may refuse what is empty; it is counted with a letter in it then.
        self._question = self._first_taken([_EMPTY_QUESTION, Message("user", b"x")], composition.after_policy)
        self._shortest_tokens = count(composition.after_policy([self._question]))

    def ledger(self, plan: Plan, *, keep_exchanges: int, keep_evidence: int) -> Ledger:
        """The ledger of `plan`. The floors of passes 1 and 2 tell which pass has dropped a part."""
        composition = self._composition
        n_exchanges, everything = len(composition.exchanges), composition.everything
        policy, turn, state, tools, frame = self.fixed_parts()
        parts = [policy, turn, state]
        for rank, (evidence, block) in enumerate(
            zip(composition.evidence, composition.evidence_blocks, strict=True)
        ):
            offered = self._added(Message("user", block))
            part = Part("evidence", evidence.id, "kept", None, offered, offered)
            if rank >= plan.n_evidence:
                part = replace(part, state="dropped", in_pass=2 if rank >= keep_evidence else 4, tokens=0)
            elif plan.missing:
                cut = self._added(Message("user", composition.blocks(plan)[0]))
                part = replace(part, state="cut", in_pass=4, tokens=cut)
            parts.append(part)
        index = self._first_index
        for number, exchange in enumerate(composition.exchanges):
            label = f"{index}-{index + len(exchange) - 1}"
            index += len(exchange)
            offered = self._added(*_worded(exchange), self._question)
            part = Part("history", label, "kept", None, offered, offered)
            if number < plan.first_exchange:
                in_pass = 1 if number < n_exchanges - keep_exchanges else 3
                part = replace(part, state="dropped", in_pass=in_pass, tokens=0)
            parts.append(part)
        parts.append(tools)
        if plan.marker:
            marker = self._added(Message("user", HISTORY_TRUNCATED))
            parts.append(Part("history_truncated", "", "kept", 3, marker, 0))
        line = self._added(Message("user", USER_MESSAGE))
        parts.append(
            replace(
                frame,
                tokens=frame.tokens + self._n_lines(plan) * line,
                offered_tokens=frame.tokens + self._n_lines(everything) * line,
            )
        )
        prompt_tokens = self._count(composition.conversation(plan))
        seams = prompt_tokens - sum(part.tokens for part in parts)
        offered = self._count(composition.conversation(everything))
        offered_seams = offered - sum(part.offered_tokens for part in parts)
        parts.append(Part("seams", "", "kept", None, seams, offered_seams))
        return Ledger(tuple(parts), prompt_tokens, composition.request.budget_tokens)

    def fixed_parts(self) -> tuple[Part, Part, Part, Part, Part]:
        """Policy, turn, local state, tools and frame: what no pass shortens."""
        composition = self._composition
        request = composition.request
        frame = self._shortest_tokens
        if request.policy is not None:

            def without_policy(messages: Sequence[Message]) -> Conversation:
                return Conversation((*messages, self._question), (), request.options)

            policy = self._first_taken([Message("system", b""), Message("system", b"x")], without_policy)
            frame = self._count(without_policy([policy]))
        state = self._added(Message("user", composition.state_block)) if composition.state_block else 0
        tools = 0
        if request.tools:
            with_tools = self._count(composition.after_policy([self._question], request.tools))
            tools = with_tools - self._shortest_tokens
        first = self._first_index + len(request.history)
        label = f"{first}-{first + len(request.turn) - 1}"
        return (
            _fixed("policy", self._shortest_tokens - frame),
            _fixed("turn", self._added(*_worded(request.turn)), label),
            _fixed("local_state", state),
            _fixed("tools", tools),
            _fixed("frame", frame),
        )

    def _first_taken(
        self, messages: Sequence[Message], conversation: Callable[[Sequence[Message]], Conversation]
    ) -> Message:
        """The first of `messages` whose conversation the template does not refuse; else the last."""
        for message in messages[:-1]:
            try:
                self._count(conversation([message]))
            except InputError as error:
                if error.code != "template.refused":
                    raise
            else:
                return message
        return messages[-1]

    @property
    def _first_index(self) -> int:
        """The index of the first message after the policy's."""
        return 0 if self._composition.request.policy is None else 1

    def _added(self, *messages: Message) -> int:
        """What `messages` add to the shortest prompt, whose question they bring themselves."""
        return self._count(self._composition.after_policy(messages)) - self._shortest_tokens

    def _n_lines(self, plan: Plan) -> int:
        """How many lines `<user_message>` are there for the sake of what stands before words."""
        composition = self._composition
        kept = composition.exchanges[plan.first_exchange :]
        questions = []
        if plan.n_evidence or composition.state_block or (plan.marker and not kept):
            questions.append(question_of(composition.request.turn))
        if plan.marker and kept:
            questions.append(question_of(kept[0]))
        words = (question.content for question in questions if question is not None)
        return sum(isinstance(content, bytes) and not begins_like_a_marker(content) for content in words)


def _fixed(kind: Kind, tokens: int, label: str = "") -> Part:
    return Part(kind, label, "kept", None, tokens, tokens)


def _worded(messages: tuple[Message, ...]) -> list[Message]:
    """`messages` as they stand in a prompt where nothing stands before them."""
    return [
        replace(message, content=user_content((), message.content))
        if message.role == "user" and isinstance(message.content, bytes)
        else message
        for message in messages
    ]
