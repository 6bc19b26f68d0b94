"""Blocks of 32 to floats and back: what GGUF's q4_0, q4_1 and q8_0 mean, and how floats become them.

Values of a block, in float32, one operation a step: q8_0 `d * q`, q4_0 `d * (q - 8)`, q4_1 `d * q + m`.
A tensor comes either as GGUF stores it, block after block (`split_blocks`), or as a packed model does, in
planes: quants[rows, cols or cols / 2], scales[rows, cols / 32 (, 2)].

Source: ggml-common.h and ggml-quants.c of ggml, as PyPI gguf's `quants.py` restates them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slm2_web.manifest import BLOCK, PLANE_BYTES

# Types that `as_float32` reads, and types whose blocks `split_blocks` splits.
FLOAT_TYPES = ("f32", "f16", "bf16")
BLOCK_TYPES = ("q8_0", "q4_0", "q4_1")

Bytes = NDArray[np.uint8]


def split_blocks(kind: str, data: Bytes, rows: int, cols: int) -> dict[str, Bytes]:
    """The planes of a block-quantised tensor, as bytes: quants u8[rows, -1] and scales u8[rows, -1].

    A GGUF block is its scales (f16 d, and for q4_1 f16 m after it), then its quants; both stay as they are.
    """
    sizes = PLANE_BYTES[kind]
    blocks = data.reshape(rows, cols // BLOCK, sizes["scales"] + sizes["quants"])
    return {
        "quants": np.ascontiguousarray(blocks[:, :, sizes["scales"] :]).reshape(rows, -1),
        "scales": np.ascontiguousarray(blocks[:, :, : sizes["scales"]]).reshape(rows, -1),
    }


def dequantize_planes(kind: str, planes: Mapping[str, Bytes], rows: int, cols: int) -> NDArray[np.float32]:
    """f32[rows, cols]: the values of a packed tensor, from the bytes of its planes.

    quants and scales, or values, as manifest.py describes them.
    """
    if kind == "f32":
        return planes["values"].view("<f4").reshape(rows, cols).astype(np.float32)
    scales = planes["scales"].view("<f2").reshape(rows, cols // BLOCK, 1, -1).astype(np.float32)
    d = scales[..., 0]
    quants = planes["quants"].reshape(rows, cols // BLOCK, -1)
    if kind == "q8_0":
        q = quants.view(np.int8)
    else:
        q = np.concatenate([quants & 15, quants >> 4], axis=2).view(np.int8)
    if kind == "q4_0":
        q = q - np.int8(8)
    values = d * q.astype(np.float32)
    if kind == "q4_1":
        values = values + scales[..., 1]
    return values.reshape(rows, cols)


def as_float32(kind: str, data: Bytes) -> NDArray[np.float32]:
    """f32[n]: the values of an f32, f16 or bf16 tensor, exactly."""
    if kind == "bf16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return data.view({"f32": "<f4", "f16": "<f2"}[kind]).astype(np.float32)


def dequantize(kind: str, data: Bytes, rows: int, cols: int) -> NDArray[np.float32]:
    """f32[rows, cols]: the values of a tensor as GGUF stores it, any type that the packer takes."""
    if kind in FLOAT_TYPES:
        return as_float32(kind, data).reshape(rows, cols)
    return dequantize_planes(kind, split_blocks(kind, data, rows, cols), rows, cols)


def quantize_q8_0(values: NDArray[np.float32]) -> dict[str, Bytes]:
    """The q8_0 planes of f32[rows, cols], as bytes; values are finite and cols a multiple of 32.

    The scale is amax / 127 rounded to f16, and the quants are rounded (half to even) against that rounded
    scale, not against the exact one as ggml does: the f16 error of the scale then costs nothing but the
    clipping at +-127. A scale beyond f16 comes out infinite; the caller refuses it.
    """
    rows, cols = values.shape
    blocks = values.reshape(rows, cols // BLOCK, BLOCK)
    amax = np.abs(blocks).max(axis=2, keepdims=True)
    with np.errstate(over="ignore"):
        d = (amax / np.float32(127)).astype("<f2")
    scale = d.astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    q = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8)
    return {"quants": q.view(np.uint8).reshape(rows, -1), "scales": d.view(np.uint8).reshape(rows, -1)}


def quantize_q4_0(values: NDArray[np.float32]) -> dict[str, Bytes]:
    """The q4_0 planes of f32[rows, cols], as bytes; values are finite and cols a multiple of 32.

    Per block the scale of least squared error among a few: see `_search`. A scale beyond f16 comes out
    infinite; the caller refuses it.
    """
    x = _by_block(values)
    low, high = x.min(axis=0), x.max(axis=0)
    # The value farthest from zero takes quant -8, or a little inside or outside of it; or quant 7.
    extreme = np.where(-low > high, low, high) * np.float32(-1 / 8)
    zero = np.zeros_like(low)
    starts = [(extreme * np.float32(s), zero) for s in (1, 1.05, 0.95, 0.9, 0.85, 0.8, 0.75, -8 / 7)]
    best = _search(x, starts, -8, has_minimum=False)
    return _planes_q4(values.shape, best.quants + np.float32(8), best.scales[:1])


def quantize_q4_1(values: NDArray[np.float32]) -> dict[str, Bytes]:
    """The q4_1 planes of f32[rows, cols], as bytes; values are finite and cols a multiple of 32.

    Per block the scale and minimum of least squared error among a few: see `_search`. One beyond f16 comes
    out infinite; the caller refuses it.
    """
    x = _by_block(values)
    low, high = x.min(axis=0), x.max(axis=0)
    span = high - low
    starts = [(span * np.float32((1 - a - b) / 15), low + span * np.float32(a)) for a, b in _MARGINS]
    best = _search(x, starts, 0, has_minimum=True)
    return _planes_q4(values.shape, best.quants, best.scales)


QUANTIZERS: Mapping[str, Callable[[NDArray[np.float32]], dict[str, Bytes]]] = {
    "q8_0": quantize_q8_0,
    "q4_0": quantize_q4_0,
    "q4_1": quantize_q4_1,
}

# Parts of a block's span that a first guess of q4_1 leaves out at its low and its high end: nothing first,
# which is what the extremes alone would give.
_MARGINS = (
    (0.0, 0.0),
    *((m, m) for m in (-0.05, 0.05, 0.1)),
    *((0.05, 0.0), (0.0, 0.05), (0.1, 0.0), (0.0, 0.1), (0.1, 0.05), (0.05, 0.1)),
)
# Times that the best fit of all guesses is fitted again.
_REFITS = 2


@dataclass(slots=True)
class _Best:
    """For each block the best attempt so far: error f32[n], scales f16[2, n] (d, m), quants f32[32, n]."""

    error: NDArray[np.float32]
    scales: NDArray[np.float16]
    quants: NDArray[np.float32]


def _search(
    x: NDArray[np.float32],
    starts: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]],
    lowest: int,
    *,
    has_minimum: bool,
) -> _Best:
    """For each block the quants, scale d and minimum m with the least squared error of those tried.

    Each start (d, m) is rounded to f16 and the block quantised against it, to `lowest`..`lowest + 15`; then
    d and m are fitted to these quants by least squares, rounded, and the block is quantised once more. The
    best is fitted again _REFITS times. An attempt counts by the error of what will be stored, and the first
    start is what the extremes give: so the result is never worse than that.

    `x`: f32[32, n]. Sums are trees of whole rows, so every machine makes the same bytes.

    Source: the idea of ggml's make_qkx2_quants: several ranges, each with a least-squares fit.
    """
    n = x.shape[1]
    best = _Best(np.full(n, np.inf, np.float32), np.zeros((2, n), np.float16), np.zeros_like(x))
    sum_x = _sum(x)

    def attempt(d: NDArray[np.float32], m: NDArray[np.float32], first: bool) -> NDArray[np.float32]:
        scales = np.stack([d, m]).astype(np.float16)
        d, m = scales.astype(np.float32)
        inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
        quants: NDArray[np.float32] = np.clip(np.rint((x - m) * inverse), lowest, lowest + 15)
        error = _sum(np.square(x - (quants * d + m)))
        better = (error < best.error) | first
        np.copyto(best.error, error, where=better)
        np.copyto(best.scales, scales, where=better)
        np.copyto(best.quants, quants, where=better)
        return quants

    def fit(q: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        sum_qq, sum_xq = _sum(q * q), _sum(q * x)
        if has_minimum:
            sum_q = _sum(q)
            divisor = np.float32(BLOCK) * sum_qq - sum_q * sum_q
            over_d = np.float32(BLOCK) * sum_xq - sum_q * sum_x
            over_m = sum_qq * sum_x - sum_q * sum_xq
        else:
            divisor, over_d, over_m = sum_qq, sum_xq, np.zeros_like(sum_xq)
        # Quants that are all alike leave nothing to fit: d = m = 0, which loses to the start.
        inverse = np.divide(np.float32(1), divisor, out=np.zeros_like(divisor), where=divisor > 0)
        return over_d * inverse, over_m * inverse

    with np.errstate(over="ignore", invalid="ignore"):
        for i, (d, m) in enumerate(starts):
            attempt(*fit(attempt(d, m, i == 0)), False)
        for _ in range(_REFITS):
            attempt(*fit(best.quants), False)
    return best


def _by_block(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """f32[32, blocks]: element i of every block side by side."""
    return np.ascontiguousarray(values.reshape(-1, BLOCK).T)


def _sum(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum of 32 rows, as a tree."""
    width = BLOCK // 2
    while width:
        rows = rows[:width] + rows[width : 2 * width]
        width //= 2
    total: NDArray[np.float32] = rows[0]
    return total


def _planes_q4(
    shape: tuple[int, ...], quants: NDArray[np.float32], scales: NDArray[np.float16]
) -> dict[str, Bytes]:
    """Planes of quants 0..15, f32[32, blocks], and of scales, f16[1 or 2, blocks]."""
    q = quants.astype(np.uint8)
    packed = q[: BLOCK // 2] | q[BLOCK // 2 :] << 4
    return {
        "quants": np.ascontiguousarray(packed.T).reshape(shape[0], -1),
        "scales": np.ascontiguousarray(scales.T).astype("<f2").view(np.uint8).reshape(shape[0], -1),
    }


def finite_f16(scales: Bytes) -> bool:
    """True when no f16 of these bytes is infinite or NaN (exponent 31)."""
    return not bool(np.any(scales.view("<u2") & 0x7C00 == 0x7C00))
