"""Files that lie under worker/ in a working tree and in the package in a wheel: shaders, wasm modules."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

_TREE = Path(__file__).parents[2] / "worker"


def read(folder: str, name: str) -> bytes:
    """The file `name` of `folder`, which is `shaders` or `wasm`."""
    packaged = resources.files("slm2_web") / folder / name
    return packaged.read_bytes() if packaged.is_file() else (_TREE / folder / name).read_bytes()
