"""The suite, a record at a time: what the page's worker, the command line and the tests run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from slm2_web.errors import Cancelled, InputError
from slm2_web.parity import chat, forward, prompt, sampling, stream, template, tokenizer
from slm2_web.parity.canonical import Digest, Json, canonical
from slm2_web.parity.subject import Size, Stage, Subject
from slm2_web.session import never
from slm2_web.strictjson import NotJson, loads, show

# Another number, other records: two runs with different ones can't be compared.
SUITE: Final = 1
STAGES: Final[Mapping[str, Stage]] = {
    module.STAGE.name: module.STAGE
    for module in (tokenizer, template, prompt, sampling, stream, forward, chat)
}
SIZES: Final[tuple[Size, ...]] = ("quick", "reduced", "full")
# Between two records: how often to tell of progress, and to let messages in.
PAUSE_S: Final = 0.1
MAX_INPUT_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """A stage has done `done` of its `total` records."""

    stage: str
    done: int
    total: int

    def as_message(self) -> dict[str, Any]:
        """Of the protocol, less its id."""
        return {"type": "parity_progress", "stage": self.stage, "done": self.done, "total": self.total}


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage came to: `marks` has eight hexadecimal digits for each record."""

    stage: str
    vectors: int
    digest: str
    marks: str
    seconds: float

    def as_message(self) -> dict[str, Any]:
        """Of the protocol, less its id."""
        return {
            "type": "parity_stage",
            "stage": self.stage,
            "vectors": self.vectors,
            "digest": self.digest,
            "marks": self.marks,
            "seconds": round(self.seconds, 3),
        }


async def run(
    subject: Subject,
    stages: Sequence[str],
    size: Size,
    *,
    cancelled: Callable[[], bool] = never,
) -> AsyncIterator[Progress | StageResult]:
    """Runs the stages in this order; `cancelled` is asked before each record.

    Raises: Cancelled; InputError `input.params` for a stage or size that there is not; what a stage raises.
    """
    for name in stages:
        check(name, size)
    for name in stages:
        total = STAGES[name].sizes[size]
        digest = Digest()
        start = told = time.perf_counter()
        yield Progress(name, 0, total)
        for index in range(total):
            if cancelled():
                raise Cancelled("cancelled", f"parity: cancelled in {name}, after {index} of {total} records")
            digest.add(canonical(await record(subject, name, index, size)))
            if time.perf_counter() - told > PAUSE_S:
                yield Progress(name, index + 1, total)
                await asyncio.sleep(0)
                told = time.perf_counter()
        yield Progress(name, total, total)
        seconds = time.perf_counter() - start
        yield StageResult(name, total, digest.digest, digest.marks, seconds)


async def record(subject: Subject, name: str, index: int, size: Size) -> dict[str, Json]:
    """One record of a stage. Raises: InputError `input.params` for one that there is not."""
    check(name, size)
    stage = STAGES[name]
    if not 0 <= index < stage.sizes[size]:
        raise _bad("index", index, f"0 to {stage.sizes[size] - 1}")
    made = stage.make(subject, index)
    return {"id": record_id(name, index), "input": made, "output": await output(subject, name, made)}


async def output(subject: Subject, name: str, made: Json) -> Json:
    """What an input comes to. Raises: InputError `input.params` where the stage needs an executor."""
    stage = STAGES[name]
    if stage.compute and subject.executor is None:
        raise _bad("stage", name, "a stage that needs no weights")
    return await stage.run(subject, made)


def read_input(data: bytes) -> Json:
    """The input in `data`, JSON without floats. Raises: InputError `input.json`."""
    try:
        made = loads(data, max_bytes=MAX_INPUT_BYTES)
        canonical(made)
    except (NotJson, AssertionError, UnicodeEncodeError) as error:
        raise _bad_input(str(error)) from None
    return made


async def output_of_any(subject: Subject, name: str, made: Json) -> Json:
    """`output` of an input from outside. Raises: InputError `input.json` for what is none of the stage."""
    check(name, "full")
    try:
        return await output(subject, name, made)
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise _bad_input(f"what the stage {name} can't read: {type(error).__name__}: {error}") from error


def _bad_input(found: str) -> InputError:
    allowed = "an input as docs/parity.md describes it"
    detail = {"place": "input", "found": found, "allowed": allowed}
    return InputError("input.json", f"input: found {found}; allowed: {allowed}", detail)


def record_id(name: str, index: int) -> str:
    """The name of a record."""
    return f"{name}-{index:05}"


def info(subject: Subject, size: Size) -> dict[str, Any]:
    """What was run, for a certificate."""
    executor = subject.executor
    artifacts = asdict(subject.artifacts)
    return {
        "suite": SUITE,
        "size": size,
        "artifacts": {**artifacts, "weights_sha256": list(artifacts["weights_sha256"])},
        "executor": "" if executor is None else executor.name,
        "adapter": "" if executor is None else executor.adapter,
    }


def check(name: str, size: str) -> None:
    """Nothing, for a stage and a size that there are. Raises: InputError `input.params`."""
    if name not in STAGES:
        raise _bad("stage", name, " | ".join(STAGES))
    if size not in SIZES:
        raise _bad("size", size, " | ".join(SIZES))


def _bad(place: str, found: object, allowed: str) -> InputError:
    detail = {"place": place, "found": show(found), "allowed": allowed}
    return InputError("input.params", f"{place}: found {detail['found']}; allowed: {allowed}", detail)
