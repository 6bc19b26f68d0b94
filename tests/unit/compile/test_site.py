"""The site from a small stand-in checkout, with the real wheel builder; and what our own sources promise."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slm2_web import __version__
from slm2_web.compile import browser_wheel, licenses
from slm2_web.compile.assets import Asset, Fetcher, parse_assets
from slm2_web.compile.integrity import integrity_of
from slm2_web.compile.site import SITE_FILE, STAMP_FILE, SiteError, build_site, compress
from slm2_web.compile.sources import UrlSource
from slm2_web.compile.vendor import SCRIPTS
from slm2_web.errors import AssetError, FormatError, InputError
from slm2_web.manifest import (
    FileEntry,
    Manifest,
    ModelConfig,
    TemplateSpec,
    TensorEntry,
    manifest_bytes,
    parse_manifest,
)

ROOT = Path(__file__).parents[3]


def zipped(*names: str) -> bytes:
    """A zip file with these members, each with its name in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), f"# {name}\n")
    return buffer.getvalue()


SOURCES = {
    "web/index.html": b"<!doctype html>" + b" " * 500,
    "web/storage.html": b"<!doctype html>",
    "web/tokenizer.html": b"<!doctype html>",
    "web/sw.js": b"// service worker",
    "web/main.js": b"export {};" * 100,
    "web/part/deep.js": b"export {};",
    "web/types.d.ts": b"export {};",
    "web/.DS_Store": b"junk",
    "worker/worker.js": b"export {};",
    "worker/tsconfig.json": b"{}",
    "worker/gpu/device.js": b"export {};",
    "worker/wasm/kernel.c": b"int f;",
    "worker/wasm/kernel.wasm": b"\0asm",
    "worker/shaders/a.wgsl": b"fn f() {}",
    "py/slm2_web/__init__.py": b"",
    "py/slm2_web/client.py": b"",
    "py/slm2_web/bench/run.py": b"",
    "py/slm2_web/cli/__init__.py": b"",
    "py/slm2_web/cli/app.py": b"",
    "py/slm2_web/compile/pack.py": b"",
    "py/slm2_web/compile/published/x.json": b"",
    "py/slm2_web/forward2/native_gpu.py": b"",
    "py/slm2_web/forward2/plan.py": b"",
    "README.md": b"# stand-in",
    "LICENSE": b"stand-in",
}
PYODIDE = {
    "pyodide.mjs": b"export {};",
    "pyodide.asm.mjs": b"export {};" * 50,
    "pyodide.asm.wasm": b"\0asm" * 50,
    "python_stdlib.zip": zipped("os.py", "encodings/cp437.py", "encodings/cp1250.py", "unittest/mock.py"),
    "console.html": b"not needed",
}
WHEELS = ("numpy",)
# What a wheel has that numpy's loses.
UNUSED = (
    "random/mtrand.so",
    "random/__init__.py",
    "_core/include/x.h",
    "__init__.pyi",
    "linalg/lapack_lite.so",
)
VENDORED = {
    "markdown-it": ("markdown-it-1.2.tgz", "markdown-it.mjs"),
    "dompurify": ("dompurify-3.4.tgz", "dompurify.mjs"),
}


