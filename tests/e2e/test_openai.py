"""openai.js in a page that is not ours: the default model, and one that calls tools (scripted_model.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from e2e.conftest import ROOT, Serve
from scripted_model import ANSWER, CALL, SAID, THOUGHT, make_scripted_model
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.site import build_site
from slm2_web.compile.tokenizer_json import compile_tokenizer_json

SUM = "The answer to this classic math problem is 4."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def page(
    chromium: Browser,
    packed_smollm2: Path,
    qwen3_json: Path,
    tmp_path_factory: pytest.TempPathFactory,
    serve: Serve,
) -> Iterator[Page]:
    """Has `client` of the default model, and `caller` of the one that calls tools."""
    folder = tmp_path_factory.mktemp("openai")
    caller = make_scripted_model(folder, compile_tokenizer_json(qwen3_json.read_bytes()))
    build_site(ROOT, folder / "site", [packed_smollm2, caller], Fetcher.from_environment(ROOT), print)
    context = chromium.new_context()
    page = context.new_page()
    page.route(
        "**/guest.html",
        lambda route: route.fulfill(content_type="text/html", body="<!doctype html><title>guest</title>"),
    )
    page.goto(f"{serve(folder / 'site').url}guest.html")
    page.evaluate(
        """async () => {
          const { SLM2 } = await import("./web/client.js");
          const { openai } = await import("./web/openai.js");
          globalThis.client = openai(await SLM2.load({ executor: "wasm" }));
          globalThis.caller = openai(await SLM2.load({ model: "tiny-qwen3", executor: "wasm" }));
          globalThis.ask = (content, more, options) =>
            client.chat.completions.create({ messages: [{ role: "user", content }], ...more }, options);
          globalThis.collect = async (stream) => {
            const chunks = [];
            for await (const chunk of stream) chunks.push(chunk);
            return chunks;
          };
        }"""
    )
    yield page
    context.close()


def text_of(chunks: list[dict[str, Any]], name: str = "content") -> str:
    """What the deltas say together."""
    return "".join(chunk["choices"][0]["delta"].get(name, "") for chunk in chunks if chunk["choices"])


def test_a_completion_is_what_users_know(page: Page) -> None:
    got = page.evaluate("ask('What is 2+2?', { temperature: 0, model: 'smollm2-135m', user: 'x' })")
    result = got.pop("slm2")
    run = json.loads(result["transcript"])
    assert got.pop("id").startswith("chatcmpl-")
    assert got.pop("created") > 1_700_000_000
    assert got.pop("system_fingerprint")
    n_prompt, n_said = len(run["prompt_ids"]), len(run["generated_ids"])
    assert got == {
        "object": "chat.completion",
        "model": "smollm2-135m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": SUM, "refusal": None},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_said,
            "total_tokens": n_prompt + n_said,
            "prompt_tokens_details": {"cached_tokens": run["timings"]["reused_tokens"]},
        },
    }


def test_a_stream_says_the_same_in_chunks(page: Page) -> None:
    chunks = page.evaluate(
        """ask("What is 2+2?", { temperature: 0, stream: true, stream_options: { include_usage: true } })
          .then(collect)"""
    )
    first, *middle, last, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(chunks) == SUM
    assert len(middle) > 3
    assert [c["choices"][0]["finish_reason"] for c in (first, *middle)] == [None] * (len(middle) + 1)
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] > usage["usage"]["completion_tokens"] > 3
    assert {c["usage"] for c in (first, *middle, last)} == {None}
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    plain = page.evaluate("ask('What is 2+2?', { temperature: 0, stream: true }).then(collect)")
    assert not any("usage" in chunk for chunk in plain)


def test_stop_length_and_seed(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const stopped = await ask("What is 2+2?", { temperature: 0, stop: ["classic", "4"] });
          const short = await ask("What is 2+2?", { temperature: 0, max_completion_tokens: 3 });
          const draw = async (seed) =>
            (await ask("Name a colour.", { temperature: 1.5, top_p: 0.99, seed, max_tokens: 12,
              presence_penalty: 0.5, frequency_penalty: -0.5, top_k: 50 })).choices[0].message.content;
          return { stopped, short, drawn: [await draw(1), await draw(1), await draw(2)] };
        }"""
    )
    stopped, short = (got[name]["choices"][0] for name in ("stopped", "short"))
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("The answer to this ", "stop")
    assert (short["message"]["content"], short["finish_reason"]) == ("The answer to", "length")
    assert got["short"]["usage"]["completion_tokens"] == 3
    assert got["drawn"][0] == got["drawn"][1] != got["drawn"][2]
    params = json.loads(got["stopped"]["slm2"]["transcript"])["request"]["params"]
    assert params["stop"] == ["classic", "4"]


