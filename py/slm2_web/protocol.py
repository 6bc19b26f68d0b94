"""What page, loader and worker say to each other: the only authority.

    page  --page_to_loader-->  loader        load: fetch and verify a model's files
    page  --page_to_worker-->  worker        init, chat, parity, parity_record,
                                             parity_output, cancel, dispose
    loader --loader_to_worker--> worker      model, through a MessagePort that the page hands to both
    loader, worker --*_to_page--> page       progress, ready, context, prefill, delta,
                                             done, parity_*, thread, warning, error
    page <--*_to_*--> tokenizer              open, encode; opened, tokens, warning, error (the tokenizer view)
    page <--*_to_*--> opinion                opine, split; opines, pieces, error (parity's stage `regex`)
    tab  --tab_to_tabs-->    all tabs        hello, lead (a model that tabs share: web/tabs/share.js)
    tab  <--*_to_*--> host                   chat, cancel, leave; welcome, queued, and what worker_to_page has

Everything is data: `MESSAGES` lists the messages, `CODES` (errors.py) the errors, `CONTROL_WORDS` the
shared words. Both sides check every message they receive with the same table: `check` here, and `check`
in worker/protocol.js, which `python -m slm2_web.protocol --write` generates (`--check` compares), as it does
the table of codes in docs/errors.md.

A type is a name of `TYPES`, `ENUMS` or `RECORDS`; `T*` is a list of T, `T?` is T or null.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard, get_args

from slm2_web.errors import (
    CODES,
    AssetError,
    BrowserError,
    Cancelled,
    DeviceError,
    FormatError,
    InputError,
    ProtocolError,
    Slm2Error,
)
from slm2_web.forward2.wasm import MAX_BYTES, PAGE_BYTES, WEIGHTS_BASE
from slm2_web.manifest import FORMAT, MAX_MANIFEST_BYTES, MAX_SHARD_BYTES, VERSION

PROTOCOL_VERSION: Final = 5

Channel = Literal[
    "page_to_worker",
    "worker_to_page",
    "page_to_loader",
    "loader_to_page",
    "loader_to_worker",
    "worker_to_loader",
    "page_to_tokenizer",
    "tokenizer_to_page",
    "page_to_opinion",
    "opinion_to_page",
    "tab_to_tabs",
    "tab_to_host",
    "host_to_tab",
]

# Loading, in the order in which a page shows it. `weights` runs beside the three before it.
STAGES: Final = ("runtime", "numpy", "package", "weights", "self_test", "upload", "compile", "ready")

# Why a reply ended.
REASONS: Final = (
    "stop_token",
    "stop_string",
    "max_tokens",
    "context_full",
    "cancelled",
    "invalid_utf8",
    "dead_end",
)

# The parity suite's stages, in the order in which they run, and how many vectors of each (docs/parity.md).
PARITY_STAGES: Final = ("tokenizer", "template", "prompt", "sampling", "stream", "forward", "chat")
PARITY_SIZES: Final = ("quick", "reduced", "full")

# Words of the shared Int32Array `control`: name -> (index, meaning).
CONTROL_WORDS: Final[Mapping[str, tuple[int, str]]] = {
    "cancelled_id": (0, "the highest request id that is cancelled; 0 cancels none"),
}
CONTROL_BYTES: Final = 4 * len(CONTROL_WORDS)

# Bounds that the page's side needs as numbers.
LIMITS: Final[Mapping[str, int]] = {
    "request_id": (1 << 31) - 1,
    "messages": 10_000,
    "content_bytes": 16 << 20,
    "request_bytes": 64 << 20,
    "manifest_bytes": MAX_MANIFEST_BYTES,
    "shard_bytes": MAX_SHARD_BYTES,
    "tokenizer_bytes": 64 << 20,
    "shards": 4096,
    "weights_bytes": 1 << 40,
}


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a sampling parameter may be: `low` to `high`, in decimal digits. `zero`: or 0.
    `above`: not `low` itself."""

    low: str
    high: str
    whole: bool = False
    zero: bool = False
    above: bool = False


# What sampling2/params.py accepts, and of `budget_tokens` prompt2; a test asks them at every bound.
RANGES: Final[Mapping[str, Range]] = {
    "temperature": Range("0.000001", "1000", zero=True),
    "top_k": Range("0", "2147483647", whole=True),
    "top_p": Range("0", "1", above=True),
    "min_p": Range("0", "1"),
    "repetition_penalty": Range("0.001", "1000"),
    "presence_penalty": Range("-2", "2"),
    "frequency_penalty": Range("-2", "2"),
    "seed": Range("0", "18446744073709551615", whole=True),
    "logprobs": Range("0", "20", whole=True),
    "max_tokens": Range("1", "1048576", whole=True),
    "max_reasoning_tokens": Range("0", "1048576", whole=True),
    "budget_tokens": Range("1", "1048576", whole=True),
}

