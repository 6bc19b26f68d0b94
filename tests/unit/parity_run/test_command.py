"""`slm2-web parity`: exit statuses, what it writes, what it refuses; --compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from certificates import HASHES, all_kinds, cell, certificate, equal, stage
from slm2_web import cli
from slm2_web.errors import BrowserError
from slm2_web.parity.certificate import Certificate, Failure, parse, write
from slm2_web.parity_run import run as runs

Command = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def command(capsysbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs `slm2-web parity`: (exit status, the JSON of stdout or None, stderr)."""

    def run(*arguments: object) -> tuple[int, Any, str]:
        status = cli.run(["parity", *map(str, arguments)])
        captured = capsysbinary.readouterr()
        out = json.loads(captured.out) if captured.out else None
        return status, out, captured.err.decode()

    return run


def failed() -> Certificate:
    return certificate(cell("firefox", "wasm", failure=Failure("browser.late", "nothing new")))


@pytest.mark.parametrize(("made", "status"), [(equal(), 0), (all_kinds(), 1), (failed(), 2)])
def test_the_verdict_is_the_exit_status(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Certificate, status: int
) -> None:
    asked: list[runs.Options] = []

    def scripted(options: runs.Options, progress: runs.Progress, ended: runs.Ended) -> Certificate:
        asked.append(options)
        progress("chromium wasm", "forward", 1, 3)
        for each in made.cells:
            ended(each)
        return replace(made, command=options.command)

    monkeypatch.setattr(runs, "run_parity", scripted)
    out = tmp_path / "out"
    browsers = "chromium,webkit@http://farm.test:4444"
    found, answer, err = command("--browsers", browsers, "--size", "quick", "--out", out)
    assert found == status
    assert answer["verdict"] == made.verdict
    assert [each["verdict"] for each in answer["cells"]] == [each.verdict for each in made.cells]
    written = parse(Path(answer["certificate"]).read_bytes())
    assert written.cells == made.cells
    # A farm's address is nobody's business.
    assert written.command == "slm2-web parity --browsers chromium,webkit@URL --size quick --out DIR"
    assert "farm.test" not in (out / "certificate.html").read_text()
    assert len(err.splitlines()) == 1 + len(made.cells)
    assert "chromium wasm: forward" in err
    assert [str(spec) for spec in asked[0].specs] == browsers.split(",")
    assert asked[0].executors == ("webgpu", "wasm", "wasm-plain")


def test_what_differs_is_told_in_words(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runs, "run_parity", lambda *_: all_kinds())
    _, answer, _ = command("--out", tmp_path)
    whys = [each["why"] for each in answer["cells"]]
    assert whys == [
        None,
        "tokenizer differs from record 7 on",
        "forward: the GPU was lost <b>",
        "this browser has no WebGPU (navigator.gpu is undefined)",
        "nothing new for 9 s",
    ]


def test_a_missing_browser_ends_with_2(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: object) -> Certificate:
        raise BrowserError("browser.missing", "webkit is not installed")

    monkeypatch.setattr(runs, "run_parity", missing)
    status, out, err = command("--out", tmp_path)
    assert (status, out) == (2, None)
    assert json.loads(err)["error"]["code"] == "browser.missing"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--out", "OUT", "--browsers", "netscape"],
        ["--out", "OUT", "--browsers", ""],
        ["--out", "OUT", "--executors", "cuda"],
        ["--out", "OUT", "--size", "huge"],
        ["--out", "OUT", "--without", "netscape"],
        ["--out", "OUT", "--site", "no/such/folder"],
        ["--compare", "no/such/file", "no/such/file"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(command: Command, tmp_path: Path, arguments: list[str]) -> None:
    words = [str(tmp_path / "out") if word == "OUT" else word for word in arguments]
    status, out, err = command(*words)
    assert (status, out) == (2, None)
    assert err
    assert not (tmp_path / "out").exists()


def test_compare_says_whether_two_are_the_same(command: Command, tmp_path: Path) -> None:
    other = certificate(cell("chromium", "wasm", stage("tokenizer"), stage("forward", HASHES["e"])))
    files = {"a": write(equal()), "b": write(other), "c": b'{"format": 1}'}
    a, b, c = (tmp_path / name for name in files)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    status, answer, _ = command("--compare", a, a)
    assert (status, answer["same"], answer["compared"]) == (0, True, 2)
    status, answer, _ = command("--compare", a, b)
    assert (status, answer["same"]) == (1, False)
    assert answer["stages"] == [
        {"cell": "chromium/wasm", "stage": "forward", "a": HASHES["b"], "b": HASHES["e"]}
    ]
    status, answer, err = command("--compare", a, c)
    assert (status, answer) == (2, None)
    assert json.loads(err)["error"]["code"] == "format.certificate"
