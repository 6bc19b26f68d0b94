"""Runs -> stretches, the texts between control ids: the unit whose ids depend on nothing else.

Theory of operation
-------------------
Text between two control ids is one string for normalization, the split and the merges, and none of them
looks past a control id. So the ids of a stretch are a function of its runs alone, and

    encode(runs) == the stretches' ids and the control ids, in their order, one after the other

exactly: nothing has to be estimated at a seam. In a template with a control id around each message (ChatML)
the stretches of one message change with that message only. Whoever counts the same messages many times, in
many combinations (Prompt2), encodes each stretch once: `StretchEncoder` remembers them.

A control id that a template writes as trusted text instead (`Trusted(b"<|im_end|>")`) does not end a
stretch: the ids are right all the same, the stretches longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from slm2_web.errors import InputError
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted

Stretch = tuple[Trusted | Untrusted, ...]

# Bytes of text and ids that are remembered; cleared when full, which keeps it bounded and simple.
CACHE_BYTES = 1 << 23
_BYTES_PER_ID = 8


class HasEncode(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, runs: Iterable[Run]) -> list[int]:
        """The ids of `runs`."""


def stretches(runs: Iterable[Run]) -> Iterator[Control | Stretch]:
    """The control runs of `runs`, and the text runs between them together; no empty stretch."""
    stretch: list[Trusted | Untrusted] = []
    for run in runs:
        if isinstance(run, Control):
            if stretch:
                yield tuple(stretch)
                stretch.clear()
            yield run
        elif run.data:
            stretch.append(run)
    if stretch:
        yield tuple(stretch)


class StretchEncoder:
    """Encodes runs a stretch at a time and remembers the ids of each. The ids are `tokenizer.encode`'s."""

    def __init__(self, tokenizer: HasEncode, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._tokenizer = tokenizer
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._known: dict[Stretch, tuple[int, ...]] = {}

    def encode(self, runs: Iterable[Run]) -> list[int]:
        """The ids of `runs`.

        Raises: what `tokenizer.encode(runs)` raises, with the same detail.
        """
        given = list(runs)
        ids: list[int] = []
        try:
            for part in stretches(given):
                ids += self._tokenizer.encode([part]) if isinstance(part, Control) else self.ids_of(part)
        except InputError:
            # The same error, with the index of the run among all of them.
            self._tokenizer.encode(given)
            raise
        return ids

    def count(self, runs: Iterable[Run]) -> int:
        """How many ids `runs` have."""
        return len(self.encode(runs))

    def ids_of(self, stretch: Stretch) -> tuple[int, ...]:
        """The ids of one stretch."""
        ids = self._known.get(stretch)
        if ids is None:
            ids = tuple(self._tokenizer.encode(stretch))
            n_bytes = sum(len(run.data) for run in stretch) + len(ids) * _BYTES_PER_ID
            if self._cached_bytes + n_bytes > self._cache_bytes:
                self._known.clear()
                self._cached_bytes = 0
            if n_bytes <= self._cache_bytes:
                self._known[stretch] = ids
                self._cached_bytes += n_bytes
        return ids