ENUMS: Final[Mapping[str, tuple[str, ...]]] = {
    "executor": ("auto", "webgpu", "wasm", "reference"),
    "stage": STAGES,
    "unit": ("bytes", "steps"),
    "reason": REASONS,
    "part": ("text", "reasoning"),
    "code": tuple(CODES),
    "parity_stage": PARITY_STAGES,
    "parity_size": PARITY_SIZES,
}

# name: (what is allowed, for people; its type in TypeScript)
TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "string": ("a string", "string"),
    "boolean": ("a boolean", "boolean"),
    "uint": ("an integer from 0 to 9007199254740991", "number"),
    "number": ("a finite number, not negative", "number"),
    "real": ("a finite number", "number"),
    "id": (f"an integer from 1 to {LIMITS['request_id']}", "number"),
    "bytes": (f"at most {LIMITS['content_bytes']} bytes in unshared memory", "Uint8Array<ArrayBuffer>"),
    "file": ("bytes in unshared memory", "Uint8Array<ArrayBuffer>"),
    "object": ("an object", "Record<string, any>"),
    "params": (
        "an object of finite numbers, strings, bytes and lists of bytes or numbers",
        "Record<string, number | string | Uint8Array | Uint8Array[] | number[]>",
    ),
    "view": ("a Uint8Array", "Uint8Array"),
    "memory": ("a shared WebAssembly.Memory", "WebAssembly.Memory"),
    "words": ("a Uint32Array in unshared memory", "Uint32Array<ArrayBuffer>"),
    "control": (f"a SharedArrayBuffer of {CONTROL_BYTES} bytes", "SharedArrayBuffer"),
    "port": ("a MessagePort", "MessagePort"),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Message:
    """One kind of message: its `type` on the wire, who sends it to whom, its fields."""

    type: str
    channels: tuple[Channel, ...]
    meaning: str
    fields: tuple[Field, ...] = ()


RECORDS: Final[Mapping[str, tuple[Field, ...]]] = {
    "turn": (
        Field("role", "string", "who speaks: system, user, assistant or tool"),
        Field("content", "bytes", "UTF-8"),
        Field("reasoning_content", "bytes?", "of an assistant: what it thought, UTF-8"),
        Field("tool_calls", "bytes?", "of an assistant: a JSON list of calls, UTF-8"),
    ),
    "passage": (
        Field("id", "bytes", "UTF-8"),
        Field("relevance", "real", "the higher the longer it is kept"),
        Field("content", "bytes", "UTF-8"),
    ),
}

