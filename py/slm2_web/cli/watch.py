"""What stderr says while a reply is made."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from slm2_web.cli.models import Model
from slm2_web.cli.stdio import say
from slm2_web.session import Done, Event, Prefill, Token


class Watcher:
    """Sees the events of a reply."""

    def __call__(self, event: Event) -> None:
        """Take an event."""

    def end(self) -> None:
        """The reply is over."""


class Progress(Watcher):
    """One line on stderr that says how far a reply is; nothing where stderr is not a terminal."""

    def __init__(self, prompt_tokens: int) -> None:
        self._visible = sys.stderr is not None and sys.stderr.isatty()
        self._prompt_tokens = prompt_tokens
        self._n_generated = 0

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Prefill):
            self._show(f"prompt {event.done_tokens}/{event.total_tokens} tokens")
        elif isinstance(event, Token):
            self._n_generated += 1
            self._show(f"prompt {self._prompt_tokens} tokens, reply {self._n_generated}")

    def end(self) -> None:
        """Clear the line."""
        self._show("")

    def _show(self, text: str) -> None:
        if self._visible:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


class Explainer(Watcher):
    """What the model is given and what it says, line by line on stderr."""

    def __init__(self, model: Model, prompt_ids: Sequence[int]) -> None:
        config = model.manifest.config
        tokenizer = model.tokenizer
        prompt = tokenizer.decode(prompt_ids).decode("utf-8", "backslashreplace")
        say(f"model       {model.manifest.title}")
        say(f"vocabulary  {tokenizer.n_tokens} tokens, {config.vocab_size} logits")
        say(f"prompt      {len(prompt_ids)} tokens")
        for line in prompt.split("\n"):
            say("  | " + _printable(line))
        say("sampled     id, bytes, text")

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Token):
            text = event.data.decode("utf-8", "backslashreplace")
            likely = "" if event.logprobs is None else f"  {event.logprobs.chosen:.3f}"
            say(f"  {event.id:>8}  {event.data.hex():<24}  {_printable(text)!r}{likely}")
        elif isinstance(event, Done):
            say(f"ended       {event.reason} after {len(event.generated_ids)} tokens")


def _printable(text: str) -> str:
    """`text` without characters that move a terminal's cursor or change its state."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
