"""Random models as Hugging Face directories, for tests and benchmarks: tiny, or of a real model's full shape.

    tiny = make_tiny_hf(tmp_path / "tiny", "qwen3", seed=1)
    manifest = pack_hf(tiny.files, tmp_path / "packed", tiny.spec, compile_tokenizer=tiny.compile_tokenizer)

    PYTHONPATH=py:tests python tests/tiny_safetensors.py DIR [--files N] [--pack OUT] [--quant TYPE]
                                                         [--tokenizer FILE]
        a random model of Qwen3-0.6B's full shape in DIR (1.5 GB, in N safetensors files), and packed as OUT,
        with the tiny vocabulary or that of a tokenizer.json; prints what quantising lost and the most memory
        that it all took

The file is written by hand, so that it is independent of our reader; the same arguments give the same
bytes. Values are normal, of variance 1 / cols, rounded to the file's type; norms lie about 1, biases
about 0. `tiny.weights` has what the file holds, by the file's names, as float32.

The vocabulary is that of tiny_gguf.py: `compile_tokenizer` takes no notice of tokenizer.json's text.
"""

from __future__ import annotations

import argparse
import json
import resource
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from slm2_web.compile.gguf import parse_gguf
from slm2_web.compile.hfconfig import CONFIG, GENERATION_CONFIG
from slm2_web.compile.models import ModelSpec
from slm2_web.compile.pack_hf import (
    DEFAULT_QUANTIZATION,
    QUANTIZATIONS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    files_in,
    pack_hf,
)
from slm2_web.compile.tokenizer import compile_gguf_tokenizer
from slm2_web.compile.tokenizer_json import compile_tokenizer_json
from slm2_web.compile.weight_files import INDEX, WEIGHTS
from slm2_web.compile.weights import SAFETENSORS
from slm2_web.manifest import ARCHITECTURES
from tiny_gguf import CHAT_TEMPLATE, CONTROL_TOKENS, tiny_vocabulary, write_gguf

Floats = NDArray[np.float32]
CLASS_NAMES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
PIECE_BYTES = 1 << 20
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

TINY: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
# What one family has that the others have not; head_dim is apart from hidden_size / heads in qwen3 alone.
OF_FAMILY: Mapping[str, Mapping[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False, "head_dim": 32},
    "qwen2": {"use_sliding_window": False, "sliding_window": 128, "max_window_layers": 2, "hidden_size": 128},
    "qwen3": {
        "attention_bias": False,
        "head_dim": 64,
        "rope_theta": 1000000,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
    },
}
# Qwen3-0.6B: its config.json at the pinned revision.
QWEN3_06B: Mapping[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "max_window_layers": 28,
}
GENERATION = {
    "bos_token_id": 0,
    "do_sample": True,
    "eos_token_id": [2, 0],
    "pad_token_id": 0,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "transformers_version": "4.51.0",
}


@dataclass(frozen=True)
class TinyHf:
    """A directory that `make_tiny_hf` wrote."""

    directory: Path
    spec: ModelSpec
    config: Mapping[str, Any]
    n_tokens: int
    weights: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, Path]:
        """Its files by name, as `pack_hf` takes them."""
        return files_in(self.directory)

    def compile_tokenizer(self, tokenizer_json: bytes) -> bytes:
        """The tiny vocabulary's tokenizer.slm2tok."""
        return tiny_tokenizer(self.directory, self.n_tokens)


