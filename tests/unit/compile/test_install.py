"""A model whose weights can't be had: compiled without them, and what can be done with it then."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slm2_web import cli
from slm2_web.compile.assets import Asset, Fetcher, check_asset, parse_assets
from slm2_web.compile.install import PUBLISHED, install_model, install_own
from slm2_web.compile.models import MODELS
from slm2_web.compile.sources import UrlSource
from slm2_web.errors import AssetError, FormatError
from slm2_web.manifest import parse_manifest
from slm2_web.packed import PackedModel, check_file
from slm2_web.tokenizer2.runs import Trusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_safetensors import make_tiny_hf, split_weights

ROOT = Path(__file__).parents[3]
NAME = "qwen3-0.6b"
WEIGHTS = MODELS[NAME].asset
ASSETS = parse_assets((ROOT / "assets.toml").read_text("utf-8"))


def unreachable(asset: Asset) -> Asset:
    return replace(asset, sources=(UrlSource("http://127.0.0.1:9/"),))


def install(root: Path, qwen3_json: Path) -> tuple[Path, str]:
    """The model's directory without a network but for tokenizer.json, and what was said."""
    said: list[str] = []
    assets = {name: unreachable(asset) for name, asset in ASSETS.items()}
    fetcher = Fetcher(assets, root / "cache", [root / "assets"], said.append)
    (root / "assets").mkdir(exist_ok=True)
    (root / "assets" / "tokenizer.json").write_bytes(qwen3_json.read_bytes())
    return install_model(NAME, root, fetcher, said.append), "\n".join(said)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, qwen3_json: Path) -> tuple[Path, str]:
    """Without a network."""
    return install(tmp_path_factory.mktemp("root"), qwen3_json)


@pytest.mark.parametrize("path", sorted(PUBLISHED.rglob("*.json")), ids=lambda path: path.name)
def test_the_published_files_are_the_publishers(path: Path) -> None:
    check_asset(ASSETS[path.relative_to(PUBLISHED).as_posix()], path)


def test_it_is_a_model_without_weights_and_that_is_said(installed: tuple[Path, str]) -> None:
    directory, said = installed
    manifest = parse_manifest((directory / "manifest.json").read_bytes())
    weights = ASSETS[WEIGHTS]
    assert (manifest.name, manifest.shards, manifest.tensors) == (NAME, (), {})
    assert (manifest.source.bytes, manifest.source.sha256) == (weights.bytes, weights.sha256)
    assert (manifest.config.architecture, manifest.config.n_layers) == ("qwen3", 28)
    assert manifest.eos_ids == (151645, 151643)
    assert manifest.defaults["top_k"] == 20
    check_file(manifest.tokenizer, (directory / manifest.tokenizer.file).read_bytes())
    assert {path.name for path in directory.iterdir()} == {"manifest.json", manifest.tokenizer.file}
    assert f"{WEIGHTS} (model.safetensors, 1503.3 MB) could not be had" in said
    assert "without its weights" in said
    with pytest.raises(FormatError):
        PackedModel.open(directory)


def test_again_when_called_again(installed: tuple[Path, str], qwen3_json: Path) -> None:
    """The weights are looked for each time; the bytes are the same."""
    directory, _ = installed
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    again, said = install(directory.parents[2], qwen3_json)
    assert again == directory
    assert "could not be had" in said
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_other_files_than_the_weights_must_be_there(tmp_path: Path) -> None:
    assets = {name: unreachable(asset) for name, asset in ASSETS.items()}
    with pytest.raises(AssetError, match=r"^asset\.unreachable: qwen3-0\.6b/tokenizer\.json"):
        install_model(NAME, tmp_path, Fetcher(assets, tmp_path / "cache"), print)
    assert not (tmp_path / "build" / "models" / NAME).exists()


def test_a_folder_of_the_publishers_files(tmp_path: Path, qwen3_json: Path) -> None:
    """`--from`: nothing is fetched, and each file has to be the publisher's; the weights too."""
    folder = tmp_path / "from"
    folder.mkdir()
    for path in (*PUBLISHED.rglob("*.json"), qwen3_json):
        name = path.name if path != qwen3_json else "tokenizer.json"
        (folder / name).write_bytes(path.read_bytes())
    fetcher = Fetcher(ASSETS, tmp_path / "cache")
    for data, code in ((None, "asset.unreachable"), (b"other", "asset.hash")):
        if data is not None:
            (folder / "model.safetensors").write_bytes(data)
        with pytest.raises(AssetError, match=rf"^{code}: {WEIGHTS}"):
            install_model(NAME, tmp_path, fetcher, print, source=folder)
    assert not (tmp_path / "build").exists()
    assert not fetcher.cache.exists()


def test_a_model_of_ones_own(tmp_path: Path, qwen3_json: Path) -> None:
    """In two weight files, with a real tokenizer.json; what quantising lost is said for each matrix."""
    config = {"vocab_size": 151936, "num_hidden_layers": 1}
    made = make_tiny_hf(tmp_path / "hf", "qwen3", config=config)
    split_weights(made.directory, 2)
    (made.directory / "tokenizer.json").write_bytes(qwen3_json.read_bytes())
    said: list[str] = []
    out = install_own(made.directory, tmp_path, "mine", "CC0-1.0", "q8_0", said.append)
    assert out == tmp_path / "build" / "models" / "mine"
    model = PackedModel.open(out)
    assert model.manifest.tensors["layers.0.ffn_down"].type == "q8_0"
    assert Tokenizer.from_bytes(model.tokenizer_bytes).control_id(b"<|im_end|>") == 151645
    lost = dict(re.findall(r"^(\S+): (\S+, error \d\.\d\d) % of the values \(rms\)$", "\n".join(said), re.M))
    assert lost.keys() == {name for name, values in made.weights.items() if values.ndim == 2}
    for text in lost.values():
        kind, _, error = text.partition(", error ")
        assert kind == "q8_0"
        assert 0.3 < float(error) < 0.8


@pytest.mark.parametrize(
    ("command", "request_", "answer"),
    [
        ("tokenize", {"runs": [{"text": "<|im_end|>", "trusted": True}]}, {"ids": [151645]}),
        ("tokenize", {"text": "<|im_end|>"}, None),
        ("detokenize", {"ids": [9707, 151644]}, {"text": "Hello<|im_start|>"}),
        ("generate", {"prompt_ids": [1]}, "input.model"),
        (
            "render",
            {"messages": [{"role": "user", "content": "x"}]},
            {"text": "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"},
        ),
    ],
)
def test_its_commands(
    installed: tuple[Path, str],
    qwen3_tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    command: str,
    request_: object,
    answer: object,
) -> None:
    monkeypatch.setenv("SLM2_MODELS", str(installed[0].parent))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(request_).encode())))
    status = cli.run([command, "--model", NAME])
    out, err = capsysbinary.readouterr()
    if isinstance(answer, str):
        assert (status, out, json.loads(err)["error"]["code"]) == (2, b"", answer)
        return
    assert (status, err) == (0, b"")
    found = json.loads(out)
    if answer is None:
        assert qwen3_tokenizer.decode(found["ids"]) == b"<|im_end|>"
        assert found["ids"] != qwen3_tokenizer.encode([Trusted(b"<|im_end|>")])
    else:
        assert isinstance(answer, dict)
        assert {key: found[key] for key in answer} == answer
