"""web/prompt-api.js as code that was written for the browser's own `LanguageModel` would use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from slm2_web.compile.serve import ISOLATION, POLICY

QUESTION = "What is 2+2?"
ANSWER = "The answer to this classic math problem is 4."
# What the page has: `make`, a session with greedy sampling; `outcome`, what a promise gave or how it failed.
SETUP = """async () => {
  const { LanguageModel } = await import("./web/prompt-api.js");
  globalThis.Model = LanguageModel;
  globalThis.states = [await Model.availability()];
  globalThis.shares = [];
  const note = ({ loaded, total }) => shares.push([loaded, total]);
  const monitor = (m) => m.addEventListener("downloadprogress", note);
  globalThis.make = (options = {}) =>
    Model.create({ temperature: 0, ...options, slm2: { max_tokens: 24, ...options.slm2 } });
  const first = make({ monitor });
  states.push(await Model.availability());
  globalThis.session = await first;
  states.push(await Model.availability());
  globalThis.failed = (error) => ({
    name: error.name, cause: error.cause?.code, dom: error instanceof DOMException, message: error.message,
    requested: error.requested, quota: error.quota,
  });
  globalThis.outcome = (promise) => promise.then((value) => ({ value }), failed);
  globalThis.STORY = "Write a long story about the sea.";
}"""


@pytest.fixture(scope="module")
def page(chromium_without_webgpu: Browser, tiny_url: str) -> Iterator[Page]:
    """A page of the site's origin, under its policy, with a session of the default model."""
    context = chromium_without_webgpu.new_context()
    page = context.new_page()
    page.set_default_timeout(120_000)
    headers = {**ISOLATION, "Content-Security-Policy": POLICY}
    page.route(
        "**/guest.html",
        lambda route: route.fulfill(content_type="text/html", headers=headers, body="<!doctype html>"),
    )
    page.goto(f"{tiny_url}guest.html")
    page.evaluate(SETUP)
    yield page
    context.close()


def test_availability_and_progress(page: Page) -> None:
    assert page.evaluate("states") == ["downloadable", "downloading", "available"]
    shares: list[list[float]] = page.evaluate("shares")
    assert shares[0] == [0, 1]
    assert shares[-1] == [1, 1]
    loaded = [share for share, _ in shares]
    assert loaded == sorted(set(loaded))
    assert len(loaded) > 5
    got = page.evaluate(
        """async () => [
          await Model.availability({ expectedInputs: [{ type: "image" }] }),
          await Model.availability({ expectedInputs: [{ type: "text", languages: ["en"] }] }),
          await Model.availability({ thinking: { effort: "high" } }),
          await Model.availability({ slm2: { model: "nobody" } }),
          await Model.params(),
          await Model.params({ slm2: { model: "nobody" } }),
        ]"""
    )
    assert got[:4] == ["unavailable", "available", "unavailable", "unavailable"]
    assert got[4] == {
        "defaultTopK": 49152,
        "maxTopK": 49152,
        "defaultTemperature": 0.2,
        "maxTemperature": 2,
    }
    assert got[5] is None


def test_prompts_and_usage(page: Page) -> None:
    got = page.evaluate(
        f"""async () => {{
          const session = await make();
          const before = [session.contextUsage, session.contextWindow, session.inputQuota];
          const measured = await session.measureContextUsage("{QUESTION}");
          const whole = await session.prompt("{QUESTION}");
          const used = session.contextUsage;
          const more = await session.measureInputUsage("And 3+3?");
          const pieces = [];
          for await (const piece of session.promptStreaming("And 3+3?")) pieces.push(piece);
          const again = await make();
          const parts = ["What is ", "2+2?"].map((value) => ({{ type: "text", value }}));
          const same = await again.prompt([{{ role: "user", content: parts }}]);
          const result = {{ before, measured, whole, used, more, pieces, after: session.contextUsage, same }};
          session.destroy();
          again.destroy();
          return result;
        }}"""
    )
    assert got["before"] == [0, 2048, 2048]
    assert got["whole"] == got["same"] == ANSWER
    assert got["measured"] > 30
    assert got["used"] > got["measured"]
    assert 5 < got["more"] < 30
    assert len(got["pieces"]) > 3
    assert got["after"] >= got["used"] + got["more"]


