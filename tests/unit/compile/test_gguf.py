"""GGUF reader: the collected loader cases, each rule by name, PyPI gguf as oracle, and fuzz."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slm2_web.compile.gguf import (
    MAX_ARRAY_DEPTH,
    REMOVED_TENSOR_TYPES,
    TENSOR_TYPES,
    VALUE_TYPES,
    GgufFile,
    parse_gguf,
    read_gguf,
)
from slm2_web.errors import FormatError
from tiny_gguf import TinyGguf, write_gguf

CASES = json.loads((Path(__file__).parent.parent / "vectors" / "loader_cases.json").read_text("utf-8"))[
    "cases"
]

U8, U32, BOOL, STRING, ARRAY, U64 = 0, 4, 7, 8, 9, 10
F32, Q4_2, Q8_0 = 0, 4, 8


@dataclass
class Builder:
    """Writes a GGUF file field by field, true to what it is told; remembers where lengths and counts are."""

    version: int = 3
    alignment: int = 32
    keys: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    payload: bytes = bytes(64)
    n_keys: int | None = None
    n_tensors: int | None = None

    def key(self, name: str | bytes, type_id: int, value: bytes) -> Builder:
        self.keys.append(string(name) + u32(type_id) + value)
        return self

    def tensor(self, name: str | bytes, dims: list[int], type_id: int = F32, offset: int = 0) -> Builder:
        shape = u32(len(dims)) + b"".join(map(u64, dims))
        self.tensors.append(string(name) + shape + u32(type_id) + u64(offset))
        return self

    def build(self, pad: bool = True) -> bytes:
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        head = b"GGUF" + u32(self.version) + u64(n_tensors) + u64(n_keys)
        head += b"".join(self.keys) + b"".join(self.tensors)
        padding = bytes(-len(head) % self.alignment) if pad else b""
        return head + padding + self.payload


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def nested(depth: int) -> bytes:
    """The value of an array of an array of ... of no bytes."""
    return b"".join(u32(ARRAY) + u64(1) for _ in range(depth - 1)) + u32(U8) + u64(0)


def outcome(data: bytes) -> GgufFile | FormatError:
    """What the reader makes of `data`; any other exception fails."""
    try:
        return parse_gguf(data)
    except FormatError as error:
        return error


def timed_parse(data: bytes) -> GgufFile | FormatError:
    """`outcome`, within 50 ms; a slow try gets a second one, as it may have met a garbage collection."""
    for attempt in range(2):
        start = time.process_time()
        result = outcome(data)
        if time.process_time() - start < 0.05:
            break
        assert attempt == 0
    assert isinstance(result, GgufFile) or {"place", "found", "allowed"} <= set(result.detail)
    return result


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_loader_case(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / case["input"]["file"]
    path.write_bytes(bytes.fromhex(case["input"]["bytes_hex"]))
    assert case["expected"]["result"] == "reject"
    result = timed_parse(path.read_bytes())
    assert isinstance(result, FormatError)
    assert result.code == "format.gguf"
    with pytest.raises(FormatError, match=r"^format\.gguf") as from_file:
        read_gguf(path)
    assert str(from_file.value) == str(result)


def test_loader_cases_are_refused_for_their_fault() -> None:
    found = {case["id"]: timed_parse(bytes.fromhex(case["input"]["bytes_hex"])) for case in CASES}
    messages = {name: str(error) for name, error in found.items()}
    assert "general.alignment" in messages["GGF-05"]
    assert "data at bytes 128 to 160" in messages["GGF-09"]
    assert "offset 4" in messages["GGF-11"]
    assert "value type 99" in messages["GGF-12"]


GOOD: dict[str, tuple[Builder, Callable[[GgufFile], bool]]] = {
    "empty": (Builder(payload=b""), lambda g: not g.metadata and not g.tensors),
    "version 2": (Builder(version=2), lambda g: g.version == 2),
    "no padding where there is no tensor": (
        Builder(payload=b"").key("a", U8, b"\x07"),
        lambda g: g.metadata["a"] == 7,
    ),
    "trailing bytes": (Builder(payload=bytes(999)).tensor("t", [8]), lambda g: len(g.tensors) == 1),
    "a gap between tensors": (
        Builder(payload=bytes(160)).tensor("a", [8]).tensor("b", [8], offset=128),
        lambda g: g.tensors["b"].offset - g.tensors["a"].offset == 128,
    ),
    "tensors not in file order": (
        Builder().tensor("a", [8], offset=32).tensor("b", [8]),
        lambda g: list(g.tensors) == ["a", "b"] and g.tensors["b"].offset < g.tensors["a"].offset,
    ),
    "a tensor without elements": (
        Builder(payload=b"").tensor("t", [0]),
        lambda g: len(g.tensors["t"].data) == 0,
    ),
    "a scalar": (
        Builder().tensor("t", []),
        lambda g: g.tensors["t"].dims == () and len(g.tensors["t"].data) == 4,
    ),
    "four dimensions": (Builder().tensor("t", [4, 2, 1, 2]), lambda g: g.tensors["t"].dims == (4, 2, 1, 2)),
    "alignment 8": (
        Builder(alignment=8).key("general.alignment", U32, u32(8)).tensor("t", [2], offset=8),
        lambda g: g.alignment == 8 and len(g.tensors["t"].data) == 8,
    ),
    "alignment 4096": (
        Builder(alignment=4096).key("general.alignment", U32, u32(4096)).tensor("t", [2]),
        lambda g: g.tensors["t"].offset == 4096,
    ),
    "an empty array of strings": (
        Builder().key("a", ARRAY, u32(STRING) + u64(0)),
        lambda g: g.metadata["a"] == [] and g.types["a"] == "array[string]",
    ),
    "arrays as deep as allowed": (
        Builder().key("a", ARRAY, nested(MAX_ARRAY_DEPTH)),
        lambda g: g.types["a"] == "array[array]",
    ),
    "a value with NUL and emoji": (
        Builder().key("a", STRING, string("\x00\N{GRINNING FACE}")),
        lambda g: g.metadata["a"] == "\x00\N{GRINNING FACE}",
    ),
    "a key with a hyphen": (
        Builder().key("command-r.x", U8, b"\x01"),
        lambda g: g.metadata["command-r.x"] == 1,
    ),
    "a tensor name of 64 bytes": (Builder().tensor("t" * 64, [8]), lambda g: "t" * 64 in g.tensors),
}


@pytest.mark.parametrize("name", GOOD)
def test_accepts(name: str) -> None:
    builder, holds = GOOD[name]
    parsed = timed_parse(builder.build(pad=bool(builder.tensors)))
    assert isinstance(parsed, GgufFile), parsed
    assert holds(parsed)


HUGE = 1 << 63
BAD: dict[str, tuple[bytes, str, str]] = {
    # name: (file, code, what the message says)
    "nothing": (b"", "format.gguf", "24 bytes to read"),
    "header cut": (Builder().build()[:23], "format.gguf", "24 bytes to read"),
    "magic": (b"GGUG" + Builder().build()[4:], "format.gguf", "47 47 55 47"),
    "version 0": (Builder(version=0).build(), "format.gguf", "version 0"),
    "version 1": (Builder(version=1).build(), "format.unsupported", "GGUF version 1"),
    "version 4": (Builder(version=4).build(), "format.unsupported", "GGUF version 4"),
    "version 2^32-1": (Builder(version=0xFFFFFFFF).build(), "format.gguf", "version 4294967295"),
    "big-endian": (Builder(version=3 << 24).build(), "format.unsupported", "big-endian"),
    "keys beyond the file": (Builder(n_keys=HUGE).build(), "format.gguf", f"{HUGE} keys"),
    "tensors beyond the file": (Builder(n_tensors=HUGE).build(), "format.gguf", f"{HUGE} tensors"),
    "key empty": (Builder().key("", U8, b"\x01").build(), "format.gguf", "printable ASCII"),
    "key not ASCII": (Builder().key("caf\u00e9", U8, b"\x01").build(), "format.gguf", "printable ASCII"),
    "key with NUL": (Builder().key("a\x00", U8, b"\x01").build(), "format.gguf", "printable ASCII"),
    "key too long": (Builder().key("k" * 65_536, U8, b"\x01").build(), "format.gguf", "65536 bytes of text"),
    "key twice": (
        Builder().key("a", U8, b"\x01").key("a", U8, b"\x01").build(),
        "format.gguf",
        "second time",
    ),
    "value type 13": (Builder().key("a", 13, bytes(8)).build(), "format.gguf", "value type 13"),
    "bool 2": (Builder().key("a", BOOL, b"\x02").build(), "format.gguf", "the bool 2"),
    "bool in an array": (
        Builder().key("a", ARRAY, u32(BOOL) + u64(3) + b"\x01\x00\xff").build(),
        "format.gguf",
        "the bool 255",
    ),
    "string beyond the file": (Builder().key("a", STRING, u64(HUGE)).build(), "format.gguf", "bytes of text"),
    "string not UTF-8": (
        Builder().key("a", STRING, string(b"ok\xed\xa0\x80")).build(),
        "format.gguf",
        "byte 47, key 'a': found ed a0 80",
    ),
    "array beyond the file": (
        Builder().key("a", ARRAY, u32(U64) + u64(1000)).build(),
        "format.gguf",
        "1000 elements of type uint64",
    ),
    "array of strings beyond the file": (
        Builder().key("a", ARRAY, u32(STRING) + u64(HUGE)).build(),
        "format.gguf",
        "elements of type string",
    ),
    "arrays too deep": (
        Builder().key("a", ARRAY, nested(MAX_ARRAY_DEPTH + 1)).build(),
        "format.gguf",
        "nested 5 deep",
    ),
    "arrays of arrays of arrays": (Builder().key("a", ARRAY, nested(5000)).build(), "format.gguf", "nested"),
    "alignment 0": (Builder().key("general.alignment", U32, u32(0)).build(), "format.gguf", "found 0"),
    "alignment 4": (Builder().key("general.alignment", U32, u32(4)).build(), "format.gguf", "found 4"),
    "alignment 24": (Builder().key("general.alignment", U32, u32(24)).build(), "format.gguf", "found 24"),
    "alignment u64": (
        Builder().key("general.alignment", U64, u64(32)).build(),
        "format.gguf",
        "found uint64",
    ),
    "alignment beyond the file": (
        Builder().key("general.alignment", U32, u32(1 << 31)).tensor("t", [8]).build(),
        "format.gguf",
        "data at bytes",
    ),
    "tensor name empty": (Builder().tensor("", [8]).build(), "format.gguf", "printable"),
    "tensor name with NUL": (Builder().tensor("t\x00", [8]).build(), "format.gguf", "printable"),
    "tensor name too long": (Builder().tensor("t" * 65, [8]).build(), "format.gguf", "65 bytes of text"),
    "tensor twice": (
        Builder().tensor("t", [8]).tensor("t", [8], offset=32).build(),
        "format.gguf",
        "'t' a second time",
    ),
    "five dimensions": (Builder().tensor("t", [1] * 5).build(), "format.gguf", "5 dimensions"),
    "2^32-1 dimensions": (
        Builder(n_tensors=1).build()[:24] + string("t") + u32(0xFFFFFFFF) + bytes(64),
        "format.gguf",
        "4294967295 dimensions",
    ),
    "dimensions that overflow": (Builder().tensor("t", [1 << 40] * 2).build(), "format.gguf", "2^63"),
    "dimensions that wrap to 0": (Builder().tensor("t", [1 << 32] * 2).build(), "format.gguf", "2^63"),
    "dimension 2^63 beside a 0": (Builder().tensor("t", [0, HUGE]).build(), "format.gguf", "2^63"),
    "tensor type 99": (Builder().tensor("t", [8], type_id=99).build(), "format.gguf", "tensor type 99"),
    "tensor type removed": (
        Builder().tensor("t", [32], type_id=Q4_2).build(),
        "format.unsupported",
        "type q4_2",
    ),
    "part of a block": (
        Builder(payload=bytes(999)).tensor("t", [16, 2], type_id=Q8_0).build(),
        "format.gguf",
        "rows of 16 values",
    ),
    "offset unaligned": (Builder().tensor("t", [4], offset=16).build(), "format.gguf", "offset 16"),
    "offset beyond the file": (Builder().tensor("t", [8], offset=64).build(), "format.gguf", "data at bytes"),
    "offset 2^64-32": (Builder().tensor("t", [8], offset=(1 << 64) - 32).build(), "format.gguf", "data at"),
    "data cut": (Builder(payload=bytes(31)).tensor("t", [8]).build(), "format.gguf", "data at bytes"),
    "no data": (Builder(payload=b"").tensor("t", [8]).build(pad=False), "format.gguf", "data at bytes"),
    "tensors at the same place": (
        Builder().tensor("a", [8]).tensor("b", [8]).build(),
        "format.gguf",
        "the end of 'a'",
    ),
    "tensors that overlap": (
        Builder().tensor("b", [8], offset=32).tensor("a", [9]).build(),
        "format.gguf",
        "tensor 'b': found data at offset 32; allowed: at least 36",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name: str) -> None:
    data, code, message = BAD[name]
    result = timed_parse(data)
    assert isinstance(result, FormatError)
    assert result.code == code
    assert message in result.message


def test_a_claimed_count_allocates_nothing() -> None:
    claims = [
        Builder(n_keys=1 << 40).build(),
        Builder(n_tensors=1 << 40).build(),
        Builder().key("a", STRING, u64(1 << 40)).build(),
        Builder().key("a", ARRAY, u32(U8) + u64(1 << 40)).build(),
        Builder().key("a", ARRAY, u32(ARRAY) + u64(1 << 40)).build(),
        Builder().tensor("t", [1 << 40]).build(),
    ]
    tracemalloc.start()
    try:
        for data in claims:
            assert isinstance(timed_parse(data), FormatError)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_tensor_types_agree_with_gguf() -> None:
    theirs = {
        type_id.value: (type_id.name.lower(), *sizes) for type_id, sizes in gguf.GGML_QUANT_SIZES.items()
    }
    # PyPI gguf 0.19 has the block of an older q8_1, with two f32; ggml-common.h has two f16.
    assert theirs.pop(9) == ("q8_1", 32, 40)
    assert theirs == {type_id: entry for type_id, entry in TENSOR_TYPES.items() if type_id != 9}
    assert not set(REMOVED_TENSOR_TYPES) & set(TENSOR_TYPES)


def test_value_types_agree_with_gguf() -> None:
    theirs = {type_id.value: type_id.name.lower() for type_id in gguf.GGUFValueType}
    assert theirs == {type_id: name for type_id, (name, _) in VALUE_TYPES.items()}


def test_accessors_check_types() -> None:
    parsed = parse_gguf(
        Builder()
        .key("int", U32, u32(7))
        .key("flag", BOOL, b"\x01")
        .key("text", STRING, string("x"))
        .key("texts", ARRAY, u32(STRING) + u64(1) + string("x"))
        .key("ints", ARRAY, u32(U8) + u64(2) + b"\x01\x02")
        .key("float", 6, struct.pack("<f", 0.5))
        .build()
    )
    assert parsed.integer("int", 0, 7) == 7
    assert parsed.integer("none", 0, 7, default=3) == 3
    assert parsed.boolean("flag") is True
    assert parsed.boolean("none", default=False) is False
    assert parsed.string("text") == "x"
    assert parsed.string("none", default="y") == "y"
    assert parsed.strings("texts") == ["x"]
    assert parsed.integers("ints") == [1, 2]
    assert parsed.number("float") == 0.5
    assert parsed.number("none", default=1.5) == 1.5
    wrong: list[Callable[[], object]] = [
        lambda: parsed.integer("int", 0, 6),
        lambda: parsed.integer("flag", 0, 6),
        lambda: parsed.integer("none", 0, 6),
        lambda: parsed.integer("float", 0, 6),
        lambda: parsed.boolean("int"),
        lambda: parsed.number("int"),
        lambda: parsed.string("texts"),
        lambda: parsed.strings("text"),
        lambda: parsed.strings("ints"),
        lambda: parsed.integers("texts"),
        lambda: parsed.integers("int"),
        lambda: parsed.integers("none"),
    ]
    for access in wrong:
        with pytest.raises(FormatError, match=r"^format\.gguf"):
            access()


def assert_equal_to_gguf(path: Path) -> None:
    """Our reading of the file equals PyPI gguf's."""
    theirs = gguf.GGUFReader(path)
    with read_gguf(path) as ours:
        keys = {key: value for key, value in theirs.fields.items() if not key.startswith("GGUF.")}
        assert list(ours.metadata) == list(keys)
        for key, value in keys.items():
            np.testing.assert_equal(ours.metadata[key], value.contents(), err_msg=key)
            names = [type_id.name.lower() for type_id in value.types]
            assert ours.types[key] == (f"array[{names[1]}]" if names[0] == "array" else names[0])
        assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            mine = ours.tensors[tensor.name]
            assert mine.type == tensor.tensor_type.name.lower()
            assert list(mine.dims) == tensor.shape.tolist()
            assert mine.offset == tensor.data_offset
            assert bytes(mine.data) == tensor.data.tobytes()
        assert ours.alignment == theirs.alignment


