"""The sampling bench's job: the same code in CPython and in Pyodide, which reads it as a text."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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


def _words(seed: str, count: int) -> NDArray[np.uint32]:
    """Random 32-bit words, the same everywhere. (The site's numpy has no numpy.random.)"""
    return np.frombuffer(hashlib.shake_128(seed.encode()).digest(4 * count), "<u4")


def _values(seed: str) -> NDArray[np.float32]:
    """f32[N_LOGITS]: about normal, of deviation 2.5: sums of four words."""
    sums = _words(seed, 4 * N_LOGITS).reshape(4, N_LOGITS).astype(np.float64).sum(axis=0)
    values: NDArray[np.float64] = (sums / 2**32 - 2) * (2.5 * 3**0.5)
    return values.astype(np.float32)


def _ids(seed: str, count: int) -> NDArray[np.int64]:
    """int64[count]: any ids."""
    return _words(seed, count).astype(np.int64) % N_TOKENS


def run(repeats: int) -> dict[str, Any]:
    """`{"python", "cases": {name: {"ms", "sha256"}}}`: a list of the steps' times, and what they gave."""
    logits = np.stack([_values(f"logits {i}") for i in range(repeats)])
    logits[:, _ids("ids that stand out", 40)] += np.float32(9)
    context = _ids("context", CONTEXT_TOKENS).tolist()
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
