"""Stage `stream`: tokens' bytes, as they come, to whole characters, stop strings, thoughts and calls.

    {"tokens": [hexadecimal digits or a marker], "stops": [text], "invalid_utf8": "end" or "show"}
    {"deltas": [[hexadecimal digits, ...] for each token and for the end], "text", "reasoning",
     "ending": null or reason, "calls"}

No model takes part: a marker is one of `<think>`, `</think>`, `<tool_call>`, `</tool_call>` and `<other>`, an
added token that is none of them. A delta of the reasoning has a `~` before its digits.
"""

from __future__ import annotations

from typing import Any, Final

from slm2_web.parity import texts
from slm2_web.parity.canonical import Json
from slm2_web.parity.dice import Dice
from slm2_web.parity.subject import Stage, Subject
from slm2_web.reply import Delta, Markers, Pair, Reply

NAMES: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<other>")
_MARKERS: Final = Markers(thought=Pair(0, 1), call=Pair(2, 3))
_BROKEN: Final = ("ff", "c0", "e282", "eda080", "f09f98", "80", "f4908080", "c3")
_CALLS: Final = (
    '{"name": "f", "arguments": {"a": 1.50}}', '\n{"name": "g", "arguments": {}}\n', '{"name": 1}', "f()", "",
)  # fmt: skip


def make(subject: Subject, index: int) -> Json:
    """The input of a record."""
    dice = Dice(f"parity stream {index}")
    text = "".join(texts.mixed_text(dice) for _ in range(1 + dice.below(3)))
    stops = _stops(text, dice)
    data = text.encode("utf-8")
    if dice.percent(25):
        at = dice.below(len(data) + 1)
        data = data[:at] + bytes.fromhex(dice.one(_BROKEN)) + data[at:]
    tokens = _cut(data, dice)
    if dice.percent(40):
        for _ in range(1 + dice.below(4)):
            at = dice.below(len(tokens) + 1)
            match dice.below(3):
                case 0:
                    tokens[at:at] = [
                        "<think>",
                        *_cut(texts.mixed_text(dice).encode(), dice),
                        "</think>",
                        "0a0a",
                    ]
                case 1:
                    call = dice.one(_CALLS).encode("utf-8")
                    tokens[at:at] = ["0a", "<tool_call>", *_cut(call, dice), "</tool_call>"]
                case _:
                    tokens.insert(at, dice.one(NAMES))
    return {"tokens": tokens, "stops": stops, "invalid_utf8": "show" if dice.percent(40) else "end"}


async def run(subject: Subject, made: Json) -> Json:
    """The output of a record."""
    vocabulary = _Vocabulary(made["tokens"])
    stops = [stop.encode("utf-8") for stop in made["stops"]]
    reply = Reply(vocabulary, _MARKERS, (), stops, lenient=made["invalid_utf8"] == "show")
    deltas: list[list[str]] = []
    for token_id in vocabulary.ids:
        deltas.append([_shown(delta) for delta in reply.feed(token_id)])
        if reply.ending is not None:
            break
    deltas.append([_shown(delta) for delta in reply.finish()])
    return {
        "deltas": deltas,
        "text": reply.text.hex(),
        "reasoning": None if reply.reasoning is None else reply.reasoning.hex(),
        "ending": None if reply.ending is None else [reply.ending[0], dict(reply.ending[1])],
        "calls": [_call(call.as_json()) for call in reply.calls],
    }


class _Vocabulary:
    """The markers, and then a record's tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [name.encode() for name in NAMES]
        self.ids: list[int] = []
        for token in tokens:
            if token in NAMES:
                self.ids.append(NAMES.index(token))
            else:
                self.ids.append(len(self._tokens))
                self._tokens.append(bytes.fromhex(token))

    def token_bytes(self, token_id: int) -> bytes:
        """See reply.Vocabulary."""
        return self._tokens[token_id]

    def is_control(self, token_id: int) -> bool:
        """See reply.Vocabulary."""
        return token_id < len(NAMES)


def _shown(delta: Delta) -> str:
    return ("~" if delta.is_reasoning else "") + delta.data.hex()


def _call(call: dict[str, Any]) -> Json:
    """A call, or that it was none: why is said in words, which may change."""
    return call if "name" in call else {"text": call["text"]}


def _cut(data: bytes, dice: Dice) -> list[str]:
    """`data` as tokens of one to seven bytes; anywhere, so also inside a character."""
    tokens = []
    at = 0
    longest = 1 + dice.below(7)
    while at < len(data):
        size = 1 + dice.below(longest)
        tokens.append(data[at : at + size].hex())
        at += size
    return tokens


def _stops(text: str, dice: Dice) -> list[str]:
    """Parts of the text, some with another end: what nearly stops it, and what does."""
    stops = []
    for _ in range(dice.below(4)):
        at = dice.below(len(text))
        part = text[at : at + 1 + dice.below(5)]
        stops.append(part + "\u0301" if dice.percent(50) else part)
    return [stop for stop in stops if stop]


STAGE: Final = Stage("stream", {"quick": 120, "reduced": 800, "full": 3000}, make, run)
