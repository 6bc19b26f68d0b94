"""What a browser's pages take of the machine's memory."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, Page


def renderer_bytes(browser: Browser) -> int:
    """Resident bytes of the browser's largest renderer: a page, with its workers, their heaps and their
    WebAssembly memories. Pages that were reserved and never written to are no part of it."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    pids = [int(process["id"]) for process in processes if process["type"] == "renderer"]
    return max(_resident(pid) for pid in pids)


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(pid)


def js_heap_bytes(page: Page) -> int:
    """Bytes that the page's own JavaScript holds, after its garbage was collected."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = int(session.send("Runtime.getHeapUsage")["usedSize"])
    session.detach()
    return used
