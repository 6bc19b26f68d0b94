"""Browsers by Playwright: its own, the system's, or those of a Playwright server.

Theory of operation. Playwright runs in an event loop in a thread of its own, one for each browser. The caller
hands over a coroutine and waits for its result with a limit, so a page that hangs holds up nobody for longer;
and the console is heard while nobody waits for anything.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from slm2_web.browsers.base import GRACE_S, LIMIT_S, MAX_MESSAGES, Browser, Message, Page, late
from slm2_web.browsers.find import missing_package, system_browser
from slm2_web.browsers.spec import BrowserSpec
from slm2_web.errors import BrowserError

if TYPE_CHECKING:
    from playwright import async_api

T = TypeVar("T")

WIDTH: Final = 1280
HEIGHT: Final = 800
CHROMIUM_WEBGPU: Final = ("--enable-unsafe-webgpu",)
FIREFOX_WEBGPU: Final[Mapping[str, bool]] = {
    "dom.webgpu.enabled": True,
    "dom.webgpu.workers.enabled": True,
    "gfx.webgpu.ignore-blocklist": True,
}
# In Firefox Playwright adds a style for a screenshot; a policy that forbids it names it by this hash.
SCREENSHOT_STYLE: Final = base64.b64encode(hashlib.sha256(b"body {}").digest()).decode()
# WebKitGTK and Playwright's WebKit keep SharedArrayBuffer behind this.
WEBKIT_SHARED: Final = "JSC_useSharedArrayBuffer"


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="playwright", daemon=True).start()

    def call(self, work: Coroutine[Any, Any, T], what: str, limit_s: float) -> T:
        """What a coroutine gives. Raises: BrowserError `browser.late`, `browser.failed`."""
        from playwright.async_api import Error

        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()
            raise late(what, limit_s) from None
        except (CancelledError, OSError) as error:
            raise BrowserError("browser.failed", f"{what}: {error!r}") from None
        except Error as error:
            raise _error(what, error) from None

    def end(self) -> None:
        """Stop the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)


class PlaywrightPage(Page):
    """A Playwright page."""

    def __init__(self, page: async_api.Page, loop: _Loop) -> None:
        """In the loop's thread."""
        self._page = page
        self._loop = loop
        self._heard: deque[Message] = deque(maxlen=MAX_MESSAGES)
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self._hear("exception", str(error)))
        page.on("crash", lambda _: self._hear("exception", "the page's process has ended"))

    def _hear(self, kind: str, text: str) -> None:
        if SCREENSHOT_STYLE in text:
            return
        known = ("debug", "info", "warning", "error", "exception")
        self._heard.append(Message(kind if kind in known else "log", text))

    def goto(self, url: str, *, limit_s: float = LIMIT_S) -> None:
        self._call(self._page.goto(url, timeout=limit_s * 1e3), f"going to {url}", limit_s)

    def reload(self, *, limit_s: float = LIMIT_S) -> None:
        self._call(self._page.reload(timeout=limit_s * 1e3), "reloading", limit_s)

    def _run(self, script: str, what: str, limit_s: float) -> str:
        answer: str = self._loop.call(self._page.evaluate(script), what, limit_s)
        return answer

    def click(self, selector: str, *, limit_s: float = LIMIT_S) -> None:
        work = self._page.locator(selector).first.click(timeout=limit_s * 1e3)
        self._call(work, f"clicking {selector}", limit_s)

    def type(self, selector: str, text: str, *, limit_s: float = LIMIT_S) -> None:
        work = self._page.locator(selector).first.press_sequentially(text, timeout=limit_s * 1e3)
        self._call(work, f"typing into {selector}", limit_s)

    def screenshot(self, path: Path, *, limit_s: float = LIMIT_S) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._call(self._page.screenshot(path=path, timeout=limit_s * 1e3), "a screenshot", limit_s)

    def messages(self) -> list[Message]:
        async def heard() -> list[Message]:
            return list(self._heard)

        return self._loop.call(heard(), "the page's messages", LIMIT_S)

    def close(self) -> None:
        if not self._page.is_closed():
            self._call(self._page.close(), "closing the page", LIMIT_S)

    def _call(self, work: Coroutine[Any, Any, T], what: str, limit_s: float) -> T:
        """Playwright's own limit first: it says what it was waiting for."""
        return self._loop.call(work, what, limit_s + GRACE_S)


