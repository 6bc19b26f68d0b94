"""tokenize, detokenize, render: text and ids. None of them needs the model's weights."""

from __future__ import annotations

from typing import Any

import click

from slm2_web.cli import requests
from slm2_web.cli.models import Model
from slm2_web.cli.options import jsonl_option, model_option
from slm2_web.cli.requests import JSON, bad_json
from slm2_web.cli.stdio import Answer, serve
from slm2_web.strictjson import show
from slm2_web.tokenizer2.runs import Run, Untrusted


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
    """Messages to the prompt, as the model's template frames it.

    \b
    in   {"messages": [{"role", "content"}], "add_generation_prompt": true (the default) or false}
    out  {"ids": [...], "text": "..."}
    """
    model = Model(name)

    def answer(value: Any) -> Answer:
        request = JSON.object_with(value, "request", ("messages",), ("add_generation_prompt",))
        add = requests.flag(request.get("add_generation_prompt", True), "add_generation_prompt")
        runs = model.template.render(requests.messages(request["messages"]), add_generation_prompt=add)
        ids = model.tokenizer.encode(runs)
        return Answer({"ids": ids, "text": model.tokenizer.decode(ids).decode("utf-8")})

    return serve(answer, jsonl=jsonl)
