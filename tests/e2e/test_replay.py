"""worker/gpu/replay.js by itself: a browser that looks seldom for finished work is told to look."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser

# Three passes whose values take 40 ms to be mapped; how often nothing was submitted in each, and afterwards.
PASSES = """async () => {
  const map = GPUBuffer.prototype.mapAsync;
  GPUBuffer.prototype.mapAsync = async function (...parameters) {
    await new Promise((resolve) => setTimeout(resolve, 40));
    return map.apply(this, parameters);
  };
  const submit = GPUQueue.prototype.submit;
  let pokes = 0;
  GPUQueue.prototype.submit = function (commands) {
    if (!commands.length) pokes++;
    return submit.call(this, commands);
  };
  const { Replay } = await import("./worker/gpu/replay.js");
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const replay = new Replay(device);
  const { STORAGE, UNIFORM, COPY_SRC, COPY_DST } = GPUBufferUsage;
  replay.createBuffer("step", 16, UNIFORM | COPY_SRC | COPY_DST);
  replay.createBuffer("out", 1024, STORAGE | COPY_SRC | COPY_DST);
  const answers = [];
  for (const value of [7, 8, 9]) {
    replay.write("out", 0, new Uint8Array(new Float32Array([value]).buffer));
    pokes = 0;
    const values = await replay.run([], [0, 1, 0, 1], [], "out", value === 9 ? 16 : 1024);
    answers.push([values[0], values.length, pokes]);
  }
  pokes = 0;
  await new Promise((resolve) => setTimeout(resolve, 60));
  replay.dispose();
  return [answers, pokes];
}"""
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0"


@pytest.mark.parametrize("user_agent", [None, FIREFOX], ids=["Chromium", "Firefox"])
def test_only_firefox_is_poked(chromium: Browser, url: str, user_agent: str | None) -> None:
    context = chromium.new_context(user_agent=user_agent)
    page = context.new_page()
    page.route("**/guest.html", lambda r: r.fulfill(content_type="text/html", body="<!doctype html>"))
    page.goto(f"{url}guest.html")
    found: tuple[list[list[Any]], int] = page.evaluate(PASSES)
    context.close()
    answers, afterwards = found
    assert [(value, length) for value, length, _ in answers] == [(7, 256), (8, 256), (9, 4)]
    for _, _, pokes in answers:
        assert (4 <= pokes <= 40) if user_agent else pokes == 0
    assert afterwards <= 1
