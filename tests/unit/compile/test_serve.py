"""The server over real connections: headers, ranges, 304, compression, and what it won't give out."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.compile.serve import IMMUTABLE, ISOLATION, POLICY, CannotListen, PortTaken, Server, bind, start

ROOT = Path(__file__).parents[3]
DATA = bytes(range(256)) * 8
SCRIPT = b"export const x = 1;\n" * 50
FILES = {
    "index.html": b"<!doctype html>",
    "site.json": b"{}",
    "web/main.js": SCRIPT,
    "web/style.css": b"a{}",
    "worker/shaders/a.wgsl": b"fn f() {}",
    "runtime/pyodide-314.0.3/pyodide.mjs": b"export {};",
    "runtime/pyodide-314.0.3/pyodide.asm.wasm": b"\0asm",
    "runtime/pyodide-314.0.3/pyodide-lock.json": b"{}",
    "runtime/pyodide-314.0.3/python_stdlib-01234567.zip": b"PK",
    "models/m/manifest.json": b"{}",
    "models/m/weights-00.01234567.bin": DATA,
    "models/m/empty.bin": b"",
    "wheels/89abcdef/p-1-py3-none-any.whl": b"PK",
    "with space/\N{SNOWMAN}.txt": b"snow",
    ".stamp.json": b"secret",
    "web/.hidden/x.js": b"secret",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    root = folder / "site"
    for name, data in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "web/main.js.gz").write_bytes(gzip.compress(SCRIPT, mtime=0))
    (folder / "outside.txt").write_bytes(b"secret")
    (root / "link.txt").symlink_to(folder / "outside.txt")
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    running = start(root)
    yield running
    running.close()


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def __getitem__(self, name: str) -> str | None:
        return self.headers[name]


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> Reply:
    """One request; header names are given with _ for -."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    with contextlib.closing(connection):
        connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())


def test_sharing_lets_other_origins_in(root: Path, server: Server) -> None:
    assert ask(server, "/web/main.js")["Access-Control-Allow-Origin"] is None
    shared = start(root, shared=True)
    with contextlib.closing(shared):
        for path in ("/web/main.js", "/none"):
            reply = ask(shared, path)
            assert reply["Access-Control-Allow-Origin"] == "*"
            assert reply["Cross-Origin-Resource-Policy"] == "cross-origin"
            assert reply["Cross-Origin-Embedder-Policy"] == "require-corp"
            policy = reply["Content-Security-Policy"] or ""
            assert policy.replace("frame-ancestors *", "frame-ancestors 'self'") == POLICY


