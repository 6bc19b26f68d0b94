"""client.js as another page would use it: under a sub-path, without isolation, so without shared memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from e2e.conftest import Serve

VECTOR = json.loads((Path(__file__).parents[1] / "unit" / "vectors" / "smollm2_greedy.json").read_bytes())
BASE = "/some/where/"


@pytest.fixture(scope="module")
def page(chromium: Browser, site: Path, serve: Serve) -> Iterator[Page]:
    """A page that is not ours, with a loaded model in `slm`."""
    server = serve(site, base=BASE, isolation=False)
    context = chromium.new_context()
    page = context.new_page()
    page.route(
        "**/guest.html",
        lambda route: route.fulfill(content_type="text/html", body="<!doctype html><title>guest</title>"),
    )
    page.goto(f"{server.url}guest.html")
    page.evaluate(
        """async () => {
          globalThis.client = await import("./web/client.js");
          globalThis.progress = [];
          globalThis.slm = await client.SLM2.load({ onProgress: (p) => progress.push(p) });
          globalThis.ask = (more, options) => slm.chat([{ role: "user", content: "a", ...more }], options);
          globalThis.a = { id: "a", relevance: 1, content: "x" };
          globalThis.cycle = [];
          cycle.push({ cycle });
        }"""
    )
    yield page
    context.close()


def test_works_without_shared_memory(page: Page) -> None:
    assert page.evaluate("typeof SharedArrayBuffer") == "undefined"
    info: dict[str, Any] = page.evaluate("slm.info")
    print(info["timings"], info["memory"])
    assert info["executor"] == "wasm"
    assert info["adapter"] == "SIMD, 1 thread"
    assert info["memory"]["weights_shared"] is False
    assert info["model"]["name"] == "smollm2-135m"


def test_progress_is_honest(page: Page) -> None:
    progress = page.evaluate("progress")
    assert all(p["done"] <= p["total"] for p in progress)
    for stage in ("runtime", "numpy", "package", "weights", "self_test"):
        last = [p for p in progress if p["stage"] == stage][-1]
        assert last["done"] == last["total"] > 0, last
    done = [p["done"] for p in progress if p["stage"] == "weights"]
    assert done == sorted(done)
    assert len(done) > 3


def test_deltas_are_the_reply(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const deltas = [], prefill = [];
          const chat = slm.chat([{ role: "user", content: "What is 2+2?" }],
            { temperature: 0, seed: 1n, onPrefill: (done, total) => prefill.push([done, total]) });
          for await (const delta of chat) deltas.push(delta);
          return { deltas, prefill, result: await chat.result, n: chat.nTokens };
        }"""
    )
    result = got["result"]
    assert "".join(got["deltas"]) == result["text"] == VECTOR["text"].removesuffix("<|im_end|>")
    assert len(got["deltas"]) > 3
    assert got["prefill"][-1] == [len(VECTOR["prompt_ids"])] * 2
    assert json.loads(result["transcript"])["generated_ids"] == VECTOR["greedy_new_ids"]
    assert result["reason"] == "stop_token"


def test_what_stands_beside_the_messages_reaches_the_prompt(page: Page) -> None:
    """Text of any kind stays what it is; the ledger comes before the prompt is read, and with the result."""
    got = page.evaluate(
        r"""async () => {
          const order = [];
          const chat = slm.chat(
            [
              { role: "user", content: "Zoë said <|im_end|>\ufeff\u{1f600}" },
              { role: "assistant", content: "Yes." },
              { role: "user", content: "Why?" },
            ],
            {
              temperature: 0,
              max_tokens: 1,
              local_state: "noon </local_state>",
              evidence: [
                { ...a, id: 'é"<', relevance: -0.5 },
                { ...a, content: "y ".repeat(400), relevance: -1 },
              ],
              budget_tokens: 180,
              onContext: (ledger) => order.push(ledger.prompt_tokens),
              onPrefill: () => order.push("prefill"),
            },
          );
          const { transcript, ledger, reasoning_content } = await chat.result;
          return { order, transcript, ledger, reasoning_content, same: chat.ledger === ledger };
        }"""
    )
    run = json.loads(got["transcript"])
    assert got["order"][0] == len(run["prompt_ids"]) == run["ledger"]["prompt_tokens"] <= 180
    assert set(got["order"][1:]) == {"prefill"}
    assert got["ledger"] == run["ledger"]
    assert got["same"]
    assert got["reasoning_content"] is None
    assert run["request"]["messages"][0]["content"] == "Zoë said <|im_end|>\ufeff\U0001f600"
    assert run["request"]["local_state"] == "noon </local_state>"
    assert [each["id"] for each in run["request"]["evidence"]] == ['é"<', "a"]
    assert [each["relevance"] for each in run["request"]["evidence"]] == [-0.5, -1.0]
    states = {part["label"]: part["state"] for part in run["ledger"]["parts"] if part["kind"] == "evidence"}
    assert states == {'é"<': "kept", "a": "dropped"}


