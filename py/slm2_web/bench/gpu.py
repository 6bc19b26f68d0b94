"""The WebGPU executor's speed on this machine's GPU, by PyPI `wgpu`: random weights of a model's full shape.

    python -m slm2_web.bench.gpu [--shape qwen3-0.6b] [--quant q4_1] [--prompt 512] [--steps 64]
                                 [--context 2048]

Needs no model file, a minute, and the package `wgpu`. What the weights hold changes no time. Prints JSON:
prefill and decode tokens/s as a session sees them, readback of the logits included, and beside them how fast
a kernel reads that does nothing else. Decode reads every weight once a token, so `decode_of_limit` says what
part of that speed it reaches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from slm2_web.bench.machine import machine_facts, package_version
from slm2_web.compile.weights import PlannedTensor, lay_out
from slm2_web.errors import DeviceError
from slm2_web.forward2.gpu import GpuExecutor
from slm2_web.forward2.kernels import MAX_BINDING_BYTES
from slm2_web.forward2.native import NativeBackend
from slm2_web.forward2.selftest import self_test
from slm2_web.manifest import FileEntry, Manifest, ModelConfig, TemplateSpec, TensorType

SHAPES: Final[Mapping[str, ModelConfig]] = {
    "smollm2-135m": ModelConfig("llama", 576, 1536, 30, 9, 3, 64, 49152, 1e-5, 8192),
    "qwen2.5-0.5b": ModelConfig("qwen2", 896, 4864, 24, 14, 2, 64, 151936, 1e-6, 32768),
    "qwen3-0.6b": ModelConfig("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 1e-6, 40960),
    "qwen3-1.7b": ModelConfig("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, 1e-6, 40960),
}
EMBED_TYPE: Final[TensorType] = "q8_0"
# f16 patterns of a scale of about 0.01 and of the offset that centres a q4_1 block.
_SCALE, _OFFSET = 0x211F, 0xACCD
_SLOW_S = 0.1

_READER = """
@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
  var sum = vec4<u32>();
  for (var i = id.x; i < arrayLength(&a); i += 256u * n.x) {
    sum += a[i];
  }
  b[id.x] = sum.x ^ sum.y ^ sum.z ^ sum.w;
}
"""


def tensors_of(config: ModelConfig, kind: TensorType) -> Iterator[PlannedTensor]:
    """A model's tensors as a packer would name and shape them, embedding and output in one."""
    dim, hidden = config.dim, config.hidden_dim
    q_rows, kv_rows = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    yield PlannedTensor("embed", EMBED_TYPE, (config.vocab_size, dim), ())
    for i in range(config.n_layers):
        layer = f"layers.{i}."
        yield PlannedTensor(layer + "attn_norm", "f32", (1, dim), ())
        yield PlannedTensor(layer + "attn_qkv", kind, (q_rows + 2 * kv_rows, dim), ())
        if config.network.qkv_bias:
            yield PlannedTensor(layer + "qkv_bias", "f32", (1, q_rows + 2 * kv_rows), ())
        if config.network.head_norm:
            yield PlannedTensor(layer + "qk_norm", "f32", (1, 2 * config.head_dim), ())
        yield PlannedTensor(layer + "attn_out", kind, (dim, q_rows), ())
        yield PlannedTensor(layer + "ffn_norm", "f32", (1, dim), ())
        yield PlannedTensor(layer + "ffn_gate_up", kind, (2 * hidden, dim), ())
        yield PlannedTensor(layer + "ffn_down", kind, (dim, hidden), ())
    yield PlannedTensor("final_norm", "f32", (1, dim), ())
    yield PlannedTensor("rope.inv_freq", "f32", (1, config.head_dim // 2), ())


def random_model(config: ModelConfig, kind: TensorType) -> tuple[Manifest, NDArray[np.uint8]]:
    """(manifest, weights) of a model that computes finite nonsense."""
    tensors, n_bytes = lay_out(list(tensors_of(config, kind)))
    nothing = FileEntry("none", 0, "0" * 64)
    manifest = Manifest(
        "random", "random weights", "none", nothing, config, nothing, TemplateSpec("chatml", None), (0,), {},
        n_bytes, (), tensors,
    )  # fmt: skip
    weights = np.zeros(-(-n_bytes // 256) * 256, np.uint8)
    noise = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    for entry in tensors.values():
        for plane, start in entry.planes.items():
            part = weights[start : start + entry.plane_bytes(plane)]
            if plane == "quants":
                part[:] = np.resize(noise, part.size)
            elif plane == "values":
                part.view(np.float32)[:] = 1
            else:
                part.view(np.uint16)[:] = _SCALE
                if entry.type == "q4_1":
                    part.view(np.uint16)[1::2] = _OFFSET
    return manifest, weights


def read_gb_s() -> float:
    """Gigabytes a second that a kernel reads which does nothing else. Raises: DeviceError."""
    import wgpu

    device = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()
    usage = wgpu.BufferUsage
    a = device.create_buffer(size=MAX_BINDING_BYTES, usage=usage.STORAGE)
    b = device.create_buffer(size=1 << 20, usage=usage.STORAGE | usage.COPY_SRC)
    module = device.create_shader_module(code=_READER)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    entries = [{"binding": i, "resource": {"buffer": buffer}} for i, buffer in enumerate((a, b))]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    best = 0.0
    for rounds in (1, 8, 8):  # a slow device is asked once
        start = time.perf_counter()
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        for _ in range(rounds):
            compute.dispatch_workgroups(1024)
        compute.end()
        device.queue.submit([encoder.finish()])
        device.queue.read_buffer(b, size=16)
        took = time.perf_counter() - start
        best = max(best, rounds * MAX_BINDING_BYTES / took / 1e9)
        if took > _SLOW_S:
            break
    return best


async def measure(
    config: ModelConfig, kind: TensorType, prompt: int, steps: int, context: int
) -> dict[str, Any]:
    """The figures. Raises: DeviceError; FormatError when the shape does not fit the device's limits."""
    backend = NativeBackend()
    start = time.perf_counter()
    await self_test(backend)
    self_test_ms = (time.perf_counter() - start) * 1e3
    manifest, weights = random_model(config, kind)
    start = time.perf_counter()
    inv_freq = np.geomspace(1, 1e-4, config.head_dim // 2).astype(np.float32)
    executor = await GpuExecutor.create(
        backend,
        manifest,
        lambda low, high: weights[low:high],
        inv_freq,
        max_seq_len=max(context, prompt + steps),
    )
    ready_s = time.perf_counter() - start
    ids = [(37 * i) % config.vocab_size for i in range(prompt)]
    chunk = executor.max_chunk_tokens
    prefill_s, decode_s = float("inf"), float("inf")
    for _ in range(2):  # the first pass also warms up
        executor.truncate(0)
        start = time.perf_counter()
        for low in range(0, prompt, chunk):
            await executor.forward(ids[low : low + chunk], want_logits=low + chunk >= prompt)
        prefill_s = min(prefill_s, time.perf_counter() - start)
        start = time.perf_counter()
        for i in range(steps):
            await executor.forward([i % config.vocab_size], want_logits=True)
        decode_s = min(decode_s, (time.perf_counter() - start) / steps)
    limit = read_gb_s()
    return {
        "adapter": backend.adapter,
        "wgpu": package_version("wgpu"),
        "machine": machine_facts(),
        "weights_bytes": manifest.weights_bytes,
        "dispatches_per_token": len(executor.plan.decode) + len(executor.plan.logits),
        "chunk_tokens": chunk,
        "self_test_ms": round(self_test_ms, 1),
        "ready_s": round(ready_s, 2),
        "prefill_tokens_s": round(prompt / prefill_s, 1),
        "decode_tokens_s": round(1 / decode_s, 1),
        "decode_ms": round(decode_s * 1e3, 2),
        "read_gb_s": round(limit, 1),
        "decode_of_limit": round(manifest.weights_bytes / 1e9 / limit / decode_s, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m slm2_web.bench.gpu")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--quant", choices=("q4_0", "q4_1", "q8_0"), default="q4_1")
    parser.add_argument("--prompt", type=int, default=512, help="tokens to prefill")
    parser.add_argument("--steps", type=int, default=64, help="tokens to decode after them")
    parser.add_argument("--context", type=int, default=2048, help="positions of the KV cache")
    given = parser.parse_args()
    if min(given.prompt, given.steps, given.context) < 1:
        parser.error("--prompt, --steps and --context: at least 1")
    kind = cast("TensorType", given.quant)
    try:
        work = measure(SHAPES[given.shape], kind, given.prompt, given.steps, given.context)
        figures = asyncio.run(work)
    except DeviceError as error:
        sys.exit(f"{error.code}: {error}")
    print(json.dumps({"shape": given.shape, "quant": kind, **figures}, indent=1))


if __name__ == "__main__":
    main()
