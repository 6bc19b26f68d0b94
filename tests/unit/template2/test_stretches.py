"""Stretches: their ids one after the other are the ids of all; each is encoded once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.errors import InputError
from slm2_web.template2.conversation import parse_conversation
from slm2_web.template2.stretches import StretchEncoder, stretches
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from template_corpus import conversations
from unit.template2.conftest import Model

TEXTS = st.sampled_from(
    [
        b"",
        b"\n",
        b"\n\n",
        b" ",
        b"a",
        b"user\n",
        b"\xcc\x81",
        b"<|im_end|>",
        b"<|im_",
        b"end|>",
        b"12",
        b"'",
        b"s",
    ]
)
RUNS = st.lists(
    TEXTS.map(Trusted)
    | TEXTS.map(Untrusted)
    | st.sampled_from([151643, 151644, 151645, 151667]).map(Control),
    max_size=12,
)


class Counting:
    """A tokenizer that counts its calls."""

    def __init__(self, model: Model) -> None:
        self._tokenizer = model.tokenizer
        self.n_texts = 0

    def encode(self, runs: Iterable[Run]) -> list[int]:
        given = list(runs)
        self.n_texts += not all(isinstance(run, Control) for run in given)
        return self._tokenizer.encode(given)


def test_what_lies_between_controls() -> None:
    one, two = Control(1), Control(2)
    a, b, nothing = Trusted(b"a"), Untrusted(b"b"), Untrusted(b"")
    assert list(stretches([a, b, one, two, nothing, b, one, nothing])) == [(a, b), one, two, (b,), one]
    assert list(stretches([])) == []


@given(runs=RUNS)
def test_the_ids_are_those_of_all(runs: list[Run], models: Mapping[str, Model]) -> None:
    tokenizer = models["qwen3"].tokenizer
    assert StretchEncoder(tokenizer).encode(runs) == tokenizer.encode(runs)


def test_each_stretch_is_encoded_once(models: Mapping[str, Model]) -> None:
    model = models["qwen3"]
    counting = Counting(model)
    encoder = StretchEncoder(counting)
    seen = set()
    for case in conversations("qwen3", 50):
        runs = model.template.render(
            parse_conversation(case.raw), add_generation_prompt=case.add_generation_prompt
        )
        seen |= {part for part in stretches(runs) if isinstance(part, tuple)}
        assert encoder.count(runs) == encoder.count(runs) == len(model.tokenizer.encode(runs))
    assert counting.n_texts == len(seen)


@pytest.mark.parametrize("cache_bytes", [0, 100, 500])
def test_what_is_remembered_is_bounded(cache_bytes: int, models: Mapping[str, Model]) -> None:
    model = models["qwen3"]
    counting = Counting(model)
    encoder = StretchEncoder(counting, cache_bytes=cache_bytes)
    parts = [Untrusted(f"text {n}".encode()) for n in range(20)]
    for _ in range(2):
        for part in parts:
            assert encoder.encode([part]) == model.tokenizer.encode([part])
    n_texts = counting.n_texts
    assert 20 < n_texts <= 40
    encoder.encode(parts[-1:])
    assert (counting.n_texts > n_texts) == (cache_bytes == 0)


@pytest.mark.parametrize(
    "runs",
    [
        [Trusted(b"a"), Control(151644), Untrusted(b"b"), Untrusted(b"c\xff")],
        [Untrusted(b"\xc3"), Untrusted(b"\xa9")],
        [Control(151644), Trusted(b"a"), Control(5)],
    ],
)
def test_errors_are_those_of_all(runs: list[Run], models: Mapping[str, Model]) -> None:
    tokenizer = models["qwen3"].tokenizer
    with pytest.raises(InputError) as expected:
        tokenizer.encode(runs)
    with pytest.raises(InputError) as error:
        StretchEncoder(tokenizer).encode(runs)
    assert error.value.as_json() == expected.value.as_json()
