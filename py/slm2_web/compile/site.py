"""The static site: every file that the page needs, in one folder that any web server can serve.

    index.html  embed.html  storage.html  tokenizer.html  parity.html  bench.html
                                           from web/, with hashes on what they load (integrity.py)
    sw.js  manifest.webmanifest            from web/
    web/  worker/                          as they are in the repository
    vendor/                                other people's scripts that the page runs
    runtime/pyodide-VERSION/               the parts of Pyodide that the page loads, numpy, the parity suite's
                                           regex, and a lock file that knows these only; the standard library
                                           and numpy trimmed, with bytecode where Node.js can write it
    wheels/HASH8/slm2_web-*.whl            this package, as far as it runs in a browser, likewise
    models/NAME/                           packed models; the parity suite's own, which the page doesn't offer
    docs/                                  the documentation (docs.py), when it is asked for, and files.json,
                                           the list of it
    LICENSES.txt                           what all that is, whose, and under which licences
    site.json                              the list of it all:

        {"format": "slm2-site", "version", "default_model", "models": [NAME], "wheel": PATH, "numpy": PATH,
         "stdlib": PATH, "runtime": PATH, "files": {PATH: {"bytes", "sha256"}}}

`version` is a digest of `files` and `default_model`: it changes when any byte does. Not of the documentation:
no visit needs it, so docs/files.json lists it, as `files` does. Beside each file that shrinks well lies
PATH.gz for servers that send it instead; it is the same file, so no list has it. All paths are relative: the
site works under any base path.

The folder is written beside its place and then put there by renaming. Building again with the same inputs
touches nothing: `.stamp.json` says what the folder was made from and how its files looked then.
"""

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
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slm2_web import __version__
from slm2_web.compile import browser_wheel, bytecode, integrity, licenses, vendor
from slm2_web.compile.assets import Fetcher, file_sha256, locked
from slm2_web.compile.folders import copy, paths_in, replacing
from slm2_web.errors import AssetError, FormatError, InputError
from slm2_web.manifest import parse_manifest

FORMAT = "slm2-site"
SITE_FILE = "site.json"
LICENSES_FILE = "LICENSES.txt"
STAMP_FILE = ".stamp.json"
_DOCS = "docs"
DOCS_FILE = "files.json"

# The asset that is Pyodide, what the page needs of it, and its packages (each an asset of the same name).
_PYODIDE = "pyodide"
_PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", bytecode.STDLIB)
_PYODIDE_LOCK = "pyodide-lock.json"
_NUMPY = "numpy"
_WHEELS = (_NUMPY,)
# The parity suite's second opinion, which only its page loads; the site does without where it can't be had.
_OPINION = "regex"

# Sources that are served from the root, not from web/: pages; a service worker and an app's manifest, whose
# scope is their folder.
_AT_ROOT = (
    "index.html",
    "embed.html",
    "storage.html",
    "tokenizer.html",
    "parity.html",
    "bench.html",
    "manifest.webmanifest",
    "sw.js",
)
# How the page says by what it is isolated (web/isolation.js).
_BY_HEADERS = '<meta name="slm2-isolation" content="headers">'
_BY_WORKER = '<meta name="slm2-isolation" content="service-worker">'
# How the page leads to the documentation, where there is one.
_TO_DOCS = re.compile(r'\n[^\n]*<a href="docs/index\.html">[^\n]*')
# What lies beside the shipped sources for tools and readers only.
_NOT_SHIPPED = re.compile(r"(^|/)\.|(^|/)__pycache__/|\.d\.ts$|\.c$|\.md$|(^|/)tsconfig[^/]*\.json$")

_COMPRESSIBLE = {
    ".css",
    ".html",
    ".js",
    ".json",
    ".mjs",
    ".slm2tok",
    ".svg",
    ".txt",
    ".wasm",
    ".wgsl",
    ".webmanifest",
}
# Less than that is not worth a second file.
_MIN_SAVING = 0.05
# Any date will do, as long as it is always the same; zip knows none before 1980.
EPOCH = "1767225600"


class SiteError(OSError):
    """A site or a package can't be built: the place, what was found, what is allowed."""


