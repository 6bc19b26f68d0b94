"""The record of one reply: written, read, compared. docs/transcript.md describes the file.

    {"version": 2,
     "artifacts":     {"model", "manifest_sha256", "tokenizer_sha256", "weights_sha256": [...], "package"},
     "request":       {"messages": [...], "tools": [...], "enable_thinking", "preserve_thinking",
                       "local_state", "evidence": [...], "budget_tokens", "continue_ids": [...],
                       "params", "max_seq_len"}
                      or {"prompt_ids": [...], "continue_ids": [...], "params", "max_seq_len"},
     "prompt_ids":    [...],
     "ledger":        what the prompt holds and what was left out; null for a request of ids
     "generated_ids": [...],
     "logit_digests": [...],   one for each generated id
     "logprobs":      null, or one for each generated id: {"logprob", "top": [{"id", "logprob"}]}
     "reason", "detail", "reasoning", "text",
     "tool_calls":    [...],   each {"name", "arguments"} or {"text", "error"}
     "sha256",                 of the canonical JSON of all above but `artifacts.package`
     "executor":      {"name", "adapter"},
     "timings":       {"prefill_ms", "prefill_tokens", "reused_tokens", "decode_ms": [...]}}

What is above `sha256` is the comparable part: a replay must give it again, on any executor. The package's
version, the executor and the times say who made it and how fast, and are not compared.

Version 1 had messages of role and content alone, no budget, no ledger and no reasoning. It is refused by its
number; the package that it names replays it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Protocol, cast, get_args

from slm2_web import strictjson
from slm2_web.errors import FormatError, InputError
from slm2_web.manifest import Manifest
from slm2_web.prompt2.ledger import Part
from slm2_web.request import KEYS as REQUEST_KEYS
from slm2_web.request import Request, parse_request
from slm2_web.sampling2.logprobs import Logprobs
from slm2_web.sampling2.params import MAX_ID, MAX_LOGPROBS, RULES, parse_params
from slm2_web.session import Done, Event, Reason, Session, Timings, Token, never
from slm2_web.strictjson import Checks, real, show

VERSION: Final = 2
MAX_BYTES: Final = 64 << 20
MAX_IDS: Final = 1 << 20
MAX_MESSAGES: Final = 10_000
KEYS: Final = (
    "version",
    "artifacts",
    "request",
    "prompt_ids",
    "ledger",
    "generated_ids",
    "logit_digests",
    "logprobs",
    "reason",
    "detail",
    "reasoning",
    "text",
    "tool_calls",
    "sha256",
    "executor",
    "timings",
)


@dataclass(frozen=True, slots=True)
class Artifacts:
    """What the reply was made from. `package` is the version of slm2-web, not compared."""

    model: str
    manifest_sha256: str
    tokenizer_sha256: str
    weights_sha256: tuple[str, ...]
    package: str

    @classmethod
    def of(cls, manifest: Manifest, manifest_bytes: bytes, package: str) -> Artifacts:
        """The artifacts of a model whose files were checked against this manifest."""
        return cls(
            model=manifest.name,
            manifest_sha256=hashlib.sha256(manifest_bytes).hexdigest(),
            tokenizer_sha256=manifest.tokenizer.sha256,
            weights_sha256=tuple(shard.sha256 for shard in manifest.shards),
            package=package,
        )


class Made(Protocol):
    """What is recorded of an executor."""

    @property
    def name(self) -> str:
        """`reference`, `wasm` or `webgpu`."""

    @property
    def adapter(self) -> str:
        """What it ran on, for people."""


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """Which executor ran; not compared."""

    name: str
    adapter: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """A run. `sha256` is what the file says; of a fresh one, what it should say. `ledger`: as its JSON."""

    artifacts: Artifacts
    request: Request
    prompt_ids: tuple[int, ...]
    ledger: Mapping[str, Any] | None
    generated_ids: tuple[int, ...]
    logit_digests: tuple[str, ...]
    logprobs: tuple[Logprobs, ...] | None
    reason: Reason
    detail: Mapping[str, Any]
    reasoning: bytes | None
    text: bytes
    tool_calls: tuple[Mapping[str, Any], ...]
    sha256: str
    executor: ExecutorInfo
    timings: Timings

    def as_json(self) -> dict[str, Any]:
        """The fields in the order of the file."""
        return {
            **_comparable_json(self),
            "sha256": self.sha256,
            "executor": {"name": self.executor.name, "adapter": self.executor.adapter},
            "timings": self.timings.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two transcripts differ; None stands for nothing being there."""

    place: str
    expected: Any
    found: Any
    step: int | None = None  # the index of the generated id, when the place belongs to one

    def as_json(self) -> dict[str, Any]:
        """`{"place", "expected", "found"}`, with `step` when there is one."""
        result = {"place": self.place, "expected": self.expected, "found": self.found}
        return result if self.step is None else {**result, "step": self.step}


