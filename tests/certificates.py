"""Certificates for tests: small, whole, and with every kind of cell."""

from __future__ import annotations

import hashlib

from slm2_web.parity.certificate import (
    Artifact,
    Cell,
    Certificate,
    Difference,
    Expected,
    Failure,
    StageRun,
    verdict_of,
)

HASHES = {name: hashlib.sha256(name.encode()).hexdigest() for name in "abcdefgh"}
BASE = {
    "tokenizer": Expected("tokenizer", "quick", 120, HASHES["a"]),
    "forward": Expected("forward", "quick", 3, HASHES["b"]),
}


def stage(name: str, digest: str | None = None, **more: object) -> StageRun:
    """A stage as a browser ran it; equal to the baseline if no digest is given."""
    base = BASE[name]
    found = base.digest if digest is None else digest
    return StageRun(name, "quick", base.vectors, found, 1.5, verdict_of(found, base.vectors, base), **more)  # type: ignore[arg-type]


def failed_stage(name: str) -> StageRun:
    """A stage that came to nothing."""
    failure = Failure("device.lost", "the GPU was lost <b>")
    return StageRun(name, "quick", 0, None, 0.5, "failed", failure=failure)


def cell(browser: str, executor: str, *stages: StageRun, **more: object) -> Cell:
    """A cell with these stages."""
    fields: dict[str, object] = {
        "browser": browser,
        "browser_version": "156.0",
        "user_agent": "Mozilla/5.0 <script>alert(1)</script>",
        "executor": executor,
        "isolated": executor != "wasm-plain",
        "threads": 2 if executor == "wasm" else None,
        "adapter": "SIMD, 2 threads",
        "versions": {"pyodide": "314.0.3", "numpy": "2.4.3"},
        "seconds": 12.25,
        "stages": stages,
    }
    return Cell(**{**fields, **more})  # type: ignore[arg-type]


def certificate(*cells: Cell, **more: object) -> Certificate:
    """A certificate of these cells."""
    fields: dict[str, object] = {
        "made_at": "2026-11-30T14:40:00Z",
        "program": "slm2-web parity",
        "program_version": "0.1.0",
        "command": "slm2-web parity --out DIR",
        "size": "quick",
        "site": HASHES["h"],
        "artifacts": (
            Artifact("model", "models/tiny/manifest.json", 1234, HASHES["c"]),
            Artifact("kernel", "worker/wasm/forward.wasm", 5678, HASHES["d"]),
        ),
        "implementation": {"name": "CPython", "suite": "1"},
        "baseline": tuple(BASE.values()),
        "cells": cells,
    }
    return Certificate(**{**fields, **more})  # type: ignore[arg-type]


def all_kinds() -> Certificate:
    """A certificate with a cell that is equal, one that differs, one that failed, one that is absent."""
    difference = Difference(7, {"text": "é\ud800<i>"}, {"ids": [1, 2]}, {"ids": [1, 3]})
    return certificate(
        cell("chromium", "wasm", stage("tokenizer"), stage("forward")),
        cell("firefox", "wasm", stage("tokenizer", HASHES["e"], difference=difference), stage("forward")),
        cell(
            "firefox", "webgpu", stage("tokenizer"), failed_stage("forward"), notes=("In size quick only.",)
        ),
        cell("webkit", "webgpu", absence="this browser has no WebGPU (navigator.gpu is undefined)"),
        cell("webkit", "wasm", failure=Failure("browser.late", "nothing new for 9 s")),
    )


def equal() -> Certificate:
    """A certificate in which nothing differs."""
    return certificate(
        cell("chromium", "wasm", stage("tokenizer"), stage("forward")),
        cell("webkit", "webgpu", absence="no WebGPU"),
    )
