"""Read GGUF: typed metadata and tensors, every count and offset checked before it is used.

    "GGUF" | u32 version | u64 n_tensors | u64 n_keys
    n_keys    x { string key | u32 value type | value }
    n_tensors x { string name | u32 n_dims | u64 dims[n_dims] | u32 tensor type | u64 offset }
    padding to general.alignment (32 when absent)
    tensor data; offsets are relative to its start

A string is `u64 length | UTF-8 bytes`, an array is `u32 element type | u64 count | elements`. `dims[0]` is
the row length: a matrix has dims (cols, rows).

The file is hostile until parsed. A count is compared with the bytes that are left before anything is made
of it, so work and memory stay proportional to the file, whatever its fields claim. What this reader
returns has no key and no tensor twice, and tensors that lie apart from each other inside the file.

Source: the GGUF specification, ggml-org/ggml docs/gguf.md; where it is silent, ggml's own reader
(ggml/src/gguf.cpp): no key or tensor name twice, powers of two as alignments, scalars and tensors without
elements allowed. Where ggml is laxer we follow the specification: keys are ASCII, a bool is 0 or 1,
alignments are multiples of 8, strings are UTF-8. Where ggml is stricter, in asking for tensors without a
gap and in file order, we do not follow it: the specification asks for neither.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import FormatError
from slm2_web.strictjson import show

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_BYTES = 24
DEFAULT_ALIGNMENT = 32
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ARRAY_ELEMENTS = 1 << 22
MAX_ARRAY_DEPTH = 4
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 64
MAX_DIMS = 4

# Metadata value types: id -> (name, struct code); strings and arrays have no code.
VALUE_TYPES: Mapping[int, tuple[str, str]] = {
    0: ("uint8", "B"),
    1: ("int8", "b"),
    2: ("uint16", "H"),
    3: ("int16", "h"),
    4: ("uint32", "I"),
    5: ("int32", "i"),
    6: ("float32", "f"),
    7: ("bool", "?"),
    8: ("string", ""),
    9: ("array", ""),
    10: ("uint64", "Q"),
    11: ("int64", "q"),
    12: ("float64", "d"),
}
BOOL, STRING, ARRAY = 7, 8, 9
_INTEGER_TYPES = frozenset(name for name, code in VALUE_TYPES.values() if code and code not in "fd?")
# The fewest bytes that one value of these types takes: what a count is checked against.
_MIN_BYTES = {type_id: struct.calcsize("<" + code) for type_id, (_, code) in VALUE_TYPES.items() if code}
_MIN_BYTES |= {STRING: 8, ARRAY: 12}
_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8

# Tensor types: id -> (name, values per block, bytes per block). Source: ggml.h and ggml-common.h.
TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}
# Ids that once meant something; the format dropped them.
REMOVED_TENSOR_TYPES: Mapping[int, str] = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `dims` in file order, row length first; `offset` of its data in the file."""

    name: str
    type: str
    dims: tuple[int, ...]
    offset: int
    data: memoryview

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols) of a vector or a matrix; dims (cols, rows) reversed, a vector being one row.

        Raises: FormatError `format.unsupported` for more than two dimensions.
        """
        if len(self.dims) > 2:
            raise unsupported(f"tensor {self.name!r}", f"{len(self.dims)} dimensions", "1 or 2")
        cols, rows = (*self.dims, 1, 1)[:2]
        return rows, cols

    def read_rows(self, first: int, count: int) -> NDArray[np.uint8]:
        """Rows as the file has them: u8[count, bytes of a row], a view."""
        rows = np.frombuffer(self.data, np.uint8).reshape(self.shape[0], -1)
        return rows[first : first + count]


class GgufFile:
    """A parsed file: `metadata` (key -> int, float, bool, str or list), `types` (key -> type), `tensors`.

    `types` spells an array as `array[string]`, nested ones as `array[array]`. Tensor data are views on the
    file's bytes: use the file as a context manager, and let go of the views before it closes.
    """

    def __init__(
        self,
        version: int,
        alignment: int,
        metadata: dict[str, Any],
        types: dict[str, str],
        tensors: dict[str, GgufTensor],
    ) -> None:
        self.version = version
        self.alignment = alignment
        self.metadata: Mapping[str, Any] = MappingProxyType(metadata)
        self.types: Mapping[str, str] = MappingProxyType(types)
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(tensors)
        self._mapping: mmap.mmap | None = None

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the tensors' data."""
        # An array that still looks at the file keeps its view; the mapping then goes when the array goes.
        with suppress(BufferError):
            for tensor in self.tensors.values():
                tensor.data.release()
            if self._mapping is not None:
                self._mapping.close()

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """The value of an integer key, of any width; `default` when the key is absent and one is given.

        Raises: FormatError `format.gguf` when it is missing, no integer, or outside low..high.
        """
        if key not in self.metadata and default is not None:
            return default
        value = self._value(key, "an integer", self.types.get(key) in _INTEGER_TYPES)
        if not low <= value <= high:
            raise bad(f"key {key!r}", str(value), f"an integer from {low} to {high}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """The value of a float key; `default` when the key is absent and one is given.

        Raises: FormatError `format.gguf` when it is missing or no float.
        """
        if key not in self.metadata and default is not None:
            return default
        return float(self._value(key, "a float", self.types.get(key) in ("float32", "float64")))

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """The value of a bool key; `default` when the key is absent and one is given.

        Raises: FormatError `format.gguf` when it is missing or no bool.
        """
        if key not in self.metadata and default is not None:
            return default
        return bool(self._value(key, "a bool", self.types.get(key) == "bool"))

    def string(self, key: str, default: str | None = None) -> str:
        """The value of a string key; `default` when the key is absent and one is given.

        Raises: FormatError `format.gguf` when it is missing or no string.
        """
        if key not in self.metadata and default is not None:
            return default
        return str(self._value(key, "a string", self.types.get(key) == "string"))

    def strings(self, key: str) -> list[str]:
        """The value of an array of strings.

        Raises: FormatError `format.gguf` when it is missing or something else.
        """
        return list(self._value(key, "an array of strings", self.types.get(key) == "array[string]"))

    def integers(self, key: str) -> list[int]:
        """The value of an array of integers, of any width.

        Raises: FormatError `format.gguf` when it is missing or something else.
        """
        allowed = self.types.get(key, "").removeprefix("array[").removesuffix("]") in _INTEGER_TYPES
        return list(self._value(key, "an array of integers", allowed and self.types[key].startswith("array")))

    def _value(self, key: str, allowed: str, fits: bool) -> Any:
        if key not in self.metadata:
            raise bad(f"key {key!r}", "nothing", allowed)
        if not fits:
            raise bad(f"key {key!r}", self.types[key], allowed)
        return self.metadata[key]


def read_gguf(path: Path) -> GgufFile:
    """The file at `path`, its tensors mapped rather than read.

    Raises: FormatError `format.gguf` or `format.unsupported`; OSError when the file can't be opened.
    """
    with path.open("rb") as file:
        if file.seek(0, 2) < HEADER_BYTES:
            raise bad("the file", f"{file.tell()} bytes", f"at least {HEADER_BYTES}, a GGUF header")
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    gguf = parse_gguf(mapping)
    gguf._mapping = mapping
    return gguf


def parse_gguf(data: bytes | bytearray | memoryview | mmap.mmap) -> GgufFile:
    """The GGUF file in `data`; its tensors are views on it.

    Raises: FormatError `format.gguf` (damaged) or `format.unsupported` (version, byte order, a tensor type
        that the format dropped), with the place, what was found and what is allowed.
    """
    cursor = _Cursor(memoryview(data))
    version, n_tensors, n_keys = _header(cursor)
    metadata: dict[str, Any] = {}
    types: dict[str, str] = {}
    for i in range(n_keys):
        cursor.where = f"key number {i}"
        key = _key(cursor)
        if key in metadata:
            cursor.fail(f"{key!r} a second time", "each key once")
        cursor.where = f"key {key!r}"
        types[key], metadata[key] = _value(cursor)
    alignment = _alignment(metadata, types)
    infos: dict[str, _Info] = {}
    for i in range(n_tensors):
        cursor.where = f"tensor number {i}"
        name = _tensor_name(cursor)
        if name in infos:
            cursor.fail(f"{name!r} a second time", "each tensor once")
        cursor.where = f"tensor {name!r}"
        infos[name] = _tensor_info(cursor, alignment)
    start = -(-cursor.pos // alignment) * alignment
    tensors = dict(_place(infos, cursor.data, start))
    return GgufFile(version, alignment, metadata, types, tensors)


@dataclass(frozen=True, slots=True)
class _Info:
    """A tensor as its record claims it; `offset` is relative to the start of the tensor data."""

    type: str
    dims: tuple[int, ...]
    offset: int
    n_bytes: int


class _Cursor:
    """Reads forward through the bytes; `where` names what is being read, for errors."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.pos = 0
        self.where = "the header"

    def fail(self, found: str, allowed: str, at: int | None = None) -> NoReturn:
        raise bad(f"byte {self.pos if at is None else at}, {self.where}", found, allowed)

    def need(self, n_bytes: int) -> None:
        """Nothing; an error when fewer than `n_bytes` are left."""
        left = len(self.data) - self.pos
        if n_bytes > left:
            self.fail(f"{n_bytes} bytes to read", f"at most {left}, the rest of the file")

    def unpack(self, code: str, n: int = 1) -> tuple[Any, ...]:
        """The next `n` little-endian numbers."""
        size = n * struct.calcsize("<" + code)
        self.need(size)
        values = struct.unpack_from(f"<{n}{code}", self.data, self.pos)
        self.pos += size
        return values

    def u32(self) -> int:
        return int(self.unpack("I")[0])

    def u64(self) -> int:
        return int(self.unpack("Q")[0])

    def count(self, what: str, unit_bytes: int, most: int) -> int:
        """A u64 count of things that take at least `unit_bytes` each; at most `most`."""
        at = self.pos
        n = self.u64()
        left = (len(self.data) - self.pos) // unit_bytes
        if n > min(left, most):
            self.fail(f"{n} {what}", f"at most {min(left, most)}", at)
        return n

    def string(self, most: int) -> str:
        """A UTF-8 string of at most `most` bytes."""
        at = self.pos
        length = self.count("bytes of text", 1, most)
        raw = bytes(self.data[self.pos : self.pos + length])
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{raw[error.start : error.start + 4].hex(' ')}", "UTF-8", at + 8 + error.start)
        self.pos += length
        return text


def _header(cursor: _Cursor) -> tuple[int, int, int]:
    """(version, tensor count, key count)."""
    cursor.need(HEADER_BYTES)
    if bytes(cursor.data[:4]) != MAGIC:
        cursor.fail(bytes(cursor.data[:4]).hex(" "), "47 47 55 46, the letters GGUF")
    cursor.pos = 4
    version = cursor.u32()
    allowed = "version " + " or ".join(map(str, VERSIONS)) + ", little-endian"
    if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *VERSIONS):
        raise unsupported("byte 4, the header", "big-endian GGUF", allowed)
    if version == 1 or VERSIONS[-1] < version < 256:
        raise unsupported("byte 4, the header", f"GGUF version {version}", allowed)
    if version not in VERSIONS:
        cursor.fail(f"version {version}", allowed, 4)
    # The tensor records follow the keys, so the bytes left bound both counts.
    n_tensors = cursor.count("tensors", _MIN_TENSOR_BYTES, MAX_TENSORS)
    n_keys = cursor.count("keys", _MIN_KEY_BYTES, MAX_KEYS)
    return version, n_tensors, n_keys


