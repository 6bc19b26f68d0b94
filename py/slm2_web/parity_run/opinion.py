"""The stage `regex` outside a browser: what its records are when the second opinion agrees everywhere.

    python -m slm2_web.parity_run.opinion --write     write web/parity-opinion.json

A record is a text of the stage `tokenizer` and its pieces; in a page, the pieces that `regex` gives stand
beside ours where they are others (web/parity-opinion.js). So the digest here is that of no disagreement.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from slm2_web.parity import suite
from slm2_web.parity.baseline import open_subject
from slm2_web.parity.canonical import Digest, Json, canonical
from slm2_web.parity.certificate import Expected
from slm2_web.parity.subject import Subject

ROOT: Final = Path(__file__).resolve().parents[3]
FILE: Final = ROOT / "web" / "parity-opinion.json"
NAME: Final = "regex"
SOURCE: Final = "tokenizer"
# A model's published pattern, by its name in parity/opinion.py.
MODELS: Final = {"smollm2-135m": "smollm", "parity-qwen3": "qwen2"}


def expected(
    data: Mapping[str, Any], suffixes: Mapping[str, str], sizes: tuple[str, ...]
) -> Iterator[Expected]:
    """What the stage comes to for each model; suffixes: what makes its name one of the whole suite."""
    for model, part in data["models"].items():
        for size in sizes:
            name = NAME + suffixes[model]
            yield Expected(name, size, part["vectors"][size], part["digests"][size])


async def part(subject: Subject, pattern: str) -> dict[str, Any]:
    """A model's part of the file."""
    sizes = suite.STAGES[SOURCE].sizes
    digest, count = Digest(), 0
    vectors: dict[str, int] = {}
    digests: dict[str, str] = {}
    for index in range(max(sizes.values())):
        record = await suite.record(subject, SOURCE, index, "full")
        if "pieces" in record["output"]:
            digest.add(canonical(agreed(record["output"]["pieces"], pattern, count)))
            count += 1
        for size, most in sizes.items():
            if index + 1 == most:
                vectors[size], digests[size] = count, digest.digest
    return {"pattern": pattern, "vectors": vectors, "digests": digests, "marks": digest.marks}


def agreed(pieces: list[str], pattern: str, number: int) -> Json:
    """The record of a text on which both agree."""
    made = {"pattern": pattern, "text": "".join(pieces)}
    return {"id": f"{NAME}-{number:05}", "input": made, "output": {"pieces": pieces}}


async def data_of(models: Path) -> dict[str, Any]:
    """The file's content."""
    found = {}
    for name, pattern in MODELS.items():
        found[name] = await part(await open_subject(models / name), pattern)
    return {"models": found}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    FILE.write_text(json.dumps(asyncio.run(data_of(ROOT / "build" / "models")), indent=1) + "\n", "utf-8")
