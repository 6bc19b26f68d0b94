"""The suite in CPython: the digests that every browser is compared with.

    web/parity-baseline.json
    {"format": "slm2-parity", "suite",
     "models": {NAME: {"artifacts", "stages": {STAGE: {
         "digests": {SIZE: sha256}, "vectors": {SIZE: n},
         "marks": eight hexadecimal digits for each vector of the largest size}}}}}

A size is the beginning of the next larger one, so one list of marks serves all three.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slm2_web import __version__
from slm2_web.errors import InputError
from slm2_web.forward2.executor import Executor
from slm2_web.packed import MANIFEST_FILE, PackedModel
from slm2_web.parity import suite
from slm2_web.parity.canonical import MARK_DIGITS, Digest, canonical
from slm2_web.parity.subject import Size, Subject
from slm2_web.template2.machine import template_for
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.transcript import Artifacts

FORMAT: Final = "slm2-parity"
REFERENCE_CHUNK_TOKENS: Final = 4
EXECUTORS: Final = ("reference", "wasm", "wasm-plain")


async def open_subject(directory: Path, executor: str = "reference") -> Subject:
    """The packed model in `directory` on an executor outside a browser.

    Raises: FormatError; DeviceError; InputError `input.params` for an executor that there is not.
    """
    model = PackedModel.open(directory)
    tokenizer = Tokenizer.from_bytes(model.tokenizer_bytes)
    manifest_bytes = (directory / MANIFEST_FILE).read_bytes()
    return Subject(
        model.manifest,
        Artifacts.of(model.manifest, manifest_bytes, __version__),
        tokenizer,
        template_for(model.manifest.template, tokenizer),
        await _executor(model, executor),
    )


async def _executor(model: PackedModel, name: str) -> Executor:
    if name == "reference":
        from slm2_web.forward2.reference import ReferenceExecutor

        # A few ids at a time are what it is fastest at.
        return ReferenceExecutor(model, max_chunk_tokens=REFERENCE_CHUNK_TOKENS)
    if name in EXECUTORS:
        from slm2_web.forward2.native_wasm import native_wasm_executor

        return await native_wasm_executor(model, n_threads=2 if name == "wasm" else 0)
    raise InputError(
        "input.params",
        f"executor: found {name!r}; allowed: {' | '.join(EXECUTORS)}",
        {"place": "executor", "found": name, "allowed": " | ".join(EXECUTORS)},
    )


async def model_baseline(
    subject: Subject,
    size: Size = "full",
    stages: Sequence[str] = tuple(suite.STAGES),
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """One model's part of the file, of this size and all smaller ones."""
    sizes = suite.SIZES[: suite.SIZES.index(size) + 1]
    found: dict[str, Any] = {}
    for name in stages:
        start = time.perf_counter()
        counts = {suite.STAGES[name].sizes[each]: each for each in sizes}
        digest, digests = Digest(), {}
        for index in range(max(counts)):
            digest.add(canonical(await suite.record(subject, name, index, size)))
            if index + 1 in counts:
                digests[counts[index + 1]] = digest.digest
        found[name] = {
            "vectors": {each: count for count, each in counts.items()},
            "digests": digests,
            "marks": digest.marks,
        }
        say(f"{name}: {max(counts)} vectors, {digest.digest[:16]}, {time.perf_counter() - start:.1f} s")
    artifacts = suite.info(subject, size)["artifacts"]
    del artifacts["package"]
    return {"artifacts": artifacts, "stages": found}


def baseline(models: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content."""
    return {"format": FORMAT, "suite": suite.SUITE, "models": dict(models)}


def differences(expected: Mapping[str, Any], found: Mapping[str, Any], size: Size) -> list[str]:
    """What a model's baseline says and a run of this size did not come to: a line each, none for equal."""
    lines = []
    if expected["artifacts"] != found["artifacts"]:
        lines.append(f"artifacts: expected {expected['artifacts']}, found {found['artifacts']}")
    for name, stage in found["stages"].items():
        known = expected["stages"].get(name)
        if known is None or known["vectors"].get(size) != stage["vectors"][size]:
            lines.append(f"{name}: the baseline has not these vectors")
        elif known["digests"][size] != stage["digests"][size]:
            at = first_difference(known["marks"], stage["marks"])
            lines.append(f"{name}: differs from {suite.record_id(name, at)} on" if at is not None else name)
    return lines


def first_difference(expected: str, found: str) -> int | None:
    """The index of the first mark that differs, within what both have; None where none does."""
    for at in range(0, min(len(expected), len(found)), MARK_DIGITS):
        if expected[at : at + MARK_DIGITS] != found[at : at + MARK_DIGITS]:
            return at // MARK_DIGITS
    return None


def run(directory: Path, executor: str, size: Size, stages: Sequence[str], say: Callable[[str], None]) -> Any:
    """`model_baseline` of a packed model, start to end."""

    async def work() -> dict[str, Any]:
        return await model_baseline(await open_subject(directory, executor), size, stages, say)

    return asyncio.run(work())
