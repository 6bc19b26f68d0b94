"""The start-up self-test: every shader on small inputs, in one submission, against known answers.

A device whose answers differ in one bit is not used. The answers are digests of what the reference computes
(`python -m slm2_web.forward2.selftest --write` makes selftest.json; a test holds the two together), so a
device is compared with a recorded truth, not with what this machine's numpy happens to say today.

All inputs lie in one buffer and all outputs in another, which is filled with guard bytes first: a kernel that
writes past its output, or misses a part of it, is found as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import DeviceError
from slm2_web.forward2 import exactmath
from slm2_web.forward2.exactmath import ATTENTION_BLOCK, GROUP
from slm2_web.forward2.gpu import GpuBackend, compile_all
from slm2_web.forward2.kernels import (
    KERNELS,
    MATMUL_ROWS,
    OFFSET_ALIGNMENT_BYTES,
    SHADERS,
    STEP_BYTES,
    TILE_ROWS,
    TILE_TOKENS,
)
from slm2_web.forward2.plan import ONE, Binding, Dispatch, Extent
from slm2_web.forward2.reference import Step, run
from slm2_web.manifest import PLANE_BYTES

ANSWERS = "selftest.json"
GUARD = 0xA5

# Shapes that leave remainders everywhere: 10 groups on 8 lanes, 71 rows on workgroups of 8 and of 16 and on
# pairs, 13 tokens on tiles of 8 and of 4, 80 words of a row on workgroups of 64, 264 on one of 256, 40 of a
# head on 32, five heads of q for one of k on threes, positions in two attention blocks, 97 of them on fours.
STEP = Step(n_tokens=13, pos=70)
_COLS, _NORM_COLS, _ROWS, _STRIDE, _OFFSET = 320, 1056, 71, 80, 5
_HEADS = {"N_HEADS": 10, "N_KV_HEADS": 2, "HEAD_DIM": 160, "MAX_SEQ": 97}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Case:
    """One shader's run: `arrays` are its bindings in order, an output's being what it holds before."""

    name: str
    shader: str
    constants: Mapping[str, float]
    arrays: tuple[Bytes, ...]
    grid: tuple[Extent, Extent, Extent]


def _noise(seed: int, count: int) -> NDArray[np.uint32]:
    """`count` well-mixed 32-bit words. Source: the finaliser of MurmurHash3 over a counter."""
    x = np.arange(count, dtype=np.uint32) + np.uint32((seed * 0x9E3779B9) & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def _values(seed: int, count: int) -> Bytes:
    """f32 values in -2 .. 2 with a zero group, a huge one, a tiny one and a negative zero among them."""
    x = ((_noise(seed, count) >> np.uint32(8)).astype(np.float32) - np.float32(1 << 23)) * np.float32(
        2.0**-22
    )
    x[GROUP : 2 * GROUP] = 0
    x[2 * GROUP : 3 * GROUP] *= np.float32(2.0**20)
    x[3 * GROUP : 4 * GROUP] *= np.float32(2.0**-39)
    x[5] = np.float32(-0.0)
    return x.view(np.uint8)


def _halves(seed: int, count: int) -> Bytes:
    """f16 scales of either sign, from subnormal to about 0.03."""
    bits = _noise(seed, count)
    magnitude = (bits >> np.uint32(8)) % np.uint32(0x2800)
    return (magnitude | (bits & np.uint32(0x8000))).astype(np.uint16).view(np.uint8)


def _bytes(seed: int, count: int) -> Bytes:
    return _noise(seed, -(-count // 4)).view(np.uint8)[:count]


def _small_ints(seed: int, count: int) -> Bytes:
    """i8 values in -127 .. 127."""
    return ((_noise(seed, count) % np.uint32(255)).astype(np.int32) - 127).astype(np.int8).view(np.uint8)


def _scales(seed: int, count: int) -> Bytes:
    """Positive f32 scales in 2^-10 .. 2^-9."""
    fraction = (_noise(seed, count) >> np.uint32(9)).astype(np.float32) * np.float32(2.0**-23)
    return ((fraction + np.float32(1.0)) * np.float32(2.0**-10)).view(np.uint8)


def _blank(count: int) -> Bytes:
    return np.full(count, GUARD, np.uint8)


def cases() -> Iterator[Case]:
    """Every shader at least once."""
    tokens, groups = STEP.n_tokens, _COLS // GROUP
    q, meta = exactmath.quantize(_values(1, tokens * _COLS).view(np.float32).reshape(tokens, _COLS))
    xq, xm = q.reshape(-1).view(np.uint8), meta.reshape(-1).view(np.uint8)
    blank_q, blank_m = _blank(tokens * _COLS), _blank(tokens * groups * 8)
    for kind in ("q4_0", "q4_1", "q8_0"):
        quants = _bytes(3, _ROWS * groups * PLANE_BYTES[kind]["quants"])
        scales = _halves(4, _ROWS * groups * PLANE_BYTES[kind]["scales"] // 2)
        ids = np.array([69, 11, 40, 0, 33, 70, 1, 2, 64, 63, 35, 11, 69], np.uint32).view(np.uint8)
        yield Case(
            f"embed_{kind}",
            f"embed_{kind}",
            {"COLS": _COLS, "ROW0": 0, "ROWS": _ROWS},
            (ids, quants, scales, _blank(tokens * _COLS * 4)),
            (Extent("one", _COLS // 4, 64), Extent("n_tokens"), ONE),
        )
        rows, tile_rows = Extent("one", _ROWS, MATMUL_ROWS), Extent("one", _ROWS, TILE_ROWS)
        token_tiles = Extent("n_tokens", 1, TILE_TOKENS)
        for name, shader, add, last, grid in (
            ("last", f"matmul_{kind}", 0, 1, (rows, ONE, ONE)),
            ("add", f"matmul_{kind}", 1, 0, (rows, Extent("n_tokens"), ONE)),
            ("tile", f"matmul_tile_{kind}", 1, 0, (token_tiles, tile_rows, ONE)),
        ):
            y = _values(5, tokens * _STRIDE) if add else _blank((1 if last else tokens) * _STRIDE * 4)
            yield Case(
                f"matmul_{kind}.{name}",
                shader,
                {
                    "COLS": _COLS,
                    "ROWS": _ROWS,
                    "STRIDE": _STRIDE,
                    "OFFSET": _OFFSET,
                    "ADD": add,
                    "LAST": last,
                },
                (xq, xm, quants, scales, y),
                grid,
            )
    inv_cols = float(np.float32(1.0 / _NORM_COLS))
    yield Case(
        "rmsnorm_quantize",
        "rmsnorm_quantize",
        {"COLS": _NORM_COLS, "INV_COLS": inv_cols, "EPS": float(np.float32(1e-5))},
        (
            _values(6, tokens * _NORM_COLS),
            _values(7, _NORM_COLS),
            _blank(tokens * _NORM_COLS),
            _blank(tokens * _NORM_COLS // GROUP * 8),
        ),
        (ONE, Extent("n_tokens"), ONE),
    )
    yield Case(
        "silu_mul_quantize",
        "silu_mul_quantize",
        {"COLS": _COLS},
        (_values(9, tokens * 2 * _COLS), blank_q, blank_m),
        (Extent("one", _COLS // 4, 64), Extent("n_tokens"), ONE),
    )
    n_heads, n_kv, head_dim, max_seq = _HEADS.values()
    cache = 2 * max_seq * n_kv * head_dim
    q_size, width = tokens * n_heads * head_dim, n_heads + 2 * n_kv
    # By a division, which is correctly rounded everywhere; a power is not.
    inv_freq = np.float32(1) / np.arange(1, head_dim // 2 + 1, dtype=np.float32)
    rope = exactmath.rope_table(inv_freq, max_seq)
    head_norm = {"INV_HEAD_DIM": float(np.float32(1.0 / head_dim)), "EPS": float(np.float32(1e-6))}
    for name, seed, constants, extra in (
        ("rope_kv", 10, {}, ()),
        ("bias_rope_kv", 20, {}, (_values(18, width * head_dim),)),
        ("norm_rope_kv", 20, head_norm, (_values(19, 2 * head_dim),)),
    ):
        yield Case(
            name,
            name,
            {**_HEADS, **constants},
            (
                _values(seed, tokens * width * head_dim),
                np.ascontiguousarray(rope).view(np.uint8).reshape(-1),
                _blank(q_size),
                _blank(q_size // GROUP * 4),
                _blank(cache),
                _blank(cache // GROUP * 4),
                *extra,
            ),
            (Extent("one", width), Extent("n_tokens"), ONE),
        )
    kvq, kvs = _small_ints(11, cache), _scales(12, cache // GROUP)
    n_rows, blocks = tokens * n_heads, -(-max_seq // ATTENTION_BLOCK)
    by_block = (Extent("seq_len", 1, ATTENTION_BLOCK), Extent("one", n_heads), Extent("n_tokens"))
    # Heads of several groups and of one: with one, a sum is a single term, which compilers see through best.
    for name, dim in (("groups", head_dim), ("one_group", GROUP)):
        size = n_rows * dim
        yield Case(
            f"attn_scores.{name}",
            "attn_scores",
            {**_HEADS, "HEAD_DIM": dim, "SCALE": float(np.float32(1 / math.sqrt(dim + 1)))},
            (
                _small_ints(13, size),
                _scales(14, size // GROUP),
                kvq[: cache * dim // head_dim],
                kvs[: cache * dim // head_dim // GROUP * 4],
                _blank(n_rows * max_seq * 4),
                _blank(n_rows * blocks * 4),
            ),
            by_block,
        )
    for name, heads, kv_heads in (("share_of_5", n_heads, n_kv), ("share_of_4", 4, 1)):
        rows_of_q, size = tokens * heads, cache * kv_heads // n_kv
        yield Case(
            f"attn_values.{name}",
            "attn_values",
            {**_HEADS, "N_HEADS": heads, "N_KV_HEADS": kv_heads},
            (
                _values(15, rows_of_q * max_seq),
                _values(16, rows_of_q * blocks),
                kvq[:size],
                kvs[: size // GROUP * 4],
                _blank(rows_of_q * blocks * 4),
                _blank(rows_of_q * blocks * head_dim * 4),
            ),
            (Extent("seq_len", 1, ATTENTION_BLOCK), Extent("one", heads), Extent("n_tokens")),
        )
    yield Case(
        "attn_quantize",
        "attn_quantize",
        {"N_HEADS": n_heads, "HEAD_DIM": head_dim, "MAX_SEQ": max_seq},
        (
            _scales(17, n_rows * blocks),
            _values(8, n_rows * blocks * head_dim),
            _blank(q_size),
            _blank(q_size // GROUP * 8),
        ),
        (Extent("one", n_heads), Extent("n_tokens"), ONE),
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """Cases in two buffers: step, dispatches, the buffers' first contents, where each case's outputs lie."""

    step: Step
    dispatches: tuple[Dispatch, ...]
    inputs: Bytes
    outputs: Bytes
    ranges: Mapping[str, tuple[int, int]]


def lay_out(chosen: Iterable[Case] | None = None, step: Step = STEP) -> Layout:
    """Cases, the self-test's if none are given, as dispatches on `test.in` and `test.out`."""
    inputs, outputs = bytearray(), bytearray()
    dispatches, ranges = [], {}
    for case in cases() if chosen is None else chosen:
        bindings = []
        start = len(outputs)
        for access, array in zip(KERNELS[SHADERS[case.shader]].bindings.values(), case.arrays, strict=True):
            name, area = ("test.in", inputs) if access == "read" else ("test.out", outputs)
            bindings.append(Binding(name, len(area), -(-array.size // 4) * 4))
            area += array.tobytes()
            area += bytes([GUARD]) * (-len(area) % OFFSET_ALIGNMENT_BYTES)
            if access == "write":
                area += bytes([GUARD]) * OFFSET_ALIGNMENT_BYTES
        ranges[case.name] = (start, len(outputs))
        dispatches.append(Dispatch(case.shader, case.constants, tuple(bindings), case.grid))
    return Layout(
        step,
        tuple(dispatches),
        np.frombuffer(bytes(inputs), np.uint8),
        np.frombuffer(bytes(outputs), np.uint8),
        ranges,
    )


def reference_outputs(layout: Layout) -> Bytes:
    """What the reference leaves in `test.out`."""
    buffers = {"test.in": layout.inputs.copy(), "test.out": layout.outputs.copy()}
    run(layout.dispatches, buffers, layout.step)
    return buffers["test.out"]


def digests(layout: Layout, outputs: Bytes) -> dict[str, str]:
    """Each case's digest: the first 16 hexadecimal digits of the sha256 of its outputs with their guards."""
    return {n: hashlib.sha256(outputs[a:b].tobytes()).hexdigest()[:16] for n, (a, b) in layout.ranges.items()}


def known_answers() -> dict[str, str]:
    """The recorded digests."""
    text = (resources.files("slm2_web.forward2") / ANSWERS).read_text(encoding="utf-8")
    answers: dict[str, str] = json.loads(text)
    return answers


async def outputs_of(backend: GpuBackend, layout: Layout) -> Bytes:
    """What a backend leaves in `test.out`."""
    backend.create_buffer("step", STEP_BYTES)
    backend.create_buffer("test.in", layout.inputs.size)
    backend.create_buffer("test.out", layout.outputs.size)
    backend.write("test.in", 0, layout.inputs)
    backend.write("test.out", 0, layout.outputs)
    await compile_all(backend, layout.dispatches, lambda done, total: None)
    backend.record("test", layout.dispatches)
    step = (0, layout.step.n_tokens, layout.step.pos, layout.step.seq_len)
    found = await backend.run(("test",), step, (), "test.out", layout.outputs.size)
    backend.free("test")
    return found.view(np.uint8)


def check_outputs(layout: Layout, found: Bytes, adapter: str) -> None:
    """Compare outputs with the recorded answers.

    Raises: DeviceError `device.self_test` that names the cases that differ.
    """
    got, want = digests(layout, found), known_answers()
    wrong = [name for name in want if got.get(name) != want[name]]
    if wrong:
        raise DeviceError(
            "device.self_test",
            f"{adapter} computes wrong results in {', '.join(wrong)}",
            {"adapter": adapter, "wrong": wrong},
        )


async def self_test(backend: GpuBackend) -> None:
    """Run every case on the backend.

    Raises: DeviceError `device.self_test`.
    """
    layout = lay_out()
    check_outputs(layout, await outputs_of(backend, layout), backend.adapter)


def main() -> None:
    """Write selftest.json beside this module."""
    if sys.argv[1:] != ["--write"]:
        raise SystemExit("usage: python -m slm2_web.forward2.selftest --write")
    layout = lay_out()
    answers = digests(layout, reference_outputs(layout))
    Path(__file__).with_name(ANSWERS).write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
