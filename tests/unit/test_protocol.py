"""The protocol: both sides' checks agree, the generated copy is current, the documentation is complete."""

from __future__ import annotations

import base64
import copy
import json
import math
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from slm2_web.errors import CODES, InputError, ProtocolError
from slm2_web.protocol import (
    CONTROL_BYTES,
    CONTROL_WORDS,
    ENUMS,
    LIMITS,
    MESSAGES,
    RANGES,
    REASONS,
    STAGES,
    Channel,
    check,
    fields_of,
    generate_codes,
    generate_js,
    main,
)
from slm2_web.request import check_budget
from slm2_web.sampling2.params import RULES, parse_params
from slm2_web.session import Reason

ROOT = Path(__file__).parents[2]
JS = ROOT / "worker" / "protocol.js"

# Values that JSON doesn't have stand in the cases as {"$kind": size}; each side makes its own of them.
GOOD: dict[Channel, list[dict[str, Any]]] = {
    "page_to_worker": [
        {
            "type": "init",
            "version": 5,
            "site": "0123",
            "root": "https://example.org/",
            "executor": "auto",
            "max_seq_len": None,
            "control": None,
            "port": {"$port": 0},
        },
        {
            "type": "init",
            "version": 5,
            "site": "",
            "root": "",
            "executor": "webgpu",
            "max_seq_len": 512,
            "control": {"$shared": CONTROL_BYTES},
            "port": {"$port": 0},
        },
        {
            "type": "chat",
            "id": 1,
            "messages": [
                {"role": "user", "content": {"$bytes": 3}, "reasoning_content": None, "tool_calls": None},
                {
                    "role": "assistant",
                    "content": {"$bytes": 0},
                    "reasoning_content": {"$bytes": 4},
                    "tool_calls": {"$bytes": 2},
                },
            ],
            "tools": {"$bytes": 2},
            "enable_thinking": True,
            "preserve_thinking": False,
            "local_state": {"$bytes": 1},
            "evidence": [{"id": {"$bytes": 1}, "relevance": -0.5, "content": {"$bytes": 9}}],
            "budget_tokens": 400,
            "continue_ids": {"$words": 3},
            "params": {"temperature": 0.5, "seed": "1", "stop": [{"$bytes": 2}], "top_k": 4},
        },
        {"type": "parity", "id": 2, "stages": ["tokenizer", "chat"], "size": "reduced"},
        {"type": "parity_record", "id": 3, "stage": "forward", "index": 0, "size": "full"},
        {"type": "parity_output", "id": 4, "stage": "stream", "input": {"$bytes": 2}},
        {"type": "cancel", "id": LIMITS["request_id"]},
        {"type": "dispose"},
    ],
    "page_to_loader": [
        {
            "type": "load",
            "version": 5,
            "site": "0123",
            "root": "r",
            "model": "m",
            "shared": True,
            "port": {"$port": 0},
        }
    ],
    "worker_to_loader": [{"type": "want"}],
    "loader_to_worker": [
        {
            "type": "model",
            "manifest": {"$bytes": 1},
            "tokenizer": {"$view": 0},
            "tokenizer_memory": None,
            "weights": {"$view": 4},
            "memory": None,
            "stats": {},
        },
    ],
    "loader_to_page": [
        {"type": "progress", "stage": "weights", "done": 1, "total": 2, "unit": "bytes", "cached": 0},
        {"type": "warning", "code": "asset.not_stored", "message": "m", "detail": {"file": "f"}},
        {"type": "error", "id": None, "code": "format.model_file", "message": "m", "detail": {}},
    ],
    "worker_to_page": [
        {"type": "ready", "info": {"executor": "webgpu"}},
        {"type": "thread", "port": {"$port": 0}},
        {"type": "context", "id": 1, "ledger": {}},
        {"type": "prefill", "id": 1, "done": 0, "total": 37},
        {
            "type": "delta",
            "id": 1,
            "part": "reasoning",
            "data": {"$bytes": 4},
            "n_tokens": 2,
        },
        {
            "type": "done",
            "id": 1,
            "reason": "stop_token",
            "transcript": {"$bytes": 9},
            "stats": {},
            "more": {},
        },
        {"type": "parity_progress", "id": 2, "stage": "tokenizer", "done": 3, "total": 120},
        {
            "type": "parity_stage",
            "id": 2,
            "stage": "tokenizer",
            "vectors": 120,
            "digest": "ab",
            "marks": "cd",
            "seconds": 1.5,
        },
        {"type": "parity_done", "id": 2, "info": {"size": "quick"}},
        {"type": "parity_vector", "id": 3, "record": {"$bytes": 8}},
        {"type": "error", "id": 3, "code": "input.budget", "message": "m", "detail": {}},
    ],
    "tab_to_tabs": [
        {"type": "hello", "version": 5, "site": "s", "host": None, "tab": "t", "id": "i"},
        {"type": "hello", "version": 5, "site": "s", "host": "h", "tab": "t", "id": "i"},
        {"type": "lead", "version": 5, "site": "s", "host": "h"},
    ],
    "tab_to_host": [
        {
            "type": "chat",
            "id": 1,
            "messages": [
                {"role": "user", "content": {"$bytes": 3}, "reasoning_content": None, "tool_calls": None}
            ],
            "tools": None,
            "enable_thinking": None,
            "preserve_thinking": False,
            "local_state": None,
            "evidence": [{"id": {"$bytes": 1}, "relevance": 1, "content": {"$bytes": 2}}],
            "budget_tokens": None,
            "continue_ids": {"$words": 2},
            "params": {},
        },
        {"type": "cancel", "id": 1},
        {"type": "leave"},
    ],
    "host_to_tab": [
        {"type": "welcome"},
        {"type": "queued", "id": 1, "place": 0},
        {"type": "progress", "stage": "weights", "done": 1, "total": 2, "unit": "bytes", "cached": 0},
        {"type": "warning", "code": "asset.not_stored", "message": "m", "detail": {}},
        {"type": "ready", "info": {}},
        {"type": "context", "id": 1, "ledger": {}},
        {"type": "prefill", "id": 1, "done": 0, "total": 37},
        {
            "type": "delta",
            "id": 1,
            "part": "text",
            "data": {"$bytes": 4},
            "n_tokens": 2,
        },
        {
            "type": "done",
            "id": 1,
            "reason": "max_tokens",
            "transcript": {"$bytes": 9},
            "stats": {},
            "more": {},
        },
        {"type": "error", "id": 3, "code": "cancelled", "message": "m", "detail": {}},
    ],
    "page_to_opinion": [
        {"type": "opine", "version": 1, "site": "s", "root": "r"},
        {"type": "split", "id": 1, "pattern": "p", "data": {"$bytes": 3}},
    ],
    "opinion_to_page": [
        {"type": "opines"},
        {"type": "pieces", "id": 1, "answer": "[]"},
        {"type": "error", "id": None, "code": "asset.unreachable", "message": "m", "detail": {}},
    ],
    "page_to_tokenizer": [
        {"type": "open", "version": 1, "site": "s", "root": "r", "model": "m"},
        {"type": "encode", "id": 1, "data": {"$bytes": 3}, "trusted": False},
    ],
    "tokenizer_to_page": [
        {"type": "opened", "info": {"title": "m"}},
        {
            "type": "tokens",
            "id": 1,
            "ids": {"$words": 2},
            "ends": {"$words": 0},
            "data": {"$bytes": 7},
            "n_bytes": 7,
            "encode_ms": 0.5,
        },
        {"type": "warning", "code": "asset.not_stored", "message": "m", "detail": {}},
        {"type": "error", "id": None, "code": "input.model", "message": "m", "detail": {}},
    ],
}

