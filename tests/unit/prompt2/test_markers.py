"""The markers: nothing that stands in them can leave them, and nothing is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_oracles import Read, contents, hostile, read_message, unescape
from slm2_web.prompt2.markers import (
    HISTORY_TRUNCATED,
    NAMES,
    escape,
    evidence_block,
    local_state_block,
    user_content,
)
from slm2_web.tokenizer2.runs import Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer


def text_of(content: bytes | tuple[Trusted | Untrusted, ...]) -> bytes:
    return content if isinstance(content, bytes) else b"".join(run.data for run in content)


def test_the_text_of_a_message() -> None:
    blocks = (*HISTORY_TRUNCATED, *local_state_block(b"12:00"), *evidence_block("a", b"Cats purr."))
    assert text_of(user_content(blocks, b"Why?")) == (
        b"<history_truncated>\n<local_state>\n12:00\n</local_state>\n"
        b'<evidence id="a">\nCats purr.\n</evidence>\n<user_message>\nWhy?'
    )


@pytest.mark.parametrize(
    ("content", "escaped"),
    [
        (b"</evidence>", b"<\\/evidence>"),
        (b"<\\evidence", b"<\\\\evidence"),
        (b"< \n/ Local_State", b"<\\ \n/ Local_State"),
        (b"<<user_message>", b"<<\\user_message>"),
        (b"<history_truncated", b"<\\history_truncated"),
        (b"<evidenc e>, 1 < 2, <b>, \\<", b"<evidenc e>, 1 < 2, <b>, \\<"),
    ],
)
def test_the_escape(content: bytes, escaped: bytes) -> None:
    assert escape(content) == escaped
    assert unescape(escaped) == content


@settings(max_examples=300)
@given(contents)
def test_the_escape_is_reversible_and_leaves_no_marker(content: bytes) -> None:
    escaped = escape(content)
    assert unescape(escaped) == content
    for name in NAMES:
        for marker in (f"<{name}", f"</{name}"):
            assert marker.encode() not in escaped


@settings(max_examples=300)
@given(
    st.booleans(),
    st.none() | contents,
    st.lists(st.tuples(hostile.filter(bool), contents), max_size=3),
    contents,
)
def test_no_part_breaks_out(
    truncated: bool, state: bytes | None, evidence: list[tuple[str, bytes]], words: bytes
) -> None:
    blocks: tuple[Trusted | Untrusted, ...] = HISTORY_TRUNCATED if truncated else ()
    if state is not None:
        blocks += local_state_block(state)
    for name, content in evidence:
        blocks += evidence_block(name, content)
    message = user_content(blocks, words)
    assert read_message(text_of(message)) == Read(truncated, state, tuple(evidence), words)
    # What was said by others is untrusted, to the last byte: the trusted text is the same whatever they say.
    trusted = b"".join(run.data for run in message if isinstance(run, Trusted)) if blocks else b""
    plain: tuple[Trusted | Untrusted, ...] = HISTORY_TRUNCATED if truncated else ()
    if state is not None:
        plain += local_state_block(b"")
    for _ in evidence:
        plain += evidence_block("x", b"")
    expected = user_content(plain, b"")
    assert trusted == b"".join(run.data for run in expected if isinstance(run, Trusted)) if blocks else True


def test_words_are_never_rewritten() -> None:
    assert user_content((), b"Is <evidence> a tag?") == b"Is <evidence> a tag?"
    for words in (b"<evidence id=", b"</user_message>\n", b"<\\local_state", b"< History_Truncated"):
        message = user_content((), words)
        assert message == (Trusted(b"<user_message>\n"), Untrusted(words))


@settings(max_examples=300)
@given(hostile.filter(bool))
def test_an_id_stays_in_its_quotes(name: str) -> None:
    first, quoted, last = evidence_block(name, b"")[:3]
    assert (first, last) == (Trusted(b'<evidence id="'), Trusted(b'">\n'))
    assert isinstance(quoted, Untrusted)
    assert not set(b"<>\n\r") & set(quoted.data)
    assert json.loads(b'"' + quoted.data + b'"') == name


@pytest.mark.parametrize("character", ["\u0338", "\u0301", "\u0345", "\u3099", "\u200d"])
def test_content_does_not_compose_with_a_marker(qwen3_tokenizer: Tokenizer, character: str) -> None:
    """U+0338 after `>` is another character under NFC; a line break keeps them apart."""
    message = user_content(evidence_block("a", character.encode()), character.encode())
    ids = qwen3_tokenizer.encode([Trusted(b"user\n"), *message])
    read = read_message(qwen3_tokenizer.decode(ids).removeprefix(b"user\n"))
    assert read == Read(False, None, (("a", character.encode()),), character.encode())
    assert qwen3_tokenizer.encode([Trusted(b">"), Untrusted(b"\xcc\xb8")]) == qwen3_tokenizer.encode(
        [Untrusted("\u226f".encode())]
    )
