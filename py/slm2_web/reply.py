"""The ids of a reply -> its texts: the answer, the thought before it, the calls of tools.

Theory of operation
-------------------
A reply is read id by id, and everything here is a function of the ids alone. Added tokens have no text; four
of them, where the vocabulary has them, move the machine, and nothing that is spelled like them does:

    answer --<think>--> reasoning --</think>--> answer
    answer --<tool_call>--> call --</tool_call>--> answer

It begins where the prompt leaves it: inside a thought if the last of the two ids in the prompt is `<think>`.
Each part has a stream of its own: whole characters (utf8.py), then, for the answer, stop strings, none of
which reaches over a marker. The line feeds around a thought and a call are the template's, which writes them
anew: a thought has none at its ends, an answer none after either, which no stop string sees, and not the one
before a call. So one line feed at the end of an answer waits for what comes.

Bytes that can never become UTF-8 end the reply. A caller that wants to read on asks for `lenient`: they are
then written as `\\xE2` and the like, and reported; they never become U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from slm2_web.errors import FormatError
from slm2_web.stopstrings import StopStrings
from slm2_web.strictjson import NotJson, loads, show
from slm2_web.template2.spec import ToolCall
from slm2_web.tokenizer2.utf8 import InvalidUtf8, Utf8Stream

MAX_CALL_BYTES: Final = 1 << 20

Ending = tuple[Literal["stop_string", "invalid_utf8"], Mapping[str, Any]]


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; of an added token, its marker's text."""

    def is_control(self, token_id: int) -> bool:
        """Whether it is an added token."""


