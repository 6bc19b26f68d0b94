"""Bytes of a file by URL, any stretch of it: over HTTP with Range, or from disk by a file: URL.

Three things may go wrong, and the caller does something else for each:

    Unreachable     the host does not answer at all: don't ask it again in this run
    Refused         it answers, but not with this file: try another source (Denied: not to us)
    NoRange         it gives the file only as a whole: take it whole
"""

from __future__ import annotations

import contextlib
import http.client
import io
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from slm2_web.compile.progress import Report

# For each wait (connect, first byte, next byte): a host that is silent for longer counts as gone.
TIMEOUT_S = 8.0
CHUNK_BYTES = 256 << 10
# Attempts in a row that bring nothing new before a cut connection is final.
MAX_BARREN_ATTEMPTS = 3
# Asked for by one `read`: the largest is a wheel's directory.
MAX_READ_BYTES = 64 << 20


class Unreachable(Exception):
    """The host of the URL does not answer."""


class Refused(Exception):
    """The host answers, but not with this file."""


class Denied(Refused):
    """The host wants to know who is asking."""


class NoRange(Exception):
    """The host gives the file only as a whole."""


class Remote:
    """One file by URL. `read` gives a stretch, `download` brings one to disk and resumes it.

    Raises: Unreachable, Refused, NoRange.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def read(self, start: int, n_bytes: int) -> bytes:
        """Exactly `n_bytes` bytes from offset `start`."""
        if n_bytes > MAX_READ_BYTES:
            raise Refused(f"{n_bytes} bytes in one piece; allowed: {MAX_READ_BYTES}")
        buffer = io.BytesIO()
        self._transfer(buffer, start, n_bytes, lambda done, total: None)
        return buffer.getvalue()

    def size(self) -> int:
        """Size of the file in bytes, from a one-byte Range request."""
        path = self._local()
        if path is not None:
            with _translated():
                return path.stat().st_size
        with self._open(0, 1) as response:
            total = _total_bytes(response)
            if response.status != 206 or total is None:
                raise NoRange(self.url)
            return total

    def download(self, part: Path, start: int, n_bytes: int, report: Report, *, whole: bool) -> bool:
        """Fill `part` with the `n_bytes` from `start`, continuing after what it holds; True if it held some.

        `whole`: the stretch is the file, so that a file of another size is Refused unread.
        """
        have = part.stat().st_size if part.exists() else 0
        if have > n_bytes:
            have = 0
        try:
            with part.open("r+b" if have else "wb") as file:
                file.truncate(have)
                file.seek(have)
                self._transfer(file, start, n_bytes, report, whole=whole)
        finally:
            if part.stat().st_size == 0:
                part.unlink()
        return have > 0

    def download_all(self, part: Path, max_bytes: int, report: Report) -> None:
        """Fill `part` with the file, whatever its size up to `max_bytes`; from its start."""
        with part.open("wb") as file:
            self._transfer(file, 0, None, report, whole=True, max_bytes=max_bytes)

    def _transfer(
        self,
        out: BinaryIO,
        start: int,
        n_bytes: int | None,
        report: Report,
        *,
        whole: bool = False,
        max_bytes: int = 0,
    ) -> None:
        attempt = self._copy if self._local() is not None else self._request
        barren = 0
        while n_bytes is None or out.tell() < n_bytes:
            before = out.tell()
            failure = attempt(out, start, n_bytes, whole, max_bytes, report)
            if failure is None:
                return
            barren = 0 if out.tell() > before else barren + 1
            if barren >= MAX_BARREN_ATTEMPTS:
                raise Unreachable(f"the connection breaks after {out.tell()} bytes: {failure}")

    def _request(
        self,
        out: BinaryIO,
        start: int,
        n_bytes: int | None,
        whole: bool,
        max_bytes: int,
        report: Report,
    ) -> str | None:
        """One request, appended to `out`; None when it came to its end, else what cut it short."""
        have = out.tell()
        first = start + have
        with self._open(first, n_bytes - have if n_bytes is not None and not whole else None) as response:
            ranged = response.status == 206
            total = _total_bytes(response)
            if ranged and not response.headers.get("Content-Range", "").startswith(f"bytes {first}-"):
                raise Refused(f"asked from byte {first}, got {response.headers.get('Content-Range')!r}")
            if not ranged and start:
                raise NoRange(self.url)
            if whole and total is not None and n_bytes is not None and total != n_bytes:
                raise Refused(f"it has {total} bytes there; wanted: {n_bytes}")
            if not ranged:  # from the beginning, then
                out.seek(0)
                out.truncate()
            end = n_bytes if n_bytes is not None else total
            while end is None or out.tell() < end:
                want = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - out.tell())
                try:
                    chunk = response.read1(want)
                except (OSError, http.client.HTTPException) as error:
                    return str(error) or type(error).__name__
                if not chunk:
                    break
                out.write(chunk)
                if n_bytes is None and out.tell() > max_bytes:
                    raise Refused(f"more than {max_bytes} bytes")
                report(out.tell(), end or out.tell())
        return None if end is None or out.tell() == end else "closed early"

    def _copy(
        self,
        out: BinaryIO,
        start: int,
        n_bytes: int | None,
        whole: bool,
        max_bytes: int,
        report: Report,
    ) -> str | None:
        """As `_request`, from disk."""
        total = self.size()
        end = n_bytes if n_bytes is not None else total
        if start + end > total or (whole and total != end) or (n_bytes is None and total > max_bytes):
            raise Refused(f"it has {total} bytes; wanted: {end} from {start}")
        path = self._local()
        assert path is not None
        with _translated(), path.open("rb") as file:
            file.seek(start + out.tell())
            while chunk := file.read(min(CHUNK_BYTES, end - out.tell())):
                out.write(chunk)
                report(out.tell(), end)
        return None

    def _open(self, start: int, n_bytes: int | None) -> contextlib.closing[http.client.HTTPResponse]:
        headers = {"User-Agent": "slm2-web-build", "Accept-Encoding": "identity"}
        if start or n_bytes is not None:
            headers["Range"] = f"bytes={start}-" + ("" if n_bytes is None else str(start + n_bytes - 1))
        request = urllib.request.Request(self.url, headers=headers)
        with _translated():
            return contextlib.closing(urllib.request.urlopen(request, timeout=TIMEOUT_S))

    def _local(self) -> Path | None:
        parts = urllib.parse.urlsplit(self.url)
        return Path(urllib.request.url2pathname(parts.path)) if parts.scheme == "file" else None


class RemoteFile(io.RawIOBase):
    """A Remote as a seekable file, for `zipfile`; the last stretch read is kept."""

    WINDOW_BYTES = 64 << 10

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.n_bytes = remote.size()
        self.at = 0
        self.window_start = 0
        self.window = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.n_bytes}[whence]
        # As a file does: before the start is an error, past the end is not.
        if base + offset < 0:
            raise OSError("seek before the start")
        self.at = base + offset
        return self.at

    def read(self, n_bytes: int = -1) -> bytes:
        rest = max(self.n_bytes - self.at, 0)
        n_bytes = rest if n_bytes is None or n_bytes < 0 else min(n_bytes, rest)
        if not n_bytes:
            return b""
        end = self.at + n_bytes
        if not (self.window_start <= self.at and end <= self.window_start + len(self.window)):
            # A little before and after as well: a directory is read in several small steps.
            start = max(0, min(self.at, end - self.WINDOW_BYTES))
            stop = min(self.n_bytes, max(end, start + self.WINDOW_BYTES))
            self.window_start, self.window = start, self.remote.read(start, stop - start)
        data = self.window[self.at - self.window_start : end - self.window_start]
        self.at = end
        return data


def _total_bytes(response: http.client.HTTPResponse) -> int | None:
    """Size of the file that `response` is, or is a stretch of; None when it doesn't say."""
    if response.status == 206:
        text = response.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        text = response.headers.get("Content-Length", "")
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Python's many network errors as Unreachable or Refused."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        kind = Denied if error.code in (401, 403, 407) else Refused
        raise kind(f"HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise Unreachable(str(error.reason) or "no connection") from None
    except FileNotFoundError as error:
        raise Refused(f"{error.filename}: {error.strerror}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unreachable(str(error) or type(error).__name__) from None
