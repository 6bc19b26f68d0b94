"""<slm2-chat> on pages that are not ours: what a visitor sees, and what the page's author can rely on."""

from __future__ import annotations

import http.server
import itertools
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Frame, Page, expect

from e2e.conftest import Serve, add_tiny, link
from e2e.test_page import SHOTS, faint
from slm2_web.compile.serve import POLICY

TIMEOUT_MS = 120_000
QUESTION = "What is 2+2?"
ANSWER = "The answer to this classic math problem is 4."

PAGE = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8"><title>A page</title>
    <meta name="viewport" content="width=device-width">
    <link rel="stylesheet" href="{css}">
    <script type="module" src="{src}"></script>
  </head>
  <body><h1>A page</h1>{body}</body>
</html>
"""
# A page that means well, in a style that would ruin the element if it got in.
CSS = """* { letter-spacing: 3px; }
body { font: 30px/3 cursive; color: red; margin: 1rem; }
p, span, div, textarea, button, section { color: red !important; padding: 40px !important; }
.tall { height: 3000px; }"""
# What happens to the elements of a page, in order.
HEAR = """() => {
  globalThis.heard = [];
  for (const name of ["progress", "ready", "delta", "done", "error"]) {
    const hear = ({ target, detail }) => heard.push({ name, id: target.id, detail });
    addEventListener(`slm2-${name}`, hear, true);
  }
  globalThis.chat = (id = "a") => document.getElementById(id);
  globalThis.outcome = (promise) => promise.then(
    (value) => ({ value }), ({ code, message, name }) => ({ code, message, name }));
}"""

Visit = Callable[..., Page]


def until(page: Page | Frame, expression: str) -> None:
    """Until it is true. Playwright's own way evaluates strings in the page, which the policy forbids."""
    end = time.monotonic() + TIMEOUT_MS / 1000
    while not page.evaluate(f"!!({expression})"):
        assert time.monotonic() < end, expression
        time.sleep(0.05)


