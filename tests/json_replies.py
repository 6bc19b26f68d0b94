"""Replies of SmolLM2-135M that have to be JSON: how many are, by the package `jsonschema`, and what it costs.

    PYTHONPATH=py:tests python tests/json_replies.py [--replies 100] [--threads 2]

Each reply has a task of TASKS, in turn, a seed of its own, and temperature 0.8, so that the network would
often write something else. It counts the replies that ended by themselves, parse and are valid; one that is
cut off by `max_tokens` can't be JSON and is counted apart. The cost of a mask is measured by walking each
reply again, with each task's language made anew: a state's first visit asks every token of the vocabulary, a
later one unpacks what was kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from slm2_web.constrain.automaton import State
from slm2_web.constrain.mask import Language, Tokens
from slm2_web.constrain.schema import parse_format
from slm2_web.forward2.native_wasm import native_wasm_executor
from slm2_web.packed import PackedModel
from slm2_web.reply import Markers
from slm2_web.request import parse_request, prompt_of
from slm2_web.sampling2.params import parse_params
from slm2_web.session import Done, Session
from slm2_web.template2.machine import template_for
from slm2_web.tokenizer2.tokenizer import Tokenizer

MODEL = Path(__file__).resolve().parents[1] / "build" / "models" / "smollm2-135m"
MAX_TOKENS = 300
CONTEXT = 512


def text(most: int) -> dict[str, Any]:
    """A string with a bound: small models like long ones."""
    return {"type": "string", "minLength": 1, "maxLength": most}


def thing(properties: dict[str, Any], required: Sequence[str] | None = None) -> dict[str, Any]:
    """An object of these members, all required unless `required` says which."""
    names = list(properties if required is None else required)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


SCORES = thing({"tea": {"type": "number"}, "coffee": {"type": "number"}})
SMALL = {"type": "integer", "minimum": -99, "maximum": 99}

TASKS: list[tuple[str, Any]] = [
    (
        "Describe a person.",
        thing({"name": text(20), "age": {"type": "integer", "minimum": 0, "maximum": 130}}),
    ),
    ("Is the sky blue?", thing({"answer": {"type": "boolean"}, "why": text(60)})),
    (
        "List three fruits.",
        {"type": "array", "items": text(15), "minItems": 3, "maxItems": 3},
    ),
    (
        "What is the weather in Paris?",
        thing(
            {
                "city": {"const": "Paris"},
                "sky": {"enum": ["clear", "cloudy", "rain", "snow"]},
                "celsius": {"type": "integer", "minimum": -50, "maximum": 60},
            }
        ),
    ),
    ("Give me a number between 1 and 6.", {"type": "integer", "minimum": 1, "maximum": 6}),
    (
        "Extract the date: the treaty was signed on the 3rd of May 1919.",
        thing({"date": {"type": "string", "pattern": r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"}}),
    ),
    (
        "Which is better, tea or coffee? Answer with your choice and a score for both.",
        thing({"choice": {"enum": ["tea", "coffee"]}, "scores": SCORES}),
    ),
    (
        "Plan a small shopping list.",
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 4,
            "items": thing({"item": text(16), "count": {"type": "integer", "minimum": 1, "maximum": 12}}),
        },
    ),
    (
        "Call the tool that adds 2 and 3.",
        thing(
            {
                "name": {"enum": ["add", "subtract"]},
                "arguments": thing({"a": SMALL, "b": SMALL}),
            }
        ),
    ),
    (
        "Who wrote Hamlet? Say null if you don't know.",
        thing({"author": {"anyOf": [text(24), {"type": "null"}]}, "sure": {"type": "boolean"}}),
    ),
    (
        "Grüße auf Deutsch, bitte. 日本語も。",
        thing(
            {"grüße": text(20), "日本語": text(12), "🫠": {"type": ["boolean", "null"]}}, ["grüße", "日本語"]
        ),
    ),
    (
        "Rate this film: it was slow, but the ending was beautiful.",
        {
            "$defs": {"stars": {"type": "integer", "minimum": 1, "maximum": 5}},
            **thing(
                {
                    "plot": {"$ref": "#/$defs/stars"},
                    "acting": {"$ref": "#/$defs/stars"},
                    "remarks": {"type": "array", "items": text(25), "maxItems": 2},
                },
                ["plot", "acting"],
            ),
        },
    ),
]  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """What came of the replies. Times are milliseconds of a mask: of states met first, and met again."""

    n: int = 0
    valid: int = 0
    cut: int = 0
    failures: list[str] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    again_ms: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        def cost(times: list[float]) -> str:
            mean = sum(times) / max(1, len(times))
            return f"{len(times)} steps, mean {mean:.2f}, max {max(times, default=0):.2f}"

        return (
            f"{self.valid} of {self.n} replies parse and are valid; {self.cut} were cut off, "
            f"{len(self.failures)} ended and are not\n"
            f"mask, ms: first visits of a state: {cost(self.first_ms)}; others: {cost(self.again_ms)}"
        )


async def replies(packed: PackedModel, n: int, n_threads: int) -> Outcome:
    """Ask for `n` replies."""
    tokenizer = Tokenizer.from_bytes(packed.tokenizer_bytes)
    template = template_for(packed.manifest.template, tokenizer)
    executor = await native_wasm_executor(packed, n_threads=n_threads, max_seq_len=CONTEXT)
    session = Session(tokenizer, executor, packed.manifest.eos_ids, Markers.of(tokenizer))
    tokens = Tokens(tokenizer)
    languages = [Language(_expression(schema), tokens) for _, schema in TASKS]
    seen: list[set[State]] = [set() for _ in TASKS]
    outcome = Outcome()
    for seed in range(n):
        number = seed % len(TASKS)
        question, schema = TASKS[number]
        asked = {
            "response_format": _format(schema),
            "temperature": 0.8,
            "seed": seed,
            "max_tokens": MAX_TOKENS,
        }
        params = parse_params(asked, packed.manifest.defaults)
        messages = [{"role": "user", "content": f"{question} Answer in JSON."}]
        prompt = prompt_of(parse_request({"messages": messages}, params, CONTEXT), template, tokenizer)
        done = [event async for event in session.generate(prompt.ids, params)][-1]
        assert isinstance(done, Done)
        outcome.n += 1
        fault = _fault(done, schema)
        if done.reason != "stop_token":
            outcome.cut += 1
        elif fault is None:
            outcome.valid += 1
        else:
            outcome.failures.append(fault)
        for is_new, ms in _mask_ms(
            languages[number], seen[number], done.generated_ids, packed.manifest.eos_ids
        ):
            (outcome.first_ms if is_new else outcome.again_ms).append(ms)
        print(f"{seed:>3} {done.reason:>10} {fault or 'valid'}: {done.text.decode()}", flush=True)
    return outcome


def _format(schema: Any) -> str:
    return json.dumps({"type": "json_schema", "json_schema": {"schema": schema}}, ensure_ascii=False)


def _expression(schema: Any) -> Any:
    expression = parse_format(_format(schema).encode())
    assert expression is not None
    return expression


def _fault(done: Done, schema: Any) -> str | None:
    """What is wrong with a reply."""
    try:
        value = json.loads(done.text)
        jsonschema.Draft202012Validator(schema).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def _mask_ms(
    language: Language, seen: set[State], ids: Sequence[int], eos_ids: Sequence[int]
) -> Iterator[tuple[bool, float]]:
    """(whether its state is met for the first time, milliseconds) of each step's mask."""
    constraint = language.reply(eos_ids)
    for token_id in ids:
        is_new = constraint.state not in seen
        seen.add(constraint.state)
        start = time.perf_counter()
        constraint.allowed()
        yield is_new, (time.perf_counter() - start) * 1e3
        constraint.take(token_id)


def main() -> None:
    """Print each reply and what came of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL, help="the packed model")
    parser.add_argument("--replies", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    outcome = asyncio.run(replies(PackedModel.open(options.model), options.replies, options.threads))
    print(outcome)
    raise SystemExit(outcome.valid != outcome.n)


if __name__ == "__main__":
    main()
