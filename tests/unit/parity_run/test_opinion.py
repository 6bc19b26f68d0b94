"""The stage `regex`: its file is CPython's, and `regex` agrees with our split where it can."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from slm2_web.compile.dfa import split_automaton
from slm2_web.compile.parity_model import NAME, make_parity_model
from slm2_web.parity import opinion, suite
from slm2_web.parity.baseline import open_subject
from slm2_web.parity_run import opinion as stage
from slm2_web.tokenizer2.split import Splitter

QUICK = 120


def test_the_file_is_what_cpython_comes_to(tmp_path: Path) -> None:
    make_parity_model(tmp_path / NAME)
    data = json.loads(stage.FILE.read_text("utf-8"))["models"]
    assert set(data) == set(stage.MODELS)
    found = asyncio.run(_part(tmp_path / NAME))
    assert found == data[NAME]
    assert found["vectors"]["full"] * 8 == len(found["marks"]) > 10_000


async def _part(directory: Path) -> dict[str, Any]:
    return await stage.part(await open_subject(directory, "wasm"), stage.MODELS[NAME])


@pytest.mark.parametrize("pattern", opinion.PATTERNS)
def test_regex_agrees_with_our_split(tmp_path: Path, pattern: str) -> None:
    make_parity_model(tmp_path / NAME)
    made = split_automaton(pattern)
    splitter = Splitter(made.start, made.classes, made.goto, made.flags)
    subject = asyncio.run(open_subject(tmp_path / NAME, "wasm"))
    compared = 0
    for index in range(QUICK):
        text = suite.STAGES["tokenizer"].make(subject, index).get("text", "")
        answer = json.loads(opinion.answer(pattern, text))
        if answer is not None:
            compared += 1
            assert [piece.encode() for piece in answer] == splitter.split(text.encode()), text
    assert compared > QUICK // 4


def test_a_text_with_an_unassigned_character_is_not_put_to_it() -> None:
    assert opinion.answer("qwen2", "a\u0378b") == "null"
    assert json.loads(opinion.answer("qwen2", "I'll go 12")) == ["I", "'ll", " go", " ", "1", "2"]
    assert json.loads(opinion.answer("smollm", "I'll go 12")) == ["I", "'ll", " go", " ", "1", "2"]
    with pytest.raises(KeyError):
        opinion.answer("other", "a")
