"""Another way to split, for comparison: by classes of code points and runs of equal class, for two patterns.

Theory of operation
-------------------
The GPT-2 pattern is an ordered choice, tried at each position where the last piece ended:

    's|'t|'re|'ve|'m|'ll|'d | ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

Cut the text into maximal runs of one class: L letters, N numbers, W whitespace, O all others. Every end of a
piece is then at the end of a run but for two rules:

1. A W run that something follows gives up its last character: `\\s+(?!\\S)` must not be followed by a
   non-space, so it backs off by one. If that character is U+0020 it opens the next piece (the ` ?` of the
   other branches); any other is a piece of its own (by `\\s+`). A W run at the end of the text stays whole.
2. A contraction: an O run that is just `'` and opens its piece (no space before it in the piece) takes the
   letters s, t, re, ve, m, ll or d from the L run that follows it.

`smollm` first isolates every number character; the pattern then sees the text between two of them as if it
were alone. So each N character is a run and a piece, and a W run before it is at the end of its text.

Classes are those of Unicode 16.0 by explicit ranges from the tokenizer file: never the host's. One pass
over the characters (binary search among the fixed ranges), one over the runs: linear time.

Source: `tokenizers` ByteLevel(use_regex), Digits(individual_digits); llama.cpp LLAMA_VOCAB_PRE_TYPE_SMOLLM.
"""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from slm2_web.compile.regex import CLASSES_FILE

OTHER, LETTER, NUMBER, WHITESPACE = range(4)

_SPACE = 0x20
_APOSTROPHE = 0x27
_CONTRACTIONS = (b"s", b"t", b"re", b"ve", b"m", b"ll", b"d")


class Splitter:
    """The pre-tokenizer `pattern` ("gpt-2" or "smollm") over `classes` (u32[n, 3]: first, last, class)."""

    def __init__(self, pattern: str, classes: NDArray[np.uint32]) -> None:
        self._isolates_numbers = pattern == "smollm"
        # The code points where the class changes, and the class from each on; gaps between ranges are OTHER.
        first, last, kind = classes.T
        self._changes = np.append(np.uint32(0), np.stack([first, last + 1], axis=1))
        self._kinds = np.append(OTHER, np.stack([kind, np.full_like(kind, OTHER)], axis=1)).astype(np.uint8)

    def split(self, data: bytes) -> list[bytes]:
        """The pieces of `data`, which is valid UTF-8; joined they are `data`."""
        cuts = self.cuts(data)
        return [data[start:end] for start, end in pairwise(cuts)]

    def cuts(self, data: bytes) -> list[int]:
        """Byte offsets between the pieces of `data`: 0, the end of each piece."""
        cuts = [0]
        if not data:
            return cuts
        lasts, ends, kinds = self._runs(data)
        hard = NUMBER if self._isolates_numbers else None
        n_runs = len(ends)
        start = 0
        for run, (last, end, kind) in enumerate(zip(lasts, ends, kinds, strict=True)):
            following = kinds[run + 1] if run + 1 < n_runs else None
            if kind == WHITESPACE and following is not None and following != hard:
                if last > start:
                    cuts.append(last)
                if data[last] != _SPACE:
                    cuts.append(end)
            elif (
                following == LETTER
                and end - start == 1
                and data[start] == _APOSTROPHE
                and cuts[-1] == start
                and (taken := _contraction_bytes(data, end))
            ):
                cuts.append(end + taken)
            elif cuts[-1] != end:
                cuts.append(end)
            start = end
        return cuts

    def _runs(self, data: bytes) -> tuple[list[int], list[int], list[int]]:
        """Per run: byte offset of its last character, of its end, and its class."""
        lead = np.flatnonzero((np.frombuffer(data, np.uint8) & 0xC0) != 0x80)
        code_points = np.frombuffer(data.decode("utf-8").encode("utf-32-le"), "<u4")
        kinds = self._kinds[np.searchsorted(self._changes, code_points, "right") - 1]
        is_last = np.ones(len(kinds), np.bool_)
        is_last[:-1] = kinds[1:] != kinds[:-1]
        if self._isolates_numbers:
            is_last |= kinds == NUMBER
        (last,) = np.nonzero(is_last)
        ends = np.append(lead[last[:-1] + 1], len(data))
        return lead[last].tolist(), ends.tolist(), kinds[last].tolist()


def _contraction_bytes(data: bytes, at: int) -> int:
    for letters in _CONTRACTIONS:
        if data.startswith(letters, at):
            return len(letters)
    return 0


def split_classes() -> NDArray[np.uint32]:
    """The pinned classes as u32[n, 3] rows (first, last, class), ascending."""
    ranges = json.loads(CLASSES_FILE.read_text("utf-8"))
    rows = []
    for name, kind in (("\\p{L}", LETTER), ("\\p{N}", NUMBER), ("\\s", WHITESPACE)):
        for text in ranges[name]:
            first, _, last = text.partition("-")
            rows.append((int(first, 16), int(last or first, 16), kind))
    return np.array(sorted(rows), np.uint32)
