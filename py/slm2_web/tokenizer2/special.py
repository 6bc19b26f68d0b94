"""Runs -> spans: added tokens are found, in trusted text only; what lies between is joined.

Theory of operation
-------------------
The text between two control ids is one string, whoever wrote its parts: the split and the merges see it as
a whole, as the publisher's tokenizer does. Trust decides one thing only, which bytes may match an added
token: a match must lie within one trusted stretch (adjacent trusted runs form one stretch). So a marker in
untrusted text, and one that is half trusted and half not, stays text.

Of several matches the earliest wins, and of those the longest, as in the publisher's Aho-Corasick automaton
(leftmost-longest). Trusted text is the template's words, a few bytes; a trie walked from every position
that can begin a marker is enough: O(n * longest marker).

Source: `tokenizers` AddedVocabulary (MatchKind::LeftmostLongest).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

_END = -1  # trie key of the id of the marker that ends here; never a byte


class AddedTokens:
    """The markers of a vocabulary, ready to be searched for."""

    def __init__(self, markers: Mapping[bytes, int]) -> None:
        self._trie: dict[int, object] = {}
        for marker, token_id in markers.items():
            node = self._trie
            for byte in marker:
                child = node.setdefault(byte, {})
                assert isinstance(child, dict)
                node = child
            node[_END] = token_id

    def scan(self, texts: Iterable[tuple[bytes, bool]]) -> Iterator[bytes | int]:
        """Spans of `texts`, pairs of (text, trusted): text to be encoded (bytes), and added ids (int)."""
        text = bytearray()
        for stretch, trusted in _stretches(texts):
            if not trusted:
                text += stretch
                continue
            begin = 0
            for start, end, token_id in self.find(stretch):
                text += stretch[begin:start]
                if text:
                    yield bytes(text)
                    text.clear()
                yield token_id
                begin = end
            text += stretch[begin:]
        if text:
            yield bytes(text)

    def find(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of the added tokens in trusted `data`: earliest, then longest."""
        at = 0
        while at < len(data):
            found = self._longest_at(data, at)
            if found is None:
                at += 1
            else:
                yield at, *found
                at = found[0]

    def _longest_at(self, data: bytes, start: int) -> tuple[int, int] | None:
        node = self._trie
        found = None
        for at in range(start, len(data)):
            child = node.get(data[at])
            if not isinstance(child, dict):
                break
            node = child
            token_id = node.get(_END)
            if isinstance(token_id, int):
                found = at + 1, token_id
        return found


def _stretches(texts: Iterable[tuple[bytes, bool]]) -> Iterator[tuple[bytes, bool]]:
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