def record(
    artifacts: Artifacts,
    request: Request,
    prompt_ids: Sequence[int],
    ledger: Mapping[str, Any] | None,
    done: Done,
    executor: Made,
) -> Transcript:
    """The transcript of a reply that has ended."""
    transcript = Transcript(
        artifacts=artifacts,
        request=request,
        prompt_ids=tuple(prompt_ids),
        ledger=ledger,
        generated_ids=done.generated_ids,
        logit_digests=done.logit_digests,
        logprobs=done.logprobs,
        reason=done.reason,
        detail=done.detail,
        reasoning=done.reasoning,
        text=done.text,
        tool_calls=tuple(call.as_json() for call in done.calls),
        sha256="",
        executor=ExecutorInfo(executor.name, executor.adapter),
        timings=done.timings,
    )
    return replace(transcript, sha256=comparable_sha256(transcript))


def write(transcript: Transcript) -> bytes:
    """The file: one line of JSON in UTF-8, fields in a fixed order: the same bytes for the same run."""
    return (_dumps(transcript.as_json()) + "\n").encode("utf-8")


def comparable_sha256(transcript: Transcript) -> str:
    """sha256 of the comparable part: its JSON without spaces, fields in the order of the file, UTF-8."""
    comparable = _comparable_json(transcript)
    del comparable["artifacts"]["package"]
    return hashlib.sha256(_dumps(comparable).encode("utf-8")).hexdigest()


def compare(expected: Transcript, found: Transcript) -> Difference | None:
    """The first difference in the comparable parts, or None."""
    for (place, a, step), (_, b, _) in zip(_places(expected), _places(found), strict=False):
        if a != b:
            return Difference(place, a, b, step)
    return None


def check_unaltered(transcript: Transcript) -> Difference | None:
    """The difference between the recorded and the true sha256, or None: catches a change that happens to
    give the same reply, such as another seed for a greedy one."""
    true = comparable_sha256(transcript)
    return None if true == transcript.sha256 else Difference("sha256", transcript.sha256, true)


async def rerun(
    recorded: Transcript,
    session: Session,
    *,
    cancelled: Callable[[], bool] = never,
    watch: Callable[[Event], None] = lambda event: None,
) -> Done:
    """What the recorded prompt and parameters give now. A reply that was cancelled is cancelled after as
    many ids.

    Raises: what `Session.generate` raises.
    """
    n_generated = 0
    limit = len(recorded.generated_ids) if recorded.reason == "cancelled" else math.inf
    events = session.generate(
        recorded.prompt_ids,
        recorded.request.params,
        continued_ids=recorded.request.continue_ids,
        cancelled=lambda: cancelled() or n_generated >= limit,
    )
    done = None
    async for event in events:
        n_generated += isinstance(event, Token)
        watch(event)
        done = event
    assert isinstance(done, Done)
    return done


