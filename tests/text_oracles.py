"""Oracles and generators for text: PyPI `tokenizers` built from a GGUF's own tables, and hostile strings."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from slm2_web.tokenizer2.runs import Control, Run, Trusted
from slm2_web.tokenizer2.tokenizer import Tokenizer

VECTORS = Path(__file__).with_name("unit") / "vectors"
CONTROL_TYPE = 3

# Numbers of Unicode 17: `tokenizers`' Digits knows them (from its Rust), its pattern (Unicode 16) does not.
# We use Unicode 16 for both. test_tokenizer.py asserts this difference; the generators below avoid it.
NEW_NUMBERS = frozenset([*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)])
# Characters with a byte that SmolLM2's vocabulary lacks: we refuse them, `tokenizers` drops the byte.
LACKING = frozenset([0x04, 0x06, 0x13, 0x14, 0x16, 0x1D])
LACKING_PLANES = range(0x40000, 0xC0000)


def gguf_metadata(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file, as PyPI `gguf` reads it."""
    return {key: field.contents() for key, field in GGUFReader(path).fields.items()}


def bpe_oracle(metadata: Mapping[str, Any], *, added: bool) -> Any:
    """`tokenizers` with the vocabulary, merges and pre-tokenizer of `metadata`.

    added: whether it knows the control tokens. Without them it is the oracle for untrusted text.
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    oracle = HfTokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)]
    isolates = metadata["tokenizer.ggml.pre"] == "smollm"
    oracle.pre_tokenizer = pre_tokenizers.Sequence([*(digits if isolates else []), byte_level])
    oracle.decoder = decoders.ByteLevel()
    if added:
        oracle.add_special_tokens(
            [AddedToken(marker, special=True, normalized=False) for marker in control_markers(metadata)]
        )
    return oracle


def json_oracle(data: Mapping[str, Any], *, added: bool) -> Any:
    """`tokenizers` of a tokenizer.json. added: whether it knows the added tokens."""
    return HfTokenizer.from_str(json.dumps({**data, "added_tokens": data["added_tokens"] if added else []}))


def control_markers(metadata: Mapping[str, Any]) -> dict[str, int]:
    """The control tokens' texts and ids."""
    pairs = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    return {token: i for i, (token, kind) in enumerate(pairs) if kind == CONTROL_TYPE}


def encode_by_trust(runs: Iterable[Run], text_oracle: Any, markers: Mapping[str, int]) -> list[int]:
    """The ids of `runs` by the rule of trust, from `tokenizers` without added tokens and `re`."""
    longest_first = "|".join(map(re.escape, sorted(markers, key=len, reverse=True)))
    # Trusted stretches, untrusted text and control ids become one sequence of ids and plain text.
    spans: list[int | str] = []
    stretch = ""
    for run in [*runs, Control(-1)]:
        if isinstance(run, Trusted):
            stretch += run.data.decode()
        elif isinstance(run, Control) or run.data:
            parts = re.split(f"({longest_first})", stretch)
            spans += [markers.get(part, part) if n % 2 else part for n, part in enumerate(parts)]
            spans.append(run.id if isinstance(run, Control) else run.data.decode())
            stretch = ""
    ids: list[int] = []
    text = ""
    for span in spans:
        if isinstance(span, str):
            text += span
        else:
            ids += [*text_oracle.encode(text, add_special_tokens=False).ids, span]
            text = ""
    return ids[:-1]


def is_comparable(text: str) -> bool:
    """Whether `text` has no character on which we differ from `tokenizers` by decision."""
    return not any(ord(c) in NEW_NUMBERS or ord(c) in LACKING or ord(c) in LACKING_PLANES for c in text)