# What fields are replaced with: something wrong for nearly every type.
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    1 << 31,
    1 << 53,
    "",
    "webgpu",
    "no such thing",
    "ü" * 50,
    [],
    [1],
    {},
    {"role": "user"},
    {"$bytes": 5},
    {"$words": 1},
    [{"$bytes": 1}],
    {"$nan": 0},
]


def _mutants(count: int) -> Iterator[tuple[Channel, Any]]:
    """Good messages, each with one thing wrong or odd."""
    rng = random.Random(2)
    places: list[tuple[Channel, dict[str, Any]]] = [(c, m) for c, ms in GOOD.items() for m in ms]
    for _ in range(count):
        channel, message = rng.choice(places)
        mutant = copy.deepcopy(message)
        target = mutant
        if "messages" in mutant and rng.random() < 0.7:
            turn = rng.choice(mutant["messages"])
            target = rng.choice([turn, *mutant["evidence"]])
        key = rng.choice([*target, "extra"])
        if rng.random() < 0.2:
            target.pop(key, None)
        else:
            target[key] = rng.choice(ODD)
        yield (rng.choice(get_args(Channel)) if rng.random() < 0.1 else channel), mutant


class _Port:
    def postMessage(self, message: object) -> None:
        raise AssertionError


def _decode(value: Any) -> Any:
    """A case's value with Python's stand-ins for what only JavaScript has."""
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    for kind, make in _MAKERS.items():
        if kind in value:
            return make(value[kind])
    return {key: _decode(item) for key, item in value.items()}


