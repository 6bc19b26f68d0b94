"""Loads a model of any size in Chromium and tells what it takes; for the full shape of Qwen3-0.6B:

    PYTHONPATH=py:tests python tests/tiny_safetensors.py SRC --pack build/models/qwen3-full --tokenizer FILE
    PYTHONPATH=py:tests python tests/full_shape_check.py build/models/qwen3-full

Prints JSON. `counted_loaded_bytes` is what the workers have by their own count, less weights and cache:
Python's heap, JavaScript's heaps, the tokenizer's file and the room that the forward pass reserves, whether
it was written to or not; the cache takes `cache_bytes_per_position` for each that was used.
`renderer_*_bytes` are resident bytes of the page's process: the page, its workers, their heaps, memories and
compiled code.
`non_weight_*_bytes` is what loading and the replies added to them, less the weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from e2e.conftest import ROOT, WEBGPU, launch, link
from e2e.guest import open_guest
from e2e.memory import renderer_bytes, worker_heap_bytes
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.serve import start
from slm2_web.compile.site import build_site

# What has been freed goes back to the system within this time.
SETTLE_MS = 5000
# Of `slm.info.memory`, what the worker has beside weights and cache.
COUNTED = ("python_heap_bytes", "tokenizer_bytes", "device_work_bytes")
ASK = """async ([text, max_tokens]) => {
  const chat = slm.chat([{ role: "user", content: text }], { temperature: 0, max_tokens });
  return (await chat.result).stats;
}"""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a packed model's folder")
    parser.add_argument("--executor", default="wasm")
    parser.add_argument("--max-seq-len", type=int, help="tokens of the context; by default the page's")
    parser.add_argument("--long", type=int, default=400, help="words of the long prompt")
    options = parser.parse_args()
    small = ROOT / "build" / "models" / "smollm2-135m"
    built = ROOT / "build" / "e2e-site"
    build_site(ROOT, built, [small], Fetcher.from_environment(ROOT), print)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder, sync_playwright() as driver:
        site = Path(folder) / "site"
        shutil.copytree(built, site, copy_function=link)
        shutil.copytree(options.model, site / "models" / options.model.name, copy_function=link)
        server = start(site, port=0, base="/", isolation=True)
        browser = launch(driver, WEBGPU)
        print(json.dumps(measure(browser, server.url, options), indent=1))
        browser.close()
        server.close()


def measure(browser: Any, url: str, options: argparse.Namespace) -> dict[str, Any]:
    """What loading and two replies take."""
    page = open_guest(browser, url)
    page.set_default_timeout(600_000)

    def resident() -> int:
        page.wait_for_timeout(SETTLE_MS)
        return renderer_bytes(browser)

    before = resident()
    info = page.evaluate(
        "async (o) => (globalThis.slm = await client.SLM2.load(o)).info",
        {"model": options.model.name, "executor": options.executor, "max_seq_len": options.max_seq_len},
    )
    loaded = resident()
    heaps = worker_heap_bytes(page)
    short = page.evaluate(ASK, ["What is the capital of France?", 16])
    replied = resident()
    long = page.evaluate(ASK, ["word " * options.long, 8])
    at_end = resident()
    memory = info["memory"]
    weights = memory["weights_bytes"]
    page.evaluate("() => slm.dispose()")
    return {
        "executor": info["executor"],
        "adapter": info["adapter"],
        "max_seq_len": info["max_seq_len"],
        "timings": info["timings"],
        "memory": memory,
        "worker_heap_bytes": heaps,
        "counted_loaded_bytes": sum(heaps.values()) + sum(memory[key] for key in COUNTED),
        "cache_bytes_per_position": memory["device_cache_bytes"] // info["max_seq_len"],
        "short": speed(short),
        "long": speed(long),
        "renderer_before_bytes": before,
        "renderer_loaded_bytes": loaded,
        "renderer_replied_bytes": replied,
        "renderer_at_end_bytes": at_end,
        "non_weight_loaded_bytes": loaded - before - weights,
        "non_weight_replied_bytes": replied - before - weights,
        "non_weight_at_end_bytes": at_end - before - weights,
        "renderer_disposed_bytes": resident(),
    }


def speed(stats: dict[str, Any]) -> dict[str, Any]:
    """Tokens, and tokens per second, of a reply."""
    steps = stats["decode_ms"][1:]
    return {
        "prompt_tokens": stats["prompt_tokens"],
        "generated_tokens": stats["generated_tokens"],
        "prefill_per_s": round(stats["prefill_tokens"] / stats["prefill_ms"] * 1e3, 1),
        "decode_per_s": round(len(steps) / sum(steps) * 1e3, 1) if steps else None,
    }


if __name__ == "__main__":
    main()
