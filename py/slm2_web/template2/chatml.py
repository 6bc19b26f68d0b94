"""ChatML: each turn is `<|im_start|>ROLE\\nCONTENT<|im_end|>\\n`; and the raw text without any template.

Theory of operation
-------------------
The grammar is the one the models are trained on: at most one system prompt, first (the model's default
where the conversation has none); then user and assistant in turn, the user first. A turn is open while it
is written and rests when it is closed: the model may be asked in ASKED, after a user's turn, and in no
other state. Where the publishers' Jinja templates accept more, docs/template.md lists it.

RAW frames nothing: the contents one after the other, as they are, in the same order of roles. It is for
models without a template and for whoever frames the prompt alone.

Source: the `chat_template` of SmolLM2-135M-Instruct.
"""

from __future__ import annotations

from slm2_web.template2.spec import END, INIT, Event, Family, Marker, Slot, Step, Words, rows

BEGIN = Marker(b"<|im_start|>")
TURN_END = (Marker(b"<|im_end|>"), Words(b"\n"))

_ROLES = ("system", "user", "assistant")

CHATML = Family(
    name="chatml",
    roles=_ROLES,
    steps={
        (INIT, Event.SYSTEM): Step((BEGIN, Words(b"system\n"), Slot.CONTENT), "SYSTEM_TURN"),
        ("SYSTEM_TURN", Event.CLOSE): Step(TURN_END, "READY"),
        **rows((INIT, "READY", "ANSWERED"), Event.USER, (BEGIN, Words(b"user\n"), Slot.CONTENT), "USER_TURN"),
        ("USER_TURN", Event.CLOSE): Step(TURN_END, "ASKED"),
        ("ASKED", Event.ASSISTANT): Step((BEGIN, Words(b"assistant\n")), "ASSISTANT_TURN"),
        ("ASSISTANT_TURN", Event.ANSWER): Step((Slot.CONTENT,), "ASSISTANT_RESPONDING"),
        **rows(("ASSISTANT_TURN", "ASSISTANT_RESPONDING"), Event.CLOSE, TURN_END, "ANSWERED"),
        ("ASKED", Event.REPLY): Step((BEGIN, Words(b"assistant\n")), END),
        **rows(("ASKED", "ANSWERED"), Event.STOP, (), END),
    },
)

RAW = Family(
    name="raw",
    roles=_ROLES,
    steps={
        (INIT, Event.SYSTEM): Step((Slot.CONTENT,), "SYSTEM_TURN"),
        ("SYSTEM_TURN", Event.CLOSE): Step((), "READY"),
        **rows((INIT, "READY", "ANSWERED"), Event.USER, (Slot.CONTENT,), "USER_TURN"),
        ("USER_TURN", Event.CLOSE): Step((), "ASKED"),
        ("ASKED", Event.ASSISTANT): Step((), "ASSISTANT_TURN"),
        ("ASSISTANT_TURN", Event.ANSWER): Step((Slot.CONTENT,), "ASSISTANT_RESPONDING"),
        **rows(("ASSISTANT_TURN", "ASSISTANT_RESPONDING"), Event.CLOSE, (), "ANSWERED"),
        ("ASKED", Event.REPLY): Step((), END),
        **rows(("ASKED", "ANSWERED"), Event.STOP, (), END),
    },
)