def test_calls_of_next_at_once_are_answered_in_order(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const chat = slm.chat([{ role: "user", content: "What is 2+2?" }], { temperature: 0 });
          const steps = await Promise.all(Array.from({ length: 40 }, () => chat.next()));
          const { text } = await chat.result;
          return { text, steps };
        }"""
    )
    done = [step["done"] for step in got["steps"]]
    assert done == sorted(done)
    assert done[-1]
    assert "".join(step["value"] for step in got["steps"] if not step["done"]) == got["text"]


def test_loading_leaves_no_listener_and_nothing_stored_for_no_model(page: Page) -> None:
    """A model that the site has no longer is forgotten, and so are files that no manifest names."""
    got = page.evaluate(
        """async () => {
          const store = await caches.open("slm2-models");
          const file = (digit) => `/slm2-models/sha256/${digit.repeat(64)}/0-1`;
          const urls = async (kind) =>
            (await store.keys()).map(({ url }) => url).filter((url) => url.includes(kind));
          const names = async () => (await urls("/sha256/")).sort();
          const has = async (digit) => (await store.match(file(digit))) !== undefined;
          const put = (url, text) => store.put(url, new Response(text));
          const putRecord = async (record) => {
            const text = JSON.stringify(record);
            const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
            const name = Array.from(new Uint8Array(digest), (b) => b.toString(16).padStart(2, "0")).join("");
            await put(`/slm2-models/record/${name}`, text);
          };
          const before = await names();
          for (const digit of "abc") await put(file(digit), "x");
          const gone = new URL("models/gone/manifest.json", document.baseURI).href;
          await putRecord({ url: gone, ms: 1, manifest: JSON.stringify({ sha256: "a".repeat(64) }) });
          await putRecord({ of: "another version of this program", any: { hash: "b".repeat(64) } });
          await put(`/slm2-models/record/${"d".repeat(64)}`, "half-writ");
          let listeners = 0;
          const { signal } = new AbortController();
          for (const [name, step] of [["addEventListener", 1], ["removeEventListener", -1]]) {
            signal[name] = (...args) => {
              listeners += step;
              EventTarget.prototype[name].apply(signal, args);
            };
          }
          const second = await client.SLM2.load({ signal });
          const { site, fallback } = second.info;
          second.dispose();
          const pause = () => new Promise((resolve) => setTimeout(resolve, 50));
          while ((await has("a")) || (await has("c"))) await pause();
          const after = await names();
          return { before, after, listeners, site, fallback,
            records: (await urls("/record/")).length,
            version: (await (await fetch("site.json")).json()).version };
        }"""
    )
    (kept,) = set(got["after"]) - set(got["before"])
    assert "b" * 64 in kept
    assert set(got["before"]) <= set(got["after"])
    assert got["records"] == 2, "of this model, and the one that is not ours to judge"
    assert got["listeners"] == 0
    assert got["site"] == got["version"]
    assert got["fallback"]["code"] == "device.no_webgpu"


def test_stop_takes_one_forward_pass_at_most(page: Page) -> None:
    """By signal, by leaving the loop, and before the first token; each time the model is free at once."""
    got = page.evaluate(
        """async () => {
          const question = [{ role: "user", content: "Write a long story about the sea." }];
          const abort = new AbortController();
          const chat = slm.chat(question, { temperature: 0, max_tokens: 200, signal: abort.signal });
          let seen = 0;
          for await (const _ of chat) if (chat.nTokens >= 3 && !seen) { seen = chat.nTokens; abort.abort(); }
          const signalled = await chat.result;

          const left = slm.chat(question, { temperature: 0, max_tokens: 200 });
          for await (const _ of left) break;
          const leftSeen = left.nTokens;

          const early = slm.chat(question, { max_tokens: 200, signal: AbortSignal.abort() });
          const nothing = [];
          for await (const delta of early) nothing.push(delta);
          return { seen, signalled, leftSeen, left: await left.result, early: await early.result, nothing };
        }"""
    )
    for name, seen in (("signalled", got["seen"]), ("left", got["leftSeen"])):
        run = json.loads(got[name]["transcript"])
        assert got[name]["reason"] == run["reason"] == "cancelled"
        # The pass that ran when it was stopped may still give its token, and one may have been on its way.
        assert len(run["generated_ids"]) <= seen + 2, (name, seen, run["generated_ids"])
    assert got["early"]["reason"] == "cancelled"
    assert got["nothing"] == []


@pytest.mark.parametrize(
    ("call", "code", "cls"),
    [
        ("slm.chat('hello')", "input.json", "InputError"),
        ("slm.chat([])", "input.json", "InputError"),
        ("slm.chat([{ role: 'user', content: 7 }])", "template.content", "InputError"),
        ("slm.chat([{ role: 'user', content: 'a\\udc00' }])", "input.text", "InputError"),
        ("slm.chat([{ role: 'king', content: 'a' }]).result", "template.role", "InputError"),
        ("slm.chat([{ role: 'user', content: 'a' }], { temperature: NaN })", "input.params", "InputError"),
        (
            "slm.chat([{ role: 'user', content: 'a' }], { temperature: -1 }).result",
            "input.params",
            "InputError",
        ),
        ("slm.chat([{ role: 'user', content: 'a' }], { heat: 1 })", "input.params", "InputError"),
        ("slm.chat([{ role: 'user', content: 'a' }], { stop: ['\\ud800'] })", "input.text", "InputError"),
        ("slm.chat([{ role: 'user', content: 'a' }], null)", "input.params", "InputError"),
        ("slm.chat([{ role: 'user', content: 'a' }], { signal: {} })", "input.params", "InputError"),
        ("slm.chat([{ role: 'user', content: 'a' }], { onPrefill: 1 })", "input.params", "InputError"),
        ("slm.chat([{ role: 'user', content: 'a' }], { onContext: {} })", "input.params", "InputError"),
        ("slm.chat([7])", "input.json", "InputError"),
        ("slm.chat([{ role: 'us\\ud800er', content: 'a' }])", "input.text", "InputError"),
        ("slm.chat([{ role: 'user', content: null }])", "template.content", "InputError"),
        ("slm.chat([{ role: 'user', content: 'a', more: 1 }])", "input.json", "InputError"),
        (
            "slm.chat([{ role: 'assistant', content: 'a', reasoning_content: 7 }])",
            "template.reasoning",
            "InputError",
        ),
        ("ask({ reasoning_content: 'hm' }).result", "template.reasoning", "InputError"),
        ("ask({ reasoning_content: '\\udfff' })", "input.text", "InputError"),
        ("ask({ tool_calls: { name: 'f' } })", "input.json", "InputError"),
        ("ask({ tool_calls: [{ name: 'f', arguments: { a: NaN } }] })", "input.json", "InputError"),
        ("ask({ tool_calls: [{ name: 'f', arguments: { a: new Date() } }] })", "input.json", "InputError"),
        ("ask({ tool_calls: [{ name: 'f', arguments: { a: undefined } }] })", "input.json", "InputError"),
        ("ask({ tool_calls: [{ name: 'f', arguments: { '\\ud800': 1 } }] })", "input.text", "InputError"),
        ("ask({ tool_calls: '[' }).result", "template.tool_calls", "InputError"),
        ('ask({ tool_calls: String.raw`[{"name": "\\ud800"}]` }).result', "input.text", "InputError"),
        ("ask({}, { tools: 7 })", "input.json", "InputError"),
        ("ask({}, { tools: [{ f: 1n }] })", "input.json", "InputError"),
        ("ask({}, { tools: cycle })", "input.json", "InputError"),
        ("ask({}, { tools: [{ name: 'f' }] }).result", "template.tools", "InputError"),
        ("ask({}, { tools: '['.repeat(99999) }).result", "template.tools", "InputError"),
        (
            "ask({}, { tools: `[${'{\"a\":'.repeat(199)}1${'}'.repeat(199)}]` }).result",
            "template.tools",
            "InputError",
        ),
        (
            "ask({ tool_calls: '[' + '{\"a\":'.repeat(200) + '1' + '}'.repeat(200) + ']' }).result",
            "template.tool_calls",
            "InputError",
        ),
        ("ask({}, { enable_thinking: true }).result", "template.options", "InputError"),
        ("ask({}, { enable_thinking: 1 })", "input.params", "InputError"),
        ("ask({}, { preserve_thinking: null })", "input.params", "InputError"),
        ("ask({}, { local_state: 7 })", "input.params", "InputError"),
        ("ask({}, { local_state: '\\ud800' })", "input.text", "InputError"),
        ("ask({}, { budget_tokens: -1 })", "input.params", "InputError"),
        ("ask({}, { budget_tokens: 1.5 })", "input.params", "InputError"),
        ("ask({}, { budget_tokens: 0 }).result", "input.params", "InputError"),
        ("ask({}, { budget_tokens: 2048 }).result", "input.params", "InputError"),
        ("ask({}, { budget_tokens: 9 }).result", "input.budget", "InputError"),
        ("ask({ content: 'x '.repeat(9999) }).result", "input.budget", "InputError"),
        ("ask({ content: 'x'.repeat((16 << 20) + 1) })", "input.budget", "InputError"),
        (
            "slm.chat(Array(5).fill({ role: 'user', content: 'x'.repeat(15 << 20) }))",
            "input.budget",
            "InputError",
        ),
        ("ask({}, { presence_penalty: '1' })", "input.params", "InputError"),
        ("ask({}, { frequency_penalty: 3 }).result", "input.params", "InputError"),
        ("ask({}, { banned_ids: 'x' })", "input.params", "InputError"),
        ("ask({}, { banned_ids: [1, -1] })", "input.params", "InputError"),
        ("ask({}, { banned_ids: Array(1025).fill(1) }).result", "input.params", "InputError"),
        ("ask({}, { profile: 7 })", "input.params", "InputError"),
        ("ask({}, { profile: 'x' }).result", "input.params", "InputError"),
        ("ask({}, { logprobs: true })", "input.params", "InputError"),
        ("ask({}, { logprobs: 21 }).result", "input.params", "InputError"),
        ("ask({}, { max_reasoning_tokens: -1 }).result", "input.params", "InputError"),
        ("ask({}, { invalid_utf8: 'skip' }).result", "input.params", "InputError"),
        ("ask({}, { response_format: 7 })", "input.params", "InputError"),
        ("ask({}, { response_format: [] })", "input.params", "InputError"),
        ("ask({}, { response_format: { type: undefined } })", "input.json", "InputError"),
        ("ask({}, { response_format: '\\ud800' })", "input.text", "InputError"),
        ("ask({}, { response_format: '{' }).result", "input.response_format", "InputError"),
        ("ask({}, { response_format: { type: 'xml' } }).result", "input.response_format", "InputError"),
        ("ask({}, { response_format: '' }).result", "input.params", "InputError"),
        ("ask({}, { evidence: 'x' })", "input.json", "InputError"),
        ("ask({}, { evidence: [7] })", "input.json", "InputError"),
        ("ask({}, { evidence: [{ id: 'a', content: 'x' }] })", "input.params", "InputError"),
        ("ask({}, { evidence: [{ ...a, relevance: Infinity }] })", "input.params", "InputError"),
        ("ask({}, { evidence: [{ ...a, id: 'b\\ud800' }] })", "input.text", "InputError"),
        ("ask({}, { evidence: [{ ...a, rank: 1 }] })", "input.json", "InputError"),
        ("ask({}, { evidence: [a, a] }).result", "input.json", "InputError"),
        ("ask({}, { evidence: [{ ...a, id: '' }] }).result", "input.json", "InputError"),
        ("client.SLM2.load(null)", "input.params", "InputError"),
        ("client.SLM2.load({ root: 'https://example.org/' })", "input.params", "InputError"),
        ("client.SLM2.load({ root: 'http://[' })", "input.params", "InputError"),
        ("client.SLM2.load({ root: '/no/such/site/' })", "asset.unreachable", "AssetError"),
        ("client.SLM2.load({ model: 7 })", "input.model", "InputError"),
        ("client.SLM2.load({ executor: 'abacus' })", "input.params", "InputError"),
        ("client.SLM2.load({ model: '../x' })", "input.model", "InputError"),
        ("client.SLM2.load({ signal: AbortSignal.abort() })", "cancelled", "Cancelled"),
        ("client.SLM2.load({ signal: AbortSignal.timeout(300) })", "cancelled", "Cancelled"),
    ],
)
def test_errors_keep_their_class_and_code(call: str, code: str, cls: str, page: Page) -> None:
    got = page.evaluate(
        f"""async () => {{
          try {{ await {call}; return "no error"; }}
          catch (e) {{ return [e.code, e.name, e instanceof client.{cls}, e.remedy !== ""]; }}
        }}"""
    )
    assert got == [code, cls, True, True]


def test_a_load_is_aborted_between_its_checks_and_its_workers(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const stopper = new AbortController();
          let nRead = 0; // by the check, then by the load itself
          const options = { signal: stopper.signal, get onProgress() {
            if (++nRead === 2) stopper.abort();
            return undefined;
          } };
          return [await client.SLM2.load(options).then(() => "loaded", ({ code }) => code), nRead];
        }"""
    )
    assert got == ["cancelled", 2]


