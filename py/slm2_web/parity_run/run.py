"""The whole matrix, and the certificate of it.

Browsers of this machine run one after the other, so that each has all cores; each browser elsewhere has a
thread of its own. A browser that is missing is told before anything is run.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

from slm2_web import __version__, strictjson
from slm2_web.browsers import BrowserSpec, open_browser
from slm2_web.compile import serve
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.install import install_model, install_parity
from slm2_web.compile.site import SITE_FILE, build_site
from slm2_web.errors import AssetError, BrowserError, InputError
from slm2_web.parity.certificate import KINDS, Artifact, Cell, Certificate, as_json, cell_json, write
from slm2_web.parity.subject import Size
from slm2_web.parity_run.cells import Wanted, absent, matrix
from slm2_web.parity_run.drive import STALL_S, Opener, Request, run_cell
from slm2_web.parity_run.host import Host, implementation
from slm2_web.parity_run.page import certificate_page

DEFAULT_MODEL: Final = "smollm2-135m"
CERTIFICATE_FILE: Final = "certificate.json"
PAGE_FILE: Final = "certificate.html"
CELLS_FOLDER: Final = "cells"
_MAX_SITE_BYTES: Final = 16 << 20
_PREFIXES: Final = {"model": "models/", "wheel": "wheels/", "runtime": "runtime/"}

# What is told while it runs: a cell's title, a stage, done, total; and a cell that has ended.
Progress = Callable[[str, str, int, int], None]
Ended = Callable[[Cell], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for.

    root: the checkout; site: a built site's folder or its URL, None to build one; stages: () for all;
    without: names of browsers that are left out, each with its cells; cpython: the executor of CPython's own
    cell, None to have none; command: for the certificate.
    """

    root: Path
    specs: Sequence[BrowserSpec]
    executors: Sequence[str]
    size: Size
    site: Path | str | None = None
    stages: Sequence[str] = ()
    without: Sequence[str] = ()
    cpython: str | None = "reference"
    command: str | None = None
    stall_s: float = STALL_S
    opener: Opener = field(default=open_browser)
    say: Callable[[str], None] = print


def run_parity(options: Options, progress: Progress, ended: Ended) -> Certificate:
    """The certificate of the whole matrix.

    Raises: BrowserError `browser.missing` before anything is run; InputError `input.params` for a stage that
        there is not; AssetError; FormatError.
    """
    host = Host.open(options.root / "web", options.root / "build" / "models")
    _check_stages(options.stages, host.names)
    kept = [spec for spec in options.specs if spec.name not in options.without]
    _check_browsers(kept, options.opener)
    with _served(options) as (urls, site):
        _check_site(site)
        stages = options.stages or _stages_of(site, host)
        request = Request(urls, options.size, stages, options.stall_s)
        if options.cpython is not None:
            install_parity(options.root, options.say)
            install_model(DEFAULT_MODEL, options.root, Fetcher.from_environment(options.root), options.say)
        cells = _run_all(matrix(options.specs, options.executors), options, request, host, progress, ended)
        if options.cpython is not None:
            own = host.reference(
                stages,
                options.size,
                lambda stage, done, total: progress("cpython", stage, done, total),
                options.cpython,
            )
            ended(own)
            cells.insert(0, own)
    used = {options.size, *(stage.size for cell in cells for stage in cell.stages)}
    return Certificate(
        made_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        program="slm2-web parity",
        program_version=__version__,
        command=options.command,
        size=options.size,
        site=site["version"],
        artifacts=tuple(artifacts_of(site)),
        implementation=implementation(),
        baseline=tuple(e for e in host.expected() if e.size in used and e.name in stages),
        cells=tuple(cells),
    )


def write_certificate(certificate: Certificate, out: Path) -> list[Path]:
    """The files written into `out`: certificate.json, certificate.html, and each cell in cells/."""
    folder = out / CELLS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (out / CERTIFICATE_FILE).write_bytes(write(certificate))
    (out / PAGE_FILE).write_text(certificate_page(certificate), "utf-8")
    written = [out / CERTIFICATE_FILE, out / PAGE_FILE]
    head = {key: value for key, value in as_json(certificate).items() if key in ("format", "version", "site")}
    for cell in certificate.cells:
        path = folder / f"{cell.name.replace('/', '-').replace('#', '-')}.json"
        text = json.dumps({**head, "cell": cell_json(cell)}, ensure_ascii=True, indent=1)
        path.write_text(text + "\n", "utf-8")
        written.append(path)
    return written


def artifacts_of(site: dict[str, Any]) -> Iterator[Artifact]:
    """The site's files that compute, by kind and path."""
    for kind in KINDS:
        for path, entry in sorted(site["files"].items()):
            if kind == "kernel":
                inside = path.startswith(("worker/shaders/", "worker/wasm/"))
                fits = inside and path.endswith((".wgsl", ".wasm"))
            else:
                fits = path.startswith(_PREFIXES[kind])
            if fits:
                yield Artifact(kind, path, entry["bytes"], entry["sha256"])


