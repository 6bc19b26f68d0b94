"""The interface of every browser: `Browser` and `Page`, and what is the same for all drivers."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from slm2_web.browsers.spec import BrowserSpec
from slm2_web.errors import BrowserError

LIMIT_S: Final = 60.0
# A driver's own limit ends a wait; when it doesn't either, the caller goes on after this much more.
GRACE_S: Final = 10.0
_POLL_S: Final = 0.1
# What a page may say before the oldest is forgotten.
MAX_MESSAGES: Final = 10_000

COMPLAINTS: Final = ("warning", "error", "exception")


@dataclass(frozen=True, slots=True)
class Message:
    """What a page has said. kind: `log`, `debug`, `info`, `warning`, `error` or `exception`."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Page(ABC):
    """A tab. Every method raises BrowserError: `browser.late` past its limit, `browser.failed` when the
    browser or the connection to it is gone."""

    @abstractmethod
    def goto(self, url: str, *, limit_s: float = LIMIT_S) -> None:
        """Go to `url`; returns when it has been loaded."""

    @abstractmethod
    def reload(self, *, limit_s: float = LIMIT_S) -> None:
        """Load the same again; returns when it has been loaded."""

    def evaluate(self, expression: str, arg: Any = None, *, limit_s: float = LIMIT_S) -> Any:
        """The JSON value of a JavaScript expression, awaited if it is a promise.

        `arg`, a JSON value, is the expression's `arg`. What JSON has no word for is None.
        Raises: BrowserError `browser.script` with the exception's text when it throws or rejects.
        """
        what = f"the page's answer to {expression[:200]}"
        answer = self._run(_WRAPPED % (expression, json.dumps(arg)), what, limit_s)
        outcome: dict[str, Any] = json.loads(answer)
        if "error" in outcome:
            raise BrowserError("browser.script", outcome["error"], {"expression": expression[:1000]})
        return outcome.get("ok")

    def wait(self, expression: str, arg: Any = None, *, limit_s: float = LIMIT_S) -> Any:
        """The first value of an expression that is true (in Python's sense), asked for again and again.

        Goes on when the page goes elsewhere meanwhile.
        Raises: BrowserError `browser.late`, with the page's last complaints; and as `evaluate` does.
        """
        end = time.monotonic() + limit_s
        while True:
            try:
                value = self.evaluate(expression, arg, limit_s=max(end - time.monotonic(), _POLL_S))
            except BrowserError as error:
                if not error.detail.get("navigated"):
                    raise
                value = None
            if value:
                return value
            if time.monotonic() + _POLL_S >= end:
                said = [str(message) for message in self.complaints()[-10:]]
                raise late(f"waiting for {expression[:200]}", limit_s, complaints=said)
            time.sleep(_POLL_S)

    @abstractmethod
    def _run(self, script: str, what: str, limit_s: float) -> str:
        """The string that a JavaScript expression's promise resolves with; `what` for errors.

        Raises: BrowserError.
        """

    @abstractmethod
    def click(self, selector: str, *, limit_s: float = LIMIT_S) -> None:
        """Click the first element that a CSS selector finds, as a mouse would, once it can be clicked."""

    @abstractmethod
    def type(self, selector: str, text: str, *, limit_s: float = LIMIT_S) -> None:
        """Type text into a field that a CSS selector finds, after what it holds, key by key."""

    @abstractmethod
    def screenshot(self, path: Path, *, limit_s: float = LIMIT_S) -> None:
        """Write what is seen of the page as a PNG."""

    @abstractmethod
    def messages(self) -> list[Message]:
        """What the page has said so far, oldest first; the last 10,000. See `Browser.hears`."""

    def complaints(self) -> list[Message]:
        """Warnings, errors and exceptions among the messages."""
        return [message for message in self.messages() if message.kind in COMPLAINTS]

    @abstractmethod
    def close(self) -> None:
        """Close the tab; it may be closed already."""


class Browser(ABC):
    """A running browser on a profile of its own."""

    spec: BrowserSpec
    version: str
    # What pages tell of: "all" (console and exceptions from the beginning) or "loaded" (those from when the
    # page could be reached, so that its first ones may be missing; of its workers nothing).
    hears: str

    @property
    def name(self) -> str:
        """The spec's name."""
        return self.spec.name

    @property
    def title(self) -> str:
        """The name for people."""
        return self.spec.title

    @abstractmethod
    def open(self, url: str, *, limit_s: float = LIMIT_S) -> Page:
        """A new tab on `url`, loaded; the viewport is about 1280 x 800 CSS pixels."""

    @abstractmethod
    def close(self) -> None:
        """End the browser and forget its profile. Never raises; it may be closed, or dead, already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# Nothing but a string crosses, so that no driver's own idea of a value gets in.
_WRAPPED: Final = """(async () => {
  try {
    const value = await ((arg) => (%s))(%s);
    return JSON.stringify({ ok: value });
  } catch (error) {
    return JSON.stringify({ error: String(error) });
  }
})()"""


def late(what: str, limit_s: float, **detail: Any) -> BrowserError:
    """`browser.late`."""
    said = "".join(f"; {line}" for line in detail.get("complaints", ()))
    detail = {**detail, "limit_s": limit_s}
    return BrowserError("browser.late", f"{what}: not done within {limit_s:g} s{said}", detail)
