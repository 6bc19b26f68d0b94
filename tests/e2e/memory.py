"""What a browser's pages take of the machine's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def worker_heap_bytes(page: Page) -> dict[str, int]:
    """Bytes that each worker's JavaScript holds after its garbage was collected, by the path of its script:
    objects and plain buffers, Pyodide's files among them. WebAssembly's memories and compiled code are not
    counted."""
    session = page.context.new_cdp_session(page)
    paths: dict[str, str] = {}
    found: dict[str, int] = {}

    def attached(event: dict[str, Any]) -> None:
        paths[event["sessionId"]] = "/" + event["targetInfo"]["url"].split("/", 3)[3]

    def received(event: dict[str, Any]) -> None:
        answer = json.loads(event["message"])
        if answer.get("id") == 2:
            used = answer["result"]
            found[event["sessionId"]] = int(used["usedSize"] + used["backingStorageSize"])

    session.on("Target.attachedToTarget", attached)
    session.on("Target.receivedMessageFromTarget", received)
    session.send(
        "Target.setAutoAttach", {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": False}
    )
    for one in list(paths):
        for number, method in enumerate(("HeapProfiler.collectGarbage", "Runtime.getHeapUsage"), 1):
            message = json.dumps({"id": number, "method": method})
            session.send("Target.sendMessageToTarget", {"sessionId": one, "message": message})
    for _ in range(200):
        if found.keys() == paths.keys():
            break
        page.wait_for_timeout(50)
    session.detach()
    heaps: dict[str, int] = {}
    for one, n_bytes in found.items():
        heaps[paths[one]] = heaps.get(paths[one], 0) + n_bytes
    assert len(found) == len(paths) > 0, paths
    return heaps
