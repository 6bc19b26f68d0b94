"""The table of codes: its classes, its page in the docs, its use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from slm2_web import errors
from slm2_web.errors import CODES, Slm2Error

ROOT = Path(__file__).parents[2]
SOURCES = [
    *(p for p in (ROOT / "py").rglob("*.py") if p.name != "errors.py"),
    *(p for folder in ("web", "worker") for p in (ROOT / folder).rglob("*.js") if p.name != "protocol.js"),
]
CLASSES = [
    c
    for c in vars(errors).values()
    if isinstance(c, type) and issubclass(c, Slm2Error) and c is not Slm2Error
]


@pytest.mark.parametrize("code", CODES)
def test_exactly_one_class_carries_a_code(code: str) -> None:
    assert sum(code.startswith(c.prefixes) for c in CLASSES) == 1


def test_an_error_is_json_and_reads_as_code_and_message() -> None:
    error = errors.InputError("input.budget", "the prompt has 9 tokens; allowed: 8", {"prompt_tokens": 9})
    assert json.loads(json.dumps(error.as_json())) == {
        "code": "input.budget",
        "message": "the prompt has 9 tokens; allowed: 8",
        "detail": {"prompt_tokens": 9},
    }
    assert str(error) == "input.budget: the prompt has 9 tokens; allowed: 8"


def test_a_code_of_another_class_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        errors.InputError("device.lost", "")
    with pytest.raises(AssertionError):
        errors.InputError("input.nothing", "")


def test_docs_list_the_codes_with_meaning_and_remedy() -> None:
    """docs/errors.md's table is CODES, line for line."""
    rows = re.findall(
        r"^\| `([a-z_.]+)` \| (.*) \| (.*) \|$", (ROOT / "docs" / "errors.md").read_text(), re.M
    )
    assert rows == [(code, meaning, remedy) for code, (meaning, remedy) in CODES.items()]


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_used(code: str) -> None:
    name = re.compile(rf"[\"'`]{re.escape(code)}[\"'`]")
    used = [p for p in SOURCES if name.search(p.read_text(encoding="utf-8"))]
    assert used, code