_MAKERS: dict[str, Any] = {
    "$bytes": bytes,
    "$view": bytearray,
    "$shared": bytearray,
    "$words": lambda n: memoryview(bytes(4 * n)).cast("I"),
    "$port": lambda _: _Port(),
    "$nan": lambda _: float("nan"),
}

_RUN_JS = """
const text = await new Promise((resolve) => {
  let all = ""; process.stdin.on("data", (d) => (all += d)); process.stdin.on("end", () => resolve(all)); });
const { source, cases } = JSON.parse(text);
const { check, errorFrom, ERRORS } = await import("data:text/javascript;base64," + source);
const makers = { $bytes: (n) => new Uint8Array(n), $view: (n) => new Uint8Array(n),
  $shared: (n) => new SharedArrayBuffer(n), $words: (n) => new Uint32Array(n),
  $port: () => new MessageChannel().port1, $nan: () => NaN };
const decode = (v) => {
  if (Array.isArray(v)) return v.map(decode);
  if (typeof v !== "object" || v === null) return v;
  for (const [kind, make] of Object.entries(makers)) if (kind in v) return make(v[kind]);
  return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, decode(x)]));
};
const answers = cases.map(([channel, message]) => {
  const made = decode(message);
  try { return check(channel, made) === made ? "ok" : "another object"; }
  catch (e) { return [e.constructor.name, e.code, e.message, e.detail]; }
});
const classes = Object.keys(ERRORS).map((code) => [code, errorFrom(code, "m", { a: 1 }).constructor.name]);
const answer = JSON.stringify({ answers, classes: Object.fromEntries(classes) });
process.stdout.write(answer, () => process.exit(0)); // the ports would keep it alive
"""


