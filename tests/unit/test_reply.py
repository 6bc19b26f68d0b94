"""Replies read from ids: parts by markers, calls, line feeds of the template, bytes that are no UTF-8."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slm2_web.errors import FormatError
from slm2_web.reply import Markers, Pair, Reply, parse_call
from slm2_web.strictjson import NotJson
from slm2_web.tokenizer2.runs import Trusted
from slm2_web.tokenizer2.tokenizer import Tokenizer

VECTORS = Path(__file__).parent / "vectors"
CASES = {case["id"]: case for case in json.loads((VECTORS / "reply_cases.json").read_bytes())["cases"]}
THINK, THINK_END, CALL, CALL_END, OTHER = 1, 2, 3, 4, 5
MARKERS = Markers(Pair(THINK, THINK_END), Pair(CALL, CALL_END))


class Bytes:
    """A vocabulary of markers and, from id 100, of single bytes; `texts` are tokens of more."""

    names: Mapping[int, bytes] = {
        THINK: b"<think>",
        THINK_END: b"</think>",
        CALL: b"<tool_call>",
        CALL_END: b"</tool_call>",
    }

    def __init__(self, *texts: bytes) -> None:
        self.texts = texts

    def token_bytes(self, token_id: int) -> bytes:
        if token_id >= 1000:
            return self.texts[token_id - 1000]
        return self.names[token_id] if token_id in self.names else bytes([token_id - 100])

    def is_control(self, token_id: int) -> bool:
        return token_id <= OTHER

    def control_id(self, marker: bytes) -> int:
        for token_id, name in self.names.items():
            if name == marker:
                return token_id
        raise FormatError("format.unsupported", "no such marker")


def ids_of(text: bytes) -> list[int]:
    """The markers' ids where their names stand, else a byte an id."""
    ids = []
    while text:
        for token_id, name in Bytes.names.items():
            if text.startswith(name):
                ids.append(token_id)
                text = text[len(name) :]
                break
        else:
            ids.append(100 + text[0])
            text = text[1:]
    return ids


def read(
    ids: list[int], *, markers: Markers = MARKERS, **more: Any
) -> tuple[Reply, list[tuple[bool, bytes]]]:
    """The reply, and its deltas one after the other."""
    reply = Reply(Bytes(), markers, more.pop("prompt", []), more.pop("stops", ()), **more)
    said: list[tuple[bool, bytes]] = []
    for token_id in ids:
        said += [(delta.is_reasoning, delta.data) for delta in reply.feed(token_id)]
        if reply.ending:
            break
    said += [(delta.is_reasoning, delta.data) for delta in reply.finish()]
    return reply, said


def texts(said: list[tuple[bool, bytes]]) -> tuple[bytes, bytes]:
    """(the answer, the reasoning) as the deltas said them."""
    return tuple(
        b"".join(data for is_reasoning, data in said if is_reasoning == kind) for kind in (False, True)
    )  # type: ignore[return-value]


def calls(reply: Reply) -> list[dict[str, Any]]:
    return [call.as_json() for call in reply.calls]


def test_markers_are_the_vocabulary_s() -> None:
    assert Markers.of(Bytes()) == MARKERS

    class NoEnd(Bytes):
        names: Mapping[int, bytes] = {THINK: b"<think>", CALL: b"<tool_call>", CALL_END: b"</tool_call>"}

    assert Markers.of(NoEnd()) == Markers(None, Pair(CALL, CALL_END))


