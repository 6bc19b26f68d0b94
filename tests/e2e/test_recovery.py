"""A device that fails under a loaded model: the reply goes on with the same tokens, or a typed error ends it
and the next one is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from e2e.guest import comparable, open_guest, wait_for_no_workers

LOAD = "async (o) => (globalThis.slm = await client.SLM2.load({ model: 'tiny', ...o })).info"
# A software adapter that says it is none: `auto` measures it, and takes it where wasm gets no memory.
DISGUISED = """
for (const key of ["vendor", "architecture", "description"]) {
  Object.defineProperty(GPUAdapterInfo.prototype, key, { value: "plausible" });
}
Object.defineProperty(GPUAdapterInfo.prototype, "isFallbackAdapter", { value: false });
"""
# It ends when it has said something.
ENDS_EARLY = """
const say = self.postMessage;
self.postMessage = (...args) => { say.apply(self, args); setTimeout(() => self.close(), 50); };
"""


def opened(browser: Browser, url: str, executor: str, harm: str) -> Iterator[Page]:
    page = open_guest(browser, url, harm)
    info = page.evaluate(LOAD, {"executor": executor})
    assert info["executor"] == ("webgpu" if executor == "auto" else executor)
    yield page
    assert page.evaluate("loose") == []
    page.evaluate("() => slm.dispose()")
    wait_for_no_workers(page)
    page.context.close()


@pytest.fixture(scope="module")
def wasm(chromium: Browser, tiny_url: str) -> Iterator[Page]:
    """A page with two threads, of which one fails in the seventh pass."""
    yield from opened(chromium, tiny_url, "wasm", "harm.failAt = 7;")


@pytest.fixture(scope="module")
def webgpu(chromium: Browser, tiny_url: str) -> Iterator[Page]:
    """A page on WebGPU."""
    yield from opened(chromium, tiny_url, "webgpu", DISGUISED)


@pytest.fixture(scope="module")
def auto(chromium: Browser, tiny_url: str) -> Iterator[Page]:
    """A page whose `auto` took WebGPU, since wasm got no memory."""
    yield from opened(chromium, tiny_url, "auto", f"{DISGUISED} harm.refuse = 1;")


def ask(page: Page, harm: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """A reply during which there is harm."""
    reply: dict[str, Any] = page.evaluate(
        "async ([what, options]) => { await harm(what); return ask(slm, options); }", [harm or {}, options]
    )
    return reply


def losses(reply: dict[str, Any]) -> list[tuple[str, int, str]]:
    """(code, tokens before it, executor after it) of each."""
    return [(loss["code"], loss["n_tokens"], loss["executor"]) for loss in reply["stats"]["losses"]]


@pytest.fixture(scope="module")
def healthy(webgpu: Page) -> Any:
    """The reply of a device that doesn't fail."""
    reply = ask(webgpu)
    assert reply["reason"] == "max_tokens"
    assert reply["same"]
    assert losses(reply) == []
    return comparable(reply)


# 78 tokens are read in five passes of sixteen; then there is a pass for each token.
@pytest.mark.parametrize(
    ("harm", "code", "n_tokens"),
    [
        ({"now": "lose"}, "device.lost", 0),
        ({"lostAfter": 1}, "device.lost", 0),
        ({"lostAfter": 6}, "device.lost", 6),
        ({"vanishAfter": 6}, "device.lost", 6),
        ({"fullAfter": 6}, "device.out_of_memory", 6),
    ],
    ids=["idle", "while reading", "while writing", "by its promise", "out of memory"],
)
def test_reply_goes_on_when_the_gpu_is_lost(
    webgpu: Page, healthy: Any, harm: dict[str, Any], code: str, n_tokens: int
) -> None:
    before = webgpu.evaluate("slm.info")
    # Another question, or all but the last id of the prompt would be in the cache.
    webgpu.evaluate(
        "async () => { await slm.chat([{ role: 'user', content: 'A' }], { max_tokens: 1 }).result; }"
    )
    reply = ask(webgpu, harm)
    assert comparable(reply) == healthy
    assert reply["same"], "the text that came in pieces is the text of the result"
    assert [loss[:1] + loss[2:] for loss in losses(reply)] == [(code, "webgpu")]
    found = losses(reply)[0][1]
    assert (found > 0) == (n_tokens > 0), found
    assert webgpu.evaluate("slm.info") == before
    assert losses(ask(webgpu)) == []


@pytest.mark.parametrize(
    ("harm", "mend", "then"),
    [
        ({"doomed": True, "now": "lose"}, {"doomed": False}, "device.lost"),
        ({"unplugged": True, "lostAfter": 3}, {"unplugged": False, "lostAfter": 0}, "device.no_webgpu"),
    ],
    ids=["each new device too", "no new device"],
)
def test_gpu_that_stays_lost_is_an_error_until_it_is_back(
    webgpu: Page, healthy: Any, harm: dict[str, Any], mend: dict[str, Any], then: str
) -> None:
    for _ in range(2):
        error = ask(webgpu, harm)
        assert error["code"] == "device.lost"
        assert [each["code"] for each in error["detail"]["then"]] == [then]
    assert webgpu.evaluate("slm.failure") is None
    assert comparable(ask(webgpu, mend)) == healthy


def test_auto_goes_on_without_a_gpu(auto: Page, healthy: Any) -> None:
    assert comparable(ask(auto)) == healthy
    reply = ask(auto, {"unplugged": True, "lostAfter": 4})
    assert comparable(reply) == healthy
    assert [loss[0::2] for loss in losses(reply)] == [("device.lost", "wasm")]
    assert reply["run"]["executor"]["name"] == "wasm"
    assert auto.evaluate("slm.info.executor") == "wasm"
    assert comparable(ask(auto)) == healthy


