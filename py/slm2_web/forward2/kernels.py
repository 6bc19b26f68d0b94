"""The kernels, each with its bindings and override constants, and the shaders that compute them. Pure data.

Binding 0 of every kernel is the step: `{zero, n_tokens, pos, seq_len}`, four u32, where `zero` holds 0 (it
keeps compilers from fusing floats), `pos` is the first token's position and `seq_len = pos + n_tokens`.
The other bindings follow in the order given here. A kernel's name is its entry in the tables of reference.py
and wasm.py. A shader is a file under worker/shaders/ that computes a kernel on a GPU: most kernels have one,
under their own name; a matrix product has a second for several tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slm2_web import shipped

Access = Literal["read", "write"]

# Limits that every WebGPU device has (the specification's defaults): nothing more is asked for.
MAX_BINDING_BYTES = 128 << 20
MAX_STORAGE_BINDINGS = 8
MAX_INVOCATIONS = 256
MAX_WORKGROUPS = 65535
OFFSET_ALIGNMENT_BYTES = 256

STEP_BYTES = 16
# What one workgroup of a matrix product takes: rows of one token; rows and tokens of the shader for several.
MATMUL_ROWS = 8
TILE_ROWS, TILE_TOKENS = 16, 4


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a kernel binds after the step, and the override constants it needs."""

    bindings: Mapping[str, Access]
    constants: tuple[str, ...]


_EMBED = Kernel({"ids": "read", "quants": "read", "scales": "read", "x": "write"}, ("COLS", "ROW0", "ROWS"))
_MATMUL = Kernel(
    {"xq": "read", "xm": "read", "quants": "read", "scales": "read", "y": "write"},
    ("COLS", "ROWS", "STRIDE", "OFFSET", "ADD", "LAST"),
)

_ROPE_KV: Mapping[str, Access] = {
    "qkv": "read",
    "rope": "read",
    "qq": "write",
    "qs": "write",
    "kvq": "write",
    "kvs": "write",
}
_HEADS = ("N_HEADS", "N_KV_HEADS", "HEAD_DIM", "MAX_SEQ")

KERNELS: Mapping[str, Kernel] = {
    "embed_q4_0": _EMBED,
    "embed_q4_1": _EMBED,
    "embed_q8_0": _EMBED,
    "rmsnorm_quantize": Kernel(
        {"x": "read", "weight": "read", "xq": "write", "xm": "write"}, ("COLS", "INV_COLS", "EPS")
    ),
    "silu_mul_quantize": Kernel({"gate_up": "read", "xq": "write", "xm": "write"}, ("COLS",)),
    "matmul_q4_0": _MATMUL,
    "matmul_q4_1": _MATMUL,
    "matmul_q8_0": _MATMUL,
    "rope_kv": Kernel(_ROPE_KV, _HEADS),
    "bias_rope_kv": Kernel({**_ROPE_KV, "bias": "read"}, _HEADS),
    "norm_rope_kv": Kernel({**_ROPE_KV, "weight": "read"}, (*_HEADS, "INV_HEAD_DIM", "EPS")),
    "attn_scores": Kernel(
        {"qq": "read", "qs": "read", "kvq": "read", "kvs": "read", "scores": "write", "peaks": "write"},
        (*_HEADS, "SCALE"),
    ),
    "attn_values": Kernel(
        {
            "scores": "read",
            "peaks": "read",
            "kvq": "read",
            "kvs": "read",
            "masses": "write",
            "values": "write",
        },
        _HEADS,
    ),
    "attn_quantize": Kernel(
        {"masses": "read", "values": "read", "xq": "write", "xm": "write"},
        ("N_HEADS", "HEAD_DIM", "MAX_SEQ"),
    ),
}

# Shader -> the kernel it computes.
SHADERS: Mapping[str, str] = {
    **{name: name for name in KERNELS},
    **{f"matmul_tile_{kind}": f"matmul_{kind}" for kind in ("q4_0", "q4_1", "q8_0")},
}


def shader_source(shader: str) -> str:
    """The WGSL text of a shader."""
    return shipped.read("shaders", f"{shader}.wgsl").decode("utf-8")
