"""Figures as a file for programs (results.json) and a page for people (index.html).

A figure is one number with everything that is needed to doubt it: what was measured, of whom, on which
input, in which unit, the samples behind it, and the command. A bench that is not in `Report` yet needs no
code here: plots are drawn for each measure that names its unit.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

FORMAT: Final = "slm2-bench"
VERSION: Final = 1
RESULTS_FILE: Final = "results.json"
PAGE_FILE: Final = "index.html"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, or the reason why there is none.

    value: in `unit`; None where `note` says why it was not measured. samples: what `value` was taken from.
    same: whether the result equals the reference's; None where there is nothing to compare.
    """

    measure: str
    subject: str
    input: str
    unit: str
    value: float | None
    samples: tuple[float, ...] = ()
    same: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What was to be reached: found and wanted in words, and whether it was; None if it was not measured."""

    name: str
    wanted: str
    found: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Report:
    """All that one bench has found.

    measures: what each measure means, with its title for people; those that end in a unit of speed are
    better when they are larger. inputs: facts about each input.
    """

    bench: str
    title: str
    command: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    measures: Mapping[str, str]
    inputs: Mapping[str, Mapping[str, Any]]
    figures: Sequence[Figure]
    targets: Sequence[Target] = field(default_factory=tuple)

    def as_json(self) -> dict[str, Any]:
        """The report as results.json holds it: each figure with its command."""
        figures = [{**asdict(figure), "command": self.command} for figure in self.figures]
        return {"format": FORMAT, "version": VERSION, **asdict(self), "figures": figures}


def write_reports(reports: Sequence[Report], out: Path) -> list[Path]:
    """The files written into `out`: for each bench a folder with results.json and index.html."""
    written = []
    for report in reports:
        folder = out / report.bench
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report.as_json(), ensure_ascii=False, indent=1, allow_nan=False)
        (folder / RESULTS_FILE).write_text(text + "\n", "utf-8")
        (folder / PAGE_FILE).write_text(page(report), "utf-8")
        written += [folder / RESULTS_FILE, folder / PAGE_FILE]
    return written


# --- the page --------------------------------------------------------------------------------------------

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #faf7f1; --ink: #22201c; --soft: #655f54; --line: #e1dacb;
  --bar: #9db4a9; --ours: #1f5c4d; --bad: #96301f; }
@media (prefers-color-scheme: dark) { :root { --paper: #151512; --ink: #e9e3d6; --soft: #a29b8b;
  --line: #33312a; --bar: #4c5f56; --ours: #8accb1; --bad: #f2a593; } }
body { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; background: var(--paper);
  color: var(--ink); font: 100%/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1, h2 { font-family: Georgia, "DejaVu Serif", serif; font-weight: 400; }
h2 { margin: 2.5rem 0 0.5rem; } h3 { margin: 1.25rem 0 0.25rem; font-size: 1rem; }
p, dt, td, th { font-size: 0.875rem; } p { color: var(--soft); margin: 0.25rem 0; }
code, pre { font: 0.8125rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { overflow-x: auto; padding: 0.5rem 0.75rem; border: 1px solid var(--line); border-radius: 0.5rem; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: 0.25rem 0.75rem 0.25rem 0; border-top: 1px solid var(--line); text-align: left;
  vertical-align: top; }
td { font-variant-numeric: tabular-nums; }
.no { color: var(--bad); font-weight: 600; }
svg { display: block; width: 100%; height: auto; margin: 0.5rem 0; }
svg text { fill: var(--ink); font: 12px system-ui, "DejaVu Sans", sans-serif; }
svg .soft { fill: var(--soft); } svg .bar { fill: var(--bar); } svg .ours { fill: var(--ours); }
svg .mark { stroke: var(--soft); }
"""

_NOT_MET: Final = "not met"

# A plot's width, its columns for names and values, a row and a letter of a name, in SVG units.
_WIDTH, _NAMES, _MAX_NAMES, _VALUES, _ROW, _LETTER = 760, 230, 400, 100, 20, 6.6