_SPACES = ["\u0020", "  ", "\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0"] + [
    chr(c)
    for c in (0x1680, 0x180E, 0x2003, 0x200B, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF, 0x1C, 0x1F)
]
_ENDINGS = ("s", "t", "re", "ve", "m", "ll", "d")
_CONTRACTIONS = [q + w for q in ("'", "''", " '", "\u2019") for w in _ENDINGS] + [
    "'S", "'LL", "'\u017f", "'l", "'r", "'v", "'", "'sd", "'ret", "can't", "I'll've", "1's", "'1",
]  # fmt: skip
_NUMBERS = [*"0123456789", *"²½Ⅳ٣७๑５𝟙፲〇㊿", "12", "007", "1 2", "3.14", "1,000"]
_LETTERS = [
    "a",
    "the",
    "I",
    "Word",
    "ß",
    "é",
    "e\u0301",
    "ж",
    "Ω",
    "你好",
    "カナ",
    "한글",
    "नि",
    "שָ",
    "عر",
    "ǅ",
    "ʰ",
    "\U0001d518",
]
_OTHERS = [
    *'!?.,;:-_/\\()[]{}<>|@#$%^&*+=~`"',
    "...",
    "—",
    "€",
    "\u0300",
    "\u20dd",
    "👩\u200d👧",
    "🇩🇪",
    "\x00",
    "\x7f",
]
_POOLS: Sequence[Sequence[str]] = (_SPACES, _CONTRACTIONS, _NUMBERS, _LETTERS, _OTHERS)


def token_texts(tokenizer: Tokenizer) -> list[str]:
    """The tokens that are UTF-8 by themselves, as text."""
    texts = []
    for token_id in range(tokenizer.n_tokens):
        try:
            texts.append(tokenizer.token_bytes(token_id).decode())
        except UnicodeDecodeError:
            continue
    return texts


def any_text(_: str) -> bool:
    """For `fuzz_texts`: there is nothing on which we differ."""
    return True


def fuzz_texts(
    seed: int, count: int, tokens: Sequence[str] = (), accept: Callable[[str], bool] = is_comparable
) -> Iterator[str]:
    """`count` strings: mixtures of classes, random scalars, and texts of `tokens`."""
    rng = random.Random(seed)
    made = 0
    while made < count:
        pools = rng.sample(_POOLS, rng.randint(1, 3))
        parts = []
        for _ in range(rng.randint(0, 16)):
            kind = rng.random()
            if tokens and kind < 0.3:
                parts.append(rng.choice(tokens))
            elif kind < 0.4:
                parts.append(_scalar(rng))
            else:
                parts.append(rng.choice(rng.choice(pools)))
        text = "".join(parts)
        if accept(text):
            made += 1
            yield text


def smuggling_texts(seed: int, count: int, markers: Sequence[str]) -> Iterator[str]:
    """`count` strings of whole, cut, nested and doubled markers and what surrounds them in a prompt."""
    rng = random.Random(seed)
    glue = [
        "",
        " ",
        "\n",
        "|",
        "<",
        ">",
        "<|",
        "|>",
        "user\n",
        "assistant\n",
        "system\n",
        "a",
        "\u200b",
        "\x00",
        "é",
    ]
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 4)):
            marker = rng.choice(markers)
            kind = rng.randrange(4)
            cut = rng.randint(0, len(marker))
            if kind == 0:
                parts.append(marker)
            elif kind == 1:
                parts.append(marker[:cut] + rng.choice(markers) + marker[cut:])
            elif kind == 2:
                parts.append(marker[:cut])
            else:
                parts.append(marker[cut:])
            parts.append(rng.choice(glue))
        yield "".join(parts)


def prose_and_code() -> list[str]:
    """Lines in many scripts, and the source files of this package."""
    package = Path(__file__).parent.parent / "py" / "slm2_web"
    sources = [path.read_text("utf-8") for path in sorted(package.rglob("*.py"))]
    return [*(VECTORS / "scripts.txt").read_text("utf-8").splitlines(), *sources]


def _scalar(rng: random.Random) -> str:
    top = rng.choice((0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000))
    code_point = rng.randrange(top - 0x800) if top > 0x10000 else rng.randrange(min(top, 0xD800))
    return chr(code_point + 0x800 if code_point >= 0xD800 else code_point)
