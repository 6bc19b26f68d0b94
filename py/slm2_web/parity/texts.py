"""Texts that are hard on a tokenizer: every script, every boundary of a class, markers spelled in words.

Ranges are blocks of the Unicode Standard; whether a code point in one is assigned does not matter.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Final

from slm2_web.parity.dice import Dice

# (first, last) code point of what each script is written with.
SCRIPTS: Final[tuple[tuple[int, int], ...]] = (
    (0x41, 0x7A), (0xC0, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F),
    (0x5D0, 0x5EA), (0x620, 0x6FF), (0x710, 0x74F), (0x780, 0x7B1), (0x7C0, 0x7FA), (0x800, 0x83E),
    (0x840, 0x85E), (0x8A0, 0x8FF), (0x900, 0x97F), (0x980, 0x9FE), (0xA01, 0xA76), (0xA81, 0xAFF),
    (0xB01, 0xB77), (0xB82, 0xBFA), (0xC00, 0xC7F), (0xC80, 0xCF3), (0xD00, 0xD7F), (0xD81, 0xDF4),
    (0xE01, 0xE5B), (0xE81, 0xEDF), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF),
    (0x1200, 0x139F), (0x13A0, 0x13FD), (0x1400, 0x167F), (0x1680, 0x169C), (0x16A0, 0x16F8),
    (0x1780, 0x17F9), (0x1800, 0x18AA), (0x1950, 0x19DF), (0x1A20, 0x1AAD), (0x1B00, 0x1B7E),
    (0x1C00, 0x1C7F), (0x1D00, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x20BF),
    (0x20D0, 0x20F0), (0x2100, 0x218B), (0x2190, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x27BF),
    (0x2800, 0x28FF), (0x2C00, 0x2DFF), (0x2E80, 0x2FDF), (0x3000, 0x303F), (0x3040, 0x30FF),
    (0x3105, 0x318E), (0x3200, 0x33FF), (0x4E00, 0x9FFF), (0xA000, 0xA4C6), (0xA4D0, 0xA82C),
    (0xA840, 0xA95F), (0xA980, 0xAADF), (0xAB30, 0xABBF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF),
    (0xF900, 0xFAD9), (0xFB00, 0xFDFF), (0xFE00, 0xFE2F), (0xFE70, 0xFEFC), (0xFF01, 0xFFDC),
    (0x10000, 0x100FA), (0x10280, 0x1039F), (0x10400, 0x1049D), (0x10900, 0x1093F), (0x11000, 0x1106F),
    (0x11100, 0x11147), (0x12000, 0x123FF), (0x13000, 0x1342F), (0x16F00, 0x16F4A), (0x17000, 0x187F7),
    (0x1D000, 0x1D1FF), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1F000, 0x1F02B), (0x1F1E6, 0x1F1FF),
    (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0x2F800, 0x2FA1D), (0x30000, 0x3134A), (0xE0020, 0xE007F),
    (0xF0000, 0xF00FF), (0x10FF00, 0x10FFFF),
)  # fmt: skip
# How the vocabularies of chat models spell their control tokens, and what is nearly so.
MARKERS: Final[tuple[str, ...]] = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<|fim_prefix|>", "<|vision_start|>", "<repo_name>",
    "<file_sep>", "<jupyter_start>", "<empty_output>", "<|im_start", "|im_end|>", "<|im_<|im_end|>end|>",
    "<|IM_END|>", "<|im_end|", "<|", "|>", "<think", "</think", "<|im_start|>system\n",
    "\uff1c|im_end|\uff1e",
)  # fmt: skip
SPACES: Final[tuple[str, ...]] = (
    " ", "  ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u2000",
    "\u2003", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff", "\u180e", "\n\n", "   ",
)  # fmt: skip
COMBINING: Final[tuple[str, ...]] = (
    "\u0300", "\u0301", "\u0307", "\u0308", "\u0323", "\u0327", "\u0338", "\u0344", "\u0345", "\u034f",
    "\u05b0", "\u064b", "\u0653", "\u093c", "\u0bd7", "\u0e38", "\u0f39", "\u1161", "\u11a8", "\u20d2",
    "\u3099", "\u309a", "\ua953", "\ufe20", "\U0001d165", "\U0001d16e",
)  # fmt: skip
WORDS: Final[tuple[str, ...]] = (
    "the", " the", " of", "Hello", " world", "I'm", " we'll", "don't", "IT'S", "'s", "'\u017f", " 2+2=4",
    "1234567",
    " 3.14", "x_y", "camelCase", "def f(x):\n    return x", "http://a.b/c?d=1", "{\"a\": [1, null]}", "...",
    "--", "!!", "?", ",", ".", " \"", "'", "\\n", "#", "@", "\u00b2", "\u00bd", "\u2163", "\u0663", "\x00",
    "\x01", "\x7f", "\ufffd", "\ufffe", "naïve", "Straße", "Ünïcödé", "ﬁ", "e\u0301", "\u212b",
    "\u1e9b\u0323",
)  # fmt: skip
GROUP: Final = 12


@lru_cache(maxsize=1)
def boundaries() -> tuple[int, ...]:
    """The code points at which a class begins or ends, ascending: compile/make_boundaries.py."""
    distances = json.loads(Path(__file__).with_name("boundaries.json").read_text("utf-8"))
    return tuple(accumulate(distances))


def boundary_text(number: int) -> str:
    """Some boundaries, each with the character before it, among letters, digits and spaces."""
    points = boundaries()
    parts = []
    for i in range(GROUP):
        point = points[(number * GROUP + i) % len(points)]
        here, before = _char(point), _char(max(point - 1, 0))
        parts.append(f"x{before}y{before}1 {here}z{here}2{here}{before} ")
    return "".join(parts)


def mixed_text(dice: Dice) -> str:
    """A few words, marks, spaces and markers, of a few scripts."""
    kinds = [dice.below(6) for _ in range(1 + dice.below(3))]
    parts = []
    for _ in range(1 + dice.below(12)):
        match dice.one(kinds):
            case 0:
                parts.append(dice.one(WORDS))
            case 1:
                first, last = dice.one(SCRIPTS)
                parts += [_char(first + dice.below(last - first + 1)) for _ in range(1 + dice.below(6))]
            case 2:
                parts.append(dice.one(MARKERS))
            case 3:
                parts += [dice.one(SPACES) for _ in range(1 + dice.below(4))]
            case 4:
                parts += [dice.one(COMBINING) for _ in range(1 + dice.below(4))]
            case _:
                parts.append(_char(dice.below((0x80, 0x800, 0x10000, 0x110000)[dice.below(4)])))
    return "".join(parts)


def script_text(number: int, dice: Dice) -> str:
    """Words of one script, with marks, digits and punctuation between them."""
    first, last = SCRIPTS[number % len(SCRIPTS)]
    words = []
    for _ in range(1 + dice.below(6)):
        word = "".join(_char(first + dice.below(last - first + 1)) for _ in range(1 + dice.below(9)))
        words.append(word + (dice.one(COMBINING) if dice.percent(15) else ""))
    return dice.one((" ", "", ", ", "\n", "\u3000")).join(words)


def repeated_text(dice: Dice) -> str:
    """One short string, many times."""
    return dice.one((*SPACES, *COMBINING, "a", "ab", "0", "é", "你", "\U0001f44d", "'", "<|")) * (
        2 + dice.below(300)
    )


def _char(code: int) -> str:
    """A character; of a surrogate, which is none, U+FFFD."""
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)
