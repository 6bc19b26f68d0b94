"""Block formats against PyPI gguf's quants module, and q8_0 quantisation within its bound."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slm2_web.compile.quantize import (
    BLOCK_TYPES,
    FLOAT_TYPES,
    QUANTIZERS,
    as_float32,
    dequantize,
    dequantize_planes,
    finite_f16,
    quantize_q8_0,
    split_blocks,
)

BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}
Bytes = NDArray[np.uint8]


def theirs(kind: str, data: Bytes) -> NDArray[np.float32]:
    values: NDArray[np.float32] = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind.upper()])
    return values


def random_blocks(kind: str, rows: int, cols: int, seed: int) -> Bytes:
    """Random bytes, so every quant and scale occurs, the f16 subnormal, infinite and NaN ones among them."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, cols // 32 * BLOCK_BYTES[kind]), np.uint8)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_dequantize_equals_gguf(kind: str) -> None:
    data = random_blocks(kind, 40, 160, seed=len(kind))
    with np.errstate(invalid="ignore"):
        expected = theirs(kind, data)
        found = dequantize(kind, data.reshape(-1), 40, 160)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_split_keeps_every_byte(kind: str) -> None:
    data = random_blocks(kind, 8, 96, seed=1)
    planes = split_blocks(kind, data.reshape(-1), 8, 96)
    n_scales = {"q8_0": 2, "q4_0": 2, "q4_1": 4}[kind]
    blocks = np.concatenate(
        [planes["scales"].reshape(8, 3, n_scales), planes["quants"].reshape(8, 3, -1)], axis=2
    )
    assert np.array_equal(blocks.reshape(8, -1), data)


def test_nibbles() -> None:
    """Byte j holds element j low, j + 16 high; q4_0 is offset by 8, q4_1 by m."""
    quants = (np.arange(16) << 4 | 3).astype(np.uint8)
    half = np.array([0.5], np.float16).view(np.uint8)
    low, high = np.full(16, 3), np.arange(16)
    q4_0 = dequantize_planes("q4_0", {"quants": quants, "scales": half}, 1, 32)
    assert q4_0.tolist() == [[0.5 * (q - 8) for q in (*low, *high)]]
    scales = np.array([0.5, -2], np.float16).view(np.uint8)
    q4_1 = dequantize_planes("q4_1", {"quants": quants, "scales": scales}, 1, 32)
    assert q4_1.tolist() == [[0.5 * q - 2 for q in (*low, *high)]]


@pytest.mark.parametrize("kind", FLOAT_TYPES)
def test_every_float_equals_gguf(kind: str) -> None:
    """All 65,536 patterns of the 16-bit types, and a spread of f32."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    data = (patterns * 65_521).astype("<u4") if kind == "f32" else patterns.astype("<u2")
    raw = data.view(np.uint8)
    with np.errstate(invalid="ignore"):  # NaN to NaN
        expected = theirs(kind, raw)
        found = as_float32(kind, raw)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def floats(seed: int, scale: float) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((16, 128)) * scale).astype(np.float32)


@settings(deadline=None)
@given(st.integers(0, 1 << 20), st.floats(-6, 6))
def test_quantized_is_within_half_a_step(seed: int, log_scale: float) -> None:
    values = floats(seed, 10.0**log_scale)
    planes = quantize_q8_0(values)
    found = dequantize_planes("q8_0", planes, *values.shape).reshape(-1, 32)
    d = planes["scales"].view(np.float16).astype(np.float32).reshape(-1, 1)
    amax = np.abs(values).reshape(-1, 32).max(axis=1, keepdims=True)
    # Half a step, plus what clipping costs where the scale was rounded down: f16 keeps 11 bits, or units
    # of 2^-24 where it is subnormal.
    bound = d * 0.5 + np.maximum(amax * 2.0**-11, 127 * 2.0**-25) + amax * 2.0**-20
    assert np.all(np.abs(found - values.reshape(-1, 32)) <= bound)
    assert np.all(planes["quants"].view(np.int8) != -128)


def test_quantized_is_no_worse_than_gguf() -> None:
    values = floats(3, 1.0)
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    reference = gguf.quants.dequantize(gguf.quants.quantize(values, q8_0), q8_0)
    found = dequantize_planes("q8_0", quantize_q8_0(values), *values.shape)
    error, reference_error = (float(np.square(v - values).mean()) for v in (found, reference))
    assert error <= reference_error


def test_quantize_rounds_half_to_even_and_keeps_exact_values() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, :8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -127, 63]
    planes = quantize_q8_0(values)
    assert planes["scales"].view(np.float16).tolist() == [[1.0]]
    assert planes["quants"].view(np.int8)[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -127, 63]


def test_quantize_zero_and_tiny_and_huge() -> None:
    values = np.zeros((3, 32), np.float32)
    values[1] = 1e-9  # below the smallest f16 scale
    values[2] = 1e9  # beyond the largest
    planes = quantize_q8_0(values)
    assert not planes["quants"][:2].any()
    assert planes["scales"][:2].view(np.float16).tolist() == [[0.0], [0.0]]
    assert finite_f16(planes["scales"][:2])
    assert not finite_f16(planes["scales"])


def test_finite_f16_is_isfinite() -> None:
    patterns = np.arange(1 << 16, dtype="<u2")
    expected = np.isfinite(patterns.view(np.float16))
    assert [finite_f16(row) for row in patterns.view(np.uint8).reshape(-1, 2)] == expected.tolist()


def values_in(seed: int, rows: int = 8, cols: int = 96) -> NDArray[np.float32]:
    """Rows that are normal, heavy-tailed, one-sided, alike, zero, tiny, with one value far off, in steps."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, cols)).astype(np.float32)
    x[1] = rng.standard_t(3, cols)
    x[2] = np.abs(x[2])
    x[3] = np.float32(0.3)
    x[4] = 0
    x[5] *= np.float32(1e-6)
    x[6, 7] = -900
    x[7] = rng.integers(0, 16, cols) * np.float32(0.125) - np.float32(0.75)
    return x


