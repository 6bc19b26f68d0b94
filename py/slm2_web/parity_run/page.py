"""A certificate as one HTML file: no script, nothing fetched; for a screen, a phone, the dark, and paper.

Each digest is drawn as a small pattern of its own bits, so equal digests look alike and others don't. A
verdict is always a word and a sign as well: colour never says anything alone.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any, Final

from slm2_web.parity.certificate import (
    Artifact,
    Cell,
    Certificate,
    Difference,
    StageRun,
    Verdict,
)

EXECUTOR_TITLES: Final = {
    "webgpu": "WebGPU",
    "wasm": "WASM, shared memory",
    "wasm-plain": "WASM, no isolation",
    "reference": "reference",
}
BROWSER_TITLES: Final = {
    "chromium": "Chromium",
    "firefox": "Firefox",
    "webkit": "WebKit",
    "cpython": "CPython",
}
KIND_TITLES: Final = {
    "model": "Models",
    "wheel": "Python package",
    "kernel": "Kernels and shaders",
    "runtime": "Python runtime",
}
_SIGNS: Final[dict[Verdict, str]] = {"equal": "✓", "differs": "≠", "failed": "!", "absent": "○"}
_WORDS: Final[dict[Verdict, str]] = {
    "equal": "equal",
    "differs": "differs",
    "failed": "failed",
    "absent": "absent",
}
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
# Most characters of a value that the page shows; the JSON file has all of it.
_SHOWN: Final = 600

_STYLE: Final = """
:root { color-scheme: light dark; --paper: #faf7f1; --raised: #fffdf9; --ink: #22201c; --soft: #655f54;
  --line: #e1dacb; --green: #1f5c4d; --wash: #e4ede7; --red: #96301f; --red-wash: #f9e8e2;
  --book: "Iowan Old Style", "Palatino Linotype", Palatino, "URW Palladio L", P052, Georgia,
  "DejaVu Serif", serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) { :root { --paper: #151512; --raised: #1d1d19; --ink: #e9e3d6;
  --soft: #a29b8b; --line: #33312a; --green: #8accb1; --wash: #20312a; --red: #f2a593;
  --red-wash: #361f1a; } }
* { box-sizing: border-box; }
body { max-width: 76rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 100%/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  -webkit-text-size-adjust: 100%; }
h1, h2, h3, p, dl, dd, ul { margin: 0; padding: 0; } ul { list-style: none; }
h1 { max-width: 18ch; margin: 0.25rem 0 1rem; font: 400 clamp(2rem, 6vw, 3.25rem)/1.1 var(--book);
  letter-spacing: -0.015em; text-wrap: balance; }
h2 { margin: 3rem 0 0.75rem; font: 400 1.5rem/1.2 var(--book); }
h3 { font: 600 1rem/1.3 var(--book); }
p, td, th, dt, dd, li { font-size: 0.875rem; }
code, pre { font: 0.8125rem/1.5 var(--mono); overflow-wrap: anywhere; }
.kind { color: var(--soft); font-size: 0.8125rem; letter-spacing: 0.08em; text-transform: uppercase; }
.lead { max-width: 42rem; font-size: 1rem; } .soft { color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 0.75rem 2rem;
  margin-top: 1.5rem; padding: 1rem 0; border-block: 1px solid var(--line); }
.facts dt { color: var(--soft); font-size: 0.8125rem; }
.facts div:last-child { grid-column: 1 / -1; }
.facts dd { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.verdict { display: inline-flex; align-items: baseline; gap: 0.375rem; padding: 0 0.5rem; border: 1px solid;
  border-radius: 0.75rem; font-size: 0.8125rem; font-weight: 600; white-space: nowrap; }
.equal { color: var(--green); } .differs, .failed { color: var(--red); } .absent { color: var(--soft); }
.verdict.equal { background: var(--wash); } .verdict.differs, .verdict.failed { background: var(--red-wash); }
.verdict.absent { border-style: dashed; font-weight: 400; }
.verdict.differs { border-width: 2px; }
.stage { display: inline-grid; justify-items: start; gap: 0.125rem; font-size: 0.75rem;
  white-space: nowrap; }
.stage svg { width: 2rem; height: 2rem; fill: currentColor; flex: none; }
.stage .off { opacity: 0.12; }
.stage span { line-height: 1.25; }
.stage small { display: block; color: var(--soft); font-size: 0.6875rem; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: 0.5rem 1rem 0.5rem 0; border-top: 1px solid var(--line); text-align: left;
  vertical-align: top; font-variant-numeric: tabular-nums; }
thead th { border: 0; color: var(--soft); font-size: 0.8125rem; font-weight: 400; }
tbody th { font-weight: 600; } tbody th small { display: block; color: var(--soft); font-weight: 400; }
tr.base th, tr.base td { border-bottom: 2px solid var(--line); }
.matrix td, .matrix thead th { padding-right: 0.375rem; } .matrix thead th { font-size: 0.6875rem; }
.matrix td > span { font-size: 0.75rem; }
.matrix thead th { vertical-align: bottom; } .matrix tbody th { min-width: 7.5rem; }
.card { margin-top: 1rem; padding: 1rem 1.25rem; border: 1px solid var(--line); border-radius: 0.75rem;
  background: var(--raised); break-inside: avoid; }
.card header { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between;
  gap: 0.25rem 1rem; margin-bottom: 0.5rem; }
.card p { margin: 0.25rem 0; overflow-wrap: anywhere; } .card .agent { font-size: 0.75rem; }
.card .scroll { margin-top: 0.5rem; } .card td, .card th { padding-block: 0.25rem; white-space: nowrap; }
.card code { overflow-wrap: normal; }
.wrong { border-color: var(--red); border-width: 2px; }
.wrong dl { display: grid; grid-template-columns: 6rem minmax(0, 1fr); gap: 0.25rem 1rem; }
.wrong dt { color: var(--soft); } .wrong pre { margin: 0; white-space: pre-wrap; }
.note { padding-left: 0.75rem; border-left: 2px solid var(--line); }
.hash { color: var(--soft); }
@media (max-width: 44rem) {
  body { padding-inline: 1rem; }
  .matrix, .matrix tbody, .matrix tr, .matrix td, .matrix th { display: block; width: 100%; }
  .matrix thead { display: none; }
  .matrix tr { padding: 0.75rem 0; border-top: 1px solid var(--line); }
  .matrix th, .matrix td { padding: 0.125rem 0; border: 0; }
  .matrix tr.base th, .matrix tr.base td { border: 0; }
  .matrix td[data-stage] { display: grid; grid-template-columns: 9rem 1fr; align-items: center; }
  .matrix .stage { grid-template-columns: auto 1fr; align-items: center; gap: 0.5rem; }
  .matrix td[data-stage]::before { color: var(--soft); content: attr(data-stage); }
  .wrong dl { grid-template-columns: minmax(0, 1fr); }
  .files, .files tbody, .files tr, .files td { display: block; }
  .files thead { display: none; } .files td { padding: 0; border: 0; } .files tr { padding: 0.375rem 0;
  border-top: 1px solid var(--line); }
}
@media print {
  :root { --paper: #fff; --raised: #fff; --ink: #000; --soft: #444; --line: #bbb; --green: #1f5c4d;
    --wash: #fff; --red: #96301f; --red-wash: #fff; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; } tr { break-inside: avoid; } .scroll { overflow: visible; }
}
"""


def certificate_page(certificate: Certificate) -> str:
    """The whole page."""
    title = _headline(certificate)
    names = _stage_names(certificate)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>Parity: {_text(title)}</title><style>{_STYLE}</style></head><body>",
        '<header><p class="kind">slm2-web · certificate of parity</p>',
        f"<h1>{_text(title)}</h1>",
        f'<p class="lead">{_text(_lead(certificate))}</p>',
        _facts(certificate),
        "</header><main>",
        *_differences(certificate),
        '<section aria-labelledby="matrix"><h2 id="matrix">Every browser, every stage</h2>',
        '<p class="soft">A pattern is a digest, drawn: where patterns are alike, so are all bits behind '
        "them. Below each is its number of vectors.</p>",
        _matrix(certificate, names),
        "</section>",
        '<section aria-labelledby="cells"><h2 id="cells">Where it ran</h2>',
        *(_card(cell) for cell in certificate.cells),
        "</section>",
        '<section aria-labelledby="files"><h2 id="files">What ran</h2>',
        *_artifacts(certificate.artifacts),
        "</section></main></body></html>\n",
    ]
    return "\n".join(parts)


def _headline(certificate: Certificate) -> str:
    ran = [cell for cell in certificate.cells if cell.verdict != "absent"]
    n_equal = sum(cell.verdict == "equal" for cell in ran)
    match certificate.verdict:
        case "equal" if len(ran) == 1:
            return "The same bits."
        case "equal":
            return f"The same bits, {len(ran)} times."
        case "differs":
            return f"Not the same bits: {len(ran) - n_equal} of {len(ran)} differ or failed."
        case _:
            return f"Not finished: {len(ran) - n_equal} of {len(ran)} failed."


def _lead(certificate: Certificate) -> str:
    ran = [cell for cell in certificate.cells if cell.verdict != "absent"]
    n_absent = len(certificate.cells) - len(ran)
    vectors = sum(stage.vectors for cell in ran for stage in cell.stages)
    n_differ = sum(stage.verdict == "differs" for cell in ran for stage in cell.stages)
    browsers = list(dict.fromkeys(_browser(cell) for cell in ran))
    where = f"{', '.join(browsers[:-1])} and {browsers[-1]}" if len(browsers) > 1 else "".join(browsers)
    name = certificate.implementation.get("name", "the baseline")
    lead = (
        f"{vectors:,} records were computed in {where or 'no browser'}, and their digests compared with "
        f"those of {name}. Stages that differ: {n_differ or 'none'}."
    )
    if n_absent:
        lead += f" Cells that can't be run here, and say why: {n_absent}."
    return lead


def _facts(certificate: Certificate) -> str:
    known = dict(certificate.implementation)
    named = [known.pop("name", "unnamed"), *(f"{what} {value}" for what, value in known.items())]
    implementation = ", ".join(named)
    facts = [
        ("Made", f"{certificate.made_at.replace('T', ' ').removesuffix('Z')} UTC"),
        ("By", f"{certificate.program} {certificate.program_version}"),
        ("Size", certificate.size),
        ("Baseline", implementation),
        ("Site", certificate.site),
        *([("Command", certificate.command)] if certificate.command else []),
    ]
    rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{rows}</dl>'


def _differences(certificate: Certificate) -> Iterable[str]:
    wrong = [
        (cell, stage)
        for cell in certificate.cells
        for stage in cell.stages
        if stage.verdict in ("differs", "failed")
    ]
    broken = [cell for cell in certificate.cells if cell.failure is not None]
    if not wrong and not broken:
        return
    yield '<section aria-labelledby="wrong"><h2 id="wrong">What is wrong</h2>'
    for cell in broken:
        assert cell.failure is not None
        yield (
            f'<article class="card wrong"><header><h3>{_text(_cell(cell))}</h3>{_verdict("failed")}</header>'
            f"<p><code>{_text(cell.failure.code)}</code> {_text(cell.failure.message)}</p></article>"
        )
    for cell, stage in wrong:
        yield (
            f'<article class="card wrong"><header><h3>{_text(stage.name)}: {_text(_cell(cell))}</h3>'
            f"{_verdict(stage.verdict)}</header>{_wrong(stage)}</article>"
        )
    yield "</section>"


def _wrong(stage: StageRun) -> str:
    if stage.failure is not None:
        return f"<p><code>{_text(stage.failure.code)}</code> {_text(stage.failure.message)}</p>"
    if stage.difference is None:
        return (
            f"<p>All {stage.vectors:,} records give another digest; which one differs first is not known.</p>"
        )
    return _difference(stage.difference)


def _difference(difference: Difference) -> str:
    rows = "".join(
        f"<dt>{name}</dt><dd><pre>{_text(_value(value))}</pre></dd>"
        for name, value in (
            ("Vector", difference.index),
            ("Input", difference.input),
            ("Baseline", difference.expected),
            ("Found", difference.found),
        )
    )
    return f"<dl>{rows}</dl>"


def _stage_names(certificate: Certificate) -> list[str]:
    """Stages in the order in which they were run."""
    names = [stage.name for cell in certificate.cells for stage in cell.stages]
    return list(dict.fromkeys([*names, *(e.name for e in certificate.baseline)]))


def _matrix(certificate: Certificate, names: list[str]) -> str:
    head = "".join(f'<th scope="col" role="columnheader">{_heading(name)}</th>' for name in names)
    rows = [_baseline_row(certificate, names), *(_row(cell, names) for cell in certificate.cells)]
    return (
        '<div class="scroll" role="region" aria-labelledby="matrix" tabindex="0">'
        '<table class="matrix" role="table"><thead role="rowgroup">'
        f'<tr role="row"><th scope="col" role="columnheader">Browser</th>{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody></table></div>'
    )


def _heading(name: str) -> str:
    """A stage's name, which may break at its dot."""
    return _text(name).replace(".", ".<wbr>")


def _baseline_row(certificate: Certificate, names: list[str]) -> str:
    cells = []
    for name in names:
        expected = certificate.expected(name, certificate.size) or next(
            (e for e in certificate.baseline if e.name == name), None
        )
        inner = "○" if expected is None else _drawn(expected.digest, "baseline", f"{expected.vectors:,}")
        cells.append(f'<td role="cell" data-stage="{_text(name)}">{inner}</td>')
    title = _text(certificate.implementation.get("name", "baseline"))
    return (
        f'<tr class="base" role="row"><th scope="row" role="rowheader">{title}'
        f"<small>the baseline</small></th>{''.join(cells)}</tr>"
    )


def _row(cell: Cell, names: list[str]) -> str:
    head = (
        f'<th scope="row" role="rowheader">{_text(_browser(cell))}'
        f"<small>{_text(_executor(cell))}</small></th>"
    )
    if cell.absence is not None:
        text = f"{_verdict('absent')} <span class='soft'>{_text(cell.absence)}</span>"
        return f'<tr role="row">{head}<td role="cell" colspan="{max(len(names), 1)}">{text}</td></tr>'
    found = {stage.name: stage for stage in cell.stages}
    cells = []
    for name in names:
        stage = found.get(name)
        if stage is None:
            sign = f"{_SIGNS['failed']} not reached"
            inner = (
                f'<span class="failed">{sign}</span>' if cell.failure else '<span class="soft">not run</span>'
            )
        elif stage.digest is None:
            inner = f'<span class="failed">{_SIGNS["failed"]} failed</span>'
        else:
            sign = f"{_SIGNS[stage.verdict]} {_WORDS[stage.verdict]}"
            inner = f'<span class="{stage.verdict}">{_drawn(stage.digest, sign, _amount(stage))}</span>'
        cells.append(f'<td role="cell" data-stage="{_text(name)}">{inner}</td>')
    return f'<tr role="row">{head}{"".join(cells)}</tr>'


def _amount(stage: StageRun) -> str:
    return f"{stage.vectors:,}"


def _drawn(digest: str, words: str, small: str) -> str:
    """A digest's first 64 bits as 8 x 8 squares, beside what is said of it."""
    bits = f"{int(digest[:16], 16):064b}"
    off = ' class="off"'
    squares = "".join(
        f'<rect x="{i % 8}" y="{i // 8}" width="1" height="1"{"" if bit == "1" else off}/>'
        for i, bit in enumerate(bits)
    )
    svg = f'<svg viewBox="0 0 8 8" role="img" aria-label="digest {digest[:16]}">{squares}</svg>'
    return f'<span class="stage">{svg}<span>{words}<small>{small}</small></span></span>'


def _card(cell: Cell) -> str:
    facts = [
        cell.browser_version and f"version {cell.browser_version}",
        f"cross-origin isolated: {'yes' if cell.isolated else 'no'}",
        cell.threads is not None and f"{cell.threads} {'thread' if cell.threads == 1 else 'threads'}",
        cell.adapter and f"adapter: {cell.adapter}",
        *(f"{name} {value}" for name, value in cell.versions.items()),
        f"{cell.seconds:.1f} s",
    ]
    parts = [f"<header><h3>{_text(_cell(cell))}</h3>{_verdict(cell.verdict)}</header>"]
    if cell.absence is not None:
        parts.append(f"<p>{_text(cell.absence)}</p>")
    else:
        parts.append(f"<p>{_text(' · '.join(str(fact) for fact in facts if fact))}</p>")
        parts.append(f'<p class="agent soft">{_text(cell.user_agent)}</p>' if cell.user_agent else "")
    parts += [f'<p class="note">{_text(note)}</p>' for note in cell.notes]
    if cell.stages:
        rows = "".join(
            f'<tr><th scope="row">{_text(s.name)}</th><td>{_text(s.size)}</td><td>{s.vectors:,}</td>'
            f"<td>{s.seconds:.1f} s</td><td class={s.verdict}>{_SIGNS[s.verdict]} {_WORDS[s.verdict]}</td>"
            f'<td class="hash"><code>{_text((s.digest or "none")[:16])}</code></td></tr>'
            for s in cell.stages
        )
        heads = "".join(
            f'<th scope="col">{head}</th>'
            for head in ("stage", "size", "vectors", "time", "verdict", "digest")
        )
        label = f'role="region" aria-label="Stages of {_text(_cell(cell))}" tabindex="0"'
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        parts.append(f'<div class="scroll" {label}>{table}</div>')
    return f'<article class="card">{"".join(parts)}</article>'


def _artifacts(artifacts: tuple[Artifact, ...]) -> Iterable[str]:
    if not artifacts:
        yield '<p class="soft">The site did not say.</p>'
    for kind, title in KIND_TITLES.items():
        files = [artifact for artifact in artifacts if artifact.kind == kind]
        if files:
            rows = "".join(
                f"<tr><td><code>{_text(a.path)}</code></td><td>{a.bytes:,} bytes</td>"
                f'<td class="hash"><code>{_text(a.sha256)}</code></td></tr>'
                for a in files
            )
            yield (
                f'<h3>{title}</h3><div class="scroll" role="region" aria-label="{title}" tabindex="0">'
                '<table class="files"><thead><tr><th scope="col">file</th><th scope="col">size</th>'
                f'<th scope="col">sha256</th></tr></thead><tbody>{rows}</tbody></table></div>'
            )


def _browser(cell: Cell) -> str:
    return BROWSER_TITLES.get(cell.browser, cell.browser)


def _executor(cell: Cell) -> str:
    is_outside = cell.browser == "cpython" and cell.executor != "reference"
    return "WASM in wasmtime" if is_outside else EXECUTOR_TITLES[cell.executor]


def _cell(cell: Cell) -> str:
    return f"{_browser(cell)}, {_executor(cell)}"


def _verdict(verdict: Verdict) -> str:
    sign = f'<span aria-hidden="true">{_SIGNS[verdict]}</span>'
    return f'<span class="verdict {verdict}">{sign}{_WORDS[verdict]}</span>'


def _value(value: Any) -> str:
    """A JSON value, in short; what no UTF-8 can hold stays escaped."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


def _text(value: object) -> str:
    return html.escape(str(value))
