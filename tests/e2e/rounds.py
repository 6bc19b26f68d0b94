"""Rounds of load, reply and dispose in one page, and what they leave behind.

    PYTHONPATH=py:tests python -m e2e.rounds --rounds 200

The first rounds fill the browser's caches of compiled code; growth counts from the third on. One JSON line
for each round.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from e2e.guest import open_guest, wait_for_no_workers
from e2e.memory import js_heap_bytes, renderer_bytes

ROUND = """async () => {
  const slm = await client.SLM2.load({ model: "tiny", executor: "wasm" });
  const { run } = await ask(slm);
  await slm.dispose();
  return run.sha256;
}"""
WARM_UP = 2


@dataclass
class Rounds:
    """Resident bytes of the renderer and bytes of the page's heap after each round, with no model loaded."""

    resident: list[int] = field(default_factory=list)
    heap: list[int] = field(default_factory=list)

    def growth_bytes(self) -> int:
        """How much more is resident in the last half, at its least, than in the first, at its most."""
        return _growth(self.resident, max)

    def heap_growth_bytes(self) -> int:
        """The same of the page's heap, from the least."""
        return _growth(self.heap, min)


def _growth(values: list[int], of: Callable[[list[int]], int]) -> int:
    warm = values[WARM_UP:]
    middle = len(warm) // 2
    return min(warm[middle:]) - of(warm[:middle])


def run_rounds(
    browser: Browser, page: Page, n: int, tell: Callable[[str], None] = lambda line: None
) -> Rounds:
    """Run `n` rounds on an open guest page."""
    rounds = Rounds()
    replies = set()
    for index in range(n):
        start = time.perf_counter()
        replies.add(page.evaluate(ROUND))
        wait_for_no_workers(page)
        rounds.heap.append(js_heap_bytes(page))
        rounds.resident.append(renderer_bytes(browser))
        seconds = round(time.perf_counter() - start, 2)
        line = {"round": index, "resident": rounds.resident[-1], "heap": rounds.heap[-1], "seconds": seconds}
        tell(json.dumps(line))
    assert len(replies) == 1, "each round gives the same reply"
    return rounds


def main() -> None:
    """See the module."""
    from e2e.conftest import ROOT, WEBGPU, add_tiny, launch, link
    from slm2_web.compile.assets import Fetcher
    from slm2_web.compile.serve import start
    from slm2_web.compile.site import build_site

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    built = ROOT / "build" / "e2e-site"
    build_site(
        ROOT, built, [ROOT / "build" / "models" / "smollm2-135m"], Fetcher.from_environment(ROOT), print
    )
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder, sync_playwright() as driver:
        site = Path(folder) / "site"
        shutil.copytree(built, site, copy_function=link)
        add_tiny(site, Path(folder))
        server = start(site, port=0, base="/", isolation=True)
        browser = launch(driver, WEBGPU)
        page = open_guest(browser, server.url)
        rounds = run_rounds(browser, page, options.rounds, lambda line: print(line, flush=True))
        growth = {"growth_bytes": rounds.growth_bytes(), "heap_growth_bytes": rounds.heap_growth_bytes()}
        print(json.dumps(growth))
        browser.close()
        server.close()


if __name__ == "__main__":
    main()