def test_a_schema_is_kept(page: Page) -> None:
    got = page.evaluate(
        """(schema) => ask("Describe a person.", { temperature: 1, seed: 4, max_tokens: 120,
          response_format: { type: "json_schema",
            json_schema: { name: "person", strict: true, schema } } })""",
        SCHEMA,
    )
    (choice,) = got["choices"]
    assert choice["finish_reason"] == "stop"
    person = json.loads(choice["message"]["content"])
    assert list(person) == ["name", "age", "tags"]
    assert len(person["name"]) <= 12
    assert 1 <= person["age"] <= 99
    assert person["tags"]
    assert set(person["tags"]) <= {"a", "b"}


def test_log_probabilities(page: Page) -> None:
    whole, chunks = page.evaluate(
        """async () => {
          const wanted = { temperature: 0, max_tokens: 5, logprobs: true, top_logprobs: 2 };
          const whole = await ask("What is 2+2?", wanted);
          return [whole, await collect(await ask("What is 2+2?", { ...wanted, stream: true }))];
        }"""
    )
    content = whole["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == whole["choices"][0]["message"]["content"]
    assert len(content) == 5
    for token in content:
        chosen = {name: token[name] for name in ("token", "bytes", "logprob")}
        assert token["top_logprobs"][0] == chosen, "greedy"
        assert bytes(token["bytes"]).decode() == token["token"]
        assert 0 >= token["logprob"] >= token["top_logprobs"][1]["logprob"]
    assert chunks[-1]["choices"][0]["logprobs"]["content"] == content
    assert {str(chunk["choices"][0]["logprobs"]) for chunk in chunks[:-1]} == {"None"}


def test_tools_are_called_and_answered(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const { create } = caller.chat.completions;
          const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
          const messages = [{ role: "user", content: "Rain?" }];
          const request = { messages, tools, tool_choice: "auto", parallel_tool_calls: true, temperature: 0,
            max_tokens: 40 };
          const chunks = await collect(await create({ ...request, stream: true }));
          const completion = await create(request);
          const [{ message }] = completion.choices;
          const cut = await create({ ...request, max_tokens: 9 });
          messages.push(message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "wet" });
          const answer = await create({ ...request, enable_thinking: false });
          const untold = await create({ ...request, tool_choice: "none", enable_thinking: false });
          return { chunks, completion, cut, answer, untold };
        }"""
    )
    (choice,) = got["completion"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == SAID
    assert choice["message"]["reasoning_content"] == THOUGHT
    (call,) = choice["message"]["tool_calls"]
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": CALL}

    deltas = [chunk["choices"][0]["delta"] for chunk in got["chunks"]]
    assert (text_of(got["chunks"], "reasoning_content"), text_of(got["chunks"])) == (THOUGHT, SAID)
    kinds = [next(iter(delta), "") for delta in deltas[1:]]
    assert kinds == ["reasoning_content"] + ["content"] * (len(kinds) - 3) + ["tool_calls", ""]
    (streamed,) = deltas[-2]["tool_calls"]
    assert (streamed["index"], streamed["function"]) == (0, CALL)
    assert got["chunks"][-1]["choices"][0]["finish_reason"] == "tool_calls"

    (cut,) = got["cut"]["choices"]
    assert cut["finish_reason"] == "length"
    assert "tool_calls" not in cut["message"]
    assert cut["malformed_tool_calls"] == [{"text": '{"name":"', "error": "the reply ended inside the call"}]

    run = json.loads(got["answer"]["slm2"]["transcript"])
    assert got["answer"]["choices"][0]["message"]["content"] == ANSWER
    assert got["answer"]["choices"][0]["finish_reason"] == "stop"
    assert [message["role"] for message in run["request"]["messages"]] == ["user", "assistant", "tool"]
    assert run["request"]["messages"][1]["tool_calls"] == [CALL], "spelled as the model spelled it"
    assert len(run["request"]["tools"]) == 1
    assert json.loads(got["untold"]["slm2"]["transcript"])["request"]["tools"] == []


def test_aborting(page: Page) -> None:
    got = page.evaluate(
        """async () => {
          const story = "Write a long story about the sea.";
          const more = { temperature: 0, max_tokens: 300 };
          const controller = new AbortController();
          const reply = ask(story, more, { signal: controller.signal });
          let busy = "";
          await ask("Hello").catch((error) => (busy = error.code));
          setTimeout(() => controller.abort(), 100);
          const rejected = await reply.then(() => "no error", (error) => [error.code, error.name]);

          const stream = await ask(story, { ...more, stream: true }, { signal: AbortSignal.timeout(200) });
          const ended = await collect(stream);
          const own = await ask(story, { ...more, stream: true });
          let n = 0;
          for await (const _ of own) if (++n === 4) own.controller.abort();
          const left = await ask(story, { ...more, stream: true });
          for await (const _ of left) break;
          const after = await ask("What is 2+2?", { temperature: 0 });
          return { busy, rejected, ended, own: (await own.slm2).reason, left: (await left.slm2).reason,
            after: after.choices[0].message.content };
        }"""
    )
    assert got["busy"] == "protocol.state"
    assert got["rejected"] == ["cancelled", "Cancelled"]
    assert {chunk["choices"][0]["finish_reason"] for chunk in got["ended"]} == {None}
    assert (got["own"], got["left"], got["after"]) == ("cancelled", "cancelled", SUM)


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("{ n: 2 }", "request.n"),
        ("{ model: 'gpt-4' }", "request.model"),
        ("{ tool_choice: 'required' }", "request.tool_choice"),
        ("{ tool_choice: { type: 'function', function: { name: 'f' } } }", "request.tool_choice"),
        ("{ parallel_tool_calls: false }", "request.parallel_tool_calls"),
        ("{ logit_bias: { 5: 1 } }", "request.logit_bias"),
        ("{ functions: [] }", "request.functions"),
        ("{ store: true }", "request.store"),
        ("{ continue_ids: [1] }", "request.continue_ids"),
        ("{ stream: 1 }", "request.stream"),
        ("{ logprobs: 3 }", "request.logprobs"),
        ("{ top_logprobs: 3 }", "request.top_logprobs"),
        ("{ logprobs: true, top_logprobs: 21 }", "params.logprobs"),
        ("{ max_tokens: 1, max_completion_tokens: 1 }", "request.max_tokens"),
        ("{ stream_options: { include_usage: true } }", "request.stream_options"),
        ("{ stream: true, stream_options: true }", "request.stream_options"),
        ("{ stream: true, stream_options: { include_usage: 1 } }", "request.stream_options.include_usage"),
        ("{ stream: true, stream_options: { obfuscate: true } }", "request.stream_options.obfuscate"),
        ("{ temperature: '0' }", "options.temperature"),
        ("{ temperature: -1 }", "params.temperature"),
        ("{ presence_penalty: 3 }", "params.presence_penalty"),
        ("{ seed: -1 }", "params.seed"),
        ("{ messages: [{ role: 'user', content: [{ type: 'text', text: 'a' }] }] }", "messages[0].content"),
        ("{ response_format: { type: 'xml' } }", "response_format.type"),
        ("null, { retries: 1 }", "options.retries"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(page: Page, more: str, place: str) -> None:
    got = page.evaluate(f"ask('a', {more}).then(() => 'no error', (e) => [e.name, e.detail.place])")
    assert got == ["InputError", place]