@pytest.fixture(scope="module")
def folder(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with room for pages that are not its own, and with a model of random weights."""
    work = tmp_path_factory.mktemp("element")
    out = work / "site"
    shutil.copytree(site, out, copy_function=link)
    add_tiny(out, work)
    (out / "page.css").write_text(CSS)
    return out


@pytest.fixture(scope="module")
def server(folder: Path, serve: Serve) -> str:
    """Where it is served, with the site's headers, the policy among them."""
    return serve(folder, base="/under/a/path/").url


@pytest.fixture
def visit(chromium_without_webgpu: Browser, folder: Path, server: str) -> Iterator[Visit]:
    """Opens a page with this body, for the first time or with `context`; fails on a complaint at its end."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def make(body: str, context: BrowserContext | None = None, name: str = "own.html") -> Page:
        if context is None:
            context = chromium_without_webgpu.new_context()
            contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        (folder / name).write_text(PAGE.format(css="page.css", src="web/slm2-chat.js", body=body))
        response = page.goto(f"{server}{name}")
        assert response is not None
        assert response.headers["content-security-policy"] == POLICY
        until(page, "customElements.get('slm2-chat')")
        page.evaluate(HEAR)
        return page

    yield make
    for each in contexts:
        each.close()
    assert [text for text in complaints if "404" not in text and "favicon" not in text] == []


@pytest.fixture(scope="module")
def one(chromium_without_webgpu: Browser, folder: Path, server: str) -> Iterator[tuple[BrowserContext, Page]]:
    """A page with one element, which has been loaded by typing a question and sending it."""
    context = chromium_without_webgpu.new_context(viewport={"width": 800, "height": 760})
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    body = '<slm2-chat id="a" temperature="0" max-tokens="60" greeting="Hello!"></slm2-chat><p>After</p>'
    (folder / "one.html").write_text(PAGE.format(css="page.css", src="web/slm2-chat.js", body=body))
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    page.goto(f"{server}one.html")
    until(page, "customElements.get('slm2-chat')")
    page.evaluate(HEAR)
    page.wait_for_timeout(300)
    # Nothing is loaded before it is wanted: site.json alone, which says what version this page is.
    assert not any(re.search(r"models/|runtime/|worker/worker", url) for url in requests)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    expect(page.locator("slm2-chat .assistant")).to_have_attribute("aria-busy", "true")
    expect(page.locator("slm2-chat .assistant")).to_have_attribute("aria-busy", "false", timeout=TIMEOUT_MS)
    yield context, page
    context.close()


def shown(page: Page, id: str = "a") -> list[str]:
    """The texts of the messages, as they are seen."""
    texts: list[str] = page.locator(f"#{id} .message:visible").all_inner_texts()
    return [re.sub(r"^(You|Assistant): ?\n*", "", text).strip() for text in texts]


def test_by_keyboard_alone(one: tuple[BrowserContext, Page]) -> None:
    page = one[1]
    assert shown(page) == ["Hello!", QUESTION, ANSWER]
    heard = page.evaluate("heard.map(({ name }) => name)")
    assert heard[0] == "progress"
    assert [name for name, _ in itertools.groupby(heard)] == ["progress", "ready", "delta", "done"]
    assert heard.count("ready") == 1
    progress = page.evaluate("heard.filter(({ name }) => name === 'progress').map(({ detail }) => detail)")
    assert {"runtime", "weights"} <= {each["stage"] for each in progress}
    done = page.evaluate("heard.at(-1).detail")
    assert (done["text"], done["reason"]) == (ANSWER, "stop_token")
    assert json.loads(done["transcript"])["text"] == ANSWER
    deltas = page.evaluate("heard.filter(({ name }) => name === 'delta').map(({ detail }) => detail)")
    assert "".join(each["delta"] for each in deltas) == deltas[-1]["text"] == ANSWER
    assert (
        page.evaluate("heard.find(({ name }) => name === 'ready').detail.info.model.name") == "smollm2-135m"
    )
    # Everything that can be done is reached by Tab, and stopped by Escape.
    page.keyboard.type("Write a long story about the sea.")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    until(page, "heard.at(-1).name === 'delta'")
    page.keyboard.press("Escape")
    until(page, "heard.at(-1).name === 'done'")
    assert page.evaluate("heard.at(-1).detail.reason") == "cancelled"
    expect(page.locator("#a .meta").last).to_have_text("Stopped")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="New chat")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("log")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert shown(page) == ["Hello!"]
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_for_who_cannot_see_it(one: tuple[BrowserContext, Page]) -> None:
    page = one[1]
    page.evaluate(f"chat().ask('{QUESTION}')")
    until(page, "heard.at(-1).name === 'done'")
    expect(page.get_by_role("log", name="Conversation")).to_have_attribute("aria-live", "off")
    expect(page.locator("#a [aria-live=polite]")).to_have_text(ANSWER)
    expect(page.get_by_role("region", name="Chat")).to_be_visible()
    tree = page.get_by_role("region", name="Chat").aria_snapshot()
    for part in ("log", 'textbox "Message"', 'button "Send"', 'button "New chat"', "You:", "Assistant:"):
        assert part in tree, tree


def test_methods(one: tuple[BrowserContext, Page]) -> None:
    page = one[1]
    got = page.evaluate(
        """async () => {
          chat().reset();
          const first = await chat().ask("Name a colour.");
          const stopper = new AbortController();
          const cut = chat().ask("Write a long story about the sea.", { signal: stopper.signal });
          chat().addEventListener("slm2-delta", () => stopper.abort(), { once: true });
          const { reason, transcript } = await cut;
          const early = await outcome(chat().ask("x", { signal: AbortSignal.abort() }));
          const wrong = [await outcome(chat().ask(" ")), await outcome(chat().ask(7)),
            await outcome(chat().ask("x", { signal: 1 }))];
          const running = chat().ask("Write a long story about the moon.");
          const waiting = outcome(chat().ask("And of the sun."));
          await new Promise((resolve) => chat().addEventListener("slm2-delta", resolve, { once: true }));
          chat().stop();
          const both = [(await running).reason, (await waiting).code];
          const messages = chat().messages.map(({ role }) => role);
          const request = JSON.parse(transcript).request.messages;
          chat().reset();
          return { first, reason, early, wrong, both, messages, request, after: chat().messages };
        }"""
    )
    assert set(got["first"]) == {"text", "reason", "transcript"}
    assert got["reason"] == "cancelled"
    assert [message["content"] for message in got["request"]] == [
        "Name a colour.",
        got["first"]["text"],
        "Write a long story about the sea.",
    ]
    assert got["early"]["code"] == "cancelled"
    assert [each["code"] for each in got["wrong"]] == ["input.json", "input.json", "input.params"]
    assert got["both"] == ["cancelled", "cancelled"]
    assert got["messages"] == ["user", "assistant"] * 3
    assert got["after"] == []


def test_attributes_of_the_request(one: tuple[BrowserContext, Page]) -> None:
    page = one[1]
    got = page.evaluate(
        """async () => {
          const set = (values) => {
            for (const [name, value] of Object.entries(values)) chat().setAttribute(name, value);
          };
          const seed = "18446744073709551615";
          set({ "system-prompt": "Be short.", seed, temperature: "0.5", "max-tokens": "3" });
          const { transcript } = await chat().ask("Hello");
          set({ temperature: "hot" });
          const hot = await outcome(chat().ask("Hello"));
          const said = chat().shadowRoot.querySelector(".error").innerText;
          set({ temperature: "0", "max-tokens": "60" });
          for (const name of ["system-prompt", "seed"]) chat().removeAttribute(name);
          chat().reset();
          return { request: JSON.parse(transcript).request, hot, said };
        }"""
    )
    assert got["request"]["messages"][0] == {"role": "system", "content": "Be short."} | {
        key: value for key, value in got["request"]["messages"][0].items() if key not in ("role", "content")
    }
    params = got["request"]["params"]
    assert (str(params["seed"]), params["temperature"], params["max_tokens"]) == (
        "18446744073709551615",
        0.5,
        3,
    )
    assert got["hot"]["code"] == "input.params"
    assert "A generation parameter is out of its range." in got["said"]
    assert "input.params" in got["said"]


def test_nothing_leaks_in_or_out(one: tuple[BrowserContext, Page]) -> None:
    """The page's style is `!important`, and the element's parts have common class names."""
    page = one[1]
    got = page.evaluate(
        """async () => {
          await chat().ask("Hello");
          const root = chat().shadowRoot;
          const style = getComputedStyle(root.querySelector(".text p"));
          const result = {
            colour: style.color, spacing: style.letterSpacing, size: style.fontSize,
            padding: style.paddingTop,
            after: getComputedStyle(document.querySelector("p")).color,
            head: document.head.children.length, sheets: document.styleSheets.length,
            adopted: document.adoptedStyleSheets.length,
            inline: root.querySelectorAll("style, script, link, [style]:not(textarea)").length,
            ids: document.querySelectorAll("#input").length,
          };
          chat().reset();
          return result;
        }"""
    )
    assert got == {
        "colour": "rgb(34, 32, 28)",
        "spacing": "normal",
        "size": "16px",
        "padding": "0px",
        "after": "rgb(255, 0, 0)",
        "head": 5,
        "sheets": 1,
        "adopted": 0,
        "inline": 0,
        "ids": 0,
    }
    # Of what a script could have left in the page there is nothing but the custom element.
    frame = "(() => { const f = document.createElement('iframe'); document.body.append(f); return f; })()"
    left = page.evaluate(
        f"""() => {{
          const frame = {frame};
          const own = new Set(["heard", "chat", "outcome", "a", "0", "__playwright__binding__"]);
          const names = Object.getOwnPropertyNames(window);
          const left = names.filter((name) => !(name in frame.contentWindow) && !own.has(name));
          frame.remove();
          return left.filter((name) => !name.startsWith("__"));
        }}"""
    )
    assert left == []


def test_a_page_may_style_it(one: tuple[BrowserContext, Page]) -> None:
    got = one[1].evaluate(
        """async () => {
          const sheet = new CSSStyleSheet();
          sheet.replaceSync(`#a { --slm2-accent: rgb(1, 2, 3); --slm2-height: 20rem; --slm2-radius: 0px }
            #a::part(send) { text-transform: uppercase } #a::part(user) { border-style: dashed }`);
          document.adoptedStyleSheets = [sheet];
          await chat().ask("Hello");
          const root = chat().shadowRoot;
          const of = (selector) => getComputedStyle(root.querySelector(selector));
          const result = [of(".user").backgroundColor, of(".user").borderStyle, of(".primary").textTransform,
            of(".chat").borderRadius, chat().getBoundingClientRect().height];
          const parts = new Set([...root.querySelectorAll("[part]")].flatMap((each) => [...each.part]));
          document.adoptedStyleSheets = [];
          chat().reset();
          return [result, [...parts].sort()];
        }"""
    )
    assert got[0] == ["rgb(1, 2, 3)", "dashed", "uppercase", "0px", 320]
    docs = (Path(__file__).parents[2] / "docs" / "element.md").read_text("utf-8")
    assert [part for part in got[1] if f"`{part}`" not in docs] == []


def test_words_of_any_language(one: tuple[BrowserContext, Page]) -> None:
    page = one[1]
    german = {"send": "Senden", "input": "Nachricht", "placeholder": "Frag etwas", "input.params": "Falsch."}
    page.evaluate("(labels) => chat().setAttribute('labels', JSON.stringify(labels))", german)
    expect(page.get_by_role("button", name="Senden")).to_be_visible()
    expect(page.get_by_role("textbox", name="Nachricht")).to_have_attribute("placeholder", "Frag etwas")
    page.evaluate("outcome((chat().setAttribute('temperature', 'x'), chat().ask('Hallo')))")
    expect(page.locator("#a .error")).to_contain_text("Falsch.")
    page.evaluate("chat().setAttribute('temperature', '0'); chat().labels = { send: 'Enviar' }")
    expect(page.get_by_role("button", name="Enviar")).to_be_visible()
    for labels in ("{", "[]", '{"unknown": "x"}', '{"send": 1}'):
        page.evaluate("(labels) => { chat().labels = null; chat().setAttribute('labels', labels); }", labels)
        expect(page.locator("#a .problem .error")).to_contain_text("input.json")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
    page.evaluate("chat().removeAttribute('labels')")
    expect(page.locator("#a .problem .error")).to_have_count(0)
    page.evaluate("chat().reset()")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_screenshots(one: tuple[BrowserContext, Page], theme: Literal["light", "dark"], width: int) -> None:
    """For eyes; what a program can see is that nothing sticks out, and nothing is too faint."""
    page = one[1]
    page.set_viewport_size({"width": width, "height": 860})
    page.evaluate(
        """async (theme) => {
          chat().setAttribute("theme", theme);
          if (!chat().messages.length) {
            await chat().ask("Write a list of three fruits.");
            chat().setAttribute("temperature", "x");
            await outcome(chat().ask("And of trees."));
            chat().setAttribute("temperature", "0");
          }
        }""",
        theme,
    )
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"element-{width}-{theme}.png")
    wide = page.evaluate(
        """() => [...chat().shadowRoot.querySelectorAll(".chat *")]
          .filter((e) => e.checkVisibility() && !e.closest(".unseen"))
          .map((e) => [e.getBoundingClientRect(), e.outerHTML.slice(0, 100)])
          .filter(([box]) => box.right > innerWidth + 1 || box.left < -1).map(([, html]) => html)"""
    )
    assert wide == []
    assert faint_in_shadow(page) == []


def faint_in_shadow(page: Page) -> list[str]:
    """As `faint`, of the element's tree."""
    source = Path(faint.__code__.co_filename).read_text("utf-8")
    script = re.search(r'def faint.*?evaluate\(\s*"""(.*?)"""', source, re.S)
    assert script
    inside = script[1].replace(
        'document.querySelectorAll("body *")', 'chat().shadowRoot.querySelectorAll("*")'
    )
    inside = inside.replace("\\\\d", "\\d")
    found: list[str] = page.evaluate(inside)
    return [text for text in found if not text.endswith(("You: ", "Assistant: "))]


def test_two_share_an_engine_and_take_turns(visit: Visit) -> None:
    two = "".join(f'<slm2-chat id="{id}" temperature="0" max-tokens="4"></slm2-chat>' for id in "ab")
    page = visit(two)
    got = page.evaluate(
        """async () => {
          const order = [];
          const ask = (id, text) => chat(id).ask(text).then(() => order.push(id + text));
          await Promise.all([ask("a", "1"), ask("a", "2"), ask("a", "3"), ask("b", "1"), ask("b", "2")]);
          return { order, same: chat("a").info === chat("b").info, b: chat("b").messages.length };
        }"""
    )
    assert got == {"order": ["a1", "b1", "a2", "b2", "a3"], "same": True, "b": 4}
    engines = [worker.url for worker in page.workers if worker.url.endswith("worker/worker.js")]
    assert len(engines) == 1
    assert page.evaluate("heard.filter(({ name }) => name === 'ready').map(({ id }) => id)") != []
    # The engine goes when the last of them has gone for good, and comes again with the next question.
    page.evaluate("document.body.append(chat('a')); chat('b').remove()")
    page.wait_for_timeout(1500)
    assert len(page.workers) > 0
    page.evaluate("globalThis.kept = chat('a'); kept.remove()")
    for _ in range(100):
        if not page.workers:
            break
        page.wait_for_timeout(50)
    assert page.workers == []
    got = page.evaluate("document.body.append(kept), kept.ask('Hello').then(({ reason }) => reason)")
    assert got in ("max_tokens", "stop_token")


def test_tabs_and_frames_share_an_engine_and_outlive_it(visit: Visit, server: str) -> None:
    """The tab that has it goes in the middle of a reply: another one's goes on, the same as ever."""
    element = '<slm2-chat id="a" model="tiny" temperature="0" max-tokens="170"></slm2-chat>'
    ask = "chat().ask('Hello').then(({ text, transcript }) => [text, JSON.parse(transcript).sha256])"
    alone = visit(element.replace("<slm2-chat", '<slm2-chat share="page"'))
    expected = alone.evaluate(ask)
    assert alone.evaluate("chat().info.sharing") is None
    one = visit(element)
    two = visit(element, one.context)
    two.evaluate("document.body.append(Object.assign(document.createElement('iframe'), { src: 'own.html' }))")
    until(two, "document.querySelector('iframe').contentWindow.customElements?.get('slm2-chat')")
    frame = two.frames[1]
    assert one.evaluate(ask) == expected
    two.evaluate(f"() => {{ globalThis.reply = {ask}; }}")
    until(two, "heard.filter(({ name }) => name === 'delta').length > 10")
    frame.evaluate("() => { globalThis.reply = document.querySelector('slm2-chat').ask('Hello'); }")
    engines = [[w for w in page.workers if w.url.endswith("worker/worker.js")] for page in (one, two)]
    assert [len(each) for each in engines] == [1, 0]
    assert one.evaluate("chat().info.sharing") == {"shared": True, "here": True, "why": None}
    one.close()
    assert two.evaluate("reply") == expected
    texts = two.evaluate("heard.filter(({ name }) => name === 'delta').map(({ detail }) => detail.text)")
    assert all(b.startswith(a) and len(b) > len(a) for a, b in itertools.pairwise(texts))
    assert frame.evaluate("reply.then(({ text }) => text)") == expected[0]
    assert len([w for w in two.workers if w.url.endswith("worker/worker.js")]) == 1
    wrong = visit('<slm2-chat id="a" model="tiny" share="all"></slm2-chat>')
    assert wrong.evaluate("outcome(chat().ask('Hello'))")["code"] == "input.params"
    expect(wrong.locator("#a .chat")).to_have_attribute("data-state", "idle")


def test_who_hears_that_the_engine_loads_finds_it_loading(visit: Visit) -> None:
    """And may ask for it again."""
    page = visit("")
    got = page.evaluate(
        """async () => {
          const { engineOf } = await import("./web/engine.js");
          const engine = engineOf({ model: "tiny", share: "page" });
          const seen = [engine.state];
          const holder = {};
          const ends = new Set();
          engine.hold(holder, { state: (state) => {
            seen.push([state, engine.state]);
            ends.add(engine.load());
          } });
          ends.add(engine.load());
          const models = new Set(await Promise.all(ends));
          engine.release(holder);
          return { seen, n: models.size };
        }"""
    )
    assert got == {"seen": ["idle", ["loading", "loading"], ["ready", "ready"]], "n": 1}


def test_the_focus_is_not_lost_and_who_has_scrolled_up_stays_there(visit: Visit) -> None:
    page = visit('<slm2-chat id="a" model="tiny" temperature="0" max-tokens="170"></slm2-chat>')
    box = page.get_by_role("textbox", name="Message")
    box.fill("Hello")
    for name in ("Send", "Stop"):
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name=name)).to_be_focused()
        if name == "Send":
            page.keyboard.press("Enter")
            expect(box).to_be_focused()
    until(page, "heard.at(-1)?.name === 'done'")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(box).to_be_focused()
    got = page.evaluate(
        """async () => {
          chat().style.setProperty("--slm2-height", "18rem");
          const log = chat().shadowRoot.querySelector(".log");
          const places = [];
          for (const isUp of [false, true]) {
            const up = () => isUp && (log.scrollTop = 0);
            chat().addEventListener("slm2-delta", up, { once: true });
            await chat().ask("Hello");
            places.push([log.scrollTop > 100, log.scrollHeight - log.scrollTop - log.clientHeight < 2]);
          }
          return places;
        }"""
    )
    assert got == [[True, True], [False, False]]