def make_tiny_hf(
    directory: Path,
    architecture: str,
    *,
    seed: int = 0,
    dtype: str = "BF16",
    config: Mapping[str, Any] = {},
    generation: Mapping[str, Any] | None = GENERATION,
    tensors: Mapping[str, NDArray[Any] | None] = {},
    keep_copy: bool = False,
    keep_weights: bool = True,
) -> TinyHf:
    """Write a random model of the architecture to `directory`.

    dtype        F32, F16 or BF16, of every tensor
    config       fields of config.json to set, or to leave out (`...`; None is written as null)
    generation   generation_config.json, or None for none
    tensors      tensors to add or replace by the file's names, or None to leave one out
    keep_copy    with tied embeddings, write lm_head.weight all the same, as Qwen3-0.6B's publisher does
    """
    merged = {
        "architectures": [CLASS_NAMES[architecture]],
        "model_type": architecture,
        "torch_dtype": "bfloat16",
        **TINY,
        **OF_FAMILY[architecture],
        **config,
    }
    merged = {key: value for key, value in merged.items() if value is not ...}
    directory.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Floats] = {}
    made = _all_tensors(architecture, merged, seed, dtype, keep_copy)
    shapes = {name: shape for name, shape, _ in _layout(architecture, merged, keep_copy)}
    for name, replacement in tensors.items():
        shapes.pop(name, None)
        if replacement is not None:
            shapes[name] = replacement.shape

    def chunks() -> Iterator[bytes]:
        """The tensors' bytes, in the order of `shapes`."""
        for name, parts in made:
            for values in parts:
                stored, exact = as_dtype(values, dtype)
                if keep_weights and name not in tensors:
                    kept[name] = np.concatenate([kept[name], exact]) if name in kept else exact
                if name not in tensors:
                    yield stored
        for name, replacement in tensors.items():
            if replacement is not None:
                stored, kept[name] = as_dtype(replacement, dtype)
                yield stored

    write_safetensors(directory / WEIGHTS, shapes, dtype, chunks())
    kept = {name: values.reshape(shapes[name]) for name, values in kept.items()}
    _write_json(directory / CONFIG, merged)
    if generation is not None:
        _write_json(directory / GENERATION_CONFIG, generation)
    _write_json(directory / TOKENIZER, {"a": "stand-in"})
    _write_json(directory / TOKENIZER_CONFIG, {"chat_template": CHAT_TEMPLATE})
    spec = ModelSpec(
        f"tiny-{architecture}", f"Tiny {architecture}", "CC0-1.0", WEIGHTS, "", {"max_tokens": 16}
    )
    return TinyHf(directory, spec, merged, min(merged["vocab_size"] - 8, 312), kept)


