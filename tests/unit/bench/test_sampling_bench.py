"""The sampling bench: a real job in CPython, the same results each time, and targets from figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slm2_web.bench import sampling, sampling_job
from slm2_web.bench.report import Report
from slm2_web.compile.assets import Fetcher

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def report() -> Report:
    options = sampling.Options(repeats=2, has_pyodide=False)
    fetcher = Fetcher.from_environment(ROOT)
    return sampling.bench(None, ROOT, fetcher, options, command="the command", say=lambda _: None)


def test_every_case_is_measured_and_what_is_not_says_why(report: Report) -> None:
    found = {(figure.subject, figure.input) for figure in report.figures}
    assert found == {(s, name) for s in (sampling.PYODIDE, sampling.CPYTHON) for name in sampling_job.CASES}
    for figure in report.figures:
        if figure.subject == sampling.CPYTHON:
            assert figure.value is not None
            assert 0 < min(figure.samples) <= figure.value <= max(figure.samples)
            assert len(figure.samples) == 2
        else:
            assert (figure.value, figure.note) == (None, "no browser's Python was asked for")
    assert {target.met for target in report.targets} == {None}
    assert report.versions["numpy, CPython"] == np.__version__


def test_the_job_s_results_are_the_same_again_and_differ_by_case() -> None:
    first, again = sampling_job.run(1), sampling_job.run(1)
    digests = {name: found["sha256"] for name, found in first["cases"].items()}
    assert digests == {name: found["sha256"] for name, found in again["cases"].items()}
    # Of two cases that keep the same, the profile and the order of steps make no difference to this row.
    assert len(set(digests.values())) >= len(digests) - 2


def answer(ms: float, digest: str) -> dict[str, Any]:
    cases = {name: {"ms": [ms, ms, 9 * ms], "sha256": digest} for name in sampling_job.CASES}
    return {"python": "3", "numpy": "2", "cases": cases}


def test_results_are_compared_and_targets_are_met_or_not() -> None:
    reference = answer(1, "a")
    figures = sampling._figures(sampling.PYODIDE, answer(30, "a"), reference)
    assert {figure.same for figure in figures} == {True}
    targets = {
        figure.input: sampling._target(figure) for figure in figures if figure.input in sampling.TARGETS
    }
    assert [targets[name].met for name in sampling.TARGETS] == [False, True, True]
    assert targets["publisher"].found == "30.00 ms"
    wrong = sampling._figures(sampling.PYODIDE, answer(1, "b"), reference)
    assert {figure.same for figure in wrong} == {False}
