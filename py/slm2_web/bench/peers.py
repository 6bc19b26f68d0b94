"""Other programs' files, pinned by hash in peers.toml: fetched when wanted, laid where a page finds them."""

from __future__ import annotations

import base64
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from slm2_web.compile.assets import Fetcher, parse_assets
from slm2_web.compile.vocabulary import byte_alphabet

_LIST: Final = Path(__file__).with_name("peers.toml")

# Peer, and its folder in the page -> (asset, pattern of the members of its tarball).
_MEMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "huggingface": ("huggingface-tokenizers-js", r"package/dist/tokenizers\.min\.mjs"),
    "tiktoken": ("tiktoken-wasm", r"package/lite/tiktoken_bg\.(js|wasm)"),
    "wllama": ("wllama", r"package/esm/(index\.min\.js|wasm/wllama\.wasm)"),
    "transformers": ("transformers-js", r"package/dist/transformers\.web\.min\.js"),
    "onnxruntime-web": (
        "onnxruntime-web",
        r"package/dist/(ort\.webgpu\.bundle\.min\.mjs|ort-wasm-simd-threaded\.asyncify\.(mjs|wasm))",
    ),
    "onnxruntime-common": ("onnxruntime-common", r"package/dist/esm/.*\.js"),
}


def peer_versions() -> dict[str, str]:
    """The pinned version of each peer."""
    assets = parse_assets(_LIST.read_text("utf-8"))
    return {name: str(assets[asset].sources[0]) for name, (asset, _) in _MEMBERS.items()}


def lay_out(peer: str, fetcher: Fetcher, page: Path) -> None:
    """Puts the peer's files into `page`/`peer`. `fetcher`: gives the cache.

    Raises: AssetError.
    """
    asset, members = _MEMBERS[peer]
    pattern = re.compile(members)
    own = Fetcher(parse_assets(_LIST.read_text("utf-8")), fetcher.cache, fetcher.folders)
    folder = page / peer
    folder.mkdir()
    with tarfile.open(own.fetch(asset), "r:gz") as archive:
        for member in filter(lambda info: pattern.fullmatch(info.name), archive.getmembers()):
            file = archive.extractfile(member)
            assert file is not None, member.name
            (folder / Path(member.name).name).write_bytes(file.read())


def as_tiktoken(tokenizer_json: bytes) -> dict[str, Any]:
    """The vocabulary in the form that tiktoken takes: `ranks` (tokens in base64 by id) and `pattern`.

    tiktoken merges by the rank of the result, which is its id. Where a publisher's merges are in the order of
    their ids, as Qwen's are, that gives the same ids; whoever uses this compares them. It does not normalize.
    """
    data = json.loads(tokenizer_json)
    alphabet = byte_alphabet()
    by_id = sorted((token_id, token) for token, token_id in data["model"]["vocab"].items())
    tokens = [base64.b64encode(bytes(alphabet[c] for c in token)).decode() for _, token in by_id]
    assert [token_id for token_id, _ in by_id] == list(range(len(tokens)))
    splits = [
        step["pattern"]["Regex"] for step in data["pre_tokenizer"]["pretokenizers"] if step["type"] == "Split"
    ]
    return {"ranks": " ".join(["!", "0", *tokens]), "pattern": splits[0]}
