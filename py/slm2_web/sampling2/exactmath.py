"""exp, log and sums in double precision with the same bits everywhere.

A libm's exp and log differ between machines, and numpy's sum adds in an order of its own. Here every
result comes from correctly rounded operations (+ - * /) and integer steps in a written order, so CPython,
Pyodide and any browser give the same bits. Arrays are worked through in blocks that stay in the cache;
operations are elementwise, so the block size cannot show.

Error bounds, proven by counting roundings and checked against `decimal` in the tests: exp and log are
within 1 ulp of the true value.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

# ln 2 as a sum: LN2_HI has 32 trailing zero bits, so k * LN2_HI is exact for |k| < 2^21.
LN2_HI: Final = float.fromhex("0x1.62e42feep-1")
LN2_LO: Final = float.fromhex("0x1.a39ef35793c76p-33")
LOG2_E: Final = float.fromhex("0x1.71547652b82fep+0")

# Adding and subtracting 1.5 * 2^52 rounds a double below 2^51 to the nearest integer, ties to even.
ROUNDER: Final = float.fromhex("0x1.8p52")

EXP_MIN: Final = -708.0  # exp gives 0 below: its result would leave the normal numbers
EXP_MAX: Final = 709.0

# 1/2!, 1/3!, ... 1/13!: with |r| <= ln(2)/2 the first term left out is below 2^-57 of the result.
EXP_COEFFICIENTS: Final = tuple(1.0 / math.factorial(n) for n in range(2, 14))
# 1/3, 1/5, ... 1/23 of 2 atanh(s) = 2 (s + s^3/3 + s^5/5 + ...), |s| <= 0.1716: left out is below 2^-59.
LOG_COEFFICIENTS: Final = tuple(1.0 / n for n in range(3, 25, 2))

_BLOCK: Final = 8192
_SQRT_HALF_BITS: Final = np.int64(0x3FE6A09E667F3BCD)
_ONE_BITS: Final = np.int64(0x3FF0000000000000)
_MANTISSA_BITS: Final = np.int64((1 << 52) - 1)


def exp(x: F64) -> F64:
    """e^x within 1 ulp; 0 below EXP_MIN. `x`: f64[n], at most EXP_MAX, -inf allowed, no NaN.

    x = k ln 2 + r with |r| <= ln(2)/2; e^r by its Taylor series; 2^k by placing k in the exponent.
    """
    result = np.empty_like(x)
    for start in range(0, x.size, _BLOCK):
        block = x[start : start + _BLOCK]
        clipped = np.maximum(block, EXP_MIN)
        k = (clipped * LOG2_E + ROUNDER) - ROUNDER
        r = clipped - k * LN2_HI
        r -= k * LN2_LO
        # p = r (1/2! + r (1/3! + ...)), then e^r = 1 + (r + r p)
        p = r * EXP_COEFFICIENTS[-1]
        for coefficient in EXP_COEFFICIENTS[-2::-1]:
            p += coefficient
            p *= r
        p *= r
        p += r
        p += 1.0
        power = ((k.astype(np.int64) + np.int64(1023)) << np.int64(52)).view(np.float64)
        p *= power
        p[block < EXP_MIN] = 0.0
        result[start : start + _BLOCK] = p
    return result


def log(x: F64) -> F64:
    """ln x within 1 ulp. `x`: f64[n], positive normal numbers.

    x = 2^k m with sqrt(1/2) <= m < sqrt(2); f = m - 1 (exact); s = f / (2 + f);
    ln m = 2 atanh(s) = f - s (f - 2 R), R = s^2/3 + s^4/5 + ...
    """
    result = np.empty_like(x)
    for start in range(0, x.size, _BLOCK):
        bits = x[start : start + _BLOCK].view(np.int64) + (_ONE_BITS - _SQRT_HALF_BITS)
        k = ((bits >> np.int64(52)) - np.int64(1023)).astype(np.float64)
        f = ((bits & _MANTISSA_BITS) + _SQRT_HALF_BITS).view(np.float64) - 1.0
        s = f / (f + 2.0)
        z = s * s
        big_r = z * LOG_COEFFICIENTS[-1]
        for coefficient in LOG_COEFFICIENTS[-2::-1]:
            big_r += coefficient
            big_r *= z
        small = s * (f - 2.0 * big_r) - k * LN2_LO
        result[start : start + _BLOCK] = k * LN2_HI + (f - small)
    return result


def sum_in_order(x: F64) -> float:
    """((x[0] + x[1]) + x[2]) + ..., each sum rounded once; 0 for an empty array. `x`: f64[n].

    `add.accumulate` must round every partial sum, so it cannot regroup them as `sum` does; a test
    compares it with a loop, bit for bit.
    """
    return float(np.add.accumulate(x)[-1]) if x.size else 0.0
