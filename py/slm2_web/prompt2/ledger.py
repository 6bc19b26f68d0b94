"""The account of a prompt: what each part takes, and what was left out of it, in which pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "policy", "turn", "local_state", "evidence", "history", "tools", "history_truncated", "frame", "seams"
]
State = Literal["kept", "cut", "dropped"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a request.

    label           which one: an evidence's id; of the turn and of an exchange its messages, as "3-4": the
                    first and the last index in the conversation, the policy's message counted; else empty
    state, in_pass  what became of it, and in which pass; None when nothing did
    tokens          what it takes in the prompt
    offered_tokens  what it would have taken in a prompt that left nothing out
    """

    kind: Kind
    label: str
    state: State
    in_pass: int | None
    tokens: int
    offered_tokens: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """All parts, by authority. The sum of their `tokens` is `prompt_tokens`, that of their `offered_tokens`
    what a prompt of everything takes."""

    parts: tuple[Part, ...]
    prompt_tokens: int
    budget_tokens: int

    @property
    def left_tokens(self) -> int:
        """What is left of the budget."""
        return self.budget_tokens - self.prompt_tokens

    @property
    def offered_tokens(self) -> int:
        """What a prompt of everything takes."""
        return sum(part.offered_tokens for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the fields in this order."""
        return {
            "budget_tokens": self.budget_tokens,
            "prompt_tokens": self.prompt_tokens,
            "left_tokens": self.left_tokens,
            "offered_tokens": self.offered_tokens,
            "parts": [
                {
                    "kind": part.kind,
                    "label": part.label,
                    "state": part.state,
                    "in_pass": part.in_pass,
                    "tokens": part.tokens,
                    "offered_tokens": part.offered_tokens,
                }
                for part in self.parts
            ],
        }
