"""The demo page as a test uses it: what a person can see and do, and the files that it offers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, expect

# The slowest thing that a page does here: WebGPU on two CPU cores.
TIMEOUT_MS = 180_000

# A promise of the turns that this tab's conversation has in the store: [{question, answered}].
KEPT_TURNS = """new Promise((resolve, reject) => {
  const id = sessionStorage["slm2-conversation"];
  const request = indexedDB.open("slm2-conversations");
  request.onupgradeneeded = () => request.transaction.abort();
  request.onerror = () => resolve([]);
  request.onsuccess = () => {
    const turns = id && request.result.transaction("turns").objectStore("turns").get(id);
    request.result.close();
    if (!turns) return resolve([]);
    turns.onerror = () => reject(turns.error);
    turns.onsuccess = () => resolve(turns.result?.turns ?? []);
  };
})"""


class ChatPage:
    """A tab with the demo page. `requests`, `failures` and `complaints` collect what happens in it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.requests: list[str] = []
        self.complaints: list[str] = []
        # Of the context: the workers' requests are not the page's.
        context.on("request", lambda request: self.requests.append(request.url))
        self.page: Page = context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("console", self._hear)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console {message.type}: {message.text}")

    def open(self, query: str = "") -> ChatPage:
        """Goes there; doesn't wait for the model."""
        self.page.goto(self.url + query)
        return self

    def wait(self, state: str) -> ChatPage:
        """Until the page is loading, ready, busy or has an error."""
        self.page.wait_for_selector(f"html[data-state={state}]", state="attached", timeout=TIMEOUT_MS)
        return self

    def ask(self, text: str) -> ChatPage:
        """Types and sends; doesn't wait."""
        self.page.get_by_label("Message").fill(text)
        self.page.get_by_role("button", name="Send").click()
        return self

    def reply(self, text: str) -> dict[str, Any]:
        """Asks, waits, and gives the transcript of the reply."""
        offers = self.page.get_by_role("button", name="Save transcript")
        n = offers.count()
        self.ask(text)
        expect(offers).to_have_count(n + 1, timeout=TIMEOUT_MS)
        return self.wait("ready").transcript()

    def transcript(self) -> dict[str, Any]:
        """The file that the last reply offers."""
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name="Save transcript").last.click()
        path = download.value.path()
        result: dict[str, Any] = json.loads(Path(path).read_bytes())
        return result

    def text(self) -> str:
        """What the model has said last."""
        return self.page.locator(".reply .text").last.text_content() or ""

    def says(self, text: str) -> bool:
        """Is this what the model has said last, whatever markdown makes of its marks, numbers and lines?"""
        shown = self.page.locator(".reply .text").last.inner_text()
        return re.findall(r"[^\W\d]+", shown) == re.findall(r"[^\W\d]+", text)

    def open_settings(self) -> ChatPage:
        """The settings with all of their fields."""
        self.page.get_by_role("button", name="Settings").click()
        self.page.locator("#settings .more").evaluate("(e) => (e.open = true)")
        return self

    def set(self, **settings: str) -> ChatPage:
        """Opens the settings, fills fields, closes."""
        self.open_settings()
        for name, value in settings.items():
            self.page.locator(f"[name={name}]").fill(value)
        self.page.get_by_role("button", name="Close").click()
        return self

    def expect_error(self, code: str) -> str:
        """An error with this code is shown; gives all of its text."""
        card = self.page.locator(".error", has_text=code).last
        expect(card).to_be_visible(timeout=TIMEOUT_MS)
        return card.inner_text()

    def stages(self) -> dict[str, str]:
        """The table of loading: stage -> figure."""
        lines = self.page.locator("#stages li:not([hidden])")
        figures = lines.evaluate_all(
            "lines => lines.map(e => [e.dataset.stage, e.querySelector('.figure').textContent])"
        )
        return dict(figures)
