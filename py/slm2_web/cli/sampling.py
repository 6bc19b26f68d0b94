"""sample: logits to one id. Needs no model."""

from __future__ import annotations

from typing import Any

import click

from slm2_web.cli import requests
from slm2_web.cli.options import jsonl_option
from slm2_web.cli.requests import JSON, bad, bad_json
from slm2_web.cli.stdio import Answer, serve
from slm2_web.sampling2 import sampler
from slm2_web.sampling2.logprobs import log_probabilities
from slm2_web.sampling2.params import MAX_SEED, parse_params
from slm2_web.strictjson import show


@click.command()
@jsonl_option
def sample(jsonl: bool) -> int:
    """Logits to one id.

    \b
    in   {"logits": [...], "context_ids": [...], "generated_ids": [...], "params": {...}, "seed": 0,
          "position": 0, "n_tokens": ids from here on have no token (default: all have)};
         all but logits may be missing. context_ids: the prompt's; generated_ids: the reply's so far
    out  {"kept_ids": [...], "probs": [...], "id": ..., "logprobs": with params.logprobs, as in replies}
    """
    return serve(_answer, jsonl=jsonl)


def _answer(value: Any) -> Answer:
    optional = ("context_ids", "generated_ids", "params", "seed", "position", "n_tokens")
    request = JSON.object_with(value, "request", ("logits",), optional)
    logits = requests.logits(request["logits"])
    context_ids, generated_ids = (
        _ids(request.get(name, []), name, logits.size) for name in ("context_ids", "generated_ids")
    )
    params = requests.params(request)
    if "seed" in request:
        if "seed" in params:
            raise bad_json("seed", "a seed both in params and beside them", "one")
        params = {**params, "seed": request["seed"]}
    position = JSON.integer(request.get("position", 0), "position", 0, MAX_SEED)
    n_tokens = JSON.integer(request.get("n_tokens", logits.size), "n_tokens", 1, logits.size)
    checked = parse_params(params, {})
    draw = sampler.sample(logits, context_ids, generated_ids, checked, n_tokens, position=position)
    found = {"kept_ids": draw.kept_ids.tolist(), "probs": draw.probs.tolist(), "id": draw.id}
    if checked.logprobs is not None:
        found["logprobs"] = log_probabilities(logits, n_tokens, draw.id, checked.logprobs).as_json()
    return Answer(found)


def _ids(value: Any, place: str, vocab_size: int) -> list[int]:
    ids = requests.ids(value, place)
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise bad("input.token_id", f"{place}[{index}]", show(token_id), f"0 to {vocab_size - 1}")
    return ids
