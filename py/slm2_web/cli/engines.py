"""A model with its weights on an executor, and Ctrl-C while it computes."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from slm2_web import transcript
from slm2_web.cli.models import Model
from slm2_web.cli.watch import Watcher
from slm2_web.errors import Cancelled
from slm2_web.forward2.executor import Executor
from slm2_web.packed import PackedModel
from slm2_web.reply import Markers
from slm2_web.request import Request
from slm2_web.session import Done, Session
from slm2_web.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Engine:
    """A model with its weights on an executor."""

    executor: Executor
    session: Session

    @classmethod
    async def create(cls, model: Model, kind: str, max_seq_len: int | None) -> Engine:
        """An engine. Raises: InputError `input.model`; FormatError, DeviceError."""
        model.check_weights()
        packed = PackedModel.open(model.directory)
        executor: Executor
        if kind == "webgpu":
            from slm2_web.forward2.native import native_executor

            executor = await native_executor(packed, max_seq_len=max_seq_len)
        elif kind == "wasm":
            from slm2_web.forward2.native_wasm import native_wasm_executor

            executor = await native_wasm_executor(packed, max_seq_len=max_seq_len)
        else:
            from slm2_web.forward2.reference import ReferenceExecutor

            executor = ReferenceExecutor(packed, max_seq_len=max_seq_len)
        markers = Markers.of(model.tokenizer)
        return cls(executor, Session(model.tokenizer, executor, model.manifest.eos_ids, markers))

    async def reply(self, prompt_ids: Sequence[int], request: Request, watch: Watcher) -> Done:
        """The reply, watched. Raises: Cancelled on Ctrl-C."""
        done = None
        with Interrupt() as interrupt:
            events = self.session.generate(
                prompt_ids, request.params, continued_ids=request.continue_ids, cancelled=interrupt
            )
            async for event in events:
                watch(event)
                done = event
        watch.end()
        interrupt.check()
        assert isinstance(done, Done)
        return done

    async def rerun(self, recorded: Transcript, watch: Watcher) -> Done:
        """The recorded request's reply, watched. Raises: Cancelled on Ctrl-C."""
        with Interrupt() as interrupt:
            done = await transcript.rerun(recorded, self.session, cancelled=interrupt, watch=watch)
        watch.end()
        interrupt.check()
        return done


class Interrupt:
    """Ctrl-C as a question: the first one ends the reply after its forward pass, a second one at once."""

    def __init__(self) -> None:
        self._hit = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def __call__(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._hit

    def check(self) -> None:
        """Raises: Cancelled when Ctrl-C was pressed."""
        if self._hit:
            raise interrupted()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._hit:
            raise KeyboardInterrupt
        self._hit = True


def interrupted() -> Cancelled:
    """What Ctrl-C is."""
    return Cancelled("cancelled", "interrupted")
