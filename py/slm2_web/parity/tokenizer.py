"""Stage `tokenizer`: text to ids and pieces, ids to bytes, and what is refused.

    {"op": "encode", "text", "trusted"}       {"ids", "show", "hide", "pieces"}
    {"op": "encode_bytes", "hex"}             {"ids"}
    {"op": "encode_runs", "runs": [{"text", "trusted"}]}   {"ids"}
    {"op": "decode", "ids"}                   {"show", "hide"}

`show` and `hide` are the bytes of the ids, with and without the special ones, in hexadecimal; `pieces` those
of the whole text as the split cuts it, after normalization: what untrusted text is merged in.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from slm2_web.errors import InputError
from slm2_web.parity import texts
from slm2_web.parity.canonical import Json
from slm2_web.parity.dice import Dice
from slm2_web.parity.subject import Stage, Subject, refused
from slm2_web.tokenizer2.runs import Run, Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer

KINDS: Final = (
    "boundary", "mixed", "script", "boundary", "decode", "trusted", "boundary", "mixed", "runs",
    "bytes", "repeated", "words", "tokens",
)  # fmt: skip
# A character's bytes, cut short; forms that are none.
_BROKEN: Final = (
    "c3", "e282", "f09f98", "c328", "80", "bf", "c080", "c1bf", "e08080", "eda080", "edbfbf", "f0808080",
    "f4908080", "f5", "ff", "fe", "e2c3a9", "f09fc3a9",
)  # fmt: skip


def make(subject: Subject, index: int) -> Json:
    """The input of a record."""
    kind = KINDS[index % len(KINDS)]
    dice = Dice(f"parity tokenizer {index}")
    rank = index // len(KINDS)
    match kind:
        case "boundary":
            at = KINDS[: index % len(KINDS)].count("boundary")
            text = texts.boundary_text(rank * KINDS.count("boundary") + at)
        case "script":
            text = texts.script_text(rank, dice)
        case "repeated":
            text = texts.repeated_text(dice)
        case "words":
            text = "".join(dice.one(texts.WORDS) for _ in range(1 + dice.below(40)))
        case "tokens":
            text = _of_tokens(subject.tokenizer, dice)
        case "decode":
            return {"op": "decode", "ids": _ids(dice, subject.tokenizer.n_tokens)}
        case "bytes":
            before, after = (texts.mixed_text(dice).encode("utf-8") for _ in range(2))
            return {"op": "encode_bytes", "hex": before.hex() + dice.one(_BROKEN) + after.hex()}
        case "runs":
            count = 1 + dice.below(5)
            runs = [{"text": texts.mixed_text(dice), "trusted": dice.percent(50)} for _ in range(count)]
            return {"op": "encode_runs", "runs": runs}
        case _:
            text = texts.mixed_text(dice)
    return {"op": "encode", "text": text, "trusted": kind == "trusted"}


async def run(subject: Subject, made: Json) -> Json:
    """The output of a record."""
    tokenizer = subject.tokenizer
    try:
        match made["op"]:
            case "decode":
                return _shown(tokenizer, made["ids"])
            case "encode_bytes":
                return {"ids": tokenizer.encode([Untrusted(bytes.fromhex(made["hex"]))])}
            case "encode_runs":
                return {"ids": tokenizer.encode([_run(run) for run in made["runs"]])}
            case _:
                ids = tokenizer.encode([_run(made)])
                return {"ids": ids, **_shown(tokenizer, ids), "pieces": _pieces(tokenizer, made["text"])}
    except InputError as error:
        return refused(error)


def _run(run: Json) -> Run:
    data = run["text"].encode("utf-8")
    return Trusted(data) if run["trusted"] else Untrusted(data)


def _shown(tokenizer: Tokenizer, ids: list[int]) -> Json:
    return {
        "show": tokenizer.decode(ids).hex(),
        "hide": tokenizer.decode(ids, special="hide").hex(),
    }


def _pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    data = text.encode("utf-8")
    if tokenizer.normalizer is not None:
        data = tokenizer.normalizer.normalize(data)
    return [data[a:b].decode("utf-8") for a, b in pairwise(tokenizer.splitter.cuts(data).ends)]


def _of_tokens(tokenizer: Tokenizer, dice: Dice) -> str:
    """A text of the vocabulary's own tokens, where merges compete. Bytes that are no text are left out."""
    ids = [dice.below(tokenizer.n_tokens) for _ in range(40)]
    return tokenizer.decode(ids).decode("utf-8", "ignore")


def _ids(dice: Dice, n_tokens: int) -> list[int]:
    """Any ids; a few control ids, which come first in some vocabularies and last in others; rarely none."""
    ends = (0, 1, 2, n_tokens - 1, n_tokens - 2)
    ids = [dice.one(ends) if dice.percent(15) else dice.below(n_tokens) for _ in range(dice.below(24))]
    if dice.percent(5):
        ids.insert(dice.below(len(ids) + 1), dice.one((n_tokens, n_tokens + 100, (1 << 31) - 1)))
    return ids


STAGE: Final = Stage("tokenizer", {"quick": 120, "reduced": 960, "full": 3000}, make, run)
