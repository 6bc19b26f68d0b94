"""Devices that fail: always a typed error or another device, never a wrong token and never a hang."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.conftest import Open, Serve

Damaged = Callable[[str, Callable[[bytes], bytes]], Path]

VECTOR = json.loads((Path(__file__).parents[1] / "unit" / "vectors" / "smollm2_greedy.json").read_bytes())

# A Replay whose one program copies the step's position through a buffer that can be taken away.
REPLAY = """async () => {
  const { Replay } = await import("./worker/gpu/replay.js");
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  const replay = new Replay(device);
  const { STORAGE, UNIFORM, COPY_SRC, COPY_DST } = GPUBufferUsage;
  replay.createBuffer("step", 16, UNIFORM | COPY_DST);
  for (const name of ["in", "out"]) replay.createBuffer(name, 16, STORAGE | COPY_SRC | COPY_DST);
  const code = `
    struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
    @group(0) @binding(0) var<uniform> step: Step;
    @group(0) @binding(1) var<storage, read> a: array<f32>;
    @group(0) @binding(2) var<storage, read_write> b: array<f32>;
    @compute @workgroup_size(1) fn main() { b[0] = a[0] + f32(step.pos); }`;
  const module = device.createShaderModule({ code });
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module } });
  const entries = ["step", "in", "out"].map((name, binding) =>
    ({ binding, resource: { buffer: replay.buffer(name) } }));
  const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
  replay.record("p", [{ pipeline, group, grid: [[0, 1, 1], [0, 1, 1], [0, 1, 1]] }]);
  await replay.check();
  const run = async (pos) => {
    try { return (await replay.run(["p"], [0, 1, pos, pos + 1], [], "out", 16))[0]; }
    catch (error) { return `${error.code}: ${error.message}`; }
  };
  const answers = [await run(7), await run(8)];
  if (HARM === "destroy a buffer") replay.buffer("in").destroy();
  else device.destroy();
  answers.push(await run(9), await run(10));
  return answers;
}"""


@pytest.fixture
def guest(chromium: Browser, url: str) -> Page:
    """An empty page of the site's origin."""
    page = chromium.new_context().new_page()
    page.route("**/guest.html", lambda r: r.fulfill(content_type="text/html", body="<!doctype html>"))
    page.goto(f"{url}guest.html")
    return page


@pytest.mark.parametrize(("harm", "code"), [("destroy a buffer", "device.limit"), ("lose", "device.lost")])
def test_failed_pass_gives_no_stale_values(guest: Page, harm: str, code: str) -> None:
    answers: list[Any] = guest.evaluate(REPLAY.replace("HARM", json.dumps(harm)))
    assert answers[:2] == [7, 8]
    assert [str(answer).split(":")[0] for answer in answers[2:]] == [code, code]


def replacing(right: str, wrong: str) -> Callable[[bytes], bytes]:
    """A change of a source file."""

    def change(data: bytes) -> bytes:
        assert right.encode() in data
        return data.replace(right.encode(), wrong.encode())

    return change


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("const instance =", "throw new Error('no start');\nconst instance ="),
        ("generation = now;", "generation = now; if (now > 3) throw new Error('no strength');"),
    ],
    ids=["at its start", "in a pass"],
)
def test_thread_that_fails_is_noticed(
    visit: Open, damaged: Damaged, serve: Serve, right: str, wrong: str
) -> None:
    site = damaged("worker/wasm/thread.js", replacing(right, wrong))
    chat = visit(serve(site).url, "?executor=wasm")
    if "start" not in wrong:
        chat.wait("ready")
        chat.set(temperature="0").ask("What is 2+2?")
    expect(chat.page.get_by_text("device.worker").first).to_be_visible(timeout=60_000)


def test_digests_are_made_by_the_last_thread(visit: Open, damaged: Damaged, serve: Serve) -> None:
    """Of one that makes none, the transcript has what lay there: nobody makes them a second time."""
    right = "makeDigest(exports, areas, words[WORDS.logits_bytes]);"
    site = damaged("worker/wasm/thread.js", replacing(right, "areas;"))
    chat = visit(serve(site).url, "?executor=wasm").wait("ready").set(temperature="0", max_tokens="3")
    assert chat.reply("What is 2+2?")["logit_digests"] == ["0" * 64] * 3


@pytest.mark.parametrize(
    "gpu",
    [
        "undefined",
        "{ wgslLanguageFeatures: new Set(), requestAdapter: async () => null }",
        "{ requestAdapter: async () => null }",
        "{ wgslLanguageFeatures: new Set(['packed_4x8_integer_dot_product']),"
        " requestAdapter: async () => { throw new Error('nope'); } }",
        "{ wgslLanguageFeatures: new Set(['packed_4x8_integer_dot_product']),"
        " requestAdapter: async () => ({ requestDevice: async () => { throw new Error('no device'); } }) }",
    ],
    ids=["none", "no features", "early", "adapter refused", "device refused"],
)
def test_auto_takes_wasm_whatever_webgpu_does(visit: Open, damaged: Damaged, serve: Serve, gpu: str) -> None:
    stub = f"Object.defineProperty(navigator, 'gpu', {{ value: {gpu} }});\n"
    site = damaged("worker/worker.js", lambda data: stub.encode() + data)
    chat = visit(serve(site).url).wait("ready")
    expect(chat.page.locator("#runs")).to_contain_text("WebAssembly")
    run = chat.set(temperature="0", max_tokens="2").reply("What is 2+2?")
    assert run["generated_ids"] == VECTOR["greedy_new_ids"][:2]
