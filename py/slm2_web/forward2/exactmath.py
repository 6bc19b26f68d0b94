"""The arithmetic of the bit-exact contract, in numpy float32, one correctly rounded operation a step.

Every executor computes these functions by the same operations in the same order, so their results agree
in every bit. Nothing here calls a library's exp, division or square root: those differ by machine. Each
kernel repeats these lines in WGSL or C; a test holds the copies together.

The constants below are part of the contract: changing one changes every logit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

# Values in a quantised group, along a row.
GROUP = 32
# A matrix row's groups are dealt to this many lanes (group g to lane g mod LANES); each lane adds its
# groups in ascending order, then the lanes are added in ascending order. Dealt, not cut into contiguous
# chunks, so that neighbouring lanes read neighbouring blocks: one vector load on SIMD, one coalesced
# read on a GPU.
LANES = 8
# RMSNorm deals a row's values to this many lanes, and adds the lanes as a binary tree.
NORM_LANES = 32
# Attention adds within blocks of this many absolute positions, then the blocks in order: how a prompt is
# cut into chunks cannot show.
ATTENTION_BLOCK = 64
# Positions whose angles are turned into cosines and sines at once.
ROPE_POSITIONS = 256
# 1/127 in float32: a group's scale is amax * SCALE_STEP.
SCALE_STEP = np.float32(0.007874016)
# Groups with amax below 2^-40 quantise to zero, squares below 2^-126 are taken as zero, and exp's argument is
# clamped to +-44 (exp(-44) > 2^-64): so no product of theirs is ever subnormal, and devices that flush
# subnormals agree with those that don't.
MIN_AMAX_BITS = np.uint32((127 - 40) << 23)
MIN_SQUARE_BITS = np.uint32((127 - 63) << 23)
EXP_CLAMP = np.float32(44.0)

_ABS = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)


def half_to_f32(bits: NDArray[np.uint16]) -> F32:
    """The f16 of each 16-bit pattern, by integers: subnormals exactly, exponent 31 as an ordinary one.

    numpy and devices know infinities there; the packer refuses them, and a file that holds one all the same
    means the same large number to every executor.
    """
    h = bits.astype(np.uint32)
    magnitude = h & np.uint32(0x7FFF)
    normal = (magnitude << np.uint32(13)) + np.uint32(0x38000000)
    tiny = (magnitude.astype(np.float32) * np.float32(2.0**-24)).view(np.uint32)
    sign = (h & np.uint32(0x8000)) << np.uint32(16)
    result: F32 = (np.where(magnitude < 0x400, tiny, normal).astype(np.uint32) | sign).view(np.float32)
    return result


def recip(x: F32) -> F32:
    """1/x within 1.5 ulp; 0 for 0. `x`: f32[...], |x| in 2^-126 .. 2^126 or 0.

    Source: Newton's iteration from a first guess by integer subtraction.
    """
    bits = x.view(np.uint32)
    magnitude = bits & _ABS
    ax = magnitude.view(np.float32)
    y = (np.uint32(0x7EF311C3) - magnitude).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # the guess for 0 is off the scale, and not used
        for _ in range(4):
            y = y * (np.float32(2.0) - ax * y)
    zero = magnitude == 0
    result: F32 = (
        np.where(zero, bits & _SIGN, y.view(np.uint32) | (bits & _SIGN)).astype(np.uint32).view(np.float32)
    )
    return result


def rsqrt(x: F32) -> F32:
    """1/sqrt(x) within 2 ulp. `x`: f32[...], normal and positive.

    Source: Newton's iteration from the classic first guess by halving the exponent.
    """
    half = np.float32(0.5) * x
    y: F32 = (np.uint32(0x5F3759DF) - (x.view(np.uint32) >> np.uint32(1))).view(np.float32)
    for _ in range(4):
        y = y * (np.float32(1.5) - (half * y) * y)
    return y


def exp(x: F32) -> F32:
    """exp(x) within 1.4 * 2^-24 relative, the argument clamped to +-EXP_CLAMP. `x`: f32[...].

    Source: Cody-Waite reduction by log 2 in two parts, Cephes' degree-5 polynomial.
    """
    x = np.minimum(np.maximum(x, -EXP_CLAMP), EXP_CLAMP)
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375)
    r = r - n * np.float32(-2.12194440e-4)
    p = np.full_like(r, np.float32(1.9875691500e-4))
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + np.float32(c)
    y = p * (r * r) + r + np.float32(1.0)
    power = ((n.astype(np.int32) + np.int32(127)).astype(np.uint32) << np.uint32(23)).view(np.float32)
    result: F32 = y * power
    return result


def silu(x: F32) -> F32:
    """x * sigmoid(x) = x * recip(1 + exp(-x)). `x`: f32[...]."""
    result: F32 = x * recip(np.float32(1.0) + exp(-x))
    return result


def mean_square(x: F32) -> F32:
    """Mean of squares over the last axis. `x`: f32[rows, cols] -> f32[rows].

    NORM_LANES lanes, each over the columns congruent to it in ascending order; then a binary tree (16, 8, 4,
    2, 1); then times 1/cols.
    """
    rows, cols = x.shape
    kept = np.where((x.view(np.uint32) & _ABS) < MIN_SQUARE_BITS, np.float32(0), x)
    lanes = np.zeros((rows, NORM_LANES), np.float32)
    for start in range(0, cols, NORM_LANES):
        part = kept[:, start : start + NORM_LANES]
        lanes = lanes + part * part
    width = NORM_LANES // 2
    while width:
        lanes = lanes[:, :width] + lanes[:, width : 2 * width]
        width //= 2
    result: F32 = lanes[:, 0] * np.float32(1.0 / cols)
    return result


def rms_norm(x: F32, weight: F32, eps: np.float32) -> F32:
    """x / sqrt(mean(x^2) + eps) * weight. `x`: f32[rows, cols], `weight`: f32[cols]."""
    scale = rsqrt(mean_square(x) + eps)
    result: F32 = (x * scale[:, None]) * weight
    return result


def quantize(x: F32) -> tuple[NDArray[np.int8], F32]:
    """Groups of 32 as int8 with a scale: (q: i8[rows, cols], meta: f32[rows, cols/32, 2]).

    x is close to q * meta[..., 0]; meta[..., 1] is the scale times the sum of the group's q, which an
    offset block (q4_1) multiplies by its minimum.
    """
    rows, cols = x.shape
    groups = x.reshape(rows, cols // GROUP, GROUP)
    amax_bits = (groups.view(np.uint32) & _ABS).max(axis=2)
    amax = np.where(amax_bits < MIN_AMAX_BITS, np.uint32(0), amax_bits).view(np.float32)
    scale = amax * SCALE_STEP
    q = np.rint(groups * recip(scale)[:, :, None]).astype(np.int32)
    total = q.sum(axis=2, dtype=np.int32).astype(np.float32)
    meta = np.stack([scale, scale * total], axis=2)
    return q.astype(np.int8).reshape(rows, cols), meta


def rope_table(inv_freq: F32, max_seq_len: int) -> F32:
    """Cosine and sine of each position's angles: f32[max_seq_len, len(inv_freq), 2].

    angle = float32(pos) * inv_freq, rounded to float32 as the publishers' code does; then cosine and sine in
    double by + - * alone, rounded to float32.

    Source: reduction by pi/2 in three parts (fdlibm's constants, 33 bits each); Taylor polynomials on
    [-pi/4, pi/4] with terms to x^17, whose truncation error is below 2^-55.
    """
    table = np.empty((max_seq_len, len(inv_freq), 2), np.float32)
    # A few positions at a time: a browser's heap never shrinks again.
    for first in range(0, max_seq_len, ROPE_POSITIONS):
        rows = table[first : first + ROPE_POSITIONS]
        pos = np.arange(first, first + len(rows), dtype=np.float32)[:, None]
        rows[..., 0], rows[..., 1] = _cos_sin((pos * inv_freq[None, :]).astype(np.float64))
    return table


def _cos_sin(angle: F64) -> tuple[F64, F64]:
    """Cosine and sine of each angle."""
    n = np.floor(angle * 0.6366197723675814 + 0.5)
    r = ((angle - n * 1.5707963267341256) - n * 6.077100506303966e-11) - n * 2.0222662487959506e-21
    z = r * r
    sin = np.full_like(z, 1 / 355687428096000.0)
    for c in (
        -1 / 1307674368000.0,
        1 / 6227020800.0,
        -1 / 39916800.0,
        1 / 362880.0,
        -1 / 5040.0,
        1 / 120.0,
        -1 / 6.0,
    ):
        sin = sin * z + c
    sin = (sin * z) * r + r
    cos = np.full_like(z, 1 / 20922789888000.0)
    for c in (
        -1 / 87178291200.0,
        1 / 479001600.0,
        -1 / 3628800.0,
        1 / 40320.0,
        -1 / 720.0,
        1 / 24.0,
        -1 / 2.0,
    ):
        cos = cos * z + c
    cos = cos * z + 1.0
    quadrant = n.astype(np.int64) & 3
    odd = (quadrant & 1) == 1
    turned_cos = np.where(odd, sin, cos) * np.where((quadrant == 1) | (quadrant == 2), -1.0, 1.0)
    turned_sin = np.where(odd, cos, sin) * np.where(quadrant >= 2, -1.0, 1.0)
    return turned_cos, turned_sin
