"""generate, replay: a reply as a transcript, and the same again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from slm2_web import transcript
from slm2_web.cli import requests
from slm2_web.cli.engines import Engine
from slm2_web.cli.models import Model
from slm2_web.cli.options import context_option, executor_option, jsonl_option, model_option
from slm2_web.cli.requests import JSON
from slm2_web.cli.stdio import EXIT_NO, Answer, serve
from slm2_web.cli.watch import Explainer, Progress
from slm2_web.request import KEYS, Request, parse_request, prompt_of
from slm2_web.sampling2.params import parse_params
from slm2_web.tokenizer2.runs import Trusted
from slm2_web.transcript import Transcript


@click.command()
@model_option
@executor_option
@context_option
@click.option("--no-template", is_flag=True, help="Take the raw prompt instead of messages.")
@click.option("--explain", is_flag=True, help="Tell on stderr what the model is given and what it says.")
@jsonl_option
def generate(name: str, kind: str, context: int | None, no_template: bool, explain: bool, jsonl: bool) -> int:
    """Messages to a reply, recorded as a transcript.

    \b
    in   {"messages": [...], "params": {...}} or {"prompt_ids": [...], "params": {...}};
         a message: role, content, and of an assistant reasoning_content and tool_calls;
         beside the messages: tools, enable_thinking, preserve_thinking, local_state, evidence, budget_tokens;
         beside either: continue_ids, the generated_ids of a reply that was cut short;
         params: temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
         banned_ids, profile, logprobs, seed, max_tokens, max_reasoning_tokens, stop, response_format,
         invalid_utf8; what is missing comes from the model
    out  a transcript: prompt_ids, ledger, generated_ids, text, reasoning, tool_calls, logprobs, reason, a
         digest of the logits per step, ...

    With --no-template: {"prompt": "...", "params": {...}}, or plain text (all that does not begin with {).
    The raw prompt is yours and trusted: a marker such as <|im_start|> in it becomes the control token. Do
    not put text of others into it.

    With --explain, stderr shows the size of the vocabulary, the rendered prompt with its number of tokens,
    and a line per sampled token: its id, bytes and text.
    """
    model = Model(name)
    with asyncio.Runner() as runner:
        engine = runner.run(Engine.create(model, kind, context))

        def answer(value: Any) -> Answer:
            request = _request(value, model, engine.executor.max_seq_len, no_template)
            prompt_ids, ledger = _prompt(request, model)
            watch = Explainer(model, prompt_ids) if explain else Progress(len(prompt_ids))
            done = runner.run(engine.reply(prompt_ids, request, watch))
            record = transcript.record(model.artifacts, request, prompt_ids, ledger, done, engine.executor)
            return Answer(record.as_json())

        return serve(answer, jsonl=jsonl, plain=no_template)


@click.command()
@click.option("--model", "name", metavar="NAME", help="Replay on this model; default: the transcript's.")
@executor_option
@jsonl_option
def replay(name: str | None, kind: str, jsonl: bool) -> int:
    """Run a transcript's request again and compare.

    \b
    in   a transcript
    out  {"equal": true}, or {"equal": false, "first_difference": {"place", "expected", "found", "step"}}
         and exit status 1

    Artifacts' hashes, request, prompt ids, every step's logits and id, reason and text are compared;
    executor and times are not.
    """
    engines: dict[tuple[str, int], Engine] = {}
    with asyncio.Runner() as runner:

        def answer(value: Any) -> Answer:
            recorded = transcript.from_json(value)
            model = Model(name or recorded.artifacts.model)
            model.check_weights()
            before = _as_of_now(recorded, model)
            difference = transcript.compare(recorded, before)
            if difference is None:
                wanted = (str(model.directory), recorded.request.max_seq_len)
                if wanted not in engines:
                    engines.clear()  # one in memory at a time
                    engines[wanted] = runner.run(Engine.create(model, kind, wanted[1]))
                engine = engines[wanted]
                done = runner.run(engine.rerun(recorded, Progress(len(before.prompt_ids))))
                again = transcript.record(
                    model.artifacts, before.request, before.prompt_ids, before.ledger, done, engine.executor
                )
                difference = transcript.compare(recorded, again) or transcript.check_unaltered(recorded)
            if difference is None:
                return Answer({"equal": True})
            return Answer({"equal": False, "first_difference": difference.as_json()}, EXIT_NO)

        return serve(answer, jsonl=jsonl)


def _as_of_now(recorded: Transcript, model: Model) -> Transcript:
    """`recorded` with what can be told without running: artifacts, context length, prompt ids, ledger."""
    request = recorded.request
    limit = model.manifest.config.max_seq_len
    prompt_ids, ledger = _prompt(request, model)
    return replace(
        recorded,
        artifacts=model.artifacts,
        request=replace(request, max_seq_len=min(request.max_seq_len, limit)),
        prompt_ids=tuple(prompt_ids),
        ledger=ledger,
    )


def _request(value: Any, model: Model, max_seq_len: int, no_template: bool) -> Request:
    """What is asked for, checked."""
    defaults = model.manifest.defaults
    if no_template:
        raw = {"prompt": value} if isinstance(value, bytes) else value
        request = JSON.object_with(raw, "request", ("prompt",), ("params",))
        prompt = request["prompt"]
        data = prompt if isinstance(prompt, bytes) else requests.utf8(prompt, "prompt")
        params = parse_params(requests.params(request), defaults)
        return Request.of_ids(model.tokenizer.encode([Trusted(data)]), params, max_seq_len)
    request = requests.one_of(value, ("messages", "prompt_ids"), optional=("params", *KEYS[1:]))
    params = parse_params(requests.params(request), defaults)
    if "messages" in request:
        asked = {key: value for key, value in request.items() if key != "params"}
        return parse_request(asked, params, max_seq_len)
    JSON.object_with(request, "request", ("prompt_ids",), ("params", "continue_ids"))
    continued = request.get("continue_ids")
    return Request.of_ids(
        requests.ids(request["prompt_ids"], "prompt_ids"),
        params,
        max_seq_len,
        requests.ids([] if continued is None else continued, "continue_ids"),
    )


def _prompt(request: Request, model: Model) -> tuple[Sequence[int], dict[str, Any] | None]:
    """The prompt's ids, and the ledger if the request leaves it to us what goes in."""
    if request.prompt_ids is not None:
        return request.prompt_ids, None
    prompt = prompt_of(request, model.template, model.tokenizer)
    return prompt.ids, prompt.ledger.as_json()
