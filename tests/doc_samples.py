"""The code samples of README.md and docs/*.md: fenced blocks with a language.

A sample that no test runs says why, behind its language: ```sh no-run: the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(`{3,})(.*)$")
# What a fence may say. Outputs, pictures and what Sphinx reads are no samples.
LANGUAGES = ("sh", "python", "js", "html", "json")
NO_SAMPLES = ("text", "mermaid", "{eval-rst}")


@dataclass(frozen=True, slots=True)
class Sample:
    """file: below the root. line: of its fence, from 1. no_run: why it is not run, or the empty string."""

    file: str
    line: int
    language: str
    no_run: str
    text: str

    @property
    def place(self) -> str:
        """FILE:LINE."""
        return f"{self.file}:{self.line}"

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.split("\n", 1)[0]


def pages() -> list[Path]:
    """README.md and the pages that are written by hand."""
    docs = ROOT / "docs"
    return [ROOT / "README.md", *sorted(docs.glob("*.md"))]


def read(text: str, file: str) -> Iterator[Sample]:
    """The samples of a page. Raises: ValueError with the place of a fence that is not as it should be."""
    lines = text.split("\n")
    start = -1
    for number, line in enumerate(lines):
        found = FENCE.match(line)
        if not found:
            continue
        if start < 0:
            start = number
            continue
        if found[2]:
            raise ValueError(f"{file}:{number + 1}: found a fence in a fence")
        info = lines[start].lstrip("`")
        language, _, note = info.partition(" ")
        if language not in (*LANGUAGES, *NO_SAMPLES):
            allowed = ", ".join((*LANGUAGES, *NO_SAMPLES))
            raise ValueError(f"{file}:{start + 1}: found the language {language!r}; allowed: {allowed}")
        reason = re.fullmatch(r"no-run: (\S.*)", note)
        if note and not reason:
            raise ValueError(f"{file}:{start + 1}: found {note!r}; allowed: no-run: REASON")
        if language in LANGUAGES:
            body = "\n".join(lines[start + 1 : number])
            yield Sample(file, start + 1, language, reason[1] if reason else "", body)
        start = -1
    if start >= 0:
        raise ValueError(f"{file}:{start + 1}: found a fence that is not closed")


def samples(*languages: str) -> list[Sample]:
    """All samples in these languages; of all, when none is given."""
    found = [
        sample
        for page in pages()
        for sample in read(page.read_text("utf-8"), page.relative_to(ROOT).as_posix())
    ]
    return [sample for sample in found if not languages or sample.language in languages]


def run_samples(*languages: str) -> list[Sample]:
    """The same without those that are not run."""
    return [sample for sample in samples(*languages) if not sample.no_run]
