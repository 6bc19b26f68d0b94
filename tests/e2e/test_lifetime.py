"""From load to dispose: a model may be ended at any moment, and nothing of it stays; two may live at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from e2e.guest import comparable, open_guest, wait_for_no_workers
from e2e.rounds import run_rounds

LOAD = "async (o) => (globalThis.slm = await client.SLM2.load({ model: 'tiny', ...o })).info"
# Longer than any reply here.
LONG = 170


@pytest.fixture
def page(chromium: Browser, tiny_url: str) -> Iterator[Page]:
    """A page without a model; at the end it has no worker, and nothing went wrong unseen."""
    page = open_guest(chromium, tiny_url)
    yield page
    wait_for_no_workers(page)
    assert page.evaluate("loose") == []
    page.context.close()


def test_load_can_be_aborted_at_any_moment(page: Page) -> None:
    """When a stage begins: then its worker is at work on it. Nothing is heard of it afterwards."""
    got = page.evaluate(
        """async () => {
          const codes = [];
          for (const stage of ["runtime", "weights", "package", "self_test", "upload", "compile"]) {
            const abort = new AbortController();
            let late = 0;
            const onProgress = (p) => {
              if (abort.signal.aborted) late += 1;
              if (p.stage === stage) abort.abort();
            };
            const { signal } = abort;
            const load = client.SLM2.load({ model: "tiny", executor: "webgpu", signal, onProgress });
            const code = await load.then(() => "loaded", (error) => error.code);
            await new Promise((resolve) => setTimeout(resolve, 100));
            codes.push([stage, code, late]);
          }
          return codes;
        }"""
    )
    assert [code for _, code, _ in got] == ["cancelled"] * 6
    assert [late for _, _, late in got] == [0] * 6


@pytest.mark.parametrize("executor", ["wasm", "webgpu"])
def test_dispose_at_any_moment(page: Page, executor: str) -> None:
    """Idle, before the first token, while writing; each time twice. A reply that runs ends with Cancelled."""
    got = page.evaluate(
        """async ([executor, max_tokens]) => {
          const ends = [];
          for (const moment of ["idle", "at once", "while reading", "while writing"]) {
            const slm = await client.SLM2.load({ model: "tiny", executor });
            const codes = [];
            const end = () => { slm.dispose(); slm.dispose(); };
            if (moment !== "idle") {
              const chat = slm.chat(question, { temperature: 0, max_tokens, onPrefill: () => {
                if (moment === "while reading") end();
              } });
              if (moment === "at once") end();
              try { for await (const _ of chat) if (moment === "while writing") end(); }
              catch (error) { codes.push(error.code); }
              codes.push(await chat.result.then((r) => r.reason, (error) => error.code));
            }
            await slm.dispose();
            try { slm.chat(question); } catch (error) { codes.push(error.code); }
            ends.push(codes);
          }
          return ends;
        }""",
        [executor, LONG],
    )
    assert got == [["protocol.state"]] + [["cancelled", "cancelled", "protocol.state"]] * 3


def test_two_models_at_once_and_in_turn(page: Page) -> None:
    """Two of them answer at the same time as one does alone; what is left is as it was."""
    got = page.evaluate(
        """async () => {
          const load = (executor) => client.SLM2.load({ model: "tiny", executor });
          const one = await load("wasm");
          const alone = await ask(one);
          const two = await load("webgpu");
          const both = await Promise.all([ask(one), ask(two)]);
          await one.dispose();
          const left = await ask(two);
          await two.dispose();
          const again = await load("wasm");
          const turn = await ask(again);
          await again.dispose();
          return [alone, ...both, left, turn];
        }"""
    )
    assert {comparable(reply) for reply in got} == {comparable(got[0])}
    assert got[0]["reason"] == "max_tokens"


def test_context_is_as_long_as_asked(page: Page) -> None:
    """At most the model's own; the cache takes as much less; the reply is the same while there is room."""
    got = page.evaluate(
        """async () => {
          const seen = [];
          for (const [executor, max_seq_len] of [["wasm"], ["wasm", 96], ["webgpu", 96], ["reference", 96]]) {
            const slm = await client.SLM2.load({ model: "tiny", executor, max_seq_len });
            const reply = await ask(slm, { budget_tokens: 90, max_tokens: 170 });
            seen.push([slm.info.max_seq_len, slm.info.memory.device_cache_bytes, reply]);
            await slm.dispose();
          }
          return seen;
        }"""
    )
    lengths, caches, replies = zip(*got, strict=True)
    assert lengths == (256, 96, 96, 96)
    assert caches[0] * 96 == caches[1] * 256 > 0
    assert [reply["reason"] for reply in replies] == ["max_tokens", *["context_full"] * 3]
    whole, *cut = (reply["run"]["generated_ids"] for reply in replies)
    assert cut == [whole[: 96 + 1 - 78]] * 3


def test_a_reply_goes_on_in_a_hidden_tab(page: Page) -> None:
    """Behind another tab, and after the browser has frozen the page for a while."""
    page.evaluate(LOAD, {"executor": "wasm"})
    seen = page.evaluate("async () => globalThis.reference = await ask(slm, { max_tokens: 60 })")
    page.evaluate(
        "async () => { await slm.chat([{ role: 'user', content: 'A' }], { max_tokens: 1 }).result; }"
    )
    other = page.context.new_page()
    other.bring_to_front()
    hidden = page.evaluate("async () => [await ask(slm, { max_tokens: 60 }), document.visibilityState]")
    assert comparable(hidden[0]) == comparable(seen)

    page.evaluate("globalThis.waiting = ask(slm, { max_tokens: 60 }); 0")
    session = page.context.new_cdp_session(page)
    session.send("Page.setWebLifecycleState", {"state": "frozen"})
    other.wait_for_timeout(300)
    session.send("Page.setWebLifecycleState", {"state": "active"})
    assert comparable(page.evaluate("waiting")) == comparable(seen)
    other.close()
    page.evaluate("() => slm.dispose()")


def test_rounds_of_load_and_dispose_do_not_grow(chromium: Browser, tiny_url: str) -> None:
    """A few; e2e/rounds.py runs as many as one likes."""
    page = open_guest(chromium, tiny_url)
    rounds = run_rounds(chromium, page, 6)
    assert rounds.growth_bytes() < 24 << 20, rounds
    assert rounds.heap_growth_bytes() < 1 << 20, rounds
    page.context.close()
