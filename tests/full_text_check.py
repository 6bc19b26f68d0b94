"""The long form of the comparison with `tokenizers`: every scalar, and many generated strings; no unit test.

    PYTHONPATH=py:tests python tests/full_text_check.py TOKENIZER_JSON [COUNT]      a model of tokenizer.json
    PYTHONPATH=py:tests python tests/full_text_check.py GGUF [COUNT]                a model of GGUF

Prints how many strings were compared and how many differ; the exit status is 1 if any does. docs/tokenizer.md
has the results. Characters on which we differ by decision (text_oracles.is_comparable) are left out for
SmolLM2's GGUF.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from slm2_web.compile.tokenizer import compile_gguf_tokenizer
from slm2_web.compile.tokenizer_json import compile_tokenizer_json
from slm2_web.tokenizer2.runs import Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from text_oracles import (
    any_text,
    bpe_oracle,
    fuzz_texts,
    gguf_metadata,
    is_comparable,
    json_oracle,
    prose_and_code,
    smuggling_texts,
    token_texts,
)
from tiny_bpe import as_gguf

CONTEXTS = ("{}", "a{}", "{}\u0301 ", "x {}{}b '{}s  {}")
_AT_ONCE = 20_000


def main(path: Path, count: int) -> int:
    """The number of differences."""
    if path.suffix == ".json":
        data = json.loads(path.read_bytes())
        tokenizer = Tokenizer.from_bytes(compile_tokenizer_json(path.read_bytes()))
        text_oracle, trusted_oracle = json_oracle(data, added=False), json_oracle(data, added=True)
        accept: Callable[[str], bool] = any_text
    else:
        metadata = gguf_metadata(path)
        tokenizer = Tokenizer.from_bytes(compile_gguf_tokenizer(as_gguf(metadata)))
        text_oracle, trusted_oracle = bpe_oracle(metadata, added=False), bpe_oracle(metadata, added=True)
        accept = is_comparable
    markers = [
        tokenizer.token_bytes(i).decode() for i in range(tokenizer.n_tokens) if tokenizer.is_control(i)
    ]
    chars = [c for c in map(chr, (*range(0xD800), *range(0xE000, 0x110000))) if accept(c)]
    n_different = 0
    for context in CONTEXTS:
        texts = (context.replace("{}", char) for char in chars)
        n_different += compare(f"every scalar in {context!r}", texts, tokenizer, text_oracle, Untrusted)
    fuzz = fuzz_texts(1, count, token_texts(tokenizer), accept)
    n_different += compare("generated", fuzz, tokenizer, text_oracle, Untrusted)
    n_different += compare("prose and code", prose_and_code(), tokenizer, text_oracle, Untrusted)
    smuggling = smuggling_texts(2, count, markers)
    n_different += compare("markers, untrusted", smuggling, tokenizer, text_oracle, Untrusted)
    smuggling = smuggling_texts(3, count, markers)
    n_different += compare("markers, trusted", smuggling, tokenizer, trusted_oracle, Trusted)
    return n_different


def compare(
    name: str, texts: Iterable[str], tokenizer: Tokenizer, oracle: Any, kind: type[Trusted | Untrusted]
) -> int:
    """How many of `texts` have other ids than the oracle's."""
    n_texts = n_different = 0
    for some in _batches(texts):
        for text, expected in zip(some, oracle.encode_batch(some, add_special_tokens=False), strict=True):
            n_texts += 1
            ids = tokenizer.encode([kind(text.encode())])
            if ids != expected.ids:
                n_different += 1
                if n_different <= 5:
                    print(f"  {text!a}: {ids}, oracle {expected.ids}")
    print(f"{name}: {n_texts} strings, {n_different} different", flush=True)
    return n_different


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(texts)
    while some := list(islice(iterator, _AT_ONCE)):
        yield some


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200_000) > 0)
