"""The page as people meet it: by keyboard, by screen reader, on a phone, in the dark, for the second time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from e2e.chatpage import KEPT_TURNS, ChatPage

SHOTS = Path(__file__).resolve().parents[2] / "shots"
ANSWER = "The answer to this classic math problem is 4."
# Every state that the page and its last reply were in: a reply may be over before Playwright looks again.
WATCH = """() => {
  const { documentElement } = document;
  window.states = [];
  new MutationObserver(() => {
    const reply = [...document.querySelectorAll(".reply")].at(-1);
    states.push(`${documentElement.dataset.state}, reply ${reply?.ariaBusy === "true" ? "grows" : "rests"}`);
  }).observe(documentElement, { subtree: true, attributeFilter: ["data-state", "aria-busy"] });
}"""


@pytest.fixture(scope="module")
def chat(context: BrowserContext, url: str) -> ChatPage:
    """Loaded while a message already waits: typed and sent by keyboard alone."""
    chat = ChatPage(context, url)
    # No clicks: a first visit with default settings would draw at random, so greedy comes from kept settings.
    context.add_init_script("localStorage.setItem('slm2-settings', '{\"temperature\": \"0\"}')")
    chat.open()
    page = chat.page
    page.evaluate(WATCH)
    expect(page.get_by_label("Message")).to_be_focused()
    page.keyboard.type("What is")
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Backspace")
    page.keyboard.type(" 2+2?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_contain_text("waits for the model")
    expect(page.locator("html")).to_have_attribute("data-state", "loading")
    return chat


def test_message_sent_while_loading_is_answered(chat: ChatPage) -> None:
    chat.wait("ready")
    expect(chat.page.locator(".reply").last).to_have_attribute("aria-busy", "false")
    assert "busy, reply grows" in chat.page.evaluate("states")
    assert chat.text() == ANSWER


def test_screen_readers_hear_the_reply_once(chat: ChatPage) -> None:
    page = chat.page
    expect(page.get_by_role("log")).to_have_attribute("aria-live", "off")
    expect(page.locator("#announcer")).to_have_attribute("aria-live", "polite")
    expect(page.locator("#announcer")).to_have_text(ANSWER)
    for name in ("Message", "Temperature", "Top-p", "Top-k", "Seed", "Longest reply", "System prompt"):
        assert page.get_by_label(name, exact=False).count() >= 1, name
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, progress, textarea, input, dialog")]
          .filter((e) => !(e.textContent.trim() || e.ariaLabel || e.labels?.length ||
                           e.getAttribute("aria-labelledby")))
          .map((e) => e.outerHTML)"""
    )
    assert unnamed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(400, 800), (1400, 900)])
def test_screenshots(chat: ChatPage, scheme: Literal["light", "dark"], width: int, height: int) -> None:
    """For eyes; what a program can see is that nothing is wider than the window, and nothing too faint."""
    page = chat.page
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"chat-{width}-{scheme}.png")
    assert overflow(page) == []
    assert faint(page) == []
    page.get_by_role("button", name="Settings").click()
    page.screenshot(path=SHOTS / f"settings-{width}-{scheme}.png")
    assert overflow(page) == []
    assert faint(page) == []
    page.keyboard.press("Escape")


def test_settings_by_keyboard(chat: ChatPage) -> None:
    page = chat.page
    page.get_by_role("button", name="Settings").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    field = page.locator("[name=top_p]")
    field.focus()
    page.keyboard.type("7")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#setting-top_p-wrong")).to_have_text("A number above 0, at most 1.")
    # What the page takes, the engine takes.
    heat = page.locator("[name=temperature]")
    for text, said in {
        "1e-7": "0, or a number from 0.000001 to 1000.",
        "1001": "0, or a number from 0.000001 to 1000.",
        "1e-6": "",
        "0": "",
    }.items():
        heat.fill(text)
        expect(page.locator("#setting-temperature-wrong")).to_have_text(said)
    field.focus()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    # A wrong setting is not sent and not forgotten: the page goes back to it.
    chat.ask("Hello")
    expect(field).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("0.9")
    expect(field).to_have_attribute("aria-invalid", "false")
    page.locator("[name=seed]").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    seed = page.locator("[name=seed]").input_value()
    assert seed.isdigit()
    page.keyboard.press("Escape")
    assert page.evaluate("JSON.parse(localStorage['slm2-settings'])") == {
        "temperature": "0",
        "top_p": "0.9",
        "seed": seed,
    }
    page.get_by_label("Message").fill("")


def test_everything_can_be_reached_by_tab(chat: ChatPage) -> None:
    page = chat.page
    names = set()
    page.locator("body").press("Tab")
    for _ in range(30):
        names.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        page.keyboard.press("Tab")
    assert names >= {
        "open-chats",
        "new-chat",
        "open-models",
        "open-settings",
        "input",
        "send",
        "Copy",
        "Save transcript",
    }


