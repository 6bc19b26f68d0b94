"""Pack a model file: read, check, compile its tokenizer, write the packed model directory.

What comes out is docs/formats.md's directory: manifest.json, tokenizer.slm2tok and the weight shards. It
is written beside its place and moved there when complete. Packing the same file again gives the same bytes.
`pack_gguf` packs a GGUF file; pack_hf.py a Hugging Face directory, and both write by `write_model`.

Every hyper-parameter of the file is either used or refused by name: a key of the architecture that we do
not know could change what the network computes, so it is an error too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from slm2_web.compile import weights
from slm2_web.compile.chat_template import FROM_FILE, Framing, choose
from slm2_web.compile.gguf import GgufFile, bad, read_gguf, unsupported
from slm2_web.compile.models import ModelSpec
from slm2_web.compile.quantize import FLOAT_TYPES
from slm2_web.compile.tokenizer import compile_gguf_tokenizer
from slm2_web.compile.weights import Loss, PlannedTensor, lay_out, plan_network, planes_of
from slm2_web.errors import FormatError
from slm2_web.manifest import (
    ARCHITECTURES,
    BLOCK,
    MAX_SHARD_BYTES,
    FileEntry,
    Manifest,
    ModelConfig,
    TemplateSpec,
    manifest_bytes,
    parse_manifest,
)
from slm2_web.packed import MANIFEST_FILE, check_tensors
from slm2_web.strictjson import show
from slm2_web.tokenizer2.tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.slm2tok"
QUANTIZATION_VERSION = 2
DEFAULT_ROPE_THETA = 10_000.0
# Architectures whose GGUF files hold the rows of q and k for a RoPE that rotates neighbours.
INTERLEAVED = frozenset({"llama"})

# Keys of an architecture, `llama.` or the like before them, that `_config` reads; and keys that may be
# there as long as they say what we do anyway.
_USED_KEYS = frozenset(
    {
        "vocab_size",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
    }
)
_FIXED_ARCHITECTURE_KEYS: Mapping[str, Any] = {
    "rope.scaling.type": "none",
    "expert_count": 0,
    "expert_used_count": 0,
}
_FIXED_KEYS: Mapping[str, Any] = {
    "general.type": "model",
    "general.quantization_version": QUANTIZATION_VERSION,
    "split.count": 1,
}
# The names under which a template finds the special tokens, and the keys of their ids.
_TOKEN_KEYS: Mapping[str, str] = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """The progress callback of somebody who does not want to know."""


def pack_gguf(
    path: Path, out: Path, spec: ModelSpec, progress: Progress = silent, framing: Framing = FROM_FILE
) -> Manifest:
    """The manifest of the packed model, written to the directory `out` (replaced if it exists).

    `progress(stage, done, total)` is called with the stages `hash` and `weights` (bytes) and `tokenizer`;
    `framing` is what the caller says about the template.

    Raises: FormatError `format.model_file` when the file is not the one that `spec` names, `format.gguf` or
        `format.unsupported` for what the file holds.
    """
    source = source_entry([path], spec, progress)
    with read_gguf(path) as gguf:
        architecture = _architecture(gguf)
        _check_fixed_keys(gguf, architecture)
        config = _config(gguf, architecture)
        eos_ids = _eos_ids(gguf, config.vocab_size)
        plan = plan_network(
            gguf.tensors,
            config,
            _rope_theta(gguf, architecture),
            weights.GGUF,
            interleaved=architecture in INTERLEAVED,
        )
        progress("tokenizer", 0, 1)
        tokenizer = compile_gguf_tokenizer(gguf)
        template = _template(gguf, Tokenizer.from_bytes(tokenizer), framing)
        progress("tokenizer", 1, 1)
        facts = Facts(spec, source, config, template, eos_ids, spec.defaults)
        return write_model(out, facts, tokenizer, plan, progress)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a manifest says besides what writing the files finds out."""

    spec: ModelSpec
    source: FileEntry
    config: ModelConfig
    template: TemplateSpec
    eos_ids: tuple[int, ...]
    defaults: Mapping[str, Any]


