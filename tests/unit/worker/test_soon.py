"""worker/soon.js in Node: in order, at once, and no message waits for long."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

WORKER = Path(__file__).resolve().parents[3] / "worker"
SCRIPT = Path(__file__).with_name("soon.mjs")


def test_callbacks_run_in_order_and_let_messages_in() -> None:
    node = shutil.which("node")
    assert node, "Node.js is needed for the tests of the worker"
    done = subprocess.run([node, SCRIPT, WORKER], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["calls"] == 3000
    assert found["inOrder"]
    assert found["heard"], "a message is read while Python goes on"
    assert found["ran"] == ["first", "last"]
    assert found["errors"] == ["on purpose"]
    assert found["timer"] >= 29
