"""The drivers of browsers: one interface, the same answers from each, here and at a URL."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from e2e.conftest import Serve
from slm2_web.browsers import Browser, Page, open_browser
from slm2_web.browsers.display import Display
from slm2_web.browsers.find import system_browser, webkit_driver
from slm2_web.browsers.playwright_driver import has_own_browser
from slm2_web.errors import BrowserError

PAGE = """<!doctype html><meta charset="utf-8"><title>first</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'self'">
<script type="module" src="page.js"></script>
<button>Greet</button><input autofocus><p></p>"""
SCRIPT = """
console.warn("begun");
document.querySelector("button").onclick = ({ isTrusted }) => {
  console.log("clicked", { isTrusted });
  document.querySelector("p").textContent = document.querySelector("input").value;
};
globalThis.fail = () => setTimeout(() => { throw new Error("on purpose"); });
"""
PNG = b"\x89PNG\r\n\x1a\n"
# Whatever a driver does with an answer, it must not do this to it.
ANSWER: dict[str, object] = {
    "text": "a\ud800\u0000é\u2028",
    "numbers": [0.1, -1e300, 2**53],
    "nothing": None,
    "deep": [[[{}]]],
}


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page for drivers."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "index.html").write_text(PAGE)
    (folder / "page.js").write_text(SCRIPT)
    return serve(folder).url


def code(what: Page, expression: str, limit_s: float = 20) -> str:
    """With which error an expression ends."""
    with pytest.raises(BrowserError) as caught:
        what.evaluate(expression, limit_s=limit_s)
    return caught.value.code


def hear(page: Page, pattern: str) -> None:
    """Until the page has said it; drivers tell a little later."""
    end = time.monotonic() + 20
    while not any(re.match(pattern, str(message)) for message in page.messages()):
        assert time.monotonic() < end, (pattern, page.messages())
        time.sleep(0.05)


def use(browser: Browser, url: str, folder: Path) -> None:
    """All that the interface promises."""
    assert browser.version
    page = browser.open(url)
    assert page.evaluate("Promise.resolve(arg)", ANSWER) == ANSWER
    assert page.evaluate("undefined") is None
    assert page.evaluate("[innerWidth > 1000, innerHeight > 600]") == [True, True]
    assert code(page, "nothing.at.all") == "browser.script"
    assert code(page, "Promise.reject(7)") == "browser.script"
    assert code(page, "1 +") == "browser.script"
    assert code(page, "new Promise(() => {})", limit_s=0.5) == "browser.late"
    assert page.wait("arg.n > 1 && 'yes'", {"n": 2}) == "yes"
    with pytest.raises(BrowserError, match=r"browser\.late: waiting for false"):
        page.wait("false", limit_s=0.3)

    page.type("input", "né 1")
    page.click("button")
    assert page.evaluate("document.querySelector('p').textContent") == "né 1"
    with pytest.raises(BrowserError, match=r"browser\.late: clicking #none"):
        page.click("#none", limit_s=0.5)
    page.evaluate("fail()")
    hear(page, r"log: ?clicked ?\{.*isTrusted.*true")
    hear(page, r"exception: .*on purpose")
    if browser.hears == "all":
        assert str(page.messages()[0]) == "warning: begun"
    shot = folder / "shots" / "page.png"
    page.screenshot(shot)
    assert shot.read_bytes().startswith(PNG)
    page.wait("new Promise((resolve) => setTimeout(() => resolve(true), 300))")
    assert all("olicy" not in message.text for message in page.complaints()), "the driver broke the policy"

    # Pages share a profile, and nothing else.
    page.evaluate("localStorage.setItem('a', 'b'), sessionStorage.setItem('a', 'b')")
    other = browser.open(url + "?other")
    assert other.evaluate("[localStorage.a, sessionStorage.a ?? null, location.search]") == [
        "b",
        None,
        "?other",
    ]
    other.close()
    other.close()
    page.evaluate("void (document.title = 'changed')")
    page.reload()
    assert page.evaluate("[document.title, sessionStorage.a]") == ["first", "b"]
    with pytest.raises(BrowserError) as caught:
        page.goto(f"http://127.0.0.1:{free_port()}/", limit_s=20)
    assert caught.value.code == "browser.failed"
    page.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("name", ["chromium", "firefox", "webkit", "webkit-unshared"])
def test_each_browser_of_this_machine(name: str, url: str, tmp_path: Path) -> None:
    with open_browser(name) as browser:
        use(browser, url, tmp_path)
        shared = browser.open(url).evaluate("typeof SharedArrayBuffer")
        assert (shared == "undefined") == (name == "webkit-unshared")
        page = browser.open(url)
        late = time.monotonic() + 20
        with pytest.raises(BrowserError, match=r"browser\.late"):
            page.evaluate("(() => { for (;;); })()", limit_s=0.5)
        assert time.monotonic() < late
    browser.close()
    with pytest.raises(BrowserError) as caught:
        browser.open(url)
    assert caught.value.code == "browser.failed"


@contextmanager
def running(command: list[str], sign: str, env: dict[str, str]) -> Iterator[re.Match[str]]:
    """A program, once it has printed what `sign` matches; all of its processes are ended."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        end = time.monotonic() + 60
        while not (found := re.search(sign, said)):
            ready = select.select([process.stdout], [], [], max(end - time.monotonic(), 0))[0]
            part = os.read(process.stdout.fileno(), 4096) if ready else b""
            assert part, f"{command} said {said!r}"
            said += part.decode()
        yield found
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_playwright_server(url: str, tmp_path: Path) -> None:
    config: dict[str, object] = {"headless": True, "chromiumSandbox": False}
    if not has_own_browser("chromium"):
        config["executablePath"] = str(system_browser("chromium"))
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "playwright", "launch-server", "--browser", "chromium"]
    command += ["--config", str(tmp_path / "config.json")]
    with running(command, r"ws://\S+", dict(os.environ)) as found:
        for _ in range(2):  # a server is not ended by its clients
            with open_browser(f"chromium@{found[0]}") as browser:
                use(browser, url, tmp_path)


