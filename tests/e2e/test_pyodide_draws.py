"""The draws of tests/draws.py in Pyodide, in Node and in Chromium: the ids of CPython."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import draws

TESTS = Path(__file__).resolve().parents[1]
COUNT = 10_000

# `PACKAGE` holds the wheel's own bytes; the code's last line is the answer.
PROGRAM = """
import io, sys, zipfile
zipfile.ZipFile(io.BytesIO(bytes(wheel))).extractall("/package")
sys.path.insert(0, "/package")
exec(compile(code, "draws.py", "exec"), globals())
digest(draws([], count))
"""

NODE = """
import { readFileSync } from "node:fs";
const [runtime, stdlib, wheel, code, program, count] = process.argv.slice(2);
const { loadPyodide } = await import(`${runtime}/pyodide.mjs`);
const pyodide = await loadPyodide({ indexURL: `${runtime}/`, stdLibURL: stdlib });
await pyodide.loadPackage("numpy", { messageCallback: () => {} });
pyodide.globals.set("wheel", new Uint8Array(readFileSync(wheel)));
pyodide.globals.set("code", readFileSync(code, "utf8"));
pyodide.globals.set("count", Number(count));
console.log(pyodide.runPython(readFileSync(program, "utf8")));
"""

PAGE = """
async ({ runtime, stdlib, wheel, code, program, count }) => {
  const { loadPyodide } = await import(`${runtime}/pyodide.mjs`);
  const pyodide = await loadPyodide({ indexURL: `${runtime}/`, stdLibURL: stdlib });
  await pyodide.loadPackage("numpy", { messageCallback: () => {} });
  pyodide.globals.set("wheel", new Uint8Array(await (await fetch(wheel)).arrayBuffer()));
  pyodide.globals.set("code", code);
  pyodide.globals.set("count", count);
  return pyodide.runPython(program);
}
"""


@pytest.fixture(scope="module")
def expected() -> str:
    return draws.digest(draws.draws([], COUNT))


def test_node(site: Path, expected: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node, "no Node"
    (tmp_path / "run.mjs").write_text(NODE)
    (tmp_path / "program.py").write_text(PROGRAM)
    (runtime,) = site.glob("runtime/pyodide-*")
    (stdlib,) = runtime.glob("python_stdlib-*.zip")
    (wheel,) = site.glob("wheels/*/*.whl")
    args: list[object] = [
        node,
        tmp_path / "run.mjs",
        runtime,
        stdlib,
        wheel,
        TESTS / "draws.py",
        tmp_path / "program.py",
        str(COUNT),
    ]
    done = subprocess.run(
        [str(arg) for arg in args], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().splitlines()[-1] == expected


def test_chromium(site: Path, url: str, chromium: Browser, expected: str) -> None:
    (runtime,) = site.glob("runtime/pyodide-*")
    (stdlib,) = runtime.glob("python_stdlib-*.zip")
    (wheel,) = site.glob("wheels/*/*.whl")
    page = chromium.new_page()
    # A page of the site's origin with nothing on it.
    page.route(
        f"{url}draws.html", lambda route: route.fulfill(content_type="text/html", body="<title>draws</title>")
    )
    page.goto(f"{url}draws.html")
    found = page.evaluate(
        PAGE,
        {
            "runtime": f"{url}{runtime.relative_to(site).as_posix()}",
            "stdlib": f"{url}{stdlib.relative_to(site).as_posix()}",
            "wheel": f"{url}{wheel.relative_to(site).as_posix()}",
            "code": (TESTS / "draws.py").read_text("utf-8"),
            "program": PROGRAM,
            "count": COUNT,
        },
    )
    page.close()
    assert found == expected
