"""Browsers by Selenium: WebKitGTK's MiniBrowser on this machine, or any at a WebDriver endpoint.

Theory of operation. A command of WebDriver is an HTTP request that is answered when it is done, perhaps
never. All are sent from one thread of the browser's own; the caller waits for it with a limit, and ending
the browser ends the request. WebDriver tells nothing of the console (WebKitGTK has no BiDi): `_LISTEN`, put
before every script, lets the page itself keep what it says from then on. Pages are loaded without waiting,
to get there early.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from slm2_web.browsers.base import GRACE_S, LIMIT_S, MAX_MESSAGES, Browser, Message, Page, late
from slm2_web.browsers.display import Display
from slm2_web.browsers.find import mini_browser, missing_package, webkit_driver
from slm2_web.browsers.playwright_driver import (
    CHROMIUM_WEBGPU,
    FIREFOX_WEBGPU,
    HEIGHT,
    WEBKIT_SHARED,
    WIDTH,
)
from slm2_web.browsers.spec import BrowserSpec
from slm2_web.errors import BrowserError

if TYPE_CHECKING:
    from selenium.webdriver.common.options import BaseOptions
    from selenium.webdriver.common.service import Service
    from selenium.webdriver.remote.webdriver import WebDriver

T = TypeVar("T")

_POLL_S: Final = 0.05
# How long an empty window may stay empty before it is told again where to go; then twice as long.
_AGAIN_S: Final = 5.0
# Of the connection; a Grid may have a queue.
_HTTP_LIMIT_S: Final = 1800
# Of a command on the way to a document: WebKitGTK, which gives a site a process of its own, may lose one, and
# its answer never comes. What is asked then can be asked again.
_LOST_S: Final = 5.0

# Keeps [kind, text] of what the page says in `window[Symbol.for("slm2-heard")]`, and gives it.
_LISTEN: Final = """
  const key = Symbol.for("slm2-heard");
  const heard = window[key] ?? (() => {
    const heard = [];
    Object.defineProperty(window, key, { value: heard });
    const keep = (kind, text) => heard.length < 10000 && heard.push([kind, text]);
    const show = (value) => typeof value === "object" && value !== null && !(value instanceof Error)
      ? JSON.stringify(value) ?? String(value) : String(value);
    const kinds = { log: "log", debug: "debug", info: "info", warn: "warning", error: "error" };
    for (const [name, kind] of Object.entries(kinds)) {
      const own = console[name];
      console[name] = (...values) => {
        try { keep(kind, values.map(show).join(" ")); } catch { keep(kind, "(an object)"); }
        own.apply(console, values);
      };
    }
    addEventListener("error", ({ message, error }) => message && keep("exception", String(error ?? message)));
    addEventListener("unhandledrejection", ({ reason }) => keep("exception", String(reason)));
    return heard;
  })();
