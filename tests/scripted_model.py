"""A tiny Qwen3 that says what it is told: the publisher's vocabulary and template, and replies by heart.

Theory of operation: attention and feed-forward give nothing, so the last token alone decides what comes. The
embedding of the i-th token of the scripts is the i-th unit vector, and the output row of the token that
follows it has that vector too: greedily, each token is followed by its successor, so none may have two.

After the line feed that its prompt ends with, it thinks THOUGHT, says SAID, and calls a tool: CALL. After the
two line feeds of a prompt that asks for no thought, it says ANSWER.
"""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np

import slm2_web.compile
from slm2_web.compile.pack_hf import TOKENIZER_CONFIG, pack_hf
from slm2_web.tokenizer2.runs import Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_safetensors import make_tiny_hf

VOCAB_SIZE = 151_936
WIDTH = 64
N_LAYERS = 2
THOUGHT, SAID, ANSWER = " hm", "I look", "It is wet"
CALL = {"name": "weather", "arguments": '{"days":1.0}'}
# Each text is one token.
_CALL = ('{"', "name", '":"', "weather", '","', "arguments", '":{"', "days", '":', "1", ".", "0", "}}")
SCRIPTS = (
    ("\n", "<think>", THOUGHT, "</think>", "I", " look", "<tool_call>", *_CALL, "</tool_call>", "<|im_end|>"),
    ("\n\n", "It", " is", " wet", "<|im_end|>"),
)


def make_scripted_model(folder: Path, tokenizer_file: bytes) -> Path:
    """The packed model. tokenizer_file: Qwen3's tokenizer.slm2tok."""
    tokenizer = Tokenizer.from_bytes(tokenizer_file)
    embeddings = np.zeros((VOCAB_SIZE, WIDTH), np.float32)
    output = np.zeros((VOCAB_SIZE, WIDTH), np.float32)
    steps = [step for script in SCRIPTS for step in pairwise(_id(tokenizer, text) for text in script)]
    assert len({token_id for token_id, _ in steps}) == len(steps) <= WIDTH
    for i, (token_id, following) in enumerate(steps):
        embeddings[token_id, i] = 1
        output[following, i] = 1
    layers = range(N_LAYERS)
    tiny = make_tiny_hf(
        folder / "hf",
        "qwen3",
        config={
            "vocab_size": VOCAB_SIZE,
            "num_hidden_layers": N_LAYERS,
            "hidden_size": WIDTH,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": False,
        },
        generation={"eos_token_id": [151645, 151643], "bos_token_id": 151643, "pad_token_id": 151643},
        tensors={
            "lm_head.weight": output,
            "model.embed_tokens.weight": embeddings,
            "model.norm.weight": np.ones(WIDTH, np.float32),
            **{
                f"model.layers.{i}.self_attn.o_proj.weight": np.zeros((WIDTH, 256), np.float32)
                for i in layers
            },
            **{f"model.layers.{i}.mlp.down_proj.weight": np.zeros((WIDTH, 128), np.float32) for i in layers},
        },
        keep_weights=False,
    )
    published = Path(slm2_web.compile.__file__).parent / "published" / "qwen3-0.6b"
    shutil.copy(published / TOKENIZER_CONFIG, folder / "hf" / TOKENIZER_CONFIG)
    pack_hf(tiny.files, folder / "tiny-qwen3", tiny.spec, compile_tokenizer=lambda _: tokenizer_file)
    return folder / "tiny-qwen3"


def _id(tokenizer: Tokenizer, text: str) -> int:
    if text.startswith("<"):
        return tokenizer.control_id(text.encode())
    (token_id,) = tokenizer.encode([Untrusted(text.encode())])
    return token_id
