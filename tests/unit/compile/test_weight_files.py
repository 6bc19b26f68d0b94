"""Weights in several files: the same model as from one, and an index that is not theirs is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.compile.pack_hf import files_in, pack_hf
from slm2_web.compile.weight_files import INDEX, WEIGHTS, open_weights, parse_index, weight_files
from slm2_web.errors import FormatError
from slm2_web.packed import PackedModel
from tiny_safetensors import TinyHf, make_tiny_hf, split_weights, write_safetensors

FIRST, SECOND, THIRD = (f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3))
Index = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TinyHf:
    """A model in three files."""
    made = make_tiny_hf(tmp_path_factory.mktemp("split"), "qwen3", seed=4, keep_copy=True)
    split_weights(made.directory, 3)
    return made


def pack(made: TinyHf, out: Path) -> PackedModel:
    pack_hf(made.files, out, made.spec, compile_tokenizer=made.compile_tokenizer)
    return PackedModel.open(out)


def test_the_same_model_as_from_one_file(made: TinyHf, tmp_path: Path) -> None:
    one = pack(make_tiny_hf(tmp_path / "one", "qwen3", seed=4, keep_copy=True), tmp_path / "a")
    several = pack(made, tmp_path / "b")
    assert several.weights.tobytes() == one.weights.tobytes()
    assert several.manifest.tensors == one.manifest.tensors
    # The source is the files one after another: `cat INDEX FIRST SECOND THIRD | sha256sum`.
    assert weight_files(made.files) == [INDEX, FIRST, SECOND, THIRD]
    data = b"".join((made.directory / name).read_bytes() for name in (INDEX, FIRST, SECOND, THIRD))
    source = several.manifest.source
    assert (source.file, source.bytes) == (INDEX, len(data))
    assert source.sha256 == hashlib.sha256(data).hexdigest()


def test_a_file_of_no_use_may_lie_there(made: TinyHf, tmp_path: Path) -> None:
    files = {**made.files, "consolidated.safetensors": tmp_path / "not opened"}
    with open_weights(files) as tensors:
        assert tensors.keys() == made.weights.keys()


@pytest.mark.parametrize("metadata", [..., {}, {"total_parameters": 5}])
def test_what_an_index_need_not_say(metadata: Any) -> None:
    index = {"weight_map": {"a": FIRST}} | ({} if metadata is ... else {"metadata": metadata})
    parsed = parse_index(json.dumps(index).encode())
    assert (parsed.files, parsed.total_bytes) == ({FIRST: ["a"]}, None)


def set_total(index: Index) -> None:
    index["metadata"]["total_size"] += 2


def move_a_tensor(index: Index) -> None:
    index["weight_map"]["model.norm.weight"] = next(
        name for name in (FIRST, SECOND) if name != index["weight_map"]["model.norm.weight"]
    )


def add_a_tensor(index: Index) -> None:
    index["weight_map"]["model.rotary.inv_freq"] = FIRST


def drop_a_tensor(index: Index) -> None:
    del index["weight_map"]["model.norm.weight"]


def add_a_file(index: Index) -> None:
    index["weight_map"]["model.norm.weight"] = "model-00004-of-00003.safetensors"


WRONG: dict[str, tuple[Callable[[Index], None], str]] = {
    # name: (what is done to the index, what the message names)
    "total_size": (set_total, "metadata.total_size"),
    "a tensor in another file": (move_a_tensor, "model.norm.weight"),
    "a tensor that is nowhere": (add_a_tensor, "model.rotary.inv_freq"),
    "a tensor that is not listed": (drop_a_tensor, "model.norm.weight"),
    "a file that is not there": (add_a_file, "model-00004-of-00003.safetensors"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_index_that_is_not_theirs(made: TinyHf, tmp_path: Path, name: str) -> None:
    change, names = WRONG[name]
    index = json.loads((made.directory / INDEX).read_bytes())
    change(index)
    (tmp_path / INDEX).write_text(json.dumps(index))
    files = {**made.files, INDEX: tmp_path / INDEX}
    with pytest.raises(FormatError, match=r"^format\.safetensors") as caught, open_weights(files):
        raise AssertionError
    assert names in caught.value.message


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    """Whichever the index names, the other file has one that is not its."""
    files = {name: tmp_path / name for name in (INDEX, "a.safetensors", "b.safetensors")}
    for file, other in (("a.safetensors", "t"), ("b.safetensors", "u")):
        write_safetensors(files[file], {"both": [2], other: [2]}, "F32", iter([bytes(16)]))
    for owner, wrong in (("a", "b"), ("b", "a")):
        index = {"both": f"{owner}.safetensors", "t": "a.safetensors", "u": "b.safetensors"}
        files[INDEX].write_text(json.dumps({"weight_map": index}))
        with pytest.raises(FormatError, match=r"^format\.safetensors") as caught, open_weights(files):
            raise AssertionError
        assert f"{wrong}.safetensors, tensor 'both'" in caught.value.message


@pytest.mark.parametrize("missing", [FIRST, THIRD])
def test_a_file_that_is_missing(made: TinyHf, tmp_path: Path, missing: str) -> None:
    files = {name: path for name, path in made.files.items() if name != missing}
    with pytest.raises(FormatError, match=r"^format\.safetensors") as caught:
        pack_hf(files, tmp_path / "out", made.spec, compile_tokenizer=made.compile_tokenizer)
    assert missing in caught.value.message
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_damaged(made: TinyHf, tmp_path: Path) -> None:
    cut = tmp_path / SECOND
    cut.write_bytes((made.directory / SECOND).read_bytes()[:-1])
    with (
        pytest.raises(FormatError, match=r"^format\.safetensors"),
        open_weights({**made.files, SECOND: cut}),
    ):
        raise AssertionError


def test_one_file_and_an_index_are_too_much(made: TinyHf, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"^format\.safetensors: .*found both"):
        weight_files({**made.files, WEIGHTS: made.directory / FIRST})
    with pytest.raises(FormatError, match=r"^format\.safetensors: .*found nothing"):
        weight_files({"pytorch_model.bin": tmp_path})


def listing(file: Any) -> bytes:
    return json.dumps({"weight_map": {"a": file}}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": {}}',
        b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
        b'{"weight_map": {"a": "x.safetensors"}, "more": 1}',
        b'{"weight_map": {"a": "x.safetensors"}, "metadata": []}',
        b'{"weight_map": {"a": "x.safetensors"}, "metadata": {"total_size": 1.0}}',
        b'{"weight_map": {"a": "x.safetensors"}, "metadata": {"total_size": -1}}',
        b'{"weight_map": {"a": "x.safetensors"}, "metadata": {"total_size": true}}',
        listing("../x.safetensors"),
        listing("/etc/x.safetensors"),
        listing("a/x.safetensors"),
        listing("a\\x.safetensors"),
        listing(".x.safetensors"),
        listing("x.safetensors\n"),
        listing("x.safetensors\0"),
        listing("pytorch_model.bin"),
        listing("C:x.safetensors"),
        listing(None),
        json.dumps({"weight_map": {str(i): f"{i}.safetensors" for i in range(257)}}).encode(),
    ],
)
def test_an_index_that_is_none(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^format\.safetensors: .*found .*; allowed: "):
        parse_index(data)


@given(st.dictionaries(st.text(), st.text() | st.none()))
def test_a_listed_file_lies_in_the_directory(weight_map: dict[str, str | None]) -> None:
    try:
        files = parse_index(json.dumps({"weight_map": weight_map}).encode()).files
    except FormatError:
        return
    assert all(Path(name).name == name for name in files)


def test_files_in_finds_them(made: TinyHf) -> None:
    assert {INDEX, FIRST, SECOND, THIRD} <= files_in(made.directory).keys()
