"""Runs -> spans: added tokens are found, in trusted text only; what lies between is joined.

Theory of operation
-------------------
The text between two control ids is one string, whoever wrote its parts: normalization, the split and the
merges see it as a whole, as the publisher's tokenizer does. Trust decides one thing only, which bytes may
match an added token: a match must lie within one trusted stretch (adjacent trusted runs form one stretch). So
a marker in untrusted text, and one that is half trusted and half not, stays text.

Of several matches the earliest wins, and of those the longest. The automaton (Aho-Corasick, from the file) is
in the state of the longest beginning of a marker that ends here; a state knows the longest marker that ends
in it, and its own depth. The best match so far is final when what the state still follows begins after it;
then the search goes on from the end of the match.

Source: `tokenizers` AddedVocabulary (MatchKind::LeftmostLongest).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slm2_web.tokenizer2.tables import Bytes, Ids, Shorts, int_view


class Found(NamedTuple):
    """An added token: text[start:end]."""

    start: int
    end: int
    id: int


class AddedTokens:
    """The added tokens' automaton of a file: the sections MCLS, MGTO and MEND."""

    def __init__(self, classes: Bytes, goto: Shorts, ends: Ids) -> None:
        self._classes = classes.tobytes()
        self._goto = int_view(goto)
        self._n_classes = goto.shape[1]
        self._ends: list[tuple[int, int, int]] = [tuple(row) for row in ends.tolist()]

    def scan(self, texts: Iterable[tuple[bytes, bool]]) -> Iterator[bytes | int]:
        """Spans of `texts`, pairs of (text, trusted): text to be encoded (bytes), and added ids (int)."""
        text = bytearray()
        for stretch, trusted in stretches(texts):
            if not trusted:
                text += stretch
                continue
            begin = 0
            for start, end, token_id in self.find(stretch)[0]:
                text += stretch[begin:start]
                if text:
                    yield bytes(text)
                    text.clear()
                yield token_id
                begin = end
            text += stretch[begin:]
        if text:
            yield bytes(text)

    def find(self, data: bytes) -> tuple[list[Found], int]:
        """The added tokens in trusted `data`, and where the text begins that could yet be another one.

        What is found before that place does not depend on what may follow `data`.
        """
        goto, classes, n_classes, ends = self._goto, self._classes, self._n_classes, self._ends
        found: list[Found] = []
        undecided = n_bytes = len(data)
        at = 0
        while at < n_bytes:
            state = 0
            best: Found | None = None
            for here in range(at, n_bytes):
                state = goto[state * n_classes + classes[data[here]]]
                id_plus_1, length, depth = ends[state]
                begin = here + 1 - depth
                if best and begin > best.start:
                    break
                if id_plus_1 and (best is None or here + 1 - length <= best.start):
                    best = Found(here + 1 - length, here + 1, id_plus_1 - 1)
            else:
                undecided = min(undecided, begin, best.start if best else begin)
            if best is None:
                break
            found.append(best)
            at = best.end
        return found, undecided


def stretches(texts: Iterable[tuple[bytes, bool]]) -> Iterator[tuple[bytes, bool]]:
    """`texts` with neighbours of equal trust joined; empty ones separate nothing."""
    parts: list[bytes] = []
    stretch_trusted = False
    for data, trusted in texts:
        if not data:
            continue
        if parts and trusted != stretch_trusted:
            yield b"".join(parts), stretch_trusted
            parts.clear()
        parts.append(data)
        stretch_trusted = trusted
    if parts:
        yield b"".join(parts), stretch_trusted
