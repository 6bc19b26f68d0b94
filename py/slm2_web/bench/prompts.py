"""Prompts of an exact number of tokens, the same for everybody who is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from slm2_web.manifest import Manifest
from slm2_web.template2.machine import template_for
from slm2_web.template2.spec import Conversation, Message
from slm2_web.tokenizer2.runs import Control
from slm2_web.tokenizer2.tokenizer import Tokenizer

# What is asked, and what is told after it until the prompt is long enough. A long answer is wanted.
_QUESTION: Final = "Write a long story about the sea"
_FILLING: Final = (
    ". On day {0} the keeper of the lighthouse counted {1} boats, the wind came from the {2}, "
    "and he wrote in his book that the {3} had been seen again near the rocks"
)
_WINDS: Final = ("north", "east", "south", "west")
_SIGHTS: Final = ("old ship", "grey seal", "red lamp", "two brothers", "white bird")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation: as messages for us, as text with its markers for wllama, as ids for transformers.js."""

    name: str
    messages: tuple[dict[str, str], ...]
    text: str
    ids: tuple[int, ...]

    def facts(self) -> dict[str, Any]:
        """What a report says of it."""
        content = self.messages[-1]["content"]
        return {"tokens": len(self.ids), "user": content if len(content) < 60 else f"{content[:57]}..."}


def prompts_of(manifest: Manifest, tokenizer: Tokenizer, lengths: Sequence[int]) -> list[Prompt]:
    """A prompt of each length in tokens; where the template's own tokens leave no such one, of the next
    greater length."""
    return [_prompt(manifest, tokenizer, n) for n in lengths]


def _prompt(manifest: Manifest, tokenizer: Tokenizer, n_tokens: int) -> Prompt:
    filling = "".join(
        _FILLING.format(day, 3 + day * 7 % 17, _WINDS[day * 3 % 4], _SIGHTS[day * 2 % 5])
        for day in range(1, 2 + n_tokens // 20)
    )
    whole = _QUESTION + filling
    # The number of tokens all but grows with the text: halve to the place, then look around it.
    low, high = 1, len(whole)
    while low < high:
        middle = (low + high) // 2
        if len(_rendered(manifest, tokenizer, whole[:middle])[1]) < n_tokens:
            low = middle + 1
        else:
            high = middle
    # A little beyond, a longer word may need fewer tokens than its beginning.
    exact = [
        end
        for end in range(low, min(low + 24, len(whole) + 1))
        if len(_rendered(manifest, tokenizer, whole[:end])[1]) == n_tokens
    ]
    content = whole[: exact[-1] if exact else low]
    text, ids = _rendered(manifest, tokenizer, content)
    return Prompt(f"{len(ids)} tokens", ({"role": "user", "content": content},), text, tuple(ids))


def _rendered(manifest: Manifest, tokenizer: Tokenizer, content: str) -> tuple[str, list[int]]:
    """(the prompt's text with its markers, its ids) of one user message."""
    runs = template_for(manifest.template, tokenizer).render(
        Conversation((Message("user", content.encode()),))
    )
    data = b"".join(tokenizer.token_bytes(run.id) if isinstance(run, Control) else run.data for run in runs)
    return data.decode(), tokenizer.encode(runs)
