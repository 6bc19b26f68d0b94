"""Browsers that benches measure in: found, started on a profile of their own, and asked for their memory."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from slm2_web.browsers.find import system_browser
from slm2_web.browsers.playwright_driver import CHROMIUM_WEBGPU, FIREFOX_WEBGPU
from slm2_web.compile import serve
from slm2_web.errors import BrowserError

BROWSERS: Final[Mapping[str, str]] = {"chromium": "Chromium", "firefox": "Firefox"}
# Playwright does not start Firefox on a profile by WebDriver BiDi.
KEEPS_PROFILE: Final = ("chromium",)

# Run in a page; whoever is late is ended or left, whatever it does.
_RUN_JOB = """({script, request, limit_ms}) => new Promise((resolve) => {
  const worker = new Worker(script, { type: "module" });
  const end = (answer) => { clearTimeout(timer); worker.terminate(); resolve(answer); };
  const timer = setTimeout(() => end({ error: `not done after ${limit_ms / 1000} s` }), limit_ms);
  worker.onmessage = ({ data }) => end(data);
  worker.onerror = (event) => end({ error: event.message || "the worker did not start" });
  worker.postMessage(request);
})"""
_CALL = """async ({module, name, request, limit_ms}) => {
  const work = import(new URL(module, document.baseURI).href).then((exports) => exports[name](request));
  const late = new Promise((resolve) =>
    setTimeout(() => resolve({ error: `not done after ${limit_ms / 1000} s` }), limit_ms));
  const answer = work.then((value) => ({ ...value, now_ms: performance.now() }))
    .catch((error) => ({ error: `${error}` }));
  return Promise.race([answer, late]);
}"""


class NoBrowser(Exception):
    """Nothing can be measured in a browser here; the message says why."""


class Tab:
    """An open page."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def job(self, script: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer of a fresh worker of `script`; `{"error": ...}` when it fails or is late."""
        argument = {"script": script, "request": dict(request), "limit_ms": round(limit_s * 1000)}
        answer: dict[str, Any] = self.page.evaluate(_RUN_JOB, argument)
        return answer

    def call(self, module: str, name: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """What an export of a module of the page answers, with `now_ms`, the time since the page was opened;
        `{"error": ...}` when it fails or is late."""
        argument = {
            "module": module,
            "name": name,
            "request": dict(request),
            "limit_ms": round(limit_s * 1000),
        }
        answer: dict[str, Any] = self.page.evaluate(_CALL, argument)
        return answer

    def poll(self, condition: str, limit_s: float) -> dict[str, Any]:
        """What a JavaScript function gives when it gives anything; `{"error": ...}` when that is late."""
        from playwright.sync_api import TimeoutError as Late

        try:
            found = self.page.wait_for_function(condition, timeout=1000 * limit_s)
        except Late:
            return {"error": f"not done after {limit_s:g} s"}
        answer: dict[str, Any] = found.json_value()
        return answer


class Browser:
    """A running browser on one profile."""

    def __init__(self, name: str, context: Any, version: str, before: frozenset[int]) -> None:
        self.name = name
        self.title = BROWSERS[name]
        self.version = version
        self._context = context
        self._before = before

    def open(self, url: str) -> Tab:
        """A new tab on `url`, loaded."""
        page = self._context.new_page()
        page.set_default_timeout(0)
        page.goto(url)
        return Tab(page)

    def memory_bytes(self) -> int | None:
        """What its processes take, each shared page counted once (Linux: proportional set size), or None."""
        if sys.platform != "linux":
            return None
        return sum(_pss_bytes(pid) for pid in _descendants() - self._before)


@contextmanager
def started(name: str, profile: Path | None = None) -> Iterator[Browser]:
    """The browser of that name, on a profile's folder if it takes one (KEEPS_PROFILE), else on a fresh one.

    Raises: NoBrowser.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise NoBrowser("PyPI playwright is not installed") from None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as fresh, sync_playwright() as driver:
        before = _descendants()
        try:
            if name == "chromium":
                own = Path(driver.chromium.executable_path)
                context = driver.chromium.launch_persistent_context(
                    str(profile or fresh),
                    executable_path=own if own.exists() else system_browser(name),
                    args=CHROMIUM_WEBGPU,
                    chromium_sandbox=False,
                )
            else:
                # Debian's Firefox speaks WebDriver BiDi alone.
                context = driver.firefox.launch(
                    channel="moz-firefox",
                    executable_path=system_browser(name),
                    firefox_user_prefs={**FIREFOX_WEBGPU},
                ).new_context()
        except BrowserError as error:
            raise NoBrowser(error.message) from None
        except Error as error:
            line = error.message.splitlines()[0]
            raise NoBrowser(f"{BROWSERS[name]} does not start: {line}") from None
        try:
            version = context.browser.version if context.browser else ""
            yield Browser(name, context, version, before)
        finally:
            context.close()
            if context.browser:
                context.browser.close()


@contextmanager
def chromium(folder: Path) -> Iterator[tuple[Tab, str]]:
    """A tab of Chromium on `folder`, served with cross-origin isolation for exact clocks; the version.

    Raises: NoBrowser.
    """
    server = serve.start(folder)
    try:
        with started("chromium") as browser:
            yield browser.open(server.url), browser.version
    finally:
        server.close()


def _descendants() -> frozenset[int]:
    """The processes that this one has started, and theirs; none where the system does not tell."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: set[int] = set()
    queue = [os.getpid()]
    while queue:
        fresh = children.get(queue.pop(), [])
        found |= set(fresh)
        queue += fresh
    return frozenset(found)


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
