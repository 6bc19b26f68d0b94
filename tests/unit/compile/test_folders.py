"""A folder is replaced as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slm2_web.compile.folders import replacing


def contents(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text("utf-8") for p in folder.rglob("*") if p.is_file()}


def test_it_takes_the_place(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    for text in ("one", "two"):
        with replacing(out) as new:
            (new / f"{text}.txt").write_text(text, "utf-8")
        assert contents(out) == {f"{text}.txt": text}
    assert os.listdir(out.parent) == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SystemExit])
@pytest.mark.parametrize("when", ["writing", "old", "new"])
def test_an_exception_leaves_it_as_it_was(
    when: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is written; after the old one has been put aside; instead of putting the new one there."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("old", "utf-8")
    rename = Path.rename
    left = {"writing": [], "old": ["out"], "new": ["new"]}[when]

    def interrupted(self: Path, target: Path) -> Path:
        if self.name not in left:
            return rename(self, target)
        left.remove(self.name)
        if when == "old":
            rename(self, target)
        raise error

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(error), replacing(out) as new:  # noqa: PT012
        (new / "new.txt").write_text("new", "utf-8")
        if when == "writing":
            raise error
    assert left == []
    assert contents(tmp_path) == {"out/old.txt": "old"}
    assert os.listdir(tmp_path) == ["out"]
