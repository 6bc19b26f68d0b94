"""One journey through a model by every executor, in chunks of several sizes: the logits' bits, compared.

    PYTHONPATH=py:tests python tests/bit_matrix.py [MODEL ...] [--extremes] [--prompt 80] [--steps 64]

A journey is a prompt, so many steps that each take the likeliest id, then a return to a prefix of it all,
other ids and steps from there: what a conversation does to a KV cache. `MODEL` is a packed model's directory
(SmolLM2 where none is named). Each executor and chunk size has to give the reference's digests, one for each
pass whose logits are looked at. `--extremes` changes the weights first: `with_extremes`. Prints a line for
each, and exits with 1 if a bit differs. docs/forward.md has the results.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import hashlib
import itertools
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feeding import feed
from slm2_web.forward2.exactmath import F32
from slm2_web.forward2.executor import Executor
from slm2_web.forward2.native import native_executor
from slm2_web.forward2.native_wasm import native_wasm_executor
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel

MODEL = Path(__file__).resolve().parents[1] / "build" / "models" / "smollm2-135m"
CHUNKS = (1, 7, 32, 80)


@dataclass(frozen=True, slots=True)
class Journey:
    """Where to go: `prompt`, `n_steps` steps, back to `keep` ids, `other` ids, `n_more` steps."""

    prompt: Sequence[int]
    n_steps: int
    keep: int
    other: Sequence[int]
    n_more: int

    @property
    def n_ids(self) -> int:
        """Positions that it takes."""
        return max(len(self.prompt) + self.n_steps, self.keep + len(self.other) + self.n_more)


@dataclass(frozen=True, slots=True)
class Trip:
    """How a journey went: the ids of its first part, and a digest of each pass's logits."""

    ids: tuple[int, ...]
    digests: tuple[str, ...]


def journey(vocab_size: int, n_steps: int, n_prompt: int = 80) -> Journey:
    """A journey of any ids; the return is to the middle of what was said."""
    ids = [(37 * i * i + 11 * i) % (vocab_size - 16) + 3 for i in range(n_prompt + 9)]
    return Journey(ids[:n_prompt], n_steps, n_prompt + n_steps // 2, ids[n_prompt:], n_steps // 8)


def travel(executor: Executor, way: Journey, chunk: int) -> Trip:
    """The journey, prompts cut into chunks of at most `chunk` ids."""
    executor.truncate(0)
    ids, digests = list(way.prompt), []

    def steps(logits: F32, n: int) -> list[int]:
        taken = []
        for _ in range(n):
            digests.append(digest(logits))
            taken.append(int(np.argmax(logits)))
            logits = feed(executor, taken[-1:], 1)
        digests.append(digest(logits))
        return taken

    ids += steps(feed(executor, way.prompt, chunk), way.n_steps)
    executor.truncate(way.keep)
    steps(feed(executor, way.other, chunk), way.n_more)
    return Trip(tuple(ids), tuple(digests))


def cold(executor: Executor, way: Journey, trip: Trip) -> str:
    """The digest right after the return, from an empty cache: of a conversation that never was longer."""
    executor.truncate(0)
    return digest(feed(executor, [*trip.ids[: way.keep], *way.other], executor.max_chunk_tokens))


def digest(logits: F32) -> str:
    """sha256 of the 32-bit patterns, in hexadecimal."""
    assert np.isfinite(logits).all()
    return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()


def executors(
    model: PackedModel, *, max_seq_len: int, max_chunk_tokens: int
) -> dict[str, Callable[[], Coroutine[Any, Any, Executor]]]:
    """Every executor but the reference, by name; each is tested by itself before use."""
    limits: Mapping[str, int] = {"max_seq_len": max_seq_len, "max_chunk_tokens": max_chunk_tokens}
    return {
        "webgpu": lambda: native_executor(model, **limits),
        "wasm, plain memory": lambda: native_wasm_executor(model, n_threads=0, **limits),
        "wasm, 1 thread": lambda: native_wasm_executor(model, n_threads=1, **limits),
        "wasm, 2 threads": lambda: native_wasm_executor(model, n_threads=2, **limits),
        "wasm, 3 threads": lambda: native_wasm_executor(model, n_threads=3, **limits),
    }


def with_extremes(model: PackedModel) -> PackedModel:
    """The model with extreme weights among its own, as a file may hold them.

    Scales: 0, -0, the smallest and the largest subnormal of f16, of either sign, and 32; one of each matrix
    is the largest f16. Rows of zeros. Norm weights and biases: 0, -0, and one of 1000.
    """
    weights = model.weights.copy()
    for name, entry in model.manifest.tensors.items():
        plane = "scales" if "scales" in entry.planes else "values"
        start = entry.planes[plane]
        data = weights[start : start + entry.plane_bytes(plane)]
        if plane == "values":
            if name != "rope.inv_freq":
                values = data.view("<f4")
                values[3::29], values[5::31], values[7] = 0.0, -0.0, 1000.0
            continue
        halves = data.view("<u2")
        for i, bits in enumerate((0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x5000)):
            halves[i :: 31 + 12 * i] = bits
        halves[len(halves) // 2] = 0x7BFF
        halves[: 2 * (len(halves) // entry.shape[0])] = 0
    return dataclasses.replace(model, weights=weights)


def main() -> int:
    """1 if a bit differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*", default=[MODEL], metavar="MODEL")
    parser.add_argument("--prompt", type=int, default=80, help="ids of the prompt")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--extremes", action="store_true", help="with extreme weights")
    parser.add_argument("--without", action="append", default=[], help="an executor to leave out")
    options = parser.parse_args()
    n_different = 0
    for directory in options.models:
        model = PackedModel.open(directory)
        model = with_extremes(model) if options.extremes else model
        way = journey(model.manifest.config.vocab_size, options.steps, options.prompt)
        started = time.perf_counter()
        reference = ReferenceExecutor(model, max_seq_len=way.n_ids, max_chunk_tokens=max(CHUNKS))
        want = travel(reference, way, max(CHUNKS))
        same = cold(reference, way, want) == want.digests[way.n_steps + 1]
        n_different += not same
        seconds = time.perf_counter() - started
        print(
            f"{directory.name}: reference, {len(want.digests)} digests, {len(set(want.ids))} different ids, "
            f"reuse {'equal to' if same else 'DIFFERS from'} cold, {seconds:.0f} s",
            flush=True,
        )
        made = executors(model, max_seq_len=way.n_ids, max_chunk_tokens=max(CHUNKS))
        for name in [name for name in made if name not in options.without]:
            executor = asyncio.run(made[name]())
            for chunk in CHUNKS:
                started = time.perf_counter()
                found = travel(executor, way, chunk)
                wrong = sum(a != b for a, b in itertools.zip_longest(want.digests, found.digests))
                n_different += wrong
                seconds = time.perf_counter() - started
                print(
                    f"{directory.name}: {name}, chunks of {chunk}: {wrong} differ, {seconds:.0f} s",
                    flush=True,
                )
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
