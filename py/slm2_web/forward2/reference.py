"""The numpy executor: plain loops over the contract's orders. It defines the bits.

Each kernel is a function of the step and of its bindings as flat arrays, under the kernel's name; `run`
executes a plan's dispatches with them. Integer dot products go through float32 BLAS, which is exact here:
every sum stays below 2^24, whatever the order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slm2_web.forward2 import exactmath
from slm2_web.forward2.exactmath import ATTENTION_BLOCK, F32, GROUP, LANES
from slm2_web.forward2.executor import PlanExecutor
from slm2_web.forward2.kernels import KERNELS
from slm2_web.forward2.plan import Dispatch, build_plan
from slm2_web.manifest import PLANE_BYTES
from slm2_web.packed import PackedModel

# Rows of a matrix that are unpacked at a time: bounds the reference's memory, never seen in a result.
_ROWS_AT_ONCE = 4096

Bytes = NDArray[np.uint8]
Constants = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: `n_tokens` ids from position `pos`."""

    n_tokens: int
    pos: int

    @property
    def seq_len(self) -> int:
        """Positions in use after the step."""
        return self.pos + self.n_tokens


def unpack_quants(kind: str, quants: Bytes, rows: int, cols: int) -> NDArray[np.int8]:
    """A quants plane as i8[rows, cols]: q4_0's offset of 8 applied, q4_1's and q8_0's values as stored."""
    if kind == "q8_0":
        return quants.view(np.int8).reshape(rows, cols)
    packed = quants.reshape(rows, cols // GROUP, GROUP // 2)
    values = np.concatenate([packed & 15, packed >> 4], axis=2).view(np.int8).reshape(rows, cols)
    return values - np.int8(8) if kind == "q4_0" else values


def unpack_scales(kind: str, scales: Bytes, rows: int, cols: int) -> tuple[F32, F32 | None]:
    """A scales plane as (d: f32[rows, cols/32], m: the same or None)."""
    halves = exactmath.half_to_f32(scales.view(np.uint16))
    if kind == "q4_1":
        pairs = halves.reshape(rows, cols // GROUP, 2)
        return pairs[:, :, 0], pairs[:, :, 1]
    return halves.reshape(rows, cols // GROUP), None


def _embed(kind: str, step: Step, c: Constants, ids: Bytes, quants: Bytes, scales: Bytes, x: Bytes) -> None:
    """x[t, :] = the embedding row of ids[t], for the ids in ROW0 .. ROW0 + ROWS."""
    cols, first, rows = c["COLS"], c["ROW0"], c["ROWS"]
    out = x.view(np.float32)
    quant_bytes, scale_bytes = (PLANE_BYTES[kind][plane] * (cols // GROUP) for plane in ("quants", "scales"))
    for t, token in enumerate(ids.view(np.uint32)[: step.n_tokens].tolist()):
        row = token - first
        if not 0 <= row < rows:
            continue
        q = unpack_quants(kind, quants[row * quant_bytes : (row + 1) * quant_bytes], 1, cols)
        d, m = unpack_scales(kind, scales[row * scale_bytes : (row + 1) * scale_bytes], 1, cols)
        value = q.reshape(-1, GROUP).astype(np.float32) * d.reshape(-1, 1)
        if m is not None:
            value = value + m.reshape(-1, 1)
        out[t * cols : (t + 1) * cols] = value.reshape(-1)


def _put_quantized(xq: Bytes, xm: Bytes, values: F32) -> None:
    q, meta = exactmath.quantize(values)
    xq.view(np.int8)[: q.size] = q.reshape(-1)
    xm.view(np.float32)[: meta.size] = meta.reshape(-1)


def _rmsnorm_quantize(step: Step, c: Constants, x: Bytes, weight: Bytes, xq: Bytes, xm: Bytes) -> None:
    """xq, xm = quantize(rms_norm(x[t, :]) * weight)."""
    rows = x.view(np.float32)[: step.n_tokens * c["COLS"]].reshape(step.n_tokens, c["COLS"])
    _put_quantized(xq, xm, exactmath.rms_norm(rows, weight.view(np.float32), np.float32(c["EPS"])))


def _silu_mul_quantize(step: Step, c: Constants, gate_up: Bytes, xq: Bytes, xm: Bytes) -> None:
    """xq, xm = quantize(silu(gate[t, :]) * up[t, :]), gate and up side by side in a row."""
    cols = c["COLS"]
    rows = gate_up.view(np.float32)[: step.n_tokens * 2 * cols].reshape(step.n_tokens, 2 * cols)
    _put_quantized(xq, xm, exactmath.silu(rows[:, :cols]) * rows[:, cols:])


def _matmul(
    kind: str, step: Step, c: Constants, xq: Bytes, xm: Bytes, quants: Bytes, scales: Bytes, y: Bytes
) -> None:
    """y[t, OFFSET + row] (+)= sum over groups g of dot(w[row, g], x[t, g]).

    A group's term is `f32(dot_i32) * (d_w * d_x)`, plus `m_w * (d_x * sum(q_x))` for q4_1. Groups are dealt
    to LANES lanes, each lane adds in ascending order from +0, the lanes are added in ascending order from +0.
    LAST takes the last token only and writes it as row 0.
    """
    cols, rows, groups = c["COLS"], c["ROWS"], c["COLS"] // GROUP
    first = step.n_tokens - 1 if c["LAST"] else 0
    tokens = step.n_tokens - first
    x = xq.view(np.int8)[first * cols : step.n_tokens * cols].reshape(tokens, groups, GROUP)
    x_by_group = x.transpose(1, 0, 2).astype(np.float32)
    meta = xm.view(np.float32)[first * groups * 2 : step.n_tokens * groups * 2].reshape(tokens, groups, 2)
    out = y.view(np.float32)[: tokens * c["STRIDE"]].reshape(tokens, c["STRIDE"])
    quant_bytes, scale_bytes = (PLANE_BYTES[kind][plane] * groups for plane in ("quants", "scales"))
    for low in range(0, rows, _ROWS_AT_ONCE):
        high = min(low + _ROWS_AT_ONCE, rows)
        q = unpack_quants(kind, quants[low * quant_bytes : high * quant_bytes], high - low, cols)
        d, m = unpack_scales(kind, scales[low * scale_bytes : high * scale_bytes], high - low, cols)
        w_by_group = q.reshape(high - low, groups, GROUP).transpose(1, 2, 0).astype(np.float32)
        dots = np.matmul(x_by_group, w_by_group)  # [groups, tokens, rows], exact integers
        total = np.zeros((tokens, high - low), np.float32)
        for lane in range(LANES):
            acc = np.zeros((tokens, high - low), np.float32)
            for g in range(lane, groups, LANES):
                term = dots[g] * (d[None, :, g] * meta[:, g, 0, None])
                if m is not None:
                    term = term + m[None, :, g] * meta[:, g, 1, None]
                acc = acc + term
            total = total + acc
        place = out[:, c["OFFSET"] + low : c["OFFSET"] + high]
        place[:] = place + total if c["ADD"] else total


def _heads(step: Step, c: Constants, qkv: Bytes) -> F32:
    """q, k and v as f32[n_tokens, N_HEADS + 2 * N_KV_HEADS, HEAD_DIM]."""
    units = c["N_HEADS"] + 2 * c["N_KV_HEADS"]
    size = step.n_tokens * units * c["HEAD_DIM"]
    return qkv.view(np.float32)[:size].reshape(step.n_tokens, units, c["HEAD_DIM"])


def _rope_kv(step: Step, c: Constants, qkv: Bytes, *rest: Bytes) -> None:
    """Rotate q and k by position, halves of a head as pairs; quantise q, k and v; cache k and v."""
    _rotate(step, c, _heads(step, c, qkv), *rest)


def _bias_rope_kv(step: Step, c: Constants, qkv: Bytes, *rest: Bytes) -> None:
    """`rope_kv` of qkv + bias."""
    *places, bias = rest
    heads = _heads(step, c, qkv)
    _rotate(step, c, heads + bias.view(np.float32).reshape(heads.shape[1:]), *places)


def _norm_rope_kv(step: Step, c: Constants, qkv: Bytes, *rest: Bytes) -> None:
    """`rope_kv` of qkv with each head of q and of k under RMSNorm: q's weights, then k's."""
    *places, weight = rest
    heads = _heads(step, c, qkv).copy()
    q_weight, k_weight = weight.view(np.float32).reshape(2, c["HEAD_DIM"])
    n_heads, n_kv = c["N_HEADS"], c["N_KV_HEADS"]
    for part, w in ((slice(n_heads), q_weight), (slice(n_heads, n_heads + n_kv), k_weight)):
        rows = heads[:, part].reshape(-1, c["HEAD_DIM"])
        heads[:, part] = exactmath.rms_norm(rows, w, np.float32(c["EPS"])).reshape(heads[:, part].shape)
    _rotate(step, c, heads, *places)


def _rotate(
    step: Step, c: Constants, rows: F32, rope: Bytes, qq: Bytes, qs: Bytes, kvq: Bytes, kvs: Bytes
) -> None:
    n_heads, n_kv, head_dim, max_seq = c["N_HEADS"], c["N_KV_HEADS"], c["HEAD_DIM"], c["MAX_SEQ"]
    units = n_heads + 2 * n_kv
    half = head_dim // 2
    table = rope.view(np.float32).reshape(-1, 1, half, 2)[step.pos : step.seq_len]
    cos, sin = table[..., 0], table[..., 1]
    turned = rows.copy()
    low, high = rows[:, : n_heads + n_kv, :half], rows[:, : n_heads + n_kv, half:]
    turned[:, : n_heads + n_kv, :half] = low * cos - high * sin
    turned[:, : n_heads + n_kv, half:] = high * cos + low * sin
    q, meta = exactmath.quantize(turned.reshape(step.n_tokens, units * head_dim))
    q = q.reshape(step.n_tokens, units, head_dim)
    scale = meta[:, :, 0].reshape(step.n_tokens, units, head_dim // GROUP)
    size = step.n_tokens * n_heads
    qq.view(np.int8)[: size * head_dim] = q[:, :n_heads].reshape(-1)
    qs.view(np.float32)[: size * head_dim // GROUP] = scale[:, :n_heads].reshape(-1)
    cache_q, cache_s = _cache(c, kvq, kvs)
    assert step.seq_len <= max_seq
    for which in range(2):
        part = slice(n_heads + which * n_kv, n_heads + (which + 1) * n_kv)
        cache_q[which, step.pos : step.seq_len] = q[:, part]
        cache_s[which, step.pos : step.seq_len] = scale[:, part]


def _cache(c: Constants, kvq: Bytes, kvs: Bytes) -> tuple[NDArray[np.int8], F32]:
    """A layer's cache, k then v, as q: i8[2, max_seq, n_kv_heads, head_dim], scale: f32[..., head_dim / 32].

    In memory a head's positions lie together.
    """
    n_kv, head_dim, max_seq = c["N_KV_HEADS"], c["HEAD_DIM"], c["MAX_SEQ"]
    size, groups = 2 * n_kv * max_seq * head_dim, head_dim // GROUP
    return (
        kvq.view(np.int8)[:size].reshape(2, n_kv, max_seq, head_dim).swapaxes(1, 2),
        kvs.view(np.float32)[: size // GROUP].reshape(2, n_kv, max_seq, groups).swapaxes(1, 2),
    )


def _blocks(positions: int) -> int:
    return -(-positions // ATTENTION_BLOCK)


def _by_head(step: Step, c: Constants, array: Bytes, *shape: int) -> F32:
    """A buffer as f32[n_tokens, N_HEADS, *shape]."""
    shape = (step.n_tokens, c["N_HEADS"], *shape)
    return array.view(np.float32)[: math.prod(shape)].reshape(shape)


def _attn_scores(
    step: Step, c: Constants, qq: Bytes, qs: Bytes, kvq: Bytes, kvs: Bytes, scores: Bytes, peaks: Bytes
) -> None:
    """scores[t, h, j] = q[t, h] . k[j, h / share] * SCALE, j <= pos + t; a head's groups added in order.

    peaks[t, h, b] = the largest in block b of positions.
    """
    n_heads, n_kv, head_dim, max_seq = c["N_HEADS"], c["N_KV_HEADS"], c["HEAD_DIM"], c["MAX_SEQ"]
    groups = head_dim // GROUP
    tokens, seq_len = step.n_tokens, step.seq_len
    q = (
        qq.view(np.int8)[: tokens * n_heads * head_dim]
        .reshape(tokens, n_heads, groups, GROUP)
        .astype(np.float32)
    )
    q_scale = qs.view(np.float32)[: tokens * n_heads * groups].reshape(tokens, n_heads, groups)
    cache_q, cache_s = _cache(c, kvq, kvs)
    k = cache_q[0, :seq_len].reshape(seq_len, n_kv, groups, GROUP).astype(np.float32)
    k_scale = cache_s[0, :seq_len]
    out = _by_head(step, c, scores, max_seq)
    largest = _by_head(step, c, peaks, _blocks(max_seq))
    for h in range(n_heads):
        shared = h * n_kv // n_heads
        total = np.zeros((tokens, seq_len), np.float32)
        for g in range(groups):
            dots = q[:, h, g] @ k[:, shared, g].T
            total = total + dots * (q_scale[:, h, g, None] * k_scale[None, :, shared, g])
        total = total * np.float32(c["SCALE"])
        for t in range(tokens):
            visible = total[t, : step.pos + t + 1]
            out[t, h, : visible.size] = visible
            starts = range(0, visible.size, ATTENTION_BLOCK)
            largest[t, h, : len(starts)] = np.maximum.reduceat(visible, starts)


def _attn_values(
    step: Step,
    c: Constants,
    scores: Bytes,
    peaks: Bytes,
    kvq: Bytes,
    kvs: Bytes,
    masses: Bytes,
    values: Bytes,
) -> None:
    """For each block b of positions, with p[j] = exp(scores[t, h, j] - max(peaks[t, h, :])), in order:

    masses[t, h, b] = sum of p[j]; values[t, h, b, :] = sum of (p[j] * scale_v[j]) * q_v[j].
    """
    n_heads, n_kv, head_dim, max_seq = c["N_HEADS"], c["N_KV_HEADS"], c["HEAD_DIM"], c["MAX_SEQ"]
    groups, share = head_dim // GROUP, n_heads // n_kv
    rows, largest = _by_head(step, c, scores, max_seq), _by_head(step, c, peaks, _blocks(max_seq))
    mass_out = _by_head(step, c, masses, _blocks(max_seq))
    value_out = _by_head(step, c, values, _blocks(max_seq), groups, GROUP)
    cache_q, cache_s = _cache(c, kvq, kvs)
    v = np.repeat(cache_q[1, : step.seq_len], share, axis=1).astype(np.float32)
    v = v.reshape(step.seq_len, n_heads, groups, GROUP)
    v_scale = np.repeat(cache_s[1, : step.seq_len], share, axis=1)
    for t in range(step.n_tokens):
        seen = step.pos + t + 1
        peak = largest[t, :, : _blocks(seen)].max(axis=1, keepdims=True)
        p = exactmath.exp(rows[t, :, :seen] - peak)
        for block in range(_blocks(seen)):
            mass = np.zeros(n_heads, np.float32)
            acc = np.zeros((n_heads, groups, GROUP), np.float32)
            for j in range(block * ATTENTION_BLOCK, min((block + 1) * ATTENTION_BLOCK, seen)):
                mass = mass + p[:, j]
                weight = p[:, j, None] * v_scale[j]
                acc = acc + weight[:, :, None] * v[j]
            mass_out[t, :, block] = mass
            value_out[t, :, block] = acc


def _attn_quantize(step: Step, c: Constants, masses: Bytes, values: Bytes, xq: Bytes, xm: Bytes) -> None:
    """xq, xm = quantize(sum of values[t, h, b, :] * recip(sum of masses[t, h, b])), the blocks in order."""
    n_heads, head_dim, blocks = c["N_HEADS"], c["HEAD_DIM"], _blocks(c["MAX_SEQ"])
    mass_in, value_in = _by_head(step, c, masses, blocks), _by_head(step, c, values, blocks, head_dim)
    out = np.empty((step.n_tokens, n_heads, head_dim), np.float32)
    for t in range(step.n_tokens):
        mass, total = np.zeros(n_heads, np.float32), np.zeros((n_heads, head_dim), np.float32)
        for block in range(_blocks(step.pos + t + 1)):
            mass = mass + mass_in[t, :, block]
            total = total + value_in[t, :, block]
        out[t] = total * exactmath.recip(mass)[:, None]
    _put_quantized(xq, xm, out.reshape(step.n_tokens, n_heads * head_dim))


def _typed(function: Callable[..., None], kind: str) -> Callable[..., None]:
    return lambda *arguments: function(kind, *arguments)


REFERENCE: Mapping[str, Callable[..., None]] = {
    "embed_q4_0": _typed(_embed, "q4_0"),
    "embed_q4_1": _typed(_embed, "q4_1"),
    "embed_q8_0": _typed(_embed, "q8_0"),
    "rmsnorm_quantize": _rmsnorm_quantize,
    "silu_mul_quantize": _silu_mul_quantize,
    "matmul_q4_0": _typed(_matmul, "q4_0"),
    "matmul_q4_1": _typed(_matmul, "q4_1"),
    "matmul_q8_0": _typed(_matmul, "q8_0"),
    "rope_kv": _rope_kv,
    "bias_rope_kv": _bias_rope_kv,
    "norm_rope_kv": _norm_rope_kv,
    "attn_scores": _attn_scores,
    "attn_values": _attn_values,
    "attn_quantize": _attn_quantize,
}
assert REFERENCE.keys() == KERNELS.keys()


def run(dispatches: Sequence[Dispatch], buffers: Mapping[str, Bytes], step: Step) -> None:
    """Execute dispatches on `buffers` (name -> u8[size]) in order."""
    for dispatch in dispatches:
        arrays = [buffers[b.buffer][b.offset : b.offset + b.size] for b in dispatch.bindings]
        with np.errstate(over="ignore", invalid="ignore"):
            REFERENCE[dispatch.kernel](step, dispatch.constants, *arrays)


class ReferenceExecutor(PlanExecutor):
    """The reference as an executor (forward2/executor.py)."""

    name = "reference"
    adapter = f"numpy {np.__version__}"

    def __init__(
        self, model: PackedModel, *, max_seq_len: int | None = None, max_chunk_tokens: int = 32
    ) -> None:
        super().__init__(
            build_plan(model.manifest, max_seq_len=max_seq_len, max_chunk_tokens=max_chunk_tokens)
        )
        self._buffers: dict[str, Bytes] = {n: np.zeros(s, np.uint8) for n, s in self.plan.buffers.items()}
        for segment in self.plan.segments:
            self._buffers[segment.buffer] = model.weights[segment.start : segment.end]
        inv_freq = model.plane("rope.inv_freq", "values").reshape(-1)
        table = exactmath.rope_table(inv_freq, self.max_seq_len)
        self._buffers["rope"][:] = table.reshape(-1).view(np.uint8)

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> F32 | None:
        """See forward2/executor.py."""
        step = Step(len(ids), self.pos)
        self.check_step(ids)
        start = time.perf_counter()
        self._buffers["ids"].view(np.uint32)[: len(ids)] = ids
        run(self.plan.decode if len(ids) == 1 else self.plan.prefill, self._buffers, step)
        self.pos = step.seq_len
        if want_logits:
            run(self.plan.logits, self._buffers, step)
        self.kernel_ms = (time.perf_counter() - start) * 1e3
        if not want_logits:
            return None
        logits: F32 = self._buffers["logits"].view(np.float32)[: self.plan.vocab_size].copy()
        return logits