def test_load_when_visible_or_at_once(visit: Visit) -> None:
    page = visit('<div class="tall"></div><slm2-chat id="a" model="tiny" load="visible"></slm2-chat>')
    page.wait_for_timeout(300)
    assert page.evaluate("heard.length") == 0
    assert page.workers == []
    page.evaluate("chat().scrollIntoView()")
    until(page, "heard.some(({ name }) => name === 'ready')")
    assert page.evaluate("chat().info.model.name") == "tiny"
    eager = visit('<slm2-chat id="a" model="tiny" load="eager"></slm2-chat>', page.context)
    until(eager, "chat().info !== null")
    expect(eager.locator("#a .chat")).to_have_attribute("data-state", "ready")


def test_errors_are_sentences_with_a_code(visit: Visit) -> None:
    page = visit('<slm2-chat id="a" model="nobody"></slm2-chat>')
    page.evaluate("chat().setAttribute('load', 'eager')")
    until(page, "heard.at(-1)?.name === 'error'")
    card = page.locator("#a .problem .error")
    expect(card).to_contain_text("No such model is installed.")
    expect(card).to_contain_text("input.model")
    assert page.evaluate("heard.at(-1).detail.code") == "input.model"
    # Each load that fails is told of once, however often it is asked for meanwhile.
    page.evaluate(
        """async () => {
          heard.length = 0;
          chat().setAttribute("load", "interaction");
          const input = chat().shadowRoot.querySelector("textarea");
          for (let n = 0; n < 3; n++) input.dispatchEvent(new Event("input"));
          await outcome(chat().load());
        }"""
    )
    assert page.evaluate("heard.filter(({ name }) => name === 'error').length") == 1
    got = page.evaluate("outcome(chat().ask('Hello'))")
    assert got["code"] == "input.model"
    expect(page.locator("#a .assistant .error")).to_contain_text("No such model is installed.")
    # What was wrong can be mended, and tried again, where it stands.
    page.evaluate("chat().setAttribute('model', 'tiny'); chat().setAttribute('max-tokens', '4')")
    page.locator("#a .assistant").get_by_role("button", name="Try again").click()
    until(page, "heard.at(-1).name === 'done'")
    assert page.locator("#a .assistant .error").count() == 0
    page.evaluate("chat().setAttribute('load', 'sometimes')")
    expect(page.locator("#a .problem .error")).to_contain_text("interaction | visible | eager")


