"""Merges equal to those of the naive loop: find the lowest rank, the leftmost; merge; again."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.compile.trie import double_array
from slm2_web.tokenizer2.merge import NO_RANK, Merger
from slm2_web.tokenizer2.tables import Ids, Tables, parse


def naive_merge(merges: Ids, ids: list[int]) -> list[int]:
    """The definition, quadratic."""
    table = {(left, right): (rank, merged) for rank, (left, right, merged) in enumerate(merges.tolist())}
    ids = list(ids)
    while True:
        ranked = [(*table[pair], at) for at, pair in enumerate(pairwise(ids)) if pair in table]
        if not ranked:
            return ids
        _, merged, at = min(ranked, key=lambda entry: (entry[0], entry[2]))
        ids[at : at + 2] = [merged]


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[Ids, int]:
    """Merges over four symbols; each merge makes a new id, of any two that exist."""
    rows: list[tuple[int, int, int]] = []
    for n in range(draw(st.integers(1, 12))):
        ids = st.integers(0, 3 + n)
        rows.append((draw(ids), draw(ids), 4 + n))
    order = draw(st.permutations(range(len(rows))))
    unique = {rows[at][:2]: rows[at] for at in order}
    return np.array(list(unique.values()), np.uint32), 4 + len(rows)


@given(vocabulary=vocabularies(), ids=st.lists(st.integers(0, 3), max_size=100))
def test_equals_the_naive_loop(vocabulary: tuple[Ids, int], ids: list[int]) -> None:
    merges, n_tokens = vocabulary
    merger = Merger(*double_array(merges, n_tokens), merges[:, 2])
    expected = naive_merge(merges, ids)
    assert merger.merge(list(ids)) == expected
    assert merger._merge_few(list(ids)) == merger._merge_many(list(ids)) == expected


def merger_of(tables: Tables) -> Merger:
    return Merger(tables.pair_base, tables.pair_slots, tables.merged)


def test_equals_the_naive_loop_on_the_real_vocabularies(smollm2_file: bytes, qwen3_file: bytes) -> None:
    rng = random.Random(1)
    for tables in map(parse, (smollm2_file, qwen3_file)):
        merger = merger_of(tables)
        byte_ids = tables.byte_ids.tolist()
        results = tables.merged.tolist()
        blob, offsets = bytes(tables.blob), tables.offsets.tolist()
        for _ in range(1500):
            # Vocabulary-built: whole tokens and their ends side by side, without the split between them.
            tokens = [blob[offsets[i] : offsets[i + 1]] for i in rng.choices(results, k=rng.randint(1, 6))]
            data = b"".join(token[rng.randrange(2) * len(token) // 2 :] for token in tokens)[:60]
            ids = [byte_ids[byte] for byte in data]
            assert merger.merge(list(ids)) == naive_merge_fast(tables, merger, ids), data


def naive_merge_fast(tables: Tables, merger: Merger, ids: list[int]) -> list[int]:
    """The definition again, with the merger's own ranks: building another table takes too long."""
    ids = list(ids)
    while True:
        ranks = [merger.rank(left, right) for left, right in pairwise(ids)]
        if not ranks or min(ranks) == NO_RANK:
            return ids
        at = ranks.index(min(ranks))
        ids[at : at + 2] = [int(tables.merged[min(ranks)])]


@pytest.mark.parametrize("data", [b"a", "😀".encode(), b"ab", b" "])
def test_a_long_piece_is_merged_in_seconds(smollm2_file: bytes, data: bytes) -> None:
    tables = parse(smollm2_file)
    byte_ids = tables.byte_ids.tolist()
    ids = [byte_ids[byte] for byte in data] * (400_000 // len(data))
    started = time.process_time()
    merged = merger_of(tables).merge(ids)
    # Quadratic work would take hours. A million take some 2 s on one core of an ordinary machine.
    assert time.process_time() - started < 15
    sizes = np.diff(tables.offsets.astype(np.int64))
    assert sizes[merged].sum() == len(data) * (400_000 // len(data))
