"""What a first visit fetches of the real site: its bytes, its bytecode; and what becomes of archives."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from slm2_web.compile import browser_wheel, bytecode
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.install import install_parity
from slm2_web.compile.site import SiteError, build_site
from slm2_web.compile.visit import LIMIT_BYTES, first_visit, table, whole

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site(packed_smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with bytecode."""
    assert bytecode.find_node(), "Node.js 20 or later is needed for the tests"
    out = tmp_path_factory.mktemp("bytecode") / "site"
    fetcher = Fetcher.from_environment(ROOT)
    build_site(ROOT, out, [packed_smollm2], fetcher, print, hidden=[install_parity(ROOT, print)])
    return out


def test_a_first_visit_is_less_than_ten_megabytes(site: Path) -> None:
    parts = first_visit(site)
    print(table(site))
    assert sum(part.sent_bytes for part in parts) < whole(site).sent_bytes < LIMIT_BYTES
    assert {part.name for part in parts} >= {"Pyodide", "standard library", "numpy", "slm2_web"}
    assert all(0 < part.sent_bytes <= part.bytes for part in parts)


def test_the_documentations_table_is_the_sites(site: Path) -> None:
    """To 0.1 MB, which another gzip may cost. After a change: python -m slm2_web.compile visit dist."""
    page = (ROOT / "docs" / "building.md").read_text("utf-8")
    rows = [line.split("|")[1:4] for line in table(site).splitlines()]
    place = page.index("|".join(("", *rows[0], "")))
    told = [line.split("|")[1:4] for line in page[place:].split("\n\n")[0].splitlines()]
    assert [row[0] for row in told] == [row[0] for row in rows]
    for (part, *ours), (_, *theirs) in zip(rows[2:], told[2:], strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert float(one) == pytest.approx(float(other), abs=0.11), part


def test_the_licences_say_what_became_of_the_files(site: Path) -> None:
    facts = json.loads((site / "site.json").read_bytes())
    page = (site / "LICENSES.txt").read_text("utf-8")
    asset = Fetcher.from_environment(ROOT).assets["numpy"]
    assert f"{facts['numpy']}: files of {asset.file}, each unchanged or as bytecode\n" in page
    with (
        zipfile.ZipFile(Fetcher.from_environment(ROOT).fetch("numpy")) as whole,
        zipfile.ZipFile(site / facts["numpy"]) as placed,
    ):
        sources, kinds = set(whole.namelist()), set()
        for name in placed.namelist():
            if not name.endswith(".dist-info/RECORD"):
                kinds.add("unchanged" if name in sources else "bytecode")
                assert name.removesuffix("c") in sources
                assert name not in sources or placed.read(name) == whole.read(name), name
    assert kinds == {"unchanged", "bytecode"}
    # Of Pyodide's own files just the two that the page names are others.
    runtime = facts["runtime"]
    but = "unchanged, but for pyodide-lock.json and the standard library"
    assert f"{runtime}/ without the wheels; {but}\n" in page
    with tarfile.open(Fetcher.from_environment(ROOT).fetch("pyodide"), "r:gz") as archive:
        changed = set()
        for path in (site / runtime).iterdir():
            if path.suffix not in (".whl", ".gz"):
                name = f"package/{path.name}"
                file = archive.extractfile(name) if name in archive.getnames() else None
                if file is None or file.read() != path.read_bytes():
                    changed.add(path.relative_to(site).as_posix())
    assert changed == {facts["stdlib"], f"{runtime}/pyodide-lock.json"}


@pytest.mark.parametrize("missing", ["stdlib", "numpy", "files"])
def test_a_site_of_another_version_is_said(missing: str, site: Path, tmp_path: Path) -> None:
    facts = json.loads((site / "site.json").read_bytes())
    del facts[missing]
    (tmp_path / "site.json").write_text(json.dumps(facts), "utf-8")
    with pytest.raises(SiteError, match=rf"site\.json: found no {missing}; allowed: a site of version"):
        table(tmp_path)


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


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    """Compiled anew, from what the publishers give and without what an earlier build has kept."""
    fetcher = Fetcher.from_environment(ROOT)
    node = bytecode.find_node()
    assert node
    found = []
    for name in ("a", "b"):
        runtime, work = tmp_path / name / "runtime", tmp_path / name
        runtime.mkdir(parents=True)
        with tarfile.open(fetcher.fetch("pyodide"), "r:gz") as archive:
            for file in ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", bytecode.STDLIB):
                member = archive.extractfile(f"package/{file}")
                assert member
                (runtime / file).write_bytes(member.read())
            lock = archive.extractfile("package/pyodide-lock.json")
            assert lock
            text = json.dumps(json.load(lock) | {"packages": {}})
            (runtime / "pyodide-lock.json").write_text(text, "utf-8")
        numpy = work / fetcher.assets["numpy"].file
        numpy.write_bytes(fetcher.fetch("numpy").read_bytes())
        own = work / "slm2_web-0-py3-none-any.whl"
        own.write_bytes(package())
        archives = (runtime / bytecode.STDLIB, numpy, own)
        before = [path.read_bytes() for path in archives]
        bytecode.add_bytecode(node, runtime, (numpy, own), work / "store")
        found.append([path.read_bytes() for path in archives])
        assert all(old != new for old, new in zip(before, found[-1], strict=True))
    assert found[0] == found[1]


def test_what_was_kept_and_is_damaged_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def run(node: str, runtime: Path, wheels: object, out: Path) -> None:
        runs.append(node)
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("lib/os.py", b"code")

    monkeypatch.setattr(bytecode, "_run", run)
    found = []
    for damage in (lambda data: data, lambda data: data[:20], lambda data: data, lambda data: b""):
        for path in (tmp_path / "store").glob("*.zip"):
            path.write_bytes(damage(path.read_bytes()))
        (tmp_path / "runtime").mkdir(exist_ok=True)
        with zipfile.ZipFile(tmp_path / "runtime" / bytecode.STDLIB, "w") as archive:
            archive.writestr(zipfile.ZipInfo("os.py"), "x = 1")
        bytecode.add_bytecode("node", tmp_path / "runtime", (), tmp_path / "store")
        found.append((len(runs), (tmp_path / "runtime" / bytecode.STDLIB).read_bytes()))
    assert [n for n, _ in found] == [1, 2, 2, 3]
    assert len({data for _, data in found}) == 1


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
    node.write_text("#!/bin/sh\nprintf 'v20\\377'\n")  # no text
    assert bytecode.find_node() is None
    node.write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    monkeypatch.setattr(bytecode, "_VERSION_LIMIT_S", 0.1)
    assert bytecode.find_node() is None


def test_bytecode_takes_its_sources_place(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        # Not where it should be, at the end.
        archive.writestr("a-1.dist-info/RECORD", "a/__init__.py,,\na/b.py,,\na-1.dist-info/RECORD,,\n")
        archive.writestr("a/__init__.py", "x = 1")
        archive.writestr("a/b.py", "y = 1")
    browser_wheel.replace_sources(wheel, {"a/b.py": b"code"})
    with zipfile.ZipFile(wheel) as archive:
        assert archive.namelist() == ["a/__init__.py", "a/b.pyc", "a-1.dist-info/RECORD"]
        assert archive.read("a/b.pyc") == b"code"
        lines = archive.read("a-1.dist-info/RECORD").decode().splitlines()
    assert lines[0] == "a/__init__.py,,"
    assert lines[1].startswith("a/b.pyc,sha256=")