def _run_js(cases: list[tuple[Channel, Any]]) -> Any:
    node = shutil.which("node")
    assert node, "node is needed: it runs the page's half of the protocol"
    request = {"source": base64.b64encode(JS.read_bytes()).decode(), "cases": cases}
    done = subprocess.run(
        [node, "--input-type=module", "-e", _RUN_JS],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def _run_python(channel: Channel, message: Any) -> Any:
    made = _decode(message)
    try:
        return "ok" if check(channel, made) is made else "another object"
    except ProtocolError as error:
        return [type(error).__name__, error.code, error.message, error.detail]


def test_generated_files_are_current() -> None:
    again = "run python -m slm2_web.protocol --write"
    assert JS.read_text(encoding="utf-8") == generate_js(), again
    assert (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").endswith(generate_codes()), again
    assert main(["--check"]) == 0


def test_both_sides_take_every_message() -> None:
    cases = [(channel, message) for channel, messages in GOOD.items() for message in messages]
    assert {(c, m["type"]) for c, m in cases} >= {
        (c, kind)
        for c in get_args(Channel)
        for kind in fields_of(c)
        if (c, kind) != ("worker_to_page", "progress")
    }
    assert [_run_python(*case) for case in cases] == ["ok"] * len(cases)
    assert _run_js(cases)["answers"] == ["ok"] * len(cases)


def test_both_sides_refuse_alike() -> None:
    cases: list[tuple[Channel, Any]] = [*_mutants(2500), *(("page_to_worker", odd) for odd in ODD)]
    expected = [_run_python(*case) for case in cases]
    refused = sum(answer != "ok" for answer in expected)
    assert refused > 1500, refused
    for case, python, js in zip(cases, expected, _run_js(cases)["answers"], strict=True):
        assert python == js, case


def test_refusal_names_field_found_and_allowed() -> None:
    with pytest.raises(ProtocolError) as caught:
        check("page_to_worker", {"type": "cancel", "id": 0})
    assert caught.value.code == "protocol.message"
    limit = LIMITS["request_id"]
    assert caught.value.detail == {
        "field": "page_to_worker.cancel.id",
        "found": "0",
        "allowed": f"an integer from 1 to {limit}",
    }


def test_every_code_has_its_class_on_the_page() -> None:
    classes = _run_js([])["classes"]
    assert list(classes) == list(CODES)
    prefixes = {
        "input": "InputError",
        "template": "InputError",
        "format": "FormatError",
        "asset": "AssetError",
        "device": "DeviceError",
        "browser": "BrowserError",
        "protocol": "ProtocolError",
        "cancelled": "Cancelled",
    }
    assert classes == {code: prefixes[code.split(".")[0]] for code in CODES}


def test_reasons_are_the_session_s() -> None:
    assert get_args(Reason) == REASONS


def _accepted(name: str, value: float) -> bool:
    try:
        if name == "budget_tokens":
            check_budget(value, max_seq_len=1 << 21)
        else:
            parse_params({name: value}, {})
    except InputError:
        return False
    return True


@pytest.mark.parametrize("name", RANGES)
def test_ranges_are_the_stages_own(name: str) -> None:
    """At both bounds, at the numbers next to them, and at 0."""
    limits = RANGES[name]
    low: float = int(limits.low) if limits.whole else float(limits.low)
    high: float = int(limits.high) if limits.whole else float(limits.high)
    below = low - 1 if limits.whole else math.nextafter(low, -math.inf)
    over = high + 1 if limits.whole else math.nextafter(high, math.inf)
    assert _accepted(name, low) == (not limits.above)
    assert not limits.above or _accepted(name, math.nextafter(low, math.inf))
    assert _accepted(name, high)
    assert not _accepted(name, below)
    assert not _accepted(name, over)
    assert _accepted(name, 0) == (limits.zero or low < 0 or (low == 0 and not limits.above))
    assert _accepted(name, 1.5) == (not limits.whole and high > 1)


def test_every_number_has_its_range() -> None:
    others = {"stop", "banned_ids", "profile", "response_format", "invalid_utf8"}
    assert {*RANGES} | others == {*RULES, "budget_tokens"}


def test_control_words_fill_the_array() -> None:
    assert sorted(index for index, _ in CONTROL_WORDS.values()) == list(range(CONTROL_BYTES // 4))


def test_documentation_names_everything() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    names = {message.type for message in MESSAGES} | {f.name for m in MESSAGES for f in m.fields}
    missing = [
        name
        for name in [*sorted(names), *STAGES, *REASONS, *ENUMS["executor"], *ENUMS["unit"], *CONTROL_WORDS]
        if f"`{name}`" not in text
    ]
    assert not missing
