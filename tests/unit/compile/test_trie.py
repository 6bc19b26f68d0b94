"""Search tables equal to a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.compile.trie import double_array, fnv1a, hash_table
from slm2_web.tokenizer2.merge import NO_RANK, Merger
from slm2_web.tokenizer2.tables import NO_TOKEN, parse
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.tokenizer2.words import Words

pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=120, unique=True)


@given(pairs=pairs)
def test_the_double_array_equals_a_dict(pairs: list[tuple[int, int]]) -> None:
    merges = np.array([(left, right, 0) for left, right in pairs], np.uint32)
    base, slots = double_array(merges, 31)
    merger = Merger(base, slots, merges[:, 2])
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    for left in range(31):
        for right in range(31):
            assert merger.rank(left, right) == ranks.get((left, right), NO_RANK)


def test_the_double_array_of_the_real_vocabulary(qwen3_file: bytes) -> None:
    tables = parse(qwen3_file)
    merger = Merger(tables.pair_base, tables.pair_slots, tables.merged)
    used = np.flatnonzero(tables.pair_slots[:, 0] != NO_TOKEN)
    left, rank = tables.pair_slots[used].T
    right = (used - tables.pair_base[left].astype(np.int64)) % len(tables.pair_slots)
    assert len(used) == 151_387
    table = dict(zip(zip(left.tolist(), right.tolist(), strict=True), rank.tolist(), strict=True))
    assert all(merger.rank(*pair) == rank for pair, rank in table.items())
    rng = np.random.default_rng(1)
    for a, b in rng.choice(np.unique(left), (20_000, 2)).tolist():
        assert merger.rank(a, b) == table.get((a, b), NO_RANK)


@given(
    words=st.lists(st.binary(min_size=1, max_size=6), unique=True, max_size=60),
    others=st.lists(st.binary(max_size=8)),
)
def test_the_hash_table_equals_a_dict(words: list[bytes], others: list[bytes]) -> None:
    slots = hash_table(zip(words, range(len(words)), strict=True))
    offsets = np.cumsum([0, *map(len, words)]).astype(np.uint32)
    table = Words(slots, 6, offsets, b"".join(words))
    ids = {word: token_id for token_id, word in enumerate(words)}
    for word in (*words, *others):
        assert table.find(word) == ids.get(word)


def test_fnv1a() -> None:
    # Test vectors of the reference implementation.
    assert fnv1a(b"") == 0x811C9DC5
    assert fnv1a(b"a") == 0xE40C292C
    assert fnv1a(b"foobar") == 0xBF9CF968


def test_words_never_change_an_id(qwen3_tokenizer: Tokenizer, smollm2_tokenizer: Tokenizer) -> None:
    for tokenizer in (qwen3_tokenizer, smollm2_tokenizer):
        tables = tokenizer._tables
        ids = (tables.words[tables.words > 0] - 1).tolist()
        assert len(set(ids)) == len(ids)
        byte_ids = tables.byte_ids.tolist()
        for token_id in ids[::7]:
            data = tokenizer.token_bytes(token_id)
            assert tokenizer._words.find(data) == token_id
            assert tokenizer._merger.merge([byte_ids[byte] for byte in data]) == [token_id]


def test_how_many_words(qwen3_file: bytes, smollm2_file: bytes) -> None:
    # Every ordinary token of both is what the merges make of its bytes.
    for data, n in ((qwen3_file, 151_643), (smollm2_file, 49_135)):
        assert int(np.count_nonzero(parse(data).words)) == n