@pytest.mark.parametrize(
    ("written", "reasoning", "answer"),
    [
        (b"plain\n", None, b"plain\n"),
        (b"<think>\nwhy\n\nnot\n</think>\n\nyes\n\n", b"why\n\nnot", b"yes\n\n"),
        (b"<think>\n\n</think>\n\n", b"", b""),
        (b"<think>unfinished\n", b"unfinished", b""),
        (b"<think>a</think>b<think>c</think>d", b"ac", b"bd"),
        (b"</think>\n\nx", None, b"x"),
        (b"\n\nx", None, b"\n\nx"),
    ],
)
def test_thought_and_answer(written: bytes, reasoning: bytes | None, answer: bytes) -> None:
    reply, said = read(ids_of(written))
    assert (reply.reasoning, reply.text) == (reasoning, answer)
    assert texts(said) == (answer, reasoning or b"")
    assert all(data for _, data in said)
    assert reply.detail == {}


def test_a_prompt_may_end_inside_a_thought() -> None:
    reply, _ = read(ids_of(b"so\n</think>\n\nyes"), prompt=[THINK, THINK_END, THINK, 110])
    assert (reply.reasoning, reply.text, reply.thought_tokens) == (b"so", b"yes", 3)
    reply, _ = read(ids_of(b"yes"), prompt=[THINK, THINK_END])
    assert (reply.reasoning, reply.text) == (None, b"yes")


def test_a_spelled_marker_is_text() -> None:
    spelled = [100 + byte for byte in b"<think>x</think><tool_call>{}</tool_call>"]
    reply, _ = read(spelled)
    assert reply.text == b"<think>x</think><tool_call>{}</tool_call>"
    assert (reply.reasoning, reply.calls) == (None, [])


CALL_TEXT = b'\n{"name": "add", "arguments": {"a": 1.0, "b": [1e3, "\\u00e9"]}}\n'
CALL_JSON = {"name": "add", "arguments": '{"a": 1.0, "b": [1e3, "\\u00e9"]}'}


def test_calls_keep_their_spelling_and_the_template_its_line_feeds() -> None:
    one = b"<tool_call>" + CALL_TEXT + b"</tool_call>"
    for written, answer, n in (
        (one, b"", 1),
        (b"Let me see.\n" + one + b"\n" + one, b"Let me see.", 2),
        (b"two\n\n" + one, b"two\n", 1),
        (b"before\n" + one + b"\nafter\n", b"beforeafter\n", 1),
        (b"<think>\nhm\n</think>\n\n" + one, b"", 1),
    ):
        reply, said = read(ids_of(written))
        assert calls(reply) == [CALL_JSON] * n
        assert reply.text == answer == texts(said)[0]


