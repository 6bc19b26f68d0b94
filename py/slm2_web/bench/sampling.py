"""The sampling bench: milliseconds to choose one id of 151,936, in Pyodide under Node and in CPython.

A job is one Python with one set of parameters after the other, on the same seeded logits: values as a network
gives them, a few of which stand out. Pyodide is the site's: the same runtime, numpy and wheel. A constrained
step's mask is measured by tests/json_replies.py, on real replies.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy

from slm2_web.bench import sampling_job
from slm2_web.bench.machine import machine_facts, python_version
from slm2_web.bench.report import Figure, Report, Target
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.site import build_site

NAME: Final = "sampling"
PYODIDE: Final = "Pyodide, Node"
CPYTHON: Final = "CPython"
JOB_SECONDS: Final = 300

# Measured input -> the most milliseconds that were aimed at, in Pyodide.
TARGETS: Final[Mapping[str, float]] = {"publisher": 5, "top_p": 60, "top_p 0.999": 60}

_NODE: Final = """
import { readFileSync } from "node:fs";
const [runtime, stdLibURL, wheel, job, repeats] = process.argv.slice(1);
const { loadPyodide } = await import(`${runtime}/pyodide.mjs`);
const pyodide = await loadPyodide({ indexURL: `${runtime}/`, stdLibURL });
await pyodide.loadPackage("numpy", { messageCallback: () => {} });
pyodide.globals.set("wheel", new Uint8Array(readFileSync(wheel)));
pyodide.globals.set("job", readFileSync(job, "utf8"));
pyodide.globals.set("repeats", Number(repeats));
const found = pyodide.runPython(`
import io, json, sys, zipfile
zipfile.ZipFile(io.BytesIO(bytes(wheel))).extractall("/package")
sys.path.insert(0, "/package")
exec(compile(job, "sampling_job.py", "exec"), globals())
json.dumps({**run(repeats), "numpy": np.__version__})
`);
console.log(found);
"""


@dataclass(frozen=True, slots=True)
class Options:
    """repeats: steps of each set of parameters; has_pyodide: else CPython alone."""

    repeats: int = 15
    has_pyodide: bool = True


def bench(
    model: Path | None,
    root: Path,
    fetcher: Fetcher,
    options: Options,
    *,
    command: str,
    say: Callable[[str], None],
) -> Report:
    """The report. model: a packed model's folder, for a whole site; None without Pyodide.

    Raises: AssetError, SiteError.
    """
    machine = machine_facts()
    answers: dict[str, Mapping[str, Any] | str] = {}
    say(CPYTHON)
    answers[CPYTHON] = {**sampling_job.run(options.repeats), "numpy": numpy.__version__}
    if options.has_pyodide and model is not None:
        say(PYODIDE)
        answers[PYODIDE] = _in_node(model, root, fetcher, options.repeats, say)
    else:
        answers[PYODIDE] = "no browser's Python was asked for"
    figures = [
        figure
        for subject in (PYODIDE, CPYTHON)
        for figure in _figures(subject, answers[subject], answers[CPYTHON])
    ]
    return Report(
        bench=NAME,
        title="One id of 151,936",
        command=command,
        machine=machine,
        versions=_versions(answers),
        measures={"step": "one id: penalties, filters, draw; median"},
        inputs={name: dict(params) for name, params in sampling_job.CASES.items()},
        figures=figures,
        targets=[
            _target(figure) for figure in figures if figure.subject == PYODIDE and figure.input in TARGETS
        ],
    )


def _in_node(
    model: Path, root: Path, fetcher: Fetcher, repeats: int, say: Callable[[str], None]
) -> Mapping[str, Any] | str:
    """The job's answer, or why there is none."""
    node = shutil.which("node")
    if node is None:
        return "no Node was found"
    site = root / "build" / "bench-site"
    build_site(root, site, [model], fetcher, say)
    facts = json.loads((site / "site.json").read_bytes())
    paths = [
        site / facts["runtime"],
        site / facts["stdlib"],
        site / facts["wheel"],
        Path(sampling_job.__file__),
    ]
    done = subprocess.run(
        [node, "--input-type=module", "-e", _NODE, *map(str, paths), str(repeats)],
        capture_output=True,
        text=True,
        check=False,
        timeout=JOB_SECONDS,
    )
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "Error" in line[:200]), "")
        return f"Node ended with {done.returncode}: {said[:200]}"
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _figures(
    subject: str, answer: Mapping[str, Any] | str, reference: Mapping[str, Any] | str
) -> list[Figure]:
    assert not isinstance(reference, str)
    if isinstance(answer, str):
        return [Figure("step", subject, name, "ms", None, note=answer) for name in sampling_job.CASES]
    return [
        Figure(
            measure="step",
            subject=subject,
            input=name,
            unit="ms",
            value=statistics.median(found["ms"]),
            samples=tuple(found["ms"]),
            same=None if answer is reference else found["sha256"] == reference["cases"][name]["sha256"],
        )
        for name, found in answer["cases"].items()
    ]


def _versions(answers: Mapping[str, Mapping[str, Any] | str]) -> dict[str, str]:
    versions = {"python": python_version()}
    for subject, answer in answers.items():
        if not isinstance(answer, str):
            versions |= {f"numpy, {subject}": answer["numpy"], f"Python, {subject}": answer["python"]}
    return versions


def _target(figure: Figure) -> Target:
    most = TARGETS[figure.input]
    found = "not measured" if figure.value is None else f"{figure.value:.2f} ms"
    met = None if figure.value is None else figure.value < most
    return Target(f"{figure.input}, {PYODIDE}", f"under {most:g} ms", found, met)
