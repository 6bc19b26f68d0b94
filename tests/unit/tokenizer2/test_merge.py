"""Merges equal to those of the naive loop: find the lowest rank, the leftmost; merge; again."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.tokenizer2.merge import Merger
from slm2_web.tokenizer2.tables import Ids, parse


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


@given(vocabulary=vocabularies(), ids=st.lists(st.integers(0, 3), max_size=40))
def test_equals_the_naive_loop(vocabulary: tuple[Ids, int], ids: list[int]) -> None:
    merges, n_tokens = vocabulary
    assert Merger(merges, n_tokens).merge(list(ids)) == naive_merge(merges, ids)


def test_equals_the_naive_loop_on_the_real_vocabulary(packed_smollm2: Path) -> None:
    tables = parse((packed_smollm2 / "tokenizer.slm2tok").read_bytes())
    merger = Merger(tables.merges, len(tables.offsets) - 1)
    rng = random.Random(1)
    byte_ids = tables.byte_ids.tolist()
    results = tables.merges[:, 2].tolist()
    blob, offsets = bytes(tables.blob), tables.offsets.tolist()
    for _ in range(1500):
        # Vocabulary-built: whole tokens and their ends side by side, without the split between them.
        tokens = [blob[offsets[i] : offsets[i + 1]] for i in rng.choices(results, k=rng.randint(1, 4))]
        data = b"".join(token[rng.randrange(2) * len(token) // 2 :] for token in tokens)[:40]
        ids = [byte_ids[byte] for byte in data]
        assert merger.merge(list(ids)) == naive_merge_fast(merger, ids), data


def naive_merge_fast(merger: Merger, ids: list[int]) -> list[int]:
    """The definition again, with the merger's own table of ranks: building another takes too long."""
    ids = list(ids)
    while True:
        pairs = pairwise(ids)
        ranks = [merger._ranks.get(left * merger._n_tokens + right) for left, right in pairs]
        known = [rank for rank in ranks if rank is not None]
        if not known:
            return ids
        at = ranks.index(min(known))
        ids[at : at + 2] = [merger._merged[min(known)]]


@pytest.mark.parametrize("data", [b"a", "😀".encode(), b"ab", b" "])
def test_a_long_piece_is_merged_in_seconds(packed_smollm2: Path, data: bytes) -> None:
    tables = parse((packed_smollm2 / "tokenizer.slm2tok").read_bytes())
    byte_ids = tables.byte_ids.tolist()
    merger = Merger(tables.merges, len(tables.offsets) - 1)
    ids = [byte_ids[byte] for byte in data] * (400_000 // len(data))
    started = time.process_time()
    merged = merger.merge(ids)
    # Quadratic work would take hours. A million take some 2 s on one core of an ordinary machine.
    assert time.process_time() - started < 15
    sizes = np.diff(tables.offsets.astype(np.int64))
    assert sizes[merged].sum() == len(data) * (400_000 // len(data))
