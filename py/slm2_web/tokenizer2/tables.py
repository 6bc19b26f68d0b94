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

`parse` takes a file in this memory and gives all tables. `parse_remote` takes one that lies in another
memory, where a kernel works on it, and gives what is needed beside the kernel, the vocabulary; the big tables
are copied a part at a time, checked, and dropped.

What either accepts has these properties, which the code that uses the tables relies on:

- Every index stays in its table, whatever the text.
- Every merge concatenates: bytes(left) + bytes(right) == bytes(merged). With BYTE and WORD alike, encoding
  cannot change the (normalized) text: decode(encode(b)) == b.
- No one-byte token, no word and no part or result of a merge is an added token. So text that is not trusted
  can never give a control id.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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

# Slots that are checked at once.
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
class Vocabulary:
    """The tables that say what an id is, and find added tokens. Shapes are those of the sections above."""

    normalizer: Normalizer
    split: str
    offsets: Ids
    blob: bytes | memoryview
    byte_ids: Ids
    added: Ids
    marker_classes: Bytes
    marker_goto: Shorts
    marker_ends: Ids

    @property
    def n_tokens(self) -> int:
        """How many ids have a token."""
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class Tables(Vocabulary):
    """The checked tables, read-only, where they lie. Shapes are those of the sections above."""

    merged: Ids
    pair_base: Ids
    pair_slots: Ids
    words: Ids
    max_word_bytes: int
    start_state: int
    split_classes: Bytes
    split_next: Shorts
    split_flags: Bytes
    norm_index: Shorts
    norm_blocks: Shorts
    norm_records: Ids
    norm_decomposed: Ids
    norm_compositions: Ids


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
    file = _File(container.read(data, alignment=container.ALIGNMENT_BYTES))
    vocabulary = _checked(file)
    return Tables(
        normalizer=vocabulary.normalizer,
        split=vocabulary.split,
        offsets=vocabulary.offsets,
        blob=vocabulary.blob,
        byte_ids=vocabulary.byte_ids,
        added=vocabulary.added,
        merged=file.array("MERG"),
        pair_base=file.array("PBAS"),
        pair_slots=file.array("PSLT"),
        words=file.array("WORD"),
        max_word_bytes=file.head["max_word_bytes"],
        marker_classes=vocabulary.marker_classes,
        marker_goto=vocabulary.marker_goto,
        marker_ends=vocabulary.marker_ends,
        start_state=file.head["start_state"],
        split_classes=file.array("SCLS"),
        split_next=file.array("SNXT"),
        split_flags=file.array("SFLG"),
        norm_index=file.array("NIDX"),
        norm_blocks=file.array("NBLK"),
        norm_records=file.array("NREC"),
        norm_decomposed=file.array("NDEC"),
        norm_compositions=file.array("NCMP"),
    )


def parse_remote(source: container.Source) -> Vocabulary:
    """The vocabulary in a file that lies elsewhere, copied; all its tables are checked as `parse` does.

    Not compared is the file's own sha256 (container.open_remote).

    Raises: FormatError `format.tokenizer_file`.
    """
    return _checked(_File(container.open_remote(source, alignment=container.ALIGNMENT_BYTES)))


