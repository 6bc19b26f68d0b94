"""From a file's tensors to packed ones: which there must be, how they are fused, and their planes' bytes.

`plan_network` checks names, shapes and types and lists the packed tensors in the order of the arena: what a
layer uses together lies together. `lay_out` gives each plane its offset. `planes_of` makes one tensor's
bytes, so that a packer holds one tensor at a time. Blocks stay as the file has them; only the order of
rows and the split into planes change. A matrix of floats is quantised.

What a file calls its tensors is a `Naming`; which tensors there are besides those of every network is the
architecture's (manifest.ARCHITECTURES). So one plan serves every family and both file formats.

Llama-family GGUFs hold the rows of q and k in another order than Hugging Face: within each head, row j of
the first half and row j of the second half are neighbours, for a RoPE that rotates neighbours. We rotate
halves, so `half_split_rows` puts the rows back.

Source: `permute` of convert_hf_to_gguf.py (ggml-org/llama.cpp) and `llama.tensor_data_layout` of the GGUF
specification: `reshape(n_head, 2, head_dim / 2, cols).swapaxes(1, 2)`; ours is its inverse.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from slm2_web.compile import gguf, safetensors
from slm2_web.compile.gguf import unsupported
from slm2_web.compile.quantize import (
    BLOCK_TYPES,
    FLOAT_TYPES,
    QUANTIZERS,
    Bytes,
    as_float32,
    dequantize_planes,
    finite_f16,
    split_blocks,
)
from slm2_web.errors import FormatError
from slm2_web.manifest import BLOCK, PLANE_ALIGNMENT_BYTES, PLANE_BYTES, ModelConfig, TensorEntry, TensorType

# Values of a float matrix that are quantised at a time, about: a search then stays in a processor's cache.
VALUES_AT_ONCE = 1 << 18
# More threads than these would only wait for memory.
MAX_THREADS = 4


class SourceTensor(Protocol):
    """A tensor of a model file: a vector (one row) or a matrix."""

    @property
    def name(self) -> str:
        """Its name in the file."""

    @property
    def type(self) -> str:
        """One of FLOAT_TYPES or BLOCK_TYPES, or a type that we do not take."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols). Raises: FormatError `format.unsupported` for more than two dimensions."""

    def read_rows(self, first: int, count: int) -> Bytes:
        """u8[count, bytes of a row]. May be called by several threads at once."""


@dataclass(frozen=True, slots=True)
class Naming:
    """How a format spells our tensors: `names` by our own name, {} for the layer; `bad` makes its errors."""

    names: Mapping[str, str]
    bad: Callable[[str, str, str], FormatError]

    def theirs(self, key: str, layer: int = 0) -> str:
        """The file's name of a tensor."""
        return self.names[key].format(layer)


GGUF = Naming(
    {
        "embed": "token_embd.weight",
        "attn_norm": "blk.{}.attn_norm.weight",
        "attn_q": "blk.{}.attn_q.weight",
        "attn_k": "blk.{}.attn_k.weight",
        "attn_v": "blk.{}.attn_v.weight",
        "q_bias": "blk.{}.attn_q.bias",
        "k_bias": "blk.{}.attn_k.bias",
        "v_bias": "blk.{}.attn_v.bias",
        "q_norm": "blk.{}.attn_q_norm.weight",
        "k_norm": "blk.{}.attn_k_norm.weight",
        "attn_out": "blk.{}.attn_output.weight",
        "ffn_norm": "blk.{}.ffn_norm.weight",
        "ffn_gate": "blk.{}.ffn_gate.weight",
        "ffn_up": "blk.{}.ffn_up.weight",
        "ffn_down": "blk.{}.ffn_down.weight",
        "final_norm": "output_norm.weight",
        "output": "output.weight",
    },
    gguf.bad,
)
SAFETENSORS = Naming(
    {
        "embed": "model.embed_tokens.weight",
        "attn_norm": "model.layers.{}.input_layernorm.weight",
        "attn_q": "model.layers.{}.self_attn.q_proj.weight",
        "attn_k": "model.layers.{}.self_attn.k_proj.weight",
        "attn_v": "model.layers.{}.self_attn.v_proj.weight",
        "q_bias": "model.layers.{}.self_attn.q_proj.bias",
        "k_bias": "model.layers.{}.self_attn.k_proj.bias",
        "v_bias": "model.layers.{}.self_attn.v_proj.bias",
        "q_norm": "model.layers.{}.self_attn.q_norm.weight",
        "k_norm": "model.layers.{}.self_attn.k_norm.weight",
        "attn_out": "model.layers.{}.self_attn.o_proj.weight",
        "ffn_norm": "model.layers.{}.post_attention_layernorm.weight",
        "ffn_gate": "model.layers.{}.mlp.gate_proj.weight",
        "ffn_up": "model.layers.{}.mlp.up_proj.weight",
        "ffn_down": "model.layers.{}.mlp.down_proj.weight",
        "final_norm": "model.norm.weight",
        "output": "lm_head.weight",
    },
    safetensors.bad,
)