def write_model(
    out: Path,
    facts: Facts,
    tokenizer: bytes,
    plan: Sequence[PlannedTensor],
    progress: Progress = silent,
    report: Callable[[Loss], None] = lambda loss: None,
) -> Manifest:
    """The manifest of the packed model, written to `out`: beside its place first, then moved there.

    One tensor is in memory at a time. `report` hears what quantising each matrix lost.
    """
    entries, n_bytes = lay_out(plan)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        directory = Path(temporary) / out.name
        directory.mkdir()
        (directory / TOKENIZER_FILE).write_bytes(tokenizer)
        shards = _Shards(directory)
        for planned in plan:
            offsets = entries[planned.name].planes
            for plane, data in planes_of(planned, report).items():
                shards.write(bytes(offsets[plane] - shards.end))
                shards.write(data.data)
                progress("weights", shards.end, n_bytes)
        assert shards.end == n_bytes, (shards.end, n_bytes)
        manifest = Manifest(
            name=facts.spec.name,
            title=facts.spec.title,
            license=facts.spec.license,
            source=facts.source,
            config=facts.config,
            tokenizer=FileEntry(TOKENIZER_FILE, len(tokenizer), hashlib.sha256(tokenizer).hexdigest()),
            template=facts.template,
            eos_ids=facts.eos_ids,
            defaults=facts.defaults,
            weights_bytes=n_bytes,
            shards=shards.finish(),
            tensors=entries,
        )
        encoded = manifest_bytes(manifest)
        (directory / MANIFEST_FILE).write_bytes(encoded)
        written = parse_manifest(encoded)
        assert written == manifest
        check_tensors(written)
        _replace(directory, out)
    return written


def source_entry(paths: Sequence[Path], spec: ModelSpec, progress: Progress) -> FileEntry:
    """Size and hash of a file, or of several one after another; the hash is what `spec` names, if any."""
    total = sum(path.stat().st_size for path in paths)
    digest = hashlib.sha256()
    done = 0
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
                done += len(chunk)
                progress("hash", done, total)
    found, name = digest.hexdigest(), paths[0].name
    if spec.file_sha256 and found != spec.file_sha256:
        raise FormatError(
            "format.model_file",
            f"{name}: found sha256 {found}; allowed: sha256 {spec.file_sha256}",
            {"file": name, "found": f"sha256 {found}", "allowed": f"sha256 {spec.file_sha256}"},
        )
    return FileEntry(spec.asset.rpartition("/")[2], done, found)


def _architecture(gguf: GgufFile) -> str:
    """The file's architecture, one of ours."""
    key = "general.architecture"
    if key not in gguf.metadata:
        raise bad(f"key {key!r}", "nothing", " | ".join(ARCHITECTURES))
    found = gguf.metadata[key]
    if not isinstance(found, str) or found not in ARCHITECTURES:
        raise unsupported(f"key {key!r}", show(found), " | ".join(ARCHITECTURES))
    return found


def _check_fixed_keys(gguf: GgufFile, architecture: str) -> None:
    """Nothing; an error for a key that asks for what we do not do, or whose meaning we do not know."""
    prefix = architecture + "."
    fixed = {**_FIXED_KEYS, **{prefix + key: value for key, value in _FIXED_ARCHITECTURE_KEYS.items()}}
    for key, allowed in fixed.items():
        found = gguf.metadata.get(key, allowed)
        if type(found) is not type(allowed) or found != allowed:
            raise unsupported(f"key {key!r}", show(found), repr(allowed))
    # GGUF demands the version of the blocks' layout as soon as there is a block.
    blocks = [tensor.name for tensor in gguf.tensors.values() if tensor.type not in FLOAT_TYPES]
    if blocks and "general.quantization_version" not in gguf.metadata:
        raise bad("key 'general.quantization_version'", "nothing", str(QUANTIZATION_VERSION))
    for key in gguf.metadata:
        if key.startswith(prefix) and key.removeprefix(prefix) not in _USED_KEYS and key not in fixed:
            raise unsupported(f"key {key!r}", show(gguf.metadata[key]), f"a {architecture} model without it")


