"""sample: logits to one id. Needs no model."""

from __future__ import annotations

from typing import Any

import click

from slm2_web.cli import requests
from slm2_web.cli.options import jsonl_option
from slm2_web.cli.requests import JSON, bad, bad_json
from slm2_web.cli.stdio import Answer, serve
from slm2_web.sampling2 import sampler
from slm2_web.sampling2.params import MAX_SEED, parse_params
from slm2_web.strictjson import show


@click.command()
@jsonl_option
def sample(jsonl: bool) -> int:
    """Logits to one id.

    \b
    in   {"logits": [...], "context_ids": [...], "params": {...}, "seed": 0, "position": 0,
          "n_tokens": ids from here on have no token (default: all have)}; all but logits may be missing
    out  {"kept_ids": [...], "probs": [...], "id": ...}
    """
    return serve(_answer, jsonl=jsonl)


def _answer(value: Any) -> Answer:
    optional = ("context_ids", "params", "seed", "position", "n_tokens")
    request = JSON.object_with(value, "request", ("logits",), optional)
    logits = requests.logits(request["logits"])
    context_ids = requests.ids(request.get("context_ids", []), "context_ids")
    for index, token_id in enumerate(context_ids):
        if not 0 <= token_id < logits.size:
            raise bad("input.token_id", f"context_ids[{index}]", show(token_id), f"0 to {logits.size - 1}")
    params = requests.params(request)
    if "seed" in request:
        if "seed" in params:
            raise bad_json("seed", "a seed both in params and beside them", "one")
        params = {**params, "seed": request["seed"]}
    position = JSON.integer(request.get("position", 0), "position", 0, MAX_SEED)
    n_tokens = JSON.integer(request.get("n_tokens", logits.size), "n_tokens", 1, logits.size)
    draw = sampler.sample(logits, context_ids, parse_params(params, {}), position, n_tokens)
    return Answer({"kept_ids": draw.kept_ids.tolist(), "probs": draw.probs.tolist(), "id": draw.id})
