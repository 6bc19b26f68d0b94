"""A model's manifest as a list of dispatches: pure data, the same for every executor.

    embed -> n_layers x [ norm+quantize -> qkv -> (+ bias | head norm) rope+cache
                          -> scores -> values of each block -> blocks+quantize -> out(+)
                          -> norm+quantize -> gate,up -> silu*mul+quantize -> down(+) ]
          -> norm+quantize -> logits

(+) adds to the residual stream `x` in place. A plan has two bodies, one for a single token and one for a
chunk of them; they differ only in which shader a GPU takes for a matrix product, never in a sum's order. The
logits are a tail of their own, for the last token only. A dispatch's shader and grid are for GPUs; the other
executors go by its kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from slm2_web.errors import FormatError
from slm2_web.forward2.exactmath import ATTENTION_BLOCK, GROUP
from slm2_web.forward2.kernels import (
    KERNELS,
    MATMUL_ROWS,
    MAX_BINDING_BYTES,
    MAX_WORKGROUPS,
    OFFSET_ALIGNMENT_BYTES,
    SHADERS,
    STEP_BYTES,
    TILE_ROWS,
    TILE_TOKENS,
)
from slm2_web.manifest import Manifest, ModelConfig, TensorEntry

# The context that is made when nobody asks for another: its KV cache is part of the device's memory.
DEFAULT_SEQ_LEN = 2048

Variable = Literal["one", "n_tokens", "seq_len"]


@dataclass(frozen=True, slots=True)
class Extent:
    """A number of workgroups that may depend on the step: ceil(variable * mul / div)."""

    variable: Variable
    mul: int = 1
    div: int = 1

    def count(self, n_tokens: int, seq_len: int) -> int:
        """Workgroups for a step."""
        value = {"one": 1, "n_tokens": n_tokens, "seq_len": seq_len}[self.variable]
        return -(-value * self.mul // self.div)


@dataclass(frozen=True, slots=True)
class Binding:
    """A byte range of a buffer."""

    buffer: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel run: the shader that does it, its constants, what it binds after the step, its grid."""

    shader: str
    constants: Mapping[str, float]
    bindings: tuple[Binding, ...]
    grid: tuple[Extent, Extent, Extent]

    @property
    def kernel(self) -> str:
        """What is computed."""
        return SHADERS[self.shader]


