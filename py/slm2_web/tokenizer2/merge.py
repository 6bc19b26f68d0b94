"""A piece's one-byte ids -> its ids: the merges, lowest rank first, leftmost first.

Theory of operation
-------------------
The definition: while some adjacent pair has a rank, merge the pair of the lowest rank, the leftmost of equal
ones. Looking for that pair anew each time is quadratic, which is as fast as anything for a few symbols.

For more, the symbols form a doubly linked list over their first positions, and a heap holds one entry per
adjacent pair that has (or had) a rank. A merge keeps its left position, unlinks its right one, and pushes the
at most two new pairs. Each position knows the rank of its pair as it is now; an entry with another one is
stale and skipped. Each merge removes a symbol and pushes two entries: O(n log n) for n symbols, whatever they
are.

An entry is one integer, rank * n + position, so the heap's order is the definition's.

The rank of a pair is read where it lies in the file's double array (tables.py, PBAS and PSLT).

Source: Sennrich et al. 2016 (algorithm 1); `tokenizers` Word::merge_all.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from slm2_web.tokenizer2.tables import NO_TOKEN, Ids, int_view

_GONE = -1
NO_RANK = 1 << 32  # above every rank
_FEW = 40  # symbols that need no heap


class Merger:
    """The merges of a vocabulary: the sections PBAS, PSLT and MERG."""

    def __init__(self, pair_base: Ids, pair_slots: Ids, merged: Ids) -> None:
        self.rank = _rank_of(int_view(pair_base), int_view(pair_slots))
        self._merged = int_view(merged)

    def merge(self, ids: list[int]) -> list[int]:
        """`ids` after all merges; `ids` is used up."""
        return self._merge_few(ids) if len(ids) <= _FEW else self._merge_many(ids)

    def _merge_few(self, ids: list[int]) -> list[int]:
        rank_of, merged = self.rank, self._merged
        ranks = list(map(rank_of, ids, ids[1:]))
        while ranks and (lowest := min(ranks)) != NO_RANK:
            at = ranks.index(lowest)
            ids[at] = token = merged[lowest]
            del ids[at + 1], ranks[at]
            if at:
                ranks[at - 1] = rank_of(ids[at - 1], token)
            if at < len(ranks):
                ranks[at] = rank_of(token, ids[at + 1])
        return ids

    def _merge_many(self, ids: list[int]) -> list[int]:
        n = len(ids)
        rank_of, merged = self.rank, self._merged
        ranks = list(map(rank_of, ids, ids[1:]))
        heap = [rank * n + at for at, rank in enumerate(ranks) if rank != NO_RANK]
        if not heap:
            return ids
        heapify(heap)
        following = array("i", range(1, n + 1))
        previous = array("i", range(-1, n - 1))
        while heap:
            rank, at = divmod(heappop(heap), n)
            if ranks[at] != rank:
                continue
            right = following[at]
            ids[at] = token = merged[rank]
            ids[right] = _GONE
            following[at] = beyond = following[right]
            ranks[at] = NO_RANK
            if beyond < n:
                ranks[right] = NO_RANK
                previous[beyond] = at
                ranks[at] = rank = rank_of(token, ids[beyond])
                if rank != NO_RANK:
                    heappush(heap, rank * n + at)
            before = previous[at]
            if before >= 0:
                ranks[before] = rank = rank_of(ids[before], token)
                if rank != NO_RANK:
                    heappush(heap, rank * n + before)
        return [token for token in ids if token != _GONE]


def _rank_of(base: memoryview[int], slots: memoryview[int]) -> Callable[[int, int], int]:
    """The function that gives the rank of a pair of ids, or NO_RANK. `slots` has owner and rank by turns."""
    n_numbers = len(slots)

    def rank_of(left: int, right: int) -> int:
        first = base[left]
        if first == NO_TOKEN:
            return NO_RANK
        at = 2 * (first + right)
        if at >= n_numbers:
            at -= n_numbers
        return slots[at + 1] if slots[at] == left else NO_RANK

    return rank_of