class PlaywrightBrowser(Browser):
    """A browser that Playwright drives."""

    hears = "all"

    def __init__(self, spec: BrowserSpec, loop: _Loop) -> None:
        self.spec = spec
        self._loop = loop
        self._driver: async_api.Playwright | None = None
        self._browser: async_api.Browser | None = None
        self._context: async_api.BrowserContext | None = None
        self._closed = False

    @classmethod
    def start(cls, spec: BrowserSpec, *, webgpu: bool, args: Sequence[str], limit_s: float) -> Self:
        """See open_browser. Raises: BrowserError."""
        _need_playwright()
        started = cls(spec, _Loop())
        try:
            work = started._start(webgpu, list(args), limit_s)
            started._loop.call(work, f"starting {spec}", limit_s + GRACE_S)
        except BaseException:
            started.close()
            raise
        return started

    async def _start(self, webgpu: bool, args: list[str], limit_s: float) -> None:
        from playwright.async_api import async_playwright

        self._driver = await async_playwright().start()
        options = _options(self.spec, webgpu, args)
        kind: async_api.BrowserType = getattr(self._driver, self.spec.engine)
        if self.spec.url is not None:
            # `playwright run-server` starts a browser as this says; `launch-server` has started its own.
            headers = {"x-playwright-launch-options": json.dumps(_camel(options))}
            self._browser = await kind.connect(self.spec.url, headers=headers, timeout=limit_s * 1e3)
        else:
            if not Path(kind.executable_path).exists():
                options["executable_path"] = str(system_browser(self.spec.engine))
                if self.spec.engine == "firefox":
                    options["channel"] = "moz-firefox"  # an unpatched one speaks WebDriver BiDi alone
            env: dict[str, str | float | bool] = {**os.environ, **_environment(self.spec)}
            self._browser = await kind.launch(env=env, timeout=limit_s * 1e3, **options)
        self.version = self._browser.version
        self._context = await self._browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})

    def open(self, url: str, *, limit_s: float = LIMIT_S) -> Page:
        context = self._context
        if context is None:
            raise BrowserError("browser.failed", f"{self.spec}: it has been closed")

        async def make() -> PlaywrightPage:
            return PlaywrightPage(await context.new_page(), self._loop)

        page = self._loop.call(make(), "a new page", limit_s)
        page.goto(url, limit_s=limit_s)
        return page

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        steps: list[Callable[[], Coroutine[Any, Any, None]]] = []
        if self._context:
            steps.append(self._context.close)
        if self._browser:
            steps.append(self._browser.close)
        if self._driver:
            steps.append(self._driver.stop)
        for step in steps:
            with suppress(BrowserError):  # it is gone, or will be with the driver
                self._loop.call(step(), f"closing {self.spec}", GRACE_S)
        self._context = None
        self._loop.end()


@functools.cache
def has_own_browser(engine: str) -> bool:
    """Has `playwright install` installed this engine here?"""
    try:
        _need_playwright()
    except BrowserError:
        return False
    loop = _Loop()

    async def look() -> bool:
        from playwright.async_api import async_playwright

        async with async_playwright() as driver:
            return Path(getattr(driver, engine).executable_path).exists()

    try:
        return loop.call(look(), "starting Playwright", LIMIT_S)
    finally:
        loop.end()


def _need_playwright() -> None:
    try:
        import playwright.async_api  # noqa: F401
    except ImportError:
        raise missing_package("playwright") from None


def _options(spec: BrowserSpec, webgpu: bool, args: list[str]) -> dict[str, Any]:
    """Launch options that a Playwright server takes too."""
    match spec.engine:
        case "chromium":
            more = CHROMIUM_WEBGPU if webgpu else ()
            return {"args": [*more, *args], "chromium_sandbox": False}
        case "firefox" if webgpu:
            return {"firefox_user_prefs": dict(FIREFOX_WEBGPU)}
    return {}


def _environment(spec: BrowserSpec) -> dict[str, str]:
    if spec.engine != "webkit":
        return {}
    return {WEBKIT_SHARED: "0" if spec.name == "webkit-unshared" else "1"}


def _camel(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as the protocol spells them."""
    names = {"chromium_sandbox": "chromiumSandbox", "firefox_user_prefs": "firefoxUserPrefs"}
    return {names.get(name, name): value for name, value in options.items()}


def _error(what: str, error: async_api.Error) -> BrowserError:
    """Playwright's error as ours."""
    from playwright.async_api import TimeoutError as Late

    line = error.message.strip().splitlines()[0] if error.message.strip() else type(error).__name__
    message = f"{what}: {line}"
    if isinstance(error, Late):
        return BrowserError("browser.late", message)
    if "SyntaxError" in error.message or "syntax_error" in error.message:
        return BrowserError("browser.script", message)
    if "context was destroyed" in error.message or "because of a navigation" in error.message:
        return BrowserError("browser.script", message, {"navigated": True})
    return BrowserError("browser.failed", message)
