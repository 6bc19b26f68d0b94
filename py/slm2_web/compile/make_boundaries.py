"""Write parity/boundaries.json: where every class begins and ends that text is cut or composed by.

Of the classes of split_classes_ucd16.json and the combining classes of nfc_ucd9.json, the first code point of
each range and the one after its last, ascending, each as its distance from the one before.

    python -m slm2_web.compile.make_boundaries
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import slm2_web.parity

_HERE = Path(__file__).parent
TARGET = Path(slm2_web.parity.__file__).with_name("boundaries.json")


def boundaries() -> list[int]:
    """The code points, ascending."""
    classes = json.loads((_HERE / "split_classes_ucd16.json").read_text("utf-8"))
    combining = json.loads((_HERE / "nfc_ucd9.json").read_text("utf-8"))["combining_classes"]
    ranges = [*(each for some in classes.values() for each in some), *combining]
    return sorted(set(_edges(ranges)))


def _edges(ranges: Iterable[str]) -> Iterable[int]:
    for text in ranges:
        first, _, last = text.partition("-")
        yield int(first, 16)
        yield min(int(last or first, 16) + 1, 0x10FFFF)


def distances() -> str:
    """The file's text."""
    points = boundaries()
    return (
        json.dumps([b - a for a, b in zip([0, *points], points, strict=False)], separators=(",", ":")) + "\n"
    )


if __name__ == "__main__":
    TARGET.write_text(distances(), "utf-8")
