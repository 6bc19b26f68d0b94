"""Where the browsers of this machine are, and what to install when one is missing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from slm2_web.errors import BrowserError

COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "firefox": ("firefox-esr", "firefox"),
}
# WebKitGTK's own browser is no command; each distribution has it elsewhere.
MINIBROWSERS: Final = (
    "/usr/lib/*/webkit2gtk-4.1/MiniBrowser",
    "/usr/lib/*/webkitgtk-6.0/MiniBrowser",
    "/usr/lib/*/webkit2gtk-4.0/MiniBrowser",
    "/usr/libexec/webkit2gtk-4.1/MiniBrowser",
    "/usr/libexec/webkitgtk-6.0/MiniBrowser",
    "/usr/lib/webkit2gtk-4.1/MiniBrowser",
    "/usr/lib/webkitgtk-6.0/MiniBrowser",
)
DEBIAN: Final[Mapping[str, str]] = {
    "chromium": "chromium",
    "firefox": "firefox-esr",
    "webkit": "webkit2gtk-driver xvfb dbus",
}


def system_browser(engine: str) -> Path:
    """The executable of the system's Chromium or Firefox. Raises: BrowserError `browser.missing`."""
    for command in COMMANDS[engine]:
        if found := shutil.which(command):
            return Path(found)
    raise missing(engine, f"no command {' or '.join(COMMANDS[engine])}")


def webkit_driver() -> Path:
    """WebKitGTK's WebDriver. Raises: BrowserError `browser.missing`."""
    if found := shutil.which("WebKitWebDriver"):
        return Path(found)
    raise missing("webkit", "no command WebKitWebDriver")


def mini_browser() -> Path:
    """WebKitGTK's MiniBrowser. Raises: BrowserError `browser.missing`."""
    for pattern in MINIBROWSERS:
        if found := sorted(Path("/").glob(pattern[1:])):
            return found[0]
    raise missing("webkit", "no WebKitGTK MiniBrowser")


def missing(engine: str, why: str) -> BrowserError:
    """`browser.missing`, with what to install."""
    install = f"playwright install {engine} (or on Debian: apt install {DEBIAN[engine]})"
    detail = {"browser": engine, "install": install}
    return BrowserError("browser.missing", f"{engine}: {why}; to install it: {install}", detail)


def missing_package(name: str) -> BrowserError:
    """`browser.missing` for a Python package that drives browsers."""
    detail = {"package": name, "install": f"pip install {name}"}
    return BrowserError(
        "browser.missing", f"the Python package {name} is not installed: pip install {name}", detail
    )
