"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from slm2_web.forward2.plan import DEFAULT_SEQ_LEN

EXECUTORS: Final = ("reference", "wasm", "webgpu")

F = TypeVar("F", bound=Callable[..., Any])


def jsonl_option(command: F) -> F:
    """`jsonl`: whether lines are read."""
    text = "Read one JSON object a line, answer each with a line; errors come in place of answers."
    return click.option("--jsonl", is_flag=True, help=text)(command)


def model_option(command: F) -> F:
    """`name`: the model."""
    text = "A compiled model: a name in the models folder, or a path."
    return click.option("--model", "name", required=True, metavar="NAME", help=text)(command)


def context_option(command: F) -> F:
    """`context`: the context length, or None."""
    text = f"Context length; default: {DEFAULT_SEQ_LEN}, at most the model's."
    return click.option("--context", type=click.IntRange(1), metavar="TOKENS", help=text)(command)


def executor_option(command: F) -> F:
    """`kind`: one of EXECUTORS."""
    text = "What computes. The tokens are the same."
    kind = click.Choice(EXECUTORS)
    return click.option("--executor", "kind", type=kind, default="reference", show_default=True, help=text)(
        command
    )
