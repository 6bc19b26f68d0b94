"""Faults to plant in the tokenizer of the parity suite's model: what is compiled is wrong in one place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from slm2_web.compile import dfa, parity_model, regex
from slm2_web.compile.tokenizer_json import compile_tokenizer_json


def compiled_tokenizer(change: Callable[[dict[str, Any]], None]) -> bytes:
    """The model's tokenizer file, of a changed tokenizer.json."""
    data = json.loads(parity_model.tokenizer_json(parity_model._added_tokens()))
    change(data)
    return compile_tokenizer_json(json.dumps(data).encode())


def exchange_two_ranks(data: dict[str, Any]) -> None:
    """Exchange the ranks of two merges whose places make a difference to one word."""
    merges = [tuple(pair) for pair in data["model"]["merges"]]
    word = "Hello"
    before = _merged(word, merges)
    first, second = next(
        (i, j)
        for i in range(len(merges))
        for j in range(i + 1, len(merges))
        if set(merges[i]) & set(merges[j]) and _merged(word, _exchanged(merges, i, j)) != before
    )
    data["model"]["merges"] = [list(pair) for pair in _exchanged(merges, first, second)]


@contextmanager
def letters_end_early(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compiled meanwhile takes one range of letters for one code point shorter."""
    sets = dict(regex.unicode_sets())
    letters = sets["\\p{L}"].copy()
    assert letters[0x0640]  # ARABIC TATWEEL, one code point of 141,028
    letters[0x0640] = letters[0x064A] = False
    sets["\\p{L}"] = letters
    with monkeypatch.context() as patch:
        patch.setattr(regex, "unicode_sets", lambda: sets)
        dfa.split_automaton.cache_clear()
        try:
            yield
        finally:
            dfa.split_automaton.cache_clear()


def _exchanged(merges: list[Any], i: int, j: int) -> list[Any]:
    changed = list(merges)
    changed[i], changed[j] = changed[j], changed[i]
    return changed


def _merged(word: str, merges: list[Any]) -> list[str]:
    """A word's tokens, by the definition: for each merge in turn, wherever it stands."""
    tokens = list(word)
    for left, right in merges:
        at = 0
        while at + 1 < len(tokens):
            if (tokens[at], tokens[at + 1]) == (left, right):
                tokens[at : at + 2] = [left + right]
            at += 1
    return tokens
