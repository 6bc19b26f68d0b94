"""Qwen3: ChatML with tools and thoughts.

Theory of operation
-------------------
The resting states and the grammar are Qwen2.5's (qwen25.py). There is no default system prompt, and an
assistant's turn may begin with a thought:

    ASSISTANT_TURN        opened
    ASSISTANT_THINKING    a thought is written
    ASSISTANT_RESPONDING  an answer is written
    ASSISTANT_CALLING     a call is written

A thought belongs to the query that it was made for: once the user asks again, the thoughts before are left
out (`Thinking.kept`), so a new turn's prompt is not the last one extended. With `preserve_thinking` every
assistant's message keeps its thought, an empty one too: then the prompt is what was written, the opening of
the reply and the model's own tokens, for replies with a thought and for those without.

After a thought the answer loses its leading line feeds; whether a line feed stands before the first call
depends on the content before that. With thoughts off the reply is opened with an empty one.

Source: the `chat_template` of Qwen3-0.6B, revision c1899de289a04d12100db370d81485cdf75e47ca. Markers are
all of its words that are tokens of its vocabulary.
"""

from __future__ import annotations

from slm2_web.template2.chatml import BEGIN, TURN_END
from slm2_web.template2.qwen25 import CALL, REST, ROLES, SCHEMA, TOOLS, TOOLS_END
from slm2_web.template2.spec import (
    END,
    INIT,
    Event,
    Fact,
    Family,
    Item,
    Marker,
    Slot,
    Step,
    Thinking,
    Words,
    rows,
)

_THINK, _THINK_END = Marker(b"<think>"), Marker(b"</think>")
_RESPONSE, _RESPONSE_END = Marker(b"<tool_response>"), Marker(b"</tool_response>")

_RESULT: tuple[Item, ...] = (Words(b"\n"), _RESPONSE, Words(b"\n"), Slot.CONTENT, Words(b"\n"), _RESPONSE_END)
_OPENED = ("ASSISTANT_TURN", "ASSISTANT_THINKING")
_WRITTEN = ("ASSISTANT_RESPONDING", "ASSISTANT_CALLING")

QWEN3 = Family(
    name="qwen3",
    roles=ROLES,
    joined=frozenset({"tool"}),
    thinking=Thinking(
        opens=_THINK.text,
        closes=_THINK_END.text,
        no_query=(_RESPONSE.text, _RESPONSE_END.text),
        kept=(
            frozenset({Fact.AFTER_QUERY, Fact.LAST}),
            frozenset({Fact.AFTER_QUERY, Fact.REASONED}),
            frozenset({Fact.PRESERVED}),
        ),
    ),
    steps={
        **rows(REST, Event.SYSTEM, (BEGIN, Words(b"system\n"), Slot.CONTENT), "SYSTEM_TURN"),
        (INIT, Event.TOOLS): Step((BEGIN, Words(b"system\n"), *TOOLS), "TOOL_LIST"),
        ("SYSTEM_TURN", Event.TOOLS): Step((Words(b"\n\n"), *TOOLS), "TOOL_LIST"),
        ("TOOL_LIST", Event.SCHEMA): Step(SCHEMA, "TOOL_LIST"),
        ("TOOL_LIST", Event.CLOSE): Step(TOOLS_END, "READY"),
        ("SYSTEM_TURN", Event.CLOSE): Step(TURN_END, "READY"),
        **rows(REST, Event.USER, (BEGIN, Words(b"user\n"), Slot.CONTENT), "USER_TURN"),
        ("USER_TURN", Event.CLOSE): Step(TURN_END, "ASKED"),
        **rows(REST, Event.ASSISTANT, (BEGIN, Words(b"assistant\n")), "ASSISTANT_TURN"),
        ("ASSISTANT_TURN", Event.THOUGHT): Step(
            (_THINK, Words(b"\n"), Slot.REASONING, Words(b"\n"), _THINK_END, Words(b"\n\n")),
            "ASSISTANT_THINKING",
        ),
        ("ASSISTANT_TURN", Event.ANSWER): Step((Slot.CONTENT,), "ASSISTANT_RESPONDING"),
        ("ASSISTANT_THINKING", Event.ANSWER): Step((Slot.CONTENT_UNLED,), "ASSISTANT_RESPONDING"),
        **rows(_OPENED, Event.CALL, CALL, "ASSISTANT_CALLING"),
        **rows(_WRITTEN, Event.CALL, (Words(b"\n"), *CALL), "ASSISTANT_CALLING"),
        **rows((*_OPENED, "ASSISTANT_RESPONDING"), Event.CLOSE, TURN_END, "ANSWERED"),
        ("ASSISTANT_CALLING", Event.CLOSE): Step(TURN_END, "CALLED"),
        ("CALLED", Event.TOOL): Step((BEGIN, Words(b"user"), *_RESULT), "TOOL_TURN"),
        ("TOOL_TURN", Event.TOOL): Step(_RESULT, "TOOL_TURN"),
        ("TOOL_TURN", Event.CLOSE): Step(TURN_END, "ASKED"),
        **rows(("READY", "ASKED"), Event.REPLY, (BEGIN, Words(b"assistant\n")), END),
        **rows(
            ("READY", "ASKED"),
            Event.REPLY_AT_ONCE,
            (BEGIN, Words(b"assistant\n"), _THINK, Words(b"\n\n"), _THINK_END, Words(b"\n\n")),
            END,
        ),
        **rows(REST[1:], Event.STOP, (), END),
    },
)