class HasControlIds(Protocol):
    """What `Markers.of` needs of a tokenizer."""

    def control_id(self, marker: bytes) -> int:
        """The id of the added token with this text. Raises: FormatError."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The ids that open and close a part."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Markers:
    """The parts that a vocabulary has added tokens for."""

    thought: Pair | None = None
    call: Pair | None = None

    @classmethod
    def of(cls, tokenizer: HasControlIds) -> Markers:
        """Those of a vocabulary that has both ends as added tokens."""
        return cls(
            _pair(tokenizer, b"<think>", b"</think>"), _pair(tokenizer, b"<tool_call>", b"</tool_call>")
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """The answer, or the reasoning, goes on: whole UTF-8 characters, never empty."""

    data: bytes
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """What stood between the markers of a call: `text`, and `call` when that is one, else `error`."""

    text: bytes
    call: ToolCall | None
    error: str | None

    def as_json(self) -> dict[str, Any]:
        """`{"name", "arguments"}`, both strings; or `{"text", "error"}`, with `\\x…` for what is no UTF-8."""
        if self.call is not None:
            return {
                "name": self.call.name.decode("utf-8"),
                "arguments": self.call.arguments.decode("utf-8"),
            }
        return {"text": self.text.decode("utf-8", "backslashreplace"), "error": self.error}


class Reply:
    """Reads the ids of one reply. `ending`: what in the texts ends it, once something does."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        markers: Markers,
        prompt_ids: Sequence[int],
        stops: Sequence[bytes] = (),
        *,
        lenient: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._markers = markers
        self._lenient = lenient
        self.is_thinking = _opens_thought(markers.thought, prompt_ids)
        self.thought_tokens = 0
        self._in_call = False
        self._thought = _Text((), lenient, skips=True) if self.is_thinking else None
        self._answer = _Text(stops, lenient)
        self._call = bytearray()
        self._released_text = bytearray()
        self._released_reasoning = bytearray()
        # A line feed that waits: before a call it is the template's.
        self._held = b""
        self.calls: list[Call] = []
        self.ending: Ending | None = None

    @property
    def text(self) -> bytes:
        """The answer so far: what its deltas said."""
        return bytes(self._released_text)

    @property
    def reasoning(self) -> bytes | None:
        """The thought so far; None: there was none."""
        return None if self._thought is None else bytes(self._released_reasoning)

    @property
    def has_begun(self) -> bool:
        """Whether the answer has a byte that is not the template's, or there was a call."""
        return self._answer.has_begun or bool(self.calls) or self._in_call

    @property
    def follows_thought(self) -> bool:
        """Whether a thought has ended and nothing has come after it."""
        return self._thought is not None and not self.is_thinking and not self.has_begun

    @property
    def detail(self) -> dict[str, Any]:
        """What there is to tell of the texts' ends and of what was no UTF-8."""
        found: dict[str, Any] = {}
        for name, text in (("", self._answer), ("reasoning_", self._thought)):
            if text is not None and text.partial:
                found[f"{name}partial_hex"] = text.partial.hex()
            if text is not None and text.invalid:
                found[f"{name}invalid"] = list(text.invalid)
        return found

    def feed(self, token_id: int) -> list[Delta]:
        """What the id adds to the texts; `ending` may be set then. Not for an id that ends the reply."""
        assert self.ending is None
        thought, call = self._markers.thought, self._markers.call
        if self.is_thinking and thought and token_id != thought.end:
            self.thought_tokens += 1
        if thought and token_id in (thought.begin, thought.end) and not self._in_call:
            return self._move_thought(token_id == thought.begin)
        if call and token_id in (call.begin, call.end) and not self.is_thinking:
            return self._move_call(token_id == call.begin)
        if self._vocabulary.is_control(token_id):
            return []
        data = self._vocabulary.token_bytes(token_id)
        if self._in_call:
            self._call += data
            return []
        if self.is_thinking:
            assert self._thought is not None
            released, self.ending = self._thought.feed(data)
            if self.ending is not None:
                self.ending = (self.ending[0], {**self.ending[1], "part": "reasoning"})
            return self._release_reasoning(released)
        released, self.ending = self._answer.feed(data)
        return self._release_text(released)

    def finish(self) -> list[Delta]:
        """What was held for something that did not come. Nothing may be fed after it."""
        if self._in_call:
            self._end_call("the reply ended inside the call")
        rest = b"" if self.ending and self.ending[0] == "stop_string" else self._answer.finish()
        deltas = self._release_text(rest)
        held, self._held = self._held, b""
        self._released_text += held
        return deltas + ([Delta(held)] if held else [])

    def _move_thought(self, begins: bool) -> list[Delta]:
        self.is_thinking = begins
        if begins and self._thought is None:
            self._thought = _Text((), self._lenient, skips=True)
        deltas = self._release_text(self._answer.finish())
        if not self._released_text:
            self._answer.skip_line_feeds()
            self._held = b""
        return deltas

    def _move_call(self, begins: bool) -> list[Delta]:
        deltas: list[Delta] = []
        if begins and not self._in_call:
            self._in_call = True
            deltas = self._release_text(self._answer.finish())
            self._held = b""
        elif not begins and self._in_call:
            self._end_call(None)
            self._answer.skip_line_feeds()
        return deltas

    def _end_call(self, error: str | None) -> None:
        text = bytes(self._call)
        self._call.clear()
        self._in_call = False
        call: ToolCall | None = None
        if error is None:
            try:
                call = parse_call(text)
            except NotJson as refusal:
                error = str(refusal)
        self.calls.append(Call(text, call, error))

    def _release_text(self, data: bytes) -> list[Delta]:
        data = self._held + data
        self._held = b"\n" if self._markers.call and data.endswith(b"\n") else b""
        data = data[: len(data) - len(self._held)]
        self._released_text += data
        return [Delta(data)] if data else []

    def _release_reasoning(self, data: bytes) -> list[Delta]:
        assert self._thought is not None
        data = self._thought.held_line_feeds + data
        kept = data.rstrip(b"\n")
        self._thought.held_line_feeds = data[len(kept) :]
        self._released_reasoning += kept
        return [Delta(kept, True)] if kept else []


def parse_call(text: bytes) -> ToolCall:
    """The call that a model wrote: one JSON object with a name and arguments, which stay as they are spelled.

    Raises: NotJson with what was found.
    """
    value = loads(text, max_bytes=MAX_CALL_BYTES)
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        found = sorted(value) if isinstance(value, dict) else value
        raise NotJson(f"found {show(found)}; allowed: an object with name and arguments")
    if not isinstance(value["name"], str) or not value["name"]:
        raise NotJson(f"name: found {show(value['name'])}; allowed: a string")
    if not isinstance(value["arguments"], dict):
        raise NotJson(f"arguments: found {show(value['arguments'])}; allowed: an object")
    try:
        name = value["name"].encode("utf-8")
    except UnicodeEncodeError:
        raise NotJson("name: found a lone surrogate; allowed: characters") from None
    return ToolCall(name, _member(text.decode("utf-8"), "arguments").encode("utf-8"))


