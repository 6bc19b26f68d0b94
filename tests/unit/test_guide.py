"""Which ids may come: the guide beside an oracle that reads all ids anew and knows a language's texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.constrain.language import Alt, literal
from slm2_web.constrain.mask import Language, Tokens
from slm2_web.errors import InputError
from slm2_web.guide import Guide
from slm2_web.reply import Markers, Pair, Reply

TEXTS = (b"a", b"b", b"c", b"\n", b"\n\n", b"\xc3", b"\xa9", b"ab", b"a\n")
OPEN, CLOSE, CALL, CALL_END, EOS, OTHER = range(len(TEXTS), len(TEXTS) + 6)
N_TOKENS = OTHER + 1
THOUGHT, CALLS = Pair(OPEN, CLOSE), Pair(CALL, CALL_END)
BOTH = Markers(THOUGHT, CALLS)
LANGUAGE = ("ab", "abab\n", "bb", "éa", "c", "é", "ca\n\na")


class Words:
    """TEXTS, then added tokens."""

    n_tokens = N_TOKENS

    def token_bytes(self, token_id: int) -> bytes:
        return TEXTS[token_id] if token_id < OPEN else b"<added>"

    def is_control(self, token_id: int) -> bool:
        return token_id >= OPEN


TOKENS = Tokens(Words())


@dataclass(frozen=True)
class Asked:
    """What a reply is asked to be."""

    prompt: tuple[int, ...] = ()
    markers: Markers = BOTH
    has_language: bool = True
    most: int | None = None

    def guide(self) -> tuple[Reply, Guide]:
        language = Language(Alt(tuple(literal(text) for text in LANGUAGE)), TOKENS)
        reply = Reply(Words(), self.markers, self.prompt)
        return reply, Guide(
            reply,
            self.markers,
            self.prompt,
            [EOS],
            N_TOKENS,
            language=language if self.has_language else None,
            tokens=TOKENS if self.has_language else None,
            max_reasoning_tokens=self.most,
        )


def oracle(asked: Asked, ids: Sequence[int]) -> set[int]:
    """What may follow `ids`, by reading them from the beginning; -1 stands for the prompt's end."""
    thinks = asked.markers.thought is not None
    line_feeds = {i for i, text in enumerate(TEXTS) if not text.strip(b"\n")}
    marks = [i for i in asked.prompt if i in (OPEN, CLOSE)]
    thinking = thinks and bool(marks) and marks[-1] == OPEN
    # The prompt closes an empty thought: nothing but line feeds stand after its last marker.
    refused = thinks and [i for i in asked.prompt if i not in line_feeds][-1:] == [CLOSE]
    has_thought, n_thought, answer, n_feeds = thinking, 0, b"", 0
    for token_id in ids:
        if thinks and token_id == OPEN and not thinking:
            thinking = has_thought = True
        elif thinks and token_id == CLOSE:
            thinking = False
        elif thinking:
            n_thought += 1
        else:
            data = TEXTS[token_id] if token_id < OPEN else b""
            if has_thought and not answer:
                n_feeds += len(data) - len(data.lstrip(b"\n"))
                data = data.lstrip(b"\n")
            answer += data
    everything = set(range(N_TOKENS))
    if thinking:
        if asked.most is not None and n_thought >= asked.most:
            return {CLOSE}
        return everything - {EOS} if asked.has_language else everything
    if not asked.has_language:
        return everything
    texts = [text.encode() for text in LANGUAGE]
    found = {i for i, data in enumerate(TEXTS) if any(t.startswith(answer + data) for t in texts)}
    found |= {EOS} if answer in texts else set()
    if thinks and not answer:
        found |= set() if has_thought or refused else {OPEN}
        found |= {i for i in line_feeds if has_thought and n_feeds + len(TEXTS[i]) <= 2}
    return found


def allowed(guide: Guide) -> set[int]:
    mask = guide.allowed()
    return set(range(N_TOKENS)) if mask is None else set(np.flatnonzero(mask).tolist())


PROMPTS: tuple[tuple[int, ...], ...] = (
    (), (0,), (OPEN,), (OPEN, 0, 3), (OPEN, 4, CLOSE, 4), (OPEN, 0, CLOSE, 0), (OPEN, CLOSE, OPEN),
)  # fmt: skip