"""
_RUN: Final = _LISTEN + "const done = arguments[arguments.length - 1]; (%s).then(done);"
_TAKE: Final = _LISTEN + "return JSON.stringify(heard.splice(0));"
_LEAVE: Final = _LISTEN + "window[Symbol.for('slm2-left')] = true; return JSON.stringify(heard.splice(0));"
# [ready state, address].
_STATE: Final = (
    "if (window[Symbol.for('slm2-left')]) return ['left', document.URL];"
    + _LISTEN
    + "return [document.readyState, document.URL];"
)


class _Thread:
    """Runs calls one after the other."""

    def __init__(self) -> None:
        self.is_busy = False
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="webdriver", daemon=True).start()

    def _run(self) -> None:
        while job := self._jobs.get():
            work, future = job
            if not future.set_running_or_notify_cancel():
                continue
            self.is_busy = True
            try:
                result = work()
            except BaseException as error:  # the caller's
                self.is_busy = False
                future.set_exception(error)
            else:
                self.is_busy = False
                future.set_result(result)

    def call(self, work: Callable[[], T], what: str, limit_s: float) -> T:
        """What a call gives. Raises: BrowserError `browser.late`, `browser.failed`, `browser.script`."""
        from selenium.common.exceptions import WebDriverException
        from urllib3.exceptions import HTTPError

        future: Future[T] = Future()
        self._jobs.put((work, future))
        try:
            return future.result(limit_s)
        except TimeoutError:
            future.cancel()
            raise late(what, limit_s) from None
        except WebDriverException as error:
            raise _error(what, error) from None
        except (HTTPError, OSError) as error:
            raise BrowserError("browser.failed", f"{what}: {error}") from None

    def end(self) -> None:
        """Let the thread end when it is idle."""
        self._jobs.put(None)


class WebDriverPage(Page):
    """A window of a WebDriver session."""

    def __init__(self, browser: WebDriverBrowser, handle: str) -> None:
        self._browser = browser
        self._handle: str | None = handle
        self._heard: deque[Message] = deque(maxlen=MAX_MESSAGES)

    def goto(self, url: str, *, limit_s: float = LIMIT_S) -> None:
        self._navigate(lambda driver: driver.get(url), url, f"going to {url}", limit_s)

    def reload(self, *, limit_s: float = LIMIT_S) -> None:
        url = str(self.evaluate("document.URL", limit_s=limit_s))
        self._navigate(lambda driver: driver.refresh(), url, f"reloading {url}", limit_s)

    def _navigate(self, go: Callable[[WebDriver], None], url: str, what: str, limit_s: float) -> None:
        from selenium.common.exceptions import JavascriptException, TimeoutException, WebDriverException

        def work(driver: WebDriver) -> None:
            end = time.monotonic() + limit_s
            self._keep(_unless_lost(driver, lambda: driver.execute_script(_LEAVE), "[]"))
            _unless_lost(driver, lambda: go(driver), None)
            pause = _AGAIN_S
            again = time.monotonic() + pause
            between = ["between", ""]
            while time.monotonic() < end:
                try:
                    state, found = _unless_lost(driver, lambda: driver.execute_script(_STATE), between)
                except JavascriptException:  # between two documents
                    state, found = between
                except WebDriverException as error:
                    if not _is_unloaded(error):
                        raise
                    state, found = between
                if state == "complete" and found == "about:blank" and url != found:
                    raise WebDriverException("the browser could not load it")
                if state == "complete":
                    return
                # A new window's own beginning may end what was begun before it.
                if (state, found) == ("left", "about:blank") and time.monotonic() > again:
                    _unless_lost(driver, lambda: go(driver), None)
                    pause *= 2
                    again = time.monotonic() + pause
                time.sleep(_POLL_S)
            raise TimeoutException(f"not loaded within {limit_s:g} s")

        self._call(work, what, limit_s + GRACE_S)

    def _run(self, script: str, what: str, limit_s: float) -> str:
        def work(driver: WebDriver) -> str:
            driver.set_script_timeout(limit_s)
            answer: str = driver.execute_async_script(_RUN % script)
            return answer

        return self._call(work, what, limit_s + GRACE_S)

    def click(self, selector: str, *, limit_s: float = LIMIT_S) -> None:
        self._on_element(selector, lambda element: element.click(), f"clicking {selector}", limit_s)

    def type(self, selector: str, text: str, *, limit_s: float = LIMIT_S) -> None:
        self._on_element(selector, lambda e: e.send_keys(text), f"typing into {selector}", limit_s)

    def _on_element(self, selector: str, act: Callable[[Any], None], what: str, limit_s: float) -> None:
        from selenium.common.exceptions import (
            ElementNotInteractableException,
            NoSuchElementException,
            StaleElementReferenceException,
            TimeoutException,
        )

        def work(driver: WebDriver) -> None:
            end = time.monotonic() + limit_s
            why = ""
            while time.monotonic() < end:
                try:
                    return act(driver.find_element("css selector", selector))
                except (
                    ElementNotInteractableException,  # and ElementClickIntercepted
                    NoSuchElementException,
                    StaleElementReferenceException,
                ) as error:
                    why = type(error).__name__
                time.sleep(_POLL_S)
            raise TimeoutException(f"not done within {limit_s:g} s ({why})")

        self._call(work, what, limit_s + GRACE_S)

    def screenshot(self, path: Path, *, limit_s: float = LIMIT_S) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._call(lambda driver: driver.get_screenshot_as_png(), "a screenshot", limit_s))

    def messages(self) -> list[Message]:
        if self._handle is not None:
            self._call(
                lambda driver: self._keep(driver.execute_script(_TAKE)), "the page's messages", LIMIT_S
            )
        return list(self._heard)

    def _keep(self, heard: str) -> None:
        self._heard.extend(Message(kind, text) for kind, text in json.loads(heard))

    def close(self) -> None:
        if self._handle is None:
            return
        # A session ends with its last window; that one is kept, empty.
        if self._browser.is_last_window():
            blank = "about:blank"  # waited for: it would end what is begun after it
            self._navigate(lambda driver: driver.get(blank), blank, "closing the page", LIMIT_S)
            self._browser.spare = self._handle
        else:
            self._call(lambda driver: driver.close(), "closing the page", LIMIT_S)
        self._handle = None

    def _call(self, work: Callable[[WebDriver], T], what: str, limit_s: float) -> T:
        handle = self._handle
        if handle is None:
            raise BrowserError("browser.failed", f"{what}: the page has been closed")
        return self._browser.call(work, what, limit_s, handle)


class WebDriverBrowser(Browser):
    """A WebDriver session, and what was started for it."""

    hears = "loaded"

    def __init__(self, spec: BrowserSpec) -> None:
        self.spec = spec
        # A window that is open and no page's.
        self.spare: str | None = None
        self._thread = _Thread()
        self._driver: WebDriver | None = None
        self._display: Display | None = None
        self._service: Service | None = None
        self._is_closed = False

    @classmethod
    def start(cls, spec: BrowserSpec, *, webgpu: bool, limit_s: float) -> Self:
        """See open_browser. Raises: BrowserError."""
        try:
            import selenium.webdriver  # noqa: F401
        except ImportError:
            raise missing_package("selenium") from None
        started = cls(spec)
        try:
            url = spec.url or started._start_service()
            options = [_webkit_gtk(local=True)] if spec.url is None else _remote_options(spec, webgpu)
            started._thread.call(lambda: started._start(url, options), f"starting {spec}", limit_s)
        except BaseException:
            started.close()
            raise
        return started

    def _start_service(self) -> str:
        """Starts WebKitGTK's driver on a display; gives its URL."""
        from selenium.webdriver.webkitgtk.service import Service

        driver = webkit_driver()
        self._display = Display.open()
        shared = "0" if self.spec.name == "webkit-unshared" else "1"
        env = {
            **os.environ,
            "DISPLAY": self._display.name,
            "GDK_BACKEND": "x11",
            "LIBGL_ALWAYS_SOFTWARE": "1",
            # GTK would start a session bus and its accessibility's, which outlive it.
            "DBUS_SESSION_BUS_ADDRESS": "disabled:",
            "NO_AT_BRIDGE": "1",
            WEBKIT_SHARED: shared,
        }
        own_group = {"start_new_session": True}  # the browser too, to end all of it
        service = Service(str(driver), env=env, log_output=subprocess.DEVNULL, popen_kw=own_group)
        self._service = service
        self._thread.call(service.start, "starting WebKitWebDriver", LIMIT_S)
        return service.service_url

    def _start(self, url: str, options: list[BaseOptions]) -> None:
        from selenium.webdriver.common.proxy import Proxy, ProxyType
        from selenium.webdriver.remote.client_config import ClientConfig
        from selenium.webdriver.remote.remote_connection import RemoteConnection
        from selenium.webdriver.remote.webdriver import WebDriver

        for each in options:
            each.page_load_strategy = "none"
        # No proxy is asked for what we have started ourselves.
        direct = Proxy({"proxyType": ProxyType.DIRECT}) if self._service is not None else None
        config = ClientConfig(remote_server_addr=url, timeout=_HTTP_LIMIT_S, proxy=direct)
        driver = WebDriver(RemoteConnection(client_config=config), options=options)
        if self._is_closed:  # a Grid has given it too late: nobody waits any more
            driver.quit()
            return
        self._driver = driver
        self.version = str(driver.capabilities.get("browserVersion", ""))
        self.spare = driver.current_window_handle
        driver.set_window_rect(0, 0, WIDTH, HEIGHT)

    def open(self, url: str, *, limit_s: float = LIMIT_S) -> Page:
        driver = self._driver
        if driver is None:
            raise BrowserError("browser.failed", f"{self.spec}: it has been closed")

        def handle() -> str:
            if self.spare is not None:
                found, self.spare = self.spare, None
                return found
            driver.switch_to.new_window("window")
            driver.set_window_rect(0, 0, WIDTH, HEIGHT)
            return driver.current_window_handle

        page = WebDriverPage(self, self._thread.call(handle, "a new window", limit_s))
        page.goto(url, limit_s=limit_s)
        return page

    def is_last_window(self) -> bool:
        """Would the session end with the next window?"""
        driver = self._driver
        assert driver is not None
        return self._thread.call(lambda: len(driver.window_handles), "the windows", LIMIT_S) == 1

    def call(self, work: Callable[[WebDriver], T], what: str, limit_s: float, handle: str) -> T:
        """What `work` gives, in a window. Raises: BrowserError."""
        driver = self._driver
        if driver is None:
            raise BrowserError("browser.failed", f"{what}: {self.spec} has been closed")

        def in_window() -> T:
            driver.switch_to.window(handle)
            return work(driver)

        return self._thread.call(in_window, what, limit_s)

    def close(self) -> None:
        self._is_closed = True
        driver, self._driver = self._driver, None
        if driver is not None and not self._thread.is_busy:
            with suppress(BrowserError):  # it is gone, or its processes will be
                self._thread.call(driver.quit, f"closing {self.spec}", GRACE_S)
        self._thread.end()
        if self._service is not None and self._service.process is not None:
            with suppress(ProcessLookupError):  # all have ended by themselves
                os.killpg(self._service.process.pid, signal.SIGKILL)
            self._service.process.wait()
            self._service = None
        if self._display is not None:
            self._display.close()
            self._display = None


