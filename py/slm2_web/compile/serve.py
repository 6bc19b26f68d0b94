"""A static web server for a built site, on this machine: the headers that the page needs, Range, gzip, 304.

    isolation     COOP, COEP and CORP, so that the page may use SharedArrayBuffer
    caching       a path that carries a version or a hash is immutable, everything else is asked for again
                  each time and answered 304 when its ETag, a hash of the bytes, is still the same
    Range         one range per request (206, 416, If-Range); several are answered with the whole file
    compression   PATH.gz in place of PATH for clients that accept gzip and ask for no Range
    sharing       when asked for, what pages of other origins need
    policy        a Content-Security-Policy on every answer: workers don't inherit their page's

Nothing is served that starts with a dot, leads out of the folder, or is not a file.
"""

from __future__ import annotations

import errno
import hashlib
import http.server
import re
import socket
import sys
import threading
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from io import BufferedReader
from pathlib import Path
from typing import Any

DEFAULT_PORT = 8000
# How many ports after the default are tried when it is taken.
PORT_ATTEMPTS = 20
# How soon `close` is noticed.
POLL_S = 0.02

ISOLATION = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}

# What a page, and each worker by its own response, may run and ask for: this site's files, and WebAssembly.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'wasm-unsafe-eval'",
        "worker-src 'self'",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
        "require-trusted-types-for 'script'",
        "trusted-types slm2",
    )
)

# For pages of other origins: they may import the scripts, fetch the files, and show the pages in a frame.
SHARED = {
    "Access-Control-Allow-Origin": "*",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
SHARED_POLICY = POLICY.replace("frame-ancestors 'self'", "frame-ancestors *")

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".wgsl": "text/plain; charset=utf-8",
    ".whl": "application/zip",
    ".zip": "application/zip",
}
DEFAULT_TYPE = "application/octet-stream"

# The bytes at these paths never change. The runtime's lock file is ours and may.
IMMUTABLE = re.compile(
    r"models/[^/]+/[^/]+\.[0-9a-f]{8}\.bin"
    r"|wheels/[0-9a-f]{8}/[^/]+"
    r"|runtime/pyodide-[0-9.]+/(?!pyodide-lock\.json$)[^/]+"
)
# A request line is what a stranger wrote: a terminal gets none of its control characters.
_UNPRINTABLE = re.compile(r"[^ -\[\]-~]")
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class PortTaken(OSError):
    """Another program listens on the port."""


class CannotListen(OSError):
    """The address can't be listened on, whichever port is free."""


class Server(http.server.ThreadingHTTPServer):
    """A running server: `url` is its address; `close` ends it."""

    daemon_threads = True
    # On Windows this would let two programs share a port.
    allow_reuse_address = sys.platform != "win32"

    def __init__(
        self,
        root: Path,
        host: str,
        port: int,
        base: str,
        isolation: bool,
        shared: bool,
        log: Callable[[str], None] | None,
    ) -> None:
        self.root = root.resolve()
        self.base = base
        self.isolation = isolation
        self.shared = shared
        self.log = log
        self.etags: dict[Path, tuple[tuple[int, int, int], str]] = {}
        self._connections: set[socket.socket] = set()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The site's address, with a slash at its end."""
        # localhost and 127.0.0.1 are secure contexts to browsers without HTTPS.
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}{self.base}"

    def close(self) -> None:
        """Stops listening; requests in progress are dropped, and connections that are kept alive."""
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with suppress(OSError):  # the other side was faster
                connection.shutdown(socket.SHUT_RDWR)

    def get_request(self) -> tuple[socket.socket, Any]:
        """A new connection."""
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        """The end of a connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def etag(self, path: Path, file: BufferedReader) -> str:
        """The file's entity tag: a hash of its bytes, computed once per state of the file."""
        status = path.stat()
        state = (status.st_size, status.st_mtime_ns, status.st_ino)
        known = self.etags.get(path)
        if known is None or known[0] != state:
            file.seek(0)
            known = self.etags[path] = (state, f'"{hashlib.file_digest(file, "sha256").hexdigest()[:32]}"')
        return known[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone away is no error."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def bind(
    root: Path,
    port: int | None,
    *,
    host: str = "127.0.0.1",
    base: str = "/",
    isolation: bool = True,
    shared: bool = False,
    log: Callable[[str], None] | None = None,
) -> Server:
    """A server for the folder `root` that listens and waits for `serve_forever`.

    `port` 0 is any free one, None the default one or the next that is free. `base` is the path under which
    the site appears; `shared` lets other origins use it. `log` gets a line per answer, of printable ASCII.

    Raises: PortTaken; CannotListen when the host is none of this machine's or the port is not allowed.
    """
    base = f"/{base.strip('/')}/".replace("//", "/")
    ports = range(DEFAULT_PORT, DEFAULT_PORT + PORT_ATTEMPTS) if port is None else [port]
    for candidate in ports:
        try:
            return Server(root, host, candidate, base, isolation, shared, log)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                continue
            option = "--port" if isinstance(error, PermissionError) else "--host"
            raise CannotListen(f"port {candidate} on {host}: {reason}; choose another {option}") from None
    which = f"port {port}" if port is not None else f"ports {ports[0]} to {ports[-1]}"
    raise PortTaken(f"{which} on {host}: {reason}; choose another with --port")


