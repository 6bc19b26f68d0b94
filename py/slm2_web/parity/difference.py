"""The first record on which two implementations differ, and the smallest input that still shows it.

Theory of operation
-------------------
An input is shrunk part by part: a text by its characters, bytes and floats in digits by their bytes and
floats, a list by its items (`PARTS` names them for each stage; what is not named is never touched, so an
input stays one that its stage can read). Of each part, stretches are left out, first halves, then quarters,
down to single elements; what is left out stays out if the two sides still differ. That goes round until a
whole round leaves nothing out: then no single element can go. So it is small, not the smallest that there is.

What both sides refuse alike is no difference. A side that raises ends the search: what can be refused is an
output of the stage.

Source: Zeller, Hildebrandt: Simplifying and isolating failure-inducing input (IEEE TSE 28, 2002).
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slm2_web.parity import suite
from slm2_web.parity.canonical import Json, canonical

Side = Callable[[Json], Awaitable[Json]]
Differs = Callable[[Json], Awaitable[bool]]

# Of each stage what may be shortened, as a path of keys (`*`: each item of a list), how many digits or
# characters are one element, and the least number of elements. Lists have elements of their own.
PARTS: Final[Mapping[str, tuple[tuple[str, int, int], ...]]] = {
    "tokenizer": (("runs", 1, 0), ("text", 1, 0), ("runs.*.text", 1, 0), ("hex", 2, 0), ("ids", 1, 0)),
    "template": (
        ("conversation.messages", 1, 0),
        ("conversation.messages.*.content", 1, 0),
        ("conversation.messages.*.reasoning_content", 1, 0),
    ),
    "prompt": (
        ("messages", 1, 0),
        ("evidence", 1, 0),
        ("messages.*.content", 1, 0),
        ("evidence.*.content", 1, 0),
        ("local_state", 1, 0),
    ),
    "sampling": (
        ("logits", 8, 1),
        ("prompt_ids", 1, 0),
        ("generated_ids", 1, 0),
        ("params.banned_ids", 1, 0),
    ),
    "stream": (("tokens", 1, 0), ("stops", 1, 0)),
    "forward": (("prompt_ids", 1, 1), ("warm_ids", 1, 0)),
    "chat": (("requests", 1, 1), ("requests.*.messages", 1, 1), ("requests.*.messages.*.content", 1, 0)),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two sides differ: the record, its input made small, and what each side makes of that."""

    stage: str
    index: int
    input: Json
    expected: Json
    found: Json

    def as_json(self) -> dict[str, Any]:
        """`{"id", "input", "expected", "found"}`."""
        return {
            "id": suite.record_id(self.stage, self.index),
            "input": self.input,
            "expected": self.expected,
            "found": self.found,
        }


async def difference(stage: str, index: int, made: Json, expected: Side, found: Side) -> Difference | None:
    """The difference on a record's input, shrunk; None where there is none."""

    async def differs(candidate: Json) -> bool:
        return canonical(await expected(candidate)) != canonical(await found(candidate))

    if not await differs(made):
        return None
    small = await shrink(stage, made, differs)
    return Difference(stage, index, small, await expected(small), await found(small))


async def shrink(stage: str, made: Json, differs: Differs) -> Json:
    """An input on which `differs` still holds, as it does on `made`, and of which nothing more can go."""
    best = copy.deepcopy(made)
    while True:
        before = canonical(best)
        for path, unit, least in PARTS[stage]:
            for place in list(_places(best, path.split("."))):
                best = await _shorten(stage, best, place, unit, least, differs)
        if canonical(best) == before:
            return best


async def _shorten(
    stage: str, best: Json, place: list[str | int], unit: int, least: int, differs: Differs
) -> Json:
    """`best` with as little at `place` as still differs."""
    size = _count(best, place, unit)
    step = max(size // 2, 1)
    while size:
        at = 0
        removed = False
        while at < size:
            end = min(at + step, size)
            if size - (end - at) >= least:
                candidate = _fitted(stage, _without(best, place, at * unit, end * unit))
                if await differs(candidate):
                    best, removed = candidate, True
                    size = _count(best, place, unit)
                    continue
            at = end
        if step == 1 and not removed:
            break
        step = max(step // 2, 1)
    return best


def _places(value: Json, path: list[str]) -> Iterator[list[str | int]]:
    """Where in `value` the path leads; nowhere if something of it is not there, or is no text or list."""
    if not path:
        if isinstance(value, str | list):
            yield []
        return
    key, rest = path[0], path[1:]
    steps: list[tuple[str | int, Json]] = []
    if key == "*" and isinstance(value, list):
        steps = list(enumerate(value))
    elif isinstance(value, dict) and key in value:
        steps = [(key, value[key])]
    for step, item in steps:
        for place in _places(item, rest):
            yield [step, *place]


def _at(value: Json, place: list[str | int]) -> Any:
    for step in place:
        value = value[step]
    return value


def _count(value: Json, place: list[str | int], unit: int) -> int:
    """How many elements stand there; none where there is no such place any more."""
    try:
        return len(_at(value, place)) // unit
    except (LookupError, TypeError):
        return 0


def _without(value: Json, place: list[str | int], start: int, end: int) -> Json:
    """A copy without the elements from `start` to `end` at `place`."""
    result = copy.deepcopy(value)
    parent = _at(result, place[:-1])
    whole = parent[place[-1]]
    parent[place[-1]] = whole[:start] + whole[end:]
    return result


def _fitted(stage: str, made: Json) -> Json:
    """An input whose numbers fit what is left of it."""
    if stage == "sampling":
        size = len(made["logits"]) // 8
        made["n_tokens"] = min(made["n_tokens"], size)
        for key in ("prompt_ids", "generated_ids"):
            made[key] = [token_id for token_id in made[key] if token_id < size]
        if made["allowed"] is not None:
            allowed = [token_id for token_id in made["allowed"] if token_id < made["n_tokens"]]
            made["allowed"] = allowed or [0]
    return made