def wheel_of(name: str) -> bytes:
    """A wheel with a licence in its metadata, one beside its code, and one in a module's name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in (f"{name}-1.dist-info/licenses/deep/LICENSE", f"{name}/LICENSE", f"{name}/licenses.py"):
            archive.writestr(zipfile.ZipInfo(file), f"terms of {name} in {file}")
        for file in UNUSED:
            archive.writestr(zipfile.ZipInfo(f"{name}/{file}"), "not used")
        archive.writestr(
            zipfile.ZipInfo(f"{name}-1.dist-info/RECORD"),
            "".join(f"{file},,\n" for file in archive.namelist()),
        )
    return buffer.getvalue()


def entry(name: str, data: bytes) -> FileEntry:
    return FileEntry(name, len(data), hashlib.sha256(data).hexdigest())


class Checkout:
    """A small repository, its assets (in the cache already) and its models."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        for name, data in SOURCES.items():
            self.write(name, data)
        shutil.copy(ROOT / "pyproject.toml", self.root)
        self.cache = folder / "cache"
        self.cache.mkdir()
        wheels = {name: wheel_of(name) for name in WHEELS}
        self.lock: dict[str, Any] = {
            "info": {"python": "3.14.0"},
            "packages": {
                name: {
                    "name": name,
                    "file_name": f"{name}-1-py3-none-any.whl",
                    "sha256": hashlib.sha256(wheels.get(name, b"")).hexdigest(),
                    "depends": [],
                }
                for name in (*WHEELS, "scipy")
            },
        }
        self.assets: dict[str, Asset] = {}
        for name, data in wheels.items():
            self.add_asset(name, f"{name}-1-py3-none-any.whl", data)
        self.add_pyodide()
        for script in SCRIPTS:
            members = {
                script.member: f"export default '{script.asset}';".encode(),
                script.license: b"MIT terms",
            }
            self.add_tarball(script.asset, VENDORED[script.asset][0], members)
        self.model = folder / "models" / "tiny"
        self.add_model()

    def write(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def add_asset(self, name: str, file: str, data: bytes) -> None:
        digest = hashlib.sha256(data).hexdigest()
        (self.cache / digest).write_bytes(data)
        nowhere = (UrlSource("http://127.0.0.1:9/"),)
        self.assets[name] = Asset(name, file, len(data), digest, "MIT", nowhere)

    def add_pyodide(self) -> None:
        members = PYODIDE | {"pyodide-lock.json": json.dumps(self.lock).encode()}
        self.add_tarball(
            "pyodide", "pyodide-1.2.3.tgz", {f"package/{name}": data for name, data in members.items()}
        )

    def add_tarball(self, asset: str, file: str, members: Mapping[str, bytes]) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        # Without the clock that gzip writes by itself: the licences tell the file's hash.
        self.add_asset(asset, file, gzip.compress(buffer.getvalue(), mtime=0))

    def add_model(self) -> None:
        self.model.mkdir(parents=True)
        tokenizer, weights = b"tokens " * 100, bytes(256)
        shard = entry(f"weights-00.{hashlib.sha256(weights).hexdigest()[:8]}.bin", weights)
        config = ModelConfig("llama", 32, 32, 1, 1, 1, 32, 10, 1e-5, 16)
        manifest = Manifest(
            name="tiny",
            title="Tiny",
            license="MIT",
            source=entry("tiny.gguf", b"gguf"),
            config=config,
            tokenizer=entry("tokenizer.slm2tok", tokenizer),
            template=TemplateSpec("chatml", None),
            eos_ids=(1,),
            defaults={},
            weights_bytes=256,
            shards=(shard,),
            tensors={"final_norm": TensorEntry("f32", (1, 32), {"values": 0})},
        )
        (self.model / "manifest.json").write_bytes(manifest_bytes(manifest))
        (self.model / "tokenizer.slm2tok").write_bytes(tokenizer)
        (self.model / shard.file).write_bytes(weights)
        (self.model / "scribble.txt").write_bytes(b"not of the model")
        self.shard = shard.file

    def build(self, out: Path, *, isolate: bool = False, docs: Path | None = None) -> bool:
        fetcher = Fetcher(self.assets, self.cache, say=lambda text: None)
        return build_site(
            self.root,
            out,
            [self.model],
            fetcher,
            lambda text: None,
            isolate=isolate,
            docs=docs,
            has_bytecode=False,
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_isolation_is_asked_for_in_the_page(checkout: Checkout, tmp_path: Path) -> None:
    page, out = checkout.root / "web/index.html", tmp_path / "site"
    with pytest.raises(SiteError, match=r"index\.html: found 0 times <meta"):
        checkout.build(out, isolate=True)
    assert not out.exists()

    line = '<meta name="slm2-isolation" content="%s">'
    page.write_text(f"<!doctype html>{line % 'headers'}<p>é</p>", "utf-8")
    assert checkout.build(out)
    plain = files_of(out)
    assert line % "headers" in plain["index.html"].decode()
    assert checkout.build(out, isolate=True)
    isolated = files_of(out)
    assert isolated["index.html"] == f"<!doctype html>{line % 'service-worker'}<p>é</p>".encode()
    changed = {name for name in plain if plain[name] != isolated[name]}
    assert changed == {"index.html", "site.json", "site.json.gz", ".stamp.json"}
    assert not checkout.build(out, isolate=True)


def test_documentation_is_no_part_of_the_version(checkout: Checkout, tmp_path: Path) -> None:
    docs, out = tmp_path / "docs", tmp_path / "site"
    (docs / "_static").mkdir(parents=True)
    script = b"console.log(1);"
    (docs / "_static" / "docs.js").write_bytes(script)
    (docs / "index.html").write_text('<script type="module" src="_static/docs.js"></script>', "utf-8")
    lines = '<p>\n  Read it.\n  Or <a href="docs/index.html">more</a>.\n</p>'
    (checkout.root / "web/index.html").write_text(lines, "utf-8")
    assert checkout.build(out)
    without = files_of(out)
    assert without["index.html"] == b"<p>\n  Read it.\n</p>"
    assert checkout.build(out, docs=docs)
    found = files_of(out)
    assert found["index.html"].decode() == lines
    # What a visit fetches lists none of it; its own list has all of it, with the hashes that its pages name.
    assert not any(path.startswith("docs/") for path in json.loads(found["site.json"])["files"])
    listed = json.loads(found["docs/files.json"])
    own = {name for name in found if name.startswith("docs/") and not name.endswith((".gz", "files.json"))}
    assert listed.keys() == own == {"docs/index.html", "docs/_static/docs.js"}
    for name, entry in listed.items():
        assert entry == {"bytes": len(found[name]), "sha256": hashlib.sha256(found[name]).hexdigest()}
    assert f'integrity="{integrity_of(script)}"' in found["docs/index.html"].decode()
    # A change is built; the version stays.
    (docs / "index.html").write_text("<p>other", "utf-8")
    assert checkout.build(out, docs=docs)
    assert (out / "docs/index.html").read_text("utf-8") == "<p>other"
    assert (out / "site.json").read_bytes() == found["site.json"]
    assert not checkout.build(out, docs=docs)


def test_what_is_in_it(checkout: Checkout, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert checkout.build(out) is True
    files = files_of(out)
    site = json.loads(files[SITE_FILE])
    assert set(site) == {
        "format",
        "version",
        "default_model",
        "models",
        "wheel",
        "numpy",
        "stdlib",
        "runtime",
        "files",
    }
    assert (site["default_model"], site["models"]) == ("tiny", ["tiny"])
    runtime = site["runtime"]
    assert runtime == "runtime/pyodide-1.2.3"
    assert site["numpy"] == f"{runtime}/{placed_wheels(out)['numpy']}"
    digest = hashlib.sha256(files[site["stdlib"]]).hexdigest()
    assert site["stdlib"] == f"{runtime}/python_stdlib-{digest[:8]}.zip"
    with zipfile.ZipFile(out / site["stdlib"]) as library:
        assert library.namelist() == ["os.py", "encodings/cp437.py"]
    assert set(site["files"]) == {
        "index.html",
        "storage.html",
        "sw.js",
        "tokenizer.html",
        "web/main.js",
        "web/part/deep.js",
        "worker/worker.js",
        "worker/gpu/device.js",
        "worker/wasm/kernel.wasm",
        "worker/shaders/a.wgsl",
        *(f"{runtime}/{name}" for name in PYODIDE if name not in ("console.html", "python_stdlib.zip")),
        site["stdlib"],
        f"{runtime}/pyodide-lock.json",
        *(f"{runtime}/{name}" for name in placed_wheels(out).values()),
        "models/tiny/manifest.json",
        "models/tiny/tokenizer.slm2tok",
        f"models/tiny/{checkout.shard}",
        *(f"vendor/{script.file}" for script in SCRIPTS),
        "LICENSES.txt",
        site["wheel"],
    }
    for name, data in files.items():
        if name.endswith(".gz"):
            assert gzip.decompress(data) == files[name.removesuffix(".gz")]
        elif name not in (SITE_FILE, STAMP_FILE):
            assert site["files"][name] == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert {
        "index.html.gz",
        "web/main.js.gz",
        "models/tiny/tokenizer.slm2tok.gz",
        f"{runtime}/pyodide.asm.wasm.gz",
    } <= set(files)
    assert not any(name.endswith((".bin.gz", ".whl.gz", ".zip.gz")) for name in files)
    assert "sw.js.gz" not in files  # would not be smaller


def placed_wheels(out: Path) -> dict[str, str]:
    """The wheels' names in the runtime's folder, by package, as its lock file has them."""
    lock = json.loads((out / "runtime/pyodide-1.2.3/pyodide-lock.json").read_bytes())
    return {name: entry["file_name"] for name, entry in lock["packages"].items()}


def test_numpy_comes_without_what_is_not_used(checkout: Checkout, tmp_path: Path) -> None:
    """Under a name of its own, as browsers may keep the whole one for ever; the lock knows its hash."""
    checkout.build(tmp_path / "out")
    folder = tmp_path / "out/runtime/pyodide-1.2.3"
    lock = json.loads((folder / "pyodide-lock.json").read_bytes())
    for name, file in placed_wheels(tmp_path / "out").items():
        data = (folder / file).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        assert lock["packages"][name]["sha256"] == digest
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = set(archive.namelist())
            recorded = archive.read(f"{name}-1.dist-info/RECORD").decode().splitlines()
        assert {line.split(",")[0] for line in recorded} == names - {f"{name}-1.dist-info/RECORD"}
        unused = {f"{name}/{each}" for each in UNUSED}
        assert file == f"numpy-1-0{digest[:8]}-py3-none-any.whl"
        assert not unused & names


def test_the_runtimes_lock_knows_its_wheels_only(checkout: Checkout, tmp_path: Path) -> None:
    checkout.build(tmp_path / "out")
    lock = json.loads((tmp_path / "out/runtime/pyodide-1.2.3/pyodide-lock.json").read_bytes())
    assert lock["info"] == checkout.lock["info"]
    assert set(lock["packages"]) == set(WHEELS)


def test_the_wheel_holds_what_runs_in_the_browser(checkout: Checkout, tmp_path: Path) -> None:
    checkout.build(tmp_path / "out")
    (wheel,) = (tmp_path / "out/wheels").glob("*/*.whl")
    assert wheel.name == "slm2_web-0.1.0-py3-none-any.whl"
    assert wheel.parent.name == hashlib.sha256(wheel.read_bytes()).hexdigest()[:8]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        recorded = {line.split(",")[0] for line in archive.read(record).decode().splitlines()}
    assert recorded == names
    assert not any(name.endswith("entry_points.txt") for name in names)
    assert {name for name in names if ".dist-info/" not in name} == {
        "slm2_web/__init__.py",
        "slm2_web/client.py",
        "slm2_web/forward2/plan.py",
        "slm2_web/shaders/a.wgsl",
    }


def test_the_licences_of_every_part(checkout: Checkout, tmp_path: Path) -> None:
    """Each part with its version, licence and origin; our text and those that the wheels bring."""
    asset = checkout.assets["numpy"]
    checkout.assets["numpy"] = replace(asset, license="BSD-3-Clause AND 0BSD")
    checkout.build(tmp_path / "out")
    page = (tmp_path / "out/LICENSES.txt").read_text("utf-8")
    for name, version in (("slm2_web", __version__), ("pyodide", "1.2.3"), ("CPython", "3.14.0")):
        assert f"\n{name} {version}\n" in page
    assert page.count("    licence   ") == page.count("    source    ") == 4 + len(WHEELS) + len(VENDORED)
    for name, file in placed_wheels(tmp_path / "out").items():
        whole = f"{name}-1-py3-none-any.whl"
        how = ", unchanged" if file == whole else f": files of {whole}, each unchanged or as bytecode"
        assert f"\n{name} 1\n    files     runtime/pyodide-1.2.3/{file}{how}\n" in page
        assert f"{file}: licenses/deep/LICENSE\n" in page
        assert f"terms of {name} in {name}-1.dist-info/licenses/deep/LICENSE" in page
        assert f"terms of {name} in {name}/" not in page
    assert "    licence   BSD-3-Clause AND 0BSD\n" in page
    assert "\nTiny tiny\n    files     models/tiny/\n    licence   MIT\n    source    tiny.gguf" in page
    assert "stand-in" in page  # our own LICENSE
    checkout.assets["numpy"] = asset
    assert checkout.build(tmp_path / "out") is True


def test_every_part_of_the_runtime_says_where_its_source_is() -> None:
    assets = parse_assets((ROOT / "assets.toml").read_text("utf-8"))
    for name, place in licenses.SOURCE_CODE.items():
        part = dict(licenses.of_asset(assets[name], "runtime"))
        assert part[name] == re.search(r"-(\d+[\d.]*\d)", assets[name].file)[1]  # type: ignore[index]
        assert part["source"] == place
        assert part["licence"] == assets[name].license
    assert set(licenses.SOURCE_CODE) == {"pyodide", "regex", *WHEELS, *VENDORED}


def test_a_model_without_weights_is_no_model_for_a_site(checkout: Checkout, tmp_path: Path) -> None:
    path = checkout.model / "manifest.json"
    manifest = parse_manifest(path.read_bytes())
    path.write_bytes(manifest_bytes(replace(manifest, weights_bytes=0, shards=(), tensors={})))
    with pytest.raises(InputError, match=r"tiny has no weights.*tiny\.gguf"):
        checkout.build(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed the wheel that `pip wheel .` makes of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index", "-q")
    make = [*pip, "wheel", *offline, "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(make, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1767225600"})
    (wheel,) = folder.glob("*.whl")
    target = folder / "installed"
    subprocess.run([*pip, "install", *offline, "--target", str(target), str(wheel)], check=True)
    return target


def test_the_command_works_from_a_wheel(installed: Path, packed_tiny: Path, tmp_path: Path) -> None:
    """Far from any checkout, with nothing of it on the path: the command that the wheel declares."""

    def slm2_web(command: str, request: object, *more: str) -> Any:
        done = subprocess.run(
            [sys.executable, str(installed / "bin" / "slm2-web"), command, "--model", "tiny", *more],
            input=json.dumps(request).encode(),
            capture_output=True,
            cwd=tmp_path,
            env={"PATH": "", "PYTHONPATH": str(installed), "SLM2_MODELS": str(packed_tiny.parent)},
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return json.loads(done.stdout)

    ids = slm2_web("tokenize", {"text": "Hello"})["ids"]
    assert slm2_web("detokenize", {"ids": ids}) == {"text": "Hello"}
    asked = {"messages": [{"role": "user", "content": "Hi"}], "params": {"max_tokens": 1}}
    found = [slm2_web("generate", asked, "--executor", name) for name in ("reference", "wasm")]
    assert len(found[0]["generated_ids"]) == 1
    assert found[0]["logit_digests"] == found[1]["logit_digests"]


def test_the_wheel_holds_the_whole_package(installed: Path) -> None:
    sources = {p.relative_to(ROOT / "py") for p in (ROOT / "py").rglob("*") if p.suffix in (".py", ".json")}
    assert sources <= {p.relative_to(installed) for p in installed.rglob("*")}
    assert {p.name for p in (ROOT / "worker/shaders").glob("*.wgsl")} <= {
        p.name for p in (installed / "slm2_web/shaders").iterdir()
    }


def test_what_runs_in_the_browser_needs_nothing_that_is_cut(installed: Path, tmp_path: Path) -> None:
    """Every module of the trimmed wheel imports without click, the compilers and the command line."""
    whole = tmp_path / "slm2_web-0-py3-none-any.whl"
    with zipfile.ZipFile(whole, "w") as archive:
        for path in sorted((installed / "slm2_web").rglob("*.py")):
            archive.write(path, path.relative_to(installed).as_posix())
        archive.writestr("slm2_web-0.dist-info/RECORD", "")
    (tmp_path / "browser").mkdir()
    trimmed = browser_wheel.trim(whole, tmp_path / "browser")
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in zipfile.ZipFile(trimmed).namelist()
        if name.endswith(".py") and "/bridge/" not in name
    ]
    assert "slm2_web.session" in modules
    assert not any(re.match(r"slm2_web\.(bench|cli|compile)\b|.*native", name) for name in modules)
    program = (
        "import importlib, sys\n"
        "sys.modules['click'] = None\n"  # as if it were not installed
        "for name in sys.argv[1:]: importlib.import_module(name)"
    )
    subprocess.run(
        [sys.executable, "-c", program, *modules],
        check=True,
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": str(trimmed)},
    )


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):  # two checkouts, nothing shared
        (tmp_path / name).mkdir()
        Checkout(tmp_path / name).build(tmp_path / name / "out")
    one, two = (files_of(tmp_path / name / "out") for name in ("one", "two"))
    del one[STAMP_FILE], two[STAMP_FILE]  # says when files were written
    assert one == two


def test_built_again_only_when_something_changed(checkout: Checkout, tmp_path: Path) -> None:
    out = tmp_path / "out"
    checkout.build(out)
    version = json.loads((out / SITE_FILE).read_bytes())["version"]
    assert checkout.build(out) is False
    checkout.write("web/main.js", b"export const changed = 1;")
    assert checkout.build(out) is True
    assert json.loads((out / SITE_FILE).read_bytes())["version"] != version
    assert (out / "web/main.js").read_bytes() == b"export const changed = 1;"
    checkout.write("py/slm2_web/__init__.py", b"changed = 1")
    wheel = json.loads((out / SITE_FILE).read_bytes())["wheel"]
    assert checkout.build(out) is True
    assert json.loads((out / SITE_FILE).read_bytes())["wheel"] != wheel
    assert not (out / wheel).exists()
    assert checkout.build(out) is False


def test_where_a_models_file_comes_from_is_a_part_of_it(checkout: Checkout, tmp_path: Path) -> None:
    checkout.add_asset("tiny.gguf", "tiny.gguf", b"gguf")
    for port in (9, 10):
        url = f"http://127.0.0.1:{port}/tiny.gguf"
        checkout.assets["tiny.gguf"] = replace(checkout.assets["tiny.gguf"], sources=(UrlSource(url),))
        assert checkout.build(tmp_path / "out") is True
        assert f"    from      {url}\n" in (tmp_path / "out/LICENSES.txt").read_text("utf-8")
        assert checkout.build(tmp_path / "out") is False


def test_an_interrupt_while_it_is_put_in_place_leaves_the_old_one(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    checkout.build(out)
    before = files_of(out)
    checkout.write("web/main.js", b"export const changed = 1;")
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if Path(target) == out and self.name == "new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkout.build(out)
    assert files_of(out) == before
    assert not list(tmp_path.glob(".out-*"))


@pytest.mark.parametrize("damage", ["changed", "removed", "added"])
def test_a_site_that_was_touched_is_mended(checkout: Checkout, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    checkout.build(out)
    before = files_of(out)
    shard = out / "models/tiny" / checkout.shard
    if damage == "changed":
        shard.write_bytes(b"\1" + bytes(255))
    elif damage == "removed":
        shard.unlink()
    else:
        (out / "web/extra.js").write_bytes(b"")
    assert checkout.build(out) is True
    after = files_of(out)
    del before[STAMP_FILE], after[STAMP_FILE]
    assert before == after
    # The model itself was not tied to the damaged copy.
    assert (checkout.model / checkout.shard).read_bytes() == bytes(256)


def test_another_persons_folder_is_left_alone(checkout: Checkout, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_bytes(b"precious")
    with pytest.raises(SiteError, match="not a site"):
        checkout.build(out)
    (out / SITE_FILE).write_bytes(b'{"format": "another"}')
    with pytest.raises(SiteError, match="not a site"):
        checkout.build(out)
    assert (out / "thesis.txt").read_bytes() == b"precious"
    file = tmp_path / "file"
    file.write_bytes(b"precious")
    with pytest.raises(SiteError, match="not a site"):
        checkout.build(file)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert checkout.build(empty) is True


def test_a_model_that_is_not_what_its_manifest_says(checkout: Checkout, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (checkout.model / checkout.shard).write_bytes(b"\1" + bytes(255))
    with pytest.raises(FormatError) as caught:
        checkout.build(out)
    assert caught.value.code == "format.model_file"
    assert not out.exists()
    assert not list(tmp_path.glob(".out-*"))


def test_wheels_that_the_runtime_does_not_lock(checkout: Checkout, tmp_path: Path) -> None:
    checkout.lock["packages"]["numpy"]["sha256"] = "0" * 64
    checkout.add_pyodide()
    with pytest.raises(AssetError, match="numpy"):
        checkout.build(tmp_path / "out")


def test_an_asset_that_is_not_there(checkout: Checkout, tmp_path: Path) -> None:
    numpy = checkout.assets["numpy"] = replace(
        checkout.assets["numpy"], sources=(UrlSource("http://127.0.0.1:9/"),)
    )
    (checkout.cache / numpy.sha256).unlink()
    with pytest.raises(AssetError) as caught:
        checkout.build(tmp_path / "out")
    assert caught.value.code == "asset.unreachable"


def test_the_second_opinion_is_there_where_it_can_be_had(checkout: Checkout, tmp_path: Path) -> None:
    file = "regex-1-py3-none-any.whl"
    data = wheel_of("regex")
    digest = hashlib.sha256(data).hexdigest()
    checkout.lock["packages"]["regex"] = {"file_name": file, "sha256": digest, "depends": []}
    checkout.add_pyodide()
    checkout.add_asset("regex", file, data)
    out = tmp_path / "out"
    assert checkout.build(out) is True
    assert (out / "runtime/pyodide-1.2.3" / file).read_bytes() == data
    assert f"runtime/pyodide-1.2.3/{file}" in json.loads((out / SITE_FILE).read_bytes())["files"]
    assert "regex 1\n" in (out / "LICENSES.txt").read_text("utf-8")
    (checkout.cache / digest).unlink()
    assert checkout.build(out) is True
    assert not any("regex" in path for path in json.loads((out / SITE_FILE).read_bytes())["files"])
    assert checkout.build(out) is False


def test_a_wheel_that_can_not_be_built(checkout: Checkout, tmp_path: Path) -> None:
    (checkout.root / "README.md").unlink()
    with pytest.raises(SiteError, match="README"):
        checkout.build(tmp_path / "out")


def test_compressed_bytes_carry_no_date() -> None:
    assert compress(b"x" * 100)[4:8] == bytes(4)


# --- Our own sources --------------------------------------------------------------------------------

SHIPPED = sorted(
    p
    for folder in ("web", "worker")
    for p in (ROOT / folder).rglob("*")
    if p.suffix in (".js", ".html", ".css", ".svg")
)
# The start of a string, an attribute or a url(), and then another origin.
ABSOLUTE = re.compile(r"""(["'`(=]\s*)((?:https?:|wss?:)?//[\w.-]+)""")
# A name, not an address: nothing is asked there.
NAMES = {"http://www.w3.org"}


def test_there_are_sources() -> None:
    assert {"index.html", "sw.js", "client.js", "worker.js"} <= {p.name for p in SHIPPED}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_source_names_another_origin(path: Path) -> None:
    found = {match[2] for match in ABSOLUTE.finditer(path.read_text("utf-8"))}
    assert found <= NAMES


def test_the_check_for_other_origins_finds_them() -> None:
    for text in (
        'src="https://a.b/c"',
        "import('//cdn.x/y')",
        "url( http://a/b)",
        "`wss://a`",
        "href=https://x",
    ):
        assert ABSOLUTE.search(text)
    for text in (
        'import "./a.js"; // see https://a.b',
        "/* https://a.b */",
        "new URL('../', import.meta.url)",
    ):
        assert not ABSOLUTE.search(text)


def test_a_script_that_its_tarball_has_not(checkout: Checkout, tmp_path: Path) -> None:
    checkout.add_tarball("dompurify", "dompurify-3.4.tgz", {"package/LICENSE": b"MIT terms"})
    with pytest.raises(AssetError, match=r"dompurify: found no package/dist/purify\.es\.mjs") as caught:
        checkout.build(tmp_path / "out")
    assert caught.value.code == "asset.hash"
    assert not (tmp_path / "out").exists()


def test_vendored_scripts_are_as_they_came(checkout: Checkout, tmp_path: Path) -> None:
    checkout.build(tmp_path / "out")
    for script in SCRIPTS:
        text = f"export default '{script.asset}';"
        assert (tmp_path / "out" / "vendor" / script.file).read_text("utf-8") == text
    page = (tmp_path / "out" / "LICENSES.txt").read_text("utf-8")
    assert "markdown-it 1.2\n    files     vendor/markdown-it.mjs, unchanged\n" in page
    assert page.count("MIT terms") == len(SCRIPTS)
