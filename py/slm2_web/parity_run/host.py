"""CPython's side: what every stage is to come to, verdicts by that, the baseline's half of a difference."""

from __future__ import annotations

import asyncio
import json
import platform
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from slm2_web import __version__
from slm2_web.errors import FormatError, InputError, Slm2Error
from slm2_web.parity import baseline as suite_baseline
from slm2_web.parity import suite
from slm2_web.parity.canonical import MARK_DIGITS, Digest, canonical, mark
from slm2_web.parity.certificate import (
    SIZES,
    Cell,
    Difference,
    Expected,
    Failure,
    StageRun,
    verdict_of,
)
from slm2_web.parity.difference import shrink
from slm2_web.parity.subject import Size, Subject
from slm2_web.parity_run import boundary, opinion
from slm2_web.parity_run.cells import absent
from slm2_web.parity_run.drive import Output
from slm2_web.strictjson import show

BASELINE_FILE: Final = "parity-baseline.json"
BOUNDARY_FILE: Final = "parity-boundary.json"
OPINION_FILE: Final = "parity-opinion.json"
CPYTHON: Final = "cpython"
# How long the search for a small input may take: on a model of some size each try is seconds.
SHRINK_S: Final = 120.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageOf:
    """A stage of the whole suite: its name there, its model, its name in the model's part."""

    name: str
    model: str
    stage: str


