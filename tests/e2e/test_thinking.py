"""A model that thinks, on the page: folded thoughts, the settings for them, and tools through client.js.

The model is tiny and random, and has the vocabulary and the template of Qwen3 (thinking_model.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from e2e.chatpage import ChatPage
from e2e.conftest import ROOT, Serve
from e2e.test_page import SHOTS, faint, overflow
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.site import build_site
from slm2_web.compile.tokenizer_json import compile_tokenizer_json
from slm2_web.packed import PackedModel
from slm2_web.request import parse_request, prompt_of
from slm2_web.sampling2.params import parse_params
from slm2_web.template2.machine import template_for
from slm2_web.tokenizer2.tokenizer import Tokenizer
from thinking_model import ANSWER, HELLO, PARAMS, THOUGHT, make_thinking_model

THINK, THINK_END = 151667, 151668
TOOLS = '[{"type": "function", "function": {"name": "weather", "most": 1.0, "städte": ["Zürich"]}}]'


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, qwen3_json: Path) -> Path:
    """The model's folder."""
    tokenizer_file = compile_tokenizer_json(qwen3_json.read_bytes())
    return make_thinking_model(tmp_path_factory.mktemp("thinking"), tokenizer_file)


@pytest.fixture(scope="module")
def chat(packed: Path, tmp_path_factory: pytest.TempPathFactory, chromium: Browser, serve: Serve) -> ChatPage:
    """The demo page with that model alone."""
    out = tmp_path_factory.mktemp("site") / "site"
    build_site(ROOT, out, [packed], Fetcher.from_environment(ROOT), print)
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    return ChatPage(context, serve(out).url).open("?executor=wasm").wait("ready")


def choose(chat: ChatPage, name: str, value: str) -> None:
    """One of the settings that are a choice."""
    page = chat.open_settings().page
    page.locator(f"[name={name}]").select_option(value)
    page.get_by_role("button", name="Close").click()


def test_a_thought_is_folded_and_is_no_part_of_the_answer(chat: ChatPage) -> None:
    page = chat.page
    run = chat.set(**{name: str(value) for name, value in PARAMS.items()}).reply(HELLO)
    assert (run["reasoning"], run["text"], run["reason"]) == (THOUGHT, ANSWER, "stop_token")
    assert run["request"]["enable_thinking"] is None
    assert page.locator(".reply .text").text_content() == ANSWER.strip()  # as markdown
    expect(page.locator("#announcer")).to_have_text(ANSWER)
    thought = page.locator(".thought p")
    expect(thought).to_be_hidden()
    page.locator(".thought summary").focus()
    page.keyboard.press("Enter")
    expect(thought).to_be_visible()
    assert thought.text_content() == THOUGHT
    SHOTS.mkdir(exist_ok=True)
    for width, height in ((400, 800), (1400, 900)):
        page.set_viewport_size({"width": width, "height": height})
        page.screenshot(path=SHOTS / f"thought-{width}.png")
        assert overflow(page) == []
        assert faint(page) == []
        left = "e => e.getBoundingClientRect().left"
        assert page.locator(".reply .text").evaluate(left) == page.locator(".thought").evaluate(left)


def test_the_next_prompt_keeps_the_thought_only_when_it_is_told_to(chat: ChatPage) -> None:
    page = chat.page
    first = chat.transcript()
    said = [*first["prompt_ids"], THINK]  # it thinks without the line feeds that the template writes
    page.reload()
    chat.wait("ready")
    assert page.locator(".thought p").text_content() == THOUGHT, "a reload keeps it"
    for value, kept in (("false", False), ("true", True)):
        choose(chat, "preserve_thinking", value)
        chat.set(max_tokens="3")
        run = chat.reply("Again?") if value == "false" else answer_again(chat)
        assert run["request"]["preserve_thinking"] is kept
        assert run["request"]["messages"][1] == {
            "role": "assistant",
            "content": ANSWER,
            "reasoning_content": THOUGHT,
        }
        assert (run["prompt_ids"][: len(said)] == said) is kept
        assert (THINK in run["prompt_ids"]) is kept
    choose(chat, "enable_thinking", "false")
    run = answer_again(chat)
    assert run["request"]["enable_thinking"] is False
    assert run["prompt_ids"][-4:] == [THINK, 271, THINK_END, 271], "the thought is there, and empty"