@dataclass(frozen=True, slots=True)
class Quantization:
    """What float matrices become: the embedding (and an output matrix), and all others."""

    embed: TensorType = "q8_0"
    matrices: TensorType = "q8_0"


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of a packed tensor that come from one of the file's; `heads` where their rows are interleaved."""

    tensor: SourceTensor
    heads: int = 0


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A packed tensor to be made: its sources one after another, or `computed` where it has none."""

    name: str
    type: TensorType
    shape: tuple[int, int]
    sources: tuple[Source, ...]
    computed: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """What quantising one of the file's tensors lost: the error's rms, relative to that of the values."""

    name: str
    type: TensorType
    relative_error: float


Report = Callable[[Loss], None]


def _unheard(loss: Loss) -> None:
    """The report of somebody who does not want to know."""


def plan_network(
    tensors: Mapping[str, SourceTensor],
    config: ModelConfig,
    rope_theta: float,
    naming: Naming,
    *,
    interleaved: bool,
    quantization: Quantization = Quantization(),
) -> list[PlannedTensor]:
    """The packed tensors of a file's, in arena order; q, k, v and gate, up fused if types agree.

    `interleaved`: the rows of q and k are. Raises: FormatError of the naming for a tensor that is missing or
        has the wrong shape, `format.unsupported` for one that we do not know or whose type we do not have.
    """
    left = dict(tensors)
    inv_freq = inverse_frequencies(rope_theta, config.head_dim)
    plan = [PlannedTensor("rope.inv_freq", "f32", (1, config.head_dim // 2), (), inv_freq)]
    dim, hidden_dim, head_dim = config.dim, config.hidden_dim, config.head_dim
    q_rows, kv_rows = config.n_heads * head_dim, config.n_kv_heads * head_dim
    q_heads, k_heads = (config.n_heads, config.n_kv_heads) if interleaved else (0, 0)

    def taken(key: str, layer: int, shape: tuple[int, int]) -> SourceTensor:
        name = naming.theirs(key, layer)
        tensor = left.pop(name, None)
        if tensor is None:
            raise naming.bad(f"tensor {name!r}", "nothing", f"shape {list(shape)}")
        if tensor.shape != shape:
            raise naming.bad(f"tensor {name!r}", f"shape {list(tensor.shape)}", f"shape {list(shape)}")
        return tensor

    def vectors(name: str, layer: int, *parts: tuple[str, int]) -> None:
        sources = tuple(Source(taken(key, layer, (1, cols))) for key, cols in parts)
        for source in sources:
            _check_type(source.tensor, FLOAT_TYPES)
        plan.append(PlannedTensor(name, "f32", (1, sum(cols for _, cols in parts)), sources))

    def matrix(name: str, layer: int, cols: int, *parts: tuple[str, int, int], floats: TensorType) -> None:
        sources = tuple(Source(taken(key, layer, (rows, cols)), heads) for key, rows, heads in parts)
        for source in sources:
            _check_type(source.tensor, (*BLOCK_TYPES, *FLOAT_TYPES))
        kinds = [cast(TensorType, s.tensor.type) if s.tensor.type in BLOCK_TYPES else floats for s in sources]
        if len(set(kinds)) == 1:
            plan.append(PlannedTensor(name, kinds[0], (sum(rows for _, rows, _ in parts), cols), sources))
            return
        prefix = name.rpartition(".")[0]
        for (key, rows, _), kind, source in zip(parts, kinds, sources, strict=True):
            plan.append(PlannedTensor(f"{prefix}.{key}", kind, (rows, cols), (source,)))

    small, large = quantization.matrices, quantization.embed
    matrix("embed", 0, dim, ("embed", config.vocab_size, 0), floats=large)
    for i in range(config.n_layers):
        ours = f"layers.{i}."
        vectors(ours + "attn_norm", i, ("attn_norm", dim))
        qkv = (("attn_q", q_rows, q_heads), ("attn_k", kv_rows, k_heads), ("attn_v", kv_rows, 0))
        matrix(ours + "attn_qkv", i, dim, *qkv, floats=small)
        if config.network.qkv_bias:
            biases = (("q_bias", q_rows), ("k_bias", kv_rows), ("v_bias", kv_rows))
            vectors(ours + "qkv_bias", i, *biases)
        if config.network.head_norm:
            vectors(ours + "qk_norm", i, ("q_norm", head_dim), ("k_norm", head_dim))
        matrix(ours + "attn_out", i, q_rows, ("attn_out", dim, 0), floats=small)
        vectors(ours + "ffn_norm", i, ("ffn_norm", dim))
        gate_up = (("ffn_gate", hidden_dim, 0), ("ffn_up", hidden_dim, 0))
        matrix(ours + "ffn_gate_up", i, dim, *gate_up, floats=small)
        matrix(ours + "ffn_down", i, hidden_dim, ("ffn_down", dim, 0), floats=small)
    vectors("final_norm", 0, ("final_norm", dim))
    if naming.theirs("output") in left:
        matrix("output", 0, dim, ("output", config.vocab_size, 0), floats=large)
    for name in left:
        found = f"a tensor that the architecture {config.architecture} does not use"
        raise unsupported(f"tensor {name!r}", found, "none")
    return plan


def _check_type(tensor: SourceTensor, allowed: Sequence[str]) -> None:
    if tensor.type not in allowed:
        raise unsupported(f"tensor {tensor.name!r}", f"type {tensor.type}", ", ".join(allowed))


def lay_out(plan: Sequence[PlannedTensor]) -> tuple[dict[str, TensorEntry], int]:
    """(entry of each tensor, total bytes): planes one after another, each on the next aligned offset."""
    entries: dict[str, TensorEntry] = {}
    end = 0
    for planned in plan:
        entry = TensorEntry(planned.type, planned.shape, {})
        offsets: dict[str, int] = {}
        for plane in PLANE_BYTES[planned.type]:
            offsets[plane] = -(-end // PLANE_ALIGNMENT_BYTES) * PLANE_ALIGNMENT_BYTES
            end = offsets[plane] + entry.plane_bytes(plane)
        entries[planned.name] = replace(entry, planes=offsets)
    return entries, end


def planes_of(planned: PlannedTensor, report: Report = _unheard) -> dict[str, Bytes]:
    """The bytes of each plane, flat, in the order of PLANE_BYTES. `report` hears what quantising lost.

    Raises: FormatError `format.unsupported` for a value or a scale that is infinite or NaN.
    """
    if planned.computed is not None:
        return {"values": planned.computed.astype("<f4").view(np.uint8).reshape(-1)}
    parts = [_source_planes(source, planned.type, report) for source in planned.sources]
    return {
        plane: np.concatenate([part[plane].reshape(-1) for part in parts])
        if len(parts) > 1
        else parts[0][plane].reshape(-1)
        for plane in PLANE_BYTES[planned.type]
    }


def _source_planes(source: Source, kind: TensorType, report: Report) -> dict[str, Bytes]:
    """The planes of one source, u8[rows, -1] each, its rows in half-split order."""
    tensor = source.tensor
    rows, cols = tensor.shape
    if kind == "f32":
        values = as_float32(tensor.type, tensor.read_rows(0, rows).reshape(-1))
        _check_finite(bool(np.all(np.isfinite(values))), tensor.name)
        return {"values": values.astype("<f4").view(np.uint8)}
    if tensor.type in BLOCK_TYPES:
        planes = split_blocks(tensor.type, tensor.read_rows(0, rows).reshape(-1), rows, cols)
    else:
        planes = _quantized(tensor, kind, report)
    _check_finite(finite_f16(planes["scales"]), tensor.name)
    if source.heads:
        planes = {name: half_split_rows(part, source.heads) for name, part in planes.items()}
    return planes


def _quantized(tensor: SourceTensor, kind: TensorType, report: Report) -> dict[str, Bytes]:
    """The planes of a float matrix, made a few rows at a time by a few threads."""
    rows, cols = tensor.shape
    planes = {p: np.empty((rows, cols * n // BLOCK), np.uint8) for p, n in PLANE_BYTES[kind].items()}
    step = max(1, VALUES_AT_ONCE // cols)

    def convert(first: int) -> tuple[float, float]:
        """(squared error, squared values) of the rows from `first` on."""
        count = min(step, rows - first)
        values = as_float32(tensor.type, tensor.read_rows(first, count).reshape(-1)).reshape(count, cols)
        _check_finite(bool(np.all(np.isfinite(values))), tensor.name)
        made = QUANTIZERS[kind](values)
        for plane, data in made.items():
            planes[plane][first : first + count] = data
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = values - dequantize_planes(kind, made, count, cols)
            return _square_sum(wrong), _square_sum(values)

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        sums = list(pool.map(convert, range(0, rows, step)))
    wrong, whole = (sum(part) for part in zip(*sums, strict=True))
    report(Loss(tensor.name, kind, (wrong / whole) ** 0.5 if whole else 0.0))
    return planes


def _square_sum(values: NDArray[np.float32]) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def _check_finite(finite: bool, name: str) -> None:
    if not finite:
        raise unsupported(f"tensor {name!r}", "an infinity or NaN", "finite values and f16 scales")


def half_split_rows(rows: Bytes, heads: int) -> Bytes:
    """u8[rows, -1]: rows that a GGUF interleaves within each head, back in Hugging Face's order.

    Within a head, row 2j goes to row j and row 2j + 1 to row j + head_dim / 2.
    """
    n_rows, width = rows.shape
    pairs = rows.reshape(heads, n_rows // heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(n_rows, width)


def inverse_frequencies(theta: float, head_dim: int) -> NDArray[np.float32]:
    """f32[head_dim / 2]: 1 / theta^(2i / head_dim), from 60 decimal digits, rounded once.

    Source: Su et al., RoFormer, section 3.2.2.
    """
    context = Context(prec=60)
    exact = [
        context.power(Decimal(theta), context.divide(Decimal(-2 * i), Decimal(head_dim)))
        for i in range(head_dim // 2)
    ]
    return np.array([nearest_f32(Fraction(value)) for value in exact], np.float32)


def nearest_f32(value: Fraction) -> np.float32:
    """The float32 nearest to a positive, normal value; of two equally near the one with an even last bit."""
    guess = np.float32(float(value))  # rounded twice: the answer is this one or a neighbour
    candidates = (guess, np.nextafter(guess, np.float32(0)), np.nextafter(guess, np.float32(np.inf)))
    return min(
        candidates, key=lambda c: (abs(Fraction(float(c)) - value), int(np.asarray(c).view(np.uint32)) & 1)
    )
