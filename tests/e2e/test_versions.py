"""One version at a time: a site's offline copy is its own, whole, and renewed when the page is opened."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from e2e.conftest import Open, Serve

KEEP = """async () => {
  await navigator.serviceWorker.register((await import("./web/trusted.js")).scriptUrl("sw.js"));
  const { active } = await navigator.serviceWorker.ready;
  if (active.state !== "activated") {
    await new Promise((resolve) => active.addEventListener("statechange", resolve, { once: true }));
  }
}"""
VERSION = "async () => (await (await fetch('site.json')).json()).version"
CACHES = "async () => (await caches.keys()).filter((name) => name.startsWith('slm2-site '))"
LOAD = """async () => {
  const { SLM2 } = await import("./web/client.js");
  try { await SLM2.load(); return "no error"; } catch (e) { return [e.code, e.message]; }
}"""


@pytest.fixture
def copy_of_site(site: Path) -> Callable[[Path], Path]:
    """Copies the site, but for the weights: what is tested here needs no model."""

    def make(out: Path) -> Path:
        shutil.copytree(site, out, ignore=shutil.ignore_patterns("*.bin", "*.gz"))
        return out

    return make


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A browser that has never been here."""
    context = chromium.new_context()
    yield context.new_page()
    context.close()


def publish(folder: Path, **changes: str) -> str:
    """The site's new version, in which files (names with _ for .) have a line more, as site.json says."""
    site = json.loads((folder / "site.json").read_bytes())
    for name, line in changes.items():
        path = folder / name.replace("_", ".").replace("web.", "web/")
        path.write_bytes(path.read_bytes() + line.encode())
        data = path.read_bytes()
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        site["files"][path.relative_to(folder).as_posix()] = entry
    site["version"] = hashlib.sha256(json.dumps(site["files"]).encode()).hexdigest()
    (folder / "site.json").write_text(json.dumps(site))
    version: str = site["version"]
    return version


def test_two_sites_of_one_origin_keep_a_copy_each(
    copy_of_site: Callable[[Path], Path], tmp_path: Path, serve: Serve, page: Page
) -> None:
    for name in ("a", "a b"):
        copy_of_site(tmp_path / name)
    server = serve(tmp_path)
    roots = [f"{server.url}{name}/" for name in ("a", "a%20b")]
    for root in roots:
        page.goto(root)
        page.evaluate(KEEP)
    assert [name.split(" ")[1] for name in page.evaluate(CACHES)] == roots
    server.close()
    for root in roots:
        page.goto(root)
        expect(page.get_by_role("heading", name="slm2-web")).to_be_visible()


def test_an_update_is_taken_whole_when_the_page_is_opened(
    copy_of_site: Callable[[Path], Path], tmp_path: Path, serve: Serve, page: Page
) -> None:
    folder = copy_of_site(tmp_path / "site")
    server = serve(folder)
    page.goto(server.url)
    page.evaluate(KEEP)

    second = publish(folder, index_html="<p>second</p>", web_style_css="/* second */")
    page.goto(server.url)
    assert "<p>second</p>" in page.content()
    assert page.evaluate("async () => (await (await fetch('web/style.css')).text()).endsWith('/* second */')")
    assert page.evaluate(VERSION) == second
    assert page.evaluate(CACHES) == [f"slm2-site {server.url} {second}"]

    # A site that is being replaced: one file is not yet what its site.json says.
    publish(folder, index_html="<p>third</p>", web_style_css="/* third */")
    style = folder / "web/style.css"
    style.write_bytes(style.read_bytes().removesuffix(b"/* third */"))
    page.goto(server.url)
    assert page.evaluate(VERSION) == second
    assert "<p>third</p>" not in page.content()

    style.write_bytes(style.read_bytes() + b"/* third */")
    page.goto(server.url)
    assert "<p>third</p>" in page.content()

    server.close()
    page.goto(server.url)
    assert "<p>third</p>" in page.content()


def test_a_page_from_before_an_update_is_told(
    copy_of_site: Callable[[Path], Path], tmp_path: Path, serve: Serve, page: Page
) -> None:
    folder = copy_of_site(tmp_path / "site")
    server = serve(folder)
    page.goto(server.url)
    page.evaluate(KEEP)
    page.goto(server.url)
    first = page.evaluate(VERSION)
    second = publish(folder, index_html="<p>second</p>")
    other = page.context.new_page()
    other.goto(server.url)
    code, message = page.evaluate(LOAD)
    assert code == "protocol.version"
    assert first[:16] in message
    assert second[:16] in message
    page.reload()
    assert page.evaluate(LOAD)[0] == "asset.unreachable", "this site has no weights"


@pytest.mark.parametrize("changed", [None, "manifest.json", "numpy"])
@pytest.mark.parametrize("n_old", [1, 3])
def test_a_site_that_is_replaced_meanwhile(n_old: int, changed: str | None, visit: Open, url: str) -> None:
    """Once the page has asked for site.json, or once page, worker and loader have: it is noticed,
    and told as that also where a file of the new version comes first."""
    seen: list[str] = []

    def change(route: Route) -> None:
        seen.append(route.request.url)
        if len(seen) <= n_old:
            route.continue_()
            return
        response = route.fetch()
        site = {**response.json(), "version": "f" * 64}
        route.fulfill(response=response, body=json.dumps(site))

    chat = visit("about:blank")
    chat.url = url
    chat.page.context.route("**/site.json", change)
    if changed:
        chat.page.context.route(f"**/{changed}*", lambda route: route.fulfill(body="{}"))
    assert "f" * 16 in chat.open().expect_error("protocol.version")
    expect(chat.page.get_by_role("button", name="Reload the page")).to_be_visible()
