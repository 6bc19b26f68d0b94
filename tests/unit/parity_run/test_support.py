"""The table of browsers is the certificate's, and a certificate that differs would show."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from certificates import all_kinds
from slm2_web.parity.certificate import Artifact, parse
from slm2_web.parity_run.support import CERTIFICATE, MARK, PAGE, main, other_kernels, table, updated


def test_the_pages_table_is_the_certificates() -> None:
    """After another run: python -m slm2_web.parity_run.support --write."""
    assert main(["--check"]) == 0
    found = parse(CERTIFICATE.read_bytes())
    assert len({cell.browser for cell in found.cells}) == 4
    assert all(cell.verdict in ("equal", "absent") for cell in found.cells)


def test_kernels_that_changed_since_the_run_are_named(tmp_path: Path) -> None:
    names = ("worker/wasm/a.wasm", "worker/shaders/b.wgsl", "worker/shaders/c.wgsl")
    for name in (*names, "worker/wasm/a.c", "worker/worker.js"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, "utf-8")
    ran = tuple(
        Artifact("kernel", name, len(name), hashlib.sha256(name.encode()).hexdigest()) for name in names
    )
    wheel = Artifact("wheel", "wheels/x.whl", 1, "0" * 64)
    found = replace(all_kinds(), artifacts=(*ran, wheel))
    assert other_kernels(found, tmp_path) == []
    (tmp_path / names[0]).write_text("changed", "utf-8")
    (tmp_path / names[1]).unlink()
    (tmp_path / "worker/shaders/new.wgsl").write_text("new", "utf-8")
    assert other_kernels(found, tmp_path) == sorted([*names[:2], "worker/shaders/new.wgsl"])


def test_every_kind_of_cell_has_its_line() -> None:
    made = table(all_kinds())
    cells = [cell for cell in all_kinds().cells if cell.browser != "cpython"]
    lines = made.splitlines()[4:]
    assert len(lines) == len(cells)
    for cell, line in zip(cells, lines, strict=True):
        if cell.absence is not None:
            assert f"none: {cell.absence}" in line
        elif cell.failure is not None:
            assert f"failed: `{cell.failure.code}`" in line
        else:
            wrong = [stage.name for stage in cell.stages if stage.verdict != "equal"]
            assert line.endswith(f"| {', '.join(wrong) or 'none'} |")
    assert {cell.verdict for cell in cells} >= {"equal", "differs", "absent"}


def test_another_certificate_is_another_page() -> None:
    page = PAGE.read_text("utf-8")
    found = parse(CERTIFICATE.read_bytes())
    other = updated(page, table(replace(found, made_at="2026-01-31T12:00:00Z")))
    assert other != page
    assert other.split(MARK)[0] == page.split(MARK)[0]
    assert other.split("\n\n")[-3:] == page.split("\n\n")[-3:]
    assert updated(other, table(found)) == page


def test_a_page_without_the_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="found no line"):
        updated("# Browsers\n", "x")
