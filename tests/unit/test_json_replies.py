"""The real model's constrained replies, a few of tests/json_replies.py: all parse and are valid."""

from __future__ import annotations

import asyncio
from pathlib import Path

import jsonschema
import pytest

from json_replies import TASKS, replies
from slm2_web.packed import PackedModel


def test_the_tasks_are_ten_schemas_or_more() -> None:
    for _, schema in TASKS:
        jsonschema.Draft202012Validator.check_schema(schema)
    assert len({repr(schema) for _, schema in TASKS}) >= 10


@pytest.mark.timeout(300)
def test_replies_of_the_real_model_parse_and_are_valid(packed_smollm2: Path) -> None:
    outcome = asyncio.run(replies(PackedModel.open(packed_smollm2), 7, 2))
    print(outcome)
    assert (outcome.n, outcome.valid, outcome.cut, outcome.failures) == (7, 7, 0, [])
    assert len(outcome.first_ms) > 20
