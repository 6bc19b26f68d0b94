"""The parity suite in Chromium: the digests of web/parity-baseline.json, on every executor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from e2e.conftest import Serve

ROOT = Path(__file__).resolve().parents[2]
BASELINE = json.loads((ROOT / "web" / "parity-baseline.json").read_bytes())["models"]
MODEL = "parity-qwen3"

LOAD = """async ([model, executor]) => {
  const { SLM2 } = await import(new URL("web/client.js", location.href));
  window.slm = await SLM2.load({ model, executor });
  return slm.info.executor;
}"""
RUN = """async (options) => {
  const told = [];
  const onProgress = ({ stage, done, total }) => told.push([stage, done, total]);
  return { ...(await slm.parity({ ...options, onProgress })), told };
}"""


@pytest.fixture
def page(chromium: Browser) -> Any:
    context: BrowserContext = chromium.new_context()
    yield context.new_page()
    context.close()


def open_model(page: Page, url: str, model: str, executor: str, isolated: bool = True) -> None:
    # A page of the site's origin with nothing on it.
    headers = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
    blank = {"content_type": "text/html", "body": "<title>parity</title>"}
    page.route(f"{url}blank.html", lambda route: route.fulfill(**blank, headers=headers if isolated else {}))
    page.goto(f"{url}blank.html")
    assert page.evaluate(LOAD, [model, executor]) == executor


def check(found: dict[str, Any], model: str, size: str) -> None:
    """Every stage has the baseline's digest and marks."""
    known = BASELINE[model]
    artifacts = {key: value for key, value in found["artifacts"].items() if key != "package"}
    assert artifacts == known["artifacts"]
    for stage in found["stages"]:
        expected = known["stages"][stage["name"]]
        assert stage["vectors"] == expected["vectors"][size]
        assert len(stage["marks"]) == 8 * stage["vectors"]
        assert expected["marks"].startswith(stage["marks"]), stage["name"]
        assert stage["digest"] == expected["digests"][size], stage["name"]


@pytest.mark.parametrize("executor", ["wasm", "webgpu"])
def test_all_stages_of_the_tiny_model(page: Page, url: str, executor: str) -> None:
    open_model(page, url, MODEL, executor)
    found = page.evaluate(RUN, {"size": "reduced" if executor == "wasm" else "quick"})
    check(found, MODEL, found["size"])
    assert [stage["name"] for stage in found["stages"]] == list(BASELINE[MODEL]["stages"])
    assert found["executor"] == executor
    last = {stage: (done, total) for stage, done, total in found["told"]}
    assert set(last) == set(BASELINE[MODEL]["stages"])
    assert all(done == total for done, total in last.values())
    # The engine answers as before.
    text = page.evaluate(
        """async () => (await slm.chat([{ role: "user", content: "x" }], { max_tokens: 3 }).result).reason"""
    )
    assert text in ("max_tokens", "stop_token", "invalid_utf8")


def test_without_isolation(page: Page, site: Path, serve: Serve) -> None:
    open_model(page, serve(site, isolation=False).url, MODEL, "wasm", isolated=False)
    check(page.evaluate(RUN, {"stages": ["tokenizer", "forward", "chat"], "size": "quick"}), MODEL, "quick")


def test_a_record_is_what_its_mark_says(page: Page, url: str) -> None:
    open_model(page, url, MODEL, "wasm")
    found = page.evaluate(
        """async () => {
          const record = await slm.parityRecord("chat", 2, "quick");
          const line = JSON.stringify(sorted(record));
          const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(line));
          const digits = [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0"));
          const mark = digits.slice(0, 4).join("");
          return { record, mark };
          function sorted(value) {
            if (Array.isArray(value)) return value.map(sorted);
            if (typeof value !== "object" || value === null) return value;
            return Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]));
          }
        }"""
    )
    assert found["record"]["id"] == "chat-00002"
    # Its input, from the page, comes to the same; what is no input is refused.
    again = page.evaluate(
        """async ({ input }) => [
          await slm.parityOutput("chat", input),
          await slm.parityOutput("chat", { requests: 1 }).catch((error) => error.code),
        ]""",
        found["record"],
    )
    assert again == [found["record"]["output"], "input.json"]
    assert BASELINE[MODEL]["stages"]["chat"]["marks"][16:24] == found["mark"]


def test_cancelled_and_refused(page: Page, url: str) -> None:
    open_model(page, url, MODEL, "wasm")
    codes = page.evaluate(
        """async () => {
          const code = (promise) => promise.then(() => "none", (error) => error.code);
          const abort = new AbortController();
          const onProgress = ({ done }) => done > 0 && abort.abort();
          const signal = abort.signal;
          const running = slm.parity({ stages: ["sampling"], size: "full", onProgress, signal });
          const busy = await code(slm.parity());
          const threw = slm.parity.bind(slm);
          const quick = { stages: ["stream"], size: "quick" };
          return [
            busy,
            await code(running),
            await code(threw({ size: "huge" })),
            await code(threw({ stages: ["tokenizer", "tokenizer"] })),
            await code(threw({ stages: [] })),
            await code(slm.parityRecord("chat", 10_000, "full")),
            await code(threw({ ...quick, onProgress() { throw { code: "mine" }; } })),
            await code(threw({ ...quick, signal: AbortSignal.abort() })),
            await code(threw(quick)),
          ];
        }"""
    )
    params = "input.params"
    assert codes == [
        "protocol.state",
        "cancelled",
        params,
        params,
        params,
        params,
        "mine",
        "cancelled",
        "none",
    ]
