"""Calls of tools on the page: shown as what they are, part of the conversation and of its transcript."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from e2e.chatpage import TIMEOUT_MS, ChatPage
from e2e.conftest import ROOT, Serve
from e2e.test_page import SHOTS, faint, overflow
from scripted_model import CALL, SAID, THOUGHT, make_scripted_model
from slm2_web import transcript
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.site import build_site
from slm2_web.compile.tokenizer_json import compile_tokenizer_json


@pytest.fixture(scope="module")
def chat(
    qwen3_json: Path, tmp_path_factory: pytest.TempPathFactory, chromium: Browser, serve: Serve
) -> ChatPage:
    """The demo page with a model that calls a tool, greedily."""
    folder = tmp_path_factory.mktemp("calls")
    packed = make_scripted_model(folder, compile_tokenizer_json(qwen3_json.read_bytes()))
    build_site(ROOT, folder / "site", [packed], Fetcher.from_environment(ROOT), print)
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    chat = ChatPage(context, serve(folder / "site").url).open("?executor=wasm").wait("ready")
    return chat.set(temperature="0", max_tokens="40")


def test_a_call_is_shown_with_its_name_and_arguments(chat: ChatPage, tmp_path: Path) -> None:
    page = chat.page
    run = chat.reply("Rain?")
    assert (run["reasoning"], run["text"], run["tool_calls"]) == (THOUGHT, SAID, [CALL])
    recorded = transcript.parse(json.dumps(run).encode())
    assert transcript.check_unaltered(recorded) is None
    call = page.get_by_role("figure", name="Calls weather")
    expect(call).to_be_visible()
    expect(call.locator("pre")).to_have_text(CALL["arguments"])
    assert chat.text() == SAID
    SHOTS.mkdir(exist_ok=True)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        for width, height in ((400, 800), (1400, 900)):
            page.set_viewport_size({"width": width, "height": height})
            page.screenshot(path=SHOTS / f"call-{width}-{scheme}.png")
            assert overflow(page) == []
            assert faint(page) == []
    shown = page.locator("#log").inner_text()
    page.reload()
    chat.wait("ready")
    assert page.locator("#log").inner_text() == shown

    # It is part of the conversation.
    then = chat.reply("And now?")
    assert then["request"]["messages"][1] == {
        "role": "assistant",
        "content": SAID,
        "reasoning_content": THOUGHT,
        "tool_calls": [CALL],
    }
    (tmp_path / "run.json").write_text(json.dumps(then))
    for name, verdict in {
        "": "As in the transcript, bit for bit",
        "tomorrow": "Differs from the transcript: tool_calls",
    }.items():
        page.get_by_role("button", name="New chat").click()
        calls = [{**CALL, "name": name}] if name else then["tool_calls"]
        (tmp_path / "run.json").write_text(json.dumps({**then, "tool_calls": calls}))
        page.locator("#transcript").set_input_files(tmp_path / "run.json")
        expect(page.locator(".verdict")).to_have_text(verdict, timeout=60_000)
        chat.wait("ready")


def test_what_is_no_call_is_shown_as_such_and_goes_on(chat: ChatPage) -> None:
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    run = chat.set(max_tokens="9").reply("Rain?")
    said = "the reply ended inside the call"
    assert run["tool_calls"] == [{"text": '{"name":"', "error": said}]
    call = page.get_by_role("figure", name=f"Wrote a call that is none: {said}")
    expect(call.locator("pre")).to_have_text('{"name":"')
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("figure", name="Calls weather")).to_be_visible(timeout=TIMEOUT_MS)
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)
    assert chat.wait("ready").transcript()["tool_calls"] == [CALL]


def test_a_thought_that_was_cut_goes_on(chat: ChatPage) -> None:
    """One that ends before the first word of its thought is no part of the conversation, but its ids are not
    lost; a thought without an answer is part of it."""
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    chat.set(max_tokens="1").ask("Rain?")
    expect(page.locator(".meta")).to_contain_text("cut: longest reply reached before the first word")
    expect(page.locator(".dropped")).to_have_count(1)
    for n_tokens, thought, text in (2, THOUGHT, ""), (3, THOUGHT, ""), (4, THOUGHT, "I"):
        page.get_by_role("button", name="Continue").click()
        expect(page.locator(".meta")).to_contain_text(f"{n_tokens} tokens")
        page.get_by_role("button", name="Save transcript").wait_for()
        run = chat.wait("ready").transcript()
        assert (run["reasoning"], run["text"]) == (thought, text)
        assert (len(run["request"]["continue_ids"]), len(run["generated_ids"])) == (n_tokens - 1, 1)
        assert page.get_by_text("interrupted while thinking").count() == (text == "")
    expect(page.locator(".dropped")).to_have_count(0)


def test_the_longest_thought(chat: ChatPage) -> None:
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    run = chat.set(max_tokens="5", max_reasoning_tokens="0").reply("Rain?")
    assert (run["reasoning"], run["request"]["params"]["max_reasoning_tokens"]) == ("", 0)
    assert chat.says(run["text"])
    assert chat.complaints == []
