"""Progress for people: a bar that redraws itself on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

# done, total: how much of a job is finished, in the job's own unit.
Report = Callable[[int, int], None]

BAR_CHARS = 24
REDRAW_S = 0.1
# Where nothing can be redrawn, a line now and then says that it is alive.
LINE_S = 5.0


class Meter:
    """Shows how far a transfer of `total_bytes` is: size, percentage and rate.

    Call it with (done, total) as often as you like, then `close`.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self.label = label
        self.stream = stream if stream is not None else sys.stderr
        self.redraws = self.stream.isatty()
        self.started = self.shown = time.monotonic()
        self.first: int | None = None
        self.done = 0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if self.first is None:
            self.first = done_bytes
        self.done = done_bytes
        now = time.monotonic()
        if now - self.shown >= (REDRAW_S if self.redraws else LINE_S):
            self.shown = now
            self._show(self.line(done_bytes, total_bytes, now))

    def line(self, done_bytes: int, total_bytes: int, now: float) -> str:
        """One line of progress: `label [####    ]  42 %  41.3 / 98.4 MB  12.1 MB/s`."""
        share = done_bytes / total_bytes if total_bytes else 0.0
        full = round(BAR_CHARS * min(share, 1.0))
        amount = f"{megabytes(done_bytes)} / {megabytes(total_bytes)} MB"
        return (
            f"{self.label} [{'#' * full}{' ' * (BAR_CHARS - full)}] {share:4.0%}  {amount}  {self._rate(now)}"
        )

    def close(self, outcome: str = "done") -> None:
        """The last line: what was moved, how fast, and how it ended; nothing when nothing came."""
        now = time.monotonic()
        if self.first is not None:
            moved = f"{megabytes(self.done)} MB in {now - self.started:.1f} s, {self._rate(now)}"
            self._show(f"{self.label} {outcome}: {moved}", last=True)

    def _rate(self, now: float) -> str:
        # Bytes that an earlier run had fetched say nothing about this run's speed.
        moved = self.done - (self.first or 0)
        return f"{moved / 1e6 / max(now - self.started, 1e-3):.1f} MB/s"

    def _show(self, text: str, last: bool = False) -> None:
        if self.redraws:
            self.stream.write(f"\r\x1b[2K{text}" + ("\n" if last else ""))
        else:
            self.stream.write(text + "\n")
        self.stream.flush()


def megabytes(n_bytes: int) -> str:
    """`n_bytes` in MB (10^6), with one digit after the point."""
    return f"{n_bytes / 1e6:.1f}"
