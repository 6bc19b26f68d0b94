"""Two certificates side by side."""

from __future__ import annotations

from dataclasses import replace

from certificates import BASE, HASHES, all_kinds, cell, certificate, equal, stage
from slm2_web.parity.certificate import Artifact, Difference
from slm2_web.parity_run.compare import compare


def test_a_certificate_is_the_same_as_itself() -> None:
    found = compare(all_kinds(), all_kinds())
    assert found.is_same
    # Two stages each of chromium wasm and firefox wasm, one of firefox webgpu; baselines are no run.
    assert found.compared == 5
    assert found.as_json() == {
        "same": True,
        "compared": 5,
        "verdicts": ["differs", "differs"],
        "artifacts": [],
        "baseline": [],
        "stages": [],
        "alone": ["firefox/webgpu forward (quick): failed in both"],
        "environment": [],
    }


def test_another_artifact_is_told_by_its_path() -> None:
    a = equal()
    other = Artifact("kernel", "worker/wasm/forward.wasm", 5678, HASHES["g"])
    more = Artifact("wheel", "wheels/x.whl", 1, HASHES["f"])
    found = compare(a, replace(a, artifacts=(a.artifacts[0], other, more)))
    assert found.artifacts == (
        ("wheels/x.whl", None, HASHES["f"]),
        ("worker/wasm/forward.wasm", HASHES["d"], HASHES["g"]),
    )
    assert not found.is_same


def test_another_digest_is_told_by_cell_and_stage() -> None:
    difference = Difference(0, "in", 1, 2)
    wrong = stage("forward", HASHES["e"], difference=difference)
    b = certificate(cell("chromium", "wasm", stage("tokenizer"), wrong))
    found = compare(equal(), b)
    assert found.stages == (("chromium/wasm", "forward", HASHES["b"], HASHES["e"]),)
    assert not found.is_same


def test_another_baseline_counts() -> None:
    other = replace(BASE["forward"], digest=HASHES["e"])
    b = certificate(
        cell("chromium", "wasm", replace(stage("forward", HASHES["e"]), verdict="equal")),
        baseline=(BASE["tokenizer"], other),
    )
    assert compare(equal(), b).baseline == (("forward", "quick", HASHES["b"], HASHES["e"]),)


def test_another_browser_version_is_told_and_counts_for_nothing() -> None:
    a = equal()
    newer = replace(a.cells[0], browser_version="157.0", versions={"pyodide": "315.0", "numpy": "2.4.3"})
    found = compare(a, replace(a, cells=(newer, a.cells[1])))
    assert found.environment == (
        ("chromium/wasm", "browser", "156.0", "157.0"),
        ("chromium/wasm", "pyodide", "314.0.3", "315.0"),
    )
    assert found.is_same


def test_what_only_one_has_is_told() -> None:
    a, b = equal(), certificate(cell("firefox", "wasm", stage("tokenizer")), baseline=(BASE["tokenizer"],))
    found = compare(a, b)
    assert found.alone == (
        "baseline of forward (quick): only in a",
        "chromium/wasm: ran only in a",
        "firefox/wasm: ran only in b",
    )
    assert not found.is_same, "a common baseline is no run"


def test_nothing_in_common_is_not_the_same() -> None:
    b = certificate(cell("firefox", "wasm", absence="no"), baseline=(), artifacts=equal().artifacts)
    found = compare(equal(), b)
    assert found.compared == 0
    assert not found.is_same