def test_tiny_model_equals_gguf(tiny_gguf: TinyGguf) -> None:
    assert_equal_to_gguf(tiny_gguf.path)


def test_real_model_equals_gguf(smollm2_gguf: Path) -> None:
    assert_equal_to_gguf(smollm2_gguf)


def small_file() -> bytes:
    """A valid file of a few hundred bytes with every kind of field."""
    return (
        Builder(alignment=8, payload=bytes(range(104)))
        .key("general.architecture", STRING, string("llama"))
        .key("general.alignment", U32, u32(8))
        .key("a", ARRAY, u32(STRING) + u64(2) + string("x") + string("\u00e9"))
        .key("b", ARRAY, u32(ARRAY) + u64(2) + (u32(U8) + u64(1) + b"\x05") * 2)
        .key("c", BOOL, b"\x01")
        .key("d", ARRAY, u32(6) + u64(2) + struct.pack("<2f", 0.5, float("nan")))
        .tensor("one", [4, 2], F32, 0)
        .tensor("two", [64], Q8_0, 32)
        .build()
    )


def test_every_byte_changed() -> None:
    data = bytearray(small_file())
    assert isinstance(timed_parse(bytes(data)), GgufFile)
    outcomes = []
    for i in range(len(data)):
        before = data[i]
        for value in {0, 1, 0x7F, 0x80, 0xFF, before ^ 1, before ^ 0x80, (before + 1) & 0xFF} - {before}:
            data[i] = value
            outcomes.append(isinstance(timed_parse(bytes(data)), GgufFile))
        data[i] = before
    assert 0.1 < sum(outcomes) / len(outcomes) < 0.9


