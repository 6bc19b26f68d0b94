"""The kernels: for each its bindings, its override constants and its workgroup. Pure data.

Binding 0 of every kernel is the step: `{zero, n_tokens, pos, seq_len}`, four u32, where `zero` holds 0 (it
keeps compilers from fusing floats), `pos` is the first token's position and `seq_len = pos + n_tokens`.
The other bindings follow in the order given here. A kernel's name is its file's name under
worker/shaders/ and its entry in the tables of reference.py and wasm.py.
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
OFFSET_ALIGNMENT_BYTES = 256

STEP_BYTES = 16
# Tokens that one thread of a prefill matmul takes: each weight block is read once for all of them.
PREFILL_TILE_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a kernel binds after the step, the override constants it needs, and its workgroup's size."""

    bindings: Mapping[str, Access]
    constants: tuple[str, ...]
    workgroup: int


_EMBED = Kernel(
    {"ids": "read", "quants": "read", "scales": "read", "x": "write"}, ("COLS", "ROW0", "ROWS"), workgroup=64
)
_MATMUL = Kernel(
    {"xq": "read", "xm": "read", "quants": "read", "scales": "read", "y": "write"},
    ("COLS", "ROWS", "STRIDE", "OFFSET", "TOKENS", "ADD", "LAST"),
    workgroup=64,
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
        {"x": "read", "weight": "read", "xq": "write", "xm": "write"},
        ("COLS", "INV_COLS", "EPS"),
        workgroup=32,
    ),
    "quantize": Kernel({"x": "read", "xq": "write", "xm": "write"}, ("COLS",), workgroup=64),
    "silu_mul_quantize": Kernel({"gate_up": "read", "xq": "write", "xm": "write"}, ("COLS",), workgroup=64),
    "matmul_q4_0": _MATMUL,
    "matmul_q4_1": _MATMUL,
    "matmul_q8_0": _MATMUL,
    "rope_kv": Kernel(_ROPE_KV, _HEADS, workgroup=64),
    "bias_rope_kv": Kernel({**_ROPE_KV, "bias": "read"}, _HEADS, workgroup=64),
    "norm_rope_kv": Kernel({**_ROPE_KV, "weight": "read"}, (*_HEADS, "INV_HEAD_DIM", "EPS"), workgroup=64),
    "attn_scores": Kernel(
        {"qq": "read", "qs": "read", "kvq": "read", "kvs": "read", "scores": "write"},
        (*_HEADS, "SCALE"),
        workgroup=64,
    ),
    "attn_softmax": Kernel({"scores": "write", "norm": "write"}, ("N_HEADS", "MAX_SEQ"), workgroup=64),
    "attn_values": Kernel(
        {"scores": "read", "norm": "read", "kvq": "read", "kvs": "read", "y": "write"},
        _HEADS,
        workgroup=64,
    ),
}


def shader_source(kernel: str) -> str:
    """The WGSL text of a kernel."""
    return shipped.read("shaders", f"{kernel}.wgsl").decode("utf-8")
