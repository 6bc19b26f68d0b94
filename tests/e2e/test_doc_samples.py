"""The docs' samples for a page run on one, each on its own, and the documentation's pages are used.

The model is the parity suite's tiny one, the site lies under a sub-path, and its policy is a header. The
pages: their width, themes, links, and the search by keyboard.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from doc_samples import Sample, run_samples
from e2e.conftest import ROOT, Serve, link
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.docs import install_docs
from slm2_web.compile.install import install_parity
from slm2_web.compile.packages import make_npm
from slm2_web.compile.place import find_place
from slm2_web.compile.site import build_site

# The path that docs/embedding.md's sample names.
BASE = "/models-site/"
LOADED = """
const { SLM2 } = await import("./web/client.js");
const slm = await SLM2.load({ model: "parity-qwen3" });
"""
# What a fragment takes for given, by its page and a word of it.
GIVEN = (
    ("docs/client.md", "continue_from", LOADED + """
const messages = [{ role: "user", content: "Hello" }], options = { temperature: 0, invalid_utf8: "show" };
globalThis.check = async () => (await whole.result).generated_ids.length > 0;
"""),
    ("docs/client.md", "keepOffline", LOADED),
    ("docs/parity.md", "slm.parity", """
const { SLM2 } = await import("./web/client.js");
const { signal } = new AbortController();
const isDigest = ({ digest }) => digest.length === 64;
globalThis.check = () => result.stages.length === 2 && result.stages.every(isDigest);
"""),
    ("docs/embedding.md", "new AbortController()", 'const { SLM2 } = await import("./web/client.js");'),
    ("docs/tokenizer.md", "TokenizerKernel.attach", """
const { TokenizerKernel } = await import("./worker/wasm/tokenizer.js");
const bytes = async (path) => new Uint8Array(await (await fetch(path)).arrayBuffer());
const wasm = await bytes("worker/wasm/tokenizer.wasm");
const sharedModule = await WebAssembly.compile(await bytes("worker/wasm/tokenizer.shared.wasm"));
const file = await bytes("models/parity-qwen3/tokenizer.slm2tok");
const text = new TextEncoder().encode("<|im_start|>user\\nWhat is 2+2?");
const start = 65536, end = start + file.length;
const workStart = Math.ceil(end / 65536) * 65536, workEnd = workStart + (1 << 24);
const memory = new WebAssembly.Memory({ initial: workEnd / 65536, maximum: 32768, shared: true });
new Uint8Array(memory.buffer).set(file, start);
globalThis.check = () => ids.length > 3;
"""),
)  # fmt: skip
ENDED = """
if (globalThis.check && !(await globalThis.check())) throw new Error("the sample gave something else");
document.documentElement.dataset.sample = "done";
"""


@pytest.fixture(scope="module")
def docs_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small site: the tiny model alone, which is the default one there, and the documentation."""
    out = tmp_path_factory.mktemp("docs") / "site"
    fetcher = Fetcher.from_environment(ROOT)
    model = install_parity(ROOT, print)
    build_site(ROOT, out, [model], fetcher, print, docs=install_docs(find_place(), print))
    return out


@pytest.fixture(scope="module")
def samples_url(docs_site: Path, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The site with a page for each sample, N.html."""
    site = tmp_path_factory.mktemp("samples") / "site"
    shutil.copytree(docs_site, site, copy_function=link)
    for number, sample in enumerate(SAMPLES):
        (site / f"{number}.js").write_text(program(sample), "utf-8")
        (site / f"{number}.html").write_text(PAGE.format(number), "utf-8")
    return serve(site, base=BASE).url


SAMPLES = run_samples("js", "html")
PAGE = """<!doctype html><title>A sample</title><link rel="icon" href="web/icon.svg"><p id="reply"></p>
<script type="module" src="{}.js"></script>"""


def program(sample: Sample) -> str:
    """The sample's script with what it takes for given; of a page, its module."""
    if sample.language == "html":
        (script,) = re.findall(r'<script type="module">\n(.*?)</script>', sample.text, re.S)
        return f"{script}{ENDED}"
    given = [text for file, word, text in GIVEN if file == sample.file and word in sample.text]
    return f"{''.join(given)}\n{sample.text}\n{ENDED}"


@pytest.fixture
def clean(chromium: Browser) -> Iterator[BrowserContext]:
    """A browser that has never been here, with a fixed model for those that name none."""
    context = chromium.new_context()
    yield context
    context.close()


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=[sample.place for sample in SAMPLES])
def test_sample(number: int, samples_url: str, clean: BrowserContext) -> None:
    page = clean.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    page.on("console", hear)
    page.goto(f"{samples_url}{number}.html")
    done = page.locator("html[data-sample=done]")
    for _ in range(600):
        if problems or done.count():
            break
        page.wait_for_timeout(100)
    assert problems == []
    assert done.count() == 1, "it has not ended within a minute"


