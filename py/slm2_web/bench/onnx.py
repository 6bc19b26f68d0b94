"""A packed model as an ONNX file with int8 weights: what transformers.js is measured on.

No registry has an ONNX file of the models, so it is made from the same weights, written as the published
"q8" files are: each matrix int8 with a scale for each output, activations quantised as they come
(DynamicQuantizeLinear, MatMulInteger), attention by ONNX Runtime's GroupQueryAttention with its KV cache. Two
things are in its favour: the logits are computed for the last token only, and the output matrix is the
embedding's, stored once.

The file is Protocol Buffers' wire format, written by hand: seven messages are all that is needed.
Source: ONNX, onnx.proto; ONNX Runtime, docs/ContribOperators.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slm2_web.compile.quantize import dequantize_planes
from slm2_web.packed import PackedModel

# Positions for which the file has rotary angles.
MAX_SEQ_LEN: Final = 2048
MODEL_FILE: Final = "onnx/model_quantized.onnx"  # where transformers.js looks for dtype q8

_IR_VERSION, _OPSET, _CONTRIB = 9, 17, "com.microsoft"
_FLOAT, _INT32, _INT64 = 1, 6, 7  # TensorProto.DataType
_TYPES: Final[Mapping[str, int]] = {"<f4": _FLOAT, "|i1": 3, "<i4": _INT32, "<i8": _INT64}


class NotWritable(Exception):
    """The model has something that is not written as ONNX; the message says what."""


def write_model(model: PackedModel, folder: Path) -> Path:
    """Writes the folder that transformers.js loads: config.json, generation_config.json and MODEL_FILE.

    Raises: NotWritable.
    """
    config = model.manifest.config
    if config.architecture != "llama":
        raise NotWritable(f"an ONNX file is written of llama networks, not of {config.architecture}")
    eos = sorted(model.manifest.eos_ids)
    about = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": config.dim,
        "head_dim": config.head_dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "vocab_size": config.vocab_size,
        "eos_token_id": eos,
    }
    path = folder / MODEL_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}), "utf-8")
    path.write_bytes(_Graph(model).as_bytes())
    return path


# --- wire format -----------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: int | float | str | bytes) -> bytes:
    """One field: an integer as varint, a float as 32 bits, else length-delimited."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _tensor(name: str, values: NDArray[Any]) -> bytes:
    """TensorProto."""
    dims = b"".join(_field(1, n) for n in values.shape)
    return dims + _field(2, _TYPES[values.dtype.str]) + _field(8, name) + _field(9, values.tobytes())


def _attribute(name: str, value: float | Sequence[int]) -> bytes:
    """AttributeProto."""
    if isinstance(value, float):
        return _field(1, name) + _field(2, value) + _field(20, 1)
    if isinstance(value, int):
        return _field(1, name) + _field(3, value) + _field(20, 2)
    return _field(1, name) + b"".join(_field(8, i) for i in value) + _field(20, 7)


def _value(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    """ValueInfoProto; a dimension may be a name."""
    dims = b"".join(_field(1, _field(2 if isinstance(n, str) else 1, n)) for n in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, dims)))


# --- the graph -------------------------------------------------------------------------------------------