def test_initial_prompts_append_and_clone(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const session = await make({ initialPrompts: [
            { role: "system", content: "You know one thing: the word of the day is banana." },
          ] });
          const begun = session.contextUsage;
          await session.append("My name is Ada.");
          const appended = session.contextUsage;
          const copy = await session.clone();
          const reply = await session.prompt("What is my name?");
          const same = await copy.prompt("What is my name?");
          const apart = copy.contextUsage === session.contextUsage;
          await copy.append("x");
          const more = copy.contextUsage > session.contextUsage;
          const shown = [copy.temperature, copy.topK, copy.samplingMode, more];
          session.destroy();
          const lives = typeof (await copy.prompt("Hello"));
          const late = await make();
          await late.append([{ role: "system", content: "Be brief." }, { role: "user", content: "a" }]);
          const twice = await outcome(late.append([{ role: "system", content: "Be long." }]));
          copy.destroy();
          late.destroy();
          return { begun, appended, reply, same, apart, shown, lives, twice };
        }"""
    )
    assert 0 < got["begun"] < got["appended"]
    assert got["reply"] == got["same"]
    assert got["apart"] is True
    assert got["shown"] == [0, 49152, None, True]
    assert got["lives"] == "string"
    assert got["twice"]["name"] == "TypeError"


def test_constraints(page: Page) -> None:
    got = page.evaluate(
        r"""async () => {
          const session = await make();
          const properties = { colour: { enum: ["red", "blue"] } };
          const schema = { type: "object", properties, required: ["colour"] };
          const ask = async (responseConstraint, more = {}) =>
            outcome(session.prompt("Name a colour.", { responseConstraint, ...more }));
          const result = [
            await ask(schema), await ask(/yes|no/), await ask(/[a-z]{400}/), await ask(/a/i), await ask(7),
            await ask({ type: "string", format: "email" }),
            await ask(undefined, { omitResponseConstraintInput: true }), await ask(null),
          ];
          session.destroy();
          return result;
        }"""
    )
    assert json.loads(got[0]["value"])["colour"] in ("red", "blue")
    assert got[1]["value"] in ("yes", "no")
    names = [each.get("name") for each in got[2:7]]
    assert names == ["SyntaxError", "NotSupportedError", "TypeError", "NotSupportedError", "TypeError"]
    assert got[5]["cause"] == "input.response_format"
    assert isinstance(got[7]["value"], str)


def test_abort_and_destroy(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const session = await make({ slm2: { max_tokens: 400 } });
          await session.prompt("Hello");
          const used = session.contextUsage;
          const stopper = new AbortController();
          const stream = session.promptStreaming(STORY, { signal: stopper.signal });
          const reader = stream.getReader();
          await reader.read();
          stopper.abort();
          const rest = async () => { while (!(await reader.read()).done); };
          const cut = await outcome(rest());
          const kept = session.contextUsage === used;
          const own = AbortSignal.abort(new RangeError("enough"));
          const reason = await outcome(session.prompt("x", { signal: own }));
          // Those that wait can be taken back, too, and what comes after them goes on.
          const waits = new AbortController();
          const long = session.prompt(STORY, { signal: AbortSignal.timeout(1500) });
          const waiting = outcome(session.prompt("x", { signal: waits.signal }));
          waits.abort();
          const both = [(await waiting).name, (await outcome(long)).name];
          // A stream that is left ends its reply.
          const left = session.promptStreaming(STORY).getReader();
          await left.read();
          await left.cancel();
          const free = typeof (await session.prompt("Hello"));
          const running = outcome(session.prompt(STORY));
          await new Promise((resolve) => setTimeout(resolve, 50));
          session.destroy();
          session.destroy();
          const ended = [(await running).name, (await outcome(session.prompt("x"))).name,
            (await outcome(session.clone())).name];
          const bound = new AbortController();
          const child = await make({ signal: bound.signal });
          bound.abort();
          const after = (await outcome(child.prompt("x"))).name;
          const never = await outcome(make({ signal: AbortSignal.abort() }));
          return { cut, kept, reason, both, free, ended, after, never };
        }"""
    )
    assert (got["cut"]["name"], got["cut"]["dom"], got["kept"]) == ("AbortError", True, True)
    assert (got["reason"]["name"], got["reason"]["message"]) == ("RangeError", "enough")
    assert got["both"] == ["AbortError", "TimeoutError"]
    assert got["free"] == "string"
    assert got["ended"] == ["AbortError", "InvalidStateError", "InvalidStateError"]
    assert got["after"] == "InvalidStateError"
    assert got["never"]["name"] == "AbortError"


