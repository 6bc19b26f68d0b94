"""Planted faults: each is found, and the stage that it lies in is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planted import compiled_tokenizer, exchange_two_ranks, letters_end_early
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel
from slm2_web.parity.subject import Subject
from slm2_web.sampling2 import filters, sampler
from slm2_web.sampling2.rng import draw_bits
from slm2_web.template2 import machine
from slm2_web.template2.machine import template_for
from slm2_web.template2.spec import Event, Step
from slm2_web.tokenizer2 import utf8
from slm2_web.tokenizer2.tokenizer import Tokenizer

Faulty = Callable[[Subject], dict[str, int]]


def with_tokenizer(subject: Subject, data: bytes) -> Subject:
    """The subject with another tokenizer file."""
    tokenizer = Tokenizer.from_bytes(data)
    template = template_for(subject.manifest.template, tokenizer)
    return Subject(subject.manifest, subject.artifacts, tokenizer, template, subject.executor)


def again(subject: Subject) -> Subject:
    """The same, with nothing made yet."""
    return Subject(subject.manifest, subject.artifacts, subject.tokenizer, subject.template, subject.executor)


def test_no_fault(subject: Subject, faulty: Faulty) -> None:
    assert faulty(with_tokenizer(subject, compiled_tokenizer(lambda data: None))) == {}


def test_one_merge_rank(subject: Subject, faulty: Faulty) -> None:
    found = faulty(with_tokenizer(subject, compiled_tokenizer(exchange_two_ranks)))
    assert "tokenizer" in found
    assert found.keys() <= {"tokenizer", "template", "prompt", "chat"}


def test_one_unicode_class(subject: Subject, faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    with letters_end_early(monkeypatch):
        data = compiled_tokenizer(lambda data: None)
    found = faulty(with_tokenizer(subject, data))
    assert "tokenizer" in found
    assert found.keys() <= {"tokenizer", "template"}


def test_one_template_branch(subject: Subject, faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    family = machine.FAMILIES["qwen3"]
    key = ("TOOL_TURN", Event.TOOL)  # a second result of a tool
    step = family.steps[key]
    changed = replace(family, steps={**family.steps, key: Step(step.writes[1:], step.then)})
    monkeypatch.setattr(machine, "FAMILIES", {**machine.FAMILIES, "qwen3": changed})
    found = faulty(again(subject))
    assert found.keys() == {"template"}


def test_a_tie_at_top_k(subject: Subject, faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list(sampler.PROFILES["transformers"])
    steps[1] = sampler._filter(filters.keep_largest, "top_k")
    monkeypatch.setattr(sampler, "PROFILES", {**sampler.PROFILES, "transformers": tuple(steps)})
    found = faulty(again(subject))
    assert found.keys() == {"sampling"}


def test_the_counter_of_random_bits(
    subject: Subject, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off_by_one(seed: int, position: int) -> int:
        return draw_bits(seed, (position + 1) % 2**64)

    monkeypatch.setattr(sampler, "draw_bits", off_by_one)
    found = faulty(again(subject))
    assert "sampling" in found
    assert found.keys() <= {"sampling", "forward", "chat"}


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_one_weight_bit(subject: Subject, faulty: Faulty, parity_model: Path, place: float) -> None:
    model = PackedModel.open(parity_model)
    weights = model.weights.copy()
    entry = model.manifest.tensors["layers.1.attn_out"]
    at = entry.planes["quants"] + int(place * entry.plane_bytes("quants"))
    weights[at] ^= np.uint8(1)
    executor = ReferenceExecutor(PackedModel(model.manifest, model.tokenizer_bytes, weights))
    found = faulty(replace(again(subject), executor=executor))
    assert "forward" in found
    assert found.keys() <= {"forward", "chat"}


def test_the_bytes_held_back(subject: Subject, faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    low, high, due = utf8._NEXT[0xE2]
    monkeypatch.setitem(utf8._NEXT, 0xE2, (low, high, due - 1))
    found = faulty(again(subject))
    assert "stream" in found
    assert found.keys() <= {"stream", "chat"}


def test_a_fault_is_shown_on_a_small_input(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `parity` does with a difference: from the first mark to an input that a person can read."""
    from slm2_web.parity import suite
    from slm2_web.parity.difference import difference

    async def expected(made: Any) -> Any:
        monkeypatch.undo()
        return await suite.output(subject, "stream", made)

    async def found(made: Any) -> Any:
        low, high, due = 0x80, 0xBF, 2
        monkeypatch.setitem(utf8._NEXT, 0xE2, (low, high, due - 1))
        return await suite.output(subject, "stream", made)

    async def first() -> Any:
        for index in range(120):
            made = suite.STAGES["stream"].make(subject, index)
            if small := await difference("stream", index, made, expected, found):
                return small
        return None

    small = asyncio.run(first())
    assert small is not None
    text = bytes.fromhex("".join(token for token in small.input["tokens"] if "<" not in token))
    assert 0xE2 in text
    assert len(small.input["tokens"]) <= 4
    assert small.input["stops"] == []
    assert small.expected != small.found
    assert set(small.as_json()) == {"id", "input", "expected", "found"}