class Plain(http.server.SimpleHTTPRequestHandler):
    """The standard library's server: no header of ours, no policy, no isolation."""

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and where a plain server shows it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Plain, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tmp_path, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def ask_there(page: Page, frame: str = "document") -> dict[str, Any]:
    """A question to the element of a page, by its method."""
    until(page, f"{frame}.querySelector('slm2-chat')?.ask")
    result: dict[str, Any] = page.evaluate(
        f"""async () => {{
          const chat = {frame}.querySelector("slm2-chat");
          chat.setAttribute("temperature", "0");
          const {{ text, reason }} = await chat.ask("{QUESTION}");
          return {{ text, reason, shared: chat.info.memory.weights_shared }};
        }}"""
    )
    return result


def test_ten_lines_on_a_plain_server_and_in_a_frame(
    chromium_without_webgpu: Browser, site: Path, plain: tuple[Path, str]
) -> None:
    root, url = plain
    shutil.copytree(site, root / "slm2", copy_function=link)
    (root / "page.html").write_text('<!doctype html><iframe src="slm2/embed.html" title="chat"></iframe>')
    page = chromium_without_webgpu.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(f"{url}page.html")
    until(page, "frames[0].document.querySelector('slm2-chat')?.ask")
    got = ask_there(page, "frames[0].document")
    assert got == {"text": ANSWER, "reason": "stop_token", "shared": False}
    lines = (root / "slm2" / "embed.html").read_text("utf-8").splitlines()
    assert len([line for line in lines if "modulepreload" not in line]) <= 11
    page.close()