def _comparable_json(t: Transcript) -> dict[str, Any]:
    return {
        "version": VERSION,
        "artifacts": {
            "model": t.artifacts.model,
            "manifest_sha256": t.artifacts.manifest_sha256,
            "tokenizer_sha256": t.artifacts.tokenizer_sha256,
            "weights_sha256": list(t.artifacts.weights_sha256),
            "package": t.artifacts.package,
        },
        "request": t.request.as_json(),
        "prompt_ids": list(t.prompt_ids),
        "ledger": t.ledger,
        "generated_ids": list(t.generated_ids),
        "logit_digests": list(t.logit_digests),
        "logprobs": None if t.logprobs is None else [each.as_json() for each in t.logprobs],
        "reason": t.reason,
        "detail": dict(t.detail),
        "reasoning": None if t.reasoning is None else t.reasoning.decode("utf-8"),
        "text": t.text.decode("utf-8"),
        "tool_calls": [dict(call) for call in t.tool_calls],
    }


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _places(t: Transcript) -> Iterator[tuple[str, Any, int | None]]:
    """(place, value, step) of the comparable part, in the order in which a run comes to be.

    Each list ends with None at the place after its last item: of two transcripts, the places are the same
    up to the first difference.
    """
    comparable = _comparable_json(t)
    artifacts, request = comparable["artifacts"], comparable["request"]
    for key in ("model", "manifest_sha256", "tokenizer_sha256"):
        yield f"artifacts.{key}", artifacts[key], None
    yield from _items("artifacts.weights_sha256", artifacts["weights_sha256"])
    for key in ("messages", "tools", "evidence", "prompt_ids", "continue_ids"):
        yield from _items(f"request.{key}", request.get(key, ()))
    for key in ("enable_thinking", "preserve_thinking", "local_state", "budget_tokens"):
        yield f"request.{key}", request.get(key), None
    for name in RULES:
        yield f"request.params.{name}", request["params"][name], None
    yield "request.max_seq_len", request["max_seq_len"], None
    yield from _items("prompt_ids", t.prompt_ids)
    yield "ledger", t.ledger, None
    steps = zip((*t.generated_ids, None), (*t.logit_digests, None), strict=True)
    likely = [None] * len(t.generated_ids) if t.logprobs is None else comparable["logprobs"]
    for step, (token_id, digest) in enumerate(steps):
        yield f"logit_digests[{step}]", digest, step
        yield f"generated_ids[{step}]", token_id, step
        yield f"logprobs[{step}]", None if token_id is None else likely[step], step
    for key in ("reason", "detail", "reasoning", "text", "tool_calls"):
        yield key, comparable[key], None


def _items(place: str, values: Sequence[Any]) -> Iterator[tuple[str, Any, None]]:
    for index, value in enumerate((*values, None)):
        yield f"{place}[{index}]", value, None


# --- reading: everything in the file is hostile until it is checked --------------------------------------


def parse(data: bytes) -> Transcript:
    """The transcript in `data`. Whether its `sha256` is true is left to `check_unaltered`.

    Raises: FormatError `format.transcript` with the place, what was found and what is allowed.
    """
    try:
        root = strictjson.loads(data, max_bytes=MAX_BYTES)
    except strictjson.NotJson as error:
        raise _bad("transcript", str(error), "strict JSON in UTF-8") from None
    return from_json(root)


def from_json(root: object) -> Transcript:
    """The transcript in a JSON value.

    Raises: FormatError `format.transcript`.
    """
    top = _JSON.object_with(root, "transcript", KEYS)
    if top["version"] != VERSION or isinstance(top["version"], bool):
        raise _bad("version", f"{show(top['version'])}, another format", str(VERSION))
    generated_ids = _ids(top["generated_ids"], "generated_ids", least=0)
    digests = _JSON.array(top["logit_digests"], "logit_digests", 0, MAX_IDS)
    if len(digests) != len(generated_ids):
        raise _bad(
            "logit_digests", f"{len(digests)} items", f"{len(generated_ids)}, one for each generated id"
        )
    reason = top["reason"]
    if reason not in get_args(Reason):
        raise _bad("reason", show(reason), " | ".join(get_args(Reason)))
    executor = _JSON.object_with(top["executor"], "executor", ("name", "adapter"))
    return Transcript(
        artifacts=_artifacts(top["artifacts"]),
        request=_request(top["request"]),
        prompt_ids=_ids(top["prompt_ids"], "prompt_ids", least=1),
        ledger=_ledger(top["ledger"]),
        generated_ids=generated_ids,
        logit_digests=tuple(_JSON.sha256(d, f"logit_digests[{i}]") for i, d in enumerate(digests)),
        logprobs=_logprobs(top["logprobs"], len(generated_ids)),
        reason=cast(Reason, reason),
        detail=_detail(top["detail"]),
        reasoning=None
        if top["reasoning"] is None
        else _JSON.text(top["reasoning"], "reasoning").encode("utf-8"),
        text=_JSON.text(top["text"], "text").encode("utf-8"),
        tool_calls=tuple(
            _call(call, f"tool_calls[{i}]")
            for i, call in enumerate(_JSON.array(top["tool_calls"], "tool_calls", 0, MAX_IDS))
        ),
        sha256=_JSON.sha256(top["sha256"], "sha256"),
        executor=ExecutorInfo(
            *(_JSON.text(executor[key], f"executor.{key}", 0, 1000) for key in ("name", "adapter"))
        ),
        timings=_timings(top["timings"]),
    )


