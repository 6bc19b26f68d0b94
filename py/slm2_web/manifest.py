"""manifest.json of a packed model: what the directory holds, each file with its size and sha256.

    {"format": "slm2-model", "version": 1, "name", "title", "license",
     "source":     {"file", "bytes", "sha256"},
     "config":     {"architecture", "dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "head_dim",
                    "vocab_size", "norm_eps", "max_seq_len"},
     "tokenizer":  {"file", "bytes", "sha256"},
     "template":   {"family", "default_system", "program"?},
     "generation": {"eos_ids", "defaults"},
     "weights":    {"bytes", "shards": [{"file", "bytes", "sha256"}]} or null,
     "tensors":    {NAME: {"type", "shape": [rows, cols], "planes": {"quants"?, "scales"?, "values"?}}}}

The weights are one address space of `weights.bytes` bytes; the shards are its consecutive slices. A
tensor's planes are byte offsets into it, each a multiple of PLANE_ALIGNMENT_BYTES. null and no tensors:
the weights could not be had when the model was compiled; its text can be worked with, its network not.

The template's `program` is there where its `family` is "compiled" and nowhere else: plain data, which
template2/bounded/program.py reads and checks.

    f32    values: f32[rows * cols]
    q8_0   quants: i8[rows * cols]                          scales: f16[rows * cols / 32]
    q4_0   quants: u8[rows * cols / 2]                      scales: f16[rows * cols / 32]
    q4_1   quants: u8[rows * cols / 2]                      scales: (f16 d, f16 m)[rows * cols / 32]

A block is 32 consecutive columns. In a 4-bit block byte j holds element j in its low nibble and element
j + 16 in its high one. Values: q8_0 `d * q`, q4_0 `d * (q - 8)`, q4_1 `d * q + m`. All little-endian.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal, cast

from slm2_web.errors import FormatError
from slm2_web.strictjson import Checks, NotJson, loads, show

FORMAT = "slm2-model"
VERSION = 1
BLOCK = 32
PLANE_ALIGNMENT_BYTES = 256
MAX_SHARD_BYTES = 32 << 20
MAX_MANIFEST_BYTES = 4 << 20
COMPILED = "compiled"

TensorType = Literal["f32", "q8_0", "q4_0", "q4_1"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a family of networks has besides what all have: further tensors of a layer, and what they do."""

    qkv_bias: bool = False  # `layers.N.qkv_bias` is added to q, k and v
    head_norm: bool = False  # `layers.N.qk_norm`: RMSNorm of each head of q and k, before RoPE

    def __post_init__(self) -> None:
        # One kernel does what there is to do before RoPE; none does both, since no known network asks for it.
        assert not (self.qkv_bias and self.head_norm)


# All are decoders of RMSNorm, RoPE on halves of a head, grouped-query attention and SwiGLU.
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(),
    "qwen2": Architecture(qkv_bias=True),
    "qwen3": Architecture(head_norm=True),
}

