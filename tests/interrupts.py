"""For processes that a test interrupts."""

from __future__ import annotations

import signal


def heed_ctrl_c() -> None:
    """A child's `preexec_fn`: tests in the background ignore Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
