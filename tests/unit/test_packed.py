"""Opening a packed directory: every file is the recorded one, or a FormatError that names it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from slm2_web.errors import FormatError
from slm2_web.manifest import FileEntry
from slm2_web.packed import PackedModel, check_file


@pytest.fixture
def directory(packed_tiny: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(packed_tiny, tmp_path / "model"))


def shard(directory: Path) -> Path:
    return next(directory.glob("weights-00.*.bin"))


def tokenizer(directory: Path) -> Path:
    return directory / "tokenizer.slm2tok"


def test_opens(directory: Path) -> None:
    model = PackedModel.open(directory)
    assert model.weights.tobytes() == shard(directory).read_bytes()
    assert model.tokenizer_bytes == tokenizer(directory).read_bytes()
    assert model.weights.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        model.weights[0] = 1
    unverified = PackedModel.open(directory, verify=False)
    assert np.array_equal(unverified.weights, model.weights)
    assert unverified.manifest == model.manifest


def test_plane_views(directory: Path) -> None:
    """Shapes and types, and that a view is a window on the weights."""
    model = PackedModel.open(directory)
    shapes = {
        ("rope.inv_freq", "values"): ("<f4", (1, 16)),
        ("embed", "quants"): ("i1", (300, 64)),
        ("embed", "scales"): ("<f2", (300, 2)),
        ("layers.0.attn_qkv", "quants"): ("u1", (128, 32)),
        ("layers.0.attn_qkv", "scales"): ("<f2", (128, 2, 2)),
        ("layers.1.ffn_norm", "values"): ("<f4", (1, 64)),
    }
    for (tensor, plane), (dtype, shape) in shapes.items():
        view = model.plane(tensor, plane)
        assert (view.dtype, view.shape) == (np.dtype(dtype), shape)
        start = model.manifest.tensors[tensor].planes[plane]
        assert view.tobytes() == model.weights[start : start + view.nbytes].tobytes()
        assert np.shares_memory(view, model.weights)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "extended": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path: path.write_bytes(b""),
    "corrupted": flip,
    "missing": Path.unlink,
    "a folder": replace_by_folder,
}


@pytest.mark.parametrize("which", [shard, tokenizer])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file(directory: Path, which: Callable[[Path], Path], damage: str) -> None:
    path = which(directory)
    DAMAGE[damage](path)
    with pytest.raises(FormatError) as caught:
        PackedModel.open(directory)
    assert caught.value.code == "format.model_file"
    assert caught.value.detail["file"] == path.name
    assert {"found", "allowed"} <= set(caught.value.detail)
    if damage != "corrupted":  # sizes are checked even where hashes are not
        with pytest.raises(FormatError, match=r"^format\.model_file"):
            PackedModel.open(directory, verify=False)


def test_every_shard_is_checked(directory: Path) -> None:
    """The same weights in three shards; the middle one damaged."""
    whole = shard(directory)
    data = whole.read_bytes()
    manifest = json.loads((directory / "manifest.json").read_text())
    pieces = [data[:1000], data[1000:50_000], data[50_000:]]
    manifest["weights"]["shards"] = [
        {"file": f"w{i}.bin", "bytes": len(piece), "sha256": hashlib.sha256(piece).hexdigest()}
        for i, piece in enumerate(pieces)
    ]
    (directory / "manifest.json").write_text(json.dumps(manifest))
    for i, piece in enumerate(pieces):
        (directory / f"w{i}.bin").write_bytes(piece)
    whole.unlink()
    assert PackedModel.open(directory).weights.tobytes() == data
    flip(directory / "w1.bin")
    with pytest.raises(FormatError, match=r"^format\.model_file: w1\.bin: found sha256"):
        PackedModel.open(directory)


def test_manifest_missing_or_huge(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"^format\.model_file: manifest\.json"):
        PackedModel.open(tmp_path / "nowhere")
    with (directory / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)  # sparse: refused by its size, not read
    with pytest.raises(FormatError, match=r"^format\.model_file: manifest\.json"):
        PackedModel.open(directory)


def test_a_manifest_of_another_network_is_refused(directory: Path) -> None:
    path = directory / "manifest.json"
    path.write_text(path.read_text().replace('"n_layers": 2', '"n_layers": 1'))
    with pytest.raises(FormatError, match=r"^format\.manifest: tensors\['layers\.1\."):
        PackedModel.open(directory)


def test_check_file() -> None:
    data = b"some bytes"
    entry = FileEntry("f.bin", len(data), hashlib.sha256(data).hexdigest())
    check_file(entry, data)
    check_file(entry, np.frombuffer(data, np.uint8).data)
    for wrong in (data[:-1], data + b"x", b"Some bytes", b""):
        with pytest.raises(FormatError, match=r"^format\.model_file: f\.bin"):
            check_file(entry, wrong)


def test_the_real_model_opens(packed_smollm2: Path) -> None:
    model = PackedModel.open(packed_smollm2)
    assert model.manifest.name == "smollm2-135m"
    assert model.plane("layers.29.ffn_down", "quants").shape == (576, 768)