# Bytes of each plane per block of 32 values.
PLANE_BYTES: Mapping[str, Mapping[str, int]] = {
    "f32": {"values": 128},
    "q8_0": {"quants": 32, "scales": 2},
    "q4_0": {"quants": 16, "scales": 2},
    "q4_1": {"quants": 16, "scales": 4},
}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the directory."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Dimensions of the network, under the names of CONVENTIONS."""

    architecture: str
    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    max_seq_len: int

    @property
    def network(self) -> Architecture:
        """What the architecture has besides what all have."""
        return ARCHITECTURES[self.architecture]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: `shape` is (rows, cols); `planes` maps a plane's name to its byte offset."""

    type: TensorType
    shape: tuple[int, int]
    planes: Mapping[str, int]

    def plane_bytes(self, plane: str) -> int:
        """Size of a plane in bytes."""
        rows, cols = self.shape
        return rows * cols * PLANE_BYTES[self.type][plane] // BLOCK


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """Which template family frames the messages, and its parameters; a compiled template's program."""

    family: str
    default_system: str | None
    program: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checked manifest."""

    name: str
    title: str
    license: str
    source: FileEntry
    config: ModelConfig
    tokenizer: FileEntry
    template: TemplateSpec
    eos_ids: tuple[int, ...]
    defaults: Mapping[str, Any]
    weights_bytes: int
    shards: tuple[FileEntry, ...]  # none: compiled without its weights
    tensors: Mapping[str, TensorEntry]


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in `data`.

    Raises: FormatError `format.manifest` with the place, what was found and what is allowed.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise _bad("manifest", f"{len(data)} bytes", f"at most {MAX_MANIFEST_BYTES}")
    try:
        value = loads(data, max_bytes=MAX_MANIFEST_BYTES)
    except NotJson as error:
        raise _bad("manifest", str(error), "UTF-8 JSON without duplicate keys") from None
    root = _JSON.any_object(value, "manifest")
    if root.get("format") != FORMAT or root.get("version") != VERSION or root["version"] is True:
        found = f"{show(root.get('format'))} version {show(root.get('version'))}"
        raise _bad("manifest.format", found, f"{FORMAT!r} version {VERSION}")
    config = _config(_JSON.any_object(root.get("config"), "config"))
    weights_bytes, shards = _weights(root)
    generation = _JSON.any_object(root.get("generation"), "generation")
    eos = _JSON.array(generation.get("eos_ids"), "generation.eos_ids", 1, 64)
    tokenizer = _file(root.get("tokenizer"), "tokenizer", 64 << 20)
    if tokenizer.file in {shard.file for shard in shards}:
        raise _bad("tokenizer.file", show(tokenizer.file), "a file that is no weight shard")
    return Manifest(
        name=_JSON.text(root.get("name"), "name", 1, 200),
        title=_JSON.text(root.get("title"), "title", 1, 200),
        license=_JSON.text(root.get("license"), "license", 1, 200),
        source=_file(root.get("source"), "source", 1 << 40),
        config=config,
        tokenizer=tokenizer,
        template=_template(_JSON.any_object(root.get("template"), "template")),
        eos_ids=tuple(_JSON.integer(i, "generation.eos_ids", 0, config.vocab_size - 1) for i in eos),
        defaults=_JSON.any_object(generation.get("defaults"), "generation.defaults"),
        weights_bytes=weights_bytes,
        shards=shards,
        tensors=_tensors(root.get("tensors"), weights_bytes),
    )


def manifest_bytes(manifest: Manifest) -> bytes:
    """manifest.json: what `parse_manifest` reads back; the same bytes for the same manifest."""
    shards = [asdict(shard) for shard in manifest.shards]
    root = {
        "format": FORMAT,
        "version": VERSION,
        "name": manifest.name,
        "title": manifest.title,
        "license": manifest.license,
        "source": asdict(manifest.source),
        "config": asdict(manifest.config),
        "tokenizer": asdict(manifest.tokenizer),
        "template": {
            key: value
            for key, value in asdict(manifest.template).items()
            if key != "program" or value is not None
        },
        "generation": {"eos_ids": list(manifest.eos_ids), "defaults": dict(manifest.defaults)},
        "weights": {"bytes": manifest.weights_bytes, "shards": shards} if shards else None,
        "tensors": {
            name: {"type": tensor.type, "shape": list(tensor.shape), "planes": dict(tensor.planes)}
            for name, tensor in manifest.tensors.items()
        },
    }
    return (json.dumps(root, indent=1, allow_nan=False) + "\n").encode("ascii")


def _config(raw: dict[str, Any]) -> ModelConfig:
    def number(key: str, high: int) -> int:
        return _JSON.integer(raw.get(key), f"config.{key}", 1, high)

    architecture = raw.get("architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise _bad("config.architecture", show(architecture), " | ".join(ARCHITECTURES))
    eps = raw.get("norm_eps")
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise _bad("config.norm_eps", show(eps), "a number between 0 and 1")
    config = ModelConfig(
        architecture=architecture,
        dim=number("dim", 1 << 16),
        hidden_dim=number("hidden_dim", 1 << 18),
        n_layers=number("n_layers", 1024),
        n_heads=number("n_heads", 1024),
        n_kv_heads=number("n_kv_heads", 1024),
        head_dim=number("head_dim", 1024),
        vocab_size=number("vocab_size", 1 << 22),
        norm_eps=eps,
        max_seq_len=number("max_seq_len", 1 << 20),
    )
    for key in ("dim", "hidden_dim", "head_dim"):
        if getattr(config, key) % BLOCK:
            raise _bad(f"config.{key}", str(getattr(config, key)), f"a multiple of {BLOCK}")
    if config.n_heads % config.n_kv_heads:
        raise _bad("config.n_heads", str(config.n_heads), f"a multiple of n_kv_heads {config.n_kv_heads}")
    return config


def _template(raw: dict[str, Any]) -> TemplateSpec:
    family = _JSON.text(raw.get("family"), "template.family", 1, 100)
    default_system = raw.get("default_system")
    if default_system is not None:
        default_system = _JSON.text(default_system, "template.default_system", 1, 1 << 16)
    program = raw.get("program")
    if family == COMPILED:
        program = _JSON.any_object(program, "template.program")
    elif program is not None:
        raise _bad("template.program", show(program), f"none, since the family is not {COMPILED!r}")
    return TemplateSpec(family, default_system, program)


def _weights(root: dict[str, Any]) -> tuple[int, tuple[FileEntry, ...]]:
    """(bytes, shards); (0, none) where the manifest says in so many words that there are no weights."""
    if "weights" in root and root["weights"] is None:
        return 0, ()
    raw = _JSON.any_object(root.get("weights"), "weights")
    weights_bytes = _JSON.integer(raw.get("bytes"), "weights.bytes", 1, 1 << 40)
    return weights_bytes, _shards(raw.get("shards"), weights_bytes)


def _shards(raw: object, weights_bytes: int) -> tuple[FileEntry, ...]:
    files = _JSON.array(raw, "weights.shards", 1, 4096)
    shards = tuple(_file(s, f"weights.shards[{i}]", MAX_SHARD_BYTES) for i, s in enumerate(files))
    total = sum(s.bytes for s in shards)
    if total != weights_bytes:
        raise _bad("weights.shards", f"{total} bytes in all", f"{weights_bytes}")
    if len({s.file for s in shards}) != len(shards):
        raise _bad("weights.shards", "a file named twice", "each file once")
    return shards


def _tensors(raw: object, weights_bytes: int) -> Mapping[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    extents: list[tuple[int, int, str]] = []
    for name, value in _JSON.any_object(raw, "tensors").items():
        place = f"tensors[{show(name)}]"
        entry = _JSON.any_object(value, place)
        kind = entry.get("type")
        if not isinstance(kind, str) or kind not in PLANE_BYTES:
            raise _bad(f"{place}.type", show(kind), " | ".join(PLANE_BYTES))
        shape = entry.get("shape")
        if not isinstance(shape, list) or len(shape) != 2:
            raise _bad(f"{place}.shape", show(shape), "[rows, cols]")
        rows = _JSON.integer(shape[0], f"{place}.shape[0]", 1, 1 << 22)
        cols = _JSON.integer(shape[1], f"{place}.shape[1]", 1, 1 << 20)
        if kind != "f32" and cols % BLOCK:
            raise _bad(f"{place}.shape[1]", str(cols), f"a multiple of {BLOCK}")
        planes = _JSON.any_object(entry.get("planes"), f"{place}.planes")
        if set(planes) != set(PLANE_BYTES[kind]):
            raise _bad(f"{place}.planes", show(sorted(planes)), " and ".join(PLANE_BYTES[kind]))
        tensor = TensorEntry(cast(TensorType, kind), (rows, cols), planes)
        for plane, offset in planes.items():
            size = tensor.plane_bytes(plane)
            _JSON.integer(offset, f"{place}.planes.{plane}", 0, weights_bytes - size)
            if offset % PLANE_ALIGNMENT_BYTES:
                raise _bad(f"{place}.planes.{plane}", str(offset), f"a multiple of {PLANE_ALIGNMENT_BYTES}")
            extents.append((offset, offset + size, f"{place}.planes.{plane}"))
        tensors[name] = tensor
    extents.sort()
    for (_, end, first), (start, _, second) in pairwise(extents):
        if start < end:
            raise _bad(second, f"offset {start}", f"at least {end}, the end of {first}")
    return tensors


def _file(raw: object, place: str, max_bytes: int) -> FileEntry:
    entry = _JSON.any_object(raw, place)
    name = _JSON.text(entry.get("file"), f"{place}.file", 1, 200)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise _bad(f"{place}.file", show(name), "a plain file name")
    size = _JSON.integer(entry.get("bytes"), f"{place}.bytes", 1, max_bytes)
    return FileEntry(name, size, _JSON.sha256(entry.get("sha256"), f"{place}.sha256"))


def _bad(place: str, found: str, allowed: str) -> FormatError:
    return FormatError(
        "format.manifest",
        f"{place}: found {found}; allowed: {allowed}",
        {"place": place, "found": found, "allowed": allowed},
    )


_JSON = Checks(_bad)