@pytest.fixture
def endpoint() -> Iterator[int]:
    """The port of a WebDriver of WebKitGTK."""
    display = Display.open()
    port = free_port()
    env = {**os.environ, "DISPLAY": display.name, "GDK_BACKEND": "x11", "LIBGL_ALWAYS_SOFTWARE": "1"}
    env |= {"DBUS_SESSION_BUS_ADDRESS": "disabled:", "NO_AT_BRIDGE": "1"}
    script = f'"{webkit_driver()}" -p {port} & echo up; wait'
    try:
        with running(["sh", "-c", script], "up", env):
            end = time.monotonic() + 20
            while socket.socket().connect_ex(("127.0.0.1", port)):
                assert time.monotonic() < end
                time.sleep(0.05)
            yield port
    finally:
        display.close()


def test_a_webdriver_endpoint(endpoint: int, url: str, tmp_path: Path) -> None:
    with open_browser(f"webkit@http://127.0.0.1:{endpoint}") as browser:
        use(browser, url, tmp_path)


class Losing(BaseHTTPRequestHandler):
    """Hands commands on to a WebDriver; the answers to those in `lose`, n-th of a kind, never come back."""

    to: ClassVar[int]
    lose: ClassVar[set[tuple[str, int]]]
    seen: ClassVar[Counter[str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        behind = http.client.HTTPConnection("127.0.0.1", self.to)
        behind.request(self.command, self.path, body or None, {"Content-Type": "application/json"})
        answer = behind.getresponse()
        data = answer.read()
        kind = self.path.rsplit("/", 1)[1]
        self.seen[kind] += 1
        if (kind, self.seen[kind]) in self.lose:
            self.rfile.read(1)  # until who asked gives it up
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers["Content-Type"])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_DELETE = do_POST

    def log_message(self, *_args: object) -> None:
        """Nothing: what is asked is no news."""


def test_answers_that_never_come(endpoint: int, url: str) -> None:
    """Leaving the empty window, going to the page, asking how far it is: each may be lost."""
    lose = {("sync", 1), ("url", 1), ("sync", 2)}
    Losing.to, Losing.lose, Losing.seen = endpoint, lose, Counter()
    with ThreadingHTTPServer(("127.0.0.1", 0), Losing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with open_browser(f"webkit@http://127.0.0.1:{server.server_port}") as browser:
            page = browser.open(url)
            assert page.evaluate("document.title") == "first"
            assert Losing.seen["sync"] > 2
        server.shutdown()


@pytest.mark.parametrize("spec", ["chromium@ws://127.0.0.1:{}", "firefox@http://127.0.0.1:{}"])
def test_nobody_at_a_url(spec: str) -> None:
    with pytest.raises(BrowserError) as caught:
        open_browser(spec.format(free_port()), limit_s=20)
    assert caught.value.code == "browser.failed"
