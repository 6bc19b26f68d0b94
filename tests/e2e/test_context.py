"""A long conversation within a small budget: the meter, what was left out and why, and the settings."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from e2e.chatpage import ChatPage
from e2e.test_page import SHOTS, faint, overflow

BUDGET = 240
QUESTIONS = [
    "What is 2+2?",
    "Why is the sky blue? Please tell me in your own words, and do not make it too long.",
    "Name a colour that is in the rainbow, and then name another one that is in no rainbow at all.",
    'Who wrote <evidence id="a">Faust</evidence>?',
    "What do you know about the sea, and about the ships that once sailed across it?",
    "Is the moon made of cheese?",
    "How many legs has a spider, and how many has an ant?",
    "Where do penguins live when they are not in a zoo?",
    "What is the opposite of a short answer to a short question?",
    "And what did I ask you first?",
]


@pytest.fixture(scope="module")
def chat(context: BrowserContext, url: str) -> ChatPage:
    """Ten turns, each within the budget; what each one's transcript says is checked on the way."""
    chat = ChatPage(context, url).open().wait("ready")
    expect(chat.page.locator("#context")).to_be_hidden()
    chat.set(temperature="0", max_tokens="6", budget_tokens=str(BUDGET))
    before = 0
    for number, question in enumerate(QUESTIONS):
        run = chat.reply(question)
        ledger = run["ledger"]
        dropped = [part for part in ledger["parts"] if part["state"] == "dropped"]
        assert len(run["prompt_ids"]) == ledger["prompt_tokens"] <= ledger["budget_tokens"] == BUDGET
        assert len(run["request"]["messages"]) == 2 * number + 1, (
            "what was left out is asked for all the same"
        )
        assert len(dropped) >= before, "what is left out stays out"
        before = len(dropped)
        words = f"{ledger['prompt_tokens']} of {BUDGET} tokens"
        expect(chat.page.locator("#context-figures")).to_contain_text(words)
        meter = chat.page.get_by_role("meter", name="Context")
        expect(meter).to_have_attribute("aria-valuetext", words)
        assert meter.evaluate("e => [e.value, e.max]") == [ledger["prompt_tokens"], BUDGET]
    assert before >= 3
    return chat


def test_what_was_left_out_can_be_read_by_keyboard(chat: ChatPage) -> None:
    page = chat.page
    ledger = chat.transcript()["ledger"]
    dropped = [part for part in ledger["parts"] if part["state"] == "dropped"]
    expect(page.locator("#context-figures")).to_contain_text(f"{len(dropped)} parts left out or cut")
    page.locator("#context summary").focus()
    page.keyboard.press("Enter")
    lines = page.locator("#context li.missing")
    expect(lines).to_have_count(len(dropped))
    expect(lines.first).to_be_visible()
    expect(lines.first).to_contain_text("“What is 2+2?”")
    expect(lines.first).to_contain_text(re.compile(r"\d+ tokens, left out: the oldest exchanges go first"))
    kept = page.locator("#context li:not(.missing)")
    total = sum(int(text.split()[-2]) for text in kept.all_inner_texts())
    assert total == ledger["prompt_tokens"], "the parts that are shown make up the prompt"
    assert not page.get_by_text("undefined").count()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(400, 800), (1400, 900)])
def test_screenshots(chat: ChatPage, scheme: str, width: int, height: int) -> None:
    page = chat.page
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    SHOTS.mkdir(exist_ok=True)
    for state in ("open", "closed"):
        page.locator("#context").evaluate("(e, open) => (e.open = open)", state == "open")
        page.screenshot(path=SHOTS / f"context-{state}-{width}-{scheme}.png")
        assert overflow(page) == []
        assert faint(page) == []
    chat.open_settings()
    page.locator("#setting-budget_tokens").scroll_into_view_if_needed()
    page.screenshot(path=SHOTS / f"context-settings-{width}-{scheme}.png")
    assert overflow(page) == []
    page.keyboard.press("Escape")


def test_screen_readers_hear_what_was_left_out(chat: ChatPage) -> None:
    page = chat.page
    page.evaluate(
        """() => {
          globalThis.said = [];
          const status = document.querySelector("#status");
          new MutationObserver(() => said.push(status.textContent)).observe(status, { childList: true });
        }"""
    )
    run = chat.reply("Thank you.")
    n_missing = sum(part["state"] != "kept" for part in run["ledger"]["parts"])
    assert f"To fit {BUDGET} tokens, {n_missing} parts left out or cut." in page.evaluate("said")


def test_a_reload_keeps_the_meter_and_a_new_chat_clears_it(chat: ChatPage) -> None:
    page = chat.page
    figures = page.locator("#context-figures").inner_text()
    page.reload()
    chat.wait("ready")
    expect(page.locator("#context-figures")).to_have_text(figures)
    assert page.locator("#context li.missing").count() >= 3
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#context")).to_be_hidden()


def test_a_question_that_is_more_than_the_budget_is_refused_with_the_numbers(chat: ChatPage) -> None:
    page = chat.page
    chat.set(budget_tokens="50").ask("Tell me a story about the sea. " * 9)
    text = chat.expect_error("input.budget")
    assert "allowed: 50" in text
    page.get_by_role("button", name="Edit the message").click()
    chat.set(budget_tokens="2048").ask("Hello")
    text = chat.expect_error("input.params")
    assert "budget_tokens: found 2048; allowed: an integer from 1 to 2047" in text
    page.get_by_role("button", name="Edit the message").click()
    page.get_by_label("Message").fill("")
    chat.set(budget_tokens="")
    assert chat.reply("Hello")["ledger"]["budget_tokens"] == 2048 - 6


def test_settings_that_the_model_does_not_know_are_not_shown(chat: ChatPage) -> None:
    page: Page = chat.page
    assert page.evaluate("document.querySelectorAll('#setting-fields select').length") == 5
    chat.open_settings()
    expect(page.get_by_label("Context budget")).to_be_visible()
    for name in ("Thinking", "Earlier thoughts", "Longest thought"):
        expect(page.get_by_label(re.compile(f"^{name}"))).to_be_hidden()
    page.keyboard.press("Escape")
    assert chat.complaints == []
