"""A real site, a real server, a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Playwright, sync_playwright

from e2e.chatpage import ChatPage
from e2e.guest import mortal_threads
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.docs import install_docs
from slm2_web.compile.install import install_parity
from slm2_web.compile.pack import pack_gguf
from slm2_web.compile.place import find_place
from slm2_web.compile.serve import Server, start
from slm2_web.compile.site import build_site
from tiny_gguf import make_tiny_gguf

ROOT = Path(__file__).resolve().parents[2]
# Chromium offers WebGPU on a software adapter only when asked to.
WEBGPU = ["--enable-unsafe-webgpu"]
# No other machine has a name: whatever asks for one fails, and complains.
ALONE = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]

Serve = Callable[..., Server]
Open = Callable[..., ChatPage]


@pytest.fixture(scope="session")
def site(packed_smollm2: Path) -> Path:
    """The site with the default model, as `build.py site` makes it."""
    out = ROOT / "build" / "e2e-site"
    hidden = [install_parity(ROOT, print)]
    fetcher = Fetcher.from_environment(ROOT)
    docs = install_docs(find_place(), print)
    build_site(ROOT, out, [packed_smollm2], fetcher, print, hidden=hidden, docs=docs)
    return out


@pytest.fixture(scope="session")
def damaged(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Callable[[bytes], bytes]], Path]:
    """Gives a copy of the site in which one file, the first that matches a pattern, is changed."""

    def make(pattern: str, change: Callable[[bytes], bytes]) -> Path:
        out = tmp_path_factory.mktemp("damaged") / "site"
        shutil.copytree(site, out, copy_function=link)
        victim = min(out.glob(pattern))
        data = change(victim.read_bytes())
        victim.unlink()
        victim.with_name(f"{victim.name}.gz").unlink(missing_ok=True)
        victim.write_bytes(data)
        return out

    return make


def link(source: str, target: str) -> None:
    """Gives a file another name where the file system can, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    """Starts servers, and ends them with the tests."""
    servers: list[Server] = []

    def make(root: Path, *, base: str = "/", isolation: bool = True, shared: bool = False) -> Server:
        servers.append(start(root, port=0, base=base, isolation=isolation, shared=shared))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def url(site: Path, serve: Serve) -> str:
    """Where the site is served, isolated, at the root."""
    return serve(site).url


@pytest.fixture(scope="session")
def tiny_url(site: Path, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the site is served with one more model, `tiny`, 68 KB of random weights whose replies are long,
    and with threads that can be made to fail (guest.py)."""
    folder = tmp_path_factory.mktemp("tiny")
    out = folder / "site"
    shutil.copytree(site, out, copy_function=link)
    add_tiny(out, folder)
    thread = out / "worker" / "wasm" / "thread.js"
    source = thread.read_bytes()
    thread.unlink()
    thread.write_bytes(mortal_threads(source))
    thread.with_name("thread.js.gz").unlink(missing_ok=True)
    return serve(out).url


def add_tiny(site: Path, work: Path) -> None:
    """Put the model `tiny` into a site."""
    made = make_tiny_gguf(work / "tiny.gguf", seed=14)  # most seeds write broken UTF-8 at once
    pack_gguf(made.path, site / "models" / "tiny", made.spec)


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    """The driver."""
    with sync_playwright() as driver:
        yield driver


def launch(playwright: Playwright, args: list[str]) -> Browser:
    """Playwright's own Chromium where it is installed, else the system's."""
    own = Path(playwright.chromium.executable_path)
    found = str(own) if own.exists() else shutil.which("chromium")
    assert found, "no Chromium: run python3 build.py setup"
    return playwright.chromium.launch(executable_path=found, args=[*ALONE, *args], chromium_sandbox=False)


@pytest.fixture(scope="session")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    """Chromium with WebGPU."""
    browser = launch(playwright, WEBGPU)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def chromium_without_webgpu(playwright: Playwright) -> Iterator[Browser]:
    """Chromium as it comes, on a machine without a GPU."""
    browser = launch(playwright, [])
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A browser that has never been here."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    yield context
    context.close()


@pytest.fixture(scope="module")
def chat(context: BrowserContext, url: str) -> ChatPage:
    """The demo page with its model loaded; a module's tests share it and leave it ready."""
    return ChatPage(context, url).open().wait("ready")


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Open]:
    """Opens the page for a first visit, in a context of its own; doesn't wait."""
    contexts: list[BrowserContext] = []

    def make(url: str, query: str = "", browser: Browser = chromium) -> ChatPage:
        contexts.append(browser.new_context(viewport={"width": 1000, "height": 800}))
        return ChatPage(contexts[-1], url).open(query)

    yield make
    for each in contexts:
        each.unroute_all(behavior="ignoreErrors")  # a page may go while its last request is answered
        each.close()
