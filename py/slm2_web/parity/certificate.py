"""The certificate of a parity run: what was run, where, and whether the bits were the baseline's.

    Certificate
      artifacts   the site's files by kind, each with its sha256
      baseline    CPython's digests, one for each stage and size
      cells       browser x executor; each ran its stages, or says why there is none of it
        stages    vectors, digest, seconds, and the first difference with its input

A verdict is never taken on trust: it follows from the digests, and a file that says otherwise is damaged.
`parse` reads a file from anywhere; docs/certificate.md describes the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from slm2_web import strictjson
from slm2_web.errors import FormatError

FORMAT: Final = "slm2-parity-certificate"
VERSION: Final = 1
MAX_BYTES: Final = 16 << 20
MAX_ITEMS: Final = 4096
MAX_TEXT: Final = 4000

SIZES: Final = ("quick", "reduced", "full")
# What computed: in a browser, or in CPython.
EXECUTORS: Final = ("webgpu", "wasm", "wasm-plain", "reference")
KINDS: Final = ("model", "wheel", "kernel", "runtime")

Verdict = Literal["equal", "differs", "failed", "absent"]
VERDICTS: Final[tuple[Verdict, ...]] = ("equal", "differs", "failed", "absent")

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,79}")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that the run used. kind: of KINDS; path: in the site."""

    kind: str
    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What the baseline gives for a stage of a size: vectors and the digest of their records."""

    name: str
    size: str
    vectors: int
    digest: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The first vector whose record is not the baseline's. input, expected, found: JSON values."""

    index: int
    input: Any
    expected: Any
    found: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a stage or a cell gave no digest: an error's code and message."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StageRun:
    """One stage in one cell. digest: None where `failure` says why."""

    name: str
    size: str
    vectors: int
    digest: str | None
    seconds: float
    verdict: Verdict
    difference: Difference | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One browser with one executor.

    browser: name, version and user agent, the latter two "" where nothing ran. isolated, threads, adapter,
    versions (of Python's runtime and numpy): as the page told them. absence: why this cell can't be run.
    notes: what a reader should know, such as fewer vectors than asked for.
    """

    browser: str
    browser_version: str
    user_agent: str
    executor: str
    isolated: bool
    threads: int | None
    adapter: str | None
    versions: Mapping[str, str]
    seconds: float
    stages: tuple[StageRun, ...] = ()
    absence: str | None = None
    failure: Failure | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of its stages, where it ran."""
        if self.absence is not None:
            return "absent"
        verdicts = {stage.verdict for stage in self.stages}
        if "differs" in verdicts:
            return "differs"
        return "failed" if self.failure is not None or "failed" in verdicts or not verdicts else "equal"

    @property
    def name(self) -> str:
        """`browser/executor`, which names it in a certificate."""
        return f"{self.browser}/{self.executor}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A parity run. made_at: UTC, RFC 3339 in seconds; program, command: what made it; site: its version."""

    made_at: str
    program: str
    program_version: str
    command: str | None
    size: str
    site: str
    artifacts: tuple[Artifact, ...]
    implementation: Mapping[str, str]
    baseline: tuple[Expected, ...]
    cells: tuple[Cell, ...]

    @property
    def verdict(self) -> Verdict:
        """`differs` if any cell does; else `failed` if any failed, or none ran; else `equal`."""
        verdicts = {cell.verdict for cell in self.cells}
        if "differs" in verdicts:
            return "differs"
        return "failed" if "failed" in verdicts or "equal" not in verdicts else "equal"

    def expected(self, name: str, size: str) -> Expected | None:
        """The baseline of a stage in a size."""
        return next((e for e in self.baseline if (e.name, e.size) == (name, size)), None)


def verdict_of(digest: str | None, vectors: int, expected: Expected | None) -> Verdict:
    """What a stage's digest says beside the baseline's; without both there is no verdict but `failed`."""
    if digest is None or expected is None:
        return "failed"
    return "equal" if (digest, vectors) == (expected.digest, expected.vectors) else "differs"


# --- writing ------------------------------------------------------------------------------------------------


def as_json(certificate: Certificate) -> dict[str, Any]:
    """The certificate as its file holds it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "verdict": certificate.verdict,
        "made_at": certificate.made_at,
        "made_by": {
            "program": certificate.program,
            "version": certificate.program_version,
            "command": certificate.command,
        },
        "size": certificate.size,
        "site": certificate.site,
        "artifacts": [
            {"kind": a.kind, "path": a.path, "bytes": a.bytes, "sha256": a.sha256}
            for a in certificate.artifacts
        ],
        "baseline": {
            "implementation": dict(certificate.implementation),
            "stages": [
                {"name": e.name, "size": e.size, "vectors": e.vectors, "digest": e.digest}
                for e in certificate.baseline
            ],
        },
        "cells": [cell_json(cell) for cell in certificate.cells],
    }


def cell_json(cell: Cell) -> dict[str, Any]:
    """One cell as the file holds it."""
    return {
        "browser": {
            "name": cell.browser,
            "version": cell.browser_version,
            "user_agent": cell.user_agent,
        },
        "executor": cell.executor,
        "isolated": cell.isolated,
        "threads": cell.threads,
        "adapter": cell.adapter,
        "versions": dict(cell.versions),
        "seconds": cell.seconds,
        "verdict": cell.verdict,
        "absence": cell.absence,
        "failure": _failure_json(cell.failure),
        "notes": list(cell.notes),
        "stages": [
            {
                "name": stage.name,
                "size": stage.size,
                "vectors": stage.vectors,
                "digest": stage.digest,
                "seconds": stage.seconds,
                "verdict": stage.verdict,
                "difference": stage.difference
                and {
                    "index": stage.difference.index,
                    "input": stage.difference.input,
                    "expected": stage.difference.expected,
                    "found": stage.difference.found,
                },
                "failure": _failure_json(stage.failure),
            }
            for stage in cell.stages
        ],
    }


def _failure_json(failure: Failure | None) -> dict[str, str] | None:
    return None if failure is None else {"code": failure.code, "message": failure.message}


def write(certificate: Certificate) -> bytes:
    """The file, as `parse` reads it."""
    text = json.dumps(as_json(certificate), ensure_ascii=True, indent=1, allow_nan=False)
    return text.encode("ascii") + b"\n"


# --- reading ------------------------------------------------------------------------------------------------


def _bad(place: str, found: str, allowed: str) -> FormatError:
    detail = {"place": place, "found": found, "allowed": allowed}
    return FormatError("format.certificate", f"{place}: found {found}; allowed: {allowed}", detail)


_CHECKS: Final = strictjson.Checks(_bad)


def parse(data: bytes) -> Certificate:
    """The certificate in a file.

    Raises: FormatError `format.certificate` with place, found and allowed: for what is no certificate, and
        for a verdict that its own digests contradict.
    """
    try:
        value = strictjson.loads(data, max_bytes=MAX_BYTES)
    except strictjson.NotJson as error:
        raise _bad("certificate", str(error), "JSON") from None
    keys = ("format", "version", "verdict", "made_at", "made_by", "size", "site", "artifacts", "baseline")
    top = _CHECKS.any_object(value, "certificate")
    # Another version may have other keys: that is told first.
    _constant(top.get("format"), "certificate.format", FORMAT)
    _constant(top.get("version"), "certificate.version", VERSION)
    _CHECKS.object_with(top, "certificate", (*keys, "cells"))
    made_by = _CHECKS.object_with(top["made_by"], "certificate.made_by", ("program", "version", "command"))
    base = _CHECKS.object_with(top["baseline"], "certificate.baseline", ("implementation", "stages"))
    certificate = Certificate(
        made_at=_time(top["made_at"], "certificate.made_at"),
        program=_text(made_by["program"], "certificate.made_by.program"),
        program_version=_text(made_by["version"], "certificate.made_by.version"),
        command=_optional_text(made_by["command"], "certificate.made_by.command"),
        size=_one_of(top["size"], "certificate.size", SIZES),
        site=_CHECKS.sha256(top["site"], "certificate.site"),
        artifacts=_artifacts(top["artifacts"]),
        implementation=_texts(base["implementation"], "certificate.baseline.implementation"),
        baseline=_baseline(base["stages"]),
        cells=(),
    )
    cells = _CHECKS.array(top["cells"], "certificate.cells", 1, MAX_ITEMS)
    parsed = tuple(_cell(c, f"certificate.cells[{i}]", certificate) for i, c in enumerate(cells))
    _no_twins([cell.name for cell in parsed], "certificate.cells")
    certificate = _with_cells(certificate, parsed)
    _constant(top["verdict"], "certificate.verdict", certificate.verdict)
    return certificate


def _with_cells(certificate: Certificate, cells: tuple[Cell, ...]) -> Certificate:
    fields = {name: getattr(certificate, name) for name in Certificate.__slots__}
    return Certificate(**{**fields, "cells": cells})


def _artifacts(value: object) -> tuple[Artifact, ...]:
    place = "certificate.artifacts"
    found = []
    for i, item in enumerate(_CHECKS.array(value, place, 0, MAX_ITEMS)):
        here = f"{place}[{i}]"
        raw = _CHECKS.object_with(item, here, ("kind", "path", "bytes", "sha256"))
        found.append(
            Artifact(
                _one_of(raw["kind"], f"{here}.kind", KINDS),
                _CHECKS.text(raw["path"], f"{here}.path", 1, 1000),
                _CHECKS.integer(raw["bytes"], f"{here}.bytes", 0, 1 << 53),
                _CHECKS.sha256(raw["sha256"], f"{here}.sha256"),
            )
        )
    _no_twins([artifact.path for artifact in found], place)
    return tuple(found)


def _baseline(value: object) -> tuple[Expected, ...]:
    place = "certificate.baseline.stages"
    found = []
    for i, item in enumerate(_CHECKS.array(value, place, 0, MAX_ITEMS)):
        here = f"{place}[{i}]"
        raw = _CHECKS.object_with(item, here, ("name", "size", "vectors", "digest"))
        found.append(
            Expected(
                _name(raw["name"], f"{here}.name"),
                _one_of(raw["size"], f"{here}.size", SIZES),
                _CHECKS.integer(raw["vectors"], f"{here}.vectors", 1, 1 << 31),
                _CHECKS.sha256(raw["digest"], f"{here}.digest"),
            )
        )
    _no_twins([f"{stage.name} ({stage.size})" for stage in found], place)
    return tuple(found)


_CELL_KEYS: Final = (
    *("browser", "executor", "isolated", "threads", "adapter", "versions", "seconds"),
    *("verdict", "absence", "failure", "notes", "stages"),
)


def parse_cell(value: object, place: str, baseline: Sequence[Expected]) -> Cell:
    """One cell of a file, or of a page that ran one.

    Raises: FormatError `format.certificate`.
    """
    raw = _CHECKS.object_with(value, place, _CELL_KEYS)
    browser = _CHECKS.object_with(raw["browser"], f"{place}.browser", ("name", "version", "user_agent"))
    stages = _CHECKS.array(raw["stages"], f"{place}.stages", 0, MAX_ITEMS)
    notes = _CHECKS.array(raw["notes"], f"{place}.notes", 0, MAX_ITEMS)
    threads = raw["threads"]
    cell = Cell(
        browser=_CHECKS.text(browser["name"], f"{place}.browser.name", 1, 200),
        browser_version=_text(browser["version"], f"{place}.browser.version"),
        user_agent=_text(browser["user_agent"], f"{place}.browser.user_agent"),
        executor=_one_of(raw["executor"], f"{place}.executor", EXECUTORS),
        isolated=_boolean(raw["isolated"], f"{place}.isolated"),
        threads=None if threads is None else _CHECKS.integer(threads, f"{place}.threads", 1, 65536),
        adapter=_optional_text(raw["adapter"], f"{place}.adapter"),
        versions=_texts(raw["versions"], f"{place}.versions"),
        seconds=_seconds(raw["seconds"], f"{place}.seconds"),
        stages=tuple(_stage(s, f"{place}.stages[{i}]", baseline) for i, s in enumerate(stages)),
        absence=_optional_text(raw["absence"], f"{place}.absence"),
        failure=_failure(raw["failure"], f"{place}.failure"),
        notes=tuple(_text(note, f"{place}.notes[{i}]") for i, note in enumerate(notes)),
    )
    if cell.absence is not None and (cell.stages or cell.failure):
        raise _bad(f"{place}.absence", strictjson.show(cell.absence), "null for a cell that ran")
    _no_twins([stage.name for stage in cell.stages], f"{place}.stages")
    _constant(raw["verdict"], f"{place}.verdict", cell.verdict)
    return cell


def _cell(value: object, place: str, certificate: Certificate) -> Cell:
    return parse_cell(value, place, certificate.baseline)


_STAGE_KEYS: Final = ("name", "size", "vectors", "digest", "seconds", "verdict", "difference", "failure")


def _stage(value: object, place: str, baseline: Sequence[Expected]) -> StageRun:
    raw = _CHECKS.object_with(value, place, _STAGE_KEYS)
    digest = raw["digest"]
    stage = StageRun(
        name=_name(raw["name"], f"{place}.name"),
        size=_one_of(raw["size"], f"{place}.size", SIZES),
        vectors=_CHECKS.integer(raw["vectors"], f"{place}.vectors", 0, 1 << 31),
        digest=None if digest is None else _CHECKS.sha256(digest, f"{place}.digest"),
        seconds=_seconds(raw["seconds"], f"{place}.seconds"),
        verdict=_verdict(raw["verdict"], f"{place}.verdict"),
        difference=_difference(raw["difference"], f"{place}.difference"),
        failure=_failure(raw["failure"], f"{place}.failure"),
    )
    expected = next((e for e in baseline if (e.name, e.size) == (stage.name, stage.size)), None)
    _constant(stage.verdict, f"{place}.verdict", verdict_of(stage.digest, stage.vectors, expected))
    if (stage.failure is not None) != (stage.verdict == "failed"):
        raise _bad(f"{place}.failure", strictjson.show(raw["failure"]), "an error if and only if it failed")
    if stage.difference is not None and stage.verdict != "differs":
        raise _bad(f"{place}.difference", "a difference", f"null, as the verdict is {stage.verdict}")
    return stage


def _difference(value: object, place: str) -> Difference | None:
    if value is None:
        return None
    raw = _CHECKS.object_with(value, place, ("index", "input", "expected", "found"))
    index = _CHECKS.integer(raw["index"], f"{place}.index", 0, 1 << 31)
    return Difference(index, raw["input"], raw["expected"], raw["found"])


def _failure(value: object, place: str) -> Failure | None:
    if value is None:
        return None
    raw = _CHECKS.object_with(value, place, ("code", "message"))
    return Failure(_text(raw["code"], f"{place}.code"), _text(raw["message"], f"{place}.message"))


def _constant(value: object, place: str, allowed: object) -> None:
    if value != allowed or type(value) is not type(allowed):
        raise _bad(place, strictjson.show(value), strictjson.show(allowed))


def _one_of(value: object, place: str, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _bad(place, strictjson.show(value), " | ".join(allowed))
    return value


def _verdict(value: object, place: str) -> Verdict:
    for verdict in VERDICTS[:3]:
        if value == verdict:
            return verdict
    raise _bad(place, strictjson.show(value), " | ".join(VERDICTS[:3]))


def _name(value: object, place: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _bad(place, strictjson.show(value), "a name of a-z, 0-9, _, . and -, at most 80")
    return value


def _time(value: object, place: str) -> str:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise _bad(place, strictjson.show(value), "a time such as 2026-01-31T12:00:00Z")
    return value


def _seconds(value: object, place: str) -> float:
    found = strictjson.real(value, 0, 1e9)
    if found is None:
        raise _bad(place, strictjson.show(value), "a number of seconds, 0 to 1e9")
    return found


def _boolean(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise _bad(place, strictjson.show(value), "true | false")
    return value


def _text(value: object, place: str) -> str:
    return _CHECKS.text(value, place, 0, MAX_TEXT)


def _optional_text(value: object, place: str) -> str | None:
    return None if value is None else _text(value, place)


def _texts(value: object, place: str) -> dict[str, str]:
    raw = _CHECKS.any_object(value, place)
    if len(raw) > 100:
        raise _bad(place, f"{len(raw)} keys", "at most 100")
    return {
        _CHECKS.text(key, f"a key of {place}", 1, 100): _text(item, f"{place}.{key[:40]}")
        for key, item in raw.items()
    }


def _no_twins(names: Sequence[str], place: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _bad(place, f"{strictjson.show(name)} twice", "each once")
        seen.add(name)
