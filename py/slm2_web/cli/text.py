"""tokenize, detokenize, render, prompt: text and ids. None of them needs the model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from slm2_web.cli import requests
from slm2_web.cli.models import Model
from slm2_web.cli.options import context_option, jsonl_option, model_option
from slm2_web.cli.requests import JSON, bad_json
from slm2_web.cli.stdio import Answer, serve
from slm2_web.forward2.plan import DEFAULT_SEQ_LEN
from slm2_web.request import CONVERSATION_KEYS, KEYS, parse_request, prompt_of
from slm2_web.sampling2.params import parse_params
from slm2_web.strictjson import show
from slm2_web.template2.conversation import parse_conversation
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer


@click.command()
@model_option
@jsonl_option
def tokenize(name: str, jsonl: bool) -> int:
    """Text to ids.

    \b
    in   {"text": "..."} or {"bytes_hex": "..."}: untrusted, never gives a control id;
         {"runs": [{"text": "...", "trusted": true}]}: text in a trusted run may name added tokens;
         anything that does not begin with { is taken as plain untrusted text, byte for byte
    out  {"ids": [...]}
    """
    tokenizer = Model(name).tokenizer

    def answer(value: Any) -> Answer:
        request = requests.one_of(value, ("text", "bytes_hex", "runs"))
        runs: list[Run]
        if isinstance(request, bytes):
            runs = [Untrusted(request)]
        elif "runs" in request:
            runs = requests.runs(request["runs"])
        elif "text" in request:
            runs = [Untrusted(requests.utf8(request["text"], "text"))]
        else:
            runs = [Untrusted(requests.from_hex(request["bytes_hex"], "bytes_hex"))]
        return Answer({"ids": tokenizer.encode(runs)})

    return serve(answer, jsonl=jsonl, plain=True)


@click.command()
@model_option
@jsonl_option
def detokenize(name: str, jsonl: bool) -> int:
    """Ids to text.

    \b
    in   {"ids": [...], "special": "show" or "hide" (of added tokens; show is the default)}
    out  {"text": "..."}, or {"bytes_hex": "..."} where the bytes are not UTF-8
    """
    tokenizer = Model(name).tokenizer

    def answer(value: Any) -> Answer:
        request = JSON.object_with(value, "request", ("ids",), ("special",))
        special = request.get("special", "show")
        if special not in ("show", "hide"):
            raise bad_json("special", show(special), '"show" | "hide"')
        data = tokenizer.decode(requests.ids(request["ids"], "ids"), special=special)
        try:
            return Answer({"text": data.decode("utf-8")})
        except UnicodeDecodeError:
            return Answer({"bytes_hex": data.hex()})

    return serve(answer, jsonl=jsonl)


@click.command()
@model_option
@jsonl_option
def render(name: str, jsonl: bool) -> int:
    """Messages as the model's template frames them, all of them.

    \b
    in   {"messages": [...], and, each optional: "tools", "enable_thinking", "preserve_thinking",
          "add_generation_prompt": true (the default) or false}
    out  {"ids": [...], "text": "...", "runs": [{"text": "...", "trusted": true}, ...]}

    A trusted run that is a control token has its "id" too.
    """
    model = Model(name)

    def answer(value: Any) -> Answer:
        keys = (*CONVERSATION_KEYS[1:], "add_generation_prompt")
        request = dict(JSON.object_with(value, "request", ("messages",), keys))
        add = requests.flag(request.pop("add_generation_prompt", True), "add_generation_prompt")
        runs = model.template.render(parse_conversation(request), add_generation_prompt=add)
        return Answer(_shown(model.tokenizer, model.tokenizer.encode(runs), runs))

    return serve(answer, jsonl=jsonl)


@click.command()
@model_option
@context_option
@jsonl_option
def prompt(name: str, context: int | None, jsonl: bool) -> int:
    """A request to the prompt that `generate` would answer, within its budget.

    \b
    in   {"messages": [...], and, each optional: "tools", "enable_thinking", "preserve_thinking",
          "local_state", "evidence", "budget_tokens", "params"}
    out  {"ids": [...], "text": "...", "runs": [{"text": "...", "trusted": true}, ...], "ledger": {...}}

    The ledger has a line for each part: its tokens, and the pass in which it was left out or cut.
    """
    model = Model(name)
    max_seq_len = min(context or DEFAULT_SEQ_LEN, model.manifest.config.max_seq_len)

    def answer(value: Any) -> Answer:
        request = dict(JSON.object_with(value, "request", ("messages",), (*KEYS[1:], "params")))
        params = parse_params(requests.params(request), model.manifest.defaults)
        request.pop("params", None)
        made = prompt_of(parse_request(request, params, max_seq_len), model.template, model.tokenizer)
        shown = _shown(model.tokenizer, made.ids, made.runs)
        return Answer({**shown, "ledger": made.ledger.as_json()})

    return serve(answer, jsonl=jsonl)


def _shown(tokenizer: Tokenizer, ids: Sequence[int], runs: Sequence[Run]) -> dict[str, Any]:
    """A prompt's ids, its text, and the runs that it was made of."""
    shown: list[dict[str, Any]] = []
    for run in runs:
        if isinstance(run, Control):
            shown.append(
                {"text": tokenizer.token_bytes(run.id).decode("utf-8"), "trusted": True, "id": run.id}
            )
        else:
            shown.append({"text": run.data.decode("utf-8"), "trusted": isinstance(run, Trusted)})
    return {"ids": ids, "text": tokenizer.decode(ids).decode("utf-8"), "runs": shown}
