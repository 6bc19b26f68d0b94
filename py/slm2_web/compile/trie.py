"""Tables to search in: the merges as a double array, the words as a hash table, the markers as an automaton.

Their layouts are those of tokenizer2/tables.py. The same vocabulary gives the same tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slm2_web.tokenizer2.tables import FNV_OFFSET, FNV_PRIME, MAX_STATES, NO_TOKEN, Bytes, Ids, Shorts

_TRIED_AT_ONCE = 1 << 12
_MASK = 0xFFFFFFFF


def double_array(merges: Ids, n_tokens: int) -> tuple[Ids, Ids]:
    """The pairs of `merges` as (base u32[n_tokens], slots u32[n_slots, 2]).

    The trie has a row for each left id. Rows are laid over each other, around the end, so that their entries
    do not meet: the longest first, each where it fits next; those of one entry fill the gaps. So nearly all
    slots are used.

    Source: Aoe 1989, "An Efficient Digital Search Algorithm by Using a Double-Array Structure".
    """
    order = np.lexsort((merges[:, 1], merges[:, 0]))
    lefts, firsts = np.unique(merges[order, 0], return_index=True)
    rows = dict(zip(lefts.tolist(), np.split(merges[order, 1].astype(np.intp), firsts[1:]), strict=True))
    n_slots = max(n_tokens, len(merges) + len(merges) // 16)
    while (base := _laid_out(rows, n_tokens, n_slots)) is None:
        n_slots += n_slots // 16 + 1
    slot_of = (base[merges[:, 0]].astype(np.intp) + merges[:, 1]) % n_slots
    slots = np.zeros((n_slots, 2), np.uint32)
    slots[:, 0] = NO_TOKEN
    slots[slot_of, 0] = merges[:, 0]
    slots[slot_of, 1] = np.arange(len(merges))
    return base, slots


def _laid_out(rows: Mapping[int, NDArray[np.intp]], n_tokens: int, n_slots: int) -> Ids | None:
    """The base of each left id; None where the rows do not fit into `n_slots`."""
    base = np.full(n_tokens, NO_TOKEN, np.uint32)
    is_free = np.ones(3 * n_slots, np.bool_)  # the slots three times over: no index has to go around
    at = 0
    for left in sorted(rows, key=lambda left: (-len(rows[left]), left)):
        rights = rows[left]
        if len(rights) == 1:
            break
        for tried in range(0, n_slots + 1, _TRIED_AT_ONCE):
            first = (at + tried) % n_slots
            fits = is_free[first + rights[0] :][: min(_TRIED_AT_ONCE, n_slots)].copy()
            for right in rights[1:]:
                fits &= is_free[first + right :][: len(fits)]
            if fits.any():
                break
        else:
            return None
        at = (first + int(fits.argmax())) % n_slots
        base[left] = at
        taken = (at + rights) % n_slots
        for again in range(3):
            is_free[taken + again * n_slots] = False
    free = iter(np.flatnonzero(is_free[:n_slots]).tolist())
    for left in sorted(left for left, rights in rows.items() if len(rights) == 1):
        base[left] = (next(free) - int(rows[left][0])) % n_slots
    return base


def hash_table(words: Iterable[tuple[bytes, int]]) -> Ids:
    """Open-addressed ids of `words`, (bytes, id) in order: id + 1, 0 for an empty slot; at most 5/8 full."""
    pairs = list(words)
    n_slots = 1
    while len(pairs) * 8 > n_slots * 5:
        n_slots *= 2
    table = [0] * n_slots
    for word, token_id in pairs:
        slot = fnv1a(word) & (n_slots - 1)
        while table[slot]:
            slot = (slot + 1) & (n_slots - 1)
        table[slot] = token_id + 1
    return np.array(table, np.uint32)


def fnv1a(data: bytes) -> int:
    """FNV-1a of 32 bits.

    Source: RFC 9923 (G. Fowler, L. C. Noll, K.-P. Vo, D. Eastlake).
    """
    value = FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * FNV_PRIME & _MASK
    return value


def marker_automaton(markers: Mapping[bytes, int]) -> tuple[Bytes, Shorts, Ids]:
    """The complete Aho-Corasick automaton over `markers` (none is empty): classes, goto, ends.

    Source: Aho and Corasick 1975.
    """
    alphabet = sorted(set(b"".join(markers)))
    classes = np.zeros(256, np.uint8)
    # Class 0 is every byte that no marker has; where they use all 256, there is none.
    offset = int(len(alphabet) < 256)
    classes[alphabet] = np.arange(len(alphabet)) + offset
    children: list[dict[int, int]] = [{}]
    depths = [0]
    ends = [(0, 0)]
    for marker, token_id in markers.items():
        state = 0
        for byte in marker:
            following = children[state].setdefault(int(classes[byte]), len(children))
            if following == len(children):
                children.append({})
                depths.append(depths[state] + 1)
                ends.append((0, 0))
            state = following
        ends[state] = (token_id + 1, len(marker))
    assert len(children) <= MAX_STATES
    n_classes = len(alphabet) + offset
    goto = np.zeros((len(children), n_classes), np.uint16)
    # Breadth first: a state's suffix, the longest proper suffix that is a state, is complete before it.
    waiting = deque([(0, 0)])
    while waiting:
        state, suffix = waiting.popleft()
        goto[state] = goto[suffix]
        if not ends[state][0]:
            ends[state] = ends[suffix]
        for char_class, child in children[state].items():
            waiting.append((child, int(goto[suffix, char_class]) if state else 0))
            goto[state, char_class] = child
    rows: Sequence[tuple[int, int, int]] = [(*end, depth) for end, depth in zip(ends, depths, strict=True)]
    return classes, goto, np.array(rows, np.uint32)