def build_site(
    root: Path,
    out: Path,
    models: Sequence[Path],
    fetcher: Fetcher,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    *,
    hidden: Sequence[Path] = (),
    isolate: bool = False,
    docs: Path | None = None,
    work: Path | None = None,
    has_bytecode: bool = True,
) -> bool:
    """True when `out` was built from the sources at `root`, False when it was up to date.

    `models` are packed models' directories; the first is the default. `hidden` are there beside them, and
    are not in the list of models that the page offers. `isolate` has the page ask its service worker for the
    headers COOP and COEP, for hosts that can't send them. `docs` is a folder of pages that becomes docs/.
    `work` is where build/ is kept, by default `root`. Sources without this package's own are those of an
    installed wheel (place.py). `has_bytecode`: where there is Node.js, Python's modules are compiled.

    Raises: SiteError when `out` holds something that is not a site, or the wheel can't be built; InputError
        `input.model` for a model without weights; AssetError; FormatError.
    """
    build = (work or root) / "build"
    build.mkdir(parents=True, exist_ok=True)
    with locked(build / "site.lock", lambda: say("waiting for another build")):
        node = bytecode.find_node() if has_bytecode else None
        return _build(root, build, out, (models, hidden, docs), fetcher, say, isolate, node)


def _build(
    root: Path,
    build: Path,
    out: Path,
    parts: tuple[Sequence[Path], Sequence[Path], Path | None],
    fetcher: Fetcher,
    say: Callable[[str], None],
    isolate: bool,
    node: str | None,
) -> bool:
    models, hidden, docs = parts
    _check_replaceable(out)
    all_models = [*models, *hidden]
    _check_weights(all_models)
    sources = dict(_sources(root, docs))
    wheels = _obtainable(fetcher, say)
    key = _key(root, sources, (models, hidden), wheels, fetcher, (isolate, node is not None))
    if _is_current(out, key):
        return False
    say(f"building the site in {out}")
    if node is None:
        say("without bytecode, which Node.js would write: the page starts slower")
    with replacing(out) as new:
        for path, source in sources.items():
            copy(source, new / path)
        if isolate:
            _ask_for_isolation(new / "index.html")
        if docs is None:
            _drop_link_to_docs(new / "index.html")
        texts = vendor.add_scripts(new, fetcher)
        for page in sorted([*new.glob("*.html"), *new.glob(f"{_DOCS}/**/*.html")]):
            _write(page, integrity.guard(new, page.relative_to(new).as_posix()))
        paths = _add_runtime(new, root, build, wheels, fetcher, node)
        for model in all_models:
            _add_model(new, model)
        _write(new / LICENSES_FILE, _licenses(new, root, paths, all_models, texts, fetcher))
        files = _listed(new)
        # A visit needs no documentation: its files have a list of their own, and are of no version.
        of_docs = {path: files.pop(path) for path in list(files) if path.startswith(f"{_DOCS}/")}
        if of_docs:
            (new / _DOCS / DOCS_FILE).write_bytes(_json(of_docs))
        _check_models(all_models, files)
        site: dict[str, Any] = {"default_model": models[0].name, "files": files}
        site = {
            "format": FORMAT,
            "version": hashlib.sha256(_json(site)).hexdigest(),
            "default_model": models[0].name,
            "models": [model.name for model in models],
            **paths,
            "files": files,
        }
        (new / SITE_FILE).write_bytes(_json(site))
        _add_compressed(new, build / "gz")
        looks = {path: _look(new / path) for path in paths_in(new)}
        (new / STAMP_FILE).write_bytes(_json({"key": key, "files": looks}))
    return True


def _listed(site: Path) -> dict[str, dict[str, Any]]:
    """Every file with its size and hash."""
    return {
        path: {"bytes": (site / path).stat().st_size, "sha256": file_sha256(site / path)}
        for path in paths_in(site)
    }


def _check_replaceable(out: Path) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        ours = json.loads((out / SITE_FILE).read_bytes())["format"] == FORMAT
    except (OSError, ValueError, LookupError, TypeError):
        ours = False
    if not ours:
        raise SiteError(
            f"{out} holds something that is not a site; allowed: a new or empty folder, or a site"
        )


