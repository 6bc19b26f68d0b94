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
from e2e.axe import Scheme, checker, violations
from e2e.conftest import ROOT, Serve, link
from e2e.plainhost import PlainHost
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.docs import install_docs
from slm2_web.compile.install import install_parity
from slm2_web.compile.packages import make_npm
from slm2_web.compile.place import find_place
from slm2_web.compile.site import build_site

SHOTS = ROOT / "shots"
# Where the site lies; what samples say instead.
BASE = "/models-site/"
PLACES = ("/slm2/", "/models-site/")
OTHER_ORIGIN = "https://models.example/slm2/"
WORKERS = ("worker/worker.js", "worker/loader.js", "worker/wasm/thread.js")
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
    ("docs/embedding.md", "createElement", """
await import("./web/slm2-chat.js");
globalThis.check = () => typeof text === "string" && reason.length > 0;
"""),
    ("docs/embedding.md", "SLM2.storage", LOADED + """
await slm.dispose();
globalThis.check = () => usage > 0 && quota > usage && persisted === false;
"""),
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
def samples_site(docs_site: Path, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with a page for each sample, N.html."""
    site = tmp_path_factory.mktemp("samples") / BASE.strip("/")
    shutil.copytree(docs_site, site, copy_function=link)
    other = serve(docs_site, shared=True).url
    for file in WORKERS:
        path = site / "slm2-workers" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'import "{other}{file}";\n', "utf-8")
    for number, sample in enumerate(SAMPLES):
        (site / f"{number}.js").write_text(program(sample), "utf-8")
        (site / f"{number}.html").write_text(page_of(sample, number, other), "utf-8")
    return site


@pytest.fixture(scope="module")
def samples_url(samples_site: Path, serve: Serve) -> str:
    """Where it is served."""
    return serve(samples_site, base=BASE).url


@pytest.fixture(scope="module")
def unguarded_url(samples_url: str, samples_site: Path) -> Iterator[str]:
    """The same without a policy, for the page that loads scripts of another origin."""
    with PlainHost(samples_site.parent) as host:
        yield f"{host.url}{samples_site.name}/"


SAMPLES = run_samples("js", "html")
ICON = '<link rel="icon" href="web/icon.svg">'
PAGE = f"""<!doctype html><title>A sample</title>{ICON}<p id="reply"></p>
<script type="module" src="{{}}.js"></script>"""


# What is done with an element: a question, and its reply.
ASKED = """
await customElements.whenDefined("slm2-chat");
const element = document.querySelector("slm2-chat");
globalThis.check = async () => {
  const { text, reason, transcript } = await element.ask("Hello", { signal: AbortSignal.timeout(50_000) });
  return typeof text === "string" && reason !== "cancelled" && transcript.length > 0;
};
"""


def inline_script(sample: Sample) -> str | None:
    """The module in an HTML sample; None when it loads one by its address, or has none."""
    found = re.findall(r'<script type="module">\n(.*?)</script>', sample.text, re.S)
    return found[0] if found else None


def program(sample: Sample) -> str:
    """The sample's script with what it takes for given; of a page, its module; of an element, a question."""
    if sample.language == "html":
        return f"{inline_script(sample) or ASKED}{ENDED}"
    given = [text for file, word, text in GIVEN if file == sample.file and word in sample.text]
    return f"{''.join(given)}\n{sample.text}\n{ENDED}"


def page_of(sample: Sample, number: int, other: str) -> str:
    """A page for program(): the sample itself when it has an element, with our places and our model."""
    own = f'<script type="module" src="{number}.js"></script>'
    if sample.language != "html" or inline_script(sample) is not None:
        return PAGE.format(number)
    text = sample.text.replace(OTHER_ORIGIN, other)
    text = text.replace("/slm2-workers/", f"{BASE}slm2-workers/").replace("smollm2-135m", "parity-qwen3")
    for place in PLACES:
        text = text.replace(f'src="{place}', f'src="{BASE}')
    if "<script" not in text:
        text += f'<script type="module" src="{BASE}web/slm2-chat.js"></script>'
    return f"<!doctype html>{ICON}{text.removeprefix('<!doctype html>')}{own}"


@pytest.fixture(scope="module")
def axe() -> str:
    """The checker's script."""
    return checker()


@pytest.fixture
def clean(chromium: Browser) -> Iterator[BrowserContext]:
    """A browser that has never been here, with a fixed model for those that name none."""
    context = chromium.new_context()
    yield context
    context.close()


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=[sample.place for sample in SAMPLES])
def test_sample(number: int, samples_url: str, unguarded_url: str, clean: BrowserContext) -> None:
    page = clean.new_page()
    url = unguarded_url if OTHER_ORIGIN in SAMPLES[number].text else samples_url
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(f"{message.text} {message.location['url']}")

    page.on("console", hear)
    page.goto(f"{url}{number}.html")
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
    make_npm(find_place(), site / "packages" / "slm2-web")
    script = """
import { SLM2 } from "./packages/slm2-web/web/client.js";
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    docs_page: Page, docs_site: Path, samples_url: str, axe: str, scheme: Scheme
) -> None:
    docs_page.emulate_media(color_scheme=scheme)
    pages = sorted(path.relative_to(docs_site).as_posix() for path in (docs_site / "docs").rglob("*.html"))
    assert len(pages) > 30
    found = {}
    for path in pages:
        docs_page.goto(f"{samples_url}{path}")
        found[path] = violations(docs_page, axe)
    assert {path: wrong for path, wrong in found.items() if wrong} == {}
    docs_page.set_viewport_size({"width": 1400, "height": 900})
    docs_page.goto(f"{samples_url}docs/client.html")
    docs_page.fill("#query", "abort")
    docs_page.wait_for_selector("#results a")
    assert violations(docs_page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_screenshots(docs_page: Page, samples_url: str, scheme: Scheme, width: int) -> None:
    """For eyes; what a program can see is that nothing is wider than the window."""
    docs_page.emulate_media(color_scheme=scheme)
    docs_page.set_viewport_size({"width": width, "height": 900})
    SHOTS.mkdir(exist_ok=True)
    for name in ("index", "embedding", "browsers", "python", "api/client"):
        docs_page.goto(f"{samples_url}docs/{name}.html")
        docs_page.screenshot(path=SHOTS / f"docs-{name.replace('/', '-')}-{width}-{scheme}.png")
        assert docs_page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), name


def test_the_pages_policy_is_stated_and_a_change_of_their_script_is_refused(
    docs_page: Page, docs_site: Path, serve: Serve, chromium: Browser, tmp_path: Path
) -> None:
    policy = docs_page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert policy is not None
    for part in ("default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"):
        assert part in policy
    assert "unsafe" not in policy
    site = tmp_path / "site"
    shutil.copytree(docs_site, site, copy_function=link)
    script = site / "docs" / "_static" / "docs.js"
    changed = script.read_bytes() + b"document.title = 'changed';"
    for path in (script, script.with_name("docs.js.gz")):
        path.unlink(missing_ok=True)
    script.write_bytes(changed)
    page = chromium.new_page()
    page.goto(f"{serve(site).url}docs/index.html")
    assert page.title() != "changed"
    assert page.locator("#search").is_hidden()
    page.close()


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