class _File:
    """The sections as arrays, each made when it is asked for. `head`: HEAD by name."""

    def __init__(self, sections: Mapping[str, container.Section]) -> None:
        """Raises: FormatError."""
        if tuple(sections) != _TAGS:
            raise container.damaged("sections", " ".join(sections), " ".join(_TAGS))
        self._sections = sections
        fields = _as_array("HEAD", sections["HEAD"][:], "<u4", (len(_HEAD_FIELDS),))
        n = self.head = dict(zip(_HEAD_FIELDS, fields.tolist(), strict=True))
        for field, (least, most) in _LIMITS.items():
            if not least <= n[field] <= most:
                raise container.damaged(f"HEAD {field}", str(n[field]), f"{least} to {most}")
        self.normalizer = NORMALIZERS[n["normalizer"]]
        self._kinds: dict[str, tuple[str, tuple[int, ...]]] = {
            "OFFS": ("<u4", (n["n_tokens"] + 1,)),
            "BYTE": ("<u4", (256,)),
            "MERG": ("<u4", (n["n_merges"],)),
            "ADDT": ("<u4", (n["n_added"], 2)),
            "PBAS": ("<u4", (n["n_tokens"],)),
            "PSLT": ("<u4", (n["n_pair_slots"], 2)),
            "WORD": ("<u4", (n["n_word_slots"],)),
            "MCLS": ("u1", (256,)),
            "MGTO": ("<u2", (n["n_marker_states"], n["n_marker_classes"])),
            "MEND": ("<u4", (n["n_marker_states"], 3)),
            "SCLS": ("u1", (256,)),
            "SNXT": ("<u2", (n["n_states"], n["n_byte_classes"])),
            "SFLG": ("u1", (n["n_states"],)),
            "NIDX": ("<u2", (N_NORM_INDEX if self.normalizer == "nfc-9.0" else 0,)),
            "NBLK": ("<u2", (n["n_norm_blocks"], 1 << BLOCK_SHIFT)),
            "NREC": ("<u4", (n["n_norm_records"], 2)),
            "NDEC": ("<u4", (n["n_norm_decomposed"],)),
            "NCMP": ("<u4", (n["n_norm_compositions"], 3)),
        }
        for tag, (kind, shape) in self._kinds.items():
            _check_size(tag, len(sections[tag]), kind, shape)

    @property
    def blob(self) -> memoryview:
        """BLOB."""
        return self._sections["BLOB"][:]

    def array(self, tag: str) -> NDArray[Any]:
        """The whole section."""
        kind, shape = self._kinds[tag]
        return _as_array(tag, self._sections[tag][:], kind, shape)

    def pieces(self, tag: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """(first row, at most _PIECE rows) of the section, one after the other."""
        kind, (n_rows, *rest) = self._kinds[tag]
        row_bytes = np.dtype(kind).itemsize * math.prod(rest)
        for first in range(0, n_rows, _PIECE):
            shape = (min(_PIECE, n_rows - first), *rest)
            start = first * row_bytes
            yield (
                first,
                _as_array(tag, self._sections[tag][start : start + shape[0] * row_bytes], kind, shape),
            )


def _checked(file: _File) -> Vocabulary:
    """The vocabulary of a file all of whose tables are good. Raises: FormatError."""
    vocabulary = Vocabulary(
        normalizer=file.normalizer,
        split=SPLITS[file.head["split"]],
        offsets=file.array("OFFS"),
        blob=file.blob,
        byte_ids=file.array("BYTE"),
        added=file.array("ADDT"),
        marker_classes=file.array("MCLS"),
        marker_goto=file.array("MGTO"),
        marker_ends=file.array("MEND"),
    )
    _check_offsets(vocabulary)
    is_added = _check_added(vocabulary)
    _check_byte_ids(vocabulary, is_added)
    _check_merges(file, vocabulary, is_added)
    _check_words(file, vocabulary, is_added)
    _check_markers(vocabulary)
    _check_split(file)
    _check_norm(file)
    return vocabulary


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


def _check_offsets(tables: Vocabulary) -> None:
    offsets = tables.offsets
    if offsets[0] != 0 or offsets[-1] != len(tables.blob):
        raise container.damaged("OFFS", f"{offsets[0]} to {offsets[-1]}", f"0 to {len(tables.blob)}")
    sizes = np.diff(offsets)  # of u32: a descent is a huge size
    if sizes.max() > MAX_TOKEN_BYTES:
        raise container.damaged("OFFS", "a token's size out of range", f"up to {MAX_TOKEN_BYTES} bytes")


def _check_added(tables: Vocabulary) -> NDArray[np.bool_]:
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


def _check_byte_ids(tables: Vocabulary, is_added: NDArray[np.bool_]) -> None:
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


def _check_merges(file: _File, tables: Vocabulary, is_added: NDArray[np.bool_]) -> None:
    base, merged, n_slots = file.array("PBAS"), file.array("MERG"), file.head["n_pair_slots"]
    if n_slots < tables.n_tokens or np.any((base >= n_slots) & (base != NO_TOKEN)):
        raise container.damaged("PBAS", "a base out of range", f"below {n_slots} slots, or none")
    n_pairs = sum(np.count_nonzero(slots[:, 0] != NO_TOKEN) for _, slots in file.pieces("PSLT"))
    if n_pairs != len(merged):
        raise container.damaged("PSLT", f"{n_pairs} pairs", f"{len(merged)}, one for each merge")
    words = _words_at_each_byte(tables.blob)
    is_seen = np.zeros(len(merged), np.bool_)
    # A piece at a time: a browser's heap never shrinks again.
    for first, slots in file.pieces("PSLT"):
        (used,) = np.nonzero(slots[:, 0] != NO_TOKEN)
        left, rank = slots[used].T
        if np.any(left >= tables.n_tokens) or np.any(base[left] == NO_TOKEN):
            raise container.damaged("PSLT", "an owner without a row", "a token that has a base")
        if np.any(rank >= n_pairs) or np.any(is_seen[rank]) or not np.all(np.diff(np.sort(rank))):
            raise container.damaged("PSLT", "ranks that are not one each", "each rank of MERG once")
        is_seen[rank] = True
        right = used + first - base[left].astype(np.intp)
        right += n_slots * (right < 0)
        _check_some_merges(tables, is_added, words, left, right, merged[rank])


def _check_some_merges(
    tables: Vocabulary,
    is_added: NDArray[np.bool_],
    words: NDArray[np.uint64],
    left: Ids,
    right: Places,
    merged: Ids,
) -> None:
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


def _places(tables: Vocabulary, ids: Ids | Places) -> tuple[Places, Places]:
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


def _check_words(file: _File, tables: Vocabulary, is_added: NDArray[np.bool_]) -> None:
    n_slots, max_bytes = file.head["n_word_slots"], file.head["max_word_bytes"]
    n_used = 0
    for _, slots in file.pieces("WORD"):
        ids = slots[slots != 0] - 1
        n_used += len(ids)
        if np.any(ids >= len(is_added)) or np.any(is_added[ids]):
            raise container.damaged(
                "WORD", "an id out of range or of an added token", "ids of ordinary tokens"
            )
        sizes = tables.offsets[ids + 1] - tables.offsets[ids]
        if np.any(sizes > max_bytes) or not sizes.all():
            raise container.damaged("WORD", "a token of another size", f"1 to {max_bytes} bytes")
    if n_slots & (n_slots - 1) or n_used * 4 > n_slots * 3:
        raise container.damaged("WORD", f"{n_used} of {n_slots} slots", "at most 3/4 of a power of two")


def _check_markers(tables: Vocabulary) -> None:
    goto = tables.marker_goto
    n_states, n_classes = goto.shape
    if tables.marker_classes.max() >= n_classes or goto.max() >= n_states:
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
    sizes = tables.offsets[ids + 1].astype(np.int64) - tables.offsets[ids]
    # Each byte makes the state at most one deeper, so a marker that ends in a state was read by then.
    deepest = depth[goto].max(axis=1)
    if (
        np.any(length[ends] != sizes)
        or np.any(length > depth)
        or depth[0] != 0
        or np.any(deepest > depth + 1)
    ):
        raise container.damaged("MEND", "lengths or depths that do not fit", "those of the markers")


def _check_split(file: _File) -> None:
    following, flags, start_state = file.array("SNXT"), file.array("SFLG"), file.head["start_state"]
    n_states, n_classes = following.shape
    if file.array("SCLS").max() >= n_classes or following.max() >= n_states:
        raise container.damaged(
            "SNXT", "a class or state out of range", f"{n_classes} classes, {n_states} states"
        )
    if start_state >= n_states or np.any(following[DEAD]) or flags[DEAD]:
        raise container.damaged("SNXT", "a dead state that lives, or no start state", "state 0 dead")
    if not np.isin(flags, (0, ACCEPT, ACCEPT_BEFORE, ACCEPT_AT_END, ACCEPT_BEFORE | ACCEPT_AT_END)).all():
        raise container.damaged("SFLG", "unknown flags", "0, 1, 2, 4, 6")
    if flags[start_state]:
        raise container.damaged("SFLG", "a match of nothing", "0 for the start state")


def _check_norm(file: _File) -> None:
    blocks, records, decomposed = file.array("NBLK"), file.array("NREC"), file.array("NDEC")
    compositions = file.array("NCMP")
    if file.normalizer != "nfc-9.0":
        if len(blocks) or len(records) or len(decomposed) or len(compositions):
            raise container.damaged("NREC", "tables", "none for this normalizer")
        return
    if not len(blocks) or file.array("NIDX").max() >= len(blocks):
        raise container.damaged("NIDX", "a block out of range", f"below {len(blocks)}")
    if not len(records) or blocks.max() >= len(records):
        raise container.damaged("NBLK", "a record out of range", f"below {len(records)}")
    length, start = records[:, 0] >> LENGTH_SHIFT, records[:, 1].astype(np.int64)
    if np.any(records[0]) or np.any(length > MAX_DECOMPOSED) or np.any(start + length > len(decomposed)):
        raise container.damaged(
            "NREC", "a decomposition out of range", f"within {len(decomposed)} code points"
        )
    for tag, values in (("NDEC", decomposed), ("NCMP", compositions)):
        if np.any(values > 0x10FFFF) or np.any((values >= 0xD800) & (values < 0xE000)):
            raise container.damaged(tag, "a value that is no character", "code points but surrogates")
    pairs = compositions[:, 0].astype(np.int64) << 32 | compositions[:, 1]
    if np.any(np.diff(pairs) <= 0):
        raise container.damaged("NCMP", "pairs out of order", "ascending pairs")


def int_view(values: NDArray[Any]) -> memoryview[int]:
    """`values` indexed to Python integers, without the size of a list or the slowness of numpy's scalars."""
    raw = np.ascontiguousarray(values).data.cast("B")
    if values.itemsize == 1:
        return raw
    return raw.cast("H") if values.itemsize == 2 else raw.cast("I")


def _as_array(tag: str, data: memoryview, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    _check_size(tag, len(data), kind, shape)
    dtype = np.dtype(kind)
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False).reshape(shape)


def _check_size(tag: str, n_bytes: int, kind: str, shape: tuple[int, ...]) -> None:
    size = np.dtype(kind).itemsize * math.prod(shape)
    if n_bytes != size:
        raise container.damaged(tag, f"{n_bytes} bytes", f"{size}")
