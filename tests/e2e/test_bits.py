"""Chromium's bits are CPython's: two turns of 64 steps on the page, by WebGPU (Tint) and by wasm, run again.

A random tiny Qwen3 and Qwen2 beside SmolLM2, on one site. The command line runs each transcript again from
the prompt's ids alone and compares all logits; a second turn, which the page began with a cache in use,
begins with an empty one there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from e2e.conftest import ROOT, Serve
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.pack_hf import pack_hf
from slm2_web.compile.site import build_site
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_safetensors import make_tiny_hf

N_STEPS = 64
TINY = ("qwen3", "qwen2")
QUESTIONS = ["What is the capital of France?", "And of the other side of the street?"]

CHAT = """async ({ model, executor, questions, max_tokens }) => {
  const { SLM2 } = await import("./web/client.js");
  const slm = await SLM2.load({ model, executor });
  const messages = [], transcripts = [];
  for (const content of questions) {
    messages.push({ role: "user", content });
    const { text, transcript } = await slm.chat(messages, { temperature: 0, max_tokens }).result;
    messages.push({ role: "assistant", content: text });
    transcripts.push(transcript);
  }
  slm.dispose();
  return transcripts;
}"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, packed_smollm2: Path) -> dict[str, Path]:
    """Packed models by name."""
    folder = tmp_path_factory.mktemp("models")
    packed = {packed_smollm2.name: packed_smollm2}
    for architecture in TINY:
        plain = make_tiny_hf(folder / "plain" / architecture, architecture, seed=6)
        tokenizer = Tokenizer.from_bytes(plain.compile_tokenizer(b""))
        # A reply ends at bytes that are no text and at a marker: those tokens get the logit 0.
        embed = plain.weights["model.embed_tokens.weight"].copy()
        for i in range(tokenizer.n_tokens):
            if tokenizer.is_control(i) or not all(32 <= byte < 127 for byte in tokenizer.token_bytes(i)):
                embed[i] = 0
        made = make_tiny_hf(
            folder / "made" / architecture,
            architecture,
            seed=6,
            tensors={"model.embed_tokens.weight": embed.astype(np.float32)},
            config={"max_position_embeddings": 512},
        )
        packed[made.spec.name] = folder / made.spec.name
        pack_hf(made.files, folder / made.spec.name, made.spec, compile_tokenizer=made.compile_tokenizer)
    return packed


@pytest.fixture(scope="module")
def page(
    chromium: Browser, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, serve: Serve
) -> Iterator[Page]:
    """An empty page of a site with all the models."""
    out = tmp_path_factory.mktemp("bits") / "site"
    build_site(ROOT, out, list(models.values()), Fetcher.from_environment(ROOT), print)
    context = chromium.new_context()
    page = context.new_page()
    page.route("**/guest.html", lambda r: r.fulfill(content_type="text/html", body="<!doctype html>"))
    page.goto(f"{serve(out).url}guest.html")
    yield page
    context.close()


def replay(directory: Path, executor: str, transcripts: list[str]) -> list[dict[str, Any]]:
    """What the command line says of transcripts."""
    command = [sys.executable, "-m", "slm2_web.cli", "replay", "--jsonl", "--model", str(directory)]
    lines = "".join(json.dumps(json.loads(text)) + "\n" for text in transcripts)
    done = subprocess.run(
        [*command, "--executor", executor],
        input=lines,
        env={**os.environ, "PYTHONPATH": str(ROOT / "py")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("executor", ["webgpu", "wasm"])
@pytest.mark.parametrize("name", [f"tiny-{architecture}" for architecture in TINY])
def test_two_turns_are_the_references(page: Page, models: dict[str, Path], name: str, executor: str) -> None:
    asked = {"model": name, "executor": executor, "questions": QUESTIONS, "max_tokens": N_STEPS}
    transcripts = page.evaluate(CHAT, asked)
    first, second = map(json.loads, transcripts)
    for run in (first, second):
        assert run["executor"]["name"] == executor
        assert len(run["generated_ids"]) == len(set(run["logit_digests"])) == N_STEPS
    assert second["timings"]["reused_tokens"] >= len(first["prompt_ids"]) + N_STEPS - 1
    assert replay(models[name], "reference", transcripts) == [{"equal": True}] * 2


def test_smollm2_on_webgpu_is_wasms(page: Page, models: dict[str, Path]) -> None:
    """A real model for 64 steps on an adapter of software, and again by the command line's wasm."""
    name = "smollm2-135m"
    asked = {"model": name, "questions": ["Write a long story about the sea."], "max_tokens": N_STEPS}
    (text,) = page.evaluate(CHAT, {**asked, "executor": "webgpu"})
    assert len(json.loads(text)["generated_ids"]) == N_STEPS
    assert replay(models[name], "wasm", [text]) == [{"equal": True}]
