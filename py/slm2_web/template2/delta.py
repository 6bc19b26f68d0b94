"""What a new turn adds to the recorded past, and how much of the KV cache survives.

Theory of operation
-------------------
The past is the recorded conversation, its last reply included, as it was rendered then; and what the cache
holds: the ids of the last prompt and of the reply as the model wrote it. The new conversation is rendered
as a whole, since a new message may change what stands before it: a template that leaves out old reasoning
does. Two things are then compared, and neither is guessed:

- the runs. Where the past's stretches are the first of the new ones, the rest is the delta.
- the ids. The cache is good up to the first id that differs: a text that the model wrote in other tokens
  than the tokenizer's ends it, and so does a thought that is left out.

At least one id is left to be computed, since the pass that computes it gives the next logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from slm2_web.template2.stretches import StretchEncoder, stretches
from slm2_web.tokenizer2.runs import Control, Run


@dataclass(frozen=True, slots=True)
class Past:
    """runs: the recorded conversation, without the opening of a reply. ids: what the KV cache holds."""

    runs: tuple[Run, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """A new prompt, seen from the past.

    ids          the whole prompt
    kept_tokens  how many ids of the cache survive; `ids[kept_tokens:]` are to be computed
    runs         what the new conversation adds; None where the past is not its beginning
    """

    ids: tuple[int, ...]
    kept_tokens: int
    runs: tuple[Run, ...] | None


def delta_of(past: Past, runs: Sequence[Run], encoder: StretchEncoder) -> Delta:
    """The delta from `past` to the prompt `runs`.

    Raises: what `encoder.encode` raises.
    """
    ids = tuple(encoder.encode(runs))
    return Delta(ids, min(common_prefix(past.ids, ids), len(ids) - 1), _added(past.runs, runs))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _added(past: Sequence[Run], runs: Sequence[Run]) -> tuple[Run, ...] | None:
    before, after = list(stretches(past)), list(stretches(runs))
    if after[: len(before)] != before:
        return None
    added: list[Run] = []
    for part in after[len(before) :]:
        added += [part] if isinstance(part, Control) else part
    return tuple(added)
