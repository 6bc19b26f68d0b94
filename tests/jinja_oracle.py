"""The oracle for compiled templates: jinja2, set up as Hugging Face's `apply_chat_template` sets it up."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

DATE = datetime.date(2026, 1, 2)
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` as a block whose caller is called at once."""

    tags = {"generation"}  # noqa: RUF012  jinja2's own type

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_called"), [], [], body).set_lineno(line)

    @staticmethod
    def _called(caller: Any) -> Any:
        return caller()


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def environment() -> ImmutableSandboxedEnvironment:
    """The environment; `strftime_now` gives DATE."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = lambda form: DATE.strftime(form)
    return made


def rendered(template: jinja2.Template, names: Mapping[str, Any]) -> str | None:
    """What jinja2 writes; None where it fails, for whatever reason."""
    try:
        return template.render(**VARIABLES, **names)
    except Exception:
        return None