def test_signals_keep_nothing_of_what_has_ended(page: Page) -> None:
    """Neither the caller's nor the session's own has a listener more than before."""
    got = page.evaluate(
        """async () => {
          const heard = new Set();
          const { addEventListener: add, removeEventListener: remove } = EventTarget.prototype;
          AbortSignal.prototype.addEventListener = function (type, listener, options) {
            heard.add(listener);
            if (options?.signal) add.call(options.signal, "abort", () => heard.delete(listener));
            add.call(this, type, listener, options);
          };
          AbortSignal.prototype.removeEventListener = function (type, listener) {
            heard.delete(listener);
            remove.call(this, type, listener);
          };
          const { signal } = new AbortController();
          const session = await make({ signal, slm2: { max_tokens: 2 } });
          const nOpen = heard.size; // what ends the session with its signal
          await session.prompt("Hello");
          await session.prompt("Hello", { signal });
          await session.append("Hello", { signal });
          for await (const _ of session.promptStreaming("Hello", { signal }));
          (await session.clone({ signal })).destroy();
          const nBetween = heard.size;
          session.destroy();
          delete AbortSignal.prototype.addEventListener;
          delete AbortSignal.prototype.removeEventListener;
          return [nOpen, nBetween, heard.size];
        }"""
    )
    assert got == [1, 1, 0]


def test_overflow(page: Page) -> None:
    """The oldest exchanges go, the initial ones never; a prompt that can't fit changes nothing."""
    got = page.evaluate(
        """async () => {
          const asked = []; // of each request to the engine, its first messages
          const { postMessage } = Worker.prototype;
          const textOf = ({ role, content }) => `${role}: ${new TextDecoder().decode(content).slice(0, 10)}`;
          Worker.prototype.postMessage = function (message, ...rest) {
            if (message.type === "chat") asked.push(message.messages.map(textOf));
            return postMessage.call(this, message, ...rest);
          };
          const long = (i) => `${i} ` + "word ".repeat(4);
          const huge = "word ".repeat(300);
          const initialPrompts = [{ role: "system", content: "Be brief." },
            { role: "user", content: "I am Ada." }, { role: "assistant", content: "Hello, Ada." }];
          const slm2 = { model: "tiny", max_tokens: 4 };
          const session = await make({ initialPrompts, slm2 });
          let events = 0, called = 0;
          session.addEventListener("contextoverflow", () => events++);
          session.oncontextoverflow = () => called++;
          const used = [];
          for (let i = 0; i < 100 && events < 2; i++) {
            await session.prompt(long(i));
            used.push([events, session.contextUsage <= session.contextWindow]);
          }
          const last = asked.at(-1);
          const before = session.contextUsage;
          const much = await outcome(session.prompt(huge));
          const added = await outcome(session.append(huge));
          const unchanged = session.contextUsage === before;
          const measured = await session.measureContextUsage(huge);
          const tooLong = await outcome(make({ initialPrompts: [{ role: "user", content: huge }], slm2 }));
          Worker.prototype.postMessage = postMessage;
          const window = session.contextWindow;
          session.destroy();
          return { used, called, events, last, much, added, unchanged, measured, tooLong, window };
        }"""
    )
    assert got["used"][0] == [0, True]
    assert got["events"] == got["called"] == 2
    assert all(fits for _, fits in got["used"])
    assert got["last"][:3] == ["system: Be brief.", "user: I am Ada.", "assistant: Hello, Ada"]
    n = len(got["used"])
    kept = [int(text.removeprefix("user: ").split()[0]) for text in got["last"][3::2]]
    assert kept == list(range(n - len(kept), n))
    assert 0 < len(kept) < n
    for name in ("much", "added", "tooLong"):
        error: dict[str, Any] = got[name]
        assert error["name"] == "QuotaExceededError", name
        assert error["dom"] is True, name
        assert error["requested"] > got["window"] > error["quota"], name
    assert got["unchanged"] is True
    assert got["measured"] > got["window"]