def test_reply_goes_on_when_a_thread_fails(wasm: Page, healthy: Any) -> None:
    """Passes: the self-test, three of 32 tokens, then one for each token; of a new pool again. What a thread
    leaves undone the other does; the next pass hears of it."""
    assert wasm.evaluate("slm.info.adapter") == "SIMD, 2 threads"
    reply = ask(wasm, {"failAt": 0})
    assert comparable(reply) == healthy
    assert losses(reply) == [("device.worker", 4, "wasm")]
    assert losses(ask(wasm)) == []


@pytest.mark.parametrize("name", ["wasm", "webgpu"])
def test_context_is_full_at_its_edge(name: str, request: pytest.FixtureRequest, healthy: Any) -> None:
    """A reason, not a crash: of the context's 256 tokens at least one is left to the reply."""
    page = request.getfixturevalue(name)
    long = ask(page, {"failAt": 0}, max_tokens=1000)
    assert long["reason"] == "context_full"
    assert long["stats"]["prompt_tokens"] + long["stats"]["generated_tokens"] == 256 + 1
    got = page.evaluate(
        """async () => {
          const messages = (n) => [{ role: "user", content: "x".repeat(n) }];
          const options = { temperature: 0, max_tokens: 1000, budget_tokens: 255 };
          const { reason, stats } = await slm.chat(messages(187), options).result;
          const code = await slm.chat(messages(188), options).result.catch((error) => error.code);
          return [stats.prompt_tokens, stats.generated_tokens, reason, code];
        }"""
    )
    assert got == [255, 2, "context_full", "input.budget"]
    assert comparable(ask(page)) == healthy


@pytest.mark.parametrize("name", ["wasm", "webgpu"])
def test_cancel_while_reading_leaves_the_cache_right(
    name: str, request: pytest.FixtureRequest, healthy: Any
) -> None:
    """Progress is honest, and the next reply is the cold one."""
    page = request.getfixturevalue(name)
    ask(page, {"failAt": 0})
    got = page.evaluate(
        """async () => {
          await slm.chat([{ role: "user", content: "A" }], { max_tokens: 1 }).result;
          const done = [];
          const chat = slm.chat(question, { temperature: 0, max_tokens: 170, onPrefill: (n, total) => {
            done.push([n, total]);
            if (done.length === 2) chat.cancel();
          } });
          const { reason, stats } = await chat.result;
          return { done, reason, stats };
        }"""
    )
    assert got["reason"] == "cancelled"
    assert [total for _, total in got["done"]] == [78] * len(got["done"])
    read = [n for n, _ in got["done"]]
    assert read == sorted(set(read))
    assert read[-1] == got["stats"]["reused_tokens"] + got["stats"]["prefill_tokens"]
    assert comparable(ask(page)) == healthy


def test_engine_that_ends_without_a_word_is_noticed(chromium: Browser, tiny_url: str) -> None:
    """While loading, and while it should answer; the next model works."""
    page = open_guest(chromium, tiny_url, ENDS_EARLY)
    code = "client.SLM2.load({ model: 'tiny' }).then(() => 'loaded', (e) => e.code)"
    assert page.evaluate(code) == "device.worker"
    wait_for_no_workers(page)
    page.context.close()

    page = open_guest(chromium, tiny_url, "")
    page.evaluate(LOAD, {"executor": "wasm"})
    reply = ask(page, {"now": "end"}, max_tokens=170)
    assert reply["code"] == "device.worker"
    assert page.evaluate("slm.failure.code") == "device.worker"
    wait_for_no_workers(page)
    page.evaluate(LOAD, {"executor": "wasm"})
    assert ask(page)["reason"] == "max_tokens"
    assert page.evaluate("loose") == []
    page.context.close()


@pytest.mark.parametrize("script", ["worker", "loader"])
def test_a_worker_that_ends_before_its_first_word_is_noticed(
    chromium: Browser, tiny_url: str, script: str
) -> None:
    """By its silence, for which the page has a limit; the clock is the test's."""
    page = open_guest(chromium, tiny_url)
    page.clock.install()
    page.context.route(
        f"**/worker/{script}.js",
        lambda route: route.fulfill(response=route.fetch(), body="close();"),
    )
    page.evaluate(
        """() => {
          globalThis.ended = null;
          client.SLM2.load({ model: "tiny" }).then(
            () => (ended = "loaded"), (error) => (ended = `${error.code} ${error.message}`));
        }"""
    )
    page.wait_for_timeout(1000)
    page.clock.fast_forward(40_000)
    page.wait_for_timeout(500)
    assert page.evaluate("ended") is None
    page.clock.fast_forward(21_000)
    page.wait_for_function("ended !== null")
    assert page.evaluate("ended").startswith("device.worker")
    wait_for_no_workers(page)
    assert page.evaluate("loose") == []
    page.context.close()


@pytest.mark.parametrize(
    ("executor", "harm"),
    [
        ("wasm", "harm.refuse = 1;"),
        ("webgpu", "harm.full = true;"),
        ("auto", "harm.refuse = 9; harm.unplugged = true;"),
    ],
)
def test_load_without_memory_is_an_error(chromium: Browser, tiny_url: str, executor: str, harm: str) -> None:
    page = open_guest(chromium, tiny_url, harm)
    load = "(executor) => client.SLM2.load({ model: 'tiny', executor }).then(() => 'loaded', (e) => e.code)"
    assert page.evaluate(load, executor) == "device.out_of_memory"
    wait_for_no_workers(page)
    assert page.evaluate("loose") == []
    page.context.close()
