"""The pipeline on transformers' own logits: a hostile conversation of several turns, step by step.

vectors/greedy_goldens.json.gz holds what transformers said in float32 (make_greedy_goldens.py). An executor
gives those logits in place of the network's; all else is ours: template, tokenizer, penalties, filters.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slm2_web.forward2.executor import digest_of
from slm2_web.packed import PackedModel
from slm2_web.request import parse_request, prompt_of
from slm2_web.sampling2.params import parse_params
from slm2_web.sampling2.sampler import sample
from slm2_web.session import Done, Session
from slm2_web.template2.machine import template_for
from slm2_web.tokenizer2.tokenizer import Tokenizer

GOLDEN = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "vectors" / "greedy_goldens.json.gz").read_bytes())
)
PROMPT = GOLDEN["prompt_ids"]
RUNS = pytest.mark.parametrize("run", GOLDEN["runs"], ids=["no penalty", "repetition penalty"])


def _numbers(text: str, kind: str) -> NDArray[Any]:
    """Items whose first bytes come first, then their second ones."""
    data = np.frombuffer(base64.b64decode(text), np.uint8)
    planes = data.reshape(np.dtype(kind).itemsize, -1)
    return np.ascontiguousarray(planes.T).view(kind).ravel()


def logits_of(step: dict[str, Any]) -> NDArray[np.float32]:
    """f32[vocab_size]; ids that were not recorded have the largest value among them."""
    logits = np.full(GOLDEN["vocab_size"], step["floor"], np.float32)
    values = _numbers(step["values"], "<f4")
    assert values.min() >= np.float32(step["floor"])
    logits[np.cumsum(_numbers(step["ids"], "<u2").astype(np.int64))] = values
    return logits


@dataclass
class Recorded:
    """Gives the recorded logits, provided that it is asked for them in order."""

    steps: Sequence[dict[str, Any]]
    ids: list[int] = field(default_factory=list)
    max_seq_len: int = 1024
    max_chunk_tokens: int = 64
    name: str = "recorded"
    adapter: str = "transformers"
    kernel_ms: float = 0.0

    @property
    def pos(self) -> int:
        return len(self.ids)

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> NDArray[np.float32] | None:
        self.ids += ids
        return logits_of(self.steps[len(self.ids) - len(PROMPT)]) if want_logits else None

    def truncate(self, pos: int) -> None:
        del self.ids[pos:]

    def digest(self, logits: NDArray[np.float32]) -> str:
        return digest_of(logits)


def test_the_prompt_is_made_of_the_messages(packed_smollm2: Path) -> None:
    """What was said names control tokens; the prompt has those of the template alone: two a turn."""
    model = PackedModel.open(packed_smollm2)
    tokenizer = Tokenizer.from_bytes(model.tokenizer_bytes)
    template = template_for(model.manifest.template, tokenizer)
    request = parse_request({"messages": GOLDEN["messages"]}, parse_params({}, {}), 2048)
    assert prompt_of(request, template, tokenizer).ids == PROMPT
    text = "".join(message["content"] for message in GOLDEN["messages"])
    assert text.count("<|im_start|>") == 3
    assert text.count("<|im_end|>") == 3
    assert PROMPT.count(tokenizer.control_id(b"<|im_start|>")) == len(GOLDEN["messages"]) + 1
    assert PROMPT.count(tokenizer.control_id(b"<|im_end|>")) == len(GOLDEN["messages"])


@RUNS
def test_the_greedy_ids_are_transformers(run: dict[str, Any], smollm2_tokenizer: Tokenizer) -> None:
    executor = Recorded(run["steps"])
    session = Session(smollm2_tokenizer, executor, ())
    params = parse_params(
        {
            "temperature": 0,
            "max_tokens": len(run["steps"]),
            "repetition_penalty": run["repetition_penalty"],
            "invalid_utf8": "show",
        },
        {},
    )

    async def last() -> object:
        return [event async for event in session.generate(PROMPT, params)][-1]

    done = asyncio.run(last())
    assert isinstance(done, Done)
    assert list(done.generated_ids) == run["generated_ids"]
    assert executor.ids == [*PROMPT, *run["generated_ids"][:-1]]


@RUNS
def test_the_kept_sets_are_transformers(run: dict[str, Any]) -> None:
    asked = {**GOLDEN["sampled"], "repetition_penalty": run["repetition_penalty"]}
    params = parse_params(asked, {})
    sizes = set()
    for at, step in enumerate(run["steps"]):
        drawn = sample(logits_of(step), PROMPT, run["generated_ids"][:at], params, GOLDEN["vocab_size"])
        assert drawn.kept_ids.tolist() == step["kept"], at
        sizes.add(len(step["kept"]))
    assert len(sizes) > 3


def test_the_penalty_matters_here() -> None:
    """Both runs begin with the same logits, and part."""
    free, penalised = GOLDEN["runs"]
    assert free["steps"][0]["values"] == penalised["steps"][0]["values"]
    assert free["generated_ids"] != penalised["generated_ids"]