def _check_weights(models: Sequence[Path]) -> None:
    for model in models:
        manifest = parse_manifest((model / "manifest.json").read_bytes())
        if not manifest.shards:
            raise InputError(
                "input.model",
                f"{model} has no weights, and the page needs them: {manifest.source.file} could not be had",
            )


def _sources(root: Path, docs: Path | None) -> Iterator[tuple[str, Path]]:
    """(path in the site, file) of each source that is shipped as it is."""
    if docs is not None:
        yield from ((f"{_DOCS}/{path}", docs / path) for path in paths_in(docs))
    for source in shipped_sources(root):
        path = source.relative_to(root).as_posix()
        name = path.removeprefix("web/")
        yield name if name in _AT_ROOT else path, source


def shipped_sources(root: Path) -> Iterator[Path]:
    """The files of web/ and worker/ that are shipped as they are, in order."""
    for folder in ("web", "worker"):
        for path in paths_in(root / folder):
            if not _NOT_SHIPPED.search(path):
                yield root / folder / path


def _has_package(root: Path) -> bool:
    """Do this package's own sources lie beside the site's?"""
    return (root / "py" / "slm2_web").is_dir()


def _wheel_digest(root: Path) -> str:
    """A digest of all that the wheel is made from: the whole package, and so this program too.

    Raises: OSError for an installation that is not whole.
    """
    if not _has_package(root):
        installed = browser_wheel.installed_files()
        return _digest((name, hashlib.sha256(data).hexdigest()) for name, data in sorted(installed.items()))
    names = ["pyproject.toml", "README.md", "LICENSE"]
    for folder in ("py/slm2_web", "worker/shaders"):
        names += [f"{folder}/{path}" for path in paths_in(root / folder) if "__pycache__" not in path]
    return _digest((name, file_sha256(root / name)) for name in names if (root / name).is_file())


def _digest(files: Iterable[tuple[str, str]]) -> str:
    """A digest of names and their files' hashes."""
    digest = hashlib.sha256()
    for name, sha256 in files:
        digest.update(name.encode() + b"\0" + sha256.encode() + b"\n")
    return digest.hexdigest()


def _drop_link_to_docs(page: Path) -> None:
    _write(page, _TO_DOCS.sub("", page.read_text("utf-8")))


def _ask_for_isolation(page: Path) -> None:
    text = page.read_text("utf-8")
    if text.count(_BY_HEADERS) != 1:
        raise SiteError(f"{page.name}: found {text.count(_BY_HEADERS)} times {_BY_HEADERS}; allowed: once")
    _write(page, text.replace(_BY_HEADERS, _BY_WORKER))


def _obtainable(fetcher: Fetcher, say: Callable[[str], None]) -> Sequence[str]:
    """The names of the wheels that the site has."""
    if _OPINION not in fetcher.assets:
        return _WHEELS
    try:
        fetcher.fetch(_OPINION)
    except AssetError as error:
        say(f"the site has no second opinion on the tokenizer's split: {error}")
        return _WHEELS
    return (*_WHEELS, _OPINION)


def _key(
    root: Path,
    sources: Mapping[str, Path],
    models: Sequence[Sequence[Path]],
    wheels: Sequence[str],
    fetcher: Fetcher,
    options: tuple[bool, ...],
) -> str:
    """A digest of all that the site is made from. A model's manifest stands for its files."""
    parts = [
        _digest((path, file_sha256(source)) for path, source in sources.items()),
        _wheel_digest(root),
        [[(model.name, file_sha256(model / "manifest.json")) for model in some] for some in models],
        wheels,
        # Not only those that are copied: LICENSES.txt says where a model's file comes from.
        repr(sorted(fetcher.assets.items())),
        options,
    ]
    return hashlib.sha256(_json(parts)).hexdigest()


