"""Bytecode for the browser's Python: a start that compiles no source.

Pyodide's standard library, numpy and our package come as sources, which every start would compile anew.
This module lets the very Python that will run them do it once: Pyodide under Node.js imports what a visit
imports, and the modules that are in memory then are replaced in their archives by their bytecode. All
others stay sources, which are smaller.

Bytecode belongs to one minor version of Python, so the Python that builds the site can't write it. Without
Node.js there is none, and the site is as good, but starts slower.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from slm2_web.compile import browser_wheel, bytecode_job

MIN_NODE: Final = 20
STDLIB: Final = "python_stdlib.zip"
_LIMIT_S: Final = 300
_VERSION_LIMIT_S: Final = 20

# Run by Node.js: the runtime's folder, the job, where its answer goes, the wheels.
_NODE: Final = """
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const [runtime, job, out, ...wheels] = process.argv.slice(1);
try {
  const { loadPyodide } = await import(pathToFileURL(`${runtime}/pyodide.mjs`).href);
  const env = { HOME: "/home/pyodide", PYTHONHASHSEED: "0" };
  const pyodide = await loadPyodide({ indexURL: `${runtime}/`, packages: [], env });
  const extractDir = pyodide.runPython("import site; site.getsitepackages()[0]");
  for (const wheel of wheels) {
    pyodide.unpackArchive(new Uint8Array(readFileSync(wheel)), "wheel", { extractDir });
  }
  pyodide.runPython(readFileSync(job, "utf8"));
  pyodide.globals.get("run")("/out.zip");
  writeFileSync(out, pyodide.FS.readFile("/out.zip"));
} catch (error) {
  // Where Node.js reports by itself it quotes the line, which in Pyodide is a megabyte.
  console.error(String(error));
  process.exitCode = 1;
}
"""


class BytecodeError(Exception):
    """Node.js is there and could not do it; the message has its output."""


def find_node() -> str | None:
    """Node.js, MIN_NODE or later, or None."""
    node = shutil.which("node")
    if node is None:
        return None
    try:
        done = subprocess.run(
            [node, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_VERSION_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):  # a program of another machine, say
        return None
    major = done.stdout.strip().removeprefix("v").partition(".")[0]
    return node if done.returncode == 0 and major.isdecimal() and int(major) >= MIN_NODE else None


def add_bytecode(node: str, runtime: Path, wheels: Sequence[Path], store: Path) -> None:
    """Rewrites the standard library in the folder `runtime`, which holds Pyodide's own files, and the wheels:
    what is imported on a visit is there as bytecode. `store` keeps what was compiled, by its sources.

    The same files give the same bytes.

    Raises: BytecodeError.
    """
    sources = [*(path for path in sorted(runtime.iterdir()) if path.is_file()), *wheels]
    digest = hashlib.sha256(Path(__file__).read_bytes() + Path(bytecode_job.__file__).read_bytes())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    kept = store / f"{digest.hexdigest()[:32]}.zip"
    compiled = _read(kept)
    if compiled is None:
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=store) as folder:
            fresh = Path(folder) / "out.zip"
            _run(node, runtime, wheels, fresh)
            os.replace(fresh, kept)
        compiled = _read(kept)
        if compiled is None:
            raise BytecodeError(f"Pyodide under {node} wrote something else than a zip file")
    for archive, part in ((runtime / STDLIB, "lib"), *((wheel, "site") for wheel in wheels)):
        browser_wheel.replace_sources(archive, compiled[part])


def _run(node: str, runtime: Path, wheels: Sequence[Path], out: Path) -> None:
    job = str(bytecode_job.__file__)
    try:
        done = subprocess.run(
            [node, "--input-type=module", "-e", _NODE, "--", *map(str, (runtime, job, out, *wheels))],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise BytecodeError(f"Pyodide under {node} is not done after {_LIMIT_S} s") from None
    if done.returncode or not out.exists():
        lines = [line[:300] for line in (done.stdout + done.stderr).splitlines()[-20:]]
        raise BytecodeError("\n".join((f"Pyodide under {node} failed:", *lines)))


def _read(kept: Path) -> Mapping[str, Mapping[str, bytes]] | None:
    """{"lib" or "site": {path of a source: its bytecode}}; None for a file that is missing or damaged."""
    compiled: dict[str, dict[str, bytes]] = {"lib": {}, "site": {}}
    try:
        with zipfile.ZipFile(kept) as archive:
            for name in archive.namelist():
                part, _, path = name.partition("/")
                compiled[part][path] = archive.read(name)
    except (FileNotFoundError, zipfile.BadZipFile, zlib.error, EOFError, KeyError):
        return None
    return compiled
