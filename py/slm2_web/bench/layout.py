"""What the benches of the forward pass serve: our site, and the peers' files, each with the bench's page.

    ours/     the built site; bench/ with the pages and the bare kernel
    peers/    bench/ with the pages, the peers' files, the model as GGUF and as ONNX

Each folder has a server of its own, of the kind that serves our site, which counts what it sends, and may
send it as a line of so many Mbit/s would. The peers' has no Content-Security-Policy, since they start
workers from blobs, and lets browsers keep their files; what shrinks is there compressed as well, as it is
in our site.
"""

from __future__ import annotations

import gzip
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Final

from slm2_web.bench.onnx import NotWritable, write_model
from slm2_web.bench.peers import lay_out
from slm2_web.compile import serve, wasm
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.models import MODELS
from slm2_web.compile.site import build_site
from slm2_web.errors import AssetError
from slm2_web.packed import PackedModel

_PAGE: Final = Path(__file__).with_name("page")
_KERNEL: Final = Path(__file__).with_name("kernel")
# Of a slow line: what a request waits beside its bytes, and the bytes that each connection sends in turn.
ROUND_TRIP_S: Final = 0.04
_PIECE_BYTES: Final = 1 << 14
_COMPRESSIBLE: Final = {".js", ".mjs", ".wasm", ".json"}


@dataclass(frozen=True, slots=True)
class Places:
    """The laid out folders. missing: subject -> why it can't be measured."""

    ours: Path
    peers: Path
    missing: dict[str, str] = field(default_factory=dict)


def lay_out_all(
    folder: Path,
    root: Path,
    model_folder: Path,
    fetcher: Fetcher,
    *,
    has_peers: bool,
    say: Callable[[str], None],
) -> Places:
    """The folders for one packed model, in `folder`.

    Raises: SiteError, AssetError, FormatError.
    """
    places = Places(folder / "ours", folder / "peers")
    site = root / "build" / "bench-site"
    build_site(root, site, [model_folder], fetcher, say)
    shutil.copytree(site, places.ours, copy_function=_link)
    for each in (places.ours, places.peers):
        shutil.copytree(_PAGE, each / "bench")
    try:
        wasm.build(folder / "kernel", _KERNEL)
        shutil.copyfile(folder / "kernel" / "bare.wasm", places.ours / "bench" / "bare.wasm")
    except wasm.WasmBuildError as error:
        places.missing["bare"] = str(error).splitlines()[0]
    if not has_peers:
        places.missing.update(dict.fromkeys(("wllama", "transformers"), "no peers were asked for"))
        return places
    model = PackedModel.open(model_folder)
    bench = places.peers / "bench"
    for subject, lay_out_peer in (("wllama", _lay_out_wllama), ("transformers", _lay_out_transformers)):
        say(f"laying out {subject}")
        try:
            lay_out_peer(model, fetcher, bench)
        except (AssetError, NotWritable) as error:
            places.missing[subject] = str(error).splitlines()[0]
    for path in [path for path in bench.rglob("*") if path.suffix in _COMPRESSIBLE]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    return places


def _lay_out_wllama(model: PackedModel, fetcher: Fetcher, bench: Path) -> None:
    spec = MODELS.get(model.manifest.name)
    if spec is None or spec.files:
        raise NotWritable(f"there is no GGUF file of {model.manifest.name}")
    lay_out("wllama", fetcher, bench)
    _link(str(fetcher.fetch(spec.asset)), str(bench / "model.gguf"))


def _lay_out_transformers(model: PackedModel, fetcher: Fetcher, bench: Path) -> None:
    for name in ("transformers", "onnxruntime-web", "onnxruntime-common"):
        lay_out(name, fetcher, bench)
    write_model(model, bench / "onnx-model")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


class Counter:
    """Bytes of bodies that a server has sent."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.lock = threading.Lock()

    def take(self) -> int:
        """What was sent since the last call."""
        with self.lock:
            sent, self.sent_bytes = self.sent_bytes, 0
        return sent


class Line:
    """A line of so many Mbit/s that all connections of a server share, each request a round trip late."""

    def __init__(self, mbit: float) -> None:
        self._bytes_per_s = mbit * 1e6 / 8
        self._free_at = 0.0
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Wait as long as a request is on its way, and its answer."""
        time.sleep(ROUND_TRIP_S)

    def carry(self, n_bytes: int) -> None:
        """Wait as long as the line takes for these bytes, behind those that came before."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + n_bytes / self._bytes_per_s
            wait = self._free_at - time.monotonic()
        time.sleep(max(wait, 0))


@contextmanager
def serving(
    folder: Path, *, isolation: bool = True, is_ours: bool, mbit: float | None = None
) -> Iterator[tuple[str, Counter]]:
    """The folder's address while it is served, and the count of what was sent. mbit: as by such a line."""
    counter = Counter()
    line = Line(mbit) if mbit else None

    class Counting(serve.Handler):
        def do_GET(self) -> None:
            if line:
                line.ask()
            super().do_GET()

        def send_body(self, file: BufferedReader, start: int, n_bytes: int) -> None:
            if line is None:
                super().send_body(file, start, n_bytes)
                return
            file.seek(start)
            while n_bytes and (piece := file.read(min(n_bytes, _PIECE_BYTES))):
                line.carry(len(piece))
                self.connection.sendall(piece)
                n_bytes -= len(piece)

        def send_header(self, keyword: str, value: str) -> None:
            if keyword == "Content-Length" and self.command == "GET":
                with counter.lock:
                    counter.sent_bytes += int(value)
            if keyword == "Content-Security-Policy":
                # The benches' own pages start workers by plain strings.
                value = value.partition("; require-trusted-types-for")[0]
            if not is_ours:
                if keyword == "Content-Security-Policy":
                    return
                if keyword == "Cache-Control":
                    value = "public, max-age=86400"
            super().send_header(keyword, value)

    server = serve.start(folder, isolation=isolation)
    server.RequestHandlerClass = Counting
    try:
        yield server.url, counter
    finally:
        server.close()