MESSAGES: Final = (
    Message(
        "init",
        ("page_to_worker",),
        "Boot, wait for the model on `port`, make the engine.",
        (
            Field("version", "uint", "PROTOCOL_VERSION of the page"),
            Field("site", "string", "version of the site, as the page knows it"),
            Field("root", "string", "URL of the site's root, ends with /"),
            Field("executor", "executor", "what computes; auto takes the fastest that works"),
            Field("max_seq_len", "uint?", "most tokens of the context; null: the engine's default"),
            Field("control", "control?", "the shared words; null where there is no SharedArrayBuffer"),
            Field("port", "port", "on which the loader sends `model`"),
        ),
    ),
    Message(
        "chat",
        ("page_to_worker", "tab_to_host"),
        "Answer these messages. One at a time.",
        (
            Field("id", "id", "larger than the id of any chat before"),
            Field("messages", "turn*", f"1 to {LIMITS['messages']}, oldest first"),
            Field("tools", "bytes?", "a JSON list of tools, UTF-8"),
            Field("enable_thinking", "boolean?", "null: as the template does by itself"),
            Field("preserve_thinking", "boolean", "keep the reasoning of every turn"),
            Field("local_state", "bytes?", "what the application knows of itself, UTF-8"),
            Field("evidence", "passage*?", "retrieved texts"),
            Field(
                "budget_tokens",
                "uint?",
                "most tokens of the prompt; null: the context less room for the reply",
            ),
            Field("continue_ids", "words?", "what was generated before, of a reply that was cut short"),
            Field("params", "params", "sampling parameters by name; `seed` is a decimal string"),
        ),
    ),
    Message(
        "parity",
        ("page_to_worker",),
        "Run stages of the parity suite on this model and device. One at a time, and no chat meanwhile.",
        (
            Field("id", "id", "larger than the id of any chat or parity before"),
            Field("stages", "parity_stage*", "which, each once"),
            Field("size", "parity_size", "how many vectors of each"),
        ),
    ),
    Message(
        "parity_record",
        ("page_to_worker",),
        "Compute one vector of the parity suite.",
        (
            Field("id", "id", "larger than the id of any chat or parity before"),
            Field("stage", "parity_stage", "of the vector"),
            Field("index", "uint", "of the vector in its stage"),
            Field("size", "parity_size", "which bounds the index"),
        ),
    ),
    Message(
        "parity_output",
        ("page_to_worker",),
        "Compute what any input of a stage of the parity suite comes to.",
        (
            Field("id", "id", "larger than the id of any chat or parity before"),
            Field("stage", "parity_stage", "whose input it is"),
            Field("input", "bytes", "JSON, UTF-8"),
        ),
    ),
    Message(
        "cancel",
        ("page_to_worker", "tab_to_host"),
        "End chat or parity `id` and any before it. A busy worker reads the shared word instead.",
        (Field("id", "id", "of a chat or parity"),),
    ),
    Message("dispose", ("page_to_worker",), "Free the device's memory and end."),
    Message(
        "load",
        ("page_to_loader",),
        "Fetch and verify a model's files, then send `model` to the worker.",
        (
            Field("version", "uint", "PROTOCOL_VERSION of the page"),
            Field("site", "string", "version of the site, as the page knows it"),
            Field("root", "string", "URL of the site's root, ends with /"),
            Field("model", "string", "name of a folder under models/"),
            Field("shared", "boolean", "put the weights into a shared WebAssembly.Memory"),
            Field("port", "port", "to the worker"),
        ),
    ),
    Message("want", ("worker_to_loader",), "Send `model` now: the worker listens."),
    Message(
        "model",
        ("loader_to_worker",),
        "A model's files, each of the recorded size and hash.",
        (
            Field("manifest", "file", "manifest.json"),
            Field("tokenizer", "view", "tokenizer.slm2tok"),
            Field("tokenizer_memory", "memory?", "which `tokenizer` is a view of; null where none is shared"),
            Field("weights", "view", "the shards, one after the other"),
            Field("memory", "memory?", "which `weights` is a view of; null where no memory is shared"),
            Field("stats", "object", "bytes, cached_bytes, weights_ms"),
        ),
    ),
    Message(
        "progress",
        ("worker_to_page", "loader_to_page", "host_to_tab"),
        "How far a stage of loading is.",
        (
            Field("stage", "stage", "which"),
            Field("done", "uint", "of `total`; equal to it when the stage has ended"),
            Field("total", "uint", "0 while unknown"),
            Field("unit", "unit", "of `done` and `total`"),
            Field("cached", "uint", "how much of `done` came from this browser's storage"),
        ),
    ),
    Message(
        "ready",
        ("worker_to_page", "host_to_tab"),
        "The engine answers now.",
        (Field("info", "object", "executor, adapter, model, limits, defaults, memory, timings"),),
    ),
    Message(
        "context",
        ("worker_to_page", "host_to_tab"),
        "What the prompt holds, and what was left out of it.",
        (
            Field("id", "id", "of the chat"),
            Field("ledger", "object", "parts, prompt_tokens, budget_tokens, left_tokens"),
        ),
    ),
    Message(
        "prefill",
        ("worker_to_page", "host_to_tab"),
        "How much of the prompt has been read.",
        (
            Field("id", "id", "of the chat"),
            Field("done", "uint", "tokens"),
            Field("total", "uint", "tokens"),
        ),
    ),
    Message(
        "delta",
        ("worker_to_page", "host_to_tab"),
        "The reply goes on.",
        (
            Field("id", "id", "of the chat"),
            Field("part", "part", "of the answer or of the thought before it"),
            Field("data", "bytes", "whole UTF-8 characters"),
            Field("n_tokens", "uint", "generated so far"),
        ),
    ),
    Message(
        "done",
        ("worker_to_page", "host_to_tab"),
        "The reply has ended.",
        (
            Field("id", "id", "of the chat"),
            Field("reason", "reason", "why it ended"),
            Field("transcript", "file", "the run as JSON, UTF-8"),
            Field("stats", "object", "counts and times"),
            Field("more", "object", "tool_calls; logprobs, of each new id or null where not wanted"),
        ),
    ),
    Message(
        "parity_progress",
        ("worker_to_page",),
        "How far a stage of the parity suite is.",
        (
            Field("id", "id", "of the parity"),
            Field("stage", "parity_stage", "which"),
            Field("done", "uint", "vectors"),
            Field("total", "uint", "vectors"),
        ),
    ),
    Message(
        "parity_stage",
        ("worker_to_page",),
        "What a stage of the parity suite has come to.",
        (
            Field("id", "id", "of the parity"),
            Field("stage", "parity_stage", "which"),
            Field("vectors", "uint", "how many"),
            Field("digest", "string", "sha256 of all its lines, in hexadecimal"),
            Field("marks", "string", "eight hexadecimal digits for each vector"),
            Field("seconds", "number", "how long it took"),
        ),
    ),
    Message(
        "parity_done",
        ("worker_to_page",),
        "All stages have run; each had its `parity_stage`.",
        (
            Field("id", "id", "of the parity"),
            Field("info", "object", "suite, size, artifacts, executor, adapter"),
        ),
    ),
    Message(
        "parity_vector",
        ("worker_to_page",),
        "One vector of the parity suite, or what an input comes to.",
        (
            Field("id", "id", "of the parity"),
            Field(
                "record", "file", 'id, input and output as canonical JSON, UTF-8; the id of no vector is ""'
            ),
        ),
    ),
    Message(
        "thread",
        ("worker_to_page",),
        "Start worker/wasm/thread.js, and hand it `port` when its script runs; say there why it can't.",
        (Field("port", "port", "to the engine"),),
    ),
    Message(
        "open",
        ("page_to_tokenizer",),
        "Fetch and verify a model's tokenizer, and no other file of it.",
        (
            Field("version", "uint", "PROTOCOL_VERSION of the page"),
            Field("site", "string", "version of the site, as the page knows it"),
            Field("root", "string", "URL of the site's root, ends with /"),
            Field("model", "string", "name of a folder under models/"),
        ),
    ),
    Message(
        "encode",
        ("page_to_tokenizer",),
        "Encode this text.",
        (
            Field("id", "id", "larger than that of any text before"),
            Field("data", "bytes", "UTF-8"),
            Field("trusted", "boolean", "whether a marker in it is an added token"),
        ),
    ),
    Message(
        "opened",
        ("tokenizer_to_page",),
        "The tokenizer encodes now.",
        (Field("info", "object", "title, n_tokens, markers, open_ms"),),
    ),
    Message(
        "tokens",
        ("tokenizer_to_page",),
        "A text's tokens: all ids, and the bytes of the first ones.",
        (
            Field("id", "id", "of the text"),
            Field("ids", "words", "all ids"),
            Field("ends", "words", "where each of the first tokens ends in `data`"),
            Field("data", "file", "the bytes of the first tokens, one after the other"),
            Field("n_bytes", "uint", "bytes of all tokens: the text's after normalization"),
            Field("encode_ms", "number", "how long it took"),
        ),
    ),
    Message(
        "opine",
        ("page_to_opinion",),
        "Boot Python with the package `regex`.",
        (
            Field("version", "uint", "PROTOCOL_VERSION of the page"),
            Field("site", "string", "version of the site, as the page knows it"),
            Field("root", "string", "URL of the site's root, ends with /"),
        ),
    ),
    Message(
        "split",
        ("page_to_opinion",),
        "Split this text.",
        (
            Field("id", "id", "larger than that of any text before"),
            Field("pattern", "string", "a name of parity/opinion.py's PATTERNS"),
            Field("data", "bytes", "UTF-8"),
        ),
    ),
    Message("opines", ("opinion_to_page",), "Texts are split now."),
    Message(
        "pieces",
        ("opinion_to_page",),
        "A text's pieces.",
        (
            Field("id", "id", "of the text"),
            Field("answer", "string", "JSON: a list of pieces; null where a character may not be known"),
        ),
    ),
    Message(
        "hello",
        ("tab_to_tabs",),
        "Here is one that wants the model, or asks whether `host` still answers.",
        (
            Field("version", "uint", "PROTOCOL_VERSION of the tab"),
            Field("site", "string", "version of the site, as the tab knows it"),
            Field("host", "string?", "whom it is for; null: whoever has the model, who says `lead`"),
            Field("tab", "string", "the document that it is in: tabs are served in turn"),
            Field("id", "string", "whose line it is, and whose lock is held as long as it lives"),
        ),
    ),
    Message(
        "lead",
        ("tab_to_tabs",),
        "This host has the model, or loads it.",
        (
            Field("version", "uint", "PROTOCOL_VERSION of the tab"),
            Field("site", "string", "version of the site, as the tab knows it"),
            Field("host", "string", "its id, which no other host ever has"),
        ),
    ),
    Message("welcome", ("host_to_tab",), "Requests are heard now. The answer to each `hello`."),
    Message("leave", ("tab_to_host",), "The model is not wanted any more; what was asked ends."),
    Message(
        "queued",
        ("host_to_tab",),
        "Where a request stands.",
        (
            Field("id", "id", "of the chat"),
            Field("place", "uint", "how many are before it; 0: it runs, or is next once the model is loaded"),
        ),
    ),
    Message(
        "warning",
        ("loader_to_page", "tokenizer_to_page", "host_to_tab"),
        "Something went wrong that the model can do without.",
        (
            Field("code", "code", "which"),
            Field("message", "string", "place, what was found, what is allowed"),
            Field("detail", "object", "the same for programs"),
        ),
    ),
    Message(
        "error",
        ("worker_to_page", "loader_to_page", "tokenizer_to_page", "opinion_to_page", "host_to_tab"),
        "A chat, a parity or a text (`id`) or, with null, the loading or the worker itself has failed.",
        (
            Field("id", "id?", "of the chat, the parity or the text"),
            Field("code", "code", "which"),
            Field("message", "string", "place, what was found, what is allowed"),
            Field("detail", "object", "the same for programs"),
        ),
    ),
)

