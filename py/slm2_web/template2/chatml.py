"""ChatML: each turn is `<|im_start|>ROLE\\nCONTENT<|im_end|>\\n`.

The grammar is the one the models are trained on: at most one system message, first; then user and assistant
in turn, the user first. Where the publishers' Jinja templates accept more, docs/template.md lists it.

Source: the `chat_template` of SmolLM2-135M-Instruct.
"""

from __future__ import annotations

from slm2_web.template2.spec import (
    CONTENT,
    DEFAULT_SYSTEM,
    END,
    INIT,
    REPLY,
    STOP,
    Family,
    Item,
    Marker,
    Step,
    Words,
)

_BEGIN = Marker(b"<|im_start|>")
_TURN_END = (Marker(b"<|im_end|>"), Words(b"\n"))

_SYSTEM: tuple[Item, ...] = (_BEGIN, Words(b"system\n"), CONTENT, *_TURN_END)
_USER: tuple[Item, ...] = (_BEGIN, Words(b"user\n"), CONTENT, *_TURN_END)
_ASSISTANT: tuple[Item, ...] = (_BEGIN, Words(b"assistant\n"), CONTENT, *_TURN_END)
_REPLY: tuple[Item, ...] = (_BEGIN, Words(b"assistant\n"))

CHATML = Family(
    name="chatml",
    default_turn=_SYSTEM,
    steps={
        (INIT, "system"): Step(_SYSTEM, "SYSTEM_TURN"),
        (INIT, "user"): Step((DEFAULT_SYSTEM, *_USER), "USER_TURN"),
        ("SYSTEM_TURN", "user"): Step(_USER, "USER_TURN"),
        ("USER_TURN", "assistant"): Step(_ASSISTANT, "ASSISTANT_TURN"),
        ("USER_TURN", REPLY): Step(_REPLY, END),
        ("USER_TURN", STOP): Step((), END),
        ("ASSISTANT_TURN", "user"): Step(_USER, "USER_TURN"),
        ("ASSISTANT_TURN", STOP): Step((), END),
    },
)
