"""Which ids may come next in a reply: a language for its answer, a bound for its thought.

    thinking, within the bound     anything; with a language, nothing that ends the reply
    thinking, the bound reached    what closes the thought
    answering, with a language     what the language allows; before the answer begins also a thought, and
                                   after a thought the line feeds that the template puts there
    else                           anything

A function of the ids so far, so a replay is guided the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slm2_web.constrain.automaton import bad
from slm2_web.constrain.mask import Language, Tokens
from slm2_web.reply import Markers, Reply

Mask = NDArray[np.bool_]

# As many as the template writes after a thought.
MAX_LINE_FEEDS: Final = 2


class Guide:
    """Asked before each id, and told of it before `reply` reads it.

    Raises: InputError `input.response_format` for a language whose texts can begin with a line feed, for a
        model that thinks: those are the template's.
    """

    def __init__(
        self,
        reply: Reply,
        markers: Markers,
        prompt_ids: Sequence[int],
        eos_ids: Collection[int],
        n_tokens: int,
        *,
        language: Language | None,
        tokens: Tokens | None,
        max_reasoning_tokens: int | None,
    ) -> None:
        assert (language is None) == (tokens is None)
        self._reply = reply
        self._thought = markers.thought
        self._eos_ids = list(eos_ids)
        self._n_tokens = n_tokens
        self._max_reasoning_tokens = max_reasoning_tokens
        self._constraint = None if language is None else language.reply(eos_ids)
        self._line_feeds: list[int] = []
        self._may_think = False
        self._n_line_feeds = 0  # bytes of them since the thought
        if language is not None and tokens is not None and self._thought is not None:
            if language.can_begin_with(b"\n"):
                raise bad("texts that begin with a line feed", "others, of a model that thinks")
            self._line_feeds = [i for i in tokens.ids.tolist() if not tokens.text(i).strip(b"\n")]
            self._sizes = [len(tokens.text(i)) for i in self._line_feeds]
            # A prompt that ends with a thought, closed before it began, asks for none.
            skipped = {*self._line_feeds}
            last = next((i for i in reversed(prompt_ids) if i not in skipped), None)
            self._may_think = last != self._thought.end

    def allowed(self) -> Mask | None:
        """bool[n_tokens]; None: any id may come."""
        reply, thought = self._reply, self._thought
        if reply.is_thinking:
            assert thought is not None
            most = self._max_reasoning_tokens
            if most is not None and reply.thought_tokens >= most:
                return self._only(thought.end)
            return None if self._constraint is None else ~self._only(*self._eos_ids)
        if self._constraint is None:
            return None
        mask = self._constraint.allowed()
        if thought is not None and not reply.has_begun:
            mask[thought.begin] |= self._may_think and reply.reasoning is None
            if reply.follows_thought:
                room = MAX_LINE_FEEDS - self._n_line_feeds
                mask[[i for i, n in zip(self._line_feeds, self._sizes, strict=True) if n <= room]] = True
        return mask

    def needed(self, banned_ids: Collection[int]) -> str:
        """What of `banned_ids` this reply can't do without, in words; "" where nothing is known to be."""
        thought = self._thought
        if self._max_reasoning_tokens is not None and thought is not None and thought.end in banned_ids:
            return f"{thought.end}, which ends a thought that max_reasoning_tokens bounds"
        if self._constraint is not None and set(self._eos_ids) <= set(banned_ids):
            return "every id that ends a reply, which response_format asks for"
        return ""

    def take(self, token_id: int) -> None:
        """The next id, before `reply` has read it."""
        reply, thought = self._reply, self._thought
        if self._constraint is None or reply.is_thinking or (thought and token_id == thought.begin):
            return
        if reply.follows_thought and token_id in self._line_feeds:
            self._n_line_feeds += self._sizes[self._line_feeds.index(token_id)]
        else:
            self._constraint.take(token_id)

    def _only(self, *ids: int) -> Mask:
        mask = np.zeros(self._n_tokens, np.bool_)
        mask[list(ids)] = True
        return mask
