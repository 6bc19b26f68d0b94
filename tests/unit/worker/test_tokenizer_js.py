"""worker/wasm/tokenizer.js in Node: the same ids as Python, with a memory of its own and on a shared one."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slm2_web.tokenizer2.kernel import Status
from slm2_web.tokenizer2.runs import Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from text_oracles import fuzz_texts, prose_and_code

WORKER = Path(__file__).resolve().parents[3] / "worker"
SCRIPT = Path(__file__).with_name("tokenizer_kernel.mjs")


@pytest.fixture(scope="module")
def packed(smollm2_file: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's tokenizer.slm2tok."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.slm2tok"
    path.write_bytes(smollm2_file)
    return path


def ask(packed: Path, texts: list[tuple[bytes, list[int]]], *, shared: int = 0) -> Any:
    """The script's answer."""
    node = shutil.which("node")
    assert node, "Node.js is needed for the tests of the worker"
    items = [{"data": base64.b64encode(data).decode(), "spans": spans} for data, spans in texts]
    request = {"worker": WORKER.as_uri()[7:], "file": str(packed), "texts": items, "shared": shared}
    done = subprocess.run(
        [node, str(SCRIPT)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def whole(data: bytes, trusted: int = 0) -> tuple[bytes, list[int]]:
    return data, [0, len(data), trusted]


def test_the_same_ids_as_python(packed: Path) -> None:
    tokenizer = Tokenizer.from_bytes(packed.read_bytes())
    texts = [text.encode() for text in [*fuzz_texts(41, 500), *prose_and_code(), "", "a" * 200_000]]
    mixed = (b"<|im_start|>user\n<|im_end|>", [0, 17, 1, 17, 27, 0])
    answers = ask(packed, [*map(whole, texts), whole(b"<|im_end|>", 1), mixed])
    assert answers[: len(texts)] == [tokenizer.encode([Untrusted(text)]) for text in texts]
    assert answers[-2:] == [[2], tokenizer.encode([Trusted(mixed[0][:17]), Untrusted(mixed[0][17:])])]


def test_what_is_refused(packed: Path, tmp_path: Path) -> None:
    answers = ask(packed, [whole(b"ab\xff"), whole(b"a\x04"), (b"abc", [0, 2, 0])])
    assert answers == [
        {"name": "input.text", "status": Status.NOT_UTF8, "offset": 2},
        {"name": "input.character", "status": Status.NO_TOKEN_FOR, "offset": 1},
        {"name": "protocol.internal", "status": Status.BAD_SPANS, "offset": 0},
    ]
    cut = tmp_path / "cut.slm2tok"
    cut.write_bytes(packed.read_bytes()[:-100])
    assert ask(cut, [whole(b"a")])[0]["name"] == "format.tokenizer_file"


def test_threads_read_one_file_in_one_memory_at_once(packed: Path) -> None:
    tokenizer = Tokenizer.from_bytes(packed.read_bytes())
    texts = [text.encode() for text in [*fuzz_texts(42, 100), "ab" * 2000, *prose_and_code()[:40]]]
    expected = [tokenizer.encode([Untrusted(text)]) for text in texts]
    assert ask(packed, [*map(whole, texts)], shared=3) == [expected] * 3
