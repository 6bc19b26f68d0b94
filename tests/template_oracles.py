"""The oracle for templates: the publisher's own, rendered by Jinja, encoded by `tokenizers`.

Trust is found by Jinja itself. Under autoescape it knows what is marked safe from what is not, through
every concatenation, split and strip, and writes `&lt;` for a `<` that is not safe. Here a template's
literals are marked safe and nothing else is. Every added token has a `<`, so the added tokens that are left
in the output are the template's.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


def _tojson(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _raise_exception(message: str) -> str:
    raise jinja2.exceptions.TemplateError(message)


class _SafeLiterals(ImmutableSandboxedEnvironment):
    """Marks the literals of a template as safe."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        if self.autoescape:
            _mark_literals(template)
        return template


def _mark_literals(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_marked(item) for item in value]
        else:
            setattr(node, field, _marked(value))


def _marked(value: Any) -> Any:
    if isinstance(value, nodes.Const):
        return nodes.MarkSafe(value, lineno=value.lineno) if isinstance(value.value, str) else value
    if isinstance(value, nodes.Node):
        _mark_literals(value)
    return value


class TemplateOracle:
    """A publisher's template with the environment that `transformers` gives it, and a vocabulary."""

    def __init__(self, source: str, trusted: Any, untrusted: Any, markers: Mapping[str, int]) -> None:
        """trusted, untrusted: `tokenizers` with and without the added tokens `markers`."""
        self._templates = [_environment(autoescape).from_string(source) for autoescape in (False, True)]
        self._trusted, self._untrusted, self._markers = trusted, untrusted, markers
        longest_first = sorted(markers, key=len, reverse=True)
        assert all("<" in marker for marker in markers)
        self._marker = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def text(self, raw: Mapping[str, Any], reply: bool) -> str:
        """The prompt as the publisher writes it."""
        return self._rendered(raw, reply)[0]

    def ids(self, raw: Mapping[str, Any], reply: bool) -> list[int]:
        """The ids that the publisher makes of it: markers are control ids, whoever wrote them."""
        ids: list[int] = self._trusted.encode(self.text(raw, reply), add_special_tokens=False).ids
        return ids

    def plain_text(self, raw: Mapping[str, Any], reply: bool) -> str:
        """The prompt as the publisher writes it, whether or not it is well-formed text."""
        text: str = self._templates[0].render(**raw, add_generation_prompt=reply)
        return text

    def is_smuggling(self, raw: Mapping[str, Any], reply: bool) -> bool:
        """Whether the prompt has markers that are not the template's."""
        all_of_them, ours = (self._marker.findall(text) for text in self._rendered(raw, reply))
        return len(ours) != len(all_of_them)

    def ids_by_trust(self, raw: Mapping[str, Any], reply: bool) -> list[int]:
        """The ids by the rule of trust: only the template's own markers are control ids."""
        ids: list[int] = []
        for number, part in enumerate(self._marker.split(self._rendered(raw, reply)[1])):
            if number % 2:
                ids.append(self._markers[part])
            elif part:
                ids += self._untrusted.encode(html.unescape(part), add_special_tokens=False).ids
        return ids

    def _rendered(self, raw: Mapping[str, Any], reply: bool) -> tuple[str, str]:
        plain, escaped = (t.render(**raw, add_generation_prompt=reply) for t in self._templates)
        assert html.unescape(escaped) == plain
        return plain, escaped


def _environment(autoescape: bool) -> ImmutableSandboxedEnvironment:
    environment = _SafeLiterals(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=autoescape
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment
