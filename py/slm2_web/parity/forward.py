"""Stage `forward`: ids to logits' digests and ids, step by step, on the model's own executor.

    {"warm_ids", "prompt_ids", "chunk", "steps", "params"}
    {"ids", "logits": [sha256, ...]}

The cache is emptied; `warm_ids` go in, at most `chunk` ids at a time, and what they share with `prompt_ids`
stays; the rest of the prompt follows in the same chunks (0: as many as the executor takes). Then, `steps`
times, the logits' digest is taken (of little-endian float32), an id is drawn from them by `params` (as in the
stage `sampling`) and goes in. How ids are cut and what stays may never show: records come in threes with the
same prompt.
"""

from __future__ import annotations

from typing import Any, Final

from slm2_web.parity.canonical import Json, bits, real
from slm2_web.parity.dice import Dice
from slm2_web.parity.subject import Stage, Subject
from slm2_web.sampling2.params import parse_params
from slm2_web.sampling2.sampler import sample

CHUNKS: Final = (0, 1, 7)
# Of every so many prompts one is long, and one reply.
_LONG_EVERY: Final = 8
# In contexts up to this size the first prompt fills three blocks of attention: a sum of two has one order.
_SMALL_CONTEXT: Final = 512
_THREE_BLOCKS: Final = 140
_REALS: Final = ("temperature", "top_p", "min_p", "repetition_penalty")


def make(subject: Subject, index: int) -> Json:
    """The input of a record."""
    prompt = index // len(CHUNKS)
    dice = Dice(f"parity forward {prompt}")
    n_tokens = subject.tokenizer.n_tokens
    long = prompt % _LONG_EVERY == _LONG_EVERY - 1
    length = 40 if long else 8 + dice.below(8)
    if prompt == 0 and subject.max_seq_len <= _SMALL_CONTEXT:
        length = _THREE_BLOCKS
    prompt_ids = [dice.below(n_tokens) for _ in range(length)]
    steps = 24 if long else 3 + dice.below(3)
    params: dict[str, Any] = {
        "temperature": bits(0 if prompt % 2 == 0 else 1),
        "top_p": bits(0.9375),
        "min_p": bits(0),
        "repetition_penalty": bits(1 + dice.below(2) / 8),
        "top_k": dice.one((0, 40)),
        "seed": str(dice.word()),
    }
    chunk = CHUNKS[index % len(CHUNKS)]
    kept = dice.below(len(prompt_ids))
    warm_ids = [*prompt_ids[:kept], dice.below(n_tokens), dice.below(n_tokens)] if chunk == 7 else []
    return {
        "warm_ids": warm_ids,
        "prompt_ids": prompt_ids,
        "chunk": chunk,
        "steps": steps,
        "params": params,
    }


async def run(subject: Subject, made: Json) -> Json:
    """The output of a record. Raises: DeviceError when the device fails; InputError for its context."""
    executor = subject.cold_executor()
    chunk = min(made["chunk"] or executor.max_chunk_tokens, executor.max_chunk_tokens)
    raw = {**made["params"], **{name: real(made["params"][name]) for name in _REALS}}
    params = parse_params({**raw, "seed": int(raw["seed"])}, {})
    try:
        prompt: list[int] = made["prompt_ids"]
        warm: list[int] = made["warm_ids"]
        for at in range(0, len(warm), chunk):
            await executor.forward(warm[at : at + chunk], want_logits=False)
        keep = _shared(warm, prompt[:-1])
        executor.truncate(keep)
        logits = None
        for at in range(keep, len(prompt), chunk):
            ids = prompt[at : at + chunk]
            logits = await executor.forward(ids, want_logits=at + chunk >= len(prompt))
        drawn: list[int] = []
        digests: list[str] = []
        for step in range(made["steps"]):
            assert logits is not None
            digests.append(executor.digest(logits))
            drawn.append(sample(logits, prompt, drawn, params, subject.tokenizer.n_tokens).id)
            if step + 1 < made["steps"]:
                logits = await executor.forward(drawn[-1:], want_logits=True)
    finally:
        executor.truncate(0)
    return {"ids": drawn, "logits": digests}


def _shared(a: list[int], b: list[int]) -> int:
    """How many ids both begin with."""
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count


STAGE: Final = Stage("forward", {"quick": 3, "reduced": 9, "full": 48}, make, run, compute=True)