@dataclass(frozen=True, slots=True)
class Host:
    """The suite's expectations. baseline, cases, opinions: files of web/; models: where packed models lie."""

    baseline: Mapping[str, Any]
    cases: Mapping[str, Any]
    opinions: Mapping[str, Any]
    models: Path

    @classmethod
    def open(cls, web: Path, models: Path) -> Host:
        """Of a checkout. Raises: FormatError `format.unsupported` for the baseline of another suite."""
        found = json.loads((web / BASELINE_FILE).read_text("utf-8"))
        if found.get("suite") != suite.SUITE:
            place = f"{BASELINE_FILE}: suite"
            raise FormatError(
                "format.unsupported",
                f"{place}: found {show(found.get('suite'))}; allowed: {suite.SUITE}",
                {"place": place, "found": show(found.get("suite")), "allowed": str(suite.SUITE)},
            )
        cases, opinions = (
            json.loads((web / name).read_text("utf-8")) for name in (BOUNDARY_FILE, OPINION_FILE)
        )
        return cls(found, cases, opinions, models)

    @property
    def stages(self) -> list[StageOf]:
        """All stages that a model computes, in their order."""
        suffixes = self.suffixes
        return [
            StageOf(stage + suffixes[model], model, stage)
            for model, part in self.baseline["models"].items()
            for stage in part["stages"]
        ]

    @property
    def suffixes(self) -> dict[str, str]:
        """What makes a stage's name one of the whole suite, by model: nothing for the first."""
        models = self.baseline["models"]
        return {model: f".{model.removeprefix('parity-')}" if i else "" for i, model in enumerate(models)}

    @property
    def names(self) -> list[str]:
        """The names of all stages, with those that only a page runs."""
        return [*(stage.name for stage in self.stages), *self.opinion_names, boundary.NAME]

    @property
    def opinion_names(self) -> list[str]:
        """The stages of the second opinion, which a site may lack."""
        return [opinion.NAME + self.suffixes[model] for model in self.opinions["models"]]

    def expected(self, sizes: Sequence[str] = SIZES) -> list[Expected]:
        """What each stage comes to, in these sizes."""
        found = []
        for each in self.stages:
            base = self.baseline["models"][each.model]["stages"][each.stage]
            found += [
                Expected(each.name, size, base["vectors"][size], base["digests"][size]) for size in sizes
            ]
        found += opinion.expected(self.opinions, self.suffixes, tuple(sizes))
        return found + [each for each in boundary.expected(self.cases) if each.size in sizes]

    def judged(self, cell: Cell, output: Output | None = None) -> Cell:
        """The cell with verdicts by this baseline.

        Of a difference it has what CPython makes of the input; where `output` tells what the cell's page
        makes of others, the input is made small.
        """
        known = {(each.name, each.size): each for each in self.expected()}
        stages = tuple(self._judged(each, known.get((each.name, each.size)), output) for each in cell.stages)
        return replace(cell, stages=stages)

    def _judged(self, run: StageRun, expected: Expected | None, output: Output | None) -> StageRun:
        verdict = verdict_of(run.digest, run.vectors, expected)
        failure = run.failure
        if verdict == "failed" and failure is None:
            failure = Failure("input.params", f"the baseline has no stage {run.name} of size {run.size}")
        if verdict != "failed":
            failure = None
        difference = run.difference if verdict == "differs" else None
        if difference is not None:
            difference = self._completed(run, difference, output)
        return replace(run, verdict=verdict, failure=failure, difference=difference)

    def _completed(self, run: StageRun, difference: Difference, output: Output | None) -> Difference:
        """`difference` with CPython's output, where CPython has the baseline's mark."""
        stage = next((each for each in self.stages if each.name == run.name), None)
        if stage is None:
            return difference
        marks = self.baseline["models"][stage.model]["stages"][stage.stage]["marks"]
        at = difference.index * MARK_DIGITS
        wanted = marks[at : at + MARK_DIGITS]
        try:
            subject = at_once(suite_baseline.open_subject(self._directory(stage.model)))
            record = at_once(suite.record(subject, stage.stage, difference.index, "full"))
        except Slm2Error as error:
            return replace(difference, expected={"mark": wanted, "note": str(error)})
        if mark(canonical(record)) != wanted:
            note = "CPython does not come to the baseline here either"
            return replace(difference, expected={"mark": wanted, "note": note})
        whole = replace(difference, input=record["input"], expected=record["output"])
        try:
            return whole if output is None else _shrunk(whole, subject, stage, output)
        except Slm2Error:  # the page answers no more: the whole input shows the difference as well
            return whole

    def _directory(self, model: str) -> Path:
        folder = self.models / model
        if not (folder / "manifest.json").is_file():
            raise InputError("input.model", f"{folder} is no packed model", {"found": str(folder)})
        return folder

    def reference(
        self,
        names: Sequence[str],
        size: Size,
        tell: Callable[[str, int, int], None],
        executor: str = "reference",
    ) -> Cell:
        """CPython's own cell: the stages that a model computes, run here and now."""
        start = time.monotonic()
        runs: list[StageRun] = []
        failure: Failure | None = None
        adapter: str | None = None
        for model in dict.fromkeys(stage.model for stage in self.stages if stage.name in names):
            stages = [stage for stage in self.stages if stage.model == model and stage.name in names]
            try:
                subject = asyncio.run(suite_baseline.open_subject(self._directory(model), executor))
                adapter = adapter or (subject.executor.adapter if subject.executor else None)
                runs += asyncio.run(self._runs(subject, stages, size, tell))
            except Slm2Error as error:
                failure = Failure(error.code, error.message)
        left_out = [name for name in names if name not in {stage.name for stage in self.stages}]
        if len(left_out) == len(names):
            why = f"only a browser can run {', '.join(left_out)}"
            return absent(CPYTHON, platform.python_version(), executor, why)
        notes = [f"Only a browser can run: {', '.join(left_out)}."] if left_out else []
        cell = Cell(
            browser=CPYTHON,
            browser_version=platform.python_version(),
            user_agent="",
            executor=executor,
            isolated=False,
            threads=None,
            adapter=adapter,
            versions={
                "python": platform.python_version(),
                "numpy": np.__version__,
                "slm2_web": __version__,
                "system": f"{platform.system()} {platform.machine()}",
            },
            seconds=round(time.monotonic() - start, 3),
            stages=tuple(runs),
            failure=failure,
            notes=tuple(notes),
        )
        return self.judged(cell)

    async def _runs(
        self, subject: Subject, stages: Sequence[StageOf], size: Size, tell: Callable[[str, int, int], None]
    ) -> list[StageRun]:
        known = {(each.name, each.size): each for each in self.expected()}
        runs = []
        for each in stages:
            start = time.monotonic()
            total = suite.STAGES[each.stage].sizes[size]
            base = self.baseline["models"][each.model]["stages"][each.stage]
            digest, difference = Digest(), None
            for index in range(total):
                tell(each.name, index, total)
                record = await suite.record(subject, each.stage, index, size)
                line = canonical(record)
                digest.add(line)
                wanted = base["marks"][index * MARK_DIGITS : (index + 1) * MARK_DIGITS]
                if difference is None and mark(line) != wanted:
                    told = {"mark": wanted, "note": "the baseline's record is not known here"}
                    difference = Difference(index, record["input"], told, record["output"])
            tell(each.name, total, total)
            verdict = verdict_of(digest.digest, total, known.get((each.name, size)))
            seconds = round(time.monotonic() - start, 3)
            first = difference if verdict == "differs" else None
            runs.append(StageRun(each.name, size, total, digest.digest, seconds, verdict, first))
        return runs


def _shrunk(whole: Difference, subject: Subject, stage: StageOf, output: Output) -> Difference:
    """The difference on a smaller input, as far as SHRINK_S seconds take it."""
    end = time.monotonic() + SHRINK_S

    async def differs(made: Any) -> bool:
        if time.monotonic() > end:
            return False
        try:
            expected = await suite.output_of_any(subject, stage.stage, made)
        except InputError:  # what is left of the input is none of this stage
            return False
        return canonical(expected) != canonical(output(stage.name, made))

    if not at_once(differs(whole.input)):
        return whole
    small = at_once(shrink(stage.stage, whole.input, differs))
    expected = at_once(suite.output(subject, stage.stage, small))
    return Difference(whole.index, small, expected, output(stage.name, small))


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives that waits for nothing. No loop runs meanwhile: browsers' drivers want none."""
    try:
        work.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    work.close()
    raise AssertionError("CPython's reference waits for nothing")


def implementation() -> dict[str, str]:
    """What the baseline is of, for the certificate."""
    return {"name": "CPython", "suite": str(suite.SUITE)}
