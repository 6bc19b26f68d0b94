"""A packed model directory, opened: its manifest, its tokenizer file and its weights in one address space.

In the browser the files come over the network instead, and the page's side uses `check_tensors` and
`plane_view`; the loader has checked sizes and hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import FormatError
from slm2_web.manifest import (
    BLOCK,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    ModelConfig,
    TensorEntry,
    parse_manifest,
)

MANIFEST_FILE = "manifest.json"

# What a plane's elements are, and how many of them there are per block of 32 columns.
_ELEMENTS: Mapping[tuple[str, str], tuple[str, int]] = {
    ("f32", "values"): ("<f4", BLOCK),
    ("q8_0", "quants"): ("<i1", BLOCK),
    ("q8_0", "scales"): ("<f2", 1),
    ("q4_0", "quants"): ("<u1", BLOCK // 2),
    ("q4_0", "scales"): ("<f2", 1),
    ("q4_1", "quants"): ("<u1", BLOCK // 2),
    ("q4_1", "scales"): ("<f2", 2),
}
_MATRIX_TYPES = ("q8_0", "q4_0", "q4_1")


@dataclass(frozen=True, slots=True)
class PackedModel:
    """An opened directory. `weights` is u8[manifest.weights_bytes], all shards in order."""

    manifest: Manifest
    tokenizer_bytes: bytes
    weights: NDArray[np.uint8]

    @classmethod
    def open(cls, directory: Path, *, verify: bool = True) -> PackedModel:
        """The model in `directory`; with `verify`, each file's hash is checked besides its size.

        Raises: FormatError `format.model_file` for a file that is missing or not the recorded one,
            `format.manifest` for a manifest that is damaged or whose tensors do not make its network.
        """
        path = directory / MANIFEST_FILE
        size = _size(path, f"at most {MAX_MANIFEST_BYTES} bytes")
        if size > MAX_MANIFEST_BYTES:
            raise _bad_file(MANIFEST_FILE, f"{size} bytes", f"at most {MAX_MANIFEST_BYTES}")
        manifest = parse_manifest(path.read_bytes())
        check_tensors(manifest)
        tokenizer = np.empty(_checked_size(directory, manifest.tokenizer), np.uint8)
        for shard in manifest.shards:  # all sizes before the first big allocation
            _checked_size(directory, shard)
        weights = np.empty(manifest.weights_bytes, np.uint8)
        _read(directory, manifest.tokenizer, tokenizer, verify)
        start = 0
        for shard in manifest.shards:
            _read(directory, shard, weights[start : start + shard.bytes], verify)
            start += shard.bytes
        weights.flags.writeable = False
        return cls(manifest, tokenizer.tobytes(), weights)

    def plane(self, tensor: str, plane: str) -> NDArray[Any]:
        """One plane of a tensor, as `plane_view` shows it."""
        return plane_view(self.weights, self.manifest.tensors[tensor], plane)


def plane_view(weights: NDArray[np.uint8], entry: TensorEntry, plane: str) -> NDArray[Any]:
    """A plane as a typed view, without copying.

    values: f32[rows, cols]; quants: q8_0 i8[rows, cols], q4_0 and q4_1 u8[rows, cols / 2];
    scales: f16[rows, cols / 32], q4_1 f16[rows, cols / 32, 2] with d and m.
    """
    rows, cols = entry.shape
    kind, per_block = _ELEMENTS[entry.type, plane]
    start = entry.planes[plane]
    flat = weights[start : start + entry.plane_bytes(plane)].view(kind)
    if (entry.type, plane) == ("q4_1", "scales"):
        return flat.reshape(rows, cols // BLOCK, 2)
    return flat.reshape(rows, cols * per_block // BLOCK)


def check_file(entry: FileEntry, data: bytes | bytearray | memoryview) -> None:
    """Nothing, when `data` is the file that `entry` records.

    Raises: FormatError `format.model_file` with the file, what was found and what is allowed.
    """
    view = memoryview(data).cast("B")
    if len(view) != entry.bytes:
        raise _bad_file(entry.file, f"{len(view)} bytes", f"{entry.bytes} bytes")
    found = hashlib.sha256(view).hexdigest()
    if found != entry.sha256:
        raise _bad_file(entry.file, f"sha256 {found}", f"sha256 {entry.sha256}")


def check_tensors(manifest: Manifest) -> None:
    """Nothing, when the manifest's tensors are those of its config, with the right shapes and types.

    Raises: FormatError `format.manifest` with the tensor, what was found and what is allowed.
    """
    left = dict(manifest.tensors)
    for name, shape, kinds in _expected(manifest.config, manifest.tensors):
        entry = left.pop(name, None)
        allowed = f"{' | '.join(kinds)} {list(shape)}"
        if entry is None:
            raise _bad_tensor(name, "nothing", allowed)
        if entry.shape != shape or entry.type not in kinds:
            raise _bad_tensor(name, f"{entry.type} {list(entry.shape)}", allowed)
    for name in left:
        raise _bad_tensor(name, "a tensor that the network does not use", "none")


def _expected(
    config: ModelConfig, names: Mapping[str, TensorEntry]
) -> Iterator[tuple[str, tuple[int, int], tuple[str, ...]]]:
    """(name, shape, types) of each tensor; `names` decides where a part may be fused or left out."""
    q_rows, kv_rows = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    dim, hidden_dim = config.dim, config.hidden_dim
    yield "rope.inv_freq", (1, config.head_dim // 2), ("f32",)
    yield "embed", (config.vocab_size, dim), _MATRIX_TYPES
    for i in range(config.n_layers):
        layer = f"layers.{i}."
        yield layer + "attn_norm", (1, dim), ("f32",)
        if layer + "attn_q" in names:
            yield layer + "attn_q", (q_rows, dim), _MATRIX_TYPES
            yield layer + "attn_k", (kv_rows, dim), _MATRIX_TYPES
            yield layer + "attn_v", (kv_rows, dim), _MATRIX_TYPES
        else:
            yield layer + "attn_qkv", (q_rows + 2 * kv_rows, dim), _MATRIX_TYPES
        if config.network.qkv_bias:
            yield layer + "qkv_bias", (1, q_rows + 2 * kv_rows), ("f32",)
        if config.network.head_norm:
            yield layer + "qk_norm", (1, 2 * config.head_dim), ("f32",)
        yield layer + "attn_out", (dim, q_rows), _MATRIX_TYPES
        yield layer + "ffn_norm", (1, dim), ("f32",)
        if layer + "ffn_gate" in names:
            yield layer + "ffn_gate", (hidden_dim, dim), _MATRIX_TYPES
            yield layer + "ffn_up", (hidden_dim, dim), _MATRIX_TYPES
        else:
            yield layer + "ffn_gate_up", (2 * hidden_dim, dim), _MATRIX_TYPES
        yield layer + "ffn_down", (dim, hidden_dim), _MATRIX_TYPES
    yield "final_norm", (1, dim), ("f32",)
    if "output" in names:
        yield "output", (config.vocab_size, dim), _MATRIX_TYPES


def _size(path: Path, allowed: str) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _bad_file(path.name, error.strerror or "nothing", allowed) from None


def _checked_size(directory: Path, entry: FileEntry) -> int:
    """The file's size, which is the recorded one."""
    size = _size(directory / entry.file, f"{entry.bytes} bytes")
    if size != entry.bytes:
        raise _bad_file(entry.file, f"{size} bytes", f"{entry.bytes} bytes")
    return size


def _read(directory: Path, entry: FileEntry, into: NDArray[np.uint8], verify: bool) -> None:
    """Fill `into`, which is as long as the file should be, and check it."""
    try:
        with (directory / entry.file).open("rb") as file:
            n = file.readinto(into.data)
            n += len(file.read(1))
    except OSError as error:
        raise _bad_file(entry.file, error.strerror or "nothing", f"{entry.bytes} bytes") from None
    if n != entry.bytes:
        raise _bad_file(entry.file, f"{n} bytes", f"{entry.bytes} bytes")
    if verify:
        check_file(entry, into.data)


def _bad_file(file: str, found: str, allowed: str) -> FormatError:
    return FormatError(
        "format.model_file",
        f"{file}: found {found}; allowed: {allowed}",
        {"file": file, "found": found, "allowed": allowed},
    )


def _bad_tensor(name: str, found: str, allowed: str) -> FormatError:
    return FormatError(
        "format.manifest",
        f"tensors[{name!r}]: found {found}; allowed: {allowed}",
        {"place": f"tensors[{name!r}]", "found": found, "allowed": allowed},
    )
