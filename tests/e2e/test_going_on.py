"""Replies that go on, messages that are edited, replies with a form: on the page and through client.js."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, expect

from e2e.chatpage import TIMEOUT_MS, ChatPage
from e2e.test_page import SHOTS, faint, overflow
from slm2_web import transcript

QUESTION = "Name three animals of the sea."
SCHEMA = (
    '{"type": "object", "properties": {"animal": {"type": "string", "maxLength": 10}, "legs": '
    '{"type": "integer", "minimum": 0, "maximum": 100}}, "required": ["animal", "legs"], '
    '"additionalProperties": false}'
)


@pytest.fixture(scope="module")
def chat(context: BrowserContext, url: str) -> ChatPage:
    """Loaded, and greedy."""
    return ChatPage(context, url).open("?executor=wasm").wait("ready").set(temperature="0")


def press(chat: ChatPage, name: str) -> dict[str, Any]:
    """A button below the last reply, by keyboard; gives the transcript of what comes."""
    button = chat.page.locator(".turn").last.get_by_role("button", name=name, exact=True)
    button.focus()
    chat.page.keyboard.press("Enter")
    expect(chat.page.locator(".reply").last).to_have_attribute("aria-busy", "false", timeout=TIMEOUT_MS)
    return chat.wait("ready").transcript()


def test_a_reply_that_was_cut_goes_on_as_if_it_had_not_been(chat: ChatPage) -> None:
    """Of drawn tokens too; what the settings say by then is of no account."""
    page = chat.page
    chat.set(temperature="0.8", seed="11", max_tokens="18")
    whole = chat.reply(QUESTION)
    page.get_by_role("button", name="New chat").click()
    first = chat.set(max_tokens="6").reply(QUESTION)
    assert first["reason"] == "max_tokens"
    chat.set(temperature="0", seed="")
    second = press(chat, "Continue")
    third = press(chat, "Continue")
    expect(page.locator(".turn")).to_have_count(1)
    assert second["request"]["continue_ids"] == first["generated_ids"]
    assert third["request"]["continue_ids"] == first["generated_ids"] + second["generated_ids"]
    ids = third["request"]["continue_ids"] + third["generated_ids"]
    digests = [digest for run in (first, second, third) for digest in run["logit_digests"]]
    assert (ids, digests) == (whole["generated_ids"], whole["logit_digests"])
    assert third["text"] == whole["text"]
    assert chat.says(whole["text"])
    expect(page.locator(".meta")).to_contain_text("18 tokens")

    # The next turn goes on from the whole, and so does a reload.
    page.reload()
    chat.wait("ready")
    assert chat.says(whole["text"])
    run = chat.set(max_tokens="3").reply("Thanks.")
    assert run["prompt_ids"][: len(whole["prompt_ids"]) + 18] == whole["prompt_ids"] + ids
    expect(page.get_by_role("button", name="Continue")).to_have_count(1)


def test_a_stopped_reply_goes_on(chat: ChatPage, tmp_path: Path) -> None:
    """Its transcript is whole: it says what it went on from, and is made again on the page and by Python."""
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    chat.set(temperature="0", max_tokens="250").ask("Write a long story about the sea.").wait("busy")
    expect(page.locator(".reply .text").last).not_to_be_empty(timeout=60_000)
    page.keyboard.press("Escape")
    stopped = chat.wait("ready").transcript()
    assert stopped["reason"] == "cancelled"
    run = press(chat, "Continue")
    assert run["reason"] in ("max_tokens", "stop_token")
    assert run["text"].startswith(stopped["text"])
    assert run["request"]["continue_ids"] == stopped["generated_ids"]
    recorded = transcript.parse(json.dumps(run).encode())
    assert transcript.check_unaltered(recorded) is None
    assert list(recorded.request.continue_ids) == stopped["generated_ids"]

    page.get_by_role("button", name="New chat").click()
    (tmp_path / "run.json").write_text(json.dumps(run))
    page.locator("#transcript").set_input_files(tmp_path / "run.json")
    expect(page.locator(".verdict")).to_have_text("As in the transcript, bit for bit", timeout=60_000)
    assert chat.wait("ready").says(run["text"])
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)
    page.get_by_role("button", name="New chat").click()


def test_a_reply_that_ended_does_not_go_on(chat: ChatPage) -> None:
    run = chat.set(temperature="0", max_tokens="60").reply("What is 2+2?")
    assert run["reason"] == "stop_token"
    expect(chat.page.get_by_role("button", name="Continue")).to_have_count(0)


def test_a_message_is_edited_and_sent_again(chat: ChatPage) -> None:
    """By keyboard alone. What came after it goes; what came before stays, in the prompt and in the cache."""
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    chat.set(max_tokens="4")
    first = chat.reply("What is 2+2?")
    chat.reply("And 3+3?")
    chat.reply("And 4+4?")
    expect(page.get_by_role("button", name="Edit", exact=True)).to_have_count(3)
    edit = page.locator(".turn").nth(1).get_by_role("button", name="Edit", exact=True)
    edit.focus()
    page.keyboard.press("Enter")
    field = page.get_by_label("Edit your message")
    expect(field).to_be_focused()
    expect(field).to_have_value("And 3+3?")
    page.keyboard.press("Escape")
    expect(edit).to_be_focused()
    expect(page.locator(".turn")).to_have_count(3)
    page.keyboard.press("Enter")
    SHOTS.mkdir(exist_ok=True)
    for width, height in ((400, 800), (1400, 900)):
        page.set_viewport_size({"width": width, "height": height})
        page.screenshot(path=SHOTS / f"edit-{width}.png")
        assert overflow(page) == []
        assert faint(page) == []
    field.fill(" ")
    page.keyboard.press("Enter")
    expect(field).to_be_focused()
    field.fill("And 5+5?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator(".reply").last).to_have_attribute("aria-busy", "false", timeout=TIMEOUT_MS)
    run = chat.wait("ready").transcript()
    asked = [message["content"] for message in run["request"]["messages"] if message["role"] == "user"]
    assert asked == ["What is 2+2?", "And 5+5?"]
    kept = first["prompt_ids"] + first["generated_ids"]
    assert run["prompt_ids"][: len(kept)] == kept
    assert run["timings"]["reused_tokens"] >= len(kept)


def test_a_reply_keeps_its_form(chat: ChatPage) -> None:
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    chat.set(max_tokens="60", response_format=SCHEMA)
    run = chat.reply("Which animal has eight legs?")
    reply = json.loads(chat.text())
    assert list(reply) == ["animal", "legs"]
    assert 0 <= reply["legs"] <= 100
    assert run["reason"] == "stop_token"
    assert json.loads(run["request"]["params"]["response_format"])["type"] == "json_schema"
    assert SCHEMA in run["request"]["params"]["response_format"], "as it was typed"
    chat.set(response_format="/(yes|no)/").reply("Is water wet?")
    assert chat.text() in ("yes", "no")
    chat.set(response_format="", stop="the\nsea", min_p="0.1", presence_penalty="-0.5", frequency_penalty="1")
    run = chat.reply("What do you know about the sea?")
    params = run["request"]["params"]
    assert params["stop"] == ["the", "sea"]
    assert (params["min_p"], params["presence_penalty"], params["frequency_penalty"]) == (0.1, -0.5, 1)
    chat.set(stop="", min_p="", presence_penalty="", frequency_penalty="")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Neither a JSON schema nor /a pattern/"),
        ("[]", "A schema is a JSON object."),
        ("/yes", "A pattern stands between two slashes"),
    ],
)
def test_a_form_that_cannot_be_read_is_wrong_at_once(chat: ChatPage, text: str, said: str) -> None:
    page = chat.set(response_format=text).page
    chat.ask("Hello")
    field = page.get_by_label("Form of the reply")
    expect(field).to_be_focused()
    expect(page.locator("#setting-response_format-wrong")).to_contain_text(said)
    field.fill("")
    page.keyboard.press("Escape")
    page.get_by_label("Message", exact=True).fill("")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"oneOf": []}', "response_format.json_schema.schema"),
        ("/(a/", "response_format.pattern"),
    ],
)
def test_a_form_that_cannot_be_enforced_is_told_at_its_field(chat: ChatPage, text: str, said: str) -> None:
    page = chat.set(response_format=text).page
    chat.ask("Hello")
    assert said in chat.expect_error("input.response_format")
    page.locator(".error").last.get_by_role("button", name="Settings").click()
    field = page.get_by_label("Form of the reply")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#setting-response_format-wrong")).to_contain_text(said)
    field.fill("")
    expect(field).to_have_attribute("aria-invalid", "false")
    page.keyboard.press("Escape")
    page.locator(".error").last.get_by_role("button", name="Edit the message").click()
    page.get_by_label("Message", exact=True).fill("")


def test_settings_are_few_until_more_are_asked_for(chat: ChatPage) -> None:
    page = chat.page
    page.get_by_role("button", name="Settings").click()
    page.locator("#settings .more").evaluate("(e) => (e.open = false)")
    assert page.locator("#settings .setting:visible").count() <= 8
    page.locator("#settings summary").focus()
    page.keyboard.press("Enter")
    names = ("Form of the reply", "Stop texts", "Min-p", "Repetition penalty", "Presence penalty")
    for name in (*names, "Frequency penalty", "Order of the filters", "Context budget", "Broken text"):
        expect(page.get_by_label(re.compile(f"^{name}"))).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        for width, height in ((400, 800), (1400, 900)):
            page.set_viewport_size({"width": width, "height": height})
            page.locator("#settings .more").scroll_into_view_if_needed()
            page.screenshot(path=SHOTS / f"more-{width}-{scheme}.png")
            assert overflow(page) == []
            assert faint(page) == []
    page.keyboard.press("Escape")


def test_going_on_through_the_client(chat: ChatPage) -> None:
    """A result, its transcript, or ids say the same; deltas and text are of the whole."""
    got = chat.page.evaluate(
        """async (content) => {
          const { SLM2 } = await import("./web/client.js");
          const slm = await SLM2.load({ executor: "wasm" });
          const messages = [{ role: "user", content }];
          const options = { temperature: 0.9, seed: 7, max_tokens: 8 };
          const whole = await slm.chat(messages, { ...options, max_tokens: 16 }).result;
          const first = await slm.chat(messages, options).result;
          const runs = [];
          for (const from of [
            { continue_from: first },
            { continue_from: first.transcript },
            { continue_ids: first.generated_ids },
            { continue_ids: Uint32Array.from(first.generated_ids) },
          ]) {
            const chat = slm.chat(messages, { ...options, ...from });
            const deltas = [];
            for await (const delta of chat) deltas.push(delta);
            const { text, generated_ids } = await chat.result;
            runs.push([deltas.join("") === text, text, generated_ids, chat.nTokens]);
          }
          const codes = [];
          const ended = await slm.chat(messages, { temperature: 0, max_tokens: 5, stop: "e" }).result;
          const last = await slm.chat([{ role: "user", content: "What is 2+2?" }], { temperature: 0 }).result;
          for (const [what, more] of [
            [ended, { stop: "e" }], [last], [first, { continue_ids: [1] }], [{}], ["{"], [7],
          ]) {
            try { await slm.chat(messages, { continue_from: what, ...more }).result; codes.push("no error"); }
            catch (error) { codes.push([error.code, error.detail.place]); }
          }
          for (const continue_ids of [[-1], [0.5], ["1"], "1", [2 ** 31 - 1]]) {
            try { await slm.chat(messages, { continue_ids }).result; codes.push("no error"); }
            catch (error) { codes.push([error.code, error.detail.place]); }
          }
          slm.dispose();
          return { whole, first, runs, codes, last };
        }""",
        QUESTION,
    )
    whole, first = got["whole"], got["first"]
    assert first["reason"] == "max_tokens"
    assert first["tool_calls"] == []
    assert first["logprobs"] is None
    assert got["last"]["detail"] == {"id": got["last"]["generated_ids"][-1]}
    expected = [True, whole["text"], whole["generated_ids"][8:], 8]
    assert got["runs"] == [expected] * 4
    assert got["codes"] == [
        ["input.params", "continue_ids"],
        ["input.params", f"continue_ids[{len(got['last']['generated_ids']) - 1}]"],
        ["input.params", "options.continue_ids"],
        *[["input.params", "options.continue_from"]] * 3,
        ["input.params", "options.continue_ids[0]"],
        ["input.params", "options.continue_ids[0]"],
        ["input.params", "options.continue_ids[0]"],
        ["input.params", "options.continue_ids"],
        ["input.token_id", "continue_ids[0]"],
    ]
    assert chat.complaints == []
