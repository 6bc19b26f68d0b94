"""Perplexity of SmolLM2-135M by the contract's bits, beside the float64 network on the same weights.

    PYTHONPATH=py:tests python tests/perplexity.py [--windows 8] [--tokens 512] [--threads 2]

The text is prose and code of this Python's library (slm2_web/bench/corpus.py), half of each. It is cut into
windows of `tokens` + 1 ids, each read from an empty cache; each id but a window's first is predicted from
those before it. The contract's logits come from the wasm executor on wasmtime, whose bits are the
reference's. Against the float64 network (float_llama.py) the difference is what int8 activations and an
int8 cache cost: the 4-bit weights are the same. docs/forward.md has the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feeding import feed
from float_llama import F64, FloatLlama
from slm2_web.bench.corpus import texts
from slm2_web.forward2.executor import Executor
from slm2_web.forward2.native_wasm import native_wasm_executor
from slm2_web.packed import PackedModel
from slm2_web.tokenizer2.runs import Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer

MODEL = Path(__file__).resolve().parents[1] / "build" / "models" / "smollm2-135m"
SOURCES = ("english", "code")
# A token of this text has about four bytes; more than enough is read, and its beginning taken.
BYTES_A_TOKEN = 8


@dataclass(frozen=True, slots=True)
class Window:
    """Ids that are read from an empty cache, and where they are from."""

    source: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two networks on the same predictions, an entry each: either's loss in nats, KL, the same argmax."""

    exact: F64
    found: F64
    divergence: F64
    agrees: NDArray[np.bool_]

    @property
    def excess(self) -> float:
        """By what part the perplexity of `found` exceeds that of `exact`."""
        return float(np.expm1((self.found - self.exact).mean()))

    def __str__(self) -> str:
        exact, found = np.exp(self.exact.mean()), np.exp(self.found.mean())
        error = (self.found - self.exact).std() / len(self.exact) ** 0.5
        return (
            f"{len(self.exact)} predictions: perplexity {exact:.3f} -> {found:.3f} "
            f"({100 * self.excess:+.2f} %, standard error {100 * error:.2f} %), "
            f"KL {self.divergence.mean():.4f}, same likeliest token {100 * self.agrees.mean():.1f} %"
        )


def windows(tokenizer: Tokenizer, n_windows: int, n_tokens: int) -> list[Window]:
    """The text's first windows, of the sources in turn; a multiple of their number."""
    n_ids = n_windows // len(SOURCES) * (n_tokens + 1)
    library = {text.name: text.text for text in texts(BYTES_A_TOKEN * n_ids, [], "")}
    result = []
    for source in SOURCES:
        ids = tokenizer.encode([Untrusted(library[source].encode())])[:n_ids]
        assert len(ids) == n_ids
        starts = range(0, n_ids, n_tokens + 1)
        result += [Window(source, tuple(ids[at : at + n_tokens + 1])) for at in starts]
    return result


def compare(network: FloatLlama, executor: Executor, ids: Sequence[int]) -> Comparison:
    """The two networks on one window, from an empty cache; the executor takes one id at a time."""
    executor.truncate(0)
    exact = _log_softmax(network.logits(ids[:-1]))
    found = _log_softmax(np.stack([feed(executor, [token], 1) for token in ids[:-1]]).astype(np.float64))
    at = np.arange(len(ids) - 1), np.array(ids[1:])
    divergence: F64 = (np.exp(exact) * (exact - found)).sum(axis=1)
    return Comparison(-exact[at], -found[at], divergence, exact.argmax(axis=1) == found.argmax(axis=1))


def joined(parts: Sequence[Comparison]) -> Comparison:
    """All their predictions."""
    return Comparison(
        np.concatenate([part.exact for part in parts]),
        np.concatenate([part.found for part in parts]),
        np.concatenate([part.divergence for part in parts]),
        np.concatenate([part.agrees for part in parts]),
    )


def _log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: F64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def main() -> None:
    """Print the comparison of each window, of each source and of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL, help="the packed model")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512, help="predictions of a window")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    model = PackedModel.open(options.model)
    chosen = windows(Tokenizer.from_bytes(model.tokenizer_bytes), options.windows, options.tokens)
    ids = np.array([window.ids for window in chosen], "<u4")
    print("sha256 of the ids, as u32:", hashlib.sha256(ids.tobytes()).hexdigest())
    network = FloatLlama(model)
    executor = asyncio.run(
        native_wasm_executor(model, n_threads=options.threads, max_seq_len=options.tokens + 1)
    )
    parts = []
    for window in chosen:
        parts.append(compare(network, executor, window.ids))
        print(f"{window.source}: {parts[-1]}", flush=True)
    for source in SOURCES:
        print(
            f"{source}, all: {joined([p for p, w in zip(parts, chosen, strict=True) if w.source == source])}"
        )
    print(f"all: {joined(parts)}")


if __name__ == "__main__":
    main()
