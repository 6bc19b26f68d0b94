"""web/parity-baseline.json: what CPython's reference executor comes to."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from slm2_web.compile.jinja import compile_template
from slm2_web.compile.make_boundaries import TARGET, distances
from slm2_web.errors import InputError
from slm2_web.parity import __main__ as program
from slm2_web.parity import baseline, suite
from slm2_web.parity.template import PROGRAM, SOURCE

KNOWN: dict[str, Any] = json.loads(program.TARGET.read_text("utf-8"))


def test_the_file_is_whole() -> None:
    assert (KNOWN["format"], KNOWN["suite"]) == (baseline.FORMAT, suite.SUITE)
    assert tuple(KNOWN["models"]) == program.MODELS
    for model in KNOWN["models"].values():
        assert list(model["stages"]) == list(suite.STAGES)
        for name, stage in model["stages"].items():
            assert stage["vectors"] == suite.STAGES[name].sizes
            assert len(stage["marks"]) == 8 * stage["vectors"]["full"]


@pytest.mark.parametrize("executor", baseline.EXECUTORS)
def test_the_tiny_model(parity_model: Path, executor: str) -> None:
    found = baseline.run(parity_model, executor, "reduced", list(suite.STAGES), print)
    assert baseline.differences(KNOWN["models"]["parity-qwen3"], found, "reduced") == []


def test_the_default_model(packed_smollm2: Path) -> None:
    found = baseline.run(packed_smollm2, "reference", "quick", list(suite.STAGES), print)
    assert baseline.differences(KNOWN["models"]["smollm2-135m"], found, "quick") == []


def test_a_difference_is_named(parity_model: Path) -> None:
    found = baseline.run(parity_model, "wasm", "quick", ["stream", "sampling"], print)
    known = json.loads(json.dumps(KNOWN["models"]["parity-qwen3"]))
    marks = known["stages"]["stream"]["marks"]
    known["stages"]["stream"]["marks"] = marks[:56] + "!" * 8 + marks[64:]
    known["stages"]["stream"]["digests"]["quick"] = "0" * 64
    assert baseline.differences(known, found, "quick") == ["stream: differs from stream-00007 on"]
    known["artifacts"]["model"] = "another"
    assert len(baseline.differences(known, found, "quick")) == 2


def test_an_executor_that_there_is_not(parity_model: Path) -> None:
    with pytest.raises(InputError, match="executor"):
        asyncio.run(baseline.open_subject(parity_model, "abacus"))


def test_check(parity_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--check", "--size", "quick", "--model", "parity-qwen3", "--stage", "stream"]
    assert program.main([*options, "--models", str(parity_model.parent)]) == 0
    assert capsys.readouterr().out == ""


def test_data_of_the_inputs_is_current() -> None:
    assert TARGET.read_text("utf-8") == distances(), "run python -m slm2_web.compile.make_boundaries"
    made = compile_template(SOURCE.read_text("utf-8"), {}, date=None, place=SOURCE.name)
    assert json.loads(PROGRAM.read_text("utf-8")) == json.loads(json.dumps(made))
