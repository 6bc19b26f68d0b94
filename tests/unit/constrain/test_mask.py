"""Masks against asking each token alone, and whole replies of random tokens, with both real vocabularies."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.constrain import automaton, mask
from slm2_web.constrain.automaton import DEAD
from slm2_web.constrain.mask import Language, Tokens
from slm2_web.constrain.schema import parse_format
from slm2_web.errors import InputError
from slm2_web.tokenizer2.tokenizer import Tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "ccc"]}, "maxItems": 3},
        "grüße": {"type": "boolean"},
    },
    "required": ["name", "grüße"],
}
EOS = 2


def language(tokens: Tokens, response_format: dict[str, Any]) -> Language:
    expression = parse_format(json.dumps(response_format).encode())
    assert expression is not None
    return Language(expression, tokens)


def of_schema(tokens: Tokens, schema: Any) -> Language:
    return language(tokens, {"type": "json_schema", "json_schema": {"schema": schema}})


@pytest.fixture(scope="module")
def smollm2_tokens(smollm2_tokenizer: Tokenizer) -> Tokens:
    return Tokens(smollm2_tokenizer)


@pytest.fixture(scope="module")
def qwen3_tokens(qwen3_tokenizer: Tokenizer) -> Tokens:
    return Tokens(qwen3_tokenizer)


def reply(
    found: Language, tokens: Tokens, rng: np.random.Generator, n_tokens: int
) -> tuple[bytes, bool, list[int]]:
    """A reply of random ids that may follow, preferring short tokens: its text, whether it ended, its ids."""
    eos = int(np.flatnonzero(tokens.lengths == 0)[0])  # an added token
    constraint, ids = found.reply([eos]), list[int]()
    for _ in range(n_tokens):
        (choices,) = np.nonzero(constraint.allowed())
        weights = 1.0 / (1 + tokens.lengths[choices]) ** 3
        token_id = int(rng.choice(choices, p=weights / weights.sum()))
        if eos in choices and rng.random() < 0.5:
            token_id = eos
        constraint.take(token_id)
        ids.append(token_id)
        if token_id == eos:
            break
    return b"".join(tokens.text(i) for i in ids), ids[-1] == eos, ids


@pytest.mark.parametrize("vocabulary", ["smollm2_tokens", "qwen3_tokens"])
def test_a_mask_is_what_each_token_says(vocabulary: str, request: pytest.FixtureRequest) -> None:
    tokens: Tokens = request.getfixturevalue(vocabulary)
    found = of_schema(tokens, SCHEMA)
    states = found._automaton
    for text in (
        b"",
        b"{",
        b'{"name": "',
        b'{"name":"ab',
        b'{"name": "\xc3',
        b'{"name":"x","gr',
        b'{"name":"x",',
    ):
        state = states.after(states.start, text)
        assert state != DEAD
        allowed = found.mask(states.set_of(state))
        rng = np.random.default_rng(len(text))
        some = np.concatenate([np.flatnonzero(allowed)[:100], rng.integers(0, tokens.n_tokens, 700)])
        for token_id in some.tolist():
            data = tokens.text(token_id)
            assert allowed[token_id] == (data != b"" and states.after(state, data) != DEAD)
        assert allowed.any()


@pytest.mark.parametrize("vocabulary", ["smollm2_tokens", "qwen3_tokens"])
def test_replies_are_valid(vocabulary: str, request: pytest.FixtureRequest) -> None:
    tokens: Tokens = request.getfixturevalue(vocabulary)
    found = of_schema(tokens, SCHEMA)
    rng = np.random.default_rng(1)
    ended = 0
    for _ in range(20):
        text, complete, _ = reply(found, tokens, rng, 150)
        if complete:
            ended += 1
            value = json.loads(text)
            jsonschema.validate(value, SCHEMA)
    assert ended >= 15


def test_control_tokens_never_follow(qwen3_tokens: Tokens, qwen3_tokenizer: Tokenizer) -> None:
    found = language(qwen3_tokens, {"type": "regex", "pattern": "(?:.|\\n|\\r)*"})
    constraint = found.reply([])
    allowed = constraint.allowed()
    controls = [i for i in range(qwen3_tokenizer.n_tokens) if qwen3_tokenizer.is_control(i)]
    assert len(controls) == 26
    assert not allowed[controls].any()
    # but for the ids that end a reply
    assert found.reply(controls[:2]).allowed()[controls[:2]].all()


def test_only_an_eos_follows_what_is_finished(smollm2_tokens: Tokens) -> None:
    found = language(smollm2_tokens, {"type": "regex", "pattern": "yes|no"})
    constraint = found.reply([EOS, 0])
    taken = b""
    while not constraint.complete:
        token_id = int(np.flatnonzero(constraint.allowed())[0])
        constraint.take(token_id)
        taken += smollm2_tokens.text(token_id)
    assert taken in (b"yes", b"no")
    assert np.flatnonzero(constraint.allowed()).tolist() == [0, EOS]
    constraint.take(EOS)


def test_masks_are_kept_and_bounded(smollm2_tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask, "KEPT_MASKS", 4)
    found = of_schema(smollm2_tokens, SCHEMA)
    first = reply(found, smollm2_tokens, np.random.default_rng(3), 60)
    assert len(found._masks) == 4
    assert reply(found, smollm2_tokens, np.random.default_rng(3), 60) == first


def test_a_mask_is_the_caller_s_own(smollm2_tokens: Tokens) -> None:
    found = of_schema(smollm2_tokens, SCHEMA)
    constraint = found.reply([EOS])
    before = constraint.allowed()
    before[:] = False
    assert constraint.allowed().any()


class FewBytes:
    """A vocabulary without some bytes, as SmolLM2's: 'x' is in no token by itself."""

    texts = (b"<eos>", b"a", b"b", b"ax", b'"', b"xx")
    n_tokens = len(texts)

    def token_bytes(self, token_id: int) -> bytes:
        return self.texts[token_id]

    def is_control(self, token_id: int) -> bool:
        return token_id == 0


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_a_vocabulary_that_lacks_bytes_never_gets_stuck(seed: int) -> None:
    tokens = Tokens(FewBytes())
    found = language(tokens, {"type": "regex", "pattern": "a(x|b){2,4}|ab"})
    constraint = found.reply([0])
    rng = np.random.default_rng(seed)
    for _ in range(10):
        (choices,) = np.nonzero(constraint.allowed())
        token_id = int(rng.choice(choices))
        if token_id == 0:
            return
        constraint.take(token_id)
    raise AssertionError("it should have ended")


