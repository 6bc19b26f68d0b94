"""Jobs in Chromium: each is one message to a fresh worker, and its answer or the reason why there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slm2_web.compile import serve

# Runs in the page. A worker that is late is ended, whatever it does.
_RUN_JOB = """({script, request, limit_ms}) => new Promise((resolve) => {
  const worker = new Worker(script, { type: "module" });
  const end = (answer) => { clearTimeout(timer); worker.terminate(); resolve(answer); };
  const timer = setTimeout(() => end({ error: `not done after ${limit_ms / 1000} s` }), limit_ms);
  worker.onmessage = ({ data }) => end(data);
  worker.onerror = (event) => end({ error: event.message || "the worker did not start" });
  worker.postMessage(request);
})"""


class NoBrowser(Exception):
    """Nothing can be measured in a browser here; the message says why."""


class Chromium:
    """A page that runs jobs."""

    def __init__(self, page: Any, version: str) -> None:
        self._page = page
        self.version = version

    def run(self, script: str, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer of the worker `script`; `{"error": ...}` when it fails or is late."""
        argument = {"script": script, "request": dict(request), "limit_ms": round(limit_s * 1000)}
        answer: dict[str, Any] = self._page.evaluate(_RUN_JOB, argument)
        return answer


@contextmanager
def chromium(folder: Path) -> Iterator[Chromium]:
    """Chromium on a page of `folder`, which is served with cross-origin isolation for exact clocks.

    Raises: NoBrowser.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise NoBrowser("PyPI playwright is not installed") from None
    server = serve.start(folder)
    try:
        with sync_playwright() as driver:
            own = Path(driver.chromium.executable_path)
            found = str(own) if own.exists() else shutil.which("chromium")
            if found is None:
                raise NoBrowser("no Chromium is installed")
            try:
                browser = driver.chromium.launch(executable_path=found, chromium_sandbox=False)
            except Error as error:
                raise NoBrowser(f"Chromium does not start: {error.message.splitlines()[0]}") from None
            try:
                page = browser.new_page()
                page.set_default_timeout(0)
                page.goto(server.url)
                yield Chromium(page, browser.version)
            finally:
                browser.close()
    finally:
        server.close()