def start(
    root: Path,
    port: int | None = 0,
    *,
    host: str = "127.0.0.1",
    base: str = "/",
    isolation: bool = True,
    shared: bool = False,
    log: Callable[[str], None] | None = None,
) -> Server:
    """As `bind`, and running in a thread until `close`."""
    server = bind(root, port, host=host, base=base, isolation=isolation, shared=shared, log=log)
    threading.Thread(target=server.serve_forever, args=(POLL_S,), name="serve", daemon=True).start()
    return server


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    # Headers and body leave in separate writes; waiting to join them costs 40 ms an answer.
    disable_nagle_algorithm = True
    timeout = 60

    def version_string(self) -> str:
        """The Server header."""
        return "slm2-web"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _refuse(self) -> None:
        # Its body, if any, stays unread: the connection is of no more use.
        self.close_connection = True
        self._status(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD", "Connection": "close"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse

    def _answer(self, with_body: bool) -> None:
        found = self._find()
        if found is None:
            return
        path, name = found
        try:
            self._send_file(path, name, with_body)
        except FileNotFoundError:  # between looking and opening
            self._status(HTTPStatus.NOT_FOUND)
        except PermissionError:
            self._status(HTTPStatus.FORBIDDEN)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The base class's own refusals: of a request line or a header that is none, of a method unknown."""
        self.close_connection = True
        self.request_version = self.protocol_version  # what could not be read would pass for HTTP/0.9
        self._status(HTTPStatus(code), {"Connection": "close"})

    def _find(self) -> tuple[Path, str] | None:
        """(the file, its path in the site), or None after an answer."""
        try:
            raw = urllib.parse.urlsplit(self.path).path
        except ValueError:
            self._status(HTTPStatus.BAD_REQUEST)
            return None
        if raw + "/" == self.server.base:
            self._status(HTTPStatus.MOVED_PERMANENTLY, {"Location": self.server.base})
            return None
        try:
            name = urllib.parse.unquote(raw, errors="strict")
        except UnicodeDecodeError:
            name = "\0"
        inside = name.removeprefix(self.server.base)
        parts = inside.split("/")
        if (
            not name.startswith(self.server.base)
            or any(part.startswith(".") for part in parts)
            or any(c in inside for c in "\0\\:")
        ):
            self._status(HTTPStatus.NOT_FOUND)
            return None
        path, kind = _look(self.server.root, inside)
        if kind == "folder" and inside and not inside.endswith("/"):
            self._status(HTTPStatus.MOVED_PERMANENTLY, {"Location": f"{raw.rpartition('/')[2]}/"})
            return None
        if kind == "folder":
            inside += "index.html"
            path, kind = _look(self.server.root, inside)
        if kind != "file" or inside.endswith("/"):
            self._status(HTTPStatus.NOT_FOUND)
            return None
        return path, inside

    def _send_file(self, path: Path, name: str, with_body: bool) -> None:
        headers = {
            "Content-Type": TYPES.get(Path(name).suffix, DEFAULT_TYPE),
            "Cache-Control": "public, max-age=31536000, immutable"
            if IMMUTABLE.fullmatch(name)
            else "no-cache",
            "Accept-Ranges": "bytes",
        }
        packed = path.with_name(f"{path.name}.gz")
        if packed.is_file():
            headers["Vary"] = "Accept-Encoding"
            if "Range" not in self.headers and _accepts_gzip(self.headers.get("Accept-Encoding", "")):
                headers["Content-Encoding"] = "gzip"
                path = packed
        with path.open("rb") as file:
            etag = headers["ETag"] = self.server.etag(path, file)
            headers["Last-Modified"] = formatdate(path.stat().st_mtime, usegmt=True)
            if _names(self.headers.get("If-None-Match", ""), etag):
                self._head(HTTPStatus.NOT_MODIFIED, headers)
                return
            total = file.seek(0, 2)
            start, stop = 0, total
            status = HTTPStatus.OK
            wanted = self.headers.get("Range")
            if wanted and self.headers.get("If-Range", etag) == etag:
                stretch = _stretch(wanted, total)
                if stretch is not None and stretch[0] >= stretch[1]:
                    self._status(
                        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{total}"}
                    )
                    return
                if stretch is not None:
                    start, stop = stretch
                    status = HTTPStatus.PARTIAL_CONTENT
                    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
            headers["Content-Length"] = str(stop - start)
            self._head(status, headers)
            if with_body and stop > start:
                self.send_body(file, start, stop - start)

    def send_body(self, file: BufferedReader, start: int, n_bytes: int) -> None:
        """A stretch of the file, after the head."""
        self.connection.sendfile(file, start, n_bytes)

    def _status(self, status: HTTPStatus, headers: dict[str, str] | None = None) -> None:
        """An answer that is only a status."""
        body = f"{status.value} {status.phrase}\n".encode()
        self._head(
            status,
            {
                "Content-Type": TYPES[".txt"],
                "Content-Length": str(len(body)),
                "Cache-Control": "no-store",
                **(headers or {}),
            },
        )
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        headers = (ISOLATION if self.server.isolation else {}) | (SHARED if self.server.shared else {})
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Security-Policy", SHARED_POLICY if self.server.shared else POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        if self.server.log is not None:
            self.server.log(_UNPRINTABLE.sub(lambda c: f"\\x{ord(c[0]):02x}", format % args))


def _look(root: Path, inside: str) -> tuple[Path, str]:
    """(the path, what is there): a file or a folder below `root`, or nothing."""
    try:
        path = (root / inside).resolve()
        if path.is_relative_to(root):
            return path, "file" if path.is_file() else "folder" if path.is_dir() else ""
    except OSError:  # a name longer than names may be
        pass
    return root, ""


def _accepts_gzip(accepted: str) -> bool:
    """Does this Accept-Encoding allow gzip?"""
    weights = {}
    for item in accepted.lower().split(","):
        coding, _, weight = item.partition(";")
        weights[coding.strip()] = not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return weights.get("gzip", weights.get("*", False))


def _names(if_none_match: str, etag: str) -> bool:
    """Does this If-None-Match name the entity tag?"""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or tags == ["*"]


def _stretch(wanted: str, total: int) -> tuple[int, int] | None:
    """(start, stop) of a Range header, start >= stop when nothing lies there; None to ignore the header.

    Source: RFC 9110, section 14: a Range that is malformed or of an unknown unit is ignored.
    """
    match = _RANGE.fullmatch(wanted.strip())
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        return max(total - int(match[2]), 0), total
    first = int(match[1])
    last = int(match[2]) if match[2] else total
    return (first, min(last + 1, total)) if first <= last or not match[2] else None
