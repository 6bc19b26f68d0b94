"""The sampling bench's job: the same code in CPython and in Pyodide, which reads it as a text."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from slm2_web.sampling2.params import parse_params
from slm2_web.sampling2.sampler import sample

N_LOGITS: Final = 151_936
N_TOKENS: Final = 151_669
CONTEXT_TOKENS: Final = 512

CASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"temperature": 0},
    "greedy, repetition penalty": {"temperature": 0, "repetition_penalty": 1.1},
    "publisher": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "no filter": {"temperature": 1},
    "top_p": {"temperature": 1, "top_p": 0.95},
    "top_p 0.999": {"temperature": 1, "top_p": 0.999},
    "llama.cpp": {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "profile": "llama.cpp"},
}


def run(repeats: int) -> dict[str, Any]:
    """`{"python", "cases": {name: {"ms", "sha256"}}}`: a list of the steps' times, and what they gave."""
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 2.5, (repeats, N_LOGITS)).astype(np.float32)
    logits[:, rng.integers(0, N_TOKENS, 40)] += np.float32(9)
    context = rng.integers(0, N_TOKENS, CONTEXT_TOKENS).tolist()
    cases = {}
    for name, raw in CASES.items():
        params = parse_params(raw, {})
        times, found = [], hashlib.sha256()
        for row in logits:
            start = time.perf_counter()
            drawn = sample(row, context, [], params, N_TOKENS)
            times.append(1e3 * (time.perf_counter() - start))
            found.update(np.int64(drawn.id).astype("<i8").tobytes())
            found.update(drawn.kept_ids.astype("<i4").tobytes() + drawn.probs.astype("<f4").tobytes())
        cases[name] = {"ms": times, "sha256": found.hexdigest()}
    return {"python": sys.version.split()[0], "cases": cases}