def _key(cursor: _Cursor) -> str:
    """A metadata key: printable ASCII."""
    at = cursor.pos
    key = cursor.string(MAX_KEY_BYTES)
    if not key or not all("!" <= c <= "~" for c in key):
        cursor.fail(show(key), "a key of printable ASCII characters", at)
    return key


def _tensor_name(cursor: _Cursor) -> str:
    """A tensor's name: printable characters."""
    at = cursor.pos
    name = cursor.string(MAX_NAME_BYTES)
    if not name or not name.isprintable():
        cursor.fail(show(name), "a name of printable characters", at)
    return name


def _value_type(cursor: _Cursor) -> int:
    at = cursor.pos
    type_id = cursor.u32()
    if type_id not in VALUE_TYPES:
        cursor.fail(f"value type {type_id}", f"a type from 0 to {max(VALUE_TYPES)}", at)
    return type_id


def _value(cursor: _Cursor) -> tuple[str, Any]:
    """(type, value) of one metadata value."""
    type_id = _value_type(cursor)
    if type_id == ARRAY:
        element, values = _array(cursor, 1)
        return f"array[{VALUE_TYPES[element][0]}]", values
    return VALUE_TYPES[type_id][0], _elements(cursor, type_id, 1)[0]


def _array(cursor: _Cursor, depth: int) -> tuple[int, list[Any]]:
    """(element type, elements) of an array; `depth` counts it and the arrays around it."""
    at = cursor.pos
    if depth > MAX_ARRAY_DEPTH:
        cursor.fail(f"arrays nested {depth} deep", f"at most {MAX_ARRAY_DEPTH}", at)
    element = _value_type(cursor)
    n = cursor.count(f"elements of type {VALUE_TYPES[element][0]}", _MIN_BYTES[element], MAX_ARRAY_ELEMENTS)
    if element == ARRAY:
        return element, [_array(cursor, depth + 1)[1] for _ in range(n)]
    return element, _elements(cursor, element, n)


