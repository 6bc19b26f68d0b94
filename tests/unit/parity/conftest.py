"""The parity suite's own model, made anew, and the suite run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from slm2_web.compile.parity_model import NAME, make_parity_model
from slm2_web.parity import suite
from slm2_web.parity.baseline import open_subject
from slm2_web.parity.subject import Size, Subject

Marks = Mapping[str, str]


@pytest.fixture(scope="session")
def parity_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed model's directory."""
    out = tmp_path_factory.mktemp("parity") / NAME
    make_parity_model(out)
    return out


@pytest.fixture(scope="session")
def subject(parity_model: Path) -> Subject:
    """The model on the reference executor."""
    return asyncio.run(open_subject(parity_model))


def marks_of(subject: Subject, stages: Mapping[str, Size]) -> dict[str, str]:
    """The marks of some stages, each in a size."""

    async def work() -> dict[str, str]:
        found = {}
        for name, size in stages.items():
            async for event in suite.run(subject, [name], size):
                if isinstance(event, suite.StageResult):
                    found[name] = event.marks
        return found

    return asyncio.run(work())


# Reduced where the rare cases are.
SIZES: Mapping[str, Size] = {
    name: "reduced" if name in ("tokenizer", "template") else "quick" for name in suite.STAGES
}


@pytest.fixture(scope="session")
def good(subject: Subject) -> Marks:
    """The marks without a fault."""
    return marks_of(subject, SIZES)


@pytest.fixture
def faulty(good: Marks) -> Callable[[Subject], dict[str, int]]:
    """The stages that a subject differs in, each with the first record that does."""

    def compare(subject: Subject) -> dict[str, int]:
        found = marks_of(subject, SIZES)
        return {
            name: next(i for i in range(0, len(good[name]), 8) if good[name][i : i + 8] != marks[i : i + 8])
            // 8
            for name, marks in found.items()
            if marks != good[name]
        }

    return compare
