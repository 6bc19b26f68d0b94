"""Requests from stdin, answers to stdout, words for people to stderr; and what the exit status says.

A command reads one JSON object and writes one; with --jsonl, one a line. Nothing else goes to stdout. A
stream may be missing (`<&-`), full or closed by its other end: that is an error of its own, never silence.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from slm2_web import strictjson
from slm2_web.cli.requests import bad_json
from slm2_web.errors import Cancelled, Slm2Error

EXIT_DONE: Final = 0
EXIT_NO: Final = 1  # the answer is no: a replay that differs
EXIT_ERROR: Final = 2  # bad input, a damaged file, a device that fails
EXIT_INTERRUPTED: Final = 130  # Ctrl-C, SIGTERM
EXIT_BROKEN_PIPE: Final = 141  # nobody reads stdout any more

MAX_INPUT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """A line for stdout, and what it means for the exit status."""

    value: Mapping[str, Any]
    status: int = EXIT_DONE


Answerer = Callable[[Any], Answer]


class NobodyReads(Exception):
    """stdout was closed by its reader. Not an OSError: click has a way of its own with those."""


class StreamFailed(Exception):
    """stdin or stdout can't be used; the message says which, and why."""


def serve(answer: Answerer, *, jsonl: bool, plain: bool = False) -> int:
    """Read, answer, write; the exit status. With --jsonl it is the worst of the lines'.

    `plain`: input that does not begin with `{` goes to `answer` as bytes.
    """
    stdin = _stdin()
    if stdin.isatty():
        say("reading from the terminal; Ctrl-D ends the input")
    if not jsonl:
        data = stdin.read(MAX_INPUT_BYTES + 1)
        if plain and not data.lstrip().startswith(b"{"):
            if len(data) > MAX_INPUT_BYTES:
                raise bad_json("input", f"more than {MAX_INPUT_BYTES} bytes", "less")
            result = answer(data)
        else:
            result = answer(_loads(data))
        write(result.value)
        return result.status
    worst = EXIT_DONE
    for line in _lines(stdin):
        try:
            result = answer(_loads(line))
        except Cancelled:
            raise
        except Slm2Error as error:
            result = Answer({"error": error.as_json()}, EXIT_ERROR)
        write(result.value)
        worst = max(worst, result.status)
    return worst


def write(value: Mapping[str, Any]) -> None:
    """One line on stdout. Raises: NobodyReads, StreamFailed."""
    # An error may quote what no UTF-8 can hold; everything else is well-formed.
    text = json.dumps(value, ensure_ascii="error" in value, allow_nan=False, separators=(",", ":"))
    if sys.stdout is None:
        raise StreamFailed("stdout is closed")
    try:
        sys.stdout.buffer.write(text.encode("utf-8") + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise NobodyReads from None
    except OSError as error:
        raise StreamFailed(f"stdout: {error.strerror}") from None


def say(line: str) -> None:
    """A line for people, on stderr, if there is one."""
    if sys.stderr is not None:  # print would take stdout instead
        print(line, file=sys.stderr, flush=True)


def report(error: Slm2Error) -> None:
    """The error on stderr; where that fails there is nobody left to tell."""
    with suppress(OSError):
        say(json.dumps({"error": error.as_json()}))


def drop_unwritten() -> None:
    """What stdout and stderr could not take goes nowhere: Python would try once more when it ends, and make
    a failure of it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise StreamFailed("stdin is closed")
    return sys.stdin.buffer


def _lines(stdin: BinaryIO) -> Iterator[bytes]:
    """The lines of stdin; of one that is too long, just so much that it is seen to be."""
    while line := stdin.readline(MAX_INPUT_BYTES + 1):
        rest = line
        while len(line) > MAX_INPUT_BYTES and rest and not rest.endswith(b"\n"):
            rest = stdin.readline(MAX_INPUT_BYTES)
        yield line


def _loads(data: bytes) -> Any:
    try:
        return strictjson.loads(data, max_bytes=MAX_INPUT_BYTES)
    except strictjson.NotJson as error:
        raise bad_json("input", str(error), "one JSON object") from None
