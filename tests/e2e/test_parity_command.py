"""`slm2-web parity` in Chromium, Firefox and WebKit: a reduced form of the suite, and its certificate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from e2e.conftest import ROOT
from slm2_web.parity.certificate import parse
from slm2_web.parity_run.compare import compare

BROWSERS = ("chromium", "firefox", "webkit")
# All of the default model's, what the tiny Qwen3 computes, and what only a page can be asked.
STAGES = ("tokenizer", "template", "prompt", "sampling", "stream", "forward", "chat",
          "forward.qwen3", "chat.qwen3", "boundary")  # fmt: skip


@pytest.mark.timeout(1500)  # a machine that does other things
def test_three_browsers_and_cpython_have_the_same_bits(site: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slm2_web.cli", "parity", "--browsers", ",".join(BROWSERS)]
    command += ["--executors", "wasm", "--size", "quick", "--stages", ",".join(STAGES)]
    command += ["--cpython", "wasm", "--site", str(site), "--out", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "py")}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "equal"
    assert answer["page"] == str(tmp_path / "certificate.html")
    found = parse((tmp_path / "certificate.json").read_bytes())
    assert found.verdict == "equal"
    assert [cell.name for cell in found.cells] == [f"{name}/wasm" for name in ("cpython", *BROWSERS)]
    for cell in found.cells:
        wanted = set(STAGES) - ({"boundary"} if cell.browser == "cpython" else set())
        assert {stage.name for stage in cell.stages} == wanted
        digests = {stage.name: stage.digest for stage in cell.stages}
        for other in found.cells:
            assert all(digests.get(s.name, s.digest) == s.digest for s in other.stages)
        if cell.browser != "cpython":
            assert cell.isolated
            assert cell.browser_version in (tmp_path / "certificate.html").read_text("utf-8")
            assert cell.threads is not None
            assert cell.threads >= 1
    assert compare(found, found).is_same


def started_by(mark: str) -> list[str]:
    """The programs that run with a word in their environment."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (each / "environ").read_bytes():
                found.append((each / "comm").read_text().strip())
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


def test_what_it_has_started_ends_with_it(site: Path, tmp_path: Path) -> None:
    """Told to end while a browser is at work."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "slm2_web.cli", "parity", "--browsers", "webkit", "--executors", "wasm"]
    command += ["--size", "quick", "--cpython", "none", "--site", str(site), "--out", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "py"), "SLM2_TEST_MARK": mark}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        end = time.monotonic() + 60
        while not any(name.startswith("MiniBrowser") for name in started_by(mark)):
            assert time.monotonic() < end
            time.sleep(0.1)
        time.sleep(1)
        assert len(started_by(mark)) > 3
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "cancelled" in said.decode().splitlines()[-1]
    end = time.monotonic() + 10
    while left := started_by(mark):
        assert time.monotonic() < end, left
        time.sleep(0.1)
