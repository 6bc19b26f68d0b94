"""Tiny random models as GGUF files, for tests: real vocabulary, real template, a few KB of weights.

    tiny = make_tiny_gguf(tmp_path / "tiny.gguf", seed=1, block="q4_0")
    manifest = pack_gguf(tiny.path, tmp_path / "tiny", tiny.spec)

The file is written by PyPI gguf's GGUFWriter and quantised by its quants module, so that it is independent
of our reader. The same arguments give the same bytes. `tiny.weights` has what a packed model must hold:
the dequantised values under the packed model's unfused names (`layers.0.attn_q`, ...), their rows in
Hugging Face's order; the file itself has q and k rows interleaved as llama.cpp's converter writes them.

The vocabulary is byte-level BPE as SmolLM2's: ids 0..2 are `<|endoftext|>`, `<|im_start|>`, `<|im_end|>`,
then the 256 bytes, then merges learnt from TEXT; pre-tokenizer `smollm`, eos `<|im_end|>`, and SmolLM2's
chat template, so the packer recognises the family.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from slm2_web.compile.models import ModelSpec
from slm2_web.manifest import ARCHITECTURES

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# SmolLM2-135M-Instruct's tokenizer.chat_template, sha256 872be49d...
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = (
    "system user assistant You are a helpful assistant. What is the capital of France? The capital of France "
    "is Paris. Hello there! How can I help you today? I am going to the other side of the street and then "
    "they will be here with their children in the morning, at the station, thinking of nothing in particular."
)
DEFAULTS: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "max_tokens": 16,
}

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TinyGguf:
    """A file that `make_tiny_gguf` wrote: what it holds, and the spec to pack it with."""

    path: Path
    spec: ModelSpec
    weights: Mapping[str, Floats]
    tokens: Sequence[str]
    merges: Sequence[str]


def make_tiny_gguf(
    path: Path,
    *,
    seed: int = 0,
    block: str = "q4_1",
    embed_block: str = "q8_0",
    n_layers: int = 2,
    dim: int = 64,
    n_heads: int = 2,
    n_kv_heads: int = 1,
    hidden_dim: int = 128,
    n_vocab: int = 300,
    max_seq_len: int = 256,
    rope_theta: float = 10_000.0,
    norm_eps: float = 1e-5,
    tied: bool = True,
    architecture: str = "llama",
    head_dim: int | None = None,
    blocks: Mapping[str, str] = {},
    metadata: Mapping[str, Any] = {},
    tensors: Mapping[str, Floats | tuple[NDArray[Any], str] | None] = {},
) -> TinyGguf:
    """Write a random model to `path`.

    block        type of the layers' matrices: q4_0, q4_1, q8_0, or a float type f32, f16, bf16
    embed_block  type of the embedding, and of the output matrix where not `tied`
    blocks       type of single tensors, by GGUF name, over the two above (norms are f32 unless named here)
    architecture llama, qwen2 or qwen3; q and k are interleaved in llama's files only
    head_dim     of a model that names it (key_length), such as qwen3; else dim / n_heads
    n_vocab      at least 259: the control tokens and the bytes
    metadata     keys to set or replace (int: uint32; float: float32; bool, str, list as they are), or to
                 leave out (None)
    tensors      tensors to add or replace by GGUF name: f32 values, (array, type) with an array of values
                 to be quantised, or None to leave it out
    """
    rng = np.random.default_rng(seed)
    network = ARCHITECTURES.get(architecture, ARCHITECTURES["llama"])
    named_heads = {} if head_dim is None else {"key_length": head_dim, "value_length": head_dim}
    head_dim = head_dim or dim // n_heads
    q_rows, kv_rows = n_heads * head_dim, n_kv_heads * head_dim
    weights: dict[str, Floats] = {}
    written: dict[str, tuple[NDArray[Any], str]] = {}

    def add(ours: str, theirs: str, rows: int, cols: int, kind: str, heads: int = 0) -> None:
        values = rng.standard_normal((rows, cols), np.float32) * np.float32(cols**-0.5)
        if rows == 1:
            values = np.float32(1) + values.reshape(-1) / np.float32(4)
        kind = blocks.get(theirs, kind)
        stored = interleaved(values, heads) if heads and architecture == "llama" else values
        written[theirs] = stored, kind
        weights[ours] = stored_values(values, kind).reshape(rows, cols)

    add("embed", "token_embd.weight", n_vocab, dim, embed_block)
    for i in range(n_layers):
        ours, theirs = f"layers.{i}.", f"blk.{i}."
        add(ours + "attn_norm", theirs + "attn_norm.weight", 1, dim, "f32")
        add(ours + "attn_q", theirs + "attn_q.weight", q_rows, dim, block, n_heads)
        add(ours + "attn_k", theirs + "attn_k.weight", kv_rows, dim, block, n_kv_heads)
        add(ours + "attn_v", theirs + "attn_v.weight", kv_rows, dim, block)
        if network.qkv_bias:
            for x, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
                add(ours + f"{x}_bias", theirs + f"attn_{x}.bias", 1, rows, "f32")
        if network.head_norm:
            for x in "qk":
                add(ours + f"{x}_norm", theirs + f"attn_{x}_norm.weight", 1, head_dim, "f32")
        add(ours + "attn_out", theirs + "attn_output.weight", dim, q_rows, block)
        add(ours + "ffn_norm", theirs + "ffn_norm.weight", 1, dim, "f32")
        add(ours + "ffn_gate", theirs + "ffn_gate.weight", hidden_dim, dim, block)
        add(ours + "ffn_up", theirs + "ffn_up.weight", hidden_dim, dim, block)
        add(ours + "ffn_down", theirs + "ffn_down.weight", dim, hidden_dim, block)
    add("final_norm", "output_norm.weight", 1, dim, "f32")
    if not tied:
        add("output", "output.weight", n_vocab, dim, embed_block)
    for name, replacement in tensors.items():
        if replacement is None:
            del written[name]
        else:
            written[name] = replacement if isinstance(replacement, tuple) else (replacement, "f32")

    tokens, merges = tiny_vocabulary(n_vocab)
    keys: dict[str, Any] = {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": "tiny",
        "general.quantization_version": 2,
        f"{architecture}.block_count": n_layers,
        f"{architecture}.context_length": max_seq_len,
        f"{architecture}.embedding_length": dim,
        f"{architecture}.feed_forward_length": hidden_dim,
        f"{architecture}.attention.head_count": n_heads,
        f"{architecture}.attention.head_count_kv": n_kv_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": norm_eps,
        f"{architecture}.rope.freq_base": rope_theta,
        f"{architecture}.rope.dimension_count": head_dim,
        f"{architecture}.vocab_size": n_vocab,
        **{f"{architecture}.attention.{key}": value for key, value in named_heads.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL_TOKENS) + [1] * (len(tokens) - len(CONTROL_TOKENS)),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    } | dict(metadata)
    write_gguf(path, keys, written)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    spec = ModelSpec("tiny", "Tiny", "CC0-1.0", path.name, sha256, DEFAULTS)
    return TinyGguf(path, spec, weights, tokens, merges)


def write_gguf(
    path: Path, keys: Mapping[str, Any], tensors: Mapping[str, tuple[NDArray[Any], str]] = {}
) -> None:
    """Write a GGUF file of these keys (None: left out) and tensors ((values, type): quantised to it).

    A key `general.architecture` names the architecture; it is `llama` where there is none.
    """
    architecture = keys.get("general.architecture", "llama")
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        if value is None or key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
        if key == "general.alignment":
            writer.data_alignment = value
    for name, (values, kind) in tensors.items():
        quantized = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.upper()])
        raw = None if kind in ("f32", "f16") else gguf.GGMLQuantizationType[kind.upper()]
        writer.add_tensor(name, quantized, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored_values(values: NDArray[Any], kind: str) -> Floats:
    """The values that a tensor of this type keeps of `values`, by PyPI gguf."""
    type_id = gguf.GGMLQuantizationType[kind.upper()]
    kept: Floats = gguf.quants.dequantize(gguf.quants.quantize(values, type_id), type_id)
    return kept


def interleaved(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows in Hugging Face's order, as llama.cpp's converter writes them (its `permute`)."""
    head_dim = rows.shape[0] // heads
    return rows.reshape(heads, 2, head_dim // 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def byte_characters() -> dict[int, str]:
    """The character that stands for each byte in a byte-level vocabulary, as GPT-2 assigns them."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def tiny_vocabulary(n_vocab: int) -> tuple[list[str], list[str]]:
    """(tokens, merges): control tokens, bytes, then the merges that BPE learns from TEXT."""
    characters = byte_characters()
    tokens = [*CONTROL_TOKENS, *(characters[byte] for byte in range(256))]
    space = characters[ord(" ")]
    words = Counter(tuple(word) for word in (space + TEXT.replace(" ", " " + space)).split(" "))
    merges: list[str] = []
    while len(tokens) < n_vocab:
        pairs = Counter[tuple[str, str]]()
        for word, n in words.items():
            for pair in pairwise(word):
                pairs[pair] += n
        # The most frequent pair; of equals the first in order of characters. None twice: no merge makes
        # a token that is there already.
        left, right = min(
            (pair for pair in pairs if "".join(pair) not in tokens), key=lambda pair: (-pairs[pair], pair)
        )
        merges.append(f"{left} {right}")
        tokens.append(left + right)
        words = Counter({_merged(word, left, right): n for word, n in words.items()})
    return tokens, merges


def _merged(word: tuple[str, ...], left: str, right: str) -> tuple[str, ...]:
    result: list[str] = []
    for part in word:
        if result and result[-1] == left and part == right:
            result[-1] = left + right
        else:
            result.append(part)
    return tuple(result)
