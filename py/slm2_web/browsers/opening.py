"""Starts the browser that a spec names, by the driver that it takes."""

from __future__ import annotations

from collections.abc import Sequence

from slm2_web.browsers.base import Browser
from slm2_web.browsers.playwright_driver import PlaywrightBrowser, has_own_browser
from slm2_web.browsers.spec import BrowserSpec
from slm2_web.browsers.webdriver import WebDriverBrowser


def open_browser(
    spec: BrowserSpec | str, *, webgpu: bool = True, args: Sequence[str] = (), limit_s: float = 60.0
) -> Browser:
    """The browser, started on a fresh profile; end it by `close()` or as a context manager.

    webgpu: ask Chromium and Firefox for WebGPU on a software adapter too; WebKit has none. args: more of
    Chromium's own switches, and no other browser's. limit_s: for the start.
    Raises: InputError `input.browser`, BrowserError `browser.missing` (what to install is in it),
    `browser.failed`, `browser.late`.
    """
    if isinstance(spec, str):
        name, mark, url = spec.partition("@")
        spec = BrowserSpec(name, url if mark else None)
    by_webdriver = spec.url is not None and not spec.uses_playwright_server
    if by_webdriver or (spec.engine == "webkit" and spec.url is None and not has_own_browser("webkit")):
        return WebDriverBrowser.start(spec, webgpu=webgpu, limit_s=limit_s)
    return PlaywrightBrowser.start(spec, webgpu=webgpu, args=args, limit_s=limit_s)
