"""The start: nothing is fetched before it is wanted, and then everything at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

# What makes a load: Python and models, and the workers that fetch them.
HEAVY = re.compile(r"/(?:runtime|wheels|models)/|/worker/(?:worker|loader|boot)\.js|\.wasm$|\.whl$")
ELEMENT = """(load) => {
  document.body.replaceChildren();
  const space = document.createElement("div");
  space.style.height = "4000px";
  const chat = document.createElement("slm2-chat");
  if (load) chat.setAttribute("load", load);
  document.body.append(space, chat);
}"""
LOAD = """async () => {
  const { SLM2 } = await import("./web/client.js");
  const slm = await SLM2.load({ executor: "wasm" });
  const { timings } = slm.info;
  await slm.dispose();
  return timings;
}"""


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A browser that has never been here."""
    context = chromium.new_context()
    yield context.new_page()
    context.close()


def asked_by(page: Page) -> list[str]:
    """The requests of the page and its workers, as they come."""
    asked: list[str] = []
    page.context.on("request", lambda request: asked.append(request.url))
    return asked


@pytest.mark.parametrize("load", ["visible", "interaction"])
def test_an_element_fetches_no_model_before_it_is_wanted(page: Page, tiny_url: str, load: str) -> None:
    asked = asked_by(page)
    page.goto(f"{tiny_url}LICENSES.txt")
    page.evaluate("() => import(new URL('web/slm2-chat.js', location.href).href)")
    page.evaluate(ELEMENT, load)
    page.wait_for_timeout(1500)
    assert any(url.endswith("/web/slm2-chat.js") for url in asked)
    assert [url for url in asked if HEAVY.search(url)] == []
    chat = page.locator("slm2-chat")
    with page.expect_event("worker", timeout=20_000):
        chat.scroll_into_view_if_needed()
        if load == "interaction":
            chat.locator("textarea").press("h")


def test_the_client_alone_fetches_its_scripts_and_site_json(page: Page, tiny_url: str) -> None:
    asked = asked_by(page)
    page.goto(f"{tiny_url}LICENSES.txt")
    page.evaluate("async () => { await import(new URL('web/client.js', location.href).href); }")
    page.wait_for_timeout(500)
    assert [url for url in asked if HEAVY.search(url)] == []


def test_the_runtime_and_the_weights_come_beside_each_other(page: Page, tiny_url: str) -> None:
    """By the order of the requests: the model's files are asked for before Python's last one is."""
    asked = asked_by(page)
    page.goto(f"{tiny_url}LICENSES.txt")
    timings = page.evaluate(LOAD.replace('"./web/client.js"', "new URL('web/client.js', location.href).href"))
    assert timings["total_ms"] > 0
    names = [url.removeprefix(tiny_url) for url in asked]

    def first(pattern: str) -> int:
        return next(i for i, name in enumerate(names) if re.search(pattern, name))

    last_of_python = max(first(r"\.asm\.wasm$"), first("python_stdlib"), first("/numpy-"), first("^wheels/"))
    assert first(r"^models/.*manifest\.json$") < last_of_python
    for pattern in (r"\.asm\.wasm$", "/numpy-", "^wheels/", r"weights-00"):
        assert len([name for name in names if re.search(pattern, name)]) == 1
    assert not [name for name in names if "micropip" in name or "packaging" in name or "regex" in name]
