"""A plain file server's site replies on one thread, and shares memory when its service worker is asked to.

Run in every engine, where what they do differs: each has its own idea of COEP and of who controls a worker.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.chatpage import KEPT_TURNS
from e2e.conftest import ROOT, Serve, link
from e2e.plainhost import PlainHost
from e2e.test_versions import publish
from slm2_web.browsers import Browser, Page, open_browser
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.serve import POLICY
from slm2_web.compile.site import build_site
from slm2_web.errors import BrowserError

NAMES = ("chromium", "firefox", "webkit")
# Pyodide and a model in the slowest of them, on two busy cores.
LIMIT_S = 240.0
# To see that a page is not loaded again.
QUIET_S = 3.0
# A page is asked for with it by those who visit, without it by the worker that keeps the site.
VISIT = "?visit"
# "What is 2+2?" by the default model, greedily, wherever it runs.
REPLY = [504, 2988]

STATE = "document.documentElement.dataset.state"
NOTES = "document.getElementById('notes').textContent"
ERROR = "document.querySelector('#load-error .error')?.textContent"
SHARES = "typeof SharedArrayBuffer === 'function'"
# The site's service worker: the query of its script, or null.
WORKER = """navigator.serviceWorker.getRegistration('./').then((found) => {
  const worker = found && (found.active ?? found.waiting ?? found.installing);
  return worker ? new URL(worker.scriptURL).search : null;
})"""
KEPT_IDS = f"""{KEPT_TURNS}
  .then((turns) => JSON.parse(turns.at(-1)?.answered.result.transcript ?? 'null')?.generated_ids)"""
# A page of the site's author, who has no policy for scripts.
BARE = '<!doctype html><meta charset="utf-8"><title>bare</title>'
ISOLATE = """async (options) => {
  const { isolate } = await import(options.from);
  const { isolated, by, why, error } = await isolate(options.with);
  return { isolated, by, why, code: error?.code ?? null };
}"""

Open = Callable[[str], Browser]


@pytest.fixture(scope="module")
def browsers() -> Iterator[Open]:
    """Gives a browser by its name; each is started once. Every test has an origin of its own in it."""
    started: dict[str, Browser] = {}

    def make(name: str) -> Browser:
        if name not in started:
            started[name] = open_browser(name, webgpu=False)
        return started[name]

    yield make
    for browser in started.values():
        browser.close()


@pytest.fixture(params=NAMES)
def browser(request: pytest.FixtureRequest, browsers: Open) -> Browser:
    """Each engine."""
    return browsers(request.param)


@pytest.fixture(scope="session")
def isolating_site(packed_smollm2: Path) -> Path:
    """The site as `build.py site --isolate` makes it."""
    out = ROOT / "build" / "e2e-isolating-site"
    build_site(ROOT, out, [packed_smollm2], Fetcher.from_environment(ROOT), print, isolate=True)
    return out


@pytest.fixture
def without_weights(isolating_site: Path, tmp_path: Path) -> Path:
    """A copy of it whose page asks for isolation and then finds no weights: quick to come to its end."""
    out = tmp_path / "site"
    shutil.copytree(isolating_site, out, ignore=shutil.ignore_patterns("*.bin", "*.gz"))
    return out


def go(page: Page, url: str) -> None:
    """Goes to a page that may load itself again meanwhile, which a driver may take for a failure."""
    try:
        page.goto(url)
    except BrowserError as error:
        if error.code != "browser.failed":
            raise


def wait(page: Page, expression: str, limit_s: float = LIMIT_S) -> Any:
    """The expression's first true value, whatever page is there by then."""
    end = time.monotonic() + limit_s
    while True:
        try:
            if value := page.evaluate(expression):
                return value
        except BrowserError as error:
            if error.code not in ("browser.script", "browser.failed"):
                raise
        assert time.monotonic() < end, f"{expression}: not within {limit_s} s"
        time.sleep(0.2)


def visit(browser: Browser, url: str, state: str) -> Page:
    """A new tab on the demo page, when it is ready or has an error."""
    page = browser.open("about:blank")
    go(page, url + VISIT)
    found = wait(page, f"['ready', 'error'].includes({STATE}) && {STATE}")
    assert found == state, page.evaluate(ERROR)
    return page


