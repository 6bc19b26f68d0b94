"""Which browser, and where: `chromium`, `webkit@http://host:4444`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from slm2_web.errors import InputError

# name: (the engine, what people call it)
NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "chromium": ("chromium", "Chromium"),
    "firefox": ("firefox", "Firefox"),
    "webkit": ("webkit", "WebKit"),
    "webkit-unshared": ("webkit", "WebKit without shared memory"),
}
PLAYWRIGHT_SCHEMES: Final = ("ws", "wss")
WEBDRIVER_SCHEMES: Final = ("http", "https")


@dataclass(frozen=True, slots=True)
class BrowserSpec:
    """A browser by name, of this machine or, with a URL, of another one."""

    name: str
    url: str | None = None

    def __post_init__(self) -> None:
        """Raises: InputError `input.browser`."""
        if self.name not in NAMES:
            raise _wrong("browser", self.name, ", ".join(NAMES))
        if self.url is None:
            return
        if self.name == "webkit-unshared":
            raise _wrong(
                "browser", str(self), "webkit@URL: how a browser elsewhere is started isn't ours to say"
            )
        allowed = "ws://, wss:// (a Playwright server), http:// or https:// (WebDriver), with a host"
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError as error:
            raise _wrong("browser URL", self.url, f"{allowed} ({error})") from None
        if parts.scheme not in (*PLAYWRIGHT_SCHEMES, *WEBDRIVER_SCHEMES) or not parts.hostname:
            raise _wrong("browser URL", self.url, allowed)

    @property
    def engine(self) -> str:
        """`chromium`, `firefox` or `webkit`."""
        return NAMES[self.name][0]

    @property
    def title(self) -> str:
        """The name for people."""
        return NAMES[self.name][1]

    @property
    def uses_playwright_server(self) -> bool:
        """Is it behind a Playwright server?"""
        return self.url is not None and urlsplit(self.url).scheme in PLAYWRIGHT_SCHEMES

    def __str__(self) -> str:
        return self.name if self.url is None else f"{self.name}@{self.url}"


def parse_browsers(text: str) -> list[BrowserSpec]:
    """The browsers of a list separated by commas, in its order.

    Raises: InputError `input.browser` for an unknown name, a bad URL, an empty list, or one named twice.
    """
    specs: list[BrowserSpec] = []
    for part in text.split(","):
        name, mark, url = part.strip().partition("@")
        spec = BrowserSpec(name, url if mark else None)
        if spec in specs:
            raise _wrong("browsers", f"{spec} twice", "each browser once")
        specs.append(spec)
    return specs


def _wrong(place: str, found: str, allowed: str) -> InputError:
    detail = {"field": place, "found": found, "allowed": allowed}
    return InputError("input.browser", f"{place}: found {found!r}; allowed: {allowed}", detail)