def test_every_truncation() -> None:
    data = small_file()
    for length in range(len(data)):
        assert isinstance(timed_parse(data[:length]), FormatError) == (length < len(data) - 4), length


EXTREMES = (
    0,
    1,
    2,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    HUGE - 1,
    HUGE,
    2 * HUGE - 1,
)


@pytest.mark.parametrize("width", [4, 8])
def test_extreme_values_everywhere(width: int) -> None:
    """Every 4 and 8 bytes, so every length, count, type, dimension and offset among them."""
    data = small_file()
    for i in range(len(data) - width + 1):
        for value in EXTREMES:
            if value >> (8 * width) == 0:
                timed_parse(data[:i] + value.to_bytes(width, "little") + data[i + width :])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(2, 3), st.integers(0, 3), st.integers(0, 3))
def test_random_bytes_after_a_header(data: bytes, version: int, n_tensors: int, n_keys: int) -> None:
    timed_parse(b"GGUF" + u32(version) + u64(n_tensors) + u64(n_keys) + data)


_V = gguf.GGUFValueType
_INTEGERS = {
    _V.UINT8: (0, 255),
    _V.INT8: (-128, 127),
    _V.UINT16: (0, 65_535),
    _V.INT16: (-32_768, 32_767),
    _V.UINT32: (0, (1 << 32) - 1),
    _V.INT32: (-(1 << 31), (1 << 31) - 1),
    _V.UINT64: (0, (1 << 64) - 1),
    _V.INT64: (-(1 << 63), (1 << 63) - 1),
}
_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    **{type_id: st.integers(*bounds) for type_id, bounds in _INTEGERS.items()},
    _V.FLOAT32: st.floats(width=32),
    _V.FLOAT64: st.floats(),
    _V.BOOL: st.booleans(),
    _V.STRING: st.text(st.characters(codec="utf-8"), max_size=20),
}


