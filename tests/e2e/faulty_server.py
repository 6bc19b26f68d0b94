"""A server of a site that treats its models badly, and remembers every byte of them that it has sent.

What is wrong with a file is said by `Fault`; the log, `sent`, is of all of them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from slm2_web.compile.serve import POLL_S, Handler, Server

CHUNK_BYTES = 4096
# Before a connection is cut: what was sent before it has arrived by then, and is read.
BEFORE_CUT_S = 0.3


@dataclass
class Fault:
    """What is wrong with one file; nothing, as it comes."""

    cuts: list[int] = field(default_factory=list)  # the connection breaks at each of these bytes, once
    statuses: list[int] = field(default_factory=list)  # of the next answers
    statuses_after_cut: list[int] = field(default_factory=list)  # of the answers after the first cut
    ranges: bool = True  # whether Range is known
    etags: list[str] = field(
        default_factory=list
    )  # of the next answers, the last one from then on; "" is none
    honest: bool = True  # whether If-Range is compared with the ETag
    announced: int = 0  # bytes more than there are, in Content-Length
    surplus: bytes = b""  # after the file's end, which is not announced
    body: bytes | None = None  # instead of the file's
    stalls: bool = False  # the connection stays open in the middle, and nothing comes
    pace_s: float = 0.0  # between chunks


@dataclass
class Sent:
    """An answer: bytes `first` to `end` - 1 of a file, so far, and what was asked."""

    name: str
    status: int
    first: int
    end: int
    asked: str | None
    if_range: str | None


class FaultyServer(Server):
    """Runs in a thread until `close`. `faults` is by the file's name."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "127.0.0.1", 0, "/", True, False, None)
        self.RequestHandlerClass = FaultyHandler
        self.faults: dict[str, Fault] = {}
        self.sent: list[Sent] = []
        self.goes_on = threading.Event()
        threading.Thread(target=self.serve_forever, args=(POLL_S,), daemon=True).start()

    def bytes_of(self, name: str) -> list[tuple[int, int]]:
        """The parts of a file that were sent, in the order in which they were."""
        return [(each.first, each.end) for each in self.sent if each.name == name and each.end > each.first]

    def forget(self) -> None:
        """Empties the log, and mends what was wrong."""
        self.sent.clear()
        self.faults.clear()


class FaultyHandler(Handler):
    server: FaultyServer

    def _send_file(self, path: Path, name: str, with_body: bool) -> None:
        if not name.startswith("models/") or path.name == "manifest.json":
            super()._send_file(path, name, with_body)
            return
        fault = self.server.faults.get(path.name, Fault())
        data = path.read_bytes() if fault.body is None else fault.body
        asked, if_range = self.headers.get("Range"), self.headers.get("If-Range")
        etag = '"right"'
        if fault.etags:
            etag = fault.etags.pop(0) if len(fault.etags) > 1 else fault.etags[0]
        if fault.statuses:
            status = fault.statuses.pop(0)
            self.server.sent.append(Sent(path.name, status, 0, 0, asked, if_range))
            self._status(HTTPStatus(status))
            return
        first = 0
        if asked and fault.ranges and (not fault.honest or if_range in (None, etag)):
            first = int(asked.removeprefix("bytes=").removesuffix("-"))
        headers = {"Content-Type": "application/octet-stream", "Connection": "close"}
        if etag:
            headers["ETag"] = etag
        if not fault.surplus:
            headers["Content-Length"] = str(len(data) - first + fault.announced)
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.close_connection = True
        status = HTTPStatus.PARTIAL_CONTENT if first else HTTPStatus.OK
        sent = Sent(path.name, status, first, first, asked, if_range)
        self.server.sent.append(sent)
        self._head(status, headers)
        self._send_body(data + fault.surplus, first, fault, sent)

    def _send_body(self, data: bytes, first: int, fault: Fault, sent: Sent) -> None:
        cut = next((cut for cut in sorted(fault.cuts) if cut > first), None)
        if cut is not None:
            fault.cuts.remove(cut)
            fault.statuses, fault.statuses_after_cut = fault.statuses_after_cut, []
        while sent.end < (end := len(data) if cut is None else cut):
            sent.end += self.connection.send(data[sent.end : min(sent.end + CHUNK_BYTES, end)])
            time.sleep(fault.pace_s)
            if fault.stalls and sent.end > len(data) // 2:
                self.server.goes_on.wait(60)
                return
        if cut is not None:
            time.sleep(BEFORE_CUT_S)
