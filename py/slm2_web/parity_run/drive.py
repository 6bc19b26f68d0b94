"""One cell: a browser opens parity.html, whose address says what to run, and is asked how far it is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from slm2_web.browsers import Browser, BrowserSpec, Page
from slm2_web.errors import BrowserError, FormatError
from slm2_web.parity import certificate
from slm2_web.parity.certificate import Cell, Failure
from slm2_web.parity_run.cells import EXECUTORS, Wanted, absence, absent

Opener = Callable[[BrowserSpec], Browser]
# (cell, stage, done, total) as often as asked; a stage of "" is a beginning or an end.
Tell = Callable[[Wanted, str, int, int], None]
# What a page makes of an input of a stage, by its name in the whole suite.
Output = Callable[[str, Any], Any]
Judge = Callable[[Cell, Output], Cell]

POLL_S: Final = 0.5
READY_S: Final = 120.0
# A page that says nothing new for that long is given up: a software GPU takes minutes for a record.
STALL_S: Final = 1200.0

_STATUS: Final = "globalThis.slm2Parity ? slm2Parity.status() : { state: 'loading' }"


@dataclass(frozen=True, slots=True)
class Request:
    """What every cell is asked for. urls: by whether the site there is isolated; stages: () for all."""

    urls: dict[bool, str]
    size: str
    stages: Sequence[str]
    stall_s: float = STALL_S


def run_cell(wanted: Wanted, request: Request, opener: Opener, tell: Tell, judge: Judge) -> Cell:
    """The cell that a page made, judged; a browser or a page that fails is a cell that failed.

    `judge` gets the page's cell, with verdicts by its site's baseline, and may ask the page for more.
    Raises: BrowserError `browser.missing`.
    """
    start = time.monotonic()
    version = ""
    try:
        with opener(wanted.spec) as browser:
            version = browser.version
            return _run(wanted, request, browser, tell, judge)
    except BrowserError as error:
        if error.code == "browser.missing":
            raise
        return _failed(wanted, version, start, Failure(error.code, error.message[: certificate.MAX_TEXT]))
    except FormatError as error:
        return _failed(wanted, version, start, Failure(error.code, f"the page's answer: {error.message}"))


def _run(wanted: Wanted, request: Request, browser: Browser, tell: Tell, judge: Judge) -> Cell:
    url = f"{request.urls[wanted.isolated]}parity.html"
    page = browser.open(url)
    _wait(page, wanted, request, tell, ("ready",), READY_S)
    facts: dict[str, object] = page.evaluate("slm2Parity.facts()")
    why = absence(wanted.executor, facts)
    if why is not None:
        return absent(wanted.name, browser.version, wanted.executor, why)
    stages = request.stages or page.evaluate("slm2Parity.names()")
    page.goto(f"{url}?{wanted.query(request.size, stages, browser.version)}")
    _wait(page, wanted, request, tell, ("done",), request.stall_s)
    answer = page.evaluate("slm2Parity.certificate()", limit_s=READY_S)
    data = json.dumps(answer, ensure_ascii=True).encode("ascii")
    (cell,) = certificate.parse(data).cells
    if cell.executor != wanted.executor:
        text = f"{wanted.title}: the page ran on {cell.executor}"
        raise BrowserError("browser.failed", text, {"found": cell.executor, "allowed": wanted.executor})
    lacking = [name for name in stages if name not in {run.name for run in cell.stages}]
    if lacking and cell.failure is None:
        text = f"{wanted.title}: the page did not run {', '.join(lacking)}"
        cell = replace(cell, failure=Failure("browser.failed", text))
    executor = EXECUTORS[wanted.executor][0]

    def output(name: str, made: Any) -> Any:
        asked = {"executor": executor, "name": name, "input": made}
        return page.evaluate("slm2Parity.output(arg)", asked, limit_s=request.stall_s)

    cell = judge(replace(cell, browser=wanted.name, browser_version=browser.version), output)
    page.close()
    return cell


def _wait(
    page: Page, wanted: Wanted, request: Request, tell: Tell, ends: Sequence[str], stall_s: float
) -> None:
    """Returns when the page is in one of these states.

    Raises: BrowserError: `browser.late` when it says nothing new, `browser.failed` when it has failed.
    """
    last: Any = None
    since = time.monotonic()
    while True:
        status: dict[str, Any] = page.evaluate(_STATUS)
        if status["state"] in ends:
            return
        if status["state"] in ("failed", "cancelled"):
            error = status.get("error") or {"code": status["state"], "message": "the page does not say why"}
            code, said = str(error["code"]), str(error["message"])
            raise BrowserError("browser.failed", f"{wanted.title}: {code}: {said}", {"code": code})
        if status != last:
            last, since = status, time.monotonic()
            tell(
                wanted, str(status.get("stage", "")), int(status.get("done", 0)), int(status.get("total", 0))
            )
        elif time.monotonic() - since > stall_s:
            said = "; ".join(str(message) for message in page.complaints()[-3:])
            detail = {"limit_s": stall_s, "status": status}
            text = (
                f"{wanted.title}: nothing new for {stall_s:g} s in {status.get('stage') or 'the beginning'}"
            )
            raise BrowserError("browser.late", f"{text}{'; ' if said else ''}{said}", detail)
        time.sleep(POLL_S)


def _failed(wanted: Wanted, version: str, start: float, failure: Failure) -> Cell:
    empty = absent(wanted.name, version, wanted.executor, "")
    seconds = round(time.monotonic() - start, 3)
    return replace(empty, absence=None, failure=failure, seconds=seconds, isolated=wanted.isolated)