def test_a_full_table_shows_in_no_reply(smollm2_tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are a cache: replies are the same whatever came before, and however often it is emptied."""
    alone = [
        reply(of_schema(smollm2_tokens, SCHEMA), smollm2_tokens, np.random.default_rng(seed), 40)
        for seed in range(4)
    ]
    monkeypatch.setattr(automaton, "MAX_STATES", 400)
    found = of_schema(smollm2_tokens, SCHEMA)
    for seed in (0, 1, 2, 3, 2, 0):
        assert reply(found, smollm2_tokens, np.random.default_rng(seed), 40) == alone[seed]
        assert found._automaton.n_states <= 400


def test_a_step_that_needs_more_states_than_there_are(
    smollm2_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automaton, "MAX_STATES", 4)
    constraint = of_schema(smollm2_tokens, SCHEMA).reply([EOS])
    with pytest.raises(InputError, match="too many states") as caught:
        constraint.allowed()
    assert caught.value.code == "input.response_format"


def test_speed(qwen3_tokens: Tokens) -> None:
    """A state that is met first costs a walk over the vocabulary, next to nothing when met again."""
    found = language(qwen3_tokens, {"type": "json_object"})
    state = found._automaton.after(found._automaton.start, b'{"a": "')
    found._walk(state)
    start = time.perf_counter()
    found.mask(found._automaton.set_of(state))
    first = time.perf_counter() - start
    again = min(_timed(found, state) for _ in range(5))
    assert first < 0.5
    assert again < first / 3


def _timed(found: Language, state: int) -> float:
    some = found._automaton.set_of(state)
    start = time.perf_counter()
    found.mask(some)
    return time.perf_counter() - start