def test_a_sample_that_fails_is_found(docs_site: Path, serve: Serve, clean: BrowserContext) -> None:
    sample = Sample("docs/x.md", 1, "js", "", "await Promise.reject(new Error('wrong'));")
    folder = docs_site.parent / "wrong"
    folder.mkdir()
    (folder / "index.html").write_text('<!doctype html><script type="module" src="0.js"></script>', "utf-8")
    (folder / "0.js").write_text(program(sample), "utf-8")
    page = clean.new_page()
    with page.expect_event("pageerror") as caught:
        page.goto(serve(folder).url)
    assert "wrong" in str(caught.value)
    assert page.locator("html[data-sample=done]").count() == 0


def test_npms_package_loads_from_a_site(
    docs_site: Path, serve: Serve, clean: BrowserContext, tmp_path: Path
) -> None:
    """As docs/embedding.md says: the modules lie elsewhere on the origin, everything else in the site."""
    site = tmp_path / "site"
    shutil.copytree(docs_site, site, copy_function=link)
    make_npm(find_place(), site / "vendor" / "slm2-web")
    script = """
import { SLM2 } from "./vendor/slm2-web/web/client.js";
const slm = await SLM2.load({ root: new URL("./", location.href) });
const { generated_ids } = await slm.chat([{ role: "user", content: "Hello" }], { max_tokens: 3 }).result;
if (generated_ids.length === 0) throw new Error("no ids");
"""
    (site / "0.js").write_text(f"{script}{ENDED}", "utf-8")
    (site / "0.html").write_text(PAGE.format(0), "utf-8")
    page = clean.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{serve(site).url}0.html")
    page.wait_for_selector("html[data-sample=done]", state="attached", timeout=60_000)
    assert problems == []


# --- the documentation's pages ---------------------------------------------------------------------------


@pytest.fixture
def docs_page(samples_url: str, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The documentation's first page at 400 px, dark; nothing on it may complain."""
    context = chromium.new_context(viewport={"width": 400, "height": 800}, color_scheme="dark")
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.goto(f"{samples_url}docs/")
    yield page
    assert problems == []
    context.close()


def test_no_page_is_wider_than_a_phone(docs_page: Page, docs_site: Path, samples_url: str) -> None:
    for path in sorted((docs_site / "docs").rglob("*.html")):
        docs_page.goto(f"{samples_url}docs/{path.relative_to(docs_site / 'docs').as_posix()}")
        width = docs_page.evaluate("() => document.documentElement.scrollWidth")
        assert width <= 400, f"{path.name}: {width} px"


def test_the_themes_differ(docs_page: Page) -> None:
    colour = "() => getComputedStyle(document.documentElement).backgroundColor"
    dark = docs_page.evaluate(colour)
    docs_page.emulate_media(color_scheme="light")
    assert docs_page.evaluate(colour) != dark


def test_search_by_keyboard(docs_page: Page) -> None:
    docs_page.wait_for_selector("#search:not([hidden])")
    docs_page.keyboard.press("/")
    docs_page.keyboard.type("device.self_test")
    docs_page.wait_for_selector("#results a")
    docs_page.keyboard.press("ArrowDown")
    assert docs_page.evaluate("() => document.activeElement.closest('#results') !== null")
    docs_page.keyboard.press("Escape")
    assert docs_page.evaluate("() => document.activeElement.id") == "query"
    docs_page.keyboard.type("isolation without headers")
    docs_page.wait_for_selector("#results a")
    with docs_page.expect_navigation():
        docs_page.keyboard.press("Enter")
    assert docs_page.url.endswith("/docs/client.html#isolation-without-headers")


def test_what_is_searched_for_is_text(docs_page: Page) -> None:
    docs_page.wait_for_selector("#search:not([hidden])")
    docs_page.fill("#query", "<img src=x onerror=alert(1)>")
    docs_page.wait_for_selector("#results li")
    assert docs_page.locator("#results img").count() == 0
    docs_page.fill("#query", "<script")
    docs_page.wait_for_selector("#results a")
    assert docs_page.locator("#results script").count() == 0


def test_search_needs_no_network_but_the_sites_own(docs_page: Page, samples_url: str) -> None:
    asked: list[str] = []
    docs_page.on("request", lambda request: asked.append(request.url))
    docs_page.wait_for_selector("#search:not([hidden])")
    docs_page.fill("#query", "logits")
    docs_page.wait_for_selector("#results a")
    docs_page.context.set_offline(True)
    docs_page.fill("#query", "tokenizer")
    docs_page.wait_for_function("() => document.getElementById('found').textContent.endsWith('found')")
    assert [url for url in asked if not url.endswith("/icon.svg")] == [f"{samples_url}docs/search.json"]


def test_the_chat_leads_to_the_documentation_and_back(docs_page: Page, samples_url: str) -> None:
    docs_page.click("text=The chat")
    docs_page.wait_for_load_state()
    assert docs_page.url == f"{samples_url}index.html"
    docs_page.click("a[href='docs/index.html']")
    assert docs_page.locator("main h1").inner_text().startswith("slm2-web")