def reply(page: Page) -> list[int]:
    """The ids of the answer to "What is 2+2?", asked as a person would."""
    page.click("#open-settings")
    page.evaluate("document.querySelector('#settings .more').open = true")
    for name, value in (("temperature", "0"), ("max_tokens", "2")):
        page.evaluate("document.querySelector(`[name=${arg}]`).value = ''", name)
        page.type(f"[name={name}]", value)
    page.click("#close-settings")
    page.type("#input", "What is 2+2?")
    page.click("#send")
    ids: list[int] = wait(page, KEPT_IDS)
    return ids


def stays(host: PlainHost, path: str, n: int) -> None:
    """The page was asked for `n` times, and isn't again."""
    time.sleep(QUIET_S)
    assert host.asked[path] == n


def test_a_plain_server(browser: Browser, site: Path) -> None:
    with PlainHost(site) as host:
        page = visit(browser, host.url, "ready")
        assert not page.evaluate("crossOriginIsolated")
        assert reply(page) == REPLY
        assert host.asked[f"/{VISIT}"] == 1, "not loaded again"
        # WebKitGTK, told to have SharedArrayBuffer, has it on every page.
        shares = page.evaluate(SHARES)
        assert shares == (browser.name == "webkit")
        assert ("1 thread" in page.evaluate("document.getElementById('runs').textContent")) == (not shares)
        page.close()


@pytest.mark.parametrize("name", [*NAMES, "webkit-unshared"])
def test_the_service_worker(name: str, browsers: Open, isolating_site: Path, tmp_path: Path) -> None:
    browser = browsers(name)
    (tmp_path / "some where").mkdir()
    shutil.copytree(isolating_site, tmp_path / "some where/the site", copy_function=link)
    (tmp_path / "some where/the site/bare.html").write_text(BARE)
    (tmp_path / "some where/the site/fill.js").write_text(
        'caches.open("probe").then((c) => c.put("/probe", new Response("1"))).then(() => postMessage(1));'
    )
    with PlainHost(tmp_path) as host:
        path = f"/some where/the site/{VISIT}"
        url = f"{host.url}some%20where/the%20site/"
        page = visit(browser, url, "ready")
        assert page.evaluate("crossOriginIsolated")
        policy = page.evaluate(
            "new URL(navigator.serviceWorker.controller.scriptURL).searchParams.get('isolation')"
        )
        # WebKit knows no `credentialless`: that was tried first.
        assert (policy, host.asked[path]) == (
            ("require-corp", 3) if "webkit" in name else ("credentialless", 2)
        )
        shares = page.evaluate(SHARES)
        assert shares == (name != "webkit-unshared")
        assert ("MB of weights in shared memory" in page.evaluate(NOTES)) == shares
        assert reply(page) == REPLY

        wait(page, f"{NOTES}.includes('kept for use without a network')")
        assert page.evaluate(WORKER) == f"?isolation={policy}&keep"
        bare = browser.open(f"{url}bare.html")
        holds = holds_caches(bare)
        bare.close()
        host.close()
        page.close()
        page = browser.open("about:blank")
        go(page, url + VISIT)
        state = wait(page, f"['ready', 'error'].includes({STATE}) && {STATE}")
        assert page.evaluate("crossOriginIsolated"), "from the first moment"
        if holds or state == "ready":
            assert reply(page) == REPLY
        else:
            assert name.startswith("webkit")
            assert "asset.unreachable" in page.evaluate(ERROR)
        page.close()


def holds_caches(page: Page) -> bool:
    """Does a cache outlive the worker that filled it? Not in the private profile of a driven WebKitGTK."""
    filled = """new Promise((resolve) => {
      const worker = new Worker("fill.js");
      worker.onmessage = () => resolve(worker.terminate());
    }).then(() => caches.open("probe")).then((cache) => cache.keys()).then((keys) => keys.length)"""
    return bool(page.evaluate(filled) > 0)


