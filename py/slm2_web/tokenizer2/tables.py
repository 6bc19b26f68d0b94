"""tokenizer.slm2tok: the tables of a byte-level BPE tokenizer, packed for use in place.

The file is a container (container.py, version 2). Sections are aligned to 64 bytes and hold one array each,
little-endian; every section is there, an empty one where there is nothing to say. Nothing is built at load
time.

    HEAD  u32[17]   the sizes of all the others, in this order:
                      0 n_tokens            6 n_byte_classes   12 n_marker_classes
                      1 n_merges            7 start_state      13 n_norm_blocks
                      2 n_added             8 n_pair_slots     14 n_norm_records
                      3 normalizer          9 n_word_slots     15 n_norm_decomposed
                      4 split              10 max_word_bytes   16 n_norm_compositions
                      5 n_states           11 n_marker_states
                    normalizer: 0 the publisher has none; 1 NFC of Unicode 9.0; 2 as received, by choice,
                    although the publisher normalizes. Only 1 changes text. split: index in SPLITS, for people

  The vocabulary
    OFFS  u32[n_tokens + 1]   where each token's bytes begin in BLOB; an id whose token has none has no token
    BLOB  u8[]                the tokens' bytes, one after the other; an added token's are its marker's text
    BYTE  u32[256]            id of the one-byte token, or NO_TOKEN
    MERG  u32[n_merges]       by rank: the id that the merge makes
    ADDT  u32[n_added, 2]     id, ascending; 1 if special (hidden by decode's "hide"), else 0

  The merges as a double array: a trie of depth two over ids
    PBAS  u32[n_tokens]           base of each left id, or NO_TOKEN
    PSLT  u32[n_pair_slots, 2]    left id that owns the slot (NO_TOKEN: free), rank; each rank is in one slot
          The pair (l, r) is in slot s = PBAS[l] + r, less n_pair_slots if that is as large or larger, if
          PBAS[l] != NO_TOKEN and PSLT[s][0] == l; else it has no rank. PBAS[l] < n_pair_slots and r <
          n_tokens <= n_pair_slots, so s is always a slot.

  Tokens that the merges make of their own bytes: a shortcut for whole pieces, which never changes an id
    WORD  u32[n_word_slots]
          Open addressing, linear probing upwards and around; id + 1, or 0 for empty. The slot of a token is
          FNV-1a (32 bits) of its bytes & (n_word_slots - 1), or the next free one. n_word_slots is a power of
          two, at most 3/4 are used. No added token. No token is longer than max_word_bytes.

  The added tokens' automaton (Aho-Corasick, complete): special.py says how it is used
    MCLS  u8[256]                                  byte -> class, below n_marker_classes
    MGTO  u16[n_marker_states, n_marker_classes]   next state; state 0 is the root
    MEND  u32[n_marker_states, 3]
          id + 1 of the longest marker that ends in this state (0: none), its length in bytes, depth of the
          state (bytes read that may still be the beginning of a marker)

  The split automaton: split.py says how it is used
    SCLS  u8[256]                         byte -> class, below n_byte_classes
    SNXT  u16[n_states, n_byte_classes]   next state; state 0 is dead: no match continues
    SFLG  u8[n_states]
          ACCEPT 1: a match ends after the byte just taken. ACCEPT_BEFORE 2: a match ends before the character
          just taken. ACCEPT_AT_END 4: a match ends here if the text does. With ACCEPT there is no other flag,
          and the start state has none.

  NFC (empty but for normalizer 1): normalize.py says how it is used
    NIDX  u16[8704]                     code point >> 7 -> block
    NBLK  u16[n_norm_blocks, 128]       block, code point & 127 -> record
    NREC  u32[n_norm_records, 2]
          First word: bits 0-7 combining class; bit 8 NFC quick check is No or Maybe; bits 16-23 number of
          code points of the full canonical decomposition (0: none). Second word: where that begins in NDEC.
          Record 0 is all 0. Hangul is algorithmic: syllables (U+AC00..U+D7A3) have record 0, jamo V and T
          have bit 8.
    NDEC  u32[n_norm_decomposed]        code points
    NCMP  u32[n_norm_compositions, 3]   first, second, composed; ascending by (first, second)

What `parse` accepts has these properties, which the code that uses the tables relies on:

- Every index stays in its table, whatever the text.
- Every merge concatenates: bytes(left) + bytes(right) == bytes(merged). With BYTE and WORD alike, encoding
  cannot change the (normalized) text: decode(encode(b)) == b.
- No one-byte token, no word and no part or result of a merge is an added token. So text that is not trusted
  can never give a control id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slm2_web import container

SPLITS = ("gpt-2", "smollm", "qwen2", "llama-bpe", "qwen35")
Normalizer = Literal["none", "nfc-9.0", "as-received"]
NORMALIZERS: tuple[Normalizer, ...] = ("none", "nfc-9.0", "as-received")

NO_TOKEN = 0xFFFFFFFF
MAX_TOKENS = 1 << 20
MAX_TOKEN_BYTES = 1 << 16
MAX_STATES = 1 << 16
MAX_SLOTS = 1 << 22
ACCEPT, ACCEPT_BEFORE, ACCEPT_AT_END = 1, 2, 4
DEAD = 0

BLOCK_SHIFT = 7
N_NORM_INDEX = 0x110000 >> BLOCK_SHIFT
CCC_MASK, NOT_QUICK, LENGTH_SHIFT, LENGTH_MASK = 0xFF, 1 << 8, 16, 0xFF
MAX_DECOMPOSED = 18  # code points; the longest of Unicode 9.0 has 4

FNV_OFFSET, FNV_PRIME = 0x811C9DC5, 0x01000193

# Merges that are checked at once.
_PIECE = 1 << 13
_NEVER_IN_UTF8 = [0xC0, 0xC1, *range(0xF5, 0x100)]
_HEAD_FIELDS = (
    "n_tokens", "n_merges", "n_added", "normalizer", "split", "n_states", "n_byte_classes", "start_state",
    "n_pair_slots", "n_word_slots", "max_word_bytes", "n_marker_states", "n_marker_classes", "n_norm_blocks",
    "n_norm_records", "n_norm_decomposed", "n_norm_compositions",
)  # fmt: skip

Places = NDArray[np.intp]
Ids = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Shorts = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Tables:
    """The checked tables, read-only, where they lie. Shapes are those of the sections above."""

    normalizer: Normalizer
    split: str
    offsets: Ids
    blob: bytes | memoryview
    byte_ids: Ids
    merged: Ids
    added: Ids
    pair_base: Ids
    pair_slots: Ids
    words: Ids
    max_word_bytes: int
    marker_classes: Bytes
    marker_goto: Shorts
    marker_ends: Ids
    start_state: int
    split_classes: Bytes
    split_next: Shorts
    split_flags: Bytes
    norm_index: Shorts
    norm_blocks: Shorts
    norm_records: Ids
    norm_decomposed: Ids
    norm_compositions: Ids

    @property
    def n_tokens(self) -> int:
        """How many ids have a token."""
        return len(self.offsets) - 1


def pack(tables: Tables) -> bytes:
    """tokenizer.slm2tok for `tables`; reads back by `parse`, which is run here as a check."""
    head = (
        tables.n_tokens, len(tables.merged), len(tables.added), NORMALIZERS.index(tables.normalizer),
        SPLITS.index(tables.split), *tables.split_next.shape, tables.start_state, len(tables.pair_slots),
        len(tables.words), tables.max_word_bytes, *tables.marker_goto.shape, len(tables.norm_blocks),
        len(tables.norm_records), len(tables.norm_decomposed), len(tables.norm_compositions),
    )  # fmt: skip
    u8, u16, u32 = np.dtype("u1"), np.dtype("<u2"), np.dtype("<u4")
    arrays: dict[str, tuple[NDArray[Any], np.dtype[Any]]] = {
        "OFFS": (tables.offsets, u32),
        "BLOB": (np.frombuffer(tables.blob, u8), u8),
        "BYTE": (tables.byte_ids, u32),
        "MERG": (tables.merged, u32),
        "ADDT": (tables.added, u32),
        "PBAS": (tables.pair_base, u32),
        "PSLT": (tables.pair_slots, u32),
        "WORD": (tables.words, u32),
        "MCLS": (tables.marker_classes, u8),
        "MGTO": (tables.marker_goto, u16),
        "MEND": (tables.marker_ends, u32),
        "SCLS": (tables.split_classes, u8),
        "SNXT": (tables.split_next, u16),
        "SFLG": (tables.split_flags, u8),
        "NIDX": (tables.norm_index, u16),
        "NBLK": (tables.norm_blocks, u16),
        "NREC": (tables.norm_records, u32),
        "NDEC": (tables.norm_decomposed, u32),
        "NCMP": (tables.norm_compositions, u32),
    }
    sections = {"HEAD": np.array(head, u32).tobytes()}
    sections.update({tag: values.astype(kind).tobytes() for tag, (values, kind) in arrays.items()})
    data = container.write(sections)
    parse(data)
    return data


def parse(data: bytes | memoryview) -> Tables:
    """The tables in `data`, used in place.

    Raises: FormatError `format.tokenizer_file`.
    """
    sections = container.read(data, alignment=container.ALIGNMENT_BYTES)
    if tuple(sections) != _TAGS:
        raise container.damaged("sections", " ".join(sections), " ".join(_TAGS))
    n = dict(zip(_HEAD_FIELDS, _array(sections, "HEAD", "<u4", len(_HEAD_FIELDS)).tolist(), strict=True))
    for field, (least, most) in _LIMITS.items():
        if not least <= n[field] <= most:
            raise container.damaged(f"HEAD {field}", str(n[field]), f"{least} to {most}")
    normalizer = NORMALIZERS[n["normalizer"]]
    tables = Tables(
        normalizer=normalizer,
        split=SPLITS[n["split"]],
        offsets=_array(sections, "OFFS", "<u4", n["n_tokens"] + 1),
        blob=sections["BLOB"],
        byte_ids=_array(sections, "BYTE", "<u4", 256),
        merged=_array(sections, "MERG", "<u4", n["n_merges"]),
        added=_array(sections, "ADDT", "<u4", n["n_added"], 2),
        pair_base=_array(sections, "PBAS", "<u4", n["n_tokens"]),
        pair_slots=_array(sections, "PSLT", "<u4", n["n_pair_slots"], 2),
        words=_array(sections, "WORD", "<u4", n["n_word_slots"]),
        max_word_bytes=n["max_word_bytes"],
        marker_classes=_array(sections, "MCLS", "u1", 256),
        marker_goto=_array(sections, "MGTO", "<u2", n["n_marker_states"], n["n_marker_classes"]),
        marker_ends=_array(sections, "MEND", "<u4", n["n_marker_states"], 3),
        start_state=n["start_state"],
        split_classes=_array(sections, "SCLS", "u1", 256),
        split_next=_array(sections, "SNXT", "<u2", n["n_states"], n["n_byte_classes"]),
        split_flags=_array(sections, "SFLG", "u1", n["n_states"]),
        norm_index=_array(sections, "NIDX", "<u2", N_NORM_INDEX if normalizer == "nfc-9.0" else 0),
        norm_blocks=_array(sections, "NBLK", "<u2", n["n_norm_blocks"], 1 << BLOCK_SHIFT),
        norm_records=_array(sections, "NREC", "<u4", n["n_norm_records"], 2),
        norm_decomposed=_array(sections, "NDEC", "<u4", n["n_norm_decomposed"]),
        norm_compositions=_array(sections, "NCMP", "<u4", n["n_norm_compositions"], 3),
    )
    _check_offsets(tables)
    is_added = _check_added(tables)
    _check_byte_ids(tables, is_added)
    _check_merges(tables, is_added)
    _check_words(tables, is_added)
    _check_markers(tables)
    _check_split(tables)
    _check_norm(tables)
    return tables


_TAGS = (
    "HEAD", "OFFS", "BLOB", "BYTE", "MERG", "ADDT", "PBAS", "PSLT", "WORD", "MCLS",
    "MGTO", "MEND", "SCLS", "SNXT", "SFLG", "NIDX", "NBLK", "NREC", "NDEC", "NCMP",
)  # fmt: skip
_LIMITS = {
    "n_tokens": (1, MAX_TOKENS),
    "n_merges": (1, MAX_TOKENS),
    "n_added": (0, MAX_TOKENS),
    "normalizer": (0, len(NORMALIZERS) - 1),
    "split": (0, len(SPLITS) - 1),
    "n_states": (2, MAX_STATES),
    "n_byte_classes": (1, 256),
    "start_state": (1, MAX_STATES - 1),
    "n_pair_slots": (1, MAX_SLOTS),
    "n_word_slots": (1, MAX_SLOTS),
    "max_word_bytes": (0, MAX_TOKEN_BYTES),
    "n_marker_states": (1, MAX_STATES),
    "n_marker_classes": (1, 256),
    "n_norm_blocks": (0, N_NORM_INDEX),
    "n_norm_records": (0, MAX_STATES),
    "n_norm_decomposed": (0, MAX_STATES),
    "n_norm_compositions": (0, MAX_STATES),
}


def _check_offsets(tables: Tables) -> None:
    offsets = tables.offsets
    if offsets[0] != 0 or offsets[-1] != len(tables.blob):
        raise container.damaged("OFFS", f"{offsets[0]} to {offsets[-1]}", f"0 to {len(tables.blob)}")
    sizes = np.diff(offsets)  # of u32: a descent is a huge size
    if sizes.max() > MAX_TOKEN_BYTES:
        raise container.damaged("OFFS", "a token's size out of range", f"up to {MAX_TOKEN_BYTES} bytes")


def _check_added(tables: Tables) -> NDArray[np.bool_]:
    ids, special = tables.added[:, 0].astype(np.int64), tables.added[:, 1]
    if np.any(ids >= tables.n_tokens) or np.any(np.diff(ids) <= 0):
        raise container.damaged("ADDT", "ids out of range or order", f"ascending ids below {tables.n_tokens}")
    if np.any(special > 1):
        raise container.damaged("ADDT", "an unknown flag", "0 or 1")
    markers = {bytes(tables.blob[tables.offsets[i] : tables.offsets[i + 1]]) for i in ids.tolist()}
    if len(markers) != len(ids) or b"" in markers:
        raise container.damaged("ADDT", "a marker twice, or an empty one", "each marker once")
    is_added = np.zeros(tables.n_tokens, np.bool_)
    is_added[ids] = True
    return is_added


def _check_byte_ids(tables: Tables, is_added: NDArray[np.bool_]) -> None:
    (byte_values,) = np.nonzero(tables.byte_ids != NO_TOKEN)
    ids = tables.byte_ids[byte_values].astype(np.intp)
    if np.any(tables.byte_ids[byte_values] >= len(is_added)) or np.any(is_added[ids]):
        raise container.damaged("BYTE", "an id out of range or of an added token", "ids of ordinary tokens")
    starts = tables.offsets[ids]
    one_byte = tables.offsets[ids + 1] - starts == 1
    if not np.all(one_byte) or np.any(np.frombuffer(tables.blob, np.uint8)[starts] != byte_values):
        raise container.damaged("BYTE", "a token of other bytes", "tokens of just that byte")
    # NFC makes bytes that the text did not have; those of UTF-8 are all but C0, C1 and F5 to FF.
    if tables.normalizer == "nfc-9.0" and np.any(np.delete(tables.byte_ids, _NEVER_IN_UTF8) == NO_TOKEN):
        raise container.damaged(
            "BYTE", "no token for a byte of UTF-8", "one for each, as the file normalizes"
        )


def _check_merges(tables: Tables, is_added: NDArray[np.bool_]) -> None:
    base, slots = tables.pair_base, tables.pair_slots
    if len(slots) < tables.n_tokens or np.any((base >= len(slots)) & (base != NO_TOKEN)):
        raise container.damaged("PBAS", "a base out of range", f"below {len(slots)} slots, or none")
    (used,) = np.nonzero(slots[:, 0] != NO_TOKEN)
    if len(used) != len(tables.merged):
        raise container.damaged("PSLT", f"{len(used)} pairs", f"{len(tables.merged)}, one for each merge")
    left, rank = slots[used].T
    if np.any(left >= tables.n_tokens) or np.any(base[left] == NO_TOKEN):
        raise container.damaged("PSLT", "an owner without a row", "a token that has a base")
    if np.any(rank >= len(used)) or np.any(np.bincount(rank, minlength=len(used)) != 1):
        raise container.damaged("PSLT", "ranks that are not one each", "each rank of MERG once")
    words = _words_at_each_byte(tables.blob)
    # A piece at a time: a browser's heap never shrinks again.
    for i in range(0, len(used), _PIECE):
        piece = slice(i, i + _PIECE)
        _check_some_merges(tables, is_added, words, used[piece], left[piece], rank[piece])


def _check_some_merges(
    tables: Tables,
    is_added: NDArray[np.bool_],
    words: NDArray[np.uint64],
    used: Places,
    left: Ids,
    rank: Ids,
) -> None:
    n_slots = len(tables.pair_slots)
    right = used - tables.pair_base[left].astype(np.intp)
    right += n_slots * (right < 0)
    merged = tables.merged[rank]
    if np.any(right >= tables.n_tokens) or np.any(merged >= tables.n_tokens):
        raise container.damaged("MERG", "an id out of range", f"ids below {tables.n_tokens}")
    if np.any(is_added[left]) or np.any(is_added[right]) or np.any(is_added[merged]):
        raise container.damaged("MERG", "an added token", "ordinary tokens")
    left_at, left_size = _places(tables, left)
    right_at, right_size = _places(tables, right)
    merged_at, merged_size = _places(tables, merged)
    if np.any(left_size + right_size != merged_size) or not left_size.all() or not right_size.all():
        raise container.damaged("MERG", "a result of another length", "the length of its two parts")
    for at, part_at, size in ((merged_at, left_at, left_size), (merged_at + left_size, right_at, right_size)):
        if not _are_equal(words, part_at, at, size):
            raise container.damaged("MERG", "a result of other bytes", "the bytes of its two parts")


def _places(tables: Tables, ids: Ids | Places) -> tuple[Places, Places]:
    """(where each token begins in BLOB, its size)."""
    starts = tables.offsets[ids]
    return starts.astype(np.intp), (tables.offsets[ids + 1] - starts).astype(np.intp)


def _words_at_each_byte(blob: bytes | memoryview) -> NDArray[np.uint64]:
    """u64[len(blob)]: the eight bytes from each place on, with zeros after the end."""
    padded = np.frombuffer(bytes(blob) + bytes(8), np.uint8)
    return np.ndarray((len(blob),), "<u8", padded.data, strides=(1,))


def _are_equal(words: NDArray[np.uint64], first: Places, second: Places, sizes: Places) -> bool:
    """Whether the bytes at `first` are those at `second`, pair by pair, `sizes` of them."""
    while len(sizes):
        unused_bits = np.maximum(64 - 8 * sizes, 0).astype(np.uint64)
        if np.any((words[first] ^ words[second]) << unused_bits):
            return False
        (longer,) = np.nonzero(sizes > 8)
        first, second, sizes = first[longer] + 8, second[longer] + 8, sizes[longer] - 8
    return True


def _check_words(tables: Tables, is_added: NDArray[np.bool_]) -> None:
    n_slots = len(tables.words)
    (used,) = np.nonzero(tables.words)
    if n_slots & (n_slots - 1) or len(used) * 4 > n_slots * 3:
        raise container.damaged("WORD", f"{len(used)} of {n_slots} slots", "at most 3/4 of a power of two")
    ids = tables.words[used] - 1
    if np.any(ids >= len(is_added)) or np.any(is_added[ids]):
        raise container.damaged("WORD", "an id out of range or of an added token", "ids of ordinary tokens")
    sizes = tables.offsets[ids + 1] - tables.offsets[ids]
    if np.any(sizes > tables.max_word_bytes) or not sizes.all():
        raise container.damaged("WORD", "a token of another size", f"1 to {tables.max_word_bytes} bytes")


def _check_markers(tables: Tables) -> None:
    n_states, n_classes = tables.marker_goto.shape
    if tables.marker_classes.max() >= n_classes or tables.marker_goto.max() >= n_states:
        raise container.damaged(
            "MGTO", "a class or state out of range", f"{n_classes} classes, {n_states} states"
        )
    id_plus_1, length, depth = tables.marker_ends.astype(np.int64).T
    (ends,) = np.nonzero(id_plus_1)
    ids = id_plus_1[ends] - 1
    if not np.isin(ids, tables.added[:, 0]).all() or set(tables.added[:, 0].tolist()) - set(ids.tolist()):
        raise container.damaged(
            "MEND", "an id that is no added token, or one that is missing", "each of ADDT"
        )
    sizes = np.diff(tables.offsets.astype(np.int64))[ids]
    # Each byte makes the state at most one deeper, so a marker that ends in a state was read by then.
    deepest = depth[tables.marker_goto].max(axis=1)
    if (
        np.any(length[ends] != sizes)
        or np.any(length > depth)
        or depth[0] != 0
        or np.any(deepest > depth + 1)
    ):
        raise container.damaged("MEND", "lengths or depths that do not fit", "those of the markers")


def _check_split(tables: Tables) -> None:
    n_states, n_classes = tables.split_next.shape
    if tables.split_classes.max() >= n_classes or tables.split_next.max() >= n_states:
        raise container.damaged(
            "SNXT", "a class or state out of range", f"{n_classes} classes, {n_states} states"
        )
    if tables.start_state >= n_states or np.any(tables.split_next[DEAD]) or tables.split_flags[DEAD]:
        raise container.damaged("SNXT", "a dead state that lives, or no start state", "state 0 dead")
    flags = tables.split_flags
    if not np.isin(flags, (0, ACCEPT, ACCEPT_BEFORE, ACCEPT_AT_END, ACCEPT_BEFORE | ACCEPT_AT_END)).all():
        raise container.damaged("SFLG", "unknown flags", "0, 1, 2, 4, 6")
    if flags[tables.start_state]:
        raise container.damaged("SFLG", "a match of nothing", "0 for the start state")


def _check_norm(tables: Tables) -> None:
    records, decomposed = tables.norm_records, tables.norm_decomposed
    if tables.normalizer != "nfc-9.0":
        if len(tables.norm_blocks) or len(records) or len(decomposed) or len(tables.norm_compositions):
            raise container.damaged("NREC", "tables", "none for this normalizer")
        return
    if not len(tables.norm_blocks) or tables.norm_index.max() >= len(tables.norm_blocks):
        raise container.damaged("NIDX", "a block out of range", f"below {len(tables.norm_blocks)}")
    if not len(records) or tables.norm_blocks.max() >= len(records):
        raise container.damaged("NBLK", "a record out of range", f"below {len(records)}")
    length, start = records[:, 0] >> LENGTH_SHIFT, records[:, 1].astype(np.int64)
    if np.any(records[0]) or np.any(length > MAX_DECOMPOSED) or np.any(start + length > len(decomposed)):
        raise container.damaged(
            "NREC", "a decomposition out of range", f"within {len(decomposed)} code points"
        )
    for tag, values in (("NDEC", decomposed), ("NCMP", tables.norm_compositions)):
        if np.any(values > 0x10FFFF) or np.any((values >= 0xD800) & (values < 0xE000)):
            raise container.damaged(tag, "a value that is no character", "code points but surrogates")
    pairs = tables.norm_compositions[:, 0].astype(np.int64) << 32 | tables.norm_compositions[:, 1]
    if np.any(np.diff(pairs) <= 0):
        raise container.damaged("NCMP", "pairs out of order", "ascending pairs")


def int_view(values: NDArray[Any]) -> memoryview[int]:
    """`values` indexed to Python integers, without the size of a list or the slowness of numpy's scalars."""
    raw = np.ascontiguousarray(values).data.cast("B")
    if values.itemsize == 1:
        return raw
    return raw.cast("H") if values.itemsize == 2 else raw.cast("I")


def _array(sections: dict[str, memoryview], tag: str, kind: str, *shape: int) -> NDArray[Any]:
    dtype = np.dtype(kind)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if len(sections[tag]) != size:
        raise container.damaged(tag, f"{len(sections[tag])} bytes", f"{size}")
    return np.frombuffer(sections[tag], dtype).astype(dtype.newbyteorder("="), copy=False).reshape(shape)