def _is_current(out: Path, key: str) -> bool:
    """Made from the same inputs, and nobody has touched it since."""
    try:
        stamp = json.loads((out / STAMP_FILE).read_bytes())
        return bool(
            stamp["key"] == key
            and all(_look(out / path) == look for path, look in stamp["files"].items())
            and set(paths_in(out)) - {STAMP_FILE} == set(stamp["files"])
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _look(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _add_runtime(
    new: Path, root: Path, build: Path, wheels: Sequence[str], fetcher: Fetcher, node: str | None
) -> dict[str, str]:
    """{"wheel", "numpy", "stdlib", "runtime"}: the paths of this package, numpy, the standard library and the
    runtime's folder, after putting them into the site."""
    tarball = fetcher.assets[_PYODIDE]
    folder = f"runtime/{tarball.file.removesuffix('.tgz')}"
    lock = _add_pyodide(new / folder, fetcher.fetch(_PYODIDE))
    browser_wheel.trim_stdlib(new / folder / bytecode.STDLIB)
    with tempfile.TemporaryDirectory(dir=new.parent) as scratch:
        work = Path(scratch)
        whole = _own_wheel(root, build)
        own = work / whole.name
        copy(whole, own)
        _check_locked(lock, _NUMPY, fetcher)
        numpy = work / fetcher.assets[_NUMPY].file
        copy(fetcher.fetch(_NUMPY), numpy)
        numpy = browser_wheel.trim(numpy, work / "trimmed", browser_wheel.NOT_OF_NUMPY)
        if node is not None:
            try:
                bytecode.add_bytecode(node, new / folder, (numpy, own), build / "bytecode")
            except bytecode.BytecodeError as error:
                allowed = f"Node.js {bytecode.MIN_NODE} or later that runs Pyodide, or none on the PATH"
                raise SiteError(f"{error}\nallowed: {allowed}") from None
        numpy = browser_wheel.hashed(numpy)
        stdlib = browser_wheel.hashed(new / folder / bytecode.STDLIB)
        packages = {}
        for name in wheels:
            entry = packages[name] = _check_locked(lock, name, fetcher)
            missing = set(entry["depends"]) - set(wheels)
            assert not missing, f"{name} depends on {missing}"
            source = numpy if name == _NUMPY else fetcher.fetch(name)
            file = numpy.name if name == _NUMPY else fetcher.assets[name].file
            copy(source, new / folder / file)
            entry |= {"file_name": file, "sha256": file_sha256(source)}
        (new / folder / _PYODIDE_LOCK).write_bytes(_json(lock | {"packages": packages}))
        wheel = f"wheels/{file_sha256(own)[:8]}/{own.name}"
        copy(own, new / wheel)
        return {
            "wheel": wheel,
            "numpy": f"{folder}/{numpy.name}",
            "stdlib": f"{folder}/{stdlib.name}",
            "runtime": folder,
        }


def _add_pyodide(folder: Path, tarball: Path) -> dict[str, Any]:
    """Pyodide's lock file, after putting one without packages and the other files into the folder."""
    folder.mkdir(parents=True)
    with tarfile.open(tarball, "r:gz") as archive:
        for name in _PYODIDE_FILES:
            file = archive.extractfile(f"package/{name}")
            assert file is not None, name
            with (folder / name).open("wb") as copy:
                shutil.copyfileobj(file, copy)
        lock_file = archive.extractfile(f"package/{_PYODIDE_LOCK}")
        assert lock_file is not None
        lock: dict[str, Any] = json.load(lock_file)
    (folder / _PYODIDE_LOCK).write_bytes(_json(lock | {"packages": {}}))
    return lock


def _check_locked(lock: Mapping[str, Any], name: str, fetcher: Fetcher) -> dict[str, Any]:
    """The lock's entry of a package. Raises: AssetError when our asset is not the one that it wants."""
    wheel = fetcher.assets[name]
    entry: dict[str, Any] = lock["packages"][name]
    if (entry["file_name"], entry["sha256"]) != (wheel.file, wheel.sha256):
        raise AssetError(
            "asset.hash",
            f"{name}: assets.toml has {wheel.file} {wheel.sha256}; "
            f"{fetcher.assets[_PYODIDE].file} wants {entry['file_name']} {entry['sha256']}",
        )
    return dict(entry)


def _own_wheel(root: Path, build: Path) -> Path:
    """This package's wheel for the browser. Built again only when its inputs changed.

    It has the same bytes from a checkout and from the wheel that is installed.
    """
    store = build / "wheels" / _wheel_digest(root)[:16]
    if not list(store.glob("*.whl")):
        store.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=store.parent) as folder:
            fresh = Path(folder) / "new"
            fresh.mkdir()
            if _has_package(root):
                whole = build_wheel(root, Path(folder))
                files, name = browser_wheel.files_in(whole), whole.name
            else:
                files, name = browser_wheel.installed_files(), f"slm2_web-{__version__}-py3-none-any.whl"
            browser_wheel.write_wheel(files, fresh / name, browser_wheel.NOT_IN_BROWSER)
            shutil.rmtree(store, ignore_errors=True)
            fresh.rename(store)
    (wheel,) = store.glob("*.whl")
    return wheel


def build_wheel(root: Path, folder: Path) -> Path:
    """The package's wheel, built in `folder` from the checkout at `root` by its own build backend.

    Raises: SiteError with what the backend said.
    """
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=root,
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise SiteError(f"the wheel could not be built:\n{done.stdout}{done.stderr}")
    return next(folder.glob("*.whl"))


def _add_model(new: Path, model: Path) -> None:
    manifest = parse_manifest((model / "manifest.json").read_bytes())
    for name in ("manifest.json", manifest.tokenizer.file, *(shard.file for shard in manifest.shards)):
        copy(model / name, new / "models" / model.name / name)


def _licenses(
    new: Path,
    root: Path,
    paths: Mapping[str, str],
    models: Sequence[Path],
    vendored: Mapping[str, str],
    fetcher: Fetcher,
) -> str:
    runtime = paths["runtime"]
    lock = json.loads((new / runtime / _PYODIDE_LOCK).read_bytes())
    wheels = {name: package["file_name"] for name, package in lock["packages"].items()}
    parts = [licenses.ours(__version__), licenses.of_asset(fetcher.assets[_PYODIDE], runtime)]
    parts += [licenses.of_asset(fetcher.assets[name], runtime, file) for name, file in wheels.items()]
    parts.append(licenses.of_python(lock["info"]["python"], runtime, paths["stdlib"]))
    for script in vendor.SCRIPTS:
        parts.append(licenses.of_script(fetcher.assets[script.asset], f"{vendor.FOLDER}/{script.file}"))
    for model in models:
        manifest = parse_manifest((model / "manifest.json").read_bytes())
        parts.append(licenses.of_model(manifest, f"models/{model.name}", fetcher.assets))
    texts = {"slm2_web: LICENSE": (root / "LICENSE").read_text("utf-8"), **vendored}
    for file in wheels.values():
        texts |= licenses.texts_in(new / runtime / file)
    return licenses.page(parts, texts)


def _check_models(models: Sequence[Path], files: Mapping[str, Mapping[str, Any]]) -> None:
    """Each model's files are the ones that its manifest names: they have just been hashed anyway."""
    for model in models:
        manifest = parse_manifest((model / "manifest.json").read_bytes())
        for entry in (manifest.tokenizer, *manifest.shards):
            found = files[f"models/{model.name}/{entry.file}"]
            if found != {"bytes": entry.bytes, "sha256": entry.sha256}:
                raise FormatError(
                    "format.model_file",
                    f"{model / entry.file}: found {found['bytes']} bytes, sha256 {found['sha256']}; "
                    f"allowed: {entry.bytes} bytes, sha256 {entry.sha256}. "
                    f"Remove {model} to compile it again.",
                )


def _add_compressed(new: Path, store: Path) -> None:
    """PATH.gz beside each file that shrinks well; `store` keeps them by content, as gzip is slow."""
    store.mkdir(parents=True, exist_ok=True)
    for path in paths_in(new):
        file = new / path
        if file.suffix in _COMPRESSIBLE:
            data = file.read_bytes()
            kept = store / f"{hashlib.sha256(data).hexdigest()}.gz"
            if not kept.exists():
                fresh = kept.with_suffix(f".{os.getpid()}")
                fresh.write_bytes(compress(data))
                os.replace(fresh, kept)
            if kept.stat().st_size < len(data) * (1 - _MIN_SAVING):
                copy(kept, file.with_name(f"{file.name}.gz"))


def compress(data: bytes) -> bytes:
    """`data` as a gzip file that depends on nothing else."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(data)
    return buffer.getvalue()


def _write(file: Path, text: str) -> None:
    """The same bytes on every system."""
    file.write_text(text, "utf-8", newline="\n")


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"
