"""What the suite is run on: a model and the code that works with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from slm2_web.errors import InputError
from slm2_web.forward2.executor import Executor
from slm2_web.forward2.plan import DEFAULT_SEQ_LEN
from slm2_web.manifest import Manifest
from slm2_web.parity.canonical import Json
from slm2_web.reply import Markers
from slm2_web.session import Session
from slm2_web.template2.machine import HasRender
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.transcript import Artifacts

Size = Literal["quick", "reduced", "full"]


@dataclass(frozen=True)
class Subject:
    """A loaded model. `executor` None: the stages `forward` and `chat` can't be run."""

    manifest: Manifest
    artifacts: Artifacts
    tokenizer: Tokenizer
    template: HasRender
    executor: Executor | None = None
    # Those of the stage `template`, by family: made when first needed.
    templates: dict[str, HasRender] = field(default_factory=dict)

    @property
    def max_seq_len(self) -> int:
        """Positions of the context that the suite is written for, whatever the executor was made with."""
        return min(DEFAULT_SEQ_LEN, self.manifest.config.max_seq_len)

    @cached_property
    def session(self) -> Session:
        """A session on the executor."""
        assert self.executor is not None
        markers = Markers.of(self.tokenizer)
        return Session(self.tokenizer, self.executor, self.manifest.eos_ids, markers)

    def cold_executor(self) -> Executor:
        """The executor, with nothing in its cache.

        Raises: InputError `input.params` when its context is not the one that the suite is written for.
        """
        executor = self.executor
        assert executor is not None
        if executor.max_seq_len != self.max_seq_len:
            found, allowed = str(executor.max_seq_len), str(self.max_seq_len)
            raise InputError(
                "input.params",
                f"max_seq_len: found {found}; allowed for the parity suite: {allowed}",
                {"place": "max_seq_len", "found": found, "allowed": allowed},
            )
        executor.truncate(0)
        return executor


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the suite.

    sizes    how many records of each size
    make     (subject, index) -> the input of a record
    run      (subject, input) -> its output. Raises: whatever is no output
    compute  whether it needs the subject's executor
    """

    name: str
    sizes: Mapping[Size, int]
    make: Callable[[Subject, int], Json]
    run: Callable[[Subject, Json], Awaitable[Json]]
    compute: bool = False


def refused(error: InputError) -> Json:
    """The output that a refusal is: its code alone, since its words may change."""
    return {"error": error.code}
