"""A page that is not ours, with client.js, and harm that can be done to its engine's worker."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser, Page, Route

# What the page gets besides `client`: `question`; `ask`, which gives a result with the parsed transcript, or
# an error as data; `harm`, which changes what goes wrong in the engine's worker; `loose`, what nobody caught.
GUEST = """
  globalThis.loose = [];
  addEventListener("unhandledrejection", ({ reason }) => loose.push(String(reason)));
  addEventListener("error", ({ message }) => loose.push(message));
  globalThis.client = await import("./web/client.js");
  globalThis.question = [{ role: "user", content: "What is the capital of France?" }];
  globalThis.ask = async (slm, options = {}) => {
    try {
      const { onStart, ...rest } = options;
      const chat = slm.chat(question, { temperature: 0, max_tokens: 12, ...rest });
      onStart?.(chat);
      let text = "";
      for await (const delta of chat) text += delta;
      const { transcript, ...result } = await chat.result;
      return { ...result, same: text === result.text, run: JSON.parse(transcript) };
    } catch (error) {
      return { code: error.code, message: error.message, detail: error.detail };
    }
  };
  const line = new BroadcastChannel("harm");
  globalThis.harm = (what) => {
    const done = new Promise((resolve) => (line.onmessage = resolve));
    line.postMessage(what);
    return done;
  };
"""

# In the engine's worker, before anything of ours. `harm` says what goes wrong from now on:
#   lostAfter     submissions to the GPU until the last device is destroyed
#   vanishAfter   until it only says that it is lost
#   fullAfter     until one runs out of memory
#   doomed        each device is destroyed at its first submission
#   unplugged     no adapter is offered
#   refuse        how often a shared memory may not grow
#   failAt        the pass in which a thread fails that is started from now on
#   now           "lose": the last device is destroyed; "end": the worker ends itself
HARM = """
const harm = {};
{
  const devices = [];
  const vanish = new WeakMap();
  const due = (name) => harm[name] > 0 && --harm[name] === 0;
  const wrap = (type, name, make) => { type.prototype[name] = make(type.prototype[name]); };
  wrap(GPU, "requestAdapter", (request) => async function (...args) {
    return harm.unplugged ? null : request.apply(this, args);
  });
  wrap(GPUAdapter, "requestDevice", (request) => async function (...args) {
    const device = await request.apply(this, args);
    const lost = device.lost;
    Object.defineProperty(device, "lost", { value: new Promise((resolve) => {
      lost.then(resolve);
      vanish.set(device, () => resolve({ reason: "unknown", message: "the driver was reset" }));
    }) });
    devices.push(device);
    return device;
  });
  wrap(GPUQueue, "submit", (submit) => function (buffers) {
    submit.call(this, buffers);
    if (harm.doomed || due("lostAfter")) devices.at(-1).destroy();
    if (due("vanishAfter")) vanish.get(devices.at(-1))();
    if (due("fullAfter")) harm.full = true;
  });
  wrap(GPUDevice, "popErrorScope", (pop) => async function () {
    const error = await pop.call(this);
    if (!harm.full) return error;
    harm.full = false;
    return new GPUOutOfMemoryError("no more memory");
  });
  wrap(WebAssembly.Memory, "grow", (grow) => function (pages) {
    const ours = this.buffer instanceof SharedArrayBuffer;
    if (ours && harm.refuse > 0) { harm.refuse -= 1; throw new RangeError("no more pages"); }
    return grow.call(this, pages);
  });
  wrap(MessagePort, "postMessage", (post) => function (message, ...rest) {
    post.call(this, message?.words ? { ...message, failAt: harm.failAt } : message, ...rest);
  });
  const line = new BroadcastChannel("harm");
  line.onmessage = ({ data }) => {
    Object.assign(harm, data);
    if (data.now === "lose") devices.at(-1).destroy();
    line.postMessage("done");
    if (data.now === "end") self.close();
  };
}
"""

# What makes a thread of worker/wasm/thread.js fail in that pass.
MORTAL = (
    ("async function work({", "async function work({ failAt,"),
    ("generation = now;", "generation = now; if (now === failAt) throw new Error('no strength');"),
)


def mortal_threads(source: bytes) -> bytes:
    """worker/wasm/thread.js with a weakness that HARM knows how to use."""
    for right, wrong in MORTAL:
        assert right.encode() in source
        source = source.replace(right.encode(), wrong.encode())
    return source


def wait_for_no_workers(page: Page) -> None:
    """Until the driver has heard of the end of each worker of the page."""
    for _ in range(200):
        if not page.workers:
            return
        page.wait_for_timeout(50)
    raise AssertionError([worker.url for worker in page.workers])


def open_guest(browser: Browser, url: str, harm: str | None = None) -> Page:
    """An empty page of the site's origin with GUEST; with `harm`, HARM and these lines begin the worker."""
    context = browser.new_context()
    isolated = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
    context.route(
        "**/guest.html",
        lambda route: route.fulfill(content_type="text/html", headers=isolated, body="<!doctype html>"),
    )

    def harmful(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=f"{HARM}\n{harm}\n{response.text()}")

    if harm is not None:
        context.route("**/worker/worker.js", harmful)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{url}guest.html")
    page.evaluate(f"async () => {{ {GUEST} }}")
    return page


def comparable(reply: dict[str, Any]) -> Any:
    """What must be the same wherever a reply is made; of an error, all of it."""
    return (reply["reason"], reply["run"]["sha256"]) if "run" in reply else reply
