"""The plan as data: it fits WebGPU's default limits, and its pieces fit one another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slm2_web.compile.pack import pack_gguf
from slm2_web.errors import FormatError
from slm2_web.forward2.kernels import (
    KERNELS,
    MATMUL_ROWS,
    MAX_BINDING_BYTES,
    MAX_INVOCATIONS,
    MAX_STORAGE_BINDINGS,
    MAX_WORKGROUPS,
    OFFSET_ALIGNMENT_BYTES,
    SHADERS,
    TILE_ROWS,
    TILE_TOKENS,
    shader_source,
)
from slm2_web.forward2.plan import Extent, Plan, build_plan
from slm2_web.manifest import Manifest, parse_manifest
from tiny_gguf import make_tiny_gguf

FOLDER = Path(__file__).parents[3] / "worker" / "shaders"


@pytest.fixture(scope="module")
def tiny(packed_tiny: Path) -> Manifest:
    return parse_manifest((packed_tiny / "manifest.json").read_bytes())


@pytest.fixture(scope="module")
def smollm2(packed_smollm2: Path) -> Manifest:
    return parse_manifest((packed_smollm2 / "manifest.json").read_bytes())


def check(plan: Plan, max_binding_bytes: int) -> None:
    """Everything that a WebGPU implementation would refuse."""
    sizes = dict(plan.buffers) | {s.buffer: s.end - s.start for s in plan.segments}
    for dispatch in (*plan.decode, *plan.prefill, *plan.logits):
        written: dict[str, list[tuple[int, int]]] = {}
        read: dict[str, list[tuple[int, int]]] = {}
        for access, b in zip(KERNELS[dispatch.kernel].bindings.values(), dispatch.bindings, strict=True):
            assert b.offset % OFFSET_ALIGNMENT_BYTES == 0
            assert b.size % 4 == 0
            assert 0 < b.size <= max_binding_bytes
            assert b.offset + b.size <= sizes[b.buffer]
            (written if access == "write" else read).setdefault(b.buffer, []).append((b.offset, b.size))
        # A buffer that is written may not be bound a second time, in any way.
        assert all(len(ranges) == 1 for ranges in written.values())
        assert not written.keys() & read.keys()
        for n_tokens, seq_len in ((1, 1), (plan.max_chunk_tokens, plan.max_seq_len)):
            assert all(1 <= e.count(n_tokens, seq_len) <= MAX_WORKGROUPS for e in dispatch.grid)


def test_default_model_fits_the_default_limits(smollm2: Manifest) -> None:
    plan = build_plan(smollm2, max_seq_len=8192, max_chunk_tokens=32)
    check(plan, MAX_BINDING_BYTES)
    assert len(plan.segments) == 1
    assert [d.kernel for d in plan.decode] == [d.kernel for d in plan.prefill]
    assert len(plan.decode) == 1 + 11 * smollm2.config.n_layers
    assert plan.memory_bytes()["weights"] <= smollm2.weights_bytes


@pytest.mark.parametrize("limit", [20_000, 40_000])
def test_tensors_beyond_the_limit_are_split_by_rows(tiny: Manifest, limit: int) -> None:
    whole = build_plan(tiny, max_seq_len=64, max_chunk_tokens=8)
    plan = build_plan(tiny, max_seq_len=64, max_chunk_tokens=8, max_binding_bytes=limit)
    check(plan, limit)
    assert len(plan.segments) > len(whole.segments)
    for body in ("decode", "prefill", "logits"):
        for kernel in KERNELS:
            parts = [d for d in getattr(plan, body) if d.kernel == kernel and "ROWS" in d.constants]
            uncut = [d for d in getattr(whole, body) if d.kernel == kernel and "ROWS" in d.constants]
            assert sum(d.constants["ROWS"] for d in parts) == sum(d.constants["ROWS"] for d in uncut)


def test_odd_planes_stay_inside_their_buffers(tmp_path: Path) -> None:
    """259 rows of 3 blocks: scales planes of 2 bytes more than whole words, wherever a segment is cut."""
    made = make_tiny_gguf(tmp_path / "odd.gguf", dim=96, n_heads=3, n_kv_heads=3, hidden_dim=96, n_vocab=263)
    manifest = pack_gguf(made.path, tmp_path / "odd", made.spec)
    for limit in range(25_600, 52_000, 1_600):
        plan = build_plan(manifest, max_seq_len=8, max_chunk_tokens=8, max_binding_bytes=limit)
        check(plan, limit)
        assert all((s.end - s.start) % 4 == 0 for s in plan.segments)


def test_a_row_that_fits_no_binding_is_refused(tiny: Manifest) -> None:
    with pytest.raises(FormatError) as caught:
        build_plan(tiny, max_seq_len=64, max_chunk_tokens=8, max_binding_bytes=4096)
    assert caught.value.code == "format.unsupported"


def test_steps_are_as_long_as_fits_a_binding(tiny: Manifest) -> None:
    plan = build_plan(tiny, max_seq_len=256, max_chunk_tokens=256, max_binding_bytes=200_000)
    check(plan, 200_000)
    assert 1 < plan.max_chunk_tokens < 256
    assert max(plan.buffers.values()) > 200_000 * (1 - 1 / plan.max_chunk_tokens)


def test_a_context_that_fits_no_binding_is_refused(tiny: Manifest) -> None:
    with pytest.raises(FormatError) as caught:
        build_plan(tiny, max_seq_len=256, max_chunk_tokens=1, max_binding_bytes=20_000)
    assert caught.value.code == "format.unsupported"


@pytest.mark.parametrize(("variable", "expected"), [("one", 2), ("n_tokens", 6), ("seq_len", 18)])
def test_extent_rounds_up(variable: str, expected: int) -> None:
    assert Extent(variable, 7, 4).count(3, 10) == expected  # type: ignore[arg-type]


def test_kernels_keep_to_default_limits() -> None:
    assert all(len(kernel.bindings) <= MAX_STORAGE_BINDINGS for kernel in KERNELS.values())
    for name in SHADERS:
        (size,) = re.findall(r"@workgroup_size\((\d+)\)", shader_source(name))
        assert int(size) <= MAX_INVOCATIONS


@pytest.mark.parametrize("name", SHADERS)
def test_shader_declares_what_the_table_says(name: str) -> None:
    source, kernel = shader_source(name), KERNELS[SHADERS[name]]
    declared = re.findall(r"@binding\((\d+)\) var<storage, (read|read_write)> (\w+):", source)
    access = {"read": "read", "read_write": "write"}
    assert [(int(n), access[mode], binding) for n, mode, binding in declared] == [
        (i, mode, binding) for i, (binding, mode) in enumerate(kernel.bindings.items(), 1)
    ]
    assert re.findall(r"^override (\w+): \w+;$", source, re.M) == list(kernel.constants)
    tile = {n: int(v) for n, v in re.findall(r"^const (TILE_\w+) = (\d+)u;$", source, re.M)}
    if name.startswith("matmul_tile"):
        assert tile == {"TILE_ROWS": TILE_ROWS, "TILE_TOKENS": TILE_TOKENS}
    else:
        assert tile == ({"TILE_ROWS": MATMUL_ROWS} if name.startswith("matmul") else {})


def test_every_shader_is_in_the_table() -> None:
    assert sorted(p.stem for p in FOLDER.glob("*.wgsl")) == sorted(SHADERS)


def test_functions_that_shaders_share_are_the_same_text() -> None:
    texts: dict[str, dict[str, list[str]]] = {}
    for name in SHADERS:
        for match in re.finditer(r"(?:^//[^\n]*\n)*^fn (\w+)\(.*?^}\n", shader_source(name), re.M | re.S):
            if match[1] == "main":
                continue
            texts.setdefault(match[1], {}).setdefault(match[0], []).append(name)
    assert {"sep", "recip", "exp_exact", "half_to_f32", "group_scale"} <= texts.keys()
    assert {f: list(t.values()) for f, t in texts.items() if len(t) > 1} == {}