def test_a_changed_script_does_not_run(
    chromium_without_webgpu: Browser, site: Path, plain: tuple[Path, str]
) -> None:
    """Each script of the page has its hash; one that another one imports, too."""
    root, url = plain
    shutil.copytree(site, root / "slm2", copy_function=link)
    for victim in ("web/slm2-chat.js", "web/element/labels.js", "vendor/dompurify.mjs"):
        source = (site / victim).read_bytes()
        (root / "slm2" / victim).unlink()
        (root / "slm2" / victim).write_bytes(source + b"\nglobalThis.changed = true;")
        page = chromium_without_webgpu.new_page()
        with page.expect_console_message(lambda message: "integrity" in message.text):
            page.goto(f"{url}slm2/embed.html")
        page.wait_for_timeout(200)
        assert page.evaluate("globalThis.changed") is None, victim
        assert page.evaluate("!!document.querySelector('slm2-chat').ask") == (
            victim == "vendor/dompurify.mjs"
        )
        page.close()
        (root / "slm2" / victim).write_bytes(source)


def test_from_another_origin(
    chromium_without_webgpu: Browser, site: Path, serve: Serve, plain: tuple[Path, str]
) -> None:
    """The script, the files and the model of another origin; the workers by three lines of this one."""
    root, url = plain
    other = serve(site, shared=True).url
    body = '<slm2-chat id="a" {more}></slm2-chat>'
    for name, more in {"with.html": 'workers="slm2/"', "without.html": ""}.items():
        src = f"{other}web/slm2-chat.js"
        (root / name).write_text(PAGE.format(css="x.css", src=src, body=body.format(more=more)))
    for script in ("worker/worker.js", "worker/loader.js", "worker/wasm/thread.js"):
        (root / "slm2" / script).parent.mkdir(parents=True, exist_ok=True)
        (root / "slm2" / script).write_text(f'import "{other}{script}";\n')
    (root / "frame.html").write_text(f'<!doctype html><iframe src="{other}embed.html" title="chat"></iframe>')
    page = chromium_without_webgpu.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(f"{url}with.html")
    assert ask_there(page) == {"text": ANSWER, "reason": "stop_token", "shared": False}
    page.goto(f"{url}without.html")
    page.evaluate(HEAR)
    until(page, "chat().ask")
    refused = page.evaluate("outcome(chat().ask('Hello'))")
    assert refused["code"] == "input.params"
    assert (
        f"allowed: a URL of {url.rstrip('/')}; for a site of another origin, options.workers"
        in refused["message"]
    )
    # A frame needs none of that.
    page.goto(f"{url}frame.html")
    frame = page.frames[1]
    until(frame, "document.querySelector('slm2-chat')?.ask")
    text = frame.evaluate(
        "(q) => document.querySelector('slm2-chat').ask(q).then(({ reason }) => reason)", QUESTION
    )
    assert text == "stop_token"
    page.close()
