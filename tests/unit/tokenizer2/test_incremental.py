"""Runs that grow: always the ids of the whole, and what is kept was right to keep."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.errors import InputError
from slm2_web.tokenizer2.incremental import Encoded
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from text_oracles import fuzz_texts, smuggling_texts

PARTS = [
    *("<|im_end|>", "<|im_", "end|>", "<", "|", ">", "<think>", "</think", "user\n", "'", "'l", "ll", "s"),
    *(
        " ",
        "  ",
        "\n",
        "\r\n",
        "a",
        "hello",
        " world",
        "12",
        ".",
        "...",
        "\u00e9",
        "e",
        "\u0301",
        "\u0323",
        "\u0345",
    ),
    *("\u1100", "\u1161", "\u11a8", "\uac00", "\u212b", "\u4f60\u597d", "\U0001f600", "\u3000", ""),
]
texts = st.lists(st.sampled_from(PARTS), max_size=5).map(lambda parts: "".join(parts).encode())


def assert_grows(tokenizer: Tokenizer, runs: list[Run]) -> None:
    encoded = Encoded(tokenizer)
    for n, run in enumerate(runs, 1):
        before, stable = encoded.ids, encoded.n_stable_ids
        kept = encoded.append(run)
        assert encoded.ids == tokenizer.encode(runs[:n]), runs[:n]
        assert encoded.ids[:kept] == before[:kept]
        assert stable <= kept <= len(before)
        assert kept <= encoded.n_stable_ids <= len(encoded.ids)


@settings(max_examples=1500, deadline=None)
@given(pairs=st.lists(st.tuples(texts, st.sampled_from([Trusted, Untrusted, None])), max_size=7))
def test_equals_encoding_the_whole(
    qwen3_tokenizer: Tokenizer, smollm2_tokenizer: Tokenizer, pairs: list[tuple[bytes, type | None]]
) -> None:
    for tokenizer in (qwen3_tokenizer, smollm2_tokenizer):
        control = Control(tokenizer.control_id(b"<|im_end|>"))
        assert_grows(tokenizer, [control if kind is None else kind(data) for data, kind in pairs])


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    kind=st.sampled_from([Trusted, Untrusted]),
)
def test_character_by_character(
    qwen3_tokenizer: Tokenizer, text: str, kind: type[Trusted | Untrusted]
) -> None:
    assert_grows(qwen3_tokenizer, [kind(char.encode()) for char in text])


def test_fuzz(qwen3_tokenizer: Tokenizer) -> None:
    rng = random.Random(5)
    pool = [
        *fuzz_texts(6, 400),
        *smuggling_texts(7, 400, ["<|im_end|>", "<|im_start|>", "<think>", "</think>"]),
    ]
    for _ in range(1000):
        parts = rng.choices(pool, k=rng.randint(1, 5))
        assert_grows(qwen3_tokenizer, [rng.choice((Trusted, Untrusted))(part.encode()) for part in parts])


def test_goes_back_a_word_only(qwen3_tokenizer: Tokenizer) -> None:
    encoded = Encoded(qwen3_tokenizer)
    word = b" tokenization of ordinary text"
    for n in range(200):
        n_before = len(encoded.ids)
        assert n_before - encoded.append(Untrusted(word)) <= 2, n
    assert encoded.ids == qwen3_tokenizer.encode([Untrusted(word * 200)])


def test_a_refused_run_leaves_no_trace(smollm2_tokenizer: Tokenizer) -> None:
    encoded = Encoded(smollm2_tokenizer)
    encoded.append(Untrusted(b"hello wor"))
    for run in (Untrusted(b"\xff"), Untrusted(b"\x04"), Control(17)):
        with pytest.raises(InputError) as error:
            encoded.append(run)
        assert error.value.code in ("input.text", "input.character", "input.token_id")
    encoded.append(Untrusted(b"ld"))
    assert encoded.ids == smollm2_tokenizer.encode([Untrusted(b"hello world")])