@pytest.mark.parametrize(
    ("path", "kind", "immutable"),
    [
        ("/", "text/html; charset=utf-8", False),
        ("/index.html", "text/html; charset=utf-8", False),
        ("/site.json", "application/json", False),
        ("/web/main.js", "text/javascript; charset=utf-8", False),
        ("/web/style.css", "text/css; charset=utf-8", False),
        ("/worker/shaders/a.wgsl", "text/plain; charset=utf-8", False),
        ("/runtime/pyodide-314.0.3/pyodide.mjs", "text/javascript; charset=utf-8", True),
        ("/runtime/pyodide-314.0.3/pyodide.asm.wasm", "application/wasm", True),
        ("/runtime/pyodide-314.0.3/pyodide-lock.json", "application/json", False),
        ("/runtime/pyodide-314.0.3/python_stdlib-01234567.zip", "application/zip", True),
        ("/models/m/manifest.json", "application/json", False),
        ("/models/m/weights-00.01234567.bin", "application/octet-stream", True),
        ("/models/m/empty.bin", "application/octet-stream", False),
        ("/wheels/89abcdef/p-1-py3-none-any.whl", "application/zip", True),
        ("/with%20space/%E2%98%83.txt", "text/plain; charset=utf-8", False),
    ],
)
def test_type_caching_and_isolation(server: Server, path: str, kind: str, immutable: bool) -> None:
    reply = ask(server, path)
    assert reply.status == 200
    assert reply["Content-Type"] == kind
    assert (reply["Cache-Control"] or "").endswith("immutable") == immutable
    assert immutable or reply["Cache-Control"] == "no-cache"
    assert reply["X-Content-Type-Options"] == "nosniff"
    for key, value in ISOLATION.items():
        assert reply[key] == value
    head = ask(server, path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head["Content-Length"] == reply["Content-Length"] == str(len(reply.body))


def test_every_answer_isolates_and_has_the_policy(server: Server) -> None:
    for reply in (
        ask(server, "/"),
        ask(server, "/none"),
        ask(server, "/web"),
        ask(server, "/", "POST"),
        ask(server, "/", "BREW"),
        ask(server, "/none", "HEAD"),
    ):
        assert reply["Cross-Origin-Embedder-Policy"] == "require-corp"
        assert reply["Content-Security-Policy"] == POLICY


def test_the_documentation_lists_the_policy() -> None:
    text = (ROOT / "docs" / "building.md").read_text(encoding="utf-8")
    assert all(f"`{directive}`" in text for directive in POLICY.split("; "))


@pytest.mark.parametrize(
    ("wanted", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=2000-", 2000, 2048),
        ("bytes=2000-999999", 2000, 2048),
        ("bytes=-5", 2043, 2048),
        ("bytes=-999999", 0, 2048),
    ],
)
def test_range(server: Server, wanted: str, start: int, stop: int) -> None:
    reply = ask(server, "/models/m/weights-00.01234567.bin", Range=wanted)
    assert reply.status == 206
    assert reply.body == DATA[start:stop]
    assert reply["Content-Range"] == f"bytes {start}-{stop - 1}/2048"


@pytest.mark.parametrize("wanted", ["bytes=2048-", "bytes=5000-6000", "bytes=-0"])
def test_range_with_nothing_in_it(server: Server, wanted: str) -> None:
    reply = ask(server, "/models/m/weights-00.01234567.bin", Range=wanted)
    assert reply.status == 416
    assert reply["Content-Range"] == "bytes */2048"
    assert ask(server, "/models/m/empty.bin", Range="bytes=0-").status == 416


@pytest.mark.parametrize(
    "wanted", ["bytes=5-3", "bytes=-", "bytes=a-b", "lines=1-2", "bytes=0-1,4-5", "bytes=1"]
)
def test_range_that_is_ignored(server: Server, wanted: str) -> None:
    reply = ask(server, "/models/m/weights-00.01234567.bin", Range=wanted)
    assert (reply.status, reply.body) == (200, DATA)


def test_if_range(server: Server) -> None:
    path = "/models/m/weights-00.01234567.bin"
    etag = ask(server, path)["ETag"] or ""
    assert ask(server, path, Range="bytes=0-9", If_Range=etag).status == 206
    assert ask(server, path, Range="bytes=0-9", If_Range='"other"').status == 200


def test_not_modified(server: Server) -> None:
    etag = ask(server, "/site.json")["ETag"] or ""
    for named in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        reply = ask(server, "/site.json", If_None_Match=named)
        assert (reply.status, reply.body) == (304, b"")
        assert reply["ETag"] == etag
        assert reply["Cross-Origin-Resource-Policy"] == "same-origin"
    assert ask(server, "/site.json", If_None_Match='"x"').status == 200


def test_etag_follows_the_bytes(root: Path, server: Server) -> None:
    path = root / "changing.txt"
    tags = []
    for text in (b"one", b"two", b"one"):
        fresh = root / "fresh.txt"
        fresh.write_bytes(text)
        os.utime(fresh, (1, 1))  # the same size and time: only the bytes differ
        fresh.replace(path)
        tags.append(ask(server, "/changing.txt")["ETag"])
    assert tags[0] == tags[2] != tags[1]


def test_precompressed(server: Server) -> None:
    plain = ask(server, "/web/main.js")
    packed = ask(server, "/web/main.js", Accept_Encoding="br, gzip;q=0.5")
    assert plain.body == gzip.decompress(packed.body) == SCRIPT
    assert (plain["Content-Encoding"], packed["Content-Encoding"]) == (None, "gzip")
    assert plain["Vary"] == packed["Vary"] == "Accept-Encoding"
    assert packed["Content-Type"] == "text/javascript; charset=utf-8"
    assert plain["ETag"] != packed["ETag"]
    assert (
        ask(server, "/web/main.js", Accept_Encoding="gzip", If_None_Match=packed["ETag"] or "").status == 304
    )
    ranged = ask(server, "/web/main.js", Accept_Encoding="gzip", Range="bytes=0-5")
    assert (ranged.body, ranged["Content-Encoding"]) == (SCRIPT[:6], None)
    for refusal in ("", "identity", "gzip;q=0", "gzip; q=0.0", "x-gzip-y", "*;q=0", "*, gzip;q=0"):
        assert ask(server, "/web/main.js", Accept_Encoding=refusal)["Content-Encoding"] is None
    for consent in ("*", "*;q=0, gzip", "gzip, *;q=0", "identity;q=0, *;q=0.1"):
        assert ask(server, "/web/main.js", Accept_Encoding=consent)["Content-Encoding"] == "gzip", consent
    assert ask(server, "/web/style.css", Accept_Encoding="gzip")["Content-Encoding"] is None


@pytest.mark.parametrize(
    "path",
    [
        "/../outside.txt",
        "/%2e%2e/outside.txt",
        "/web/../../outside.txt",
        "/web/..%2f..%2foutside.txt",
        "/..%5coutside.txt",
        "/link.txt",
        "/.stamp.json",
        "/web/.hidden/x.js",
        "/%00",
        "/web/main.js%00",
        "/%ff",
        "/index.html/",
        "/web/",
        "/C:/x",
        "/none",
        f"/{'x' * 300}",
        f"/{'x/' * 2500}x",
    ],
)
def test_what_is_not_served(server: Server, path: str) -> None:
    reply = ask(server, path)
    assert (reply.status, reply.body) == (404, b"404 Not Found\n")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [(b"GET http://[ HTTP/1.1", 400), (b"GET", 400), (b"BREW / HTTP/1.1", 501), (b"GET / HTTP/9.9", 505)],
)
def test_requests_that_are_none(
    server: Server, request_line: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        sock.sendall(request_line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = sock.makefile("rb").read()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.endswith(b"\n")
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="file modes, which root ignores")
def test_a_file_that_may_not_be_read(root: Path, server: Server) -> None:
    secret = root / "closed.txt"
    secret.write_bytes(b"secret")
    secret.chmod(0)
    assert ask(server, "/closed.txt").status == 403


@settings(deadline=None)
@given(path=st.text(st.characters(codec="ascii", exclude_characters="\r\n \t\x00\x7f"), max_size=40))
def test_any_path_gives_a_file_or_a_refusal(server: Server, path: str) -> None:
    safe = "".join(c for c in path if "!" <= c <= "~")
    reply = ask(server, f"/{safe}")
    assert reply.status in (200, 301, 404)
    assert b"secret" not in reply.body


def test_folders_get_a_slash(server: Server) -> None:
    reply = ask(server, "/web")
    assert (reply.status, reply["Location"]) == (301, "web/")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods(server: Server, method: str) -> None:
    reply = ask(server, "/index.html", method)
    assert (reply.status, reply["Allow"]) == (405, "GET, HEAD")


def test_one_connection_serves_many(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.connect()
    sock = connection.sock
    for path, status in (("/", 200), ("/none", 404), ("/web", 301), ("/site.json", 200)):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert (response.status, response.version) == (status, 11)
        assert connection.sock is sock
    connection.close()


def test_base_path(root: Path) -> None:
    server = start(root, base="sub/path")
    try:
        assert server.url.endswith("/sub/path/")
        assert ask(server, "/sub/path/web/main.js").body == SCRIPT
        assert ask(server, "/sub/path/").body == FILES["index.html"]
        assert ask(server, "/sub/path")["Location"] == "/sub/path/"
        for path in ("/", "/web/main.js", "/sub/pathweb/main.js", "/sub/path/../path/web/main.js"):
            assert ask(server, path).status == 404
    finally:
        server.close()


def test_no_isolation_and_log(root: Path) -> None:
    lines: list[str] = []
    server = start(root, isolation=False, log=lines.append)
    try:
        reply = ask(server, "/")
        assert not any(key in reply.headers for key in ISOLATION)
        assert lines == ['"GET / HTTP/1.1" 200 -']
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
            sock.sendall(b"GET /\x1b[2J\\\xe9\x9b HTTP/1.1\r\nConnection: close\r\n\r\n")
            sock.makefile("rb").read()
        assert lines[1] == r'"GET /\x1b[2J\x5c\xe9\x9b HTTP/1.1" 404 -'
    finally:
        server.close()


def test_a_taken_port_is_said(root: Path, server: Server) -> None:
    with pytest.raises(PortTaken, match=f"port {server.port} on 127.0.0.1: .*--port"):
        bind(root, server.port)
    one, two = bind(root, None), bind(root, None)  # without a wish, the next one is taken
    assert one.port != two.port
    one.server_close()
    two.server_close()


@pytest.mark.parametrize("host", ["256.1.1.1", "no.such.host.invalid", "192.0.2.1", "x" * 300])
def test_a_host_that_is_not_this_machine_is_said(root: Path, host: str) -> None:
    with pytest.raises(CannotListen, match=f"port 0 on {host}: .*; choose another --host"):
        bind(root, 0, host=host)
    with pytest.raises(CannotListen, match="--host"):  # and no other port is tried
        bind(root, None, host=host)


def test_a_client_that_goes_away_is_no_error(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.sendall(b"GET /models/m/weights-00.01234567.bin HTTP/1.1\r\nHost: x\r\n\r\n")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset on close
    assert ask(server, "/").status == 200
    assert "Traceback" not in capfd.readouterr().err


def test_the_command_says_it_in_a_line(root: Path, server: Server) -> None:
    command = [sys.executable, "-m", "slm2_web.compile", "serve", str(root), "--port", str(server.port)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "py")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        rf"error: port {server.port} on 127\.0\.0\.1: .*; choose another with --port\n", done.stderr
    )


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_cleanly(root: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "slm2_web.compile", "serve", str(root), "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "py")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"Serving {root} at http://127.0.0.1:")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "\nStopped.\n", "")


def test_what_is_immutable_carries_a_version_or_a_hash() -> None:
    for path in (
        "models/m/manifest.json",
        "models/m/tokenizer.slm2tok",
        "wheels/x/p.whl",
        "runtime/a.mjs",
        "sw.js",
    ):
        assert not IMMUTABLE.fullmatch(path)
