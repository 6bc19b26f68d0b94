"""Two certificates side by side: the same artifacts, the same baseline, the same bits?

What counts is bits. Another version of a browser, another device or time is told and changes nothing; a cell
or a stage that only one of them has can't be compared, which is told too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slm2_web.parity.certificate import Cell, Certificate, Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two certificates, a and b.

    artifacts: paths with the sha256 of each, None where one has no such file. baseline: stages whose
    baselines differ. stages: (cell, stage, a's digest, b's) that differ, though the size is the same. alone:
    what only one of them has, in words. environment: (cell, what, a's, b's), which counts for nothing.
    compared: pairs of digests that somebody computed; baselines are no run.
    """

    artifacts: tuple[tuple[str, str | None, str | None], ...]
    baseline: tuple[tuple[str, str, str, str], ...]
    stages: tuple[tuple[str, str, str | None, str | None], ...]
    alone: tuple[str, ...]
    environment: tuple[tuple[str, str, str, str], ...]
    compared: int
    verdicts: tuple[Verdict, Verdict]

    @property
    def is_same(self) -> bool:
        """Whether something could be compared, and all of that is equal: files, baselines, digests."""
        return self.compared > 0 and not (self.artifacts or self.baseline or self.stages)

    def as_json(self) -> dict[str, Any]:
        """What `slm2-web parity --compare` answers."""
        return {
            "same": self.is_same,
            "compared": self.compared,
            "verdicts": list(self.verdicts),
            "artifacts": [{"path": path, "a": a, "b": b} for path, a, b in self.artifacts],
            "baseline": [{"stage": name, "size": size, "a": a, "b": b} for name, size, a, b in self.baseline],
            "stages": [{"cell": cell, "stage": name, "a": a, "b": b} for cell, name, a, b in self.stages],
            "alone": list(self.alone),
            "environment": [
                {"cell": cell, "what": what, "a": a, "b": b} for cell, what, a, b in self.environment
            ],
        }


def compare(a: Certificate, b: Certificate) -> Comparison:
    """The comparison of two certificates."""
    files_a = {each.path: each.sha256 for each in a.artifacts}
    files_b = {each.path: each.sha256 for each in b.artifacts}
    artifacts = tuple(
        (path, files_a.get(path), files_b.get(path))
        for path in sorted({*files_a, *files_b})
        if files_a.get(path) != files_b.get(path)
    )
    base_a = {(each.name, each.size): each.digest for each in a.baseline}
    base_b = {(each.name, each.size): each.digest for each in b.baseline}
    common = sorted({*base_a} & {*base_b})
    baseline = tuple(
        (name, size, base_a[name, size], base_b[name, size])
        for name, size in common
        if base_a[name, size] != base_b[name, size]
    )
    alone = [
        f"baseline of {name} ({size}): only in {'a' if (name, size) in base_a else 'b'}"
        for name, size in sorted({*base_a} ^ {*base_b})
    ]
    compared = 0
    stages: list[tuple[str, str, str | None, str | None]] = []
    environment: list[tuple[str, str, str, str]] = []
    cells_a, cells_b = ({cell.name: cell for cell in each.cells if _ran(cell)} for each in (a, b))
    alone += [
        f"{name}: ran only in {'a' if name in cells_a else 'b'}" for name in sorted({*cells_a} ^ {*cells_b})
    ]
    for name in sorted({*cells_a} & {*cells_b}):
        one, other = cells_a[name], cells_b[name]
        environment += [
            (name, what, x, y) for (what, x), (_, y) in zip(_facts(one), _facts(other), strict=True) if x != y
        ]
        runs_a = {(stage.name, stage.size): stage for stage in one.stages}
        runs_b = {(stage.name, stage.size): stage for stage in other.stages}
        alone += [
            f"{name} {stage} ({size}): only in {'a' if (stage, size) in runs_a else 'b'}"
            for stage, size in sorted({*runs_a} ^ {*runs_b})
        ]
        for key in sorted({*runs_a} & {*runs_b}):
            if runs_a[key].digest is None and runs_b[key].digest is None:
                alone.append(f"{name} {key[0]} ({key[1]}): failed in both")
                continue
            compared += 1
            if runs_a[key].digest != runs_b[key].digest:
                stages.append((name, key[0], runs_a[key].digest, runs_b[key].digest))
    return Comparison(
        artifacts,
        baseline,
        tuple(stages),
        tuple(alone),
        tuple(environment),
        compared,
        (a.verdict, b.verdict),
    )


def _ran(cell: Cell) -> bool:
    return cell.absence is None and bool(cell.stages)


def _facts(cell: Cell) -> tuple[tuple[str, str], ...]:
    return (
        ("browser", cell.browser_version),
        ("user agent", cell.user_agent),
        ("adapter", cell.adapter or "none"),
        ("threads", str(cell.threads or "unknown")),
        *((name, cell.versions.get(name, "unknown")) for name in ("pyodide", "python", "numpy")),
    )
