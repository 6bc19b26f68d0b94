"""The parity suite's own model: a tiny Qwen3 of random weights, the same bytes wherever it is made.

Architecture, template, split rule, normalizer and added tokens are Qwen3's. The vocabulary's merges are
learnt from the sentences below; the weights are counters that have gone through splitmix64, written as
blocks: no float is computed on the way but RoPE's frequencies, which weights.py rounds correctly. What it
says means nothing. It is there to be computed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slm2_web.compile import weights
from slm2_web.compile.dfa import PATTERNS
from slm2_web.compile.install import PUBLISHED
from slm2_web.compile.models import ModelSpec
from slm2_web.compile.pack import Facts, write_model
from slm2_web.compile.quantize import Bytes
from slm2_web.compile.tokenizer_json import compile_tokenizer_json
from slm2_web.compile.vocabulary import byte_alphabet
from slm2_web.compile.weights import Naming, plan_network
from slm2_web.manifest import BLOCK, PLANE_BYTES, FileEntry, Manifest, ModelConfig, TemplateSpec

NAME: Final = "parity-qwen3"
SEED: Final = 1
N_MERGES: Final = 700
CONFIG: Final = {
    "architecture": "qwen3",
    "dim": 128,
    "hidden_dim": 256,
    "n_layers": 3,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 64,
    "norm_eps": 1e-6,
    "max_seq_len": 512,
}
ROPE_THETA: Final = 1e6
# Rows of the embedding beyond the tokens: padding, as the publisher's has.
PADDING_ROWS: Final = 8
# What becomes of the matrices: all block types have their turn.
TYPES: Final = {"embed": "q8_0", "attn_q": "q4_1", "attn_k": "q4_1", "attn_v": "q4_1", "attn_out": "q8_0",
                "ffn_gate": "q4_0", "ffn_up": "q4_0", "ffn_down": "q4_1"}  # fmt: skip
SENTENCES: Final = (
    "the quick brown fox jumps over the lazy dog and then the dog sleeps in the sun",
    "Hello, world! What is the answer to this question? It's 42, isn't it? We'll see. I'm not sure.",
    "a token is a sequence of bytes and a sequence of tokens is a text that the model reads and writes",
    "def f(x):\n    return x + 1\n\nclass Thing:\n    def __init__(self, name):\n        self.name = name\n",
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2, 3]}, "type": "object"}',
    "Der schnelle braune Fuchs springt über den faulen Hund, und dann schläft der Hund in der Sonne.",
    "Le vif renard brun saute par-dessus le chien paresseux, et puis le chien dort au soleil. Où est-il né?",
    "Быстрая коричневая лиса прыгает через ленивую собаку, затем собака спит на солнце.",
    "速い茶色の狐がのろまな犬を飛び越え、それから犬は日なたで眠ります。日本の首都は東京です。",
    "敏捷的棕色狐狸跳过懒狗。然后狗在太阳下睡觉。你好。世界。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘고 개는 햇볕에서 잠을 잔다.",
    "الثعلب البني السريع يقفز فوق الكلب الكسول ثم ينام الكلب في الشمس.",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है और फिर कुत्ता धूप में सोता है।",
    "השועל החום המהיר קופץ מעל הכלב העצלן ואז הכלב ישן בשמש.",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ",
    "\U0001f44d\U0001f3fd \U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    " \u2028\u00a0   \t\t\n\n\r\n....!!!???---===",
)  # fmt: skip

_NAMING: Final = Naming({key: key + "." + "{}" for key in weights.SAFETENSORS.names}, weights.SAFETENSORS.bad)


def make_parity_model(out: Path) -> Manifest:
    """The packed model, written to the directory `out` (replaced if it exists)."""
    added = _added_tokens()
    tokenizer = compile_tokenizer_json(tokenizer_json(added))
    n_tokens = 256 + N_MERGES + len(added)
    config = ModelConfig(**{**CONFIG, "vocab_size": n_tokens + PADDING_ROWS})  # type: ignore[arg-type]
    tensors = {tensor.name: tensor for tensor in _tensors(config)}
    plan = plan_network(tensors, config, ROPE_THETA, _NAMING, interleaved=False)
    spec = ModelSpec(NAME, "Parity suite's tiny Qwen3", "Apache-2.0", NAME, "", {})
    recipe = json.dumps([CONFIG, SEED, N_MERGES, SENTENCES], sort_keys=True).encode("utf-8")
    source = FileEntry("parity_model.py", len(recipe), hashlib.sha256(recipe).hexdigest())
    ids = {token["content"]: 256 + N_MERGES + i for i, token in enumerate(added)}
    eos_ids = (ids["<|im_end|>"], ids["<|endoftext|>"])
    defaults = {"temperature": 0.0, "max_tokens": 64}
    facts = Facts(spec, source, config, TemplateSpec("qwen3", None), eos_ids, defaults)
    return write_model(out, facts, tokenizer, plan)


def tokenizer_json(added: Sequence[dict[str, Any]]) -> bytes:
    """The vocabulary in the publisher's format, whose split, normalizer and added tokens it has."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {
        "type": "Split",
        "pattern": {"Regex": PATTERNS["qwen2"]},
        "behavior": "Isolated",
        "invert": False,
    }
    alphabet = _alphabet()
    merges = learn_merges(SENTENCES, N_MERGES)
    tokens = [*alphabet, *(a + b for a, b in merges)]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": len(tokens) + i,
                    "content": token["content"],
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": token["special"],
                }
                for i, token in enumerate(added)
            ],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": byte_level,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": [list(pair) for pair in merges],
            },
        },
        ensure_ascii=False,
    ).encode("utf-8")


