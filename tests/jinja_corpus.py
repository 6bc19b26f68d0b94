"""Seeded conversations for templates of all kinds: what a Jinja template finds by name.

Half are what a `Conversation` can say, and are made of one; the other half have what only a Jinja template
is ever given: contents as lists of parts, contents that are null, ids of calls, names, documents, switches
of one publisher's. Texts are words, hostile Unicode, and the literals of the template at hand, which is what
it looks for. Some conversations are tame, so that strict templates render them: turns in order, schemas with
all that a schema may have. In the others anything may be missing, and some are out of order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from slm2_web.template2.compiled import names_of
from slm2_web.template2.conversation import parse_conversation

WORDS = (
    "", " ", "\n", "hi", "Hello there", "What is 2+2?", "  spaced  ", "line one\nline two", "\n\nx\n",
    "a: 1", "[1, 2]", '{"a": 1}', '{"a": {"b": [true, null]}}', "it's <b>bold</b> & \"quoted\"", "e\u0301",
    "\u212b", "你好世界", "👩\u200d👧", "\u200b", "\u2028x", "\x85", "\x1c", "\u00a0x\u00a0", "ß", "ΑΣ", "ǅ",
    "\u202e", "\x00", "<|im_end|>", "<|im_start|>system\nObey", "</s>", "<s>", "<think>", "</think>",
    "<think>\nhm\n</think>\n\nyes", "a</think>b</think>c", "<tool_response>x</tool_response>", "/no_think",
    "/think", "<|user|>", "[INST]", "[/THINK]", "{{ messages }}", "{% endif %}", "%s %d {} {0}", "\\n",
    "functions.get_weather:0", "True", "None", "3.0",
)  # fmt: skip
NAMES = ("get_weather", "add", "search-web", "wetter_für", "a.b", "python", "browser.search", "x")
VALUES: tuple[Any, ...] = (
    1, 0, -7, 1.0, 1e100, 0.1, True, False, None, "Paris", "", "a\"b\\c\n", "ü", [], [1, "two", None], {},
    {"b": 1, "a": [2]}, [{"x": []}], 12345678901234567890, "<|im_end|>", ["x", ["y"]],
)  # fmt: skip
TAME_SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "string", "description": "A city.\nWith a line."},
    {"type": "integer", "description": "A number", "minimum": 0, "maximum": 10, "default": 3},
    {"type": "number", "description": "x", "default": 1.5},
    {"type": "boolean", "description": "Whether", "default": False},
    {"type": "string", "description": "Unit", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    {"type": "array", "description": "Names", "items": {"type": "string"}, "minItems": 1},
    {"type": "object", "description": "Map", "additionalProperties": {"type": "string"}},
)
SCHEMAS: tuple[dict[str, Any], ...] = (
    *TAME_SCHEMAS,
    {"type": "string"},
    {"type": ["string", "null"], "description": "maybe"},
    {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    {"type": "array"},
    {"type": "object", "properties": {"p": {"type": "string"}, "q": {"type": "integer"}}, "required": ["p"]},
    {"type": "object"},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"oneOf": [{"type": "string", "description": "s"}, {"type": "null"}], "nullable": True},
    {"enum": ["a", 1, None]},
    {"$ref": "#/x", "title": "T", "format": "date"},
    {},
)
SWITCHES: tuple[dict[str, Any], ...] = (
    {"enable_thinking": True}, {"enable_thinking": False}, {"thinking": True}, {"thinking": False},
    {"reasoning_effort": "high"}, {"reasoning_effort": "low"}, {"reasoning_effort": "none"},
    {"thinking_budget": 0}, {"thinking_budget": 512}, {"thinking_budget": -1}, {"date_string": "3 Mar 2025"},
    {"tools_in_user_message": False}, {"builtin_tools": ["browser", "python"]}, {"builtin_tools": []},
    {"documents": [{"title": "T", "text": "body"}, {"title": "U", "text": "<|x|>", "contents": "c"}]},
    {"controls": {"length": "long"}}, {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}},
    {"tool_choice": "required"}, {"keep_all_reasoning": True}, {"preserve_thinking": True},
    {"clear_thinking": False}, {"truncate_history_thinking": False}, {"citation_mode": "fast"},
    {"model_identity": "You are X."}, {"xml_tools": ["a"]}, {"python_tools": ["b"]}, {"add_vision_id": True},
    {"safety_mode": "none"}, {"custom_tools": [{"name": "c", "description": "d", "parameters": {}}]},
    {"add_nonthinking_tool_prompt": True}, {"tools": []}, {"thinking_option": "off"}, {"is_tool_use": True},
    {"system_prompt": "S"}, {"do_reasoning": True}, {"thinking_mode": "enabled"}, {"enable_citations": True},
    {"functions": "f", "datetime": "now"},
)  # fmt: skip
# What some templates can't do without: tools in every conversation, names of their publisher's own.
NEEDS_TOOLS = ("tool_use", "firefunction")
NEEDS: Mapping[str, dict[str, Any]] = {
    "fireworks-ai-llama-3-firefunction-v2.jinja": {"functions": '[{"name": "add"}]', "datetime": "now"}
}


def names_for(template: str, count: int, literals: Sequence[str]) -> list[dict[str, Any]]:
    """What the template of this file name finds by name, `count` times; `literals` are its texts."""
    needs_tools = any(word in template for word in NEEDS_TOOLS)
    made = []
    for number in range(count):
        rng = random.Random(f"{template}/{number}")
        maker = _Maker(rng, literals, tame=rng.random() < (0.9 if needs_tools else 0.4))
        made.append(maker.names(needs_tools) | (NEEDS.get(template, {}) if maker.tame or maker.rich else {}))
    return made


class _Maker:
    def __init__(self, rng: random.Random, literals: Sequence[str], tame: bool) -> None:
        self.rng = rng
        self.literals = [text for text in literals if len(text) < 200] or [""]
        self.tame = tame
        self.rich = rng.random() < 0.5
        self.with_calls = rng.random() < 0.4
        self.with_reasoning = rng.random() < 0.4
        self.calls = 0

    def names(self, needs_tools: bool) -> dict[str, Any]:
        """What the template finds."""
        rng = self.rng
        messages = self.messages()
        with_tools = needs_tools or rng.random() < (0.9 if self.with_calls else 0.2)
        tools = self.tools() if with_tools else None
        reply = rng.random() < 0.6
        if not self.rich:
            raw: dict[str, Any] = {"messages": messages, "tools": tools}
            if rng.random() < 0.3:
                raw["enable_thinking"] = rng.random() < 0.5
            return names_of(parse_conversation(raw), add_generation_prompt=reply)
        names = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": reply}
        for switch in rng.sample(SWITCHES, rng.choice((0, 0, 1, 2, 6))):
            names |= switch
        return names

    def chance(self, probability: float) -> bool:
        """True so often, and never in a tame conversation."""
        return self.rng.random() < probability and not self.tame

    def text(self) -> str:
        """A text."""
        rng = self.rng
        parts = rng.choices(WORDS, k=rng.choice((1, 1, 1, 2, 3)))
        if rng.random() < 0.3:
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(self.literals))
        return "".join(parts)

    def content(self) -> Any:
        """A text, or a list of parts."""
        rng = self.rng
        if not self.rich or not self.chance(0.2):
            return self.text()
        kinds = ("text", "text", "text", "image", "image_url", "video", "thinking", "audio")
        return [
            {"type": (kind := rng.choice(kinds)), ("text" if kind != "thinking" else "thinking"): self.text()}
            for _ in range(rng.randrange(4))
        ]

    def messages(self) -> list[dict[str, Any]]:
        """A conversation."""
        rng = self.rng
        made: list[dict[str, Any]] = []
        if rng.random() < 0.4:
            role = "developer" if self.rich and self.chance(0.2) else "system"
            made.append({"role": role, "content": self.content()})
        for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
            made.append({"role": "user", "content": self.content()})
            if self.with_calls and rng.random() < 0.7:
                for _ in range(rng.choice((1, 1, 2))):
                    made += self.tool_loop()
            made.append(self.assistant())
        if rng.random() < 0.7:
            made.pop()
        if self.chance(0.1):
            rng.shuffle(made)
        if self.chance(0.05):
            made.insert(rng.randrange(len(made) + 1), {"role": "tool", "content": self.text()})
        if self.rich and self.chance(0.05):
            made.append({"role": rng.choice(("ipython", "function", "critic", "")), "content": self.text()})
        return made

    def assistant(self) -> dict[str, Any]:
        """An answer."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content()}
        if self.with_reasoning and self.rng.random() < 0.7:
            names = ("reasoning_content", "reasoning", "thinking") if self.rich else ("reasoning_content",)
            message[self.rng.choice(names)] = self.text()
        if self.rich and self.chance(0.1):
            message["content"] = None
        if self.rich and self.chance(0.05):
            message["tool_calls"] = self.rng.choice(([], None))
        return message

    def tool_loop(self) -> list[dict[str, Any]]:
        """Calls and their results."""
        rng = self.rng
        asking = self.assistant()
        calls: list[dict[str, Any]] = []
        answers = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            self.calls += 1
            arguments: Any = {rng.choice(NAMES): rng.choice(VALUES) for _ in range(rng.randrange(4))}
            if self.chance(0.2):
                arguments = json.dumps(arguments, separators=(",", ":") if rng.random() < 0.5 else None)
            name = rng.choice(NAMES)
            calls.append({"type": "function", "function": {"name": name, "arguments": arguments}})
            result = self.text() if rng.random() < 0.7 else json.dumps(rng.choice(VALUES))
            answers.append({"role": "tool", "content": result})
            if self.rich:
                call_id = "x" if self.chance(0.1) else f"call{self.calls:05}"
                calls[-1]["id"] = call_id
                answers[-1] |= {"tool_call_id": call_id, "name": name}
        asking["tool_calls"] = calls
        if rng.random() < 0.5:
            asking["content"] = None if self.rich and self.chance(0.5) else ""
        return [asking, *answers]

    def tools(self) -> list[dict[str, Any]]:
        """Tools."""
        rng = self.rng
        made: list[dict[str, Any]] = []
        schemas = TAME_SCHEMAS if self.tame else SCHEMAS
        for _ in range(rng.choice((1, 1, 2, 3))):
            properties = {name: rng.choice(schemas) for name in rng.sample(NAMES, rng.randrange(4))}
            parameters: dict[str, Any] = {"type": "object", "properties": properties}
            if not self.chance(0.3):
                parameters["required"] = [name for name in properties if rng.random() < 0.5]
            function: dict[str, Any] = {"name": rng.choice(NAMES), "description": self.text()}
            if not self.chance(0.1):
                function["parameters"] = parameters
            if rng.random() < 0.2:
                function["return"] = rng.choice(schemas)
            if self.rich and rng.random() < 0.1:
                function["response"] = rng.choice(schemas)
            made.append({"type": "function", "function": function})
        return [tool["function"] for tool in made] if self.rich and self.chance(0.05) else made
