"""The ONNX file that transformers.js is measured on, read and run here: its network is the packed model's.

The reader takes Protocol Buffers' wire format apart, the runner is each operator's definition in numpy; the
oracle is the float network of the same packed model, from which int8 weights and activations differ a little.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from float_llama import FloatLlama
from slm2_web.bench.onnx import MODEL_FILE, NotWritable, write_model
from slm2_web.compile.pack import pack_gguf
from slm2_web.packed import PackedModel
from tiny_gguf import make_tiny_gguf

DTYPES = {1: "<f4", 3: "|i1", 6: "<i4", 7: "<i8"}


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message: an int, 4 bytes of a float, or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value - (1 << 64) if value >> 63 else value

    while at < len(data):
        key = varint()
        match key & 7:
            case 0:
                yield key >> 3, varint()
            case 2:
                size = varint()
                yield key >> 3, data[at : at + size]
                at += size
            case 5:
                yield key >> 3, data[at : at + 4]
                at += 4
            case kind:
                raise AssertionError(f"wire type {kind}")


@dataclass
class Node:
    """NodeProto."""

    kind: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)


class Graph:
    """GraphProto, and what it computes."""

    def __init__(self, path: Path) -> None:
        (graph,) = (value for number, value in fields(path.read_bytes()) if number == 7)
        self.nodes: list[Node] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        for number, value in fields(graph):
            if number == 1:
                self.nodes.append(self._node(value))
            elif number == 5:
                parts = list(fields(value))
                one = dict(parts)
                shape = [v for n, v in parts if n == 1]
                self.constants[one[8].decode()] = np.frombuffer(one[9], DTYPES[one[2]]).reshape(shape)
            elif number in (11, 12):
                name = dict(fields(value))[1].decode()
                (self.inputs if number == 11 else self.outputs).append(name)

    @staticmethod
    def _node(data: bytes) -> Node:
        node = Node()
        for number, value in fields(data):
            if number == 1:
                node.inputs.append(value.decode())
            elif number == 2:
                node.outputs.append(value.decode())
            elif number == 4:
                node.kind = value.decode()
            elif number == 5:
                parts = list(fields(value))
                one = dict(parts)
                many = [v for n, v in parts if n == 8]
                value = struct.unpack("<f", one[2])[0] if one[20] == 1 else one[3] if one[20] == 2 else many
                node.attributes[one[1].decode()] = value
        return node

    def run(self, given: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The outputs."""
        assert sorted(given) == sorted(self.inputs)
        values = {**self.constants, **given}
        for node in self.nodes:
            found = OPERATORS[node.kind](*(values[name] for name in node.inputs), **node.attributes)
            found = found if isinstance(found, tuple) else (found,)
            assert len(found) == len(node.outputs), node
            assert not values.keys() & set(node.outputs), node
            values |= zip(node.outputs, found, strict=True)
        return {name: values[name] for name in self.outputs}


def quantize(x: Any) -> tuple[Any, ...]:
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = np.float32((high - low) / 255 or 1)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8), scale, zero


def norm(x: Any, weight: Any, *, axis: int, epsilon: float, stash_type: int) -> Any:
    assert (axis, stash_type) == (-1, 1)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(epsilon)) * weight


def attention(
    q: Any, k: Any, v: Any, past_k: Any, past_v: Any, seen: Any, total: Any, cos: Any, sin: Any, **how: int
) -> tuple[Any, ...]:
    """com.microsoft GroupQueryAttention with rotary embedding on halves, batch 1."""
    n, heads, kv_heads = q.shape[1], how["num_heads"], how["kv_num_heads"]
    assert how["do_rotary"] == 1
    assert int(seen[0]) + 1 == int(total) == past_k.shape[2] + n
    turn = slice(int(total) - n, int(total))

    def split(x: Any, count: int) -> Any:
        return x.reshape(n, count, -1).transpose(1, 0, 2)

    def rotate(x: Any) -> Any:
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos[turn] - b * sin[turn], b * cos[turn] + a * sin[turn]], axis=-1)

    k = np.concatenate([past_k[0], rotate(split(k, kv_heads))], axis=1)
    v = np.concatenate([past_v[0], split(v, kv_heads)], axis=1)
    share = heads // kv_heads
    scores = rotate(split(q, heads)) @ np.repeat(k, share, 0).transpose(0, 2, 1) / np.sqrt(q.shape[2] / heads)
    scores = np.where(np.tri(n, int(total), int(total) - n, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    y = (weights @ np.repeat(v, share, 0)).transpose(1, 0, 2).reshape(1, n, -1)
    return y.astype(np.float32), k[None], v[None]


def cut(x: Any, low: Any, high: Any, axis: Any) -> Any:
    return x.take(range(*slice(low[0], high[0]).indices(x.shape[axis[0]])), axis[0])


OPERATORS: dict[str, Any] = {
    "Add": np.add,
    "Cast": lambda x, to: x.astype(DTYPES[to]),
    "DynamicQuantizeLinear": quantize,
    "Gather": lambda x, at, axis: np.take(x, at, axis=axis),
    "GroupQueryAttention": attention,
    "MatMulInteger": lambda a, b, zero: (a.astype(np.int32) - int(zero)) @ b.astype(np.int32),
    "Mul": np.multiply,
    "ReduceSum": lambda x, axes, keepdims: x.sum(axis=tuple(axes), keepdims=bool(keepdims)),
    "Shape": lambda x: np.array(x.shape),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "SimplifiedLayerNormalization": norm,
    "Slice": cut,
    "Sub": np.subtract,
    "Transpose": lambda x, perm: x.transpose(perm),
}


@pytest.fixture(scope="module")
def model(packed_tiny: Path) -> PackedModel:
    return PackedModel.open(packed_tiny)


@pytest.fixture(scope="module")
def graph(model: PackedModel, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder = tmp_path_factory.mktemp("onnx")
    path = write_model(model, folder)
    assert path == folder / MODEL_FILE
    assert {p.name for p in folder.iterdir()} == {"config.json", "generation_config.json", "onnx"}
    return Graph(path)


def empty_cache(model: PackedModel) -> dict[str, NDArray[Any]]:
    c = model.manifest.config
    shape = (1, c.n_kv_heads, 0, c.head_dim)
    names = [f"past_key_values.{i}.{part}" for i in range(c.n_layers) for part in ("key", "value")]
    return {name: np.zeros(shape, np.float32) for name in names}


def test_its_logits_are_the_models(model: PackedModel, graph: Graph) -> None:
    """A prompt at once, and then one id more with the cache that came of it."""
    ids = [5, 17, 40, 3, 99, 120, 8]
    oracle = FloatLlama(model).logits(ids)
    cache = empty_cache(model)
    for first, last in ((0, 6), (6, 7)):
        found = graph.run(
            {
                "input_ids": np.array([ids[first:last]]),
                "attention_mask": np.ones((1, last), np.int64),
                **cache,
            }
        )
        cache = {n.replace("present", "past_key_values"): v for n, v in found.items() if n != "logits"}
        assert found["logits"].shape == (1, 1, model.manifest.config.vocab_size)
        wanted = oracle[last - 1]
        error = np.sqrt(((found["logits"][0, 0] - wanted) ** 2).mean()) / wanted.std()
        assert error < 0.05


def test_another_network_is_refused(tmp_path: Path) -> None:
    tiny = make_tiny_gguf(tmp_path / "tiny.gguf", architecture="qwen2")
    pack_gguf(tiny.path, tmp_path / "tiny", tiny.spec)
    with pytest.raises(NotWritable, match="qwen2"):
        write_model(PackedModel.open(tmp_path / "tiny"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
