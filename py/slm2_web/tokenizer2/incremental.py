"""Runs that grow -> their ids: each append encodes again only what it may change.

Theory of operation
-------------------
Appended text can change the ids before it in three ways. It can complete an added token, or make it a longer
one: in trusted text, from where the automaton is still within a marker. It can compose with the characters
before it: from the last character that composes with nothing before it. It can make the last piece longer, or
free what that had looked at: from the beginning of the first piece whose match saw the end of the text. A
place before all three is stable: what stands before it has its ids for ever, and the tokenizer can begin
there as at the beginning of a text, since it looks at nothing behind a piece, behind such a character, or
behind a marker.

`Encoded` keeps the ids before the last stable place, and the runs after it. For ordinary text those are a
word or two; a piece that never ends (a million spaces) is encoded again as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.special import stretches

if TYPE_CHECKING:
    from slm2_web.tokenizer2.normalize import Normalizer
    from slm2_web.tokenizer2.tokenizer import Tokenizer

_Texts = list[tuple[bytes, bool]]  # text, and whether it is trusted


class Encoded:
    """The ids of the runs appended so far: always those that `Tokenizer.encode` gives for all of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._n_stable = 0
        self._open: _Texts = []  # the text after the last stable place
        self._n_runs = 0

    @property
    def ids(self) -> list[int]:
        """The ids of everything so far."""
        return list(self._ids)

    @property
    def n_stable_ids(self) -> int:
        """How many ids at the beginning no append can change any more."""
        return self._n_stable

    @property
    def open_runs(self) -> tuple[Trusted | Untrusted, ...]:
        """The text after them, whose ids an append may change: another `Encoded` can go on from it."""
        return tuple(Trusted(data) if trusted else Untrusted(data) for data, trusted in self._open)

    def append(self, run: Run) -> int:
        """Append `run`; how many ids were kept as they are: what follows them was encoded again.

        Raises: what `Tokenizer.encode` raises; then nothing was appended.
        """
        if isinstance(run, Control):
            self._tokenizer._check_control(run, self._n_runs)
            n_kept = len(self._ids)
            self._ids.append(run.id)
            self._n_stable = len(self._ids)
            self._open = []
        else:
            self._tokenizer._check_text(run, self._n_runs)
            n_kept = self._n_stable
            del self._ids[n_kept:]
            self._open = list(stretches([*self._open, (run.data, isinstance(run, Trusted))]))
            self._advance()
            self._ids += self._encode(self._open)
        self._n_runs += 1
        return n_kept

    def _advance(self) -> None:
        """Move what is stable of the open text over to the ids."""
        # Decided markers end the text before them. In all but the last stretch every marker is decided.
        last = len(self._open) - 1
        place = (0, 0)  # stretch, and offset in it
        undecided = len(self._open[last][0]) if self._open else 0
        for index, (data, trusted) in enumerate(self._open):
            if trusted:
                found, could_be = self._tokenizer.added_tokens.find(data)
                if index == last:
                    undecided = could_be
                    found = [match for match in found if match.start < could_be]
                if found:
                    place = (index, found[-1].end)
        if place != (0, 0):
            index, end = place
            data, trusted = self._open[index]
            self._ids += self._encode([*self._open[:index], (data[:end], trusted)])
            undecided -= end if index == last else 0
            self._open = [part for part in ((data[end:], trusted), *self._open[index + 1 :]) if part[0]]
        text = b"".join(data for data, _ in self._open)
        if self._open:
            undecided += len(text) - len(self._open[-1][0])
        ids, stable = _stable_ids(self._tokenizer, text[: undecided if self._open else 0])
        self._ids += ids
        self._n_stable = len(self._ids)
        remaining: _Texts = []
        for data, trusted in self._open:
            if stable < len(data):
                remaining.append((data[stable:], trusted))
            stable = max(stable - len(data), 0)
        self._open = remaining

    def _encode(self, texts: _Texts) -> list[int]:
        return self._tokenizer.encode(
            Trusted(data) if trusted else Untrusted(data) for data, trusted in texts
        )


def _stable_ids(tokenizer: Tokenizer, text: bytes) -> tuple[list[int], int]:
    """The ids of the beginning of `text` that what follows it cannot change, and where that ends."""
    normalizer = tokenizer.normalizer
    if normalizer is None:
        cuts = tokenizer.splitter.cuts(text)
        return tokenizer.encode_pieces(text, [end for end in cuts.ends if end <= cuts.stable]), cuts.stable
    text = text[: _last_boundary(normalizer, text, len(text))]
    normalized = normalizer.normalize(text)
    cuts = tokenizer.splitter.cuts(normalized)
    ends = [end for end in cuts.ends if end <= cuts.stable]
    # Back from the end, stretch by stretch, to the last cut that is between two of them.
    at, normalized_at = len(text), len(normalized)
    while ends:
        while normalized_at > ends[-1]:
            begin = _last_boundary(normalizer, text, at)
            normalized_at -= len(normalizer.normalize(text[begin:at]))
            at = begin
        if normalized_at == ends[-1]:
            break
        ends.pop()
    return tokenizer.encode_pieces(normalized, ends), at


def _last_boundary(normalizer: Normalizer, text: bytes, end: int) -> int:
    """Where the last character of text[:end] that composes with nothing before it begins, or 0."""
    char_end = end
    while end > 0:
        end -= 1
        if text[end] & 0xC0 != 0x80:
            if normalizer.is_boundary(ord(text[end:char_end].decode("utf-8"))):
                break
            char_end = end
    return end
