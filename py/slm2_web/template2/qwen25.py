"""Qwen2.5: ChatML with tools.

Theory of operation
-------------------
A turn is open while it is written, and rests when it is closed. The resting states say what has been said
last, which is all that the grammar needs:

    INIT      nothing
    READY     a system prompt
    ASKED     a user, or tools with their results
    ANSWERED  an assistant
    CALLED    an assistant that called tools

System, user and assistant may follow each other in any order, as the publisher's template frames them;
results of tools follow calls only, and the model is not asked when it is the last to have spoken. Results
that follow each other are one turn, and so is a system prompt with its list of tools.

The list of tools stands in the system prompt, one JSON text a line. Names and arguments are written as they
are between our punctuation; the checks (checks.py) see to it that JSON comes out.

Source: the `chat_template` of Qwen2.5-7B-Instruct. Of its vocabulary `<tool_call>` and `</tool_call>` are
tokens; `<tool_response>` and `<tools>` are words.
"""

from __future__ import annotations

from slm2_web.template2.chatml import BEGIN, TURN_END
from slm2_web.template2.spec import END, INIT, Event, Family, Item, Marker, Slot, Step, Words, rows

ROLES = ("system", "user", "assistant", "tool")
REST = (INIT, "READY", "ASKED", "ANSWERED", "CALLED")

_CALL, _CALL_END = Marker(b"<tool_call>"), Marker(b"</tool_call>")

TOOLS: tuple[Item, ...] = (
    Words(
        b"# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        b"You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
    ),
)
SCHEMA: tuple[Item, ...] = (Words(b"\n"), Slot.SCHEMA)
TOOLS_END: tuple[Item, ...] = (
    Words(
        b"\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    ),
    _CALL,
    _CALL_END,
    Words(b" XML tags:\n"),
    _CALL,
    Words(b'\n{"name": <function-name>, "arguments": <args-json-object>}\n'),
    _CALL_END,
    *TURN_END,
)
CALL: tuple[Item, ...] = (
    _CALL,
    Words(b'\n{"name": "'),
    Slot.NAME,
    Words(b'", "arguments": '),
    Slot.ARGUMENTS,
    Words(b"}\n"),
    _CALL_END,
)
_RESULT: tuple[Item, ...] = (Words(b"\n<tool_response>\n"), Slot.CONTENT, Words(b"\n</tool_response>"))

QWEN25 = Family(
    name="qwen2.5",
    roles=ROLES,
    joined=frozenset({"tool"}),
    steps={
        **rows(REST, Event.SYSTEM, (BEGIN, Words(b"system\n"), Slot.CONTENT), "SYSTEM_TURN"),
        ("SYSTEM_TURN", Event.TOOLS): Step((Words(b"\n\n"), *TOOLS), "TOOL_LIST"),
        ("TOOL_LIST", Event.SCHEMA): Step(SCHEMA, "TOOL_LIST"),
        ("TOOL_LIST", Event.CLOSE): Step(TOOLS_END, "READY"),
        ("SYSTEM_TURN", Event.CLOSE): Step(TURN_END, "READY"),
        **rows(REST, Event.USER, (BEGIN, Words(b"user\n"), Slot.CONTENT), "USER_TURN"),
        ("USER_TURN", Event.CLOSE): Step(TURN_END, "ASKED"),
        **rows(REST, Event.ASSISTANT, (BEGIN, Words(b"assistant\n")), "ASSISTANT_TURN"),
        ("ASSISTANT_TURN", Event.ANSWER): Step((Slot.CONTENT,), "ASSISTANT_RESPONDING"),
        ("ASSISTANT_TURN", Event.CALL): Step(CALL, "ASSISTANT_CALLING"),
        **rows(
            ("ASSISTANT_RESPONDING", "ASSISTANT_CALLING"),
            Event.CALL,
            (Words(b"\n"), *CALL),
            "ASSISTANT_CALLING",
        ),
        **rows(("ASSISTANT_TURN", "ASSISTANT_RESPONDING"), Event.CLOSE, TURN_END, "ANSWERED"),
        ("ASSISTANT_CALLING", Event.CLOSE): Step(TURN_END, "CALLED"),
        ("CALLED", Event.TOOL): Step((BEGIN, Words(b"user"), *_RESULT), "TOOL_TURN"),
        ("TOOL_TURN", Event.TOOL): Step(_RESULT, "TOOL_TURN"),
        ("TOOL_TURN", Event.CLOSE): Step(TURN_END, "ASKED"),
        **rows(("READY", "ASKED"), Event.REPLY, (BEGIN, Words(b"assistant\n")), END),
        **rows(REST[1:], Event.STOP, (), END),
    },
)
