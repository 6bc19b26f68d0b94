"""A byte-level BPE vocabulary, from whatever file, checked -> the tables of tokenizer.slm2tok.

What a source says in its own words (GGUF: tokenizer.py, tokenizer.json: tokenizer_json.py) becomes a
`Vocabulary`; `build` checks what holds for any source and makes the tables. What is not understood is refused
by name: no near miss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slm2_web.compile.dfa import split_automaton
from slm2_web.compile.nfc import nfc_tables
from slm2_web.compile.trie import double_array, hash_table, marker_automaton
from slm2_web.errors import FormatError
from slm2_web.tokenizer2.merge import Merger
from slm2_web.tokenizer2.tables import (
    MAX_TOKEN_BYTES,
    MAX_TOKENS,
    NO_TOKEN,
    Ids,
    Normalizer,
    Tables,
    int_view,
    pack,
)

# Bytes that a vocabulary may lack: no UTF-8 text holds C0, C1 and F5..FF; F1 and F2 open the planes 4 to 11,
# which hold no character; the others are control characters (not tab, line feed, carriage return).
# Text that has one is refused when encoded (`input.character`); it is never dropped.
OPTIONAL_BYTES = frozenset(
    {0xC0, 0xC1, *range(0xF5, 0x100), 0xF1, 0xF2, 0x7F} | (set(range(0x20)) - {0x09, 0x0A, 0x0D})
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a source says. `place` names the source in errors; `vocab_place` and `merges_place` the parts in
    it."""

    place: str
    vocab_place: str
    merges_place: str
    split: str
    normalizer: Normalizer
    ordinary: Mapping[str, int]  # byte-level spelling -> id
    added: Mapping[str, tuple[int, bool]]  # marker's text -> (id, special)
    merges: Sequence[tuple[str, str]]
    optional_bytes: frozenset[int] = frozenset()
    ignores_merges: bool = (
        False  # whether a piece that is a token is that token, whatever the merges make of it
    )


def byte_alphabet() -> dict[str, int]:
    """Byte by the character that spells it: printable Latin-1 as itself, the others from U+0100 on.

    Source: GPT-2's bytes_to_unicode.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return alphabet


_ALPHABET = byte_alphabet()
_AS_LATIN_1 = str.maketrans({char: chr(byte) for char, byte in _ALPHABET.items()})
_NOT_ALPHABET = {ord(char): None for char in _ALPHABET}


def unsupported(place: str, found: object, allowed: str) -> FormatError:
    """The error for something that is valid, but not what we support."""
    text = found if isinstance(found, str) else repr(found)
    text = text if len(text) <= 100 else text[:97] + "..."
    return FormatError(
        "format.unsupported",
        f"{place}: found {text}; allowed: {allowed}",
        {"place": place, "found": text, "allowed": allowed},
    )


def build(vocabulary: Vocabulary) -> bytes:
    """tokenizer.slm2tok for `vocabulary`.

    Raises: FormatError `format.unsupported`, which names the place, what was found and what is allowed.
    """
    spellings = _spellings(vocabulary)
    offsets = np.cumsum([0, *map(len, spellings)]).astype(np.uint32)
    byte_ids = _byte_ids(vocabulary)
    merges = _merges(vocabulary)
    pair_base, pair_slots = double_array(merges, len(spellings))
    merger = Merger(pair_base, pair_slots, merges[:, 2])
    to_id = int_view(byte_ids)
    words = [
        (spelling, token_id)
        for token_id in sorted(vocabulary.ordinary.values())
        if _merges_to_itself(spelling := spellings[token_id], token_id, to_id, merger)
    ]
    if vocabulary.ignores_merges and len(words) != len(vocabulary.ordinary):
        odd = min(set(vocabulary.ordinary.values()) - {token_id for _, token_id in words})
        raise unsupported(
            f"{vocabulary.place} ignore_merges",
            f"true, with token {odd} ({spellings[odd]!r}), which the merges do not make",
            "true only where the merges make every token, so that it has no effect",
        )
    markers = {marker.encode("utf-8"): token_id for marker, (token_id, _) in vocabulary.added.items()}
    marker_classes, marker_goto, marker_ends = marker_automaton(markers)
    split = split_automaton(vocabulary.split)
    normalizes = vocabulary.normalizer == "nfc-9.0"
    nfc = nfc_tables()
    no_shorts, no_words = np.empty(0, np.uint16), np.empty(0, np.uint32)
    added = sorted((token_id, int(special)) for token_id, special in vocabulary.added.values())
    return pack(
        Tables(
            normalizer=vocabulary.normalizer,
            split=vocabulary.split,
            offsets=offsets,
            blob=b"".join(spellings),
            byte_ids=byte_ids,
            merged=merges[:, 2],
            added=np.array(added, np.uint32).reshape(-1, 2),
            pair_base=pair_base,
            pair_slots=pair_slots,
            words=hash_table(words),
            max_word_bytes=max(len(word) for word, _ in words),
            marker_classes=marker_classes,
            marker_goto=marker_goto,
            marker_ends=marker_ends,
            start_state=split.start,
            split_classes=split.classes,
            split_next=split.goto,
            split_flags=split.flags,
            norm_index=nfc.index if normalizes else no_shorts,
            norm_blocks=nfc.blocks if normalizes else no_shorts.reshape(0, nfc.blocks.shape[1]),
            norm_records=nfc.records if normalizes else no_words.reshape(0, 2),
            norm_decomposed=nfc.decomposed if normalizes else no_words,
            norm_compositions=nfc.compositions if normalizes else no_words.reshape(0, 3),
        )
    )


def _spellings(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of each id; none for an id without a token."""
    place = vocabulary.vocab_place
    n_tokens = 1 + max(
        [*vocabulary.ordinary.values(), *(i for i, _ in vocabulary.added.values())], default=-1
    )
    if not 1 <= n_tokens <= MAX_TOKENS:
        raise unsupported(place, f"{n_tokens} ids", f"1 to {MAX_TOKENS}")
    spellings = [b""] * n_tokens
    for token, token_id in vocabulary.ordinary.items():
        _spell(spellings, token_id, _byte_level(token, f"{place}[{token_id}]"), place)
    for marker, (token_id, _) in vocabulary.added.items():
        _spell(spellings, token_id, _utf8(marker, f"{place}[{token_id}]"), place)
    return spellings


