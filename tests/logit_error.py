"""How far the contract's logits lie from the float64 network's: for a model too large for the suite.

    PYTHONPATH=py:tests python tests/logit_error.py MODEL [--tokens 80] [--threads 2]

`MODEL` is a packed model's directory, such as the full random Qwen3-0.6B of tests/tiny_safetensors.py. The
logits after the last of `tokens` ids, by the wasm executor on wasmtime, against float_llama.py on the same
dequantised weights: what tests/unit/forward2/test_architectures.py bounds for tiny models.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import numpy as np

from bit_matrix import journey
from feeding import feed
from float_llama import FloatLlama
from slm2_web.forward2.native_wasm import native_wasm_executor
from slm2_web.packed import PackedModel


def main() -> None:
    """Print the difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    model = PackedModel.open(options.model)
    ids = journey(model.manifest.config.vocab_size, 0, options.tokens).prompt
    executor = asyncio.run(native_wasm_executor(model, n_threads=options.threads, max_seq_len=options.tokens))
    found = feed(executor, ids, executor.max_chunk_tokens).astype(np.float64)
    exact = FloatLlama(model).logits(ids)[-1]
    root_mean_square = np.sqrt(np.square(exact).mean())
    print(f"{model.manifest.name}, {options.tokens} ids: logits of {root_mean_square:.4f} (rms)")
    print(
        f"largest difference {np.abs(found - exact).max():.4f}, "
        f"{100 * np.sqrt(np.square(found - exact).mean()) / root_mean_square:.2f} % (rms); "
        f"likeliest id {exact.argmax()}, {found.argmax()}"
    )


if __name__ == "__main__":
    main()