def _artifacts(raw: object) -> Artifacts:
    keys = ("model", "manifest_sha256", "tokenizer_sha256", "weights_sha256", "package")
    artifacts = _JSON.object_with(raw, "artifacts", keys)
    model = artifacts["model"]
    if not isinstance(model, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", model):
        raise _bad("artifacts.model", show(model), "a plain name")
    shards = _JSON.array(artifacts["weights_sha256"], "artifacts.weights_sha256", 0, 4096)
    return Artifacts(
        model=model,
        manifest_sha256=_JSON.sha256(artifacts["manifest_sha256"], "artifacts.manifest_sha256"),
        tokenizer_sha256=_JSON.sha256(artifacts["tokenizer_sha256"], "artifacts.tokenizer_sha256"),
        weights_sha256=tuple(_JSON.sha256(s, f"artifacts.weights_sha256[{i}]") for i, s in enumerate(shards)),
        package=_JSON.text(artifacts["package"], "artifacts.package", 0, 100),
    )


def _request(raw: object) -> Request:
    given = raw if isinstance(raw, dict) else {}
    source = REQUEST_KEYS if "messages" in given else ("prompt_ids", "continue_ids")
    request = _JSON.object_with(raw, "request", (*source, "params", "max_seq_len"))
    max_seq_len = _JSON.integer(request["max_seq_len"], "request.max_seq_len", 1, 1 << 20)
    raw_params = _JSON.object_with(request["params"], "request.params", tuple(RULES))
    try:
        params = parse_params(raw_params, {})
        continue_ids = _ids(request["continue_ids"], "request.continue_ids", 0)
        if source != REQUEST_KEYS:
            prompt_ids = _ids(request["prompt_ids"], "request.prompt_ids", 1)
            return Request.of_ids(prompt_ids, params, max_seq_len, continue_ids)
        asked = {key: request[key] for key in REQUEST_KEYS}
        tools = _JSON.array(asked["tools"], "request.tools", 0, MAX_MESSAGES)
        asked["tools"] = [_JSON.text(tool, f"request.tools[{i}]") for i, tool in enumerate(tools)]
        _JSON.array(asked["messages"], "request.messages", 0, MAX_MESSAGES)
        for key in ("preserve_thinking", "evidence", "budget_tokens"):
            if asked[key] is None:
                raise _bad(f"request.{key}", "null", "a value")
        return parse_request(asked, params, max_seq_len)
    except InputError as error:
        found, allowed = error.detail.get("found", error.message), error.detail.get("allowed", "another")
        raise _bad(f"request.{_place(error.detail)}", str(found), str(allowed)) from None


def _place(detail: Mapping[str, Any]) -> str:
    """Where in a request an InputError is: those of template2 have an index and a field."""
    if "place" in detail:
        return str(detail["place"])
    index, field = detail.get("index"), detail.get("field", "")
    if index is None or field == "tools":
        return str(field) if index is None else f"tools[{index}]"
    return f"messages[{index}].{field}" if field else f"messages[{index}]"


def _ledger(raw: object) -> dict[str, Any] | None:
    """As `Ledger.as_json` writes it, whatever its numbers say: they are compared."""
    if raw is None:
        return None
    counts = ("budget_tokens", "prompt_tokens", "left_tokens", "offered_tokens")
    ledger = _JSON.object_with(raw, "ledger", (*counts, "parts"))
    for key in counts:
        _JSON.integer(ledger[key], f"ledger.{key}", 0, (1 << 53) - 1)
    for i, item in enumerate(_JSON.array(ledger["parts"], "ledger.parts", 0, 4 * MAX_MESSAGES)):
        place = f"ledger.parts[{i}]"
        part = _JSON.object_with(item, place, tuple(field.name for field in fields(Part)))
        for key in ("kind", "label", "state"):
            _JSON.text(part[key], f"{place}.{key}", 0, 1000)
        if part["in_pass"] is not None:
            _JSON.integer(part["in_pass"], f"{place}.in_pass", 1, 9)
        # What text around a seam takes can be less than nothing.
        for key in ("tokens", "offered_tokens"):
            _JSON.integer(part[key], f"{place}.{key}", -(1 << 31), 1 << 31)
    return ledger


def _logprobs(raw: object, n_generated: int) -> tuple[Logprobs, ...] | None:
    """As `Logprobs.as_json` writes them."""
    if raw is None:
        return None
    items = _JSON.array(raw, "logprobs", n_generated, n_generated)
    return tuple(_likely(item, f"logprobs[{i}]") for i, item in enumerate(items))


def _likely(raw: object, place: str) -> Logprobs:
    found = _JSON.object_with(raw, place, ("logprob", "top"))
    top = []
    for i, item in enumerate(_JSON.array(found["top"], f"{place}.top", 0, MAX_LOGPROBS)):
        one = _JSON.object_with(item, f"{place}.top[{i}]", ("id", "logprob"))
        token_id = _JSON.integer(one["id"], f"{place}.top[{i}].id", 0, MAX_ID)
        top.append((token_id, _logprob(one["logprob"], f"{place}.top[{i}].logprob")))
    return Logprobs(_logprob(found["logprob"], f"{place}.logprob"), tuple(top))


def _logprob(value: object, place: str) -> float:
    found = real(value, -1e308, 0)
    if found is None:
        raise _bad(place, show(value), "a finite number, at most 0")
    return found


def _call(raw: object, place: str) -> dict[str, Any]:
    """As `Call.as_json` writes it (reply.py)."""
    keys = ("name", "arguments") if isinstance(raw, dict) and "name" in raw else ("text", "error")
    call = _JSON.object_with(raw, place, keys)
    for key in keys:
        _JSON.text(call[key], f"{place}.{key}")
    return call


def _detail(raw: object) -> dict[str, Any]:
    """Small, flat and of known keys (session.Done)."""
    result: dict[str, Any] = {}
    for key, value in _JSON.any_object(raw, "detail").items():
        if key in ("id", "offset"):
            result[key] = _JSON.integer(value, f"detail.{key}", 0, (1 << 53) - 1)
        elif key in ("stop", "bytes_hex", "partial_hex", "reasoning_partial_hex", "part"):
            result[key] = _JSON.text(value, f"detail.{key}", 0, 1 << 20)
        elif key in ("invalid", "reasoning_invalid"):
            result[key] = [_detail(item) for item in _JSON.array(value, f"detail.{key}", 1, MAX_IDS)]
        else:
            raise _bad(
                f"detail.{show(key)}",
                "an unknown key",
                "id | offset | stop | bytes_hex | part | [reasoning_]partial_hex | [reasoning_]invalid",
            )
    return result


def _timings(raw: object) -> Timings:
    timings = _JSON.object_with(
        raw, "timings", ("prefill_ms", "prefill_tokens", "reused_tokens", "decode_ms")
    )
    decode_ms = _JSON.array(timings["decode_ms"], "timings.decode_ms", 0, MAX_IDS)
    return Timings(
        prefill_ms=_ms(timings["prefill_ms"], "timings.prefill_ms"),
        prefill_tokens=_JSON.integer(timings["prefill_tokens"], "timings.prefill_tokens", 0, MAX_IDS),
        reused_tokens=_JSON.integer(timings["reused_tokens"], "timings.reused_tokens", 0, MAX_IDS),
        decode_ms=[_ms(value, f"timings.decode_ms[{i}]") for i, value in enumerate(decode_ms)],
    )


def _ids(value: object, place: str, least: int) -> tuple[int, ...]:
    items = _JSON.array(value, place, least, MAX_IDS)
    return tuple(_JSON.integer(item, f"{place}[{i}]", 0, MAX_ID) for i, item in enumerate(items))


def _ms(value: object, place: str) -> float:
    milliseconds = real(value, 0, 1e15)
    if milliseconds is None:
        raise _bad(place, show(value), "milliseconds, at least 0")
    return milliseconds


def _bad(place: str, found: str, allowed: str) -> FormatError:
    return FormatError(
        "format.transcript",
        f"{place}: found {found}; allowed: {allowed}",
        {"place": place, "found": found, "allowed": allowed},
    )


_JSON = Checks(_bad)