_MISSING: Final = object()


def fields_of(channel: Channel) -> Mapping[str, tuple[Field, ...]]:
    """The messages of a channel: type -> fields."""
    return {message.type: message.fields for message in MESSAGES if channel in message.channels}


def check(channel: Channel, message: object) -> Mapping[str, Any]:
    """`message` itself, if it is one of the channel's.

    Raises: ProtocolError `protocol.message`; the detail names field, found and allowed.
    """
    known = fields_of(channel)
    if not isinstance(message, Mapping):
        raise _malformed(channel, message, "an object")
    kind = message.get("type", _MISSING)
    if not isinstance(kind, str) or kind not in known:
        raise _malformed(f"{channel}.type", kind, " | ".join(known))
    _check_record({k: v for k, v in message.items() if k != "type"}, known[kind], f"{channel}.{kind}")
    return message


def _check_record(value: Mapping[Any, Any], fields: tuple[Field, ...], place: str) -> None:
    for field in fields:
        _check_value(value.get(field.name, _MISSING), field.type, f"{place}.{field.name}")
    names = [field.name for field in fields]
    for key in value:
        if key not in names:
            raise _malformed(f"{place}.{key}", value[key], "no such field")


def _check_value(value: object, kind: str, place: str) -> None:
    if kind.endswith("?"):
        if value is not None:
            _check_value(value, kind[:-1], place)
    elif kind.endswith("*"):
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= LIMITS["messages"]:
            raise _malformed(place, value, f"a list of 1 to {LIMITS['messages']}")
        for index, item in enumerate(value):
            _check_value(item, kind[:-1], f"{place}[{index}]")
    elif kind in RECORDS:
        if not isinstance(value, Mapping):
            raise _malformed(place, value, "an object")
        _check_record(value, RECORDS[kind], place)
    elif kind in ENUMS:
        if not isinstance(value, str) or value not in ENUMS[kind]:
            raise _malformed(place, value, " | ".join(ENUMS[kind]))
    elif not _is(value, kind):
        raise _malformed(place, value, TYPES[kind][0])


