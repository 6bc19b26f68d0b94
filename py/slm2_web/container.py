"""The packed file: magic, version, a table of sections, and a sha256 over everything else.

    offset  bytes
         0      8  magic b"\\x93SLM2TOK"
         8      4  version, u32
        12      4  number of sections, u32
        16      8  size of the file in bytes, u64
        24     32  sha256 over bytes [0, 24) followed by bytes [56, size)
        56   24*n  one entry per section: tag (4 ASCII bytes), alignment u32, offset u64, size u64
                   then the sections, in the order of the table

All numbers are little-endian. The layout has one form only: a section begins at the first multiple of its
alignment after what precedes it, the bytes between are zero, and the file ends with its last section. So
sections can neither overlap nor leave room for anything unread, and a reader can use them in place.

`read` takes a file in this memory. `open_remote` takes one that lies in another, of which it copies the
table and nothing else; what a section holds is copied when it is asked for, a part at a time.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from slm2_web.errors import FormatError

MAGIC = b"\x93SLM2TOK"
VERSION = 2
ALIGNMENT_BYTES = 64
MAX_SECTIONS = 64
MAX_BYTES = 64 << 20

_HEAD = struct.Struct("<8sIIQ")
_ENTRY = struct.Struct("<4sIQQ")
_DIGEST_BYTES = 32
_TABLE_AT = _HEAD.size + _DIGEST_BYTES


class Source(Protocol):
    """A file that lies elsewhere."""

    def __len__(self) -> int:
        """Its size in bytes."""

    def read(self, start: int, end: int) -> bytes:
        """A copy of its bytes [start, end), which are in it."""


class Section(Protocol):
    """What one section holds. A memoryview is one, too."""

    def __len__(self) -> int:
        """Its size in bytes."""

    def __getitem__(self, part: slice, /) -> memoryview:
        """A part of it, of step 1."""


@dataclass(frozen=True, slots=True)
class RemoteSection:
    """Bytes [start, end) of a file that lies elsewhere. A part of it is copied each time it is asked for."""

    source: Source
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __getitem__(self, part: slice, /) -> memoryview:
        start, stop, step = part.indices(len(self))
        assert step == 1, part
        return memoryview(self.source.read(self.start + start, self.start + max(start, stop)))


def write(sections: Mapping[str, bytes], *, alignment: int = ALIGNMENT_BYTES) -> bytes:
    """The packed file that holds `sections`, in their order. The same sections give the same bytes."""
    assert len(sections) <= MAX_SECTIONS
    assert alignment > 0
    assert alignment & (alignment - 1) == 0
    table = bytearray()
    content = bytearray()
    content_at = _TABLE_AT + _ENTRY.size * len(sections)
    for tag, data in sections.items():
        content += bytes(-(content_at + len(content)) % alignment)
        table += _ENTRY.pack(_tag_bytes(tag), alignment, content_at + len(content), len(data))
        content += data
    total = content_at + len(content)
    assert total <= MAX_BYTES, total
    head = _HEAD.pack(MAGIC, VERSION, len(sections), total)
    rest = bytes(table + content)
    return head + _digest(head, rest) + rest


def read(data: bytes | memoryview, *, alignment: int | None = None) -> dict[str, memoryview]:
    """The sections of a packed file by tag, as read-only views of `data`: nothing is copied.

    alignment: what every section must have; any power of two if None.

    Raises: FormatError `format.tokenizer_file` with the place, what was found and what is allowed.
    """
    view = memoryview(data).toreadonly().cast("B")
    count = _check_head(view[: _HEAD.size], len(view))
    digest = bytes(view[_HEAD.size : _TABLE_AT])
    if digest != _digest(view[: _HEAD.size], view[_TABLE_AT:]):
        raise damaged("sha256", digest.hex(), "the sha256 of the content")
    places = _places(view, count, alignment)
    return {tag: view[start:end] for tag, (start, end) in places.items()}


def open_remote(source: Source, *, alignment: int | None = None) -> dict[str, RemoteSection]:
    """The sections of a packed file that lies elsewhere, by tag. `alignment`: see `read`.

    The recorded sha256 is not compared, as that would take the whole file: whoever got the file has to have
    compared that of a manifest.

    Raises: FormatError `format.tokenizer_file` with the place, what was found and what is allowed.
    """
    size = len(source)
    count = _check_head(source.read(0, min(_HEAD.size, size)), size)
    places = _places(RemoteSection(source, 0, size), count, alignment)
    return {tag: RemoteSection(source, start, end) for tag, (start, end) in places.items()}


def _check_head(head: bytes | memoryview, n_bytes: int) -> int:
    """The number of sections of a file of `n_bytes`. Raises: FormatError."""
    if not _TABLE_AT <= n_bytes <= MAX_BYTES:
        raise damaged("file", f"{n_bytes} bytes", f"{_TABLE_AT} to {MAX_BYTES}")
    magic, version, count, total = _HEAD.unpack(head)
    if magic != MAGIC:
        raise damaged("magic", repr(magic), repr(MAGIC))
    if version != VERSION:
        raise damaged("version", str(version), str(VERSION))
    if count > MAX_SECTIONS:
        raise damaged("number of sections", str(count), f"at most {MAX_SECTIONS}")
    if total != n_bytes:
        raise damaged("size", f"{total} recorded", f"{n_bytes}, the size of the file")
    assert isinstance(count, int)
    return count


def _places(file: Section, count: int, alignment: int | None) -> dict[str, tuple[int, int]]:
    """(start, end) of each section by tag. Raises: FormatError."""
    total = len(file)
    end = _TABLE_AT + _ENTRY.size * count
    if end > total:
        raise damaged("table", f"{count} entries", f"what fits into {total} bytes")
    places: dict[str, tuple[int, int]] = {}
    for tag_bytes, aligned, offset, size in _ENTRY.iter_unpack(file[_TABLE_AT:end]):
        place = f"section {tag_bytes!r}"
        if not tag_bytes.isalnum() or not tag_bytes.isascii():
            raise damaged(place, "its tag", "4 ASCII letters or digits")
        if aligned == 0 or aligned & (aligned - 1) or aligned > 1 << 16 or aligned != (alignment or aligned):
            raise damaged(place, f"alignment {aligned}", f"{alignment or 'a power of two up to 65536'}")
        start = end + -end % aligned
        if offset != start or size > total - start:
            raise damaged(place, f"{size} bytes at {offset}", f"at {start}, within {total} bytes")
        if any(file[end:start]):
            raise damaged(place, "padding that is not zero", "zero bytes")
        tag = tag_bytes.decode("ascii")
        if tag in places:
            raise damaged(place, "a second time", "each section once")
        end = start + size
        places[tag] = (start, end)
    if end != total:
        raise damaged("file", f"{total - end} bytes after the last section", "none")
    return places


def damaged(place: str, found: str, allowed: str) -> FormatError:
    """The error for a packed file that is not what it should be."""
    return FormatError(
        "format.tokenizer_file",
        f"{place}: found {found}; allowed: {allowed}",
        {"place": place, "found": found, "allowed": allowed},
    )


def _tag_bytes(tag: str) -> bytes:
    tag_bytes = tag.encode("ascii")
    assert len(tag_bytes) == 4, tag
    assert tag_bytes.isalnum(), tag
    return tag_bytes


def _digest(head: bytes | memoryview, rest: bytes | memoryview) -> bytes:
    sha256 = hashlib.sha256(head)
    sha256.update(rest)
    return sha256.digest()