def _config(gguf: GgufFile, architecture: str) -> ModelConfig:
    """The network's dimensions, from the keys of the architecture."""

    def named(key: str) -> str:
        return f"key '{architecture}.{key}'"

    def number(key: str, high: int, default: int | None = None) -> int:
        return gguf.integer(f"{architecture}.{key}", 1, high, default)

    n_tokens = len(gguf.strings("tokenizer.ggml.tokens"))
    dim = number("embedding_length", 1 << 16)
    n_heads = number("attention.head_count", 1024)
    n_kv_heads = number("attention.head_count_kv", 1024, n_heads)
    if n_heads % n_kv_heads:
        raise bad(named("attention.head_count_kv"), str(n_kv_heads), f"a divisor of {n_heads}")
    if dim % n_heads and f"{architecture}.attention.key_length" not in gguf.metadata:
        raise bad(named("attention.head_count"), str(n_heads), f"a divisor of {dim}")
    head_dim = number("attention.key_length", 1024, dim // n_heads)
    for key, default in (("attention.value_length", dim // n_heads), ("rope.dimension_count", head_dim)):
        found = number(key, 1 << 16, default)
        if found != head_dim:
            raise unsupported(named(key), str(found), f"{head_dim}, the head's size")
    vocab_size = number("vocab_size", 1 << 22, n_tokens)
    if vocab_size != n_tokens:
        raise bad("key 'tokenizer.ggml.tokens'", f"{n_tokens} tokens", f"{vocab_size}, the vocab_size")
    norm_eps = gguf.number(f"{architecture}.attention.layer_norm_rms_epsilon")
    if not 0 < norm_eps < 1:
        raise bad(named("attention.layer_norm_rms_epsilon"), str(norm_eps), "a number between 0 and 1")
    config = ModelConfig(
        architecture=architecture,
        dim=dim,
        hidden_dim=number("feed_forward_length", 1 << 18),
        n_layers=number("block_count", 1024),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        norm_eps=norm_eps,
        max_seq_len=number("context_length", 1 << 20),
    )
    for name in ("dim", "hidden_dim", "head_dim"):
        if getattr(config, name) % BLOCK:
            raise unsupported(name, str(getattr(config, name)), f"a multiple of {BLOCK}")
    return config


def _rope_theta(gguf: GgufFile, architecture: str) -> float:
    key = f"{architecture}.rope.freq_base"
    theta = gguf.number(key, DEFAULT_ROPE_THETA)
    if not 1 < theta < 1e30:
        raise bad(f"key {key!r}", str(theta), "a number between 1 and 1e30")
    return theta


def _template(gguf: GgufFile, tokenizer: Tokenizer, framing: Framing) -> TemplateSpec:
    """What frames messages: the file's chat template, or what `framing` and chat_template.py have for it."""
    key = "tokenizer.chat_template"
    text = gguf.string(key) if key in gguf.metadata else None
    variables = {}
    for name, id_key in _TOKEN_KEYS.items():
        if id_key in gguf.metadata:
            token_id = gguf.integer(id_key, 0, tokenizer.n_tokens - 1)
            variables[name] = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
    return choose(f"key {key!r}", text, variables, tokenizer, framing)


def _eos_ids(gguf: GgufFile, vocab_size: int) -> tuple[int, ...]:
    """The ids that end a reply, each once, in the order of the keys."""
    present = [key for key in _EOS_KEYS if key in gguf.metadata] or [_EOS_KEYS[0]]
    return tuple(dict.fromkeys(gguf.integer(key, 0, vocab_size - 1) for key in present))


class _Shards:
    """Writes one address space as consecutive files of at most MAX_SHARD_BYTES, each named by its hash."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._entries: list[FileEntry] = []
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._size = 0
        self.end = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append; a new file begins where the last one is full."""
        view = memoryview(data)
        while view:
            if self._file is None:
                self._file = (self._directory / "shard").open("wb")
                self._digest, self._size = hashlib.sha256(), 0
            piece = view[: MAX_SHARD_BYTES - self._size]
            self._file.write(piece)
            self._digest.update(piece)
            self._size += len(piece)
            self.end += len(piece)
            view = view[len(piece) :]
            if self._size == MAX_SHARD_BYTES:
                self._close()

    def finish(self) -> tuple[FileEntry, ...]:
        """The files, in order."""
        if self._file is not None:
            self._close()
        return tuple(self._entries)

    def _close(self) -> None:
        assert self._file is not None
        self._file.close()
        self._file = None
        sha256 = self._digest.hexdigest()
        name = f"weights-{len(self._entries):02}.{sha256[:8]}.bin"
        (self._directory / "shard").rename(self._directory / name)
        self._entries.append(FileEntry(name, self._size, sha256))


def _replace(directory: Path, out: Path) -> None:
    """Move `directory` to `out`; what was there goes aside first: only a file replaces its like."""
    if out.exists():
        os.rename(out, directory.parent / "replaced")
    os.rename(directory, out)
    with suppress(OSError):
        shutil.rmtree(directory.parent / "replaced")
