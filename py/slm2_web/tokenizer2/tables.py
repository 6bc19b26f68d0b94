"""tokenizer.slm2tok: the tables of a byte-level BPE tokenizer, packed for use in place.

    section  content
    HEAD     u32[5]: n_tokens, n_merges, n_added, n_classes, index of the split pattern in SPLITS
    OFFS     u32[n_tokens + 1]: where each token's bytes begin in BLOB
    BLOB     the tokens' bytes, one after the other; an added token's are its marker's text
    BYTE     u32[256]: id of the one-byte token, or NO_TOKEN
    MERG     u32[n_merges, 3]: left id, right id, merged id; the row number is the rank
    ADDT     u32[n_added, 2]: id, ascending; 1 if special (hidden by decode's "hide"), else 0
    CLAS     u32[n_classes, 3]: first and last code point, class (split.py); ascending, disjoint

What `parse` accepts has these properties, which the code that uses the tables relies on:

- Every merge concatenates: bytes(left) + bytes(right) == bytes(merged). With BYTE checked alike, encoding
  cannot change the text: decode(encode(b)) == b.
- No one-byte token and no part or result of a merge is an added token. So the merges can never give a
  control id, whatever the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slm2_web import container

SPLITS = ("gpt-2", "smollm")
CLASS_NAMES = ("other", "letter", "number", "whitespace")
NO_TOKEN = 0xFFFFFFFF
MAX_TOKENS = 1 << 20
MAX_TOKEN_BYTES = 1 << 16
MAX_CODE_POINT = 0x10FFFF

_ROWS_AT_ONCE = 1 << 12  # bounds the memory that the check of the merges takes

Ids = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Tables:
    """The checked tables. Arrays are u32 and read-only; `blob` holds the tokens' bytes."""

    split: str
    offsets: Ids
    blob: bytes | memoryview
    byte_ids: Ids
    merges: Ids
    added: Ids
    classes: Ids


def pack(tables: Tables) -> bytes:
    """tokenizer.slm2tok for `tables`; reads back by `parse`, which is run here as a check."""
    head = (
        len(tables.offsets) - 1,
        len(tables.merges),
        len(tables.added),
        len(tables.classes),
        SPLITS.index(tables.split),
    )
    data = container.write(
        {
            "HEAD": _u32_bytes(np.array(head)),
            "OFFS": _u32_bytes(tables.offsets),
            "BLOB": bytes(tables.blob),
            "BYTE": _u32_bytes(tables.byte_ids),
            "MERG": _u32_bytes(tables.merges),
            "ADDT": _u32_bytes(tables.added),
            "CLAS": _u32_bytes(tables.classes),
        }
    )
    parse(data)
    return data


def parse(data: bytes | memoryview) -> Tables:
    """The tables in `data`, used in place.

    Raises: FormatError `format.tokenizer_file`.
    """
    sections = container.read(data)
    expected = {"HEAD", "OFFS", "BLOB", "BYTE", "MERG", "ADDT", "CLAS"}
    if set(sections) != expected:
        raise container.damaged("sections", " ".join(sections), " ".join(sorted(expected)))
    n_tokens, n_merges, n_added, n_classes, split = _u32(sections, "HEAD", 5).tolist()
    for name, count in (("n_tokens", n_tokens), ("n_merges", n_merges), ("n_classes", n_classes)):
        if not 1 <= count <= MAX_TOKENS:
            raise container.damaged(f"HEAD {name}", str(count), f"1 to {MAX_TOKENS}")
    if n_added > n_tokens:
        raise container.damaged("HEAD n_added", str(n_added), f"at most {n_tokens}")
    if split >= len(SPLITS):
        raise container.damaged("HEAD split", str(split), f"0 to {len(SPLITS) - 1}")
    tables = Tables(
        split=SPLITS[split],
        offsets=_u32(sections, "OFFS", n_tokens + 1),
        blob=sections["BLOB"],
        byte_ids=_u32(sections, "BYTE", 256),
        merges=_u32(sections, "MERG", n_merges, 3),
        added=_u32(sections, "ADDT", n_added, 2),
        classes=_u32(sections, "CLAS", n_classes, 3),
    )
    _check_offsets(tables)
    is_added = _check_added(tables)
    _check_byte_ids(tables, is_added)
    _check_merges(tables, is_added)
    _check_classes(tables)
    return tables


def _check_offsets(tables: Tables) -> None:
    offsets = tables.offsets
    sizes = np.diff(offsets.astype(np.int64))
    if offsets[0] != 0 or offsets[-1] != len(tables.blob):
        raise container.damaged("OFFS", f"{offsets[0]} to {offsets[-1]}", f"0 to {len(tables.blob)}")
    if sizes.min() < 1 or sizes.max() > MAX_TOKEN_BYTES:
        raise container.damaged("OFFS", "a token's size out of range", f"1 to {MAX_TOKEN_BYTES} bytes")