def test_a_frame_of_another_origin(browser: Browser, isolating_site: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(isolating_site, site, copy_function=link)
    (site / "framed.html").write_text(
        '<!doctype html><meta charset="utf-8"><meta name="slm2-isolation" content="service-worker">'
        '<script type="module" src="framed.js"></script>'
    )
    (site / "framed.js").write_text("""
import { SLM2 } from "./web/client.js";
import { isolate } from "./web/isolation.js";
try {
  const { isolated, why } = await isolate();
  const model = await SLM2.load({ executor: "wasm" });
  const messages = [{ role: "user", content: "What is 2+2?" }];
  const { generated_ids } = await model.chat(messages, { temperature: 0, max_tokens: 2 }).result;
  parent.postMessage({ isolated, why, generated_ids }, "*");
} catch (error) {
  parent.postMessage({ error: String(error) }, "*");
}
""")
    outside = tmp_path / "outside"
    outside.mkdir()
    with PlainHost(site) as host, PlainHost(outside) as other:
        (outside / "index.html").write_text(
            '<!doctype html><meta charset="utf-8">'
            '<script>addEventListener("message", (e) => (window.heard = e.data))</script>'
            f'<iframe src="{host.url}framed.html"></iframe><iframe src="{host.url}{VISIT}"></iframe>'
        )
        page = browser.open(other.url)
        heard = wait(page, "window.heard")
        assert heard == {"isolated": False, "why": "frame", "generated_ids": REPLY}
        assert host.asked["/framed.html"] == 1
        stays(host, f"/{VISIT}", 1)
        page.close()


def test_real_headers_are_left_as_they_are(browser: Browser, without_weights: Path, serve: Serve) -> None:
    server = serve(without_weights)
    page = visit(browser, server.url, "error")
    assert page.evaluate(f"({ISOLATE})(arg)", {"from": "./web/isolation.js"}) == {
        "isolated": True,
        "by": "headers",
        "why": None,
        "code": None,
    }
    assert page.evaluate(WORKER) is None, "nothing is registered for it"

    # A worker that would say something else adds nothing either.
    page.evaluate(
        "import('./web/trusted.js')"
        ".then(({ scriptUrl }) => scriptUrl('sw.js?isolation=credentialless'))"
        ".then((url) => navigator.serviceWorker.register(url))"
        ".then(() => navigator.serviceWorker.ready)"
    )
    page.reload()
    wait(page, "navigator.serviceWorker.controller && crossOriginIsolated")
    with PlainHost(without_weights) as foreign:
        shown = """new Promise((resolve) => {
          const picture = new Image();
          picture.onload = () => resolve(true);
          picture.onerror = () => resolve(false);
          picture.src = arg;
        })"""
        assert not page.evaluate(shown, f"{foreign.url}web/icon.svg"), "the server's require-corp holds"
    page.close()


def test_turned_off(browser: Browser, without_weights: Path) -> None:
    index = without_weights / "index.html"
    os.utime(index)  # what is older, and has no Cache-Control, browsers take for fresh for a tenth of its age
    with PlainHost(without_weights) as host:
        page = visit(browser, host.url, "error")
        assert page.evaluate("crossOriginIsolated")
        assert page.evaluate(WORKER).startswith("?isolation=")
        index.write_text(index.read_text().replace('content="service-worker"', 'content="headers"'))
        publish(without_weights, index_html="<!-- off -->")
        later = time.time() + 5  # this host dates files to the second, and browsers ask by that
        os.utime(index, (later, later))
        page.close()
        page = visit(browser, host.url, "error")
        assert page.evaluate(WORKER) is None
        page.reload()
        wait(page, f"{STATE} === 'error'")
        assert not page.evaluate("crossOriginIsolated")
        assert page.evaluate("navigator.serviceWorker.controller") is None
        page.close()


def test_a_browser_that_refuses(browser: Browser, without_weights: Path) -> None:
    # The server's own word counts, and with this one no browser isolates a page.
    with PlainHost(without_weights, {"Cross-Origin-Opener-Policy": "unsafe-none"}) as host:
        page = visit(browser, host.url, "error")
        assert not page.evaluate("crossOriginIsolated")
        assert "does not isolate the page" in page.evaluate(NOTES)
        assert page.evaluate(WORKER) is None
        stays(host, f"/{VISIT}", 3)  # once by itself, once for each policy
        page.reload()
        wait(page, f"{STATE} === 'error'")
        stays(host, f"/{VISIT}", 4)  # as often as a person asks for it
        page.close()


def test_a_new_version_comes_isolated(browsers: Open, without_weights: Path) -> None:
    with PlainHost(without_weights) as host:
        page = visit(browsers("chromium"), host.url, "error")
        keep = "import('./web/offline.js').then((it) => it.keepOffline(arg))"
        version = json.loads((without_weights / "site.json").read_bytes())["version"]
        assert page.evaluate(keep, version)
        assert page.evaluate(WORKER) == "?isolation=credentialless&keep"
        publish(without_weights, index_html="<p>second</p>")
        for _ in range(2):  # from the network, then without it
            page.goto(host.url + VISIT)
            assert page.evaluate("document.body.textContent.includes('second') && crossOriginIsolated")
            host.close()
        page.close()


def test_a_strict_policy(browser: Browser, without_weights: Path) -> None:
    policy = f"{POLICY}; require-trusted-types-for 'script'"
    (without_weights / "strict.html").write_text(
        '<!doctype html><meta charset="utf-8"><script type="module" src="strict.js"></script>'
    )
    (without_weights / "strict.js").write_text("""
import { isolate } from "./web/isolation.js";
document.title = JSON.stringify(await isolate({ mode: "service-worker" }));
""")
    with PlainHost(without_weights, {"Content-Security-Policy": policy}) as host:
        page = browser.open("about:blank")
        go(page, f"{host.url}strict.html")
        wait(page, "document.title && crossOriginIsolated")
        title = json.loads(page.evaluate("document.title"))
        assert title == {"isolated": True, "by": "service-worker", "why": None, "error": None}
        page.close()


def test_a_page_above_the_site(browsers: Open, without_weights: Path) -> None:
    above = without_weights.parent
    (above / "page.html").write_text('<!doctype html><meta charset="utf-8"><title>page</title>')
    asked = {"from": "./site/web/isolation.js", "with": {"mode": "service-worker"}}
    with PlainHost(above) as host:
        page = browsers("chromium").open(f"{host.url}page.html")
        assert page.evaluate(f"({ISOLATE})(arg)", asked)["why"] == "scope"

        shutil.copy(without_weights / "sw.js", above)
        asked["with"] = {"mode": "service-worker", "worker": "sw.js"}
        # The page goes away under it.
        page.evaluate(f"(({ISOLATE})(arg), null)", asked)
        wait(page, "crossOriginIsolated", 20)
        assert page.evaluate(f"({ISOLATE})(arg)", asked)["by"] == "service-worker"
        page.close()


def test_somebody_elses_worker_stays(browsers: Open, without_weights: Path) -> None:
    (without_weights / "bare.html").write_text(BARE)
    (without_weights / "theirs.js").write_text("// A service worker of the page's author.")
    asked = {"from": "./web/isolation.js", "with": {"mode": "service-worker"}}
    with PlainHost(without_weights) as host:
        page = browsers("chromium").open(f"{host.url}bare.html")
        page.evaluate(
            "navigator.serviceWorker.register('theirs.js').then(() => navigator.serviceWorker.ready)"
        )
        outcome = page.evaluate(f"({ISOLATE})(arg)", asked)
        assert outcome == {"isolated": False, "by": None, "why": "failed", "code": "asset.not_stored"}
        (only,) = page.evaluate(
            "navigator.serviceWorker.getRegistrations().then((all) => all.map((it) => it.active.scriptURL))"
        )
        assert only == f"{host.url}theirs.js"
        page.close()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mode": "sometimes"}, "input.params"),
        ({"worker": "https://elsewhere.invalid/sw.js"}, "input.params"),
        ({"worker": "sw.js?isolation=require-corp"}, "input.params"),
    ],
)
def test_wrong_options(options: dict[str, str], code: str, browsers: Open, without_weights: Path) -> None:
    with PlainHost(without_weights) as host:
        page = browsers("chromium").open(f"{host.url}tokenizer.html")
        tried = f"({ISOLATE})(arg).catch((error) => error.code)"
        assert page.evaluate(tried, {"from": "./web/isolation.js", "with": options}) == code
        page.close()


@pytest.mark.parametrize(
    ("file", "code"), [("sw.js", "asset.unreachable"), ("web/style.css", "asset.not_stored")]
)
def test_a_worker_that_fails(file: str, code: str, browsers: Open, without_weights: Path) -> None:
    with PlainHost(without_weights) as host:
        page = browsers("chromium").open(f"{host.url}tokenizer.html")
        (without_weights / file).unlink()
        keep = "import('./web/offline.js').then((it) => it.keepOffline('')).catch((error) => error.code)"
        assert page.evaluate(keep) == code
        assert page.evaluate(WORKER) is None
        page.close()


@pytest.mark.parametrize("name", ["index.html", "tokenizer.html"])
def test_opened_as_a_file(name: str, browser: Browser, without_weights: Path) -> None:
    page = browser.open("about:blank")
    go(page, (without_weights / name).as_uri())
    text = wait(
        page,
        "[...document.querySelectorAll('#not-started, .error')].find((e) => e.checkVisibility())?.innerText",
        30,
    )
    # Firefox runs the page's program even so.
    assert "opened as a file" in text if browser.name != "firefox" else "device.insecure_context" in text
    page.close()
