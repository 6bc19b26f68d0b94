"""The texts that tokenizers are measured on: from this Python's own library, or made by a rule.

Nothing is fetched, and the same Python makes the same texts. A text is at most `max_bytes` long; each comes
with its provenance, and with its sha256 so that two runs can be compared.
"""

from __future__ import annotations

import ast
import hashlib
import pydoc_data.topics
import random
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm2_web.bench.machine import python_version

# What is no part of the library proper.
_LEFT_OUT = {
    "test",
    "tests",
    "site-packages",
    "idlelib",
    "lib2to3",
    "__pycache__",
    "turtledemo",
    "pydoc_data",
}
_HAN = re.compile(r"[\u4e00-\u9fff]{1,4}")
_SPECIALS = " \U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea cafe\u0301 ½ \u00a0 ﷽\n"


@dataclass(frozen=True, slots=True)
class Text:
    """A text to encode, and where it is from."""

    name: str
    text: str
    provenance: str

    def facts(self) -> dict[str, Any]:
        """What a report says of it."""
        data = self.text.encode()
        return {
            "bytes": len(data),
            "characters": len(self.text),
            "sha256": hashlib.sha256(data).hexdigest(),
            "provenance": self.provenance,
        }


def texts(max_bytes: int, words: Sequence[str], scripts: str) -> list[Text]:
    """The texts, each at most `max_bytes` long.

    words: Chinese words by falling frequency. scripts: a line in each of many scripts, for the mixed text.
    """
    library = f"the library of {python_version()}"
    english = _cut(_joined(_prose(), "\n\n", max_bytes), max_bytes)
    code = _cut(_joined(_sources(), "\n", max_bytes), max_bytes)
    chinese = _cut(_chinese(words, max_bytes), max_bytes)
    mixed = _cut(_mixed(english, code, chinese, scripts, max_bytes), max_bytes)
    return [
        Text(
            "english", english, f"paragraphs of prose in the language reference and docstrings of {library}"
        ),
        Text("code", code, f"modules of {library}, by name"),
        Text(
            "chinese",
            chinese,
            "words of the vocabulary in random order, the frequent ones more often; seed 3",
        ),
        Text(
            "mixed",
            mixed,
            "slices of the three before, of tests/unit/vectors/scripts.txt, and emoji, in turn",
        ),
        Text("adversarial", _cut(_adversarial(max_bytes), max_bytes), "marks, spaces and fragments; seed 4"),
        Text("one-letter", "a" * max_bytes, "the letter a: one piece"),
        Text(
            "emoji", "\U0001f600" * max_bytes, "one emoji, as many times as the others have bytes: one piece"
        ),
    ]


def chinese_words(tokens: Iterator[bytes]) -> list[str]:
    """The words of one to four Han characters among a vocabulary's tokens, in its order."""
    words = []
    for data in tokens:
        try:
            word = data.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if _HAN.fullmatch(word):
            words.append(word)
    return words


def _prose() -> Iterator[str]:
    """Paragraphs of English, no two alike."""
    seen = set()
    for text in _documents():
        for paragraph in re.split(r"\n\s*\n", text):
            words = paragraph.split()
            line = " ".join(words)
            letters = sum(c.isalpha() or c == " " for c in line)
            if len(words) >= 12 and line.isascii() and letters >= 0.9 * len(line) and line not in seen:
                seen.add(line)
                yield line


def _documents() -> Iterator[str]:
    topics = pydoc_data.topics.topics
    yield from (topics[name] for name in sorted(topics))
    for source in _sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""


def _sources() -> Iterator[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        if not _LEFT_OUT & set(path.relative_to(folder).parts):
            try:
                yield path.read_text("utf-8")
            except UnicodeDecodeError:
                continue


def _chinese(words: Sequence[str], max_bytes: int) -> str:
    if not words:
        words = [chr(code) for code in range(0x4E00, 0x4E00 + 2000)]
    rng = random.Random(3)
    parts, size = [], 0
    while size < max_bytes:
        clause = "".join(
            words[min(int(rng.paretovariate(0.6) * 40) - 40, len(words) - 1)]
            for _ in range(rng.randint(3, 14))
        )
        parts.append(clause + rng.choice("\uff0c\uff0c\uff0c\u3002\u3001\uff1b"))
        size += len(parts[-1].encode())
    return "".join(parts)


def _mixed(english: str, code: str, chinese: str, scripts: str, max_bytes: int) -> str:
    lines = scripts.splitlines()
    parts, size, turn = [], 0, 0
    while size < max_bytes:
        slices = (
            _slice(english, turn, 700),
            _slice(code, turn, 500),
            _slice(chinese, turn, 150),
            lines[turn % len(lines)] if lines else "",
            _SPECIALS,
        )
        parts.append("\n".join(slices))
        size += len(parts[-1].encode())
        turn += 1
    return "".join(parts)


def _slice(text: str, turn: int, length: int) -> str:
    start = turn * length % max(1, len(text) - length)
    return text[start : start + length]


def _adversarial(max_bytes: int) -> str:
    rng = random.Random(4)
    fragments = [
        "a",
        "b",
        "ab",
        "\u0301",
        "\u0327",
        " ",
        "   ",
        "\n",
        "'s",
        "'S",
        "\u017f",
        "🇩",
        "9",
        "\u200d",
        "ﬀ",
        "가",
        "\t",
    ]
    return "".join(rng.choices(fragments, k=max_bytes))


def _joined(parts: Iterator[str], separator: str, max_bytes: int) -> str:
    """As many parts as are needed for `max_bytes`."""
    taken, size = [], 0
    for part in parts:
        taken.append(part)
        size += len(part.encode()) + len(separator)
        if size >= max_bytes:
            break
    return separator.join(taken)


def _cut(text: str, max_bytes: int) -> str:
    """The beginning of `text`, whole characters, at most `max_bytes`."""
    return text.encode()[:max_bytes].decode("utf-8", "ignore")