@pytest.mark.parametrize("value", [0, -1, 1.5, "'64'", "NaN", "2 ** 53", "true"])
def test_context_length_must_be_a_whole_number(page: Page, value: object) -> None:
    code = (
        f"client.SLM2.load({{ max_seq_len: {value} }}).then(() => 'loaded', (e) => [e.code, e.detail.place])"
    )
    assert page.evaluate(code) == ["input.params", "options.max_seq_len"]


def test_stop_string_and_one_chat_at_a_time(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const question = [{ role: "user", content: "What is 2+2?" }];
          const chat = slm.chat(question, { temperature: 0, stop: "classic" });
          let second = "no error";
          try { slm.chat(question); } catch (e) { second = e.code; }
          return { second, ...(await chat.result) };
        }"""
    )
    assert got["second"] == "protocol.state"
    assert got["reason"] == "stop_string"
    assert got["text"] == "The answer to this "


def test_every_parameter_reaches_the_sampler(page: Page) -> None:
    """And the transcript; log-probabilities come with the result."""
    params = {
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
        "banned_ids": [9, 42],
        "profile": "llama.cpp",
        "logprobs": 2,
        "seed": "18446744073709551615",
        "max_tokens": 3,
        "max_reasoning_tokens": 7,
        "stop": ["zebra"],
        "response_format": '{"type": "regex", "pattern": "[a-z ]{1,40}"}',
        "invalid_utf8": "show",
    }
    got = page.evaluate("(params) => ask({}, params).result", params)
    run = json.loads(got["transcript"])
    assert run["request"]["params"] == params
    assert got["generated_ids"] == run["generated_ids"]
    assert [each["id"] for each in got["logprobs"]] == run["generated_ids"]
    for each in got["logprobs"]:
        assert len(each["top"]) == 2
        assert each["top"][0]["logprob"] >= each["top"][1]["logprob"]
    said = bytes(byte for each in got["logprobs"] for byte in each["bytes"]).decode()
    assert said == got["text"]
    assert set(got["text"]) <= set("abcdefghijklmnopqrstuvwxyz ")
    as_object = page.evaluate(
        "(params) => ask({}, { ...params, response_format: JSON.parse(params.response_format) }).result",
        params,
    )
    assert as_object["text"] == got["text"]


def test_dispose_ends_everything(page: Page) -> None:
    """The last test of this module: the model is gone after it."""
    got = page.evaluate(
        """async () => {
          const chat = slm.chat([{ role: "user", content: "Hello" }], { max_tokens: 50 });
          slm.dispose();
          slm.dispose();
          const codes = [];
          try { await chat.result; } catch (e) { codes.push(e.code); }
          try { slm.chat([{ role: "user", content: "Hello" }]); } catch (e) { codes.push(e.code); }
          return codes;
        }"""
    )
    assert got == ["cancelled", "protocol.state"]
