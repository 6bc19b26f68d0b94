"""The network in float64 numpy: the oracle for accuracy. No quantised activations, no cache, no contract.

It reads the dequantised weights of a packed model and follows the published architectures: RMSNorm, biases
(qwen2) or a norm of each head (qwen3) on q and k, rotary embedding on halves, grouped-query attention,
SwiGLU, tied output or not. Against it the reference may differ by what int8 activations cost, and by nothing
else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slm2_web.compile.quantize import dequantize_planes
from slm2_web.packed import PackedModel

F64 = NDArray[np.float64]


class FloatLlama:
    """The network of a packed model in float64."""

    def __init__(self, model: PackedModel) -> None:
        self.config = model.manifest.config
        self._model = model
        self._inv_freq = self._tensor("rope.inv_freq")[0]

    def _tensor(self, name: str) -> F64:
        entry = self._model.manifest.tensors[name]
        planes = {
            plane: self._model.weights[offset : offset + entry.plane_bytes(plane)]
            for plane, offset in entry.planes.items()
        }
        return dequantize_planes(entry.type, planes, *entry.shape).astype(np.float64)

    def _rows(self, fused: str, *separate: str) -> F64:
        if fused in self._model.manifest.tensors:
            return self._tensor(fused)
        return np.concatenate([self._tensor(name) for name in separate])

    def logits(self, ids: Sequence[int]) -> F64:
        """f64[len(ids), vocab_size]: the logits after each id."""
        c = self.config
        n, half = len(ids), c.head_dim // 2
        embed = self._tensor("embed")
        x = embed[list(ids)]
        angle = np.arange(n)[:, None] * self._inv_freq[None, :]
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        mask = np.where(np.tri(n, dtype=bool), 0.0, -np.inf)

        def scaled(v: F64) -> F64:
            unit: F64 = v / np.sqrt((v * v).mean(axis=-1, keepdims=True) + c.norm_eps)
            return unit

        def norm(v: F64, name: str) -> F64:
            return scaled(v) * self._tensor(name)

        def rotate(v: F64) -> F64:
            a, b = v[..., :half], v[..., half:]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=2)

        for i in range(c.n_layers):
            layer = f"layers.{i}"
            h = norm(x, f"{layer}.attn_norm")
            qkv = h @ self._rows(f"{layer}.attn_qkv", *(f"{layer}.attn_{p}" for p in "qkv")).T
            if c.network.qkv_bias:
                qkv = qkv + self._tensor(f"{layer}.qkv_bias")
            heads = qkv.reshape(n, c.n_heads + 2 * c.n_kv_heads, c.head_dim)
            share = c.n_heads // c.n_kv_heads
            q, k = heads[:, : c.n_heads], heads[:, c.n_heads : c.n_heads + c.n_kv_heads]
            if c.network.head_norm:
                q_weight, k_weight = self._tensor(f"{layer}.qk_norm").reshape(2, -1)
                q, k = scaled(q) * q_weight, scaled(k) * k_weight
            q, k = rotate(q), np.repeat(rotate(k), share, axis=1)
            v = np.repeat(heads[:, c.n_heads + c.n_kv_heads :], share, axis=1)
            scores = np.einsum("thd,jhd->htj", q, k) / np.sqrt(c.head_dim) + mask
            weights = np.exp(scores - scores.max(axis=2, keepdims=True))
            weights /= weights.sum(axis=2, keepdims=True)
            mixed = np.einsum("htj,jhd->thd", weights, v).reshape(n, -1)
            x = x + mixed @ self._tensor(f"{layer}.attn_out").T
            h = norm(x, f"{layer}.ffn_norm")
            gate_up = h @ self._rows(f"{layer}.ffn_gate_up", f"{layer}.ffn_gate", f"{layer}.ffn_up").T
            gate, up = gate_up[:, : c.hidden_dim], gate_up[:, c.hidden_dim :]
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self._tensor(f"{layer}.ffn_down").T
        output = "output" if "output" in self._model.manifest.tensors else "embed"
        logits: F64 = norm(x, "final_norm") @ (embed if output == "embed" else self._tensor(output)).T
        return logits