def _run_all(
    wanted: Sequence[Wanted],
    options: Options,
    request: Request,
    host: Host,
    progress: Progress,
    ended: Ended,
) -> list[Cell]:
    """All cells, in the order of `wanted`."""
    lock = threading.Lock()
    stopped = threading.Event()

    def one(each: Wanted) -> Cell:
        kind = each.name.partition("#")[0]
        if kind in options.without:
            cell = absent(each.name, "", each.executor, f"left out: --without {kind}")
        else:
            cell = run_cell(each, request, options.opener, tell, host.judged)
        with lock:
            ended(cell)
        return cell

    def tell(each: Wanted, stage: str, done: int, total: int) -> None:
        if stopped.is_set():
            raise BrowserError("browser.failed", f"{each.title}: interrupted")
        with lock:
            progress(each.title, stage, done, total)

    def several(some: Sequence[Wanted]) -> dict[str, Cell]:
        return {each.title: one(each) for each in some if not stopped.is_set()}

    groups: dict[str, list[Wanted]] = {}
    for each in wanted:
        groups.setdefault("" if each.spec.url is None else each.name, []).append(each)
    found: dict[str, Cell] = {}
    if not groups:
        return []
    with ThreadPoolExecutor(max_workers=len(groups)) as pool:
        try:
            for cells in pool.map(several, groups.values()):
                found |= cells
        except BaseException:  # Ctrl-C among them: no further cell, and this one ends at its next word
            stopped.set()
            raise
    return [found[each.title] for each in wanted]


def _check_stages(stages: Sequence[str], names: Sequence[str]) -> None:
    for stage in stages:
        if stage not in names:
            allowed = ", ".join(names)
            text = f"--stages: found {strictjson.show(stage)}; allowed: {allowed}"
            raise InputError("input.params", text, {"field": "stages", "found": stage, "allowed": allowed})


def _check_browsers(specs: Sequence[BrowserSpec], opener: Opener) -> None:
    """Starts and ends each. Raises: BrowserError."""
    for spec in specs:
        opener(spec).close()


@contextmanager
def _served(options: Options) -> Iterator[tuple[dict[bool, str], dict[str, Any]]]:
    """(URLs by isolation, site.json) while the site is served; of a URL, that one for both."""
    if isinstance(options.site, str):
        url = options.site if options.site.endswith("/") else f"{options.site}/"
        yield {True: url, False: url}, _fetch_site(url)
        return
    folder = options.site or _build(options)
    servers = [serve.start(folder, isolation=isolation) for isolation in (True, False)]
    try:
        yield dict(zip((True, False), (server.url for server in servers), strict=True)), _read_site(folder)
    finally:
        for server in servers:
            server.close()


def _build(options: Options) -> Path:
    """A site of this checkout, up to date."""
    out = options.root / "build" / "parity-site"
    fetcher = Fetcher.from_environment(options.root)
    model = install_model(DEFAULT_MODEL, options.root, fetcher, options.say)
    hidden = [install_parity(options.root, options.say)]
    build_site(options.root, out, [model], fetcher, options.say, hidden=hidden)
    return out


def _read_site(folder: Path) -> dict[str, Any]:
    try:
        return _parsed((folder / SITE_FILE).read_bytes(), str(folder))
    except OSError as error:
        raise _no_site(str(folder), error.strerror or str(error)) from None


def _fetch_site(url: str) -> dict[str, Any]:
    address = urljoin(url, SITE_FILE)
    try:
        with urllib.request.urlopen(address, timeout=30) as response:
            return _parsed(response.read(_MAX_SITE_BYTES + 1), address)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise AssetError("asset.unreachable", f"{address}: {error}", {"url": address}) from None


def _parsed(data: bytes, place: str) -> dict[str, Any]:
    try:
        site: dict[str, Any] = strictjson.loads(data, max_bytes=_MAX_SITE_BYTES)
    except strictjson.NotJson as error:
        raise _no_site(place, str(error)) from None
    return site


def _check_site(site: dict[str, Any]) -> None:
    """Raises: InputError `input.params` when site.json is not one of ours."""
    try:
        artifacts = list(artifacts_of(site))
        whole = site["format"] == "slm2-site" and len(site["version"]) == 64 and bool(artifacts)
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise _no_site("--site", "a site.json of another kind")
    if "parity.html" not in site["files"]:
        raise _no_site("--site", "a site without parity.html, of an older version")


def _stages_of(site: dict[str, Any], host: Host) -> list[str]:
    """The stages whose models the site has."""
    has = {path.split("/")[1] for path in site["files"] if path.startswith("models/")}
    models = {stage.name: stage.model for stage in host.stages}
    models |= dict(zip(host.opinion_names, host.opinions["models"], strict=True))
    names = [name for name in host.names if models.get(name, host.cases["model"]) in has]
    has_opinion = any("/regex-" in path and path.endswith(".whl") for path in site["files"])
    return [name for name in names if has_opinion or name not in host.opinion_names]


def _no_site(place: str, found: str) -> InputError:
    text = f"{place}: found {found}; allowed: a site as `build.py site` writes it, or its URL"
    return InputError("input.params", text, {"field": "site", "found": found})