def page(report: Report) -> str:
    """The report as one HTML file that needs nothing else."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(report.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(report.title)}</h1>",
        "<p>Every figure on this page was measured in one run of this command:</p>",
        f"<pre>{_text(report.command)}</pre>",
    ]
    if report.targets:
        rows = [(t.name, t.wanted, t.found, _verdict(t.met)) for t in report.targets]
        parts += ["<h2>Targets</h2>", _table(("what", "wanted", "found", ""), rows)]
    for measure, title in report.measures.items():
        parts += _measure(report, measure, title)
    facts = [(name, _shown(value)) for name, value in report.machine.items()]
    versions = list(report.versions.items())
    parts += ["<h2>Machine</h2>", _table(("fact", ""), facts)]
    parts += ["<h2>Versions</h2>", _table(("program", ""), versions)]
    if report.inputs:
        names = list(dict.fromkeys(key for facts in report.inputs.values() for key in facts))
        inputs = [
            (name, *(_shown(facts.get(key, "")) for key in names)) for name, facts in report.inputs.items()
        ]
        parts += ["<h2>Inputs</h2>", _table(("input", *names), inputs)]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _measure(report: Report, measure: str, title: str) -> list[str]:
    """A measure's section: a plot and a table for each input."""
    figures = [figure for figure in report.figures if figure.measure == measure]
    if not figures:
        return []
    parts = [f"<h2>{_text(title)}</h2>"]
    for name in dict.fromkeys(figure.input for figure in figures):
        chosen = [figure for figure in figures if figure.input == name]
        if name:
            parts.append(f"<h3>{_text(name)}</h3>")
        parts.append(_plot(chosen))
        odd = [f for f in chosen if f.note or f.same is False]
        parts += [f"<p>{_text(f.subject)}: {_text(_remark(f))}</p>" for f in odd]
    return parts


def _remark(figure: Figure) -> str:
    words = [figure.note] if figure.note else []
    if figure.same is False:
        words.append("other ids than the reference")
    return "; ".join(words)


def _plot(figures: Sequence[Figure]) -> str:
    """Horizontal bars with a mark for each sample. The scale is logarithmic for speeds of which the largest
    is more than 20 times the smallest. Nothing, where nothing was measured."""
    if all(f.value is None for f in figures):
        return ""
    shown = [v for f in figures for v in (f.value, *f.samples) if v is not None and v > 0] or [1.0]
    low, high = min(shown), max(shown)
    is_log = figures[0].unit.endswith("/s") and high > 20 * low
    height = _ROW * len(figures) + 18
    names = min(max(_NAMES, int(_LETTER * max(len(f.subject) for f in figures))), _MAX_NAMES)
    space = _WIDTH - names - _VALUES

    def length(value: float) -> float:
        share = 0.1 + 0.9 * math.log(value / low) / math.log(high / low) if is_log else value / high
        return space * min(max(share, 0.0), 1.0)

    label = html.escape(", ".join(f"{f.subject}: {_number(f)}" for f in figures), quote=True)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">']
    for row, figure in enumerate(figures):
        y = row * _ROW
        parts.append(f'<text x="0" y="{y + 14}">{_text(figure.subject)}</text>')
        width = length(figure.value) if figure.value and figure.value > 0 else 0.0
        kind = "ours" if figure.subject.startswith("slm2") else "bar"
        parts.append(
            f'<rect class="{kind}" x="{names}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 7}"/>'
        )
        marks = [names + length(sample) for sample in figure.samples if sample > 0]
        if len(marks) > 1:
            lines = "".join(f"M{x:.1f} {y + 1}v{_ROW - 3}" for x in marks)
            parts.append(f'<path class="mark" d="{lines}"/>')
        end = max([names + width, *marks]) + 6
        parts.append(f'<text x="{end:.1f}" y="{y + 14}">{_text(_number(figure))}</text>')
    scale = "logarithmic scale" if is_log else "linear scale"
    unit = figures[0].unit
    parts.append(f'<text class="soft" x="{names}" y="{height - 4}">{_text(unit)}, {scale}</text></svg>')
    return "".join(parts)


def _number(figure: Figure) -> str:
    if figure.value is None:
        return "none"
    if figure.value == 0:
        return f"0 {figure.unit}"
    digits = 0 if figure.value >= 100 else 1 if figure.value >= 10 else 2 if figure.value >= 0.1 else 4
    return f"{figure.value:.{digits}f} {figure.unit}"


def _verdict(met: bool | None) -> str:
    if met is None:
        return "not measured"
    return "met" if met else _NOT_MET


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{cells}</tr>{lines}</table></div>'


def _cell(text: str) -> str:
    return f'<td class="no">{text}</td>' if text == _NOT_MET else f"<td>{_text(text)}</td>"


def _shown(value: Any) -> str:
    """A fact for people; of a digest its beginning, as results.json has all of it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{text[:12]}…" if re.fullmatch("[0-9a-f]{64}", text) else text


def _text(value: str) -> str:
    return html.escape(value, quote=False)