class _Graph:
    """The network of one model."""

    def __init__(self, model: PackedModel) -> None:
        self._model = model
        self._parts: list[bytes] = []  # fields of GraphProto
        self._names = 0
        self._build()

    def as_bytes(self) -> bytes:
        """ModelProto."""
        opsets = [_field(2, _OPSET), _field(1, _CONTRIB) + _field(2, 1)]
        graph = _field(2, "decoder") + b"".join(self._parts)
        return _field(1, _IR_VERSION) + _field(7, graph) + b"".join(_field(8, opset) for opset in opsets)

    def _build(self) -> None:
        c = self._model.manifest.config
        for name, kind, shape in (
            ("input_ids", _INT64, ("batch_size", "tokens")),
            ("attention_mask", _INT64, ("batch_size", "seen")),
        ):
            self._parts.append(_field(11, _value(name, kind, shape)))
        self._parts.append(_field(12, _value("logits", _FLOAT, ("batch_size", 1, c.vocab_size))))
        angle = np.arange(MAX_SEQ_LEN)[:, None] * self._model.plane("rope.inv_freq", "values").reshape(1, -1)
        rope = [self._constant("cos", np.cos(angle)), self._constant("sin", np.sin(angle))]
        axis, one = self._integers([1]), self._integers([1])
        total = self._node("ReduceSum", ["attention_mask", axis], keepdims=0)
        seen = self._cast(self._node("Sub", [total, one]), _INT32)
        length = self._node("Gather", [self._node("Shape", ["attention_mask"]), self._integers(1)], axis=0)
        where = [seen, self._cast(length, _INT32), *rope]

        table, scale = self._quantized(self._rows("embed"))
        ids = "input_ids"
        x = self._cast(self._node("Gather", [self._constant("embed", table), ids], axis=0), _FLOAT)
        by_row = self._node("Gather", [self._constant("embed_scale", scale[:, None]), ids], axis=0)
        x = self._node("Mul", [x, by_row])
        for layer in range(c.n_layers):
            x = self._layer(f"layers.{layer}.", layer, x, where)
        last = self._integers([-1])
        x = self._node("Slice", [x, last, self._integers([np.iinfo(np.int64).max]), axis])
        x = self._norm(x, "final_norm")
        if "output" in self._model.manifest.tensors:
            table, scale = self._quantized(self._rows("output"))
            turned = self._constant("output", np.ascontiguousarray(table.T))
        else:
            turned = self._node("Transpose", ["embed"], perm=[1, 0])
        self._product(self._activation(x), turned, self._constant("output_scale", scale), "logits")

    def _layer(self, name: str, layer: int, x: str, where: Sequence[str]) -> str:
        c = self._model.manifest.config
        q_rows, kv_rows = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
        cache = ("batch_size", c.n_kv_heads, "past", c.head_dim)
        past, present = f"past_key_values.{layer}", f"present.{layer}"
        for part in (".key", ".value"):
            self._parts.append(_field(11, _value(past + part, _FLOAT, cache)))
            self._parts.append(_field(12, _value(present + part, _FLOAT, cache)))
        h = self._activation(self._norm(x, name + "attn_norm"))
        qkv = self._rows(name + "attn_qkv", *(f"{name}attn_{p}" for p in "qkv"))
        q, k, v = (self._linear(h, rows) for rows in np.split(qkv, (q_rows, q_rows + kv_rows)))
        outputs = [self._name(), present + ".key", present + ".value"]
        self._node(
            "GroupQueryAttention",
            [q, k, v, past + ".key", past + ".value", *where],
            outputs=outputs,
            domain=_CONTRIB,
            num_heads=c.n_heads,
            kv_num_heads=c.n_kv_heads,
            do_rotary=1,
        )
        x = self._node("Add", [x, self._linear(self._activation(outputs[0]), self._rows(name + "attn_out"))])
        h = self._activation(self._norm(x, name + "ffn_norm"))
        both = self._rows(name + "ffn_gate_up", name + "ffn_gate", name + "ffn_up")
        gate, up = (self._linear(h, rows) for rows in np.split(both, 2))
        gate = self._node("Mul", [gate, self._node("Sigmoid", [gate])])
        h = self._activation(self._node("Mul", [gate, up]))
        return self._node("Add", [x, self._linear(h, self._rows(name + "ffn_down"))])

    def _rows(self, name: str, *parts: str) -> NDArray[np.float32]:
        """A matrix of the model, or its parts one under the other where they are stored apart."""
        tensors = self._model.manifest.tensors
        if name not in tensors:
            return np.concatenate([self._rows(part) for part in parts])
        entry = tensors[name]
        planes = {
            plane: self._model.weights[offset : offset + entry.plane_bytes(plane)]
            for plane, offset in entry.planes.items()
        }
        return dequantize_planes(entry.type, planes, *entry.shape)

    @staticmethod
    def _quantized(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """(i8[n, k], f32[n]): each row with a scale of its own."""
        scale = np.maximum(np.abs(rows).max(axis=1), np.float32(1e-12)) / np.float32(127)
        return np.rint(rows / scale[:, None]).astype(np.int8), scale

    def _linear(self, activation: Sequence[str], rows: NDArray[np.float32]) -> str:
        weight, scale = self._quantized(rows)
        turned = self._constant(self._name(), np.ascontiguousarray(weight.T))
        return self._product(activation, turned, self._constant(self._name(), scale), self._name())

    def _activation(self, x: str) -> list[str]:
        """(u8 values, scale, zero point)."""
        return self._node_outputs("DynamicQuantizeLinear", [x], [self._name() for _ in range(3)])

    def _product(self, activation: Sequence[str], weight: str, scale: str, output: str) -> str:
        values, x_scale, zero = activation
        dots = self._cast(self._node("MatMulInteger", [values, weight, zero]), _FLOAT)
        return self._node("Mul", [dots, self._node("Mul", [x_scale, scale])], outputs=[output])

    def _norm(self, x: str, name: str) -> str:
        weight = self._constant(name, self._rows(name)[0])
        eps = float(self._model.manifest.config.norm_eps)
        return self._node("SimplifiedLayerNormalization", [x, weight], axis=-1, epsilon=eps, stash_type=1)

    def _cast(self, x: str, kind: int) -> str:
        return self._node("Cast", [x], to=kind)

    def _constant(self, name: str, values: NDArray[Any]) -> str:
        values = values.astype(np.float32) if values.dtype.kind == "f" else values
        self._parts.append(_field(5, _tensor(name, values)))
        return name

    def _integers(self, values: int | Sequence[int]) -> str:
        return self._constant(self._name(), np.array(values, "<i8"))

    def _name(self) -> str:
        self._names += 1
        return f"t{self._names}"

    def _node(
        self,
        kind: str,
        inputs: Sequence[str],
        *,
        outputs: Sequence[str] = (),
        domain: str = "",
        **attributes: float | Sequence[int],
    ) -> str:
        """NodeProto; its first output."""
        return self._node_outputs(kind, inputs, outputs or [self._name()], domain, **attributes)[0]

    def _node_outputs(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        domain: str = "",
        **attributes: float | Sequence[int],
    ) -> list[str]:
        node = b"".join(_field(1, name) for name in inputs) + b"".join(_field(2, name) for name in outputs)
        node += _field(3, outputs[0]) + _field(4, kind) + _field(7, domain)
        node += b"".join(_field(5, _attribute(key, value)) for key, value in attributes.items())
        self._parts.append(_field(1, node))
        return list(outputs)