@st.composite
def _values(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """(type, element type, value)."""
    type_id = draw(st.sampled_from(list(_SCALARS)))
    if draw(st.booleans()):
        return type_id, None, draw(_SCALARS[type_id])
    return _V.ARRAY, type_id, draw(st.lists(_SCALARS[type_id], min_size=1, max_size=5))


_ARRAYS = st.builds(
    lambda seed, shape, dtype: np.asarray(np.random.default_rng(seed).standard_normal(shape) * 9).astype(
        dtype
    ),
    st.integers(0, 99),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from(["f4", "f2", "f8", "i1", "i2", "i4", "i8"]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}(\.[a-z_]{1,8})?", fullmatch=True), _values(), max_size=8),
    st.dictionaries(st.text("abc.\u00e9", min_size=1, max_size=9), _ARRAYS, max_size=5),
    st.sampled_from([8, 16, 32, 64, 256]),
)
def test_round_trip(
    tmp_path: Path, values: dict[str, tuple[Any, Any, Any]], arrays: dict[str, Any], alignment: int
) -> None:
    path = tmp_path / "round.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for key, (type_id, element, value) in values.items():
        writer.add_key_value(key, value, type_id, element)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with read_gguf(path) as parsed:
        assert parsed.alignment == alignment
        assert set(parsed.metadata) == {"general.architecture", "general.alignment", *values}
        for key, (type_id, element, value) in values.items():
            np.testing.assert_equal(parsed.metadata[key], value)
            name = type_id.name.lower()
            assert parsed.types[key] == (f"array[{element.name.lower()}]" if element is not None else name)
        assert list(parsed.tensors) == list(arrays)
        for name, array in arrays.items():
            assert parsed.tensors[name].dims == array.shape[::-1]
            assert bytes(parsed.tensors[name].data) == array.tobytes()


def test_nested_arrays_equal_gguf_writer(tmp_path: Path) -> None:
    path = tmp_path / "nested.gguf"
    write_gguf(path, {"n": [[[1, 2], [3]], [[4]]], "s": [["a"], ["b", "c"]]})
    with read_gguf(path) as parsed:
        assert parsed.metadata["n"] == [[[1, 2], [3]], [[4]]]
        assert parsed.metadata["s"] == [["a"], ["b", "c"]]
        assert parsed.types["s"] == "array[array]"


def test_views_may_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "one.gguf"
    path.write_bytes(Builder(payload=bytes(range(32))).tensor("t", [8]).build())
    with read_gguf(path) as parsed:
        array = np.frombuffer(parsed.tensors["t"].data, np.uint8)
    assert array.tolist() == list(range(32))


def test_a_missing_file_is_no_format_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_gguf(tmp_path / "none.gguf")