def _check_added(tables: Tables) -> NDArray[np.bool_]:
    n_tokens = len(tables.offsets) - 1
    ids, special = tables.added[:, 0].astype(np.int64), tables.added[:, 1]
    if np.any(ids >= n_tokens) or np.any(np.diff(ids) <= 0):
        raise container.damaged("ADDT", "ids out of range or order", f"ascending ids below {n_tokens}")
    if np.any(special > 1):
        raise container.damaged("ADDT", "an unknown flag", "0 or 1")
    markers = {bytes(tables.blob[tables.offsets[i] : tables.offsets[i + 1]]) for i in ids.tolist()}
    if len(markers) != len(ids):
        raise container.damaged("ADDT", "a marker twice", "each marker once")
    is_added = np.zeros(n_tokens, np.bool_)
    is_added[ids] = True
    return is_added


def _check_byte_ids(tables: Tables, is_added: NDArray[np.bool_]) -> None:
    (byte_values,) = np.nonzero(tables.byte_ids != NO_TOKEN)
    ids = tables.byte_ids[byte_values].astype(np.int64)
    if np.any(ids >= len(is_added)) or np.any(is_added[ids]):
        raise container.damaged("BYTE", "an id out of range or of an added token", "ids of ordinary tokens")
    starts = tables.offsets[ids]
    one_byte = tables.offsets[ids + 1] - starts == 1
    if not np.all(one_byte) or np.any(np.frombuffer(tables.blob, np.uint8)[starts] != byte_values):
        raise container.damaged("BYTE", "a token of other bytes", "tokens of just that byte")


def _check_merges(tables: Tables, is_added: NDArray[np.bool_]) -> None:
    n_tokens = len(is_added)
    if np.any(tables.merges >= n_tokens):
        raise container.damaged("MERG", "an id out of range", f"ids below {n_tokens}")
    if np.any(is_added[tables.merges]):
        raise container.damaged("MERG", "an added token", "ordinary tokens")
    pairs = tables.merges[:, 0].astype(np.int64) * n_tokens + tables.merges[:, 1]
    if len(np.unique(pairs)) != len(pairs):
        raise container.damaged("MERG", "a pair twice", "each pair once")
    blob = np.frombuffer(tables.blob, np.uint8)
    for first in range(0, len(tables.merges), _ROWS_AT_ONCE):
        _check_concatenation(tables.merges[first : first + _ROWS_AT_ONCE], tables.offsets, blob)


def _check_concatenation(merges: Ids, offsets: Ids, blob: NDArray[np.uint8]) -> None:
    starts = offsets[merges].astype(np.intp)  # 32 bits wide in WebAssembly
    sizes = offsets[merges + 1].astype(np.intp) - starts
    if np.any(sizes[:, 0] + sizes[:, 1] != sizes[:, 2]):
        raise container.damaged("MERG", "a result of another length", "the length of its two parts")
    # For every byte of every result: its row, its place there, and the byte of the part that it comes from.
    row = np.repeat(np.arange(len(merges)), sizes[:, 2])
    at = np.arange(len(row)) - (np.cumsum(sizes[:, 2]) - sizes[:, 2])[row]
    left = sizes[row, 0]
    source = np.where(at < left, starts[row, 0] + at, starts[row, 1] + at - left)
    if np.any(blob[source] != blob[starts[row, 2] + at]):
        raise container.damaged("MERG", "a result of other bytes", "the bytes of its two parts")


def _check_classes(tables: Tables) -> None:
    first, last, kind = tables.classes.astype(np.int64).T
    if np.any(first > last) or np.any(first[1:] <= last[:-1]) or last[-1] > MAX_CODE_POINT:
        raise container.damaged("CLAS", "ranges out of order", f"ascending, disjoint, up to {MAX_CODE_POINT}")
    if np.any(kind >= len(CLASS_NAMES)):
        raise container.damaged("CLAS", "an unknown class", f"below {len(CLASS_NAMES)}")


def int_view(values: Ids) -> memoryview[int]:
    """`values` indexed to Python integers, without the size of a list or the slowness of numpy's scalars."""
    return np.ascontiguousarray(values).data.cast("B").cast("I")


def _u32(sections: dict[str, memoryview], tag: str, *shape: int) -> Ids:
    size = 4 * int(np.prod(shape, dtype=np.int64))
    if len(sections[tag]) != size:
        raise container.damaged(tag, f"{len(sections[tag])} bytes", f"{size}")
    return np.frombuffer(sections[tag], "<u4").astype(np.uint32, copy=False).reshape(shape)


def _u32_bytes(values: NDArray[Any]) -> bytes:
    return values.astype("<u4").tobytes()