def _is(value: object, kind: str) -> bool:
    """Whether `value` has a type of `TYPES`. Buffers and ports are only asked for what Python can see."""
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "uint":
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
        case "number":
            return _is_finite(value) and value >= 0
        case "id":
            limit = LIMITS["request_id"]
            return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= limit
        case "bytes":
            return isinstance(value, bytes) and len(value) <= LIMITS["content_bytes"]
        case "file":
            return isinstance(value, bytes)
        case "real":
            return _is_finite(value)
        case "object":
            return isinstance(value, Mapping)
        case "params":
            return isinstance(value, Mapping) and all(_is_param(v) for v in value.values())
        case "view":
            return isinstance(value, bytes | bytearray | memoryview) and memoryview(value).itemsize == 1
        case "memory":
            return callable(getattr(value, "grow", None))
        case "words":
            return isinstance(value, memoryview) and value.format == "I"
        case "control":
            return isinstance(value, bytearray | memoryview) and len(value) == CONTROL_BYTES
        case _:
            assert kind == "port", kind
            return callable(getattr(value, "postMessage", None))


def _is_param(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, bytes) for item in value) or all(map(_is_finite, value))
    return isinstance(value, str | bytes) or _is_finite(value)


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def show(value: object) -> str:
    """A value for an error message: short, and the same text on both sides."""
    if value is _MISSING:
        return "nothing"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 40 else value[:40] + "…", ensure_ascii=False)
    if isinstance(value, int | float):
        return json.dumps(value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "an object"


def _malformed(place: str, found: object, allowed: str) -> ProtocolError:
    detail = {"field": place, "found": show(found), "allowed": allowed}
    message = f"{place}: found {detail['found']}; allowed: {allowed}"
    return ProtocolError("protocol.message", message, detail)


# --- the page's copy -------------------------------------------------------------------------------------

_CLASSES: Final = (
    InputError,
    FormatError,
    AssetError,
    DeviceError,
    BrowserError,
    ProtocolError,
    Cancelled,
)

_JS_HEAD = """\
// Generated by `python -m slm2_web.protocol --write` from py/slm2_web/protocol.py; never edited.
// Messages, error codes and shared words, and the check that both sides make on every message.
"""

_JS_ERRORS = """\
/** Base of all errors: a stable code, a message for people, a detail for programs, what to do about it. */
export class Slm2Error extends Error {
  /** @param {string} code @param {string} message @param {Record<string, any>} [detail] */
  constructor(code, message, detail = {}) {
    super(message);
    this.name = new.target.name;
    this.code = code;
    this.detail = detail;
    this.meaning = ERRORS[code]?.meaning ?? "";
    this.remedy = ERRORS[code]?.remedy ?? "";
  }
}
"""

_JS_CHECK = """\
/** The error with this code, in its class. @param {string} code @param {string} message
 * @param {Record<string, any>} [detail] @returns {Slm2Error} */
export function errorFrom(code, message, detail = {}) {
  return new (CLASSES[ERRORS[code]?.class] ?? Slm2Error)(code, message, detail);
}

/** `message` itself, if it is one of the channel's; else throws ProtocolError `protocol.message`.
 * @template {keyof Channels} C @param {C} channel @param {any} message @returns {Channels[C]} */
export function check(channel, message) {
  const known = CHANNELS[channel];
  if (!isObject(message)) throw malformed(channel, message, "an object");
  const { type, ...rest } = message;
  if (typeof type !== "string" || !Object.hasOwn(known, type)) {
    throw malformed(`${channel}.type`, type, Object.keys(known).join(" | "));
  }
  checkRecord(rest, known[type], `${channel}.${type}`);
  return message;
}

/** @param {Record<string, any>} value @param {Record<string, string>} fields @param {string} place */
function checkRecord(value, fields, place) {
  for (const [name, kind] of Object.entries(fields)) checkValue(value[name], kind, `${place}.${name}`);
  for (const key of Object.keys(value)) {
    if (!Object.hasOwn(fields, key)) throw malformed(`${place}.${key}`, value[key], "no such field");
  }
}

/** @param {any} value @param {string} kind @param {string} place */
function checkValue(value, kind, place) {
  if (kind.endsWith("?")) {
    if (value !== null) checkValue(value, kind.slice(0, -1), place);
  } else if (kind.endsWith("*")) {
    if (!Array.isArray(value) || value.length < 1 || value.length > LIMITS.messages) {
      throw malformed(place, value, `a list of 1 to ${LIMITS.messages}`);
    }
    value.forEach((item, i) => checkValue(item, kind.slice(0, -1), `${place}[${i}]`));
  } else if (Object.hasOwn(RECORDS, kind)) {
    if (!isObject(value)) throw malformed(place, value, "an object");
    checkRecord(value, RECORDS[kind], place);
  } else if (Object.hasOwn(ENUMS, kind)) {
    if (!ENUMS[kind].includes(value)) throw malformed(place, value, ENUMS[kind].join(" | "));
  } else if (!IS[kind](value)) {
    throw malformed(place, value, ALLOWED[kind]);
  }
}

/** @param {any} value */
const isObject = (value) =>
  typeof value === "object" &&
  value !== null &&
  [Object.prototype, null].includes(Object.getPrototypeOf(value));
/** @param {any} buffer */
const isShared = (buffer) => typeof SharedArrayBuffer === "function" && buffer instanceof SharedArrayBuffer;
/** @param {any} value */
const isBytes = (value) => value instanceof Uint8Array && !isShared(value.buffer);
/** @param {any} value */
const isParam = (value) =>
  typeof value === "string" ||
  Number.isFinite(value) ||
  isBytes(value) ||
  (Array.isArray(value) && (value.every(isBytes) || value.every(Number.isFinite)));

/** @type {Record<string, (value: any) => boolean>} */
const IS = {
  string: (value) => typeof value === "string",
  boolean: (value) => typeof value === "boolean",
  uint: (value) => Number.isSafeInteger(value) && value >= 0,
  number: (value) => Number.isFinite(value) && value >= 0,
  real: Number.isFinite,
  id: (value) => Number.isInteger(value) && value >= 1 && value <= LIMITS.request_id,
  bytes: (value) => isBytes(value) && value.byteLength <= LIMITS.content_bytes,
  file: isBytes,
  object: isObject,
  params: (value) => isObject(value) && Object.values(value).every(isParam),
  view: (value) => value instanceof Uint8Array,
  memory: (value) => value instanceof WebAssembly.Memory && isShared(value.buffer),
  words: (value) => value instanceof Uint32Array && !isShared(value.buffer),
  control: (value) => isShared(value) && value.byteLength === CONTROL_BYTES,
  port: (value) => typeof value?.postMessage === "function",
};

/** A value for an error message: short, and the same text on both sides. @param {any} value */
function show(value) {
  if (value === undefined) return "nothing";
  if (value === null || typeof value === "boolean" || typeof value === "number") return String(value);
  if (typeof value === "string") {
    const chars = [...value];
    return JSON.stringify(chars.length <= 40 ? value : chars.slice(0, 40).join("") + "…");
  }
  if (isBytes(value)) return `${value.byteLength} bytes`;
  return Array.isArray(value) ? `a list of ${value.length}` : "an object";
}

/** @param {string} field @param {any} value @param {string} allowed */
function malformed(field, value, allowed) {
  const found = show(value);
  const message = `${field}: found ${found}; allowed: ${allowed}`;
  return new ProtocolError("protocol.message", message, { field, found, allowed });
}
"""


def generate_js() -> str:
    """worker/protocol.js, the page's copy of this module."""
    parts = [_JS_HEAD, _js_types(), _js_constants(), _JS_ERRORS, _js_classes(), _JS_CHECK]
    return "\n".join(parts)


def _js_types() -> str:
    lines = []
    for name, values in ENUMS.items():
        union = " | ".join(json.dumps(v) for v in values)
        lines.append(f"/** @typedef {{{union}}} {_pascal(name)} */")
    for name, fields in RECORDS.items():
        lines.append(f"/** @typedef {{{{{_ts_fields(fields)}}}}} {_pascal(name)} */")
    lines.append(
        "/** @typedef {{low: string, high: string, whole: boolean, zero: boolean, above: boolean}} Range */"
    )
    for message in MESSAGES:
        fields_text = "; ".join(
            filter(None, (f"type: {json.dumps(message.type)}", _ts_fields(message.fields)))
        )
        lines.append(f"/** {message.meaning}")
        lines += [f" * - `{field.name}`: {field.meaning}" for field in message.fields]
        lines.append(f" * @typedef {{{{{fields_text}}}}} {_pascal(message.type)}Message */")
    unions = [
        f"{channel}: " + " | ".join(f"{_pascal(kind)}Message" for kind in fields_of(channel))
        for channel in get_args(Channel)
    ]
    lines += ["/** @typedef {{", *(f" *   {union};" for union in unions), " * }} Channels */"]
    return "\n".join(lines) + "\n"


def _js_constants() -> str:
    errors = {
        code: {"class": _class_of(code), "meaning": meaning, "remedy": remedy}
        for code, (meaning, remedy) in CODES.items()
    }
    channels = {
        channel: {
            kind: {field.name: field.type for field in fields} for kind, fields in fields_of(channel).items()
        }
        for channel in get_args(Channel)
    }
    records = {name: {field.name: field.type for field in fields} for name, fields in RECORDS.items()}
    rows: list[tuple[str, str, Any]] = [
        ("export const PROTOCOL_VERSION", "", PROTOCOL_VERSION),
        ("export const STAGES", "/** @type {readonly Stage[]} */\n", STAGES),
        ("export const REASONS", "/** @type {readonly Reason[]} */\n", REASONS),
        ("export const EXECUTORS", "/** @type {readonly Executor[]} */\n", ENUMS["executor"]),
        ("export const PARITY_STAGES", "/** @type {readonly ParityStage[]} */\n", PARITY_STAGES),
        ("export const PARITY_SIZES", "/** @type {readonly ParitySize[]} */\n", PARITY_SIZES),
        (
            "export const CONTROL_WORDS",
            "/** Indices into the shared Int32Array. */\n",
            {name: index for name, (index, _) in CONTROL_WORDS.items()},
        ),
        ("export const CONTROL_BYTES", "", CONTROL_BYTES),
        ("export const LIMITS", "", dict(LIMITS)),
        (
            "export const RANGES",
            "/** @type {Record<string, Range>} */\n",
            {name: asdict(limits) for name, limits in RANGES.items()},
        ),
        (
            "export const WASM",
            "",
            {"weights_base": WEIGHTS_BASE, "page_bytes": PAGE_BYTES, "max_bytes": MAX_BYTES},
        ),
        ("export const MANIFEST", "", {"format": FORMAT, "version": VERSION}),
        (
            "export const ERRORS",
            "/** Every code. @type {Record<string, {class: string, meaning: string, remedy: string}>} */\n",
            errors,
        ),
        ("const ENUMS", "/** @type {Record<string, readonly any[]>} */\n", dict(ENUMS)),
        ("const RECORDS", "/** @type {Record<string, Record<string, string>>} */\n", records),
        (
            "const CHANNELS",
            "/** @type {Record<string, Record<string, Record<string, string>>>} */\n",
            channels,
        ),
        ("const ALLOWED", "/** @type {Record<string, string>} */\n", {k: v[0] for k, v in TYPES.items()}),
    ]
    return "".join(
        f"{comment}{name} = {json.dumps(value, indent=2, ensure_ascii=False)};\n"
        for name, comment, value in rows
    )


def _js_classes() -> str:
    lines = []
    for cls in _CLASSES:
        prefixes = ", ".join(prefix + ("*" if prefix.endswith(".") else "") for prefix in cls.prefixes)
        lines.append(f"/** {prefixes}: {(cls.__doc__ or '').strip()} */")
        lines.append(f"export class {cls.__name__} extends {Slm2Error.__name__} {{}}")
    table = ", ".join(cls.__name__ for cls in _CLASSES)
    lines.append("/** @type {Record<string, typeof Slm2Error>} */")
    lines.append(f"const CLASSES = {{ {table} }};")
    return "\n".join(lines) + "\n"


def _ts_fields(fields: tuple[Field, ...]) -> str:
    return "; ".join(f"{field.name}: {_ts_type(field.type)}" for field in fields)


def _ts_type(kind: str) -> str:
    if kind.endswith("?"):
        return f"{_ts_type(kind[:-1])} | null"
    if kind.endswith("*"):
        return f"{_ts_type(kind[:-1])}[]"
    return TYPES[kind][1] if kind in TYPES else _pascal(kind)


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _class_of(code: str) -> str:
    return next(cls.__name__ for cls in _CLASSES if code.startswith(cls.prefixes))


def generate_codes() -> str:
    """The table of error codes in docs/errors.md: what follows its line `_CODES_MARK`."""
    head = "\n| code | meaning | what to do |\n|---|---|---|\n"
    rows = (f"| `{code}` | {what} | {remedy} |\n" for code, (what, remedy) in CODES.items())
    return head + "".join(rows)


_CODES_MARK: Final = "<!-- generated: python -m slm2_web.protocol --write -->\n"


def main(arguments: list[str]) -> int:
    """Write or check worker/protocol.js and the end of docs/errors.md; 0 when they are up to date."""
    root = Path(__file__).parents[2]
    script, manual = root / "worker" / "protocol.js", root / "docs" / "errors.md"
    before, mark, _ = manual.read_text(encoding="utf-8").partition(_CODES_MARK)
    assert mark, manual
    generated = {script: generate_js(), manual: before + mark + generate_codes()}
    if arguments == ["--write"]:
        for path, text in generated.items():
            path.write_text(text, encoding="utf-8")
        return 0
    if arguments == ["--check"]:
        return int(
            any(not p.is_file() or p.read_text(encoding="utf-8") != text for p, text in generated.items())
        )
    print("usage: python -m slm2_web.protocol --write | --check", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