def _member(text: str, key: str) -> str:
    """The source text of a member of the object in `text`, which is JSON."""
    decoder = json.JSONDecoder()
    at = text.index("{") + 1
    while True:
        name, at = decoder.raw_decode(text, _past(text, at, " \n\r\t,"))
        begin = _past(text, at, " \n\r\t:")
        _, at = decoder.raw_decode(text, begin)
        if name == key:
            return text[begin:at]


def _past(text: str, at: int, some: str) -> int:
    while text[at] in some:
        at += 1
    return at


def _pair(tokenizer: HasControlIds, begin: bytes, end: bytes) -> Pair | None:
    try:
        return Pair(tokenizer.control_id(begin), tokenizer.control_id(end))
    except FormatError:
        return None


def _opens_thought(thought: Pair | None, prompt_ids: Sequence[int]) -> bool:
    """Whether the prompt ends inside a thought."""
    if thought is None:
        return False
    both = (thought.begin, thought.end)
    return next((i for i in reversed(prompt_ids) if i in both), thought.end) == thought.begin


class _Text:
    """From the bytes of tokens to the text that is certain."""

    def __init__(self, stops: Sequence[bytes], lenient: bool, *, skips: bool = False) -> None:
        self.has_begun = False
        self.partial = b""
        self.held_line_feeds = b""
        self.invalid: list[dict[str, Any]] = []
        self._lenient = lenient
        self._skips = skips
        self._characters = Utf8Stream()
        self._base = 0  # bytes before those of `_characters`
        self._stops = StopStrings(stops)

    def skip_line_feeds(self) -> None:
        """Those that come next are the template's, unless a character is unfinished."""
        self._skips = True

    def feed(self, data: bytes) -> tuple[bytes, Ending | None]:
        """(text to release now, the ending that `data` brings or None)."""
        if self._skips and not self.partial:
            text = data.lstrip(b"\n")
            self._base += len(data) - len(text)
            data = text
        self._skips &= not data
        self.has_begun |= bool(data)
        invalid: Ending | None = None
        whole = b""
        while data:
            unfinished = self._characters.finish()
            try:
                whole += self._characters.feed(data)
                break
            except InvalidUtf8 as error:
                whole += error.data
                rest = (unfinished + data)[len(error.data) :]
                offset = self._base + error.offset
                if not self._lenient:
                    # What came before the fault may still hold a stop string, which then ends the text.
                    invalid = ("invalid_utf8", {"offset": offset, "bytes_hex": rest.hex()})
                    break
                # The bad bytes: the beginning of a character that can't go on, or one that none begins with.
                size = _bad_bytes(rest)
                bad, data = rest[:size], rest[size:]
                self.invalid.append({"offset": offset, "bytes_hex": bad.hex()})
                whole += "".join(f"\\x{byte:02X}" for byte in bad).encode()
                self._characters = Utf8Stream()
                self._base = offset + size
        self.partial = b"" if invalid else self._characters.finish()
        released, stop = self._stops.feed(whole)
        if stop is not None:
            self.partial = b""
            return released, ("stop_string", {"stop": stop.decode("utf-8")})
        return released, invalid

    def finish(self) -> bytes:
        """The text that was held for a stop string which did not come; none reaches over this place."""
        return self._stops.finish()


def _bad_bytes(data: bytes) -> int:
    """How many bytes at the start of `data`, which is no UTF-8 there, stand for one fault: Unicode's maximal
    subpart. Source: The Unicode Standard 16.0, section 3.9, U+FFFD substitution of maximal subparts."""
    stream = Utf8Stream()
    for at in range(len(data)):
        try:
            stream.feed(data[at : at + 1])
        except InvalidUtf8:
            return max(at, 1)
    return len(data)
