"""A whole piece -> its id, for tokens that the merges make of their own bytes: the section WORD.

Most pieces of ordinary text are such tokens. The table only saves the merges, it never changes an id.
"""

from __future__ import annotations

from slm2_web.tokenizer2.tables import FNV_OFFSET, FNV_PRIME, Ids, int_view


class Words:
    """The hash table of a file: open addressing, FNV-1a."""

    def __init__(self, slots: Ids, max_word_bytes: int, offsets: Ids, blob: bytes | memoryview) -> None:
        self._slots = int_view(slots)
        self._mask = len(slots) - 1
        self._max_bytes = max_word_bytes
        self._offsets = int_view(offsets)
        self._blob = memoryview(blob)

    def find(self, piece: bytes) -> int | None:
        """The id of the token that `piece` is as a whole, if the table has it."""
        if len(piece) > self._max_bytes:
            return None
        slot = FNV_OFFSET
        for byte in piece:
            slot = (slot ^ byte) * FNV_PRIME & 0xFFFFFFFF
        slots, mask, offsets, blob = self._slots, self._mask, self._offsets, self._blob
        slot &= mask
        while id_plus_1 := slots[slot]:
            if blob[offsets[id_plus_1 - 1] : offsets[id_plus_1]] == piece:
                return id_plus_1 - 1
            slot = (slot + 1) & mask
        return None
