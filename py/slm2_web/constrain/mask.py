"""Which tokens may follow: an automaton over bytes, asked for every token of a vocabulary at once.

A token may follow when its bytes lead from the automaton's state to one that is not dead; an eos id when the
text so far is of the language. All tokens walk together, a byte at a time, and those that die leave: most do
at their first byte. A state's answer is kept, as bits, for when the reply comes back to it.

The automaton can be finished byte by byte from every state that lives, and its bytes have tokens, so there is
always something to follow: a reply ends inside the language, or because it is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from slm2_web.constrain.automaton import DEAD, Automaton, State, TooManyStates, bad
from slm2_web.constrain.language import Expression

KEPT_MASKS: Final = 1024

T = TypeVar("T")


class HasTokens(Protocol):
    """What is needed of a tokenizer."""

    @property
    def n_tokens(self) -> int:
        """Ids 0 .. n_tokens - 1 have a token."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""

    def is_control(self, token_id: int) -> bool:
        """Whether it is an added token, which has no text."""


class Tokens:
    """The text tokens of a vocabulary, laid out for walking: made once for a model."""

    def __init__(self, tokenizer: HasTokens) -> None:
        self.n_tokens = tokenizer.n_tokens
        texts = [b"" if tokenizer.is_control(i) else tokenizer.token_bytes(i) for i in range(self.n_tokens)]
        lengths = np.array([len(text) for text in texts], np.int64)
        self.ids = np.flatnonzero(lengths).astype(np.int64)
        self.lengths = lengths
        self.offsets = np.cumsum(lengths) - lengths
        self.blob = np.frombuffer(b"".join(texts), np.uint8)
        self.single_bytes = bytes(sorted({text[0] for text in texts if len(text) == 1}))
        self._texts = texts

    def text(self, token_id: int) -> bytes:
        """The bytes of a token, none for an added one."""
        return self._texts[token_id]


class Language:
    """An expression made ready for one vocabulary. Its masks are kept from one reply to the next.

    Raises: InputError `input.response_format`.
    """

    def __init__(self, expression: Expression, tokens: Tokens) -> None:
        self._automaton = Automaton(expression, tokens.single_bytes)
        self._tokens = tokens
        self._masks: dict[State, NDArray[np.uint8]] = {}

    def reply(self, eos_ids: Collection[int]) -> Constraint:
        """The constraint at the beginning of a reply."""
        return Constraint(self, self._automaton.set_of(self._automaton.start), eos_ids)

    def can_begin_with(self, data: bytes) -> bool:
        """Whether a text of the language begins with these bytes."""
        return self._automaton.after(self._automaton.start, data) != DEAD

    def mask(self, state: State) -> NDArray[np.bool_]:
        """bool[n_tokens]: the text tokens that may follow in `state`. Raises: InputError as `after`."""
        packed = self._masks.get(state)
        if packed is None:
            packed = np.packbits(self._with_room(lambda: self._walk(self._automaton.number_of(state))))
            if len(self._masks) == KEPT_MASKS:
                del self._masks[next(iter(self._masks))]
            self._masks[state] = packed
        return np.unpackbits(packed, count=self._tokens.n_tokens).view(np.bool_)

    def after(self, state: State, token_id: int) -> State:
        """The state after a token.

        Raises: InputError `input.response_format` when that one step needs more states than are held.
        """
        automaton = self._automaton

        def step() -> State:
            number = automaton.after(automaton.number_of(state), self._tokens.text(token_id))
            return automaton.set_of(number)

        return self._with_room(step)

    def accepts(self, state: State) -> bool:
        """Whether the text so far is of the language."""
        return self._automaton.accepts(self._with_room(lambda: self._automaton.number_of(state)))

    def _with_room(self, work: Callable[[], T]) -> T:
        """What `work` gives, in an emptied table if it must be: numbers are a cache, no reply shows them."""
        try:
            return work()
        except TooManyStates:
            self._automaton.forget()
        try:
            return work()
        except TooManyStates:
            self._automaton.forget()
            raise bad("a step that leads to too many states", "a simpler language") from None

    def _walk(self, state: int) -> NDArray[np.bool_]:
        tokens = self._tokens
        allowed = np.zeros(tokens.n_tokens, np.bool_)
        ids = tokens.ids
        states = np.full(ids.size, state, np.int32)
        depth = 0
        while ids.size:
            states = self._automaton.step(states, tokens.blob[tokens.offsets[ids] + depth])
            depth += 1
            lives = states != DEAD
            ids, states = ids[lives], states[lives]
            ends = tokens.lengths[ids] == depth
            allowed[ids[ends]] = True
            ids, states = ids[~ends], states[~ends]
        return allowed


class Constraint:
    """Where one reply stands in its language; `state` is the automaton's."""

    def __init__(self, language: Language, state: State, eos_ids: Collection[int]) -> None:
        self._language = language
        self.state = state
        self._eos_ids = list(eos_ids)

    def allowed(self) -> NDArray[np.bool_]:
        """bool[n_tokens]: the ids that may follow."""
        mask = self._language.mask(self.state)
        if self.complete:
            mask[self._eos_ids] = True
        assert mask.any()
        return mask

    @property
    def complete(self) -> bool:
        """Whether the text so far is of the language."""
        return self._language.accepts(self.state)

    def take(self, token_id: int) -> None:
        """Go on by an id that was allowed."""
        if token_id not in self._eos_ids:
            self.state = self._language.after(self.state, token_id)
            assert self.state, token_id
