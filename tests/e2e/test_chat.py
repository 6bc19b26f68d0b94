"""A person chats: the reply is the reference's, token for token; it can be stopped, continued, begun anew."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, expect

from e2e.chatpage import ChatPage
from e2e.conftest import ROOT

VECTOR = json.loads((Path(__file__).parents[1] / "unit" / "vectors" / "smollm2_greedy.json").read_bytes())
QUESTION = "What is 2+2?"
ANSWER = VECTOR["text"].removesuffix("<|im_end|>")


@pytest.fixture(scope="module")
def reference_digests(packed_smollm2: Path) -> list[str]:
    """What the command line's reference computes for the same question."""
    request = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "params": {"temperature": 0}})
    command = [sys.executable, "-m", "slm2_web.cli", "generate", "--model", str(packed_smollm2)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "py")}
    done = subprocess.run(command, input=request, env=env, capture_output=True, text=True, check=True)
    run = json.loads(done.stdout)
    assert run["executor"]["name"] == "reference"
    assert run["generated_ids"] == VECTOR["greedy_new_ids"]
    digests: list[str] = run["logit_digests"]
    return digests


# What each executor is called on the page, and the stages of its own.
EXECUTORS = {"webgpu": ("WebGPU", ["upload", "compile"]), "wasm": ("WebAssembly · SIMD, ", [])}


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    """Every test of this module is run on each."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def chat(executor: str, context: BrowserContext, url: str) -> ChatPage:
    """The demo page on one executor."""
    return ChatPage(context, url).open(f"?executor={executor}").wait("ready")


def test_loading_tells_what_it_did(chat: ChatPage, executor: str) -> None:
    title, own_stages = EXECUTORS[executor]
    stages = chat.stages()
    assert list(stages) == ["runtime", "numpy", "package", "weights", "self_test", *own_stages]
    print("cold load:", stages, chat.page.locator("#loading-title").inner_text())
    print(chat.page.locator("#notes").text_content())
    for stage, figure in stages.items():
        assert re.search(r"\d\.\d s$", figure), (stage, figure)
    assert re.match(r"\d+\.\d MB(, \d+\.\d from cache| from cache)? · ", stages["weights"])
    expect(chat.page.locator("#runs")).to_contain_text(f"SmolLM2 135M Instruct · {title}")


def test_greedy_reply_is_the_reference_s(chat: ChatPage, executor: str, reference_digests: list[str]) -> None:
    run = chat.set(temperature="0").reply(QUESTION)
    assert run["prompt_ids"] == VECTOR["prompt_ids"]
    assert run["generated_ids"] == VECTOR["greedy_new_ids"]
    assert run["reason"] == "stop_token"
    assert run["executor"]["name"] == executor
    assert run["logit_digests"] == reference_digests, "the same bits at every step"
    assert chat.text() == ANSWER
    expect(chat.page.locator("#announcer")).to_have_text(ANSWER)
    meta = chat.page.locator(".meta").last.inner_text()
    print(meta, run["timings"])
    assert f"{len(run['generated_ids'])} tokens" in meta


def test_second_turn_continues_the_conversation(chat: ChatPage) -> None:
    run = chat.set(max_tokens="4").reply("And 3+3?")
    first = VECTOR["prompt_ids"] + VECTOR["greedy_new_ids"]
    assert run["prompt_ids"][: len(first)] == first
    assert run["timings"]["reused_tokens"] >= len(first) - 1, "the cache holds what was said"
    assert run["reason"] in ("max_tokens", "stop_token")
    expect(chat.page.locator(".turn")).to_have_count(2)


def test_new_chat_forgets(chat: ChatPage) -> None:
    chat.page.get_by_role("button", name="New chat").click()
    expect(chat.page.locator(".turn")).to_have_count(0)
    expect(chat.page.get_by_label("Message")).to_be_focused()
    run = chat.set(max_tokens="1").reply(QUESTION)
    assert run["prompt_ids"] == VECTOR["prompt_ids"]
    assert run["generated_ids"] == VECTOR["greedy_new_ids"][:1]
    assert run["reason"] == "max_tokens"


def test_escape_stops_the_reply(chat: ChatPage) -> None:
    chat.set(max_tokens="500").ask("Write a long story about the sea.")
    expect(chat.page.locator(".reply .text").last).not_to_be_empty(timeout=60_000)
    chat.page.keyboard.press("Escape")
    chat.wait("ready")
    expect(chat.page.get_by_label("Message")).to_be_focused()
    run = chat.transcript()
    assert run["reason"] == "cancelled"
    assert len(run["generated_ids"]) < 400
    expect(chat.page.locator(".meta").last).to_contain_text("stopped")


def test_nothing_asks_another_origin(chat: ChatPage) -> None:
    assert len(chat.requests) > 15
    origin = urlsplit(chat.url)
    foreign = [u for u in chat.requests if u.startswith("http") and urlsplit(u)[:2] != origin[:2]]
    assert foreign == []


def test_nothing_complained(chat: ChatPage) -> None:
    assert chat.complaints == []