def _elements(cursor: _Cursor, type_id: int, n: int) -> list[Any]:
    """`n` consecutive values of one type that is no array; `n` fits into the bytes that are left."""
    if type_id == STRING:
        return [cursor.string(len(cursor.data)) for _ in range(n)]
    at = cursor.pos
    values = cursor.unpack(VALUE_TYPES[type_id][1], n)
    raw = bytes(cursor.data[at : cursor.pos]) if type_id == BOOL else b""
    if max(raw, default=0) > 1:
        i = next(i for i, byte in enumerate(raw) if byte > 1)
        cursor.fail(f"the bool {raw[i]}", "0 or 1", at + i)
    return list(values)


def _alignment(metadata: Mapping[str, Any], types: Mapping[str, str]) -> int:
    """general.alignment, or its default."""
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    value = metadata[key]
    if types[key] != "uint32":
        raise bad(f"key {key!r}", types[key], "uint32")
    if value < 8 or value & (value - 1):
        raise bad(f"key {key!r}", str(value), "a power of two, at least 8")
    return int(value)


def _tensor_info(cursor: _Cursor, alignment: int) -> _Info:
    """The rest of a tensor's record, checked but for its place in the file."""
    at = cursor.pos
    n_dims = cursor.u32()
    if n_dims > MAX_DIMS:
        cursor.fail(f"{n_dims} dimensions", f"at most {MAX_DIMS}", at)
    at = cursor.pos
    dims = cursor.unpack("Q", n_dims)
    if prod(dims) >= 1 << 63 or max(dims, default=0) >= 1 << 63:
        cursor.fail(f"dimensions {list(dims)}", "fewer than 2^63 elements", at)
    at = cursor.pos
    type_id = cursor.u32()
    if type_id in REMOVED_TENSOR_TYPES:
        name = REMOVED_TENSOR_TYPES[type_id]
        raise unsupported(f"byte {at}, {cursor.where}", f"type {name}", "a type that GGUF still defines")
    if type_id not in TENSOR_TYPES:
        cursor.fail(f"tensor type {type_id}", f"a type that GGUF defines, up to {max(TENSOR_TYPES)}", at)
    name, block, block_bytes = TENSOR_TYPES[type_id]
    row = dims[0] if dims else 1
    if row % block:
        cursor.fail(f"rows of {row} values", f"a multiple of {block}, the block of {name}", at)
    at = cursor.pos
    offset = cursor.u64()
    if offset % alignment:
        cursor.fail(f"data at offset {offset}", f"a multiple of {alignment}, the alignment", at)
    return _Info(name, dims, offset, prod(dims) // block * block_bytes)


def _place(infos: Mapping[str, _Info], data: memoryview, start: int) -> Iterator[tuple[str, GgufTensor]]:
    """Each tensor with its data, in file order; none reaches past the end or into another."""
    end, before = 0, ""
    for name, info in sorted(infos.items(), key=lambda item: (item[1].offset, item[1].n_bytes)):
        if info.n_bytes and info.offset < end:
            raise bad(
                f"tensor {name!r}", f"data at offset {info.offset}", f"at least {end}, the end of {before!r}"
            )
        if info.offset + info.n_bytes > end:
            end, before = info.offset + info.n_bytes, name
    for name, info in infos.items():
        first = start + info.offset
        last = first + info.n_bytes
        if last > len(data):
            raise bad(f"tensor {name!r}", f"data at bytes {first} to {last}", f"a file of {len(data)} bytes")
        yield name, GgufTensor(name, info.type, info.dims, first, data[first:last])


def bad(place: str, found: str, allowed: str) -> FormatError:
    """The error of a damaged file."""
    return fault("format.gguf", f"GGUF, {place}", found, allowed)


def unsupported(place: str, found: str, allowed: str) -> FormatError:
    """The error of a valid file, of any format, that uses what we do not have."""
    return fault("format.unsupported", place, found, allowed)


def fault(code: str, place: str, found: str, allowed: str) -> FormatError:
    """A FormatError of the usual form."""
    message = f"{place}: found {found}; allowed: {allowed}"
    return FormatError(code, message, {"place": place, "found": found, "allowed": allowed})
