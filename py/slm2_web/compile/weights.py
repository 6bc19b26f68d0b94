"""From GGUF tensors to packed ones: which there must be, how they are fused, and their planes' bytes.

`plan_llama` checks names, shapes and types and lists the packed tensors in the order of the arena: what a
layer uses together lies together. `lay_out` gives each plane its offset. `planes_of` makes one tensor's
bytes, so that a packer holds one tensor at a time. Blocks stay as the file has them; only the order of
rows and the split into planes change. A matrix of floats becomes q8_0.

Llama-family GGUFs hold the rows of q and k in another order than Hugging Face: within each head, row j of
the first half and row j of the second half are neighbours, for a RoPE that rotates neighbours. We rotate
halves, so `half_split_rows` puts the rows back.

Source: `permute` of convert_hf_to_gguf.py (ggml-org/llama.cpp) and `llama.tensor_data_layout` of the GGUF
specification: `reshape(n_head, 2, head_dim / 2, cols).swapaxes(1, 2)`; ours is its inverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from typing import cast

import numpy as np
from numpy.typing import NDArray

from slm2_web.compile.gguf import GgufTensor, bad, unsupported
from slm2_web.compile.quantize import (
    BLOCK_TYPES,
    FLOAT_TYPES,
    Bytes,
    as_float32,
    finite_f16,
    quantize_q8_0,
    split_blocks,
)
from slm2_web.manifest import PLANE_ALIGNMENT_BYTES, PLANE_BYTES, ModelConfig, TensorEntry, TensorType

# Rows of a float matrix that are quantised at a time: bounds the float32 copies.
ROWS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class Part:
    """What one GGUF tensor must be: its name, its shape, and the heads whose rows are interleaved."""

    name: str
    rows: int
    cols: int
    heads: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of a packed tensor that come from one GGUF tensor."""

    part: Part
    tensor: GgufTensor


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A packed tensor to be made: its sources' rows one after another, or `computed` where it has none."""

    name: str
    type: TensorType
    shape: tuple[int, int]
    sources: tuple[Source, ...]
    computed: NDArray[np.float32] | None = None