def test_a_reply_that_ends_in_its_thought_stays_in_the_conversation(chat: ChatPage) -> None:
    """Shown as interrupted, kept over a reload, and in the next request."""
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    choose(chat, "enable_thinking", "")
    run = chat.set(**{name: str(value) for name, value in {**PARAMS, "max_tokens": 2}.items()}).reply(HELLO)
    assert (run["reason"], run["text"]) == ("max_tokens", "")
    thought = run["reasoning"]
    assert thought
    assert THOUGHT.startswith(thought)
    for _ in ("at once", "after a reload"):
        expect(page.locator(".turn .meta")).to_contain_text("interrupted while thinking")
        expect(page.locator(".turn.dropped")).to_have_count(0)
        expect(page.get_by_role("button", name="Continue")).to_be_visible()
        assert page.locator(".thought p").text_content() == thought
        page.screenshot(path=SHOTS / "thought-interrupted.png")
        page.reload()
        chat.wait("ready")
    again = chat.set(max_tokens="3").reply("Again?")
    assert [(m["role"], m["content"]) for m in again["request"]["messages"]] == [
        ("user", HELLO),
        ("assistant", ""),
        ("user", "Again?"),
    ]
    assert again["request"]["messages"][1]["reasoning_content"] == thought
    page.get_by_role("button", name="New chat").click()


def answer_again(chat: ChatPage) -> dict[str, Any]:
    chat.page.get_by_role("button", name="Answer again").click()
    return chat.wait("ready").transcript()


def test_the_settings_are_named(chat: ChatPage) -> None:
    page = chat.open_settings().page
    for name in ("Thinking", "Earlier thoughts", "Longest thought"):
        expect(page.get_by_label(re.compile(f"^{name}"))).to_be_visible()
    page.locator("[name=enable_thinking]").scroll_into_view_if_needed()
    page.screenshot(path=SHOTS / "thinking-settings.png")
    page.keyboard.press("Escape")


def test_tools_calls_and_thoughts_through_the_client(chat: ChatPage, packed: Path, tmp_path: Path) -> None:
    """What crosses is what Python would have read; the transcript replays on the page."""
    page = chat.page
    got = page.evaluate(
        """async ([tools, hello, params]) => {
          const { SLM2 } = await import("./web/client.js");
          const slm = await SLM2.load({ executor: "wasm" });
          const thoughts = [];
          const question = [{ role: "user", content: hello }];
          const chat = slm.chat(question, { ...params, onReasoning: (delta) => thoughts.push(delta) });
          const deltas = [];
          for await (const delta of chat) deltas.push(delta);
          const first = await chat.result;
          const messages = [
            { role: "user", content: "Rain?" },
            {
              role: "assistant",
              content: null,
              reasoning_content: "I look it up.",
              tool_calls: [
                { type: "function", id: "1", function: { name: "weather", arguments: '{"days":1.0}' } },
                { name: "weather", arguments: { days: 1.0, ort: "Zürich" } },
              ],
            },
            { role: "tool", tool_call_id: "1", content: "</tool_response> wet" },
            { role: "tool", content: "dry" },
          ];
          const called = await slm.chat(messages, { ...params, tools, enable_thinking: true }).result;
          const { template } = slm.info;
          slm.dispose();
          return { thoughts, deltas, first, called, template };
        }""",
        [TOOLS, HELLO, PARAMS],
    )
    assert got["template"] == {"family": "qwen3", "thinking": True, "preserve_thinking": True, "tools": True}
    assert ("".join(got["thoughts"]), "".join(got["deltas"])) == (THOUGHT, ANSWER)
    assert (got["first"]["reasoning_content"], got["first"]["text"]) == (THOUGHT, ANSWER)

    run = json.loads(got["called"]["transcript"])
    model = PackedModel.open(packed)
    tokenizer = Tokenizer.from_bytes(model.tokenizer_bytes)
    messages = [
        {"role": "user", "content": "Rain?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I look it up.",
            "tool_calls": [
                {"name": "weather", "arguments": '{"days":1.0}'},
                {"name": "weather", "arguments": {"days": 1, "ort": "Zürich"}},
            ],
        },
        {"role": "tool", "content": "</tool_response> wet"},
        {"role": "tool", "content": "dry"},
    ]
    raw = {"messages": messages, "tools": json.loads(TOOLS), "enable_thinking": True}
    request = parse_request(raw, parse_params(PARAMS, {}), run["request"]["max_seq_len"])
    prompt = prompt_of(request, template_for(model.manifest.template, tokenizer), tokenizer)
    assert run["prompt_ids"] == prompt.ids
    assert run["request"]["tools"] == [TOOLS[1:-1]], "1.0 is still 1.0"
    text = tokenizer.decode(prompt.ids).decode()
    assert '"arguments": {"days":1.0}}' in text
    assert '"arguments": {"days": 1, "ort": "Zürich"}}' in text

    page.get_by_role("button", name="New chat").click()
    (tmp_path / "run.json").write_text(got["called"]["transcript"])
    page.locator("#transcript").set_input_files(tmp_path / "run.json")
    expect(page.locator(".verdict")).to_have_text("As in the transcript, bit for bit", timeout=60_000)
    chat.wait("ready")
    assert chat.complaints == []
