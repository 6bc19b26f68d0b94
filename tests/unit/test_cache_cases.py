"""Reported faults of KV caches and full contexts: Qwen3's tokenizer, a random Qwen3 of its vocabulary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slm2_web.compile.pack_hf import pack_hf
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel
from slm2_web.sampling2.params import parse_params
from slm2_web.session import Done, Session
from slm2_web.tokenizer2.runs import Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_safetensors import make_tiny_hf

DATA = json.loads((Path(__file__).parent / "vectors" / "cache_cases.json").read_bytes())
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in DATA["cases"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PackedModel:
    """One layer, and a row for each of Qwen3's ids."""
    folder = tmp_path_factory.mktemp("qwen3")
    config = {"vocab_size": 151936, "num_hidden_layers": 1}
    made = make_tiny_hf(folder / "hf", "qwen3", seed=3, config=config)
    pack_hf(made.files, folder / "packed", made.spec, compile_tokenizer=made.compile_tokenizer)
    return PackedModel.open(folder / "packed")


def new_session(model: PackedModel, tokenizer: Tokenizer, max_seq_len: int = 64) -> Session:
    return Session(tokenizer, ReferenceExecutor(model, max_seq_len=max_seq_len), ())


def reply(session: Session, ids: Sequence[int], max_tokens: int) -> Done:
    """The end of a greedy reply."""

    async def run() -> Done:
        events = [
            event
            async for event in session.generate(
                ids, parse_params({"temperature": 0, "max_tokens": max_tokens}, {})
            )
        ]
        assert isinstance(events[-1], Done)
        return events[-1]

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["KVC-02", "KVC-03"])
def test_what_is_reused_is_what_the_ids_have_in_common(
    name: str, model: PackedModel, qwen3_tokenizer: Tokenizer
) -> None:
    """And the reply is that of a cache that never held anything else."""
    case = CASES[name]["input"]
    before, after = (
        (case["cached_ids"], case["next_prompt_ids"])
        if name == "KVC-02"
        else (case["generated_ids"], case["retokenised"])
    )
    session = new_session(model, qwen3_tokenizer)
    reply(session, before, 1)
    assert session.cached_ids == tuple(before)
    warm = reply(session, after, 4)
    assert warm.timings.reused_tokens == CASES[name]["expected"]["reusable_prefix"]
    assert warm.timings.prefill_tokens == len(after) - warm.timings.reused_tokens
    cold = reply(new_session(model, qwen3_tokenizer), after, 4)
    assert (warm.generated_ids, warm.logit_digests) == (cold.generated_ids, cold.logit_digests)


def test_the_same_text_may_have_other_ids(qwen3_tokenizer: Tokenizer) -> None:
    """What KVC-03 is about: a cache that went by text would take one for the other."""
    case = CASES["KVC-03"]["input"]
    text = case["text"].encode()
    assert qwen3_tokenizer.decode(case["generated_ids"]) == text
    assert qwen3_tokenizer.encode([Untrusted(text)]) == case["retokenised"]


def test_a_full_context_ends_the_reply(model: PackedModel, qwen3_tokenizer: Tokenizer) -> None:
    """Positions 0 to 63 are used and none is used twice.

    The case allows 4 ids. We give a fifth: it is drawn from the last position's logits and takes none itself.
    """
    case = CASES["CTX-03"]["input"]
    session = new_session(model, qwen3_tokenizer, case["n_ctx"])
    prompt = list(range(1000, 1000 + case["prompt_tokens"]))
    done = reply(session, prompt, case["max_tokens"])
    assert done.reason == "context_full"
    assert len(session.cached_ids) == case["n_ctx"]
    assert session.cached_ids == (*prompt, *done.generated_ids[:-1])
    assert len(done.generated_ids) == CASES["CTX-03"]["expected"]["generated_at_most"] + 1
