"""The tables of NFC, from nfc_ucd9.json: canonical properties of Unicode 9.0 (make_nfc_ucd9.py writes it).

Source: Unicode Standard Annex #15; its `NFC_Quick_Check` follows from the compositions: No for what NFC never
holds, Maybe for what may compose with a character before it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from slm2_web.tokenizer2.normalize import JAMO_T, JAMO_V
from slm2_web.tokenizer2.tables import BLOCK_SHIFT, LENGTH_SHIFT, NOT_QUICK, Ids, Shorts

DATA_FILE = Path(__file__).with_name("nfc_ucd9.json")


@dataclass(frozen=True, slots=True, eq=False)
class NfcTables:
    """What the sections NIDX, NBLK, NREC, NDEC and NCMP hold."""

    index: Shorts
    blocks: Shorts
    records: Ids
    decomposed: Ids
    compositions: Ids


@lru_cache(maxsize=1)
def nfc_tables() -> NfcTables:
    """The tables of NFC of Unicode 9.0."""
    data = json.loads(DATA_FILE.read_text("utf-8"))
    combining: dict[int, int] = {}
    for text, combining_class in data["combining_classes"].items():
        first, _, last = text.partition("-")
        combining.update(dict.fromkeys(range(int(first, 16), int(last, 16) + 1), combining_class))
    parts = {int(c, 16): [int(p, 16) for p in text.split()] for c, text in data["decompositions"].items()}
    never_composed = {int(code, 16) for code in data["never_composed"]}
    compositions = sorted(
        (*two, code) for code, two in parts.items() if len(two) == 2 and code not in never_composed
    )
    not_quick = {code for code, some in parts.items() if len(some) == 1}.union(
        never_composed, (second for _, second, _ in compositions), JAMO_V, JAMO_T
    )
    decomposed: list[int] = []
    records = {(0, 0): 0}
    of_char = np.zeros(0x110000, np.uint16)
    for code in sorted({*combining, *parts, *not_quick}):
        flags = combining.get(code, 0) | (NOT_QUICK if code in not_quick else 0)
        start = 0
        if code in parts:
            full = _fully(code, parts)
            flags |= len(full) << LENGTH_SHIFT
            start = len(decomposed)
            decomposed += full
        of_char[code] = records.setdefault((flags, start), len(records))
    blocks, index = np.unique(of_char.reshape(-1, 1 << BLOCK_SHIFT), axis=0, return_inverse=True)
    return NfcTables(
        index=index.reshape(-1).astype(np.uint16),
        blocks=blocks,
        records=np.array(list(records), np.uint32),
        decomposed=np.array(decomposed, np.uint32),
        compositions=np.array(compositions, np.uint32),
    )


def _fully(code: int, parts: dict[int, list[int]]) -> list[int]:
    """The full canonical decomposition; the data has its marks in canonical order already."""
    return [leaf for part in parts[code] for leaf in _fully(part, parts)] if code in parts else [code]