@dataclass(frozen=True, slots=True)
class Segment:
    """A device buffer that holds the weights' bytes `start` to `end`."""

    buffer: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything an executor needs: buffers by size, weight segments, and the dispatches."""

    vocab_size: int
    max_seq_len: int
    max_chunk_tokens: int
    buffers: Mapping[str, int]
    segments: tuple[Segment, ...]
    decode: tuple[Dispatch, ...]
    prefill: tuple[Dispatch, ...]
    logits: tuple[Dispatch, ...]

    def memory_bytes(self) -> Mapping[str, int]:
        """Device bytes: weights, KV cache, the rest."""
        cache = sum(size for name, size in self.buffers.items() if name.startswith("kv"))
        return {
            "weights": sum(s.end - s.start for s in self.segments),
            "kv_cache": cache,
            "work": sum(self.buffers.values()) - cache,
        }


ONE = Extent("one")


@dataclass(slots=True)
class _Builder:
    manifest: Manifest
    max_seq_len: int
    max_chunk_tokens: int
    max_binding_bytes: int
    buffers: dict[str, int] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)

    def lay_out_weights(self) -> None:
        """Cover the weights by as few buffers as the binding limit allows, none cutting a bound part."""
        extents = sorted(
            (tensor.planes[plane] + start, tensor.planes[plane] + end)
            for tensor in self.manifest.tensors.values()
            for plane in tensor.planes
            for start, end in self._plane_parts(tensor, plane)
        )
        bounds = [list(extents[0])]
        for low, high in extents[1:]:
            if high - bounds[-1][0] > self.max_binding_bytes:
                bounds.append([low, high])
            bounds[-1][1] = high
        for i, (start, stop) in enumerate(bounds):
            # Devices bind and copy whole words. Planes begin aligned, so rounding up meets no other.
            end = -(-stop // OFFSET_ALIGNMENT_BYTES) * OFFSET_ALIGNMENT_BYTES
            self.segments.append(Segment(f"weights.{i}", start, end))

    def parts(self, tensor: TensorEntry) -> Iterator[tuple[int, int]]:
        """(first row, rows) of each part of a tensor: its planes fit a binding, its rows a grid."""
        rows, _ = tensor.shape
        row_bytes = max(tensor.plane_bytes(plane) // rows for plane in tensor.planes)
        step = min(self.max_binding_bytes // row_bytes, MAX_WORKGROUPS * MATMUL_ROWS)
        if rows > step:
            # A multiple of 256 rows begins at an aligned offset in every plane.
            step = step // OFFSET_ALIGNMENT_BYTES * OFFSET_ALIGNMENT_BYTES
            if not step:
                raise FormatError("format.unsupported", f"a row of {row_bytes} bytes does not fit a binding")
        for first in range(0, rows, step):
            yield first, min(step, rows - first)

    def _plane_parts(self, tensor: TensorEntry, plane: str) -> Iterator[tuple[int, int]]:
        row_bytes = tensor.plane_bytes(plane) // tensor.shape[0]
        for first, rows in self.parts(tensor):
            yield first * row_bytes, (first + rows) * row_bytes

    def weight(self, name: str, plane: str, first_row: int = 0, rows: int | None = None) -> Binding:
        """The binding of a tensor's plane, from `first_row`."""
        tensor = self.manifest.tensors[name]
        row_bytes = tensor.plane_bytes(plane) // tensor.shape[0]
        start = tensor.planes[plane] + first_row * row_bytes
        size = (tensor.shape[0] if rows is None else rows) * row_bytes
        for segment in self.segments:
            if segment.start <= start and start + size <= segment.end:
                # Bindings are whole 4-byte words; planes are padded to their alignment, so this stays inside.
                return Binding(segment.buffer, start - segment.start, -(-size // 4) * 4)
        raise AssertionError(name)

    def buffer(self, name: str, size: int) -> Binding:
        """The whole of a work buffer, made at its first mention."""
        size = -(-size // 16) * 16
        known = self.buffers.setdefault(name, size)
        assert size <= known, name
        if size > self.max_binding_bytes:
            raise FormatError("format.unsupported", f"buffer {name} of {size} bytes does not fit a binding")
        return Binding(name, 0, size)

    def quantized(self, cols: int) -> tuple[Binding, Binding]:
        """xq and xm, the quantised activations of `cols` columns."""
        size = self.max_chunk_tokens * cols
        return self.buffer("xq", size), self.buffer("xm", size // GROUP * 8)

    def matmul(
        self,
        name: str,
        y: str,
        *,
        stride: int,
        offset: int = 0,
        tiled: bool = False,
        add: bool = False,
        last: bool = False,
    ) -> Iterator[Dispatch]:
        """y[t, offset + row] (+)= tensor[row, :] . x[t, :], a dispatch per part of the tensor."""
        tensor = self.manifest.tensors[name]
        if tensor.type == "f32":
            raise FormatError("format.unsupported", f"tensor {name!r}: f32 matrices")
        _, cols = tensor.shape
        tokens = 1 if last else self.max_chunk_tokens
        for first, rows in self.parts(tensor):
            row_tiles = Extent("one", rows, TILE_ROWS if tiled else MATMUL_ROWS)
            token_tiles = ONE if last else Extent("n_tokens", 1, TILE_TOKENS if tiled else 1)
            yield _dispatch(
                f"matmul_tile_{tensor.type}" if tiled else f"matmul_{tensor.type}",
                {
                    "COLS": cols,
                    "ROWS": rows,
                    "STRIDE": stride,
                    "OFFSET": offset + first,
                    "ADD": int(add),
                    "LAST": int(last),
                },
                (
                    *self.quantized(cols),
                    self.weight(name, "quants", first, rows),
                    self.weight(name, "scales", first, rows),
                    self.buffer(y, tokens * stride * 4),
                ),
                (token_tiles, row_tiles, ONE) if tiled else (row_tiles, token_tiles, ONE),
            )

    def norm(self, name: str, x: Binding, cols: int) -> Dispatch:
        """RMSNorm of x by a weight, quantised into xq and xm."""
        return _dispatch(
            "rmsnorm_quantize",
            {
                "COLS": cols,
                "INV_COLS": float(np.float32(1.0 / cols)),
                "EPS": float(np.float32(self.manifest.config.norm_eps)),
            },
            (
                x,
                self.weight(name, "values"),
                *self.quantized(cols),
            ),
            (ONE, Extent("n_tokens"), ONE),
        )

    def body(self, tiled: bool) -> Iterator[Dispatch]:
        """Ids to the last layer's residual stream; `tiled` for several tokens."""
        config = self.manifest.config
        chunk = self.max_chunk_tokens
        q_dim, kv_dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        heads = {"N_HEADS": config.n_heads, "HEAD_DIM": config.head_dim, "MAX_SEQ": self.max_seq_len}
        grouped = {**heads, "N_KV_HEADS": config.n_kv_heads}
        x = self.buffer("x", chunk * config.dim * 4)
        qkv_width = q_dim + 2 * kv_dim
        qkv = self.buffer("qkv", chunk * qkv_width * 4)
        qq = self.buffer("qq", chunk * q_dim)
        qs = self.buffer("qs", chunk * q_dim // GROUP * 4)
        blocks = -(-self.max_seq_len // ATTENTION_BLOCK)
        scores = self.buffer("scores", chunk * config.n_heads * self.max_seq_len * 4)
        peaks = self.buffer("peaks", chunk * config.n_heads * blocks * 4)
        masses = self.buffer("masses", chunk * config.n_heads * blocks * 4)
        values = self.buffer("values", chunk * q_dim * blocks * 4)
        gate_up = self.buffer("gate_up", chunk * 2 * config.hidden_dim * 4)
        rope = self.buffer("rope", self.max_seq_len * config.head_dim * 4)
        ids = self.buffer("ids", chunk * 4)
        by_block = (
            Extent("seq_len", 1, ATTENTION_BLOCK),
            Extent("one", config.n_heads),
            Extent("n_tokens"),
        )

        embed = self.manifest.tensors["embed"]
        for first, rows in self.parts(embed):
            yield _dispatch(
                f"embed_{embed.type}",
                {"COLS": config.dim, "ROW0": first, "ROWS": rows},
                (
                    ids,
                    self.weight("embed", "quants", first, rows),
                    self.weight("embed", "scales", first, rows),
                    x,
                ),
                (Extent("one", config.dim // 4, 64), Extent("n_tokens"), ONE),
            )
        for i in range(config.n_layers):
            layer = f"layers.{i}"
            kvq = self.buffer(f"kv.{i}.quants", 2 * self.max_seq_len * kv_dim)
            kvs = self.buffer(f"kv.{i}.scales", 2 * self.max_seq_len * kv_dim // GROUP * 4)
            yield self.norm(f"{layer}.attn_norm", x, config.dim)
            offset = 0
            for name in self.stored(
                f"{layer}.attn_qkv", (f"{layer}.attn_q", f"{layer}.attn_k", f"{layer}.attn_v")
            ):
                yield from self.matmul(name, "qkv", stride=qkv_width, offset=offset, tiled=tiled)
                offset += self.manifest.tensors[name].shape[0]
            before_rope, more, weights = self.before_rope(layer)
            yield _dispatch(
                before_rope + "rope_kv",
                {**grouped, **more},
                (qkv, rope, qq, qs, kvq, kvs, *weights),
                (Extent("one", qkv_width // config.head_dim), Extent("n_tokens"), ONE),
            )
            yield _dispatch(
                "attn_scores",
                {**grouped, "SCALE": float(np.float32(1.0 / math.sqrt(config.head_dim)))},
                (qq, qs, kvq, kvs, scores, peaks),
                by_block,
            )
            yield _dispatch("attn_values", grouped, (scores, peaks, kvq, kvs, masses, values), by_block)
            yield _dispatch(
                "attn_quantize",
                heads,
                (masses, values, *self.quantized(q_dim)),
                (Extent("one", config.n_heads), Extent("n_tokens"), ONE),
            )
            yield from self.matmul(f"{layer}.attn_out", "x", stride=config.dim, tiled=tiled, add=True)
            yield self.norm(f"{layer}.ffn_norm", x, config.dim)
            offset = 0
            for name in self.stored(f"{layer}.ffn_gate_up", (f"{layer}.ffn_gate", f"{layer}.ffn_up")):
                yield from self.matmul(
                    name, "gate_up", stride=2 * config.hidden_dim, offset=offset, tiled=tiled
                )
                offset += self.manifest.tensors[name].shape[0]
            yield _dispatch(
                "silu_mul_quantize",
                {"COLS": config.hidden_dim},
                (gate_up, *self.quantized(config.hidden_dim)),
                (Extent("one", config.hidden_dim // 4, 64), Extent("n_tokens"), ONE),
            )
            yield from self.matmul(f"{layer}.ffn_down", "x", stride=config.dim, tiled=tiled, add=True)

    def tail(self) -> Iterator[Dispatch]:
        """The last token's residual stream to logits."""
        config = self.manifest.config
        output = "output" if "output" in self.manifest.tensors else "embed"
        yield self.norm("final_norm", self.buffer("x", self.max_chunk_tokens * config.dim * 4), config.dim)
        yield from self.matmul(output, "logits", stride=config.vocab_size, last=True)

    def before_rope(self, layer: str) -> tuple[str, Mapping[str, float], tuple[Binding, ...]]:
        """What is done to q, k and v before RoPE: the kernel's prefix, its further constants and bindings."""
        config = self.manifest.config
        if config.network.qkv_bias:
            return "bias_", {}, (self.weight(f"{layer}.qkv_bias", "values"),)
        if config.network.head_norm:
            constants = {
                "INV_HEAD_DIM": float(np.float32(1.0 / config.head_dim)),
                "EPS": float(np.float32(config.norm_eps)),
            }
            return "norm_", constants, (self.weight(f"{layer}.qk_norm", "values"),)
        return "", {}, ()

    def stored(self, fused: str, separate: Sequence[str]) -> Sequence[str]:
        """The name of a fused tensor, or those of its parts, whichever the model holds."""
        return (fused,) if fused in self.manifest.tensors else separate


def _dispatch(
    shader: str,
    constants: Mapping[str, float],
    bindings: tuple[Binding, ...],
    grid: tuple[Extent, Extent, Extent],
) -> Dispatch:
    declared = KERNELS[SHADERS[shader]]
    assert set(constants) == set(declared.constants), shader
    assert len(bindings) == len(declared.bindings), shader
    return Dispatch(shader, constants, bindings, grid)


def _token_bytes(config: ModelConfig, max_seq_len: int) -> int:
    """The most that one token of a step takes in a work buffer."""
    blocks = -(-max_seq_len // ATTENTION_BLOCK)
    attention = config.n_heads * max(max_seq_len, config.head_dim * blocks)
    qkv_width = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
    return 4 * max(attention, config.dim, 2 * config.hidden_dim, qkv_width)


def build_plan(
    manifest: Manifest,
    *,
    max_seq_len: int | None,
    max_chunk_tokens: int,
    max_binding_bytes: int = MAX_BINDING_BYTES,
) -> Plan:
    """The plan of a model, for a context of at most `max_seq_len` and steps of at most `max_chunk_tokens`.

    Steps are shorter where a long context's scores would not fit a binding. `manifest` has passed
    `packed.check_tensors`. Raises: FormatError `format.unsupported` when a part of the model can't be bound.
    """
    max_seq_len = min(max_seq_len or DEFAULT_SEQ_LEN, manifest.config.max_seq_len)
    assert max_seq_len >= 1
    assert max_chunk_tokens >= 1
    most_tokens = max_binding_bytes // _token_bytes(manifest.config, max_seq_len)
    max_chunk_tokens = min(max_chunk_tokens, max_seq_len, max(most_tokens, 1))
    builder = _Builder(manifest, max_seq_len, max_chunk_tokens, max_binding_bytes)
    # The widest use of the shared activations fixes their size.
    config = manifest.config
    widest = max(config.dim, config.hidden_dim, config.n_heads * config.head_dim)
    builder.quantized(widest)
    builder.lay_out_weights()
    decode = tuple(builder.body(tiled=False))
    prefill = tuple(builder.body(tiled=True))
    logits = tuple(builder.tail())
    return Plan(
        vocab_size=config.vocab_size,
        max_seq_len=max_seq_len,
        max_chunk_tokens=max_chunk_tokens,
        buffers={"step": STEP_BYTES, **builder.buffers},
        segments=tuple(builder.segments),
        decode=decode,
        prefill=prefill,
        logits=logits,
    )