@pytest.mark.parametrize(
    ("inside", "error"),
    [
        (b"", "Expecting value"),
        (b"add(1, 2)", "Expecting value"),
        (b'{"name": "add"}', "allowed: an object with name and arguments"),
        (b'{"name": "add", "arguments": {}, "id": 1}', "allowed: an object with name and arguments"),
        (b'{"name": "add", "arguments": "{}"}', "arguments: found '{}'"),
        (b'{"name": "", "arguments": {}}', "name: found ''"),
        (b'{"name": 7, "arguments": {}}', "name: found 7"),
        (b'{"name": "\\ud800", "arguments": {}}', "lone surrogate"),
        (b'{"name": "a", "name": "b", "arguments": {}}', "twice"),
        (b'{"name": "a", "arguments": {"x": NaN}}', "NaN"),
        (b"[" * 5000, "nested"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_what_is_no_call_is_given_with_its_text(inside: bytes, error: str) -> None:
    reply, _ = read([CALL, *(100 + byte for byte in inside), CALL_END])
    (found,) = calls(reply)
    assert found["text"] == inside.decode("utf-8", "backslashreplace")
    assert error in found["error"]
    json.dumps(found, ensure_ascii=False).encode()


def test_a_call_that_never_ends() -> None:
    reply, _ = read([CALL, *(100 + byte for byte in CALL_TEXT)])
    assert calls(reply) == [{"text": CALL_TEXT.decode(), "error": "the reply ended inside the call"}]


def test_markers_within_a_call_or_a_thought() -> None:
    reply, _ = read([CALL, THINK, *(100 + b for b in CALL_TEXT), CALL, THINK_END, OTHER, CALL_END])
    assert calls(reply) == [CALL_JSON]
    assert not reply.is_thinking
    reply, _ = read([THINK, CALL, 110 + 100, CALL_END, THINK_END])
    assert (reply.reasoning, reply.calls) == (b"n", [])


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
              st.text(st.characters(codec="utf-8"))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    st.text(st.characters(codec="utf-8"), min_size=1),
    st.dictionaries(st.text(st.characters(codec="utf-8")), values, max_size=3),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.booleans(),
)
def test_calls_by_json_dumps(
    name: str, arguments: dict[str, Any], indent: int | None, ascii_: bool, first: bool
) -> None:
    source = json.dumps(arguments, indent=indent, ensure_ascii=ascii_)
    parts = [f'"arguments" :{source}', f'"name": {json.dumps(name, ensure_ascii=ascii_)}']
    text = " { " + " ,\n".join(parts if first else parts[::-1]) + "}\n"
    call = parse_call(text.encode("utf-8", "surrogatepass"))
    assert call.name.decode() == name
    assert call.arguments.decode() == source


@given(st.binary(max_size=30))
def test_any_bytes_are_a_call_or_refused(data: bytes) -> None:
    with suppress(NotJson):
        assert parse_call(data).name


# --- bytes that are no UTF-8 -----------------------------------------------------------------------------


def _shows(error: UnicodeError) -> tuple[str, int]:
    """Python's decoder cuts faults as Unicode's maximal subparts too; each is shown, and it goes on."""
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"\\x{byte:02X}" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("slm2-shows", _shows)
# Bytes from the edges of every class of UTF-8, so that they often make characters and often don't.
hostile = st.lists(
    st.sampled_from(
        [*b"a\x00\n\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xdf\xe0\xe1\xed\xef\xf0\xf1\xf4\xf5\xff"]
    ),
    max_size=24,
).map(bytes)


@given(st.binary(max_size=24) | hostile)
@example(b"\xed\xa0")
def test_strict_and_lenient(data: bytes) -> None:
    """Python's own decoder says what the text is, where its faults are, and what is unfinished at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("slm2-shows")
    wanted, partial = decoder.decode(data), decoder.getstate()[0]
    if partial[:1] == b"\xed" and partial[1:2] >= b"\xa0":
        # It waits for the end of a surrogate, which no byte can make a character.
        wanted, partial = wanted + decoder.decode(b"", final=True), b""
    faults: list[dict[str, Any]] = []
    at = 0
    while True:
        try:
            data[at : len(data) - len(partial)].decode("utf-8")
            break
        except UnicodeDecodeError as error:
            bad = {"offset": at + error.start, "bytes_hex": data[at + error.start : at + error.end].hex()}
            faults.append(bad)
            at += error.end

    lenient, said = read([100 + byte for byte in data], lenient=True)
    assert lenient.ending is None
    assert texts(said)[0] == lenient.text == wanted.encode()
    ends = {"partial_hex": partial.hex()} if partial else {}
    assert lenient.detail == ends | ({"invalid": faults} if faults else {})

    strict, said = read([100 + byte for byte in data])
    if faults:
        first = faults[0]["offset"]
        assert strict.ending is not None
        assert strict.ending[0] == "invalid_utf8"
        assert strict.ending[1]["offset"] == first
        assert texts(said)[0] == strict.text == data[:first]
        assert data[first:].hex().startswith(strict.ending[1]["bytes_hex"])
    else:
        assert strict.ending is None
        assert strict.text == lenient.text
        assert strict.detail == lenient.detail


def test_lenient_text_shows_the_bytes() -> None:
    reply, _ = read([100 + byte for byte in b"a\xe2\x28b\xff\xf0\x9f\x98"], lenient=True)
    assert reply.text == rb"a\xE2(b\xFF"
    assert reply.detail == {
        "partial_hex": "f09f98",
        "invalid": [{"offset": 1, "bytes_hex": "e2"}, {"offset": 4, "bytes_hex": "ff"}],
    }
    reply, _ = read([THINK, 100 + 0xFF, THINK_END], lenient=True)
    assert reply.detail == {"reasoning_invalid": [{"offset": 0, "bytes_hex": "ff"}]}


def test_a_genuine_replacement_character_passes() -> None:
    for lenient in (False, True):
        reply, _ = read(ids_of("\ufffd".encode()), lenient=lenient)
        assert (reply.text, reply.detail) == ("\ufffd".encode(), {})


@given(st.text(st.sampled_from("a\nbé\\"), max_size=30), st.data())
def test_deltas_do_not_depend_on_the_cut(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    pieces, rest = [], encoded
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:size])
        rest = rest[size:]
    reply = Reply(Bytes(*pieces), MARKERS, [], [b"bb"])
    said = b""
    for token_id in range(1000, 1000 + len(pieces)):
        said += b"".join(delta.data for delta in reply.feed(token_id))
        if reply.ending:
            break
    said += b"".join(delta.data for delta in reply.finish())
    before, found, _ = encoded.partition(b"bb")
    assert said == reply.text == before
    assert bool(reply.ending) == bool(found)


def test_a_stop_string_sees_neither_the_template_s_line_feeds_nor_past_a_marker() -> None:
    one = b"<tool_call>" + CALL_TEXT + b"</tool_call>"
    for written, stop, answer, stops in (
        (b"<think>\na\n</think>\n\nyes\n\nno", b"\n\n", b"yes", True),
        (b"yes\n" + one + b"\n\nno\n\n", b"\n\n", b"yesno", True),
        (b"a" + one + b"b", b"ab", b"ab", False),
        (b"a<think></think>b", b"ab", b"ab", False),
        (b"a\n" + one + b"\nx", b"\nx", b"ax", False),
        (b"a\n" + one, b"\nx", b"a", False),
        (b"a\n", b"\nx", b"a\n", False),
    ):
        reply, said = read(ids_of(written), stops=[stop])
        assert (reply.text, reply.ending is not None) == (answer, stops), written
        assert texts(said)[0] == answer


def test_offsets_count_the_template_s_line_feeds() -> None:
    for written, offset in ((b"\n\nab\xff", 4), (b"<think></think>\n\nab\xff", 4), (b"<think>\n\xff", 1)):
        reply, _ = read(ids_of(written))
        assert reply.ending is not None
        assert (reply.ending[0], reply.ending[1]["offset"]) == ("invalid_utf8", offset)


def test_a_line_feed_within_a_character_is_a_fault_and_not_the_template_s() -> None:
    one = [CALL, *(100 + byte for byte in CALL_TEXT), CALL_END]
    reply, _ = read([100 + 97, 100 + 0xC3, *one, 100 + 10, 100 + 0xA9])
    assert reply.ending is not None
    assert reply.ending[1] == {"offset": 1, "bytes_hex": "c30a"}
    reply, _ = read([100 + 97, 100 + 0xC3, *one, 100 + 0xA9])
    assert reply.text == "aé".encode()


@pytest.mark.parametrize("name", ["THK-01", "THK-02"])
def test_reported_thoughts(name: str, qwen3_tokenizer: Tokenizer) -> None:
    """Text chunks with a marker cut in two, as ids: there a marker is one; and the thought about the tag."""
    case = CASES[name]
    ids = case["input"].get("token_ids")
    if ids is None:
        ids = qwen3_tokenizer.encode([Trusted("".join(case["input"]["chunks"]).encode())])
    reply = Reply(qwen3_tokenizer, Markers.of(qwen3_tokenizer), [9707])
    for token_id in ids:
        reply.feed(token_id)
    reply.finish()
    assert reply.reasoning == case["expected"]["reasoning"].encode()
    assert reply.text == case["expected"]["content"].encode()
