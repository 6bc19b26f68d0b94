"""web/tabs/fairqueue.js in Node, beside a queue that is written for reading alone."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

WEB = Path(__file__).resolve().parents[3] / "web"
SCRIPT = Path(__file__).with_name("fair_queue.mjs")


def run(steps: list[list[Any]]) -> list[Any]:
    node = shutil.which("node")
    assert node, "Node.js is needed for the tests of the page"
    done = subprocess.run(
        [node, SCRIPT, WEB], input=json.dumps(steps), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    given: list[Any] = json.loads(done.stdout)
    return given


def test_tabs_take_turns() -> None:
    """A greedy tab's later requests stand behind the first ones of the others."""
    pushes: list[list[Any]] = [["push", tab, n] for n, tab in enumerate("aaabbc")]
    shifts: list[list[Any]] = [["shift"]] * 7
    given = run([*pushes, ["order"], *shifts])
    assert given[6] == given[7:13] == [0, 3, 5, 1, 4, 2]
    assert given[13] is None


def test_who_comes_again_stands_behind_who_waits() -> None:
    steps: list[list[Any]] = [
        ["push", "a", 0],
        ["shift"],
        ["push", "b", 1],
        ["push", "a", 2],
        ["shift"],
        ["push", "b", 3],
    ]
    assert run([*steps, ["order"]])[-1] == [2, 3]


def test_any_steps_keep_order_and_lose_nothing() -> None:
    rng = random.Random(8)
    steps: list[list[Any]] = []
    expected: list[Any] = []
    tabs: list[tuple[str, list[int]]] = []
    for n in range(3000):
        step = rng.choices(["push", "shift", "remove", "order"], [5, 4, 1, 1])[0]
        if step == "push":
            tab = rng.choice("abcd")
            steps.append(["push", tab, n])
            row = next((row for name, row in tabs if name == tab), None)
            if row is None:
                tabs.append((tab, [n]))
            else:
                row.append(n)
        elif step == "shift":
            steps.append(["shift"])
            first = None
            if tabs:
                tab, row = tabs.pop(0)
                first = row.pop(0)
                if row:
                    tabs.append((tab, row))
            expected.append((len(steps) - 1, first))
        elif step == "remove":
            victim = rng.randrange(n + 1)
            steps.append(["remove", victim])
            found = [victim] if any(victim in row for _, row in tabs) else []
            tabs = [(tab, [each for each in row if each != victim]) for tab, row in tabs]
            tabs = [(tab, row) for tab, row in tabs if row]
            expected.append((len(steps) - 1, found))
        else:
            steps.append(["order"])
            expected.append((len(steps) - 1, in_order(tabs)))
    given = run(steps)
    assert [(index, given[index]) for index, _ in expected] == expected
    assert sum(isinstance(value, int) for _, value in expected) > 500


def in_order(tabs: list[tuple[str, list[int]]]) -> list[int]:
    """What `shift` will give, one after the other."""
    left = [(tab, list(row)) for tab, row in tabs]
    order = []
    while left:
        tab, row = left.pop(0)
        order.append(row.pop(0))
        if row:
            left.append((tab, row))
    return order