def plan_llama(
    tensors: Mapping[str, GgufTensor], config: ModelConfig, rope_theta: float
) -> list[PlannedTensor]:
    """The packed tensors of a llama-family GGUF, in arena order; q, k, v and gate, up fused if types agree.

    Raises: FormatError `format.gguf` for a tensor that is missing or has the wrong shape,
        `format.unsupported` for one that we do not know or whose type we do not have.
    """
    left = dict(tensors)
    inv_freq = inverse_frequencies(rope_theta, config.head_dim)
    plan = [PlannedTensor("rope.inv_freq", "f32", (1, config.head_dim // 2), (), inv_freq)]

    def take(name: str, parts: Sequence[Part]) -> None:
        sources = tuple(Source(part, _take(left, part)) for part in parts)
        kinds = [_packed_type(source) for source in sources]
        if len(set(kinds)) == 1:
            rows = sum(part.rows for part in parts)
            plan.append(PlannedTensor(name, kinds[0], (rows, parts[0].cols), sources))
            return
        prefix = name.rpartition(".")[0]
        for source, kind in zip(sources, kinds, strict=True):
            own = prefix + "." + source.part.name.split(".")[-2]
            plan.append(PlannedTensor(own, kind, (source.part.rows, source.part.cols), (source,)))

    dim, hidden_dim = config.dim, config.hidden_dim
    q_rows, kv_rows = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    take("embed", [Part("token_embd.weight", config.vocab_size, dim)])
    for i in range(config.n_layers):
        ours, theirs = f"layers.{i}.", f"blk.{i}."
        take(ours + "attn_norm", [Part(theirs + "attn_norm.weight", 1, dim)])
        take(
            ours + "attn_qkv",
            [
                Part(theirs + "attn_q.weight", q_rows, dim, config.n_heads),
                Part(theirs + "attn_k.weight", kv_rows, dim, config.n_kv_heads),
                Part(theirs + "attn_v.weight", kv_rows, dim),
            ],
        )
        take(ours + "attn_out", [Part(theirs + "attn_output.weight", dim, q_rows)])
        take(ours + "ffn_norm", [Part(theirs + "ffn_norm.weight", 1, dim)])
        take(
            ours + "ffn_gate_up",
            [
                Part(theirs + "ffn_gate.weight", hidden_dim, dim),
                Part(theirs + "ffn_up.weight", hidden_dim, dim),
            ],
        )
        take(ours + "ffn_down", [Part(theirs + "ffn_down.weight", dim, hidden_dim)])
    take("final_norm", [Part("output_norm.weight", 1, dim)])
    if "output.weight" in left:
        take("output", [Part("output.weight", config.vocab_size, dim)])
    for name in left:
        raise unsupported(f"tensor {name!r}", "a tensor that the architecture llama does not use", "none")
    return plan


def _take(left: dict[str, GgufTensor], part: Part) -> GgufTensor:
    """The GGUF tensor that `part` describes, taken out of `left`."""
    tensor = left.pop(part.name, None)
    shape = f"shape {[part.rows, part.cols]}"
    if tensor is None:
        raise bad(f"tensor {part.name!r}", "nothing", shape)
    if tensor.shape != (part.rows, part.cols):
        raise bad(f"tensor {part.name!r}", f"shape {list(tensor.shape)}", shape)
    return tensor


def _packed_type(source: Source) -> TensorType:
    """The type that a source is packed as: f32 for a vector, a matrix's own block type, or q8_0."""
    kind = source.tensor.type
    allowed = FLOAT_TYPES if source.part.rows == 1 else (*BLOCK_TYPES, *FLOAT_TYPES)
    if kind not in allowed:
        raise unsupported(f"tensor {source.part.name!r}", f"type {kind}", ", ".join(allowed))
    if source.part.rows == 1:
        return "f32"
    return cast(TensorType, kind) if kind in BLOCK_TYPES else "q8_0"


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


def planes_of(planned: PlannedTensor) -> dict[str, Bytes]:
    """The bytes of each plane, flat, in the order of PLANE_BYTES.

    Raises: FormatError `format.unsupported` for a value or a scale that is infinite or NaN.
    """
    if planned.computed is not None:
        return {"values": planned.computed.astype("<f4").view(np.uint8).reshape(-1)}
    parts = [_source_planes(source) for source in planned.sources]
    return {
        plane: np.concatenate([part[plane].reshape(-1) for part in parts])
        if len(parts) > 1
        else parts[0][plane].reshape(-1)
        for plane in PLANE_BYTES[planned.type]
    }


def _source_planes(source: Source) -> dict[str, Bytes]:
    """The planes of one source, u8[rows, -1] each, its rows in half-split order."""
    part, kind = source.part, source.tensor.type
    data = np.frombuffer(source.tensor.data, np.uint8)
    if part.rows == 1:
        values = as_float32(kind, data)
        _check_finite(bool(np.all(np.isfinite(values))), part.name)
        return {"values": values.astype("<f4").view(np.uint8)}
    if kind in BLOCK_TYPES:
        planes = split_blocks(kind, data, part.rows, part.cols)
    else:
        planes = _quantized_rows(part, kind, data)
    _check_finite(finite_f16(planes["scales"]), part.name)
    if part.heads:
        planes = {name: half_split_rows(rows, part.heads) for name, rows in planes.items()}
    return planes


def _quantized_rows(part: Part, kind: str, data: Bytes) -> dict[str, Bytes]:
    """The q8_0 planes of a float matrix, made a few rows at a time."""
    by_row = data.reshape(part.rows, -1)
    chunks = []
    for row in range(0, part.rows, ROWS_AT_ONCE):
        values = as_float32(kind, by_row[row : row + ROWS_AT_ONCE].reshape(-1)).reshape(-1, part.cols)
        _check_finite(bool(np.all(np.isfinite(values))), part.name)
        chunks.append(quantize_q8_0(values))
    return {plane: np.concatenate([chunk[plane] for chunk in chunks]) for plane in PLANE_BYTES["q8_0"]}


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
