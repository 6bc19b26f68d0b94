"""Folders that are written as a whole: the new one beside the old one's place, then put there by renaming."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A new empty folder, which takes the place of `out` when the block ends without an exception.

    With one, also an interrupt amid the renaming, `out` is there as it was.
    """
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    new, old = work / "new", work / "old"
    try:
        new.mkdir()
        yield new
        if out.exists():
            out.rename(old)
        new.rename(out)
    finally:
        if old.exists() and not out.exists():
            old.rename(out)
        shutil.rmtree(work)


def copy(source: Path, target: Path) -> None:
    """The file's bytes alone, in a folder that is made: not the mode of a cache, and no hard link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def paths_in(folder: Path) -> list[str]:
    """Every file under `folder`, as relative POSIX paths in order."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
