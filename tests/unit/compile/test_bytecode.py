"""What a first visit fetches of the real site: its bytes, its bytecode; and what becomes of archives."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from slm2_web.compile import browser_wheel, bytecode
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.site import build_site
from slm2_web.compile.visit import LIMIT_BYTES, first_visit, table, whole

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(packed_smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with bytecode."""
    assert bytecode.find_node(), "Node.js 20 or later is needed for the tests"
    out = tmp_path_factory.mktemp("bytecode") / "site"
    build_site(ROOT, out, [packed_smollm2], Fetcher.from_environment(ROOT), print)
    return out


def test_a_first_visit_is_less_than_ten_megabytes(site: Path) -> None:
    parts = first_visit(site)
    print(table(site))
    assert sum(part.sent_bytes for part in parts) < whole(site).sent_bytes < LIMIT_BYTES
    assert {part.name for part in parts} >= {"Pyodide", "standard library", "numpy", "slm2_web"}
    assert all(0 < part.sent_bytes <= part.bytes for part in parts)


def test_what_a_visit_imports_is_bytecode(site: Path) -> None:
    facts = json.loads((site / "site.json").read_bytes())
    for path, there, source in (
        (facts["stdlib"], "asyncio/base_events", "difflib"),
        (facts["numpy"], "numpy/__init__", "numpy/lib/recfunctions"),
        (facts["wheel"], "slm2_web/bridge/engine", "slm2_web/parity/opinion"),
    ):
        with zipfile.ZipFile(site / path) as archive:
            names = set(archive.namelist())
            assert {f"{there}.pyc", f"{source}.py"} <= names
            assert not {f"{there}.py", f"{source}.pyc"} & names
            code = archive.read(f"{there}.pyc")
            # CPython 3.14's magic number, and PEP 552's flags of a hash that is not checked.
            assert int.from_bytes(code[:2], "little") // 10 == 362
            assert code[4:8] == bytes((1, 0, 0, 0))
            for record in (name for name in names if name.endswith(".dist-info/RECORD")):
                lines = archive.read(record).decode().splitlines()
                assert {line.split(",")[0] for line in lines} == names
                digest = base64.urlsafe_b64encode(hashlib.sha256(code).digest()).rstrip(b"=").decode()
                assert f"{there}.pyc,sha256={digest},{len(code)}" in lines


def package() -> bytes:
    """This package's sources and shaders as a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for folder, inside, pattern in (("py/slm2_web", "", "*.py"), ("worker/shaders", "shaders/", "*")):
            for path in sorted((ROOT / folder).rglob(pattern)):
                if path.is_file():
                    name = f"slm2_web/{inside}{path.relative_to(ROOT / folder).as_posix()}"
                    archive.writestr(zipfile.ZipInfo(name), path.read_bytes())
    return buffer.getvalue()


def test_the_same_sources_give_the_same_bytes(site: Path, tmp_path: Path) -> None:
    """Compiled anew, without what an earlier build has kept."""
    facts = json.loads((site / "site.json").read_bytes())
    node = bytecode.find_node()
    assert node
    found = []
    for name in ("a", "b"):
        runtime = tmp_path / name
        runtime.mkdir()
        for path in (site / facts["runtime"]).iterdir():
            if path.suffix != ".whl":
                copy = bytecode.STDLIB if path.suffix == ".zip" else path.name
                (runtime / copy).write_bytes(path.read_bytes())
        wheels = []
        for key in ("numpy", "wheel"):
            wheels.append(tmp_path / f"{name}-{key}" / Path(facts[key]).name)
            wheels[-1].parent.mkdir()
            wheels[-1].write_bytes((site / facts[key]).read_bytes())
        # Bytecode has no sources to compile; this package has.
        sources = package()
        wheels[-1].write_bytes(sources)
        bytecode.add_bytecode(node, runtime, wheels, tmp_path / f"{name}-store")
        found.append(wheels[-1].read_bytes())
        assert found[-1] != sources
    assert found[0] == found[1]


def test_a_job_that_fails_says_why(tmp_path: Path) -> None:
    node = bytecode.find_node()
    assert node
    (tmp_path / "pyodide.mjs").write_text(
        "export const loadPyodide = () => { throw new Error('as asked'); };"
    )
    with pytest.raises(bytecode.BytecodeError, match="as asked"):
        bytecode.add_bytecode(node, tmp_path, (), tmp_path / "store")
    assert not list((tmp_path / "store").iterdir())


def test_old_or_no_node_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bytecode.find_node() is None
    node = tmp_path / "node"
    for version, is_found in (("v18.20.1", False), ("what", False), ("v20.0.0", True)):
        node.write_text(f"#!/bin/sh\necho {version}\n")
        node.chmod(0o755)
        assert (bytecode.find_node() is not None) is is_found


def test_bytecode_takes_its_sources_place(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/__init__.py", "x = 1")
        archive.writestr("a/b.py", "y = 1")
        archive.writestr("a-1.dist-info/RECORD", "a/__init__.py,,\na/b.py,,\na-1.dist-info/RECORD,,\n")
    browser_wheel.replace_sources(wheel, {"a/b.py": b"code"})
    with zipfile.ZipFile(wheel) as archive:
        assert archive.namelist() == ["a/__init__.py", "a/b.pyc", "a-1.dist-info/RECORD"]
        assert archive.read("a/b.pyc") == b"code"
        lines = archive.read("a-1.dist-info/RECORD").decode().splitlines()
    assert lines[0] == "a/__init__.py,,"
    assert lines[1].startswith("a/b.pyc,sha256=")
