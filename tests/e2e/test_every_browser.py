"""The demo page in Chromium, Firefox and WebKit: the same tokens, the same bits; stopped; without a network.

A person's clicks and keys, in a browser that has never been here. WebKit runs twice: with shared memory, and
as WebKitGTK is shipped, without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.chatpage import KEPT_TURNS
from e2e.conftest import ROOT, Serve
from slm2_web.browsers import Browser, Page, open_browser
from slm2_web.compile.serve import Server

QUESTION = "What is 2+2?"
LIMIT_S = 240.0
STATE = "document.documentElement.dataset.state"
LAST_TEXT = "([...document.querySelectorAll('.reply .text')].at(-1)?.textContent ?? '')"
STAGES = "document.querySelector('#stages').textContent"
# The transcript of each answer that the page keeps; what it offers as a file is the same.
TRANSCRIPTS = f"{KEPT_TURNS}.then((turns) => turns.map((turn) => turn.answered.result.transcript))"
# What a transcript holds of a run, and not of the machine that it was made on.
SAME = ("artifacts", "request", "prompt_ids", "generated_ids", "logit_digests", "text", "reason")
# A first visit with default settings would draw with a seed of its own.
SETTINGS = {"temperature": "0", "max_tokens": "300"}


@dataclass
class Visit:
    """The demo page in one browser, with a server of its own."""

    browser: Browser
    page: Page
    server: Server

    def ready(self) -> None:
        """Until the page is ready. Fails with what an error says."""
        state = self.page.wait(f"[{STATE}].find((s) => s === 'ready' || s === 'error')", limit_s=LIMIT_S)
        assert state == "ready", self.page.evaluate("document.querySelector('#load-error').innerText")

    def ask(self, text: str) -> None:
        """Types and sends; doesn't wait."""
        self.page.type("#input", text)
        self.page.click("#send")

    def reply(self, text: str) -> dict[str, Any]:
        """Asks, waits, and gives the transcript of the reply."""
        n = len(self.page.evaluate(TRANSCRIPTS))
        self.ask(text)
        return self.transcript(n)

    def transcript(self, n: int) -> dict[str, Any]:
        """That of the answer number n, when it is there."""
        text = self.page.wait(
            f"{STATE} === 'ready' && {TRANSCRIPTS}.then((all) => all[arg])", n, limit_s=LIMIT_S
        )
        run: dict[str, Any] = json.loads(text)
        return run


@pytest.fixture(scope="module")
def baseline(packed_smollm2: Path) -> dict[str, Any]:
    """The run that the command line makes of the same request."""
    params = {"temperature": 0, "max_tokens": int(SETTINGS["max_tokens"])}
    request = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "params": params})
    command = [sys.executable, "-m", "slm2_web.cli", "generate", "--executor", "wasm"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "py")}
    done = subprocess.run(
        [*command, "--model", str(packed_smollm2)],
        input=request,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    run: dict[str, Any] = json.loads(done.stdout)
    assert len(run["generated_ids"]) == len(run["logit_digests"]) > 5
    return run


@pytest.fixture(scope="module", params=["chromium", "firefox", "webkit", "webkit-unshared"])
def visit(request: pytest.FixtureRequest, site: Path, serve: Serve) -> Iterator[Visit]:
    """A first visit; a browser's tests share it, in their order."""
    server = serve(site)
    with open_browser(request.param, webgpu=False) as browser:
        # Settings that were kept, as on a second visit.
        before = browser.open(f"{server.url}LICENSES.txt")
        before.evaluate("localStorage.setItem('slm2-settings', JSON.stringify(arg))", SETTINGS)
        yield Visit(browser, browser.open(server.url), server)


def test_the_reply_is_the_command_line_s(visit: Visit, baseline: dict[str, Any]) -> None:
    visit.ask(QUESTION)  # waits for the model, as the page does
    run = visit.transcript(0)
    assert {key: run[key] for key in SAME} == {key: baseline[key] for key in SAME}
    page = visit.page
    assert page.evaluate(LAST_TEXT) == baseline["text"]
    shared = visit.browser.name != "webkit-unshared"
    assert run["executor"]["name"] == "wasm"
    assert page.evaluate("[crossOriginIsolated, typeof SharedArrayBuffer === 'function']") == [True, shared]
    notes = page.evaluate("document.querySelector('#notes').textContent")
    assert ("of weights in shared memory" in notes) == shared
    print(visit.browser.title, visit.browser.version, run["executor"], run["timings"])
    print(page.evaluate("document.querySelector('#loading-title').textContent"))
    print(page.evaluate(STAGES))
    page.screenshot(ROOT / "shots" / f"browser-{visit.browser.name}.png")
    assert page.complaints() == []


def test_a_reply_is_stopped(visit: Visit) -> None:
    page = visit.page
    visit.ready()
    visit.ask("Write a long story about the sea.")
    page.wait(f"{LAST_TEXT}.length > 20 && {STATE} === 'busy'", limit_s=LIMIT_S)
    page.click("#stop")
    run = visit.transcript(1)
    assert run["reason"] == "cancelled"
    assert 0 < len(run["generated_ids"]) < 250
    assert page.evaluate(LAST_TEXT) == run["text"]
    assert page.complaints() == []


def test_the_second_visit_needs_no_server(visit: Visit, baseline: dict[str, Any]) -> None:
    page = visit.page
    kept = "document.querySelector('#notes').textContent.includes('kept for use without a network')"
    page.wait(kept, limit_s=LIMIT_S)
    visit.server.close()
    page.reload(limit_s=LIMIT_S)
    visit.ready()
    assert page.evaluate("document.querySelectorAll('.turn').length") == 2, (
        "the conversation outlives a reload"
    )
    assert page.evaluate("crossOriginIsolated")
    assert "99.1 MB from cache" in page.evaluate(STAGES)
    page.click("#new-chat")
    run = visit.reply(QUESTION)
    assert {key: run[key] for key in SAME} == {key: baseline[key] for key in SAME}
