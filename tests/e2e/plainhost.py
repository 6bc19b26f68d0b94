"""A plain file server, as `python3 -m http.server` is: no COOP, no COEP, no policy."""

from __future__ import annotations

import functools
import http.server
import threading
import urllib.parse
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self


class PlainHost:
    """Serves a folder at `url` until `close`.

    `asked` counts the paths, decoded, with their queries; `headers` go with every answer.
    """

    def __init__(self, folder: Path, headers: Mapping[str, str] | None = None) -> None:
        self.asked: Counter[str] = Counter()
        self.headers = dict(headers or {})
        handler = functools.partial(_Handler, self, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def close(self) -> None:
        """Stop listening; may be called again."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, host: PlainHost, *args: object, directory: str) -> None:
        self.host = host
        super().__init__(*args, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.host.asked[urllib.parse.unquote(self.path)] += 1
        try:
            super().do_GET()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # a page that went away

    def end_headers(self) -> None:
        for name, value in self.host.headers.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads a log here."""
