"""Blocks of 32 to floats and back: what GGUF's q4_0, q4_1 and q8_0 mean, and how floats become q8_0.

Values of a block, in float32, one operation a step: q8_0 `d * q`, q4_0 `d * (q - 8)`, q4_1 `d * q + m`.
A tensor comes either as GGUF stores it, block after block (`split_blocks`), or as a packed model does, in
planes: quants[rows, cols or cols / 2], scales[rows, cols / 32 (, 2)].

Source: ggml-common.h and ggml-quants.c of ggml, as PyPI gguf's `quants.py` restates them.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def finite_f16(scales: Bytes) -> bool:
    """True when no f16 of these bytes is infinite or NaN (exponent 31)."""
    return not bool(np.any(scales.view("<u2") & 0x7C00 == 0x7C00))
