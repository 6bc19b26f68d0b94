"""Text -> text in Normalization Form C of Unicode 9.0, by the file's tables; never by the host's
`unicodedata`.

Theory of operation
-------------------
Text below U+0300 is in NFC already. Otherwise each character is looked up once (array reads, vectorised over
the text): if none is in doubt (quick check No or Maybe) and marks are in order, the text is in NFC. A starter
whose quick check is Yes composes with nothing before it, so it begins a stretch that can be normalized by
itself. Only stretches with something in doubt are decomposed, ordered and composed; the rest is copied.

Source: Unicode Standard Annex #15 (9.0), sections 1.3, 3 and 9; The Unicode Standard 9.0, section 3.12
(Hangul).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slm2_web.tokenizer2.tables import (
    BLOCK_SHIFT,
    CCC_MASK,
    LENGTH_MASK,
    LENGTH_SHIFT,
    NOT_QUICK,
    Ids,
    Tables,
    int_view,
)

JAMO_L = range(0x1100, 0x1113)
JAMO_V = range(0x1161, 0x1176)
JAMO_T = range(0x11A8, 0x11C3)
SYLLABLES = range(0xAC00, 0xD7A4)
_T_BASE = JAMO_T.start - 1  # syllables without a final consonant count it as number 0
_N_T = len(JAMO_T) + 1
_BLOCK_MASK = (1 << BLOCK_SHIFT) - 1
_FIRST_BYTE = 0xCC  # of U+0300


class Normalizer:
    """NFC by the tables of a file whose normalizer is "nfc-9.0"."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._index = int_view(tables.norm_index)
        self._blocks = int_view(tables.norm_blocks)
        self._records = int_view(tables.norm_records)
        self._decomposed: list[int] = tables.norm_decomposed.tolist()
        self._composed: dict[tuple[int, int], int] = {
            (first, second): composed for first, second, composed in tables.norm_compositions.tolist()
        }

    def normalize(self, data: bytes) -> bytes:
        """`data`, which is valid UTF-8, in NFC."""
        if data.isascii() or max(data) < _FIRST_BYTE:
            return data
        code_points = np.frombuffer(data.decode("utf-8").encode("utf-32-le"), "<u4")
        stretches = self._doubtful(code_points)
        if not len(stretches):
            return data
        result: list[Ids] = []
        at = 0
        for begin, end in stretches.tolist():
            composed = self._compose(self._decompose(code_points[begin:end].tolist()))
            result += (code_points[at:begin], np.array(composed, "<u4"))
            at = end
        result.append(code_points[at:])
        return np.concatenate(result).tobytes().decode("utf-32-le").encode("utf-8")

    def is_boundary(self, code_point: int) -> bool:
        """Whether no text before `code_point` changes what it and the text after it become."""
        flags = self._flags(code_point)[0]
        return not flags & (CCC_MASK | NOT_QUICK)

    def _doubtful(self, code_points: Ids) -> Ids:
        """[n, 2]: where the stretches that may not be in NFC begin and end."""
        tables = self._tables
        blocks = tables.norm_index[code_points >> BLOCK_SHIFT].astype(np.intp)
        flags = tables.norm_records[tables.norm_blocks[blocks, code_points & _BLOCK_MASK], 0]
        classes = flags & CCC_MASK
        doubtful = (flags & NOT_QUICK) != 0
        doubtful[1:] |= (classes[1:] != 0) & (classes[:-1] > classes[1:])
        if not doubtful.any():
            return np.empty((0, 2), np.uint32)
        is_begin = (flags & (CCC_MASK | NOT_QUICK)) == 0
        is_begin[0] = True
        (begins,) = np.nonzero(is_begin)
        which = np.unique(np.searchsorted(begins, np.flatnonzero(doubtful), "right")) - 1
        return np.stack([begins[which], np.append(begins, len(code_points))[which + 1]], axis=1)

    def _decompose(self, code_points: Iterable[int]) -> list[tuple[int, int]]:
        """Pairs of (combining class, code point), in canonical order."""
        pairs: list[tuple[int, int]] = []
        for code_point in code_points:
            flags, start = self._flags(code_point)
            if code_point in SYLLABLES:
                vowel, final = divmod(code_point - SYLLABLES.start, _N_T)
                lead, vowel = divmod(vowel, len(JAMO_V))
                parts = [JAMO_L.start + lead, JAMO_V.start + vowel]
                parts += [_T_BASE + final] if final else []
            elif length := flags >> LENGTH_SHIFT & LENGTH_MASK:
                parts = self._decomposed[start : start + length]
            else:
                parts = [code_point]
            pairs += [(self._flags(part)[0] & CCC_MASK, part) for part in parts]
        # Marks between two starters are sorted by class; the sort keeps the order of equal ones.
        begin = 0
        for at in range(len(pairs) + 1):
            if at == len(pairs) or not pairs[at][0]:
                pairs[begin:at] = sorted(pairs[begin:at], key=lambda pair: pair[0])
                begin = at + 1
        return pairs

    def _compose(self, pairs: Iterable[tuple[int, int]]) -> list[int]:
        result: list[int] = []
        starter = -1  # its place in the result
        last_class = 0  # of what stands between the starter and here; 0 where nothing does
        for combining, code_point in pairs:
            if starter >= 0 and (last_class < combining or starter == len(result) - 1):
                composed = self._pair(result[starter], code_point)
                if composed is not None:
                    result[starter] = composed
                    continue
            result.append(code_point)
            last_class = combining
            if not combining:
                starter = len(result) - 1
        return result

    def _pair(self, first: int, second: int) -> int | None:
        if first in JAMO_L and second in JAMO_V:
            lead, vowel = first - JAMO_L.start, second - JAMO_V.start
            return SYLLABLES.start + (lead * len(JAMO_V) + vowel) * _N_T
        if first in SYLLABLES and second in JAMO_T and (first - SYLLABLES.start) % _N_T == 0:
            return first + second - _T_BASE
        return self._composed.get((first, second))

    def _flags(self, code_point: int) -> tuple[int, int]:
        block = self._index[code_point >> BLOCK_SHIFT]
        record = self._blocks[(block << BLOCK_SHIFT) + (code_point & _BLOCK_MASK)]
        return self._records[2 * record], self._records[2 * record + 1]
