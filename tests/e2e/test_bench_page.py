"""The bench page measures: its figures are the engine's own, and can be saved."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import BrowserContext, expect

from e2e.chatpage import TIMEOUT_MS


def test_one_round(context: BrowserContext, url: str) -> None:
    page = context.new_page()
    page.goto(f"{url}bench.html")
    page.get_by_label("What computes").select_option("wasm")
    page.get_by_label("Rounds").select_option("1")
    page.get_by_role("button", name="Measure").click()
    expect(page.get_by_role("heading", name="Measured")).to_be_visible(timeout=TIMEOUT_MS)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as JSON").click()
    measured = json.loads(Path(download.value.path()).read_bytes())
    assert (measured["model"], measured["executor"]) == ("smollm2-135m", "wasm")
    (round_,) = measured["rounds"]
    assert all(round_[name] > 0 for name in ("reading", "writing", "first_token_ms"))
    shown = page.locator("#figures").inner_text()
    for text in (f"{round_['reading']:.1f}", f"{round_['writing']:.1f}", round_["sha256"][:8]):
        assert text in shown
    page.close()