def learn_merges(sentences: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Byte-pair encoding's merges: the commonest pair within words first, of equals the first in order.

    Words end before a blank; that the split cuts them otherwise only leaves some merges unused.
    """
    alphabet = _alphabet()
    words = Counter(word for sentence in sentences for word in sentence.replace(" ", "\0 ").split("\0"))
    pieces = [([alphabet[byte] for byte in word.encode("utf-8")], n) for word, n in sorted(words.items())]
    merges: list[tuple[str, str]] = []
    known = set(alphabet)
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for piece, n in pieces:
            for pair in pairwise(piece):
                if pair[0] + pair[1] not in known:  # one token, one merge
                    pairs[pair] += n
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        known.add(best[0] + best[1])
        pieces = [(_merged(piece, best), n) for piece, n in pieces]
    return merges


def _alphabet() -> list[str]:
    """How each byte is spelled."""
    spelled = {byte: char for char, byte in byte_alphabet().items()}
    return [spelled[byte] for byte in range(256)]


def _merged(piece: list[str], pair: tuple[str, str]) -> list[str]:
    result: list[str] = []
    at = 0
    while at < len(piece):
        if tuple(piece[at : at + 2]) == pair:
            result.append(pair[0] + pair[1])
            at += 2
        else:
            result.append(piece[at])
            at += 1
    return result


def _added_tokens() -> list[dict[str, Any]]:
    """Qwen3's, in the order of their ids."""
    config = json.loads((PUBLISHED / "qwen3-0.6b" / "tokenizer_config.json").read_text("utf-8"))
    decoder: dict[str, dict[str, Any]] = config["added_tokens_decoder"]
    return [decoder[key] for key in sorted(decoder, key=int)]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A SourceTensor whose rows are made when they are read."""

    name: str
    type: str
    shape: tuple[int, int]
    make: Callable[[int, int], Bytes]

    def read_rows(self, first: int, count: int) -> Bytes:
        """See SourceTensor."""
        return self.make(first, count)


def _tensors(config: ModelConfig) -> list[_Tensor]:
    """All tensors, by the names of `_NAMING`."""
    q_rows, kv_rows = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    dim, hidden_dim, head_dim = config.dim, config.hidden_dim, config.head_dim
    layer = {
        "attn_norm": (1, dim),
        "attn_q": (q_rows, dim),
        "attn_k": (kv_rows, dim),
        "attn_v": (kv_rows, dim),
        "q_norm": (1, head_dim),
        "k_norm": (1, head_dim),
        "attn_out": (dim, q_rows),
        "ffn_norm": (1, dim),
        "ffn_gate": (hidden_dim, dim),
        "ffn_up": (hidden_dim, dim),
        "ffn_down": (dim, hidden_dim),
    }
    shapes = [("embed", 0, (config.vocab_size, dim))]
    shapes += [(key, i, shape) for i in range(config.n_layers) for key, shape in layer.items()]
    shapes.append(("final_norm", 0, (1, dim)))
    return [_tensor(key, i, shape, number) for number, (key, i, shape) in enumerate(shapes)]


def _tensor(key: str, layer: int, shape: tuple[int, int], number: int) -> _Tensor:
    kind = TYPES.get(key, "f32")

    def norm(first: int, count: int) -> Bytes:
        """Weights from 0.5 to 1.5, in steps of 2^-8."""
        values = (_words(number, 0, shape[1]) >> np.uint64(56)).astype("<f4")
        data: Bytes = (values / np.float32(256) + np.float32(0.5)).view(np.uint8).reshape(1, -1)
        return data

    def blocks(first: int, count: int) -> Bytes:
        sizes = PLANE_BYTES[kind]
        n_blocks = shape[0] * shape[1] // BLOCK
        words = sizes["quants"] // 8
        quants = _words(number, 0, n_blocks * words).astype("<u8").view(np.uint8).reshape(n_blocks, -1)
        pick = _words(number, 1, n_blocks)
        # A scale of 1 to 2 times a power of two that keeps rows of 128 to 256 columns near 1: its ten bits of
        # mantissa are random. Of q4_1 the least value lies near the middle of the quants.
        exponent = {"q8_0": 5, "q4_0": 9, "q4_1": 9}[kind]
        d = ((pick & np.uint64(1023)) | np.uint64(exponent << 10)).astype("<u2")
        scales = [d]
        if kind == "q4_1":
            # -8 d, with another last bit now and then.
            scales.append(
                (d + np.uint16((3 << 10) | 0x8000)).astype("<u2") ^ (pick >> np.uint64(63)).astype("<u2")
            )
        head = np.stack(scales, axis=1).view(np.uint8).reshape(n_blocks, -1)
        rows = np.concatenate([head, quants], axis=1).reshape(shape[0], -1)
        return np.ascontiguousarray(rows[first : first + count])

    return _Tensor(_NAMING.theirs(key, layer), kind, shape, norm if kind == "f32" else blocks)


def _words(tensor: int, stream: int, count: int) -> NDArray[np.uint64]:
    """u64[count]: splitmix64's finaliser of counters of their own for each tensor."""
    base = (SEED << 48) + (tensor << 32) + (stream << 31)
    z = (np.arange(count, dtype=np.uint64) + np.uint64(base)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)
