"""A tiny random Qwen3 that thinks: the publisher's vocabulary and template, and few words to say.

Only the rows of WORDS and of the markers in the output matrix are not zero, so a reply is made of them. To
the question HELLO, with the parameters PARAMS, it thinks THOUGHT, answers ANSWER, and ends.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

import slm2_web.compile
from slm2_web.compile.pack_hf import TOKENIZER_CONFIG, pack_hf
from slm2_web.tokenizer2.runs import Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_safetensors import make_tiny_hf

WORDS = (" the", " sea", " is", " wide", " and", " deep", "\n", ".")
MARKERS = (b"<think>", b"</think>", b"<|im_end|>")
HELLO = "Hello"
PARAMS = {"temperature": 4, "top_k": 4, "seed": 538, "max_tokens": 40}
THOUGHT, ANSWER = " and", " the wide and"
VOCAB_SIZE = 151_936


def make_thinking_model(folder: Path, tokenizer_file: bytes) -> Path:
    """The packed model. tokenizer_file: Qwen3's tokenizer.slm2tok."""
    tokenizer = Tokenizer.from_bytes(tokenizer_file)
    said = [token_id for word in WORDS for token_id in tokenizer.encode([Untrusted(word.encode())])]
    said += [tokenizer.control_id(marker) for marker in MARKERS]
    output = np.zeros((VOCAB_SIZE, 64), np.float32)
    output[said] = np.random.default_rng(1).normal(0, 2, (len(said), 64)).astype(np.float32)
    tiny = make_tiny_hf(
        folder / "hf",
        "qwen3",
        seed=3,
        config={"vocab_size": VOCAB_SIZE, "max_position_embeddings": 512, "tie_word_embeddings": False},
        generation={"eos_token_id": [151645, 151643], "bos_token_id": 151643, "pad_token_id": 151643},
        tensors={"lm_head.weight": output},
        keep_weights=False,
    )
    published = Path(slm2_web.compile.__file__).parent / "published" / "qwen3-0.6b"
    shutil.copy(published / TOKENIZER_CONFIG, folder / "hf" / TOKENIZER_CONFIG)
    pack_hf(tiny.files, folder / "tiny-qwen3", tiny.spec, compile_tokenizer=lambda _: tokenizer_file)
    return folder / "tiny-qwen3"