def test_window_of_conversation_follows_only_who_reads_along(chat: ChatPage) -> None:
    page = chat.page
    page.set_viewport_size({"width": 400, "height": 420})
    chat.set(max_tokens="300").ask("Write a long story about the sea.\n" * 6).wait("busy")
    expect(page.locator(".reply .text").last).not_to_be_empty(timeout=60_000)
    page.locator("#page").evaluate("(e) => (e.scrollTop = 0)")
    latest = page.get_by_role("button", name="Latest")
    expect(latest).to_be_visible(timeout=30_000)
    latest.click()
    expect(latest).to_be_hidden()
    page.keyboard.press("Escape")
    chat.wait("ready")


def test_answer_again_and_a_reload_keep_the_conversation(chat: ChatPage) -> None:
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    first = chat.set(temperature="0", max_tokens="5").reply("What is 2+2?")
    second = chat.reply("And 3+3?")
    again = page.get_by_role("button", name="Answer again")
    expect(again).to_have_count(1)  # the last question's alone can be seen
    chat.set(max_tokens="3")
    again.click()
    chat.wait("ready")
    expect(page.locator(".turn")).to_have_count(2)
    third = chat.transcript()
    assert third["prompt_ids"] == second["prompt_ids"]
    assert third["generated_ids"] == second["generated_ids"][:3]
    shown = page.locator("#log").inner_text()

    page.reload()
    expect(page.locator(".turn")).to_have_count(2)
    assert page.locator("#log").inner_text() == shown
    assert chat.transcript() == third
    chat.wait("ready")
    run = chat.reply("And 4+4?")
    both = first["prompt_ids"] + first["generated_ids"]
    assert run["prompt_ids"][: len(both)] == both
    expect(page.locator(".turn")).to_have_count(3)


def test_a_transcript_is_checked(chat: ChatPage, tmp_path: Path) -> None:
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    run = chat.set(temperature="0.7", seed="5", max_tokens="6").reply("Name a colour.")
    chat.set(temperature="", seed="", max_tokens="300").ask("Write a long story about the sea.").wait("busy")
    expect(page.locator(".reply .text").last).not_to_be_empty(timeout=60_000)
    page.keyboard.press("Escape")
    stopped = chat.wait("ready").transcript()
    assert stopped["reason"] == "cancelled"
    altered = {**run, "logit_digests": [*run["logit_digests"][:2], "0" * 64, *run["logit_digests"][3:]]}
    other = {**run, "artifacts": {**run["artifacts"], "model": "another"}}
    for recorded, verdict in {
        json.dumps(run, indent=2, sort_keys=True): "As in the transcript, bit for bit",
        json.dumps(stopped): "As in the transcript, bit for bit",
        json.dumps(altered): "Differs from the transcript: logit_digests[2]",
        json.dumps(other): "Differs from the transcript: artifacts",
    }.items():
        page.get_by_role("button", name="New chat").click()
        (tmp_path / "run.json").write_text(recorded)
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="check a transcript").click()
        chooser.value.set_files(tmp_path / "run.json")
        expect(page.locator(".verdict")).to_have_text(verdict, timeout=60_000)
        chat.wait("ready")
        if verdict.startswith("As"):
            assert "cancelled" in recorded or chat.says(json.loads(recorded)["text"])
    assert page.evaluate(KEPT_TURNS) == [], "it is no part of the conversation"


def test_a_hostile_transcript_is_refused(chat: ChatPage, tmp_path: Path) -> None:
    """Whatever is in the file: an error that can be told, and a page that goes on."""
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    run = chat.set(temperature="0", seed="", max_tokens="3").reply("Name a colour.")
    request = run["request"]
    params = request["params"]

    def asks(**changes: object) -> dict[str, Any]:
        return {**run, "request": {**request, **changes}}

    deep = json.dumps(run)[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}"
    files = {
        **dict.fromkeys(("", "{", "[]", "null", '{"version": 1}', deep, "\ufeff\0"), "format.transcript"),
        json.dumps({**run, "version": 3}): "format.transcript",
        json.dumps({**run, "generated_ids": "x"}): "format.transcript",
        json.dumps(asks(messages="<script>")): "format.transcript",
        json.dumps(asks(continue_ids=None)): "format.transcript",
        json.dumps(asks(messages=[])): "input.json",
        json.dumps(
            asks(messages=[{"role": "<img src=x onerror=alert(1)>", "content": "a"}])
        ): "template.role",
        json.dumps(asks(messages=[{"role": "user", "content": {"a": 1}}])): "template.content",
        json.dumps(asks(tools=[{"a": 1}])): "template.tools",
        json.dumps(asks(params={**params, "temperature": "hot"})): "input.params",
        json.dumps(asks(params={**params, "signal": 1})): "input.params",
        json.dumps(asks(params={**params, "response_format": "{"})): "input.response_format",
        json.dumps(asks(params=[1])): "input.params",
        json.dumps(asks(evidence=[{"id": 1}])): "input.params",
        json.dumps(asks(budget_tokens=-1)): "input.params",
        json.dumps(asks(continue_ids=[2**31 - 1])): "input.token_id",
        json.dumps(asks(continue_ids=[-1])): "input.params",
        json.dumps(asks(more=1)): "input.params",
    }
    for text, code in files.items():
        page.get_by_role("button", name="New chat").click()
        (tmp_path / "run.json").write_text(text)
        page.locator("#transcript").set_input_files(tmp_path / "run.json")
        chat.expect_error(code)
        chat.wait("ready")
    page.get_by_role("button", name="New chat").click()
    assert chat.reply("Name a colour.")["sha256"] == run["sha256"]
    page.get_by_role("button", name="New chat").click()


