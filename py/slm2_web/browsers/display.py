"""A display for a browser that needs one: the caller's own, or a private Xvfb."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from typing import Final, Self

from slm2_web.browsers.find import missing
from slm2_web.errors import BrowserError

_SCREEN: Final = "1400x1000x24"
_LIMIT_S: Final = 20.0


class Display:
    """`name` is what DISPLAY has to be. `close` ends what was started for it."""

    def __init__(self, name: str, server: subprocess.Popen[bytes] | None = None) -> None:
        self.name = name
        self._server = server

    @classmethod
    def open(cls) -> Self:
        """The DISPLAY of this process, or a new Xvfb on a free number.

        Raises: BrowserError `browser.missing` without Xvfb, `browser.failed` when it does not start.
        """
        if name := os.environ.get("DISPLAY"):
            return cls(name)
        command = shutil.which("Xvfb")
        if sys.platform != "linux" or command is None:
            raise missing("webkit", "there is no DISPLAY, and no command Xvfb to make one")
        reader, writer = os.pipe()
        try:
            server = subprocess.Popen(
                [command, "-displayfd", str(writer), "-screen", "0", _SCREEN, "-nolisten", "tcp"],
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us, who end it
            )
        finally:
            os.close(writer)
        made = cls("", server)
        try:
            number = _line(reader)
        finally:
            os.close(reader)
        if not number.isdigit():
            made.close()
            status = server.returncode
            raise BrowserError(
                "browser.failed", f"Xvfb gave no display (status {status})", {"status": status}
            )
        made.name = f":{number}"
        return made

    def close(self) -> None:
        """End the Xvfb, if it is ours."""
        if self._server is not None:
            self._server.terminate()
            try:
                self._server.wait(5)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()


def _line(reader: int) -> str:
    """What is written to a pipe up to a line feed, its end or the limit."""
    end = time.monotonic() + _LIMIT_S
    data = b""
    while not data.endswith(b"\n") and (left := end - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            part = os.read(reader, 100)
            if not part:
                break
            data += part
    return data.decode("ascii", "replace").strip()