def _webkit_gtk(*, local: bool) -> BaseOptions:
    from selenium.webdriver.webkitgtk.options import Options

    options = Options()
    if local:
        options.binary_location = str(mini_browser())
        options.add_argument("--automation")
    return options


def _remote_options(spec: BrowserSpec, webgpu: bool) -> list[BaseOptions]:
    """What a Grid is asked for; the first that it has."""
    match spec.engine:
        case "chromium":
            from selenium.webdriver.chrome.options import Options as ChromeOptions

            chrome = ChromeOptions()
            for switch in CHROMIUM_WEBGPU if webgpu else ():
                chrome.add_argument(switch)
            return [chrome]
        case "firefox":
            from selenium.webdriver.firefox.options import Options as FirefoxOptions

            firefox = FirefoxOptions()
            for name, value in FIREFOX_WEBGPU.items() if webgpu else ():
                firefox.set_preference(name, value)
            return [firefox]
        case _:
            from selenium.webdriver.safari.options import Options as SafariOptions

            return [SafariOptions(), _webkit_gtk(local=False)]


def _unless_lost(driver: WebDriver, command: Callable[[], T], otherwise: T) -> T:
    """What a command gives; `otherwise` when no answer comes."""
    from selenium.webdriver.remote.remote_connection import RemoteConnection
    from urllib3.exceptions import ReadTimeoutError

    executor = driver.command_executor
    assert isinstance(executor, RemoteConnection)
    config = executor.client_config
    usual, config.timeout = config.timeout, _LOST_S
    try:
        return command()
    except ReadTimeoutError:
        return otherwise
    finally:
        config.timeout = usual


def _is_unloaded(error: Any) -> bool:
    """Was a script ended by its document's end? WebKitGTK has no class of errors for it."""
    return "unload event" in (error.msg or "")


def _error(what: str, error: Any) -> BrowserError:
    """Selenium's error as ours."""
    from selenium.common.exceptions import (
        InvalidSessionIdException,
        JavascriptException,
        NoSuchWindowException,
        TimeoutException,
    )

    lines = (error.msg or type(error).__name__).strip().splitlines()
    message = f"{what}: {lines[0] if lines else type(error).__name__}"
    if isinstance(error, TimeoutException):
        return BrowserError("browser.late", message)
    if isinstance(error, JavascriptException) or _is_unloaded(error):
        return BrowserError("browser.script", message, {"navigated": "unload" in message.lower()})
    if isinstance(error, InvalidSessionIdException | NoSuchWindowException):
        return BrowserError("browser.failed", f"{message} (the browser or its window has ended)")
    return BrowserError("browser.failed", message)
