"""The start: nothing is fetched before it is wanted, then everything at once, and nothing wrong is used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

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
LOAD = """async (model) => {
  const { SLM2 } = await import(new URL("web/client.js", location.href).href);
  try {
    const slm = await SLM2.load({ executor: "wasm", model });
    const { timings } = slm.info;
    await slm.dispose();
    return { timings };
  } catch ({ code, message, detail }) {
    return { code, message, detail };
  }
}"""
# What a load fetches beside the model, each once.
FILES = (
    r"/pyodide\.mjs$",
    r"/pyodide\.asm\.mjs$",
    r"/pyodide\.asm\.wasm$",
    r"/python_stdlib-[0-9a-f]{8}\.zip$",
    r"/pyodide-lock\.json$",
    r"/numpy-[^/]+\.whl$",
    r"^wheels/[^/]+/slm2_web-[^/]+\.whl$",
)


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A browser that has never been here."""
    context = chromium.new_context()
    yield context.new_page()
    context.unroute_all(behavior="ignoreErrors")  # a page may go while its last request is answered
    context.close()


def asked_by(page: Page) -> list[str]:
    """The requests of the page and its workers, as they come."""
    asked: list[str] = []
    page.context.on("request", lambda request: asked.append(request.url))
    return asked


def load(page: Page, url: str, model: str = "tiny") -> dict[str, Any]:
    """What comes of `SLM2.load` on a page of the site with nothing on it."""
    page.goto(f"{url}LICENSES.txt")
    found: dict[str, Any] = page.evaluate(LOAD, model)
    return found


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
    assert any(url.endswith("/site.json") for url in asked)
    assert [url for url in asked if HEAVY.search(url)] == []


def test_the_runtime_and_the_weights_come_beside_each_other(page: Page, tiny_url: str) -> None:
    """None of Python's files waits until another one has come; and so are the model's."""
    events: list[tuple[str, str]] = []
    for event in ("request", "requestfinished"):
        page.context.on(
            event,
            lambda request, event=event: events.append((event, request.url.removeprefix(tiny_url))),
        )
    assert load(page, tiny_url)["timings"]["total_ms"] > 0

    def when(event: str, pattern: str) -> list[int]:
        return [i for i, (found, path) in enumerate(events) if found == event and re.search(pattern, path)]

    for pattern in (*FILES, r"^models/tiny/weights-00", r"^models/tiny/tokenizer\.slm2tok"):
        assert len(when("request", pattern)) == 1, pattern
    asked = [when("request", pattern)[0] for pattern in FILES]
    assert max(asked) < min(when("requestfinished", pattern)[0] for pattern in FILES)
    assert when("request", r"^models/tiny/manifest\.json$")[0] < when("requestfinished", FILES[2])[0]
    rest = [path for event, path in events if event == "request" and path.startswith(("runtime/", "wheels/"))]
    assert len(rest) == len(FILES), rest


def test_wasm_may_come_under_any_type(page: Page, tiny_url: str) -> None:
    types = set()

    def as_text(route: Route) -> None:
        response = route.fetch()
        types.add(route.request.url.rpartition("/")[2])
        route.fulfill(response=response, content_type="text/plain")

    page.context.route("**/*.wasm", as_text)
    assert load(page, tiny_url)["timings"]["total_ms"] > 0
    assert types >= {"pyodide.asm.wasm", "forward.shared.wasm"}


def _flipped(data: bytes) -> bytes:
    """One bit, in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _damage(route: Route) -> None:
    response = route.fetch()
    route.fulfill(response=response, body=_flipped(response.body()))


DATA = (
    "**/pyodide.asm.wasm",
    "**/python_stdlib-*.zip",
    "**/pyodide-lock.json",
    "**/numpy-*.whl",
    "**/slm2_web-*.whl",
    "**/worker/wasm/tokenizer.shared.wasm",
    "**/worker/wasm/forward.shared.wasm",
)


@pytest.mark.parametrize("file", DATA)
def test_a_damaged_file_is_not_used(file: str, page: Page, tiny_url: str) -> None:
    asked = asked_by(page)
    page.context.route(file, _damage)
    failure = load(page, tiny_url)
    assert failure["code"] == "asset.hash"
    assert file.rpartition("/")[2].partition("*")[0] in failure["detail"]["url"]
    assert failure["detail"]["found"] != failure["detail"]["allowed"]
    assert asked.count(failure["detail"]["url"]) == 2, "fetched once more, alone"


@pytest.mark.parametrize("file", ["**/pyodide.mjs", "**/pyodide.asm.mjs", *DATA])
def test_a_missing_file_is_named(file: str, page: Page, tiny_url: str) -> None:
    page.context.route(file, lambda route: route.fulfill(status=404))
    failure = load(page, tiny_url)
    assert failure["code"] == "asset.unreachable"
    assert file.rpartition("/")[2].partition("*")[0] in failure["message"]


def test_a_file_that_is_damaged_once_is_fetched_again(page: Page, tiny_url: str) -> None:
    seen: list[str] = []

    def first_only(route: Route) -> None:
        seen.append(route.request.url)
        if len(seen) == 1:
            _damage(route)
        else:
            route.continue_()

    page.context.route("**/numpy-*.whl", first_only)
    assert load(page, tiny_url)["timings"]["total_ms"] > 0
    assert len(seen) == 2