def _layout(
    architecture: str, config: Mapping[str, Any], keep_copy: bool
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """(name, shape, kind: matrix, norm, bias or copy) of every tensor, in the publisher's order or nearly."""
    network = ARCHITECTURES[architecture]
    dim, hidden, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or dim // heads
    q_rows, kv_rows = heads * head_dim, config["num_key_value_heads"] * head_dim
    vocab_size = config["vocab_size"]
    if not config["tie_word_embeddings"]:
        yield SAFETENSORS.theirs("output"), (vocab_size, dim), "matrix"
    elif keep_copy:
        yield SAFETENSORS.theirs("output"), (vocab_size, dim), "copy"
    yield SAFETENSORS.theirs("embed"), (vocab_size, dim), "matrix"
    for i in range(config["num_hidden_layers"]):
        layer: list[tuple[str, tuple[int, ...], str]] = [
            ("attn_norm", (dim,), "norm"),
            ("attn_q", (q_rows, dim), "matrix"),
            ("attn_k", (kv_rows, dim), "matrix"),
            ("attn_v", (kv_rows, dim), "matrix"),
            ("attn_out", (dim, q_rows), "matrix"),
            ("ffn_norm", (dim,), "norm"),
            ("ffn_gate", (hidden, dim), "matrix"),
            ("ffn_up", (hidden, dim), "matrix"),
            ("ffn_down", (dim, hidden), "matrix"),
        ]
        if network.qkv_bias:
            layer += [
                ("q_bias", (q_rows,), "bias"),
                ("k_bias", (kv_rows,), "bias"),
                ("v_bias", (kv_rows,), "bias"),
            ]
        if network.head_norm:
            layer += [("q_norm", (head_dim,), "norm"), ("k_norm", (head_dim,), "norm")]
        for key, shape, kind in layer:
            yield SAFETENSORS.theirs(key, i), shape, kind
    yield SAFETENSORS.theirs("final_norm"), (dim,), "norm"


def _all_tensors(
    architecture: str, config: Mapping[str, Any], seed: int, dtype: str, keep_copy: bool
) -> Iterator[tuple[str, Iterator[Floats]]]:
    """(name, its values a few rows at a time) of every tensor; a copy has the embedding's seed."""
    for i, (name, shape, kind) in enumerate(_layout(architecture, config, keep_copy)):
        # The embedding comes right after its copy.
        yield name, _random(np.random.default_rng([seed, i + (kind == "copy")]), shape, kind)


def _random(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Iterator[Floats]:
    if kind in ("norm", "bias"):
        yield rng.standard_normal(shape, np.float32) / np.float32(4) + np.float32(kind == "norm")
        return
    rows, cols = shape
    for first in range(0, rows, 4096):
        values = rng.standard_normal((min(4096, rows - first), cols), np.float32)
        yield values * np.float32(cols**-0.5)


def as_dtype(values: NDArray[Any], dtype: str) -> tuple[bytes, Floats]:
    """(the bytes of `values` in a type, what they then are)."""
    values = values.astype(np.float32)
    if dtype == "BF16":
        bits = values.view(np.uint32)
        half = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)  # to nearest even
        return half.tobytes(), (half.astype(np.uint32) << 16).view(np.float32)
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype("<f2").tobytes(), values.astype("<f2").astype(np.float32)
    return values.astype("<f4").tobytes(), values


def write_safetensors(
    path: Path, shapes: Mapping[str, Sequence[int]], dtype: str, chunks: Iterator[bytes]
) -> None:
    """Write tensors one after another; `chunks` are their bytes in the order of `shapes`."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape, dtype=np.int64)) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    _write_file(path, header, chunks)


def _write_file(path: Path, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for chunk in chunks:
            file.write(chunk)


def split_weights(directory: Path, n_files: int) -> dict[str, Any]:
    """Cut a model's safetensors file into several, as save_pretrained names them; the index, written too.

    The tensors are dealt to the files in turn, so that a layer's lie in different ones.
    """
    with (directory / WEIGHTS).open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        whole = json.loads(file.read(length))
        whole.pop("__metadata__")
        weight_map: dict[str, str] = {}
        for i in range(n_files):
            name = f"model-{i + 1:05}-of-{n_files:05}.safetensors"
            header, parts, end = {}, [], 0
            for tensor, entry in list(whole.items())[i::n_files]:
                begin, stop = entry["data_offsets"]
                header[tensor] = {**entry, "data_offsets": [end, end + stop - begin]}
                parts.append((8 + length + begin, stop - begin))
                end += stop - begin
                weight_map[tensor] = name
            _write_file(directory / name, header, (piece for part in parts for piece in _pieces(file, *part)))
        total = max(entry["data_offsets"][1] for entry in whole.values())
    (directory / WEIGHTS).unlink()
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(directory / INDEX, index)
    return index


def _pieces(file: BinaryIO, start: int, n_bytes: int) -> Iterator[bytes]:
    file.seek(start)
    for done in range(0, n_bytes, PIECE_BYTES):
        yield file.read(min(PIECE_BYTES, n_bytes - done))


def tiny_tokenizer(directory: Path, n_tokens: int) -> bytes:
    """tokenizer.slm2tok of tiny_gguf.py's vocabulary, by way of a GGUF file beside the model."""
    tokens, merges = tiny_vocabulary(n_tokens)
    path = directory / ".vocabulary.gguf"
    types = [3] * len(CONTROL_TOKENS) + [1] * (len(tokens) - len(CONTROL_TOKENS))
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
    }
    write_gguf(path, keys)
    data = path.read_bytes()
    path.unlink()
    return compile_gguf_tokenizer(parse_gguf(data))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2), "utf-8")


def make_full_shape(directory: Path, seed: int = 0) -> TinyHf:
    """A random model of Qwen3-0.6B's full shape, its file laid out as the publisher's: 1.5 GB in BF16."""
    return make_tiny_hf(directory, "qwen3", seed=seed, config=QWEN3_06B, keep_copy=True, keep_weights=False)


def main() -> None:
    """Write a model of the full shape; with --pack, pack it too."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, help="where to write the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=int, default=1, help="cut the weights into so many files")
    parser.add_argument("--pack", type=Path, metavar="OUT", help="pack it, with the tiny vocabulary, as OUT")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="pack it with this tokenizer.json")
    parser.add_argument("--quant", default=DEFAULT_QUANTIZATION, choices=QUANTIZATIONS)
    options = parser.parse_args()
    made = make_full_shape(options.directory, options.seed)
    if options.files > 1:
        split_weights(options.directory, options.files)
    if options.pack:
        spec = replace(made.spec, name=options.pack.name, title="Qwen3 0.6B, random")
        quantization = QUANTIZATIONS[options.quant]
        file = options.tokenizer
        tokenizer = compile_tokenizer_json(file.read_bytes()) if file else made.compile_tokenizer(b"")
        pack_hf(
            made.files,
            options.pack,
            spec,
            quantization=quantization,
            compile_tokenizer=lambda _: tokenizer,
            report=lambda loss: print(f"{loss.name}: {loss.type}, {100 * loss.relative_error:.2f} %"),
        )
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