def test_new_chat_says_nothing_of_the_old_one(chat: ChatPage) -> None:
    page = chat.page
    chat.set(max_tokens="300").ask("Write a long story about the sea.").wait("busy")
    expect(page.locator(".reply .text").last).not_to_be_empty(timeout=60_000)
    page.get_by_role("button", name="New chat").click()
    chat.wait("ready")
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_label("Message")).to_have_value("")
    assert page.locator("#announcer").text_content() == ""


def test_notes_say_in_full_what_runs(chat: ChatPage) -> None:
    """The header of a narrow window has no room for it."""
    page = chat.page
    page.set_viewport_size({"width": 400, "height": 800})
    page.locator("#loading").evaluate("(details) => (details.open = true)")
    notes = page.locator("#notes")
    expect(notes).to_be_visible()
    expect(notes).to_contain_text(page.locator("#runs").text_content() or "?")
    expect(notes).to_contain_text(re.compile(r"WebGPU was not used: .* \(device\.no_webgpu\)"))
    assert overflow(page) == []


def test_the_server_s_policy_binds_workers_too(chat: ChatPage) -> None:
    """They would evaluate strings without it."""
    worker = next(worker for worker in chat.page.workers if worker.url.endswith("worker/worker.js"))
    refused = (
        "() => { try { setTimeout('globalThis.evaluated = 1'); return ''; } catch (e) { return e.message; } }"
    )
    assert "TrustedScript" in worker.evaluate(refused)
    kept = "() => new Promise((resolve) => setTimeout(() => resolve(globalThis.evaluated ?? 'nothing'), 100))"
    assert worker.evaluate(kept) == "nothing"


def test_boundary_of_text(chat: ChatPage) -> None:
    """Bytes cut anywhere, in shared memory or not, give the same text; nothing is replaced or swallowed."""
    got = chat.page.evaluate(
        r"""async () => {
          const { encode, decode, Decoder } = await import("./web/text.js");
          const text = "\ufeffa\u0000é\u20ac\u{1f600}e\u0301\ufffd\r\n";
          const bytes = encode(text);
          const view = new Uint8Array(new SharedArrayBuffer(bytes.length));
          view.set(bytes);
          const split = new Decoder();
          let pieces = "";
          for (let i = 0; i < view.length; i++) pieces += split.push(view.subarray(i, i + 1));
          pieces += split.end();
          const codes = [];
          for (const bad of [[0xff], [0xed, 0xa0, 0x80], [0xe2, 0x82], [0xc0, 0x80]]) {
            try { decode(new Uint8Array(bad)); } catch (e) { codes.push(e.code); }
          }
          for (const lone of ["\ud800", "\udc00\ud800", "a\u{1f600}\udfff"]) {
            try { encode(lone); } catch (e) { codes.push(e.detail.index); }
          }
          return { same: pieces === text && decode(view) === text, codes };
        }"""
    )
    assert got == {"same": True, "codes": ["protocol.message"] * 4 + [0, 0, 3]}


def overflow(page: Page) -> list[str]:
    """Visible elements that stick out of the window's width."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("body *")]
          .filter((e) => e.checkVisibility() && !e.closest("svg, .unseen"))
          .map((e) => [e.getBoundingClientRect(), e.outerHTML.slice(0, 100)])
          .filter(([box]) => box.right > innerWidth + 1 || box.left < -1)
          .map(([, html]) => html)"""
    )
    return found


def faint(page: Page) -> list[str]:
    """Texts whose contrast with the nearest background is below 4.5 : 1 (WCAG 2.2, 1.4.3 AA)."""
    found: list[str] = page.evaluate(
        """() => {
          const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
            .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
          const ground = (e) => {
            for (; e; e = e.parentElement) {
              const c = rgb(getComputedStyle(e).backgroundColor);
              if (c.length < 4 || c[3] > 0.9) return c;
            }
            return [255, 255, 255];
          };
          return [...document.querySelectorAll("body *")]
            .filter((e) => e.checkVisibility() && !e.closest("svg, .unseen") &&
              [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
            .map((e) => {
              const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
              return [(a + 0.05) / (b + 0.05), e.textContent.slice(0, 40)];
            })
            .filter(([ratio]) => ratio < 4.5).map(([ratio, text]) => `${ratio.toFixed(2)} ${text}`);
        }"""
    )
    return found