def _spell(spellings: list[bytes], token_id: int, spelling: bytes, place: str) -> None:
    if token_id < 0 or spellings[token_id]:
        raise unsupported(f"{place}[{token_id}]", f"this id again, for {spelling!r}", "each id once")
    if not 1 <= len(spelling) <= MAX_TOKEN_BYTES:
        raise unsupported(f"{place}[{token_id}]", f"{len(spelling)} bytes", f"1 to {MAX_TOKEN_BYTES}")
    spellings[token_id] = spelling


def _byte_level(token: str, place: str) -> bytes:
    strange = token.translate(_NOT_ALPHABET)
    if strange:
        found = f"{token!r}, which has {strange[0]!r}"
        raise unsupported(place, found, "characters of the byte-level alphabet")
    return token.translate(_AS_LATIN_1).encode("latin-1")


def _utf8(marker: str, place: str) -> bytes:
    try:
        return marker.encode("utf-8")
    except UnicodeEncodeError:
        raise unsupported(place, f"{marker!r}, which has a lone surrogate", "well-formed text") from None


def _byte_ids(vocabulary: Vocabulary) -> Ids:
    byte_ids = np.full(256, NO_TOKEN, np.uint32)
    for char, byte in _ALPHABET.items():
        if char in vocabulary.ordinary:
            byte_ids[byte] = vocabulary.ordinary[char]
        elif byte not in vocabulary.optional_bytes:
            raise unsupported(vocabulary.vocab_place, f"no token for byte 0x{byte:02X}", "one for each byte")
    return byte_ids


def _merges(vocabulary: Vocabulary) -> Ids:
    merges, ordinary = vocabulary.merges, vocabulary.ordinary
    if not 1 <= len(merges) <= MAX_TOKENS:
        raise unsupported(vocabulary.merges_place, f"{len(merges)} entries", f"1 to {MAX_TOKENS}")
    rows = []
    ranks: dict[tuple[str, str], int] = {}
    for rank, merge in enumerate(merges):
        first = ranks.setdefault(merge, rank)
        place = f"{vocabulary.merges_place}[{rank}]"
        if first != rank:
            raise unsupported(place, " ".join(merge), f"a merge once; it is also entry {first}")
        left, right = merge
        for token in (left, right, left + right):
            if token not in ordinary:
                found = f"{' '.join(merge)!r}, where {token!r} is no ordinary token"
                raise unsupported(place, found, "parts and results that are tokens")
        rows.append((ordinary[left], ordinary[right], ordinary[left + right]))
    return np.array(rows, np.uint32)


def _merges_to_itself(spelling: bytes, token_id: int, to_id: memoryview[int], merger: Merger) -> bool:
    ids = [to_id[byte] for byte in spelling]
    return NO_TOKEN not in ids and merger.merge(ids) == [token_id]
