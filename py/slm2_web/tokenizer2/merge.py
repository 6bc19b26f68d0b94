"""A piece's one-byte ids -> its ids: the merges, lowest rank first, leftmost first.

Theory of operation
-------------------
The definition: while some adjacent pair has a rank, merge the pair of the lowest rank, the leftmost of equal
ones. Looking for that pair anew each time is quadratic. Here the symbols form a doubly linked list over their
first positions, and a heap holds one entry per adjacent pair that has (or had) a rank. A merge keeps its left
position, unlinks its right one, and pushes the at most two new pairs. An entry is stale when its pair is no
longer there, which shows when it is popped: its left position is gone, or the pair there now has another
rank. Each merge removes a symbol and pushes two entries: O(n log n) for n symbols, whatever they are.

An entry is one integer, rank * n + position, so the heap's order is the definition's.

Source: Sennrich et al. 2016 (algorithm 1); `tokenizers` Word::merge_all.
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush

import numpy as np

from slm2_web.tokenizer2.tables import Ids, int_view

_GONE = -1


class Merger:
    """The merges of a vocabulary: u32[n_merges, 3], rows (left, right, merged) in the order of their rank."""

    def __init__(self, merges: Ids, n_tokens: int) -> None:
        self._n_tokens = n_tokens
        pairs = merges[:, 0].astype(np.int64) * n_tokens + merges[:, 1]
        self._ranks: dict[int, int] = dict(zip(pairs.tolist(), range(len(pairs)), strict=True))
        self._merged = int_view(merges[:, 2])

    def merge(self, ids: list[int]) -> list[int]:
        """`ids` after all merges; `ids` is used up."""
        n = len(ids)
        n_tokens, ranks, merged = self._n_tokens, self._ranks, self._merged
        rank_of = ranks.get
        heap = []
        for at in range(n - 1):
            rank = rank_of(ids[at] * n_tokens + ids[at + 1])
            if rank is not None:
                heap.append(rank * n + at)
        if not heap:
            return ids
        heapify(heap)
        following = array("i", range(1, n + 1))
        previous = array("i", range(-1, n - 1))
        while heap:
            rank, at = divmod(heappop(heap), n)
            right = following[at]
            if ids[at] == _GONE or right == n or rank_of(ids[at] * n_tokens + ids[right]) != rank:
                continue
            ids[at] = token = merged[rank]
            ids[right] = _GONE
            following[at] = beyond = following[right]
            if beyond < n:
                previous[beyond] = at
                rank = rank_of(token * n_tokens + ids[beyond])
                if rank is not None:
                    heappush(heap, rank * n + at)
            before = previous[at]
            if before >= 0:
                rank = rank_of(ids[before] * n_tokens + token)
                if rank is not None:
                    heappush(heap, rank * n + before)
        return [token for token in ids if token != _GONE]
