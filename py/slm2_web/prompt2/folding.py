"""Runs -> ids, for many prompts that differ little: each text is encoded about once.

Theory of operation
-------------------
A conversation without some of its messages has the same stretches, less some: `StretchEncoder` remembers
those. The stretch that changes is the current question, as evidence before its words is dropped or cut. A
stretch of so many runs is folded, run by run, by the step of tokenizer2/incremental.py:

    (open text, run) -> (ids that are final now, open text)

That is a function of its two arguments alone, so it is remembered too. Before the content of a block the
open text is the end of its marker's line, whatever stands before that: the content is encoded once, wherever
it comes to stand. So are the words of the question, behind the line that sets them apart. A long run is
folded in parts, so that a content that loses its end is not encoded again from its beginning.
"""

from __future__ import annotations

from slm2_web.template2.spec import Text
from slm2_web.template2.stretches import Stretch, StretchEncoder
from slm2_web.tokenizer2.incremental import Encoded
from slm2_web.tokenizer2.tokenizer import Tokenizer

WHOLE_RUNS = 4  # a stretch of up to so many runs is encoded at once
PART_BYTES = 512

# What is remembered is of one prompt: never more than a few times its text, so there is no need to forget.
CACHE_BYTES = 1 << 40


class FoldingEncoder(StretchEncoder):
    """Encodes runs as `Tokenizer.encode` does. It lives as long as one prompt is made."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, cache_bytes=CACHE_BYTES)
        self._steps_of = tokenizer
        self._parts: dict[Text, tuple[Text, ...]] = {}
        self._steps: dict[tuple[Stretch, Text], tuple[list[int], Stretch]] = {}

    def ids_of(self, stretch: Stretch) -> tuple[int, ...]:
        """The ids of one stretch."""
        if len(stretch) <= WHOLE_RUNS:
            return super().ids_of(stretch)
        ids: list[int] = []
        still_open: Stretch = ()
        for run in stretch:
            for part in self._parts_of(run):
                final, still_open = self._step(still_open, part)
                ids += final
        return (*ids, *super().ids_of(still_open))

    def _parts_of(self, run: Text) -> tuple[Text, ...]:
        """`run` in parts of whole characters."""
        parts = self._parts.get(run)
        if parts is None:
            data, kind = run.data, type(run)
            starts = [0]
            while starts[-1] + PART_BYTES < len(data):
                start = starts[-1] + PART_BYTES
                # No character has more than three bytes after its first; other text the tokenizer refuses.
                back = (n for n in range(4) if data[start - n] & 0xC0 != 0x80)
                starts.append(start - next(back, 0))
            parts = tuple(
                kind(data[start:end]) for start, end in zip(starts, [*starts[1:], None], strict=True)
            )
            self._parts[run] = parts
        return parts

    def _step(self, still_open: Stretch, run: Text) -> tuple[list[int], Stretch]:
        step = self._steps.get((still_open, run))
        if step is None:
            encoded = Encoded(self._steps_of)
            for text in (*still_open, run):
                encoded.append(text)
            step = encoded.ids[: encoded.n_stable_ids], encoded.open_runs
            self._steps[still_open, run] = step
        return step
