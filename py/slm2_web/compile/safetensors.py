"""Read safetensors: the header checked as a whole, then rows of tensors read where they are wanted.

    u64 header length N | N bytes of JSON | tensor data to the end of the file
    JSON: {NAME: {"dtype", "shape": [...], "data_offsets": [begin, end]}, ...,
           "__metadata__"?: {string: string}}

Offsets count from the start of the data. The tensors tile it: no hole, no overlap, nothing before the
first or after the last. White space around the JSON is padding.

The file is hostile until parsed: its own length bounds the header, and the header's claims are integers of
any size in Python, compared with the file before anything is made of them. Nothing is mapped: a tensor of
300 MB is read a few rows at a time, so the memory that a reader needs does not grow with the file.

Source: the format's description, safetensors/safetensors README, and PyPI safetensors 0.8 where that is
silent: it takes white space before the JSON and tensors without elements. Stricter than it: a tensor's entry
has its three keys and no others, and no key occurs twice.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Lock
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from slm2_web.compile.gguf import fault, unsupported
from slm2_web.errors import FormatError
from slm2_web.strictjson import NotJson, loads, show

HEADER_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 64
METADATA = "__metadata__"
ENTRY_KEYS = {"dtype", "shape", "data_offsets"}

# dtype -> bits of an element. Source: safetensors/src/tensor.rs.
DTYPE_BITS: Mapping[str, int] = {
    name: bits
    for bits, names in {
        4: "F4",
        6: "F6_E2M3 F6_E3M2",
        8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        16: "I16 U16 F16 BF16",
        32: "I32 U32 F32",
        64: "I64 U64 F64 C64",
    }.items()
    for name in names.split()
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the header claims it, checked; `begin` and `end` count from the start of the data."""

    dtype: str
    dims: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor of an open file (weights.SourceTensor): `type` is its dtype in lower case."""

    name: str
    info: TensorInfo
    file: SafetensorsFile

    @property
    def type(self) -> str:
        """The dtype in lower case: f32, f16, bf16, or one that is of no use to us."""
        return self.info.dtype.lower()

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols); a vector is one row. Raises: FormatError `format.unsupported` for more dimensions."""
        dims = self.info.dims
        if len(dims) > 2:
            raise unsupported(f"tensor {self.name!r}", f"{len(dims)} dimensions", "1 or 2")
        rows, cols = (1, 1, *dims)[-2:]
        return rows, cols

    def read_rows(self, first: int, count: int) -> NDArray[np.uint8]:
        """Rows as the file has them: u8[count, bytes of a row]. Safe in several threads."""
        rows, _ = self.shape
        row_bytes = (self.info.end - self.info.begin) // rows if rows else 0
        assert 0 <= first <= first + count <= rows
        return self.file.read(self.info.begin + first * row_bytes, count * row_bytes).reshape(
            count, row_bytes
        )


class SafetensorsFile:
    """An open file: `tensors` by name, in the header's order, and `metadata`. A context manager."""

    def __init__(self, file: io.RawIOBase | io.BytesIO, name: str) -> None:
        """Read the header. Raises: FormatError `format.safetensors`."""
        size = file.seek(0, 2)
        file.seek(0)
        n_header = header_bytes(file.read(HEADER_LENGTH_BYTES) or b"", size)
        self.name = name
        self._file = file
        self._start = HEADER_LENGTH_BYTES + n_header
        self._lock = Lock()
        infos, metadata = parse_header(file.read(n_header) or b"", size - self._start)
        self.metadata: Mapping[str, str] = MappingProxyType(metadata)
        self.tensors: Mapping[str, SafetensorsTensor] = MappingProxyType(
            {key: SafetensorsTensor(key, info, self) for key, info in infos.items()}
        )

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, begin: int, n_bytes: int) -> NDArray[np.uint8]:
        """Bytes of the data. Raises: FormatError `format.safetensors` when the file has shrunk meanwhile."""
        data = np.empty(n_bytes, np.uint8)
        done = 0
        with self._lock:
            self._file.seek(self._start + begin)
            while done < n_bytes and (n := self._file.readinto(data.data[done:])):
                done += n
        if done != n_bytes:
            raise bad(f"byte {self._start + begin}", f"{done} bytes to read", f"{n_bytes}")
        return data


def read_safetensors(path: Path) -> SafetensorsFile:
    """The file at `path`, open.

    Raises: FormatError `format.safetensors`; OSError when it can't be opened.
    """
    file = path.open("rb", buffering=0)
    try:
        return SafetensorsFile(file, path.name)
    except BaseException:
        file.close()
        raise


def header_bytes(start: bytes, file_bytes: int) -> int:
    """The header's length, from the file's first 8 bytes. Raises: FormatError `format.safetensors`."""
    if len(start) < HEADER_LENGTH_BYTES:
        raise bad("the file", f"{file_bytes} bytes", f"at least {HEADER_LENGTH_BYTES}, the header's length")
    (length,) = struct.unpack("<Q", start)
    most = min(MAX_HEADER_BYTES, file_bytes - HEADER_LENGTH_BYTES)
    if not 2 <= length <= most:
        raise bad("the header's length", f"{length} bytes", f"2 to {most}, for a file of {file_bytes}")
    return int(length)


def parse_header(header: bytes, data_bytes: int) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """(tensors by name, metadata) of a header whose file holds `data_bytes` bytes after it.

    Raises: FormatError `format.safetensors` with the place, what was found and what is allowed.
    """
    try:
        root = loads(header, max_bytes=MAX_HEADER_BYTES)
    except NotJson as error:
        raise bad("the header", str(error), "UTF-8 JSON without duplicate keys") from None
    if not isinstance(root, dict):
        raise bad("the header", show(root), "an object")
    metadata = root.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise bad(METADATA, show(metadata), "an object of strings")
    tensors = {name: _info(f"tensor {show(name)}", entry) for name, entry in root.items()}
    end = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != end:
            found = f"data_offsets {[info.begin, info.end]}"
            raise bad(f"tensor {show(name)}", found, f"a begin of {end}: tensors tile the data")
        end = info.end
    if end != data_bytes:
        raise bad("the data", f"{data_bytes} bytes", f"{end}, what the tensors take")
    return tensors, metadata


def _info(place: str, entry: object) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != ENTRY_KEYS:
        raise bad(place, show(entry), "an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise bad(f"{place}, dtype", show(dtype), " | ".join(DTYPE_BITS))
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(_is_count(n) for n in shape):
        raise bad(f"{place}, shape", show(shape), f"a list of at most {MAX_DIMS} numbers >= 0")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(n) for n in offsets):
        raise bad(f"{place}, data_offsets", show(offsets), "[begin, end]")
    n_bits = prod(shape) * DTYPE_BITS[dtype]
    begin, end = offsets
    if n_bits % 8 or end - begin != n_bits // 8:
        allowed = f"{show(n_bits // 8)} bytes, those of shape {show(shape)} and dtype {dtype}"
        raise bad(f"{place}, data_offsets", f"{show(offsets)}, {end - begin} bytes", allowed)
    return TensorInfo(dtype, tuple(shape), begin, end)


def _is_count(value: object) -> bool:
    """An integer that a file of this world can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def bad(place: str, found: str, allowed: str) -> FormatError:
    """The error of a damaged file."""
    return fault("format.safetensors", f"safetensors, {place}", found, allowed)