@given(
    st.sampled_from(PROMPTS),
    st.sampled_from([BOTH, Markers(THOUGHT), Markers(None, CALLS), Markers()]),
    st.booleans(),
    st.sampled_from([None, 0, 1, 3]),
    st.data(),
)
def test_what_may_come_is_what_the_oracle_says(
    prompt: tuple[int, ...], markers: Markers, has_language: bool, most: int | None, data: st.DataObject
) -> None:
    """Any walk of ids that may come."""
    asked = Asked(prompt, markers, has_language, most)
    reply, guide = asked.guide()
    ids: list[int] = []
    for _ in range(14):
        wanted = oracle(asked, ids)
        if not has_language:
            # Calls and bytes that are no UTF-8 are the reply's business, which test_reply.py looks at.
            wanted -= {CALL, CALL_END, 5, 6}
            assert allowed(guide) >= wanted
            assert (allowed(guide) == {CLOSE}) == (wanted == {CLOSE})
        else:
            assert allowed(guide) == wanted, ids
            wanted -= {5, 6} if reply.is_thinking else set()
        token_id = data.draw(st.sampled_from(sorted(wanted)))
        ids.append(token_id)
        guide.take(token_id)
        if token_id == EOS:
            break
        reply.feed(token_id)
        assert reply.ending is None


def finish(asked: Asked, ids: Sequence[int]) -> Reply:
    reply, guide = asked.guide()
    for token_id in ids:
        assert token_id in allowed(guide), token_id
        guide.take(token_id)
        if token_id != EOS:
            reply.feed(token_id)
    reply.finish()
    return reply


def test_a_thought_then_line_feeds_then_the_language() -> None:
    reply = finish(Asked(), [OPEN, 3, 1, 3, CLOSE, 4, 0, 1, EOS])
    assert (reply.reasoning, reply.text) == (b"b", b"ab")
    reply = finish(Asked(), [OPEN, CLOSE, 7, EOS])
    assert (reply.reasoning, reply.text) == (b"", b"ab")


def test_the_language_s_own_line_feeds_are_text() -> None:
    assert finish(Asked(), [7, 0, 1, 3, EOS]).text == b"abab\n"


def test_a_line_feed_never_cuts_a_character() -> None:
    reply, guide = Asked().guide()
    for token_id in (OPEN, CLOSE, 5):
        guide.take(token_id)
        reply.feed(token_id)
    assert allowed(guide) == {6}


@pytest.mark.parametrize("most", [0, 1, 4])
def test_a_bound_counts_all_ids_of_a_thought(most: int) -> None:
    """Added tokens too, and the one that opens a thought when it comes again within one."""
    reply, guide = Asked(has_language=False, most=most).guide()
    for token_id in (OPEN, *([OPEN, OTHER, 0, CALL] * 2)[:most]):
        assert token_id in allowed(guide)
        guide.take(token_id)
        reply.feed(token_id)
    assert (reply.thought_tokens, allowed(guide)) == (most, {CLOSE})
    reply.feed(CLOSE)
    assert guide.allowed() is None


def test_a_model_that_thinks_has_its_line_feeds_from_the_template() -> None:
    language = Language(Alt((literal("a"), literal("\nb"))), TOKENS)

    def guide(markers: Markers) -> Guide:
        reply = Reply(Words(), markers, ())
        return Guide(
            reply, markers, (), [EOS], N_TOKENS, language=language, tokens=TOKENS, max_reasoning_tokens=None
        )

    assert 3 in allowed(guide(Markers()))
    with pytest.raises(InputError, match="begin with a line feed"):
        guide(BOTH)


def test_the_language_is_what_python_s_re_says_of_its_texts() -> None:
    """The oracle's premise: LANGUAGE, as it was given to the automaton."""
    language = Language(Alt(tuple(literal(text) for text in LANGUAGE)), TOKENS)
    pattern = re.compile("|".join(re.escape(text) for text in LANGUAGE).encode())
    for text in (b"ab", b"aba", b"abab\n", b"\n", b"\nb", b"\xc3", b"\xc3\xa9", b"\xc3\xa9a", b"c"):
        state = language._automaton.after(language._automaton.start, text)
        assert language.accepts(language._automaton.set_of(state)) == bool(pattern.fullmatch(text))