def test_sampling(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const of = async (options) => {
            const session = await Model.create(options);
            const shown = [session.samplingMode, Math.round(session.temperature * 1000) / 1000, session.topK];
            session.destroy();
            return shown;
          };
          const good = [{}, { samplingMode: "most-predictable" }, { samplingMode: "creative" },
            { temperature: 99, topK: 1e9 }, { temperature: Infinity, topK: 3.7 }];
          const bad = [{ temperature: -1 }, { topK: 0 }, { topK: "x" }, { samplingMode: "wild" },
            { samplingMode: "creative", topK: 3 }];
          const result = [];
          for (const options of good) result.push(await of(options));
          for (const options of bad) result.push(await outcome(of(options)));
          return result;
        }"""
    )
    assert got[:5] == [
        ["balanced", 0.2, 49152],
        ["most-predictable", 0, 49152],
        ["creative", 0.4, 49152],
        [None, 2, 49152],
        [None, 2, 3],
    ]
    assert [each["name"] for each in got[5:]] == ["RangeError", "RangeError"] + ["TypeError"] * 3
    # The same seed draws the same, another one draws something else.
    drawn = page.evaluate(
        """async () => {
          const draw = async (seed) => {
            const session = await Model.create({ temperature: 1.5, slm2: { seed, max_tokens: 12 } });
            const text = await session.prompt("Name an animal.");
            session.destroy();
            return text;
          };
          return [await draw(1), await draw(1), await draw(2)];
        }"""
    )
    assert drawn[0] == drawn[1] != drawn[2]


def test_what_it_does_not_do_and_what_is_wrong(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const session = await make();
          const p = (input, options) => outcome(session.prompt(input, options));
          const result = {
            image: await p([{ role: "user", content: [{ type: "image", value: null }] }]),
            prefix: await p([{ role: "assistant", content: "b", prefix: true }]),
            misplaced: await p([{ role: "user", content: "a", prefix: true }]),
            assistant: await p([{ role: "user", content: "a" }, { role: "assistant", content: "b" }]),
            role: await p([{ role: "tool", content: "a" }]),
            part: await p([{ role: "user", content: [{ type: "text", value: 7 }] }]),
            signal: await p("a", { signal: 7 }),
            surrogate: await p("\\ud800"),
            thinks: await p("a", { thinking: { effort: "low" } }),
            tools: await outcome(make({ tools: [{ name: "x" }] })),
            languages: await outcome(make({ expectedInputs: [{ type: "text", languages: ["?"] }] })),
            option: await outcome(make({ slm2: { colour: 1 } })),
            model: await outcome(Model.create({ slm2: { model: "nobody" } })),
          };
          try { new Model(); } catch (error) { result.made = failed(error); }
          result.still = await p("Hello");
          result.number = typeof (await p(7)).value;
          session.destroy();
          return result;
        }"""
    )
    expected = {
        "image": "NotSupportedError",
        "prefix": "NotSupportedError",
        "misplaced": "SyntaxError",
        "assistant": "NotSupportedError",
        "role": "TypeError",
        "part": "TypeError",
        "signal": "TypeError",
        "surrogate": "TypeError",
        "thinks": "NotSupportedError",
        "tools": "NotSupportedError",
        "languages": "RangeError",
        "option": "TypeError",
        "model": "NotSupportedError",
        "made": "TypeError",
    }
    assert {name: got[name].get("name") for name in expected} == expected
    assert (got["assistant"]["cause"], got["surrogate"]["cause"]) == ("template.order", "input.text")
    assert got["model"]["cause"] == "input.model"
    assert "value" in got["still"]
    assert got["number"] == "string"
