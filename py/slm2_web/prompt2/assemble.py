"""Messages -> the ids of a prompt that leaves room for the reply, or a refusal with the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from slm2_web.errors import InputError
from slm2_web.template2.machine import Template
from slm2_web.template2.spec import Message
from slm2_web.tokenizer2.tokenizer import Tokenizer


def assemble(
    template: Template,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    max_seq_len: int,
    reserve_tokens: int,
) -> list[int]:
    """The prompt's ids, at most `max_seq_len - reserve_tokens` of them. No message is shortened or dropped.

    Raises: InputError `input.budget` with `prompt_tokens`, `max_seq_len` and `reserve_tokens`; `template.*`
    and `input.*` of the stages before.
    """
    assert reserve_tokens >= 0
    ids = tokenizer.encode(template.render(messages))
    if len(ids) > max_seq_len - reserve_tokens:
        raise InputError(
            "input.budget",
            f"the prompt has {len(ids)} tokens; allowed: {max_seq_len - reserve_tokens}"
            f" ({max_seq_len} of context less {reserve_tokens} for the reply)",
            {"prompt_tokens": len(ids), "max_seq_len": max_seq_len, "reserve_tokens": reserve_tokens},
        )
    return ids
