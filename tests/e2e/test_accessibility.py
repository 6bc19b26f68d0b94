"""axe-core finds nothing wrong on any page, in either theme; and the main page is used by keyboard alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from e2e.axe import Scheme, checker, violations
from e2e.chatpage import TIMEOUT_MS, ChatPage
from e2e.conftest import ROOT

SHOTS = ROOT / "shots"
PAGES = ("storage.html", "tokenizer.html", "parity.html", "bench.html", "embed.html")
DIALOGS = {"Chats": "chats", "Model": "models", "All keys": "keyboard", "Settings": "settings"}


@pytest.fixture(scope="module")
def axe() -> str:
    """The checker's script."""
    return checker()


@pytest.fixture(scope="module")
def chat(chromium: Browser, url: str) -> ChatPage:
    """A conversation with a reply, in a window of its own."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    context.add_init_script("localStorage.setItem('slm2-settings', '{\"temperature\": \"0\"}')")
    chat = ChatPage(context, url).open().wait("ready")
    chat.reply("What is 2+2?")
    return chat


def test_the_checker_checks(context: BrowserContext, url: str, axe: str) -> None:
    """A fault that is made is found."""
    page = context.new_page()
    page.goto(f"{url}storage.html")
    page.wait_for_selector("html[data-state=ready]")
    page.evaluate("document.body.append(document.createElement('button'))")
    assert [line.split(":")[0] for line in violations(page, axe)] == ["button-name"]
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_main_page(chat: ChatPage, axe: str, scheme: Scheme) -> None:
    page = chat.page
    page.emulate_media(color_scheme=scheme)
    assert violations(page, axe) == []
    for label, dialog in DIALOGS.items():
        page.get_by_role("button", name=label, exact=True).click()
        expect(page.locator(f"#{dialog}")).to_be_visible()
        if dialog == "models":
            expect(page.locator("#model-list .model")).to_have_count(1)
        if dialog == "chats":
            expect(page.locator("#chat-list .chat")).to_have_count(1)
        if dialog == "settings":
            page.locator("#settings .more").evaluate("(e) => (e.open = true)")
        found = violations(page, axe)
        page.keyboard.press("Escape")
        assert found == [], label
        expect(page.locator(f"#{dialog}")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_other_pages(context: BrowserContext, url: str, axe: str, scheme: Scheme) -> None:
    for name in PAGES:
        page = context.new_page()
        page.emulate_media(color_scheme=scheme)
        page.goto(url + name)
        if name == "embed.html":
            expect(page.get_by_role("textbox")).to_be_attached(timeout=TIMEOUT_MS)
        else:
            page.wait_for_selector("html[data-state=ready]", state="attached", timeout=TIMEOUT_MS)
        assert violations(page, axe) == [], name
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_screenshots(chat: ChatPage, scheme: Scheme, width: int) -> None:
    """For eyes; what a program can see is that nothing is wider than the window."""
    page = chat.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"page-{width}-{scheme}.png")
    for label, dialog in DIALOGS.items():
        page.get_by_role("button", name=label, exact=True).click()
        page.wait_for_function("!document.querySelector('dialog[open] ul:empty:not([hidden] *)')")
        page.screenshot(path=SHOTS / f"{dialog}-{width}-{scheme}.png")
        size = "(id) => [document.getElementById(id)].map((e) => [e.scrollWidth, e.clientWidth])[0]"
        needs, has = page.evaluate(size, dialog)
        page.keyboard.press("Escape")
        assert needs <= has, dialog
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 1400, "height": 900})


def test_everything_by_keyboard_alone(chat: ChatPage) -> None:
    """Ask, edit, settings, model, list, rename, delete, undo, keys: no pointer is used."""
    page = chat.page
    keys = page.keyboard
    keys.press("Alt+n")
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_label("Message")).to_be_focused()
    keys.press("Alt+,")
    expect(page.locator("#settings")).to_be_visible()
    tab_to(page, "#setting-max_tokens")
    keys.type("4")
    keys.press("Escape")
    keys.press("Alt+i")
    keys.type("Name a colour.")
    keys.press("Enter")
    expect(page.get_by_role("button", name="Save transcript")).to_be_visible(timeout=TIMEOUT_MS)
    chat.wait("ready")
    # Edited in place, from the empty field.
    keys.press("ArrowUp")
    expect(page.get_by_label("Edit your message")).to_be_focused()
    keys.press("Control+A")
    keys.type("Name a fruit.")
    keys.press("Enter")
    expect(page.locator(".asked .text")).to_have_text(["Name a fruit."])
    chat.wait("ready")
    keys.press("Alt+r")  # which ends no other reply: it is busy before the key is up
    chat.wait("ready")
    # What is copied is the reply.
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    keys.press("Alt+y")
    expect(page.locator(".copied").first).to_have_text("copied")
    tab_to(page, ".turn:last-child .meta > button:last-child")
    with page.expect_download() as download:
        keys.press("Enter")
    run = json.loads(Path(download.value.path()).read_bytes())
    assert page.evaluate("navigator.clipboard.readText()") == run["text"]
    # The list: two chats, of which this one is renamed, deleted and back.
    keys.press("Alt+c")
    lines = page.locator("#chat-list .chat")
    expect(lines).to_have_count(2)
    tab_to(page, "#chat-list .chat:first-child .acts button:first-child")
    keys.press("Enter")
    keys.type("Fruit")
    keys.press("Enter")
    expect(lines.first.locator(".chat-title")).to_have_text("Fruit")
    expect(page.get_by_role("button", name="Rename “Fruit”")).to_be_focused()
    tab_to(page, "#chat-list .chat:first-child .acts button:last-child")
    keys.press("Enter")
    expect(lines).to_have_count(1)
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    keys.press("Enter")
    expect(lines).to_have_count(2)
    tab_to(page, "#chat-list .chat:first-child .chat-title")
    keys.press("Enter")
    expect(page.locator("#chats")).to_be_hidden()
    expect(page.locator(".asked .text")).to_have_text(["Name a fruit."])
    # The model's dialog, and the map of keys by its three ways.
    keys.press("Alt+m")
    expect(page.locator("#models .in-use")).to_be_visible()
    keys.press("Escape")
    keys.press("Alt+/")
    expect(page.locator("#keyboard")).to_be_visible()
    tab_to(page, "#question-mark")
    expect(page.locator("#question-mark")).to_be_checked()
    keys.press("Escape")
    tab_to(page, "#new-chat")
    keys.press("?")
    expect(page.locator("#keyboard")).to_be_visible()
    tab_to(page, "#question-mark")
    keys.press("Space")
    keys.press("Escape")
    keys.press("?")
    expect(page.locator("#keyboard")).to_be_hidden()
    # In the field it is a character like others.
    keys.press("Alt+i")
    keys.type("?")
    expect(page.get_by_label("Message")).to_have_value("?")
    expect(page.locator("#keyboard")).to_be_hidden()
    keys.press("Backspace")


def test_focus_is_seen_and_nothing_moves(chat: ChatPage) -> None:
    """Each control that Tab reaches has an outline; who asked for less motion sees none."""
    page = chat.page
    page.locator("body").press("Tab")
    unseen = []
    for _ in range(25):
        unseen += page.evaluate(
            """() => {
              const e = document.activeElement;
              const frame = e.closest(".field") ?? e;
              const style = getComputedStyle(e), around = getComputedStyle(frame);
              const seen = style.outlineStyle !== "none" || around.boxShadow !== "none";
              return seen || e === document.body ? [] : [e.outerHTML.slice(0, 100)];
            }"""
        )
        page.keyboard.press("Tab")
    assert unseen == []
    moving = page.evaluate(
        """document.getAnimations().filter((a) => a.effect.getTiming().duration > 0)
          .map((a) => String(a.animationName))"""
    )
    assert moving == []


def tab_to(page: Page, selector: str, limit: int = 60) -> None:
    """Presses Tab until the element has the focus. Fails when Tab doesn't get there."""
    for _ in range(limit):
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} is not reached by Tab: {json.dumps(page.title())}")
