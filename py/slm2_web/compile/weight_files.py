"""A Hugging Face directory's weights: one safetensors file, or several that an index ties together.

    model.safetensors.index.json
        {"metadata"?: {"total_size"?: bytes of all tensors, ...}, "weight_map": {TENSOR: FILE, ...}}

The index and the files must say the same: every tensor of a file is mapped to that file and to no other,
every tensor of the map is there, and total_size, where it is given, is what the tensors take. A file's name
is plain, so it lies in the directory itself. Each file is open, none is in memory: rows are read where they
are wanted.

Source: get_checkpoint_shard_files of transformers (utils/hub.py): the files are those that the map names.
That each tensor lies where the map says, and that total_size is right, is our own demand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from slm2_web.compile.hfconfig import parse_object
from slm2_web.compile.safetensors import SafetensorsTensor, bad, read_safetensors
from slm2_web.strictjson import Checks, show

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20
# Each is open while a model is packed.
MAX_FILES = 256
_CHECK = Checks(bad)


@dataclass(frozen=True, slots=True)
class Index:
    """An index, checked by itself: by file, in the order of their names, the names of its tensors."""

    files: Mapping[str, Sequence[str]]
    total_bytes: int | None


def weight_files(files: Mapping[str, Path]) -> list[str]:
    """The names of the files that hold the weights, an index before what it lists.

    `files`: those of a directory that may be of use, by name. Raises: FormatError `format.safetensors`.
    """
    if (WEIGHTS in files) == (INDEX in files):
        found = "both" if WEIGHTS in files else "nothing"
        raise bad(WEIGHTS, found, f"either this file or {INDEX} and the files that it lists")
    if WEIGHTS in files:
        return [WEIGHTS]
    return [INDEX, *_index(files).files]


@contextmanager
def open_weights(files: Mapping[str, Path]) -> Iterator[dict[str, SafetensorsTensor]]:
    """The tensors of all files by name; the files are closed at the end.

    Raises: FormatError `format.safetensors` where a file is damaged or missing, or the index is not theirs.
    """
    with ExitStack() as stack:
        if weight_files(files) == [WEIGHTS]:
            yield dict(stack.enter_context(read_safetensors(files[WEIGHTS])).tensors)
            return
        index = _index(files)
        tensors: dict[str, SafetensorsTensor] = {}
        for file, names in index.files.items():
            held = stack.enter_context(read_safetensors(files[file])).tensors
            for tensor in sorted(held.keys() ^ set(names)):
                found = "there, and not in the index as its" if tensor in held else "not there"
                raise bad(f"{file}, tensor {show(tensor)}", found, f"the tensors that {INDEX} places there")
            tensors |= held
        n_bytes = sum(tensor.info.end - tensor.info.begin for tensor in tensors.values())
        if index.total_bytes not in (None, n_bytes):
            raise bad(
                f"{INDEX}, metadata.total_size", str(index.total_bytes), f"{n_bytes}, the tensors' bytes"
            )
        yield tensors


def parse_index(data: bytes) -> Index:
    """model.safetensors.index.json, checked. Raises: FormatError `format.safetensors`."""
    root = parse_object(data, INDEX, MAX_INDEX_BYTES)
    _CHECK.object_with(root, INDEX, ("weight_map",), ("metadata",))
    metadata = _CHECK.any_object(root.get("metadata", {}), f"{INDEX}, metadata")
    total = metadata.get("total_size")
    if total is not None:
        _CHECK.integer(total, f"{INDEX}, metadata.total_size", 0, (1 << 63) - 1)
    names: dict[str, list[str]] = {}
    for tensor, file in _CHECK.any_object(root["weight_map"], f"{INDEX}, weight_map").items():
        # No folder, nothing hidden, and not another kind of file.
        if not isinstance(file, str) or not re.fullmatch(
            r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\.safetensors", file
        ):
            allowed = "the plain name of a .safetensors file"
            raise bad(f"{INDEX}, weight_map, {show(tensor)}", show(file), allowed)
        names.setdefault(file, []).append(tensor)
    if not 1 <= len(names) <= MAX_FILES:
        raise bad(f"{INDEX}, weight_map", f"{len(names)} files", f"1 to {MAX_FILES}")
    return Index(dict(sorted(names.items())), total)


def _index(files: Mapping[str, Path]) -> Index:
    with files[INDEX].open("rb") as file:
        index = parse_index(file.read(MAX_INDEX_BYTES + 1))
    for name in index.files:
        if name not in files:
            raise bad(name, "nothing", f"a file of this name: {INDEX} lists it")
    return index
