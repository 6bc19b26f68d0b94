"""One job of the tokenizer's bench in a CPython of its own, as page/tokenizer_job.js is one in a browser.

    python -m slm2_web.bench.tokenizer_job '{"subject", "folder", "text", "passes", "seconds"}'

prints {"load_ms", "first_ms", "warm_ms", "n_ids", "sha256"}; page/tokenizer_job.js says what they mean.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Encode = Callable[[str], Sequence[int]]
Load = Callable[[], Encode]


def _kernel(folder: Path) -> Load:
    from slm2_web.tokenizer2.native import WasmtimeKernel, kernel_module

    data = (folder / "tokenizer.slm2tok").read_bytes()

    def load() -> Encode:
        kernel_module()  # compiles; wasmtime keeps nothing between processes
        kernel = WasmtimeKernel(data)

        def encode(text: str) -> list[int]:
            raw = text.encode()
            return kernel.encode(raw, array("I", (0, len(raw), 0)))

        return encode

    return load


def _python(folder: Path) -> Load:
    from slm2_web.tokenizer2.runs import Untrusted
    from slm2_web.tokenizer2.tokenizer import Tokenizer

    data = (folder / "tokenizer.slm2tok").read_bytes()

    def load() -> Encode:
        tokenizer = Tokenizer.from_bytes(data)
        return lambda text: tokenizer.encode([Untrusted(text.encode())])

    return load


def _native(folder: Path) -> Load:
    from tokenizers import Tokenizer

    data = (folder / "tokenizer.json").read_bytes()

    def load() -> Encode:
        tokenizer = Tokenizer.from_buffer(data)

        def encode(text: str) -> Sequence[int]:
            ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=False).ids
            return ids

        return encode

    return load


SUBJECTS: Mapping[str, Callable[[Path], Load]] = {
    "kernel": _kernel,
    "python": _python,
    "native": _native,
}


def run(subject: str, folder: Path, text: str, passes: int, seconds: float) -> dict[str, Any]:
    """The job's answer."""
    content = (folder / text).read_bytes().decode("utf-8")
    load = SUBJECTS[subject](folder)
    before = time.perf_counter()
    encode = load()
    encode("Hello, world!")
    load_ms = 1e3 * (time.perf_counter() - before)

    before = time.perf_counter()
    ids = encode(content)
    first_ms = 1e3 * (time.perf_counter() - before)

    warm_ms: list[float] = []
    start = time.perf_counter()
    while len(warm_ms) < passes and time.perf_counter() - start < seconds:
        before = time.perf_counter()
        encode(content)
        warm_ms.append(1e3 * (time.perf_counter() - before))
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    sha256 = hashlib.sha256(words.tobytes()).hexdigest()
    return {
        "load_ms": load_ms,
        "first_ms": first_ms,
        "warm_ms": warm_ms,
        "n_ids": len(ids),
        "sha256": sha256,
    }


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    request["folder"] = Path(request["folder"])
    print(json.dumps(run(**request)))