def by_extremes(kind: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the extremes alone give, by the same f16 scales: ggml's own way of making q4_0 and q4_1."""
    blocks = x.reshape(-1, 32)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    if kind == "q4_0":
        far = np.where(-low > high, low, high)
        d, m, lowest = far / np.float32(-8), np.zeros_like(far), -8
    else:
        d, m, lowest = (high - low) / np.float32(15), low, 0
    d, m = (v.astype(np.float16).astype(np.float32) for v in (d, m))
    q = np.clip(np.rint((blocks - m) / np.where(d == 0, np.float32(1), d)), lowest, lowest + 15)
    result: NDArray[np.float32] = (q * d + m).reshape(x.shape)
    return result


@pytest.mark.parametrize("kind", ["q4_0", "q4_1"])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_a_searched_block_is_never_worse_than_its_extremes(kind: str, seed: int) -> None:
    x = values_in(seed)
    planes = QUANTIZERS[kind](x)
    assert finite_f16(planes["scales"])
    error = np.square(x - dequantize_planes(kind, planes, *x.shape).astype(np.float64)).reshape(-1, 32)
    bound = np.square(x - by_extremes(kind, x).astype(np.float64)).reshape(-1, 32)
    # The search counts errors in float32.
    assert (error.sum(axis=1) <= bound.sum(axis=1) * (1 + 1e-5) + 1e-12).all()


@pytest.mark.parametrize(("kind", "gain"), [("q4_0", 0.95), ("q4_1", 0.92)])
def test_the_search_pays(kind: str, gain: float) -> None:
    """On normal values, as weights are nearly, the error is below this part of what the extremes give."""
    x = np.random.default_rng(0).standard_normal((64, 1024)).astype(np.float32)
    found = dequantize_planes(kind, QUANTIZERS[kind](x), *x.shape)
    ratio = np.sqrt(np.square(x - found).sum() / np.square(x - by_extremes(kind, x)).sum())
    assert ratio <= gain


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_values_that_blocks_can_hold_are_kept(kind: str) -> None:
    rng = np.random.default_rng(5)
    low, high = {"q4_0": (-8, 8), "q4_1": (0, 16), "q8_0": (-127, 128)}[kind]
    x = rng.integers(low, high, (6, 64)).astype(np.float32) / np.float32(8)
    x[:, ::32], x[:, 1::32] = low / 8, (high - 1) / 8  # every block uses its whole range
    assert np.array_equal(dequantize_planes(kind, QUANTIZERS[kind](x), *x.shape), x)


@pytest.mark.parametrize("kind", ["q4_0", "q4_1"])
def test_scales_beyond_f16_come_out_infinite(kind: str) -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, 40] = 1e7
    assert not finite_f16(QUANTIZERS[kind](x)["scales"])
    assert finite_f16(QUANTIZERS[kind](x[:, :32])["scales"])


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_each_block_for_itself(kind: str) -> None:
    """A row's blocks, and how many rows are quantised at once, do not show in one another."""
    x = values_in(3)
    whole = QUANTIZERS[kind](x)
    for row in range(len(x)):
        part = QUANTIZERS[kind](x[row : row + 1])
        assert all(np.array_equal(part[plane][0], whole[plane][row]) for plane in whole)
