"""A tokenizer that encodes by the C kernel (worker/wasm/tokenizer.c): the same ids, the same errors, fast.

    KernelTokenizer.encode -> Kernel.encode(text, spans) -> ids

What runs the kernel is behind `Kernel`: native.py in CPython, bridge.py in the browser. Everything but
`encode` is Tokenizer's own. So is the wording of an error: when the kernel refuses a text, the Python check
says what is wrong with it, and where.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Protocol

from slm2_web.container import damaged
from slm2_web.errors import ProtocolError
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.tables import Tables, Vocabulary, parse
from slm2_web.tokenizer2.tokenizer import Tokenizer


class Status(IntEnum):
    """What the kernel gives in place of a count (tokenizer.c has the same list)."""

    OUT_TOO_SMALL = -1
    SCRATCH_TOO_SMALL = -2
    NOT_UTF8 = -3
    NO_TOKEN_FOR = -4
    DAMAGED = -5
    BAD_SPANS = -6


class KernelRefused(Exception):
    """The kernel gave no ids. `offset`: where in the text, for NOT_UTF8 and NO_TOKEN_FOR; else 0."""

    def __init__(self, status: int, offset: int = 0) -> None:
        super().__init__(f"{Status(status).name} at byte {offset}")
        self.status = Status(status)
        self.offset = offset


class Kernel(Protocol):
    """The kernel with one file in its memory."""

    def encode(self, text: bytes, spans: array[int]) -> list[int]:
        """The ids of `text`. spans: u32 triples (start, end, trusted) that tile it.

        Raises: KernelRefused.
        """
        ...


class KernelTokenizer(Tokenizer):
    """A Tokenizer that encodes by a kernel, so that it needs no tables but the vocabulary's. With all of
    them, `python_encode` is the other implementation: the oracle."""

    @classmethod
    def with_kernel(cls, data: bytes | memoryview, make_kernel: Callable[[], Kernel]) -> KernelTokenizer:
        """The tokenizer in `data`; `make_kernel` is called once the file is known to be good.

        Raises: FormatError `format.tokenizer_file`.
        """
        return cls(parse(data), make_kernel())

    def __init__(self, tables: Vocabulary, kernel: Kernel, whole: Callable[[], Tables] | None = None) -> None:
        super().__init__(tables, whole)
        self._kernel = kernel

    def python_encode(self, runs: Iterable[Run]) -> list[int]:
        """The ids of `runs`, by Tokenizer's `encode`."""
        return super().encode(runs)

    def encode(self, runs: Iterable[Run]) -> list[int]:
        """See Tokenizer."""
        ids: list[int] = []
        texts: list[tuple[int, Trusted | Untrusted]] = []
        for index, run in enumerate(runs):
            if isinstance(run, Control):
                self._encode_by_kernel(texts, ids)
                texts.clear()
                self._check_control(run, index)
                ids.append(run.id)
            else:
                texts.append((index, run))
        self._encode_by_kernel(texts, ids)
        return ids

    def _encode_by_kernel(self, texts: list[tuple[int, Trusted | Untrusted]], ids: list[int]) -> None:
        if not texts:
            return
        spans = array("I")
        end = 0
        for _, run in texts:
            start, end = end, end + len(run.data)
            spans.extend((start, end, isinstance(run, Trusted)))
        try:
            ids += self._kernel.encode(b"".join(run.data for _, run in texts), spans)
        except KernelRefused as refusal:
            for index, run in texts:
                self._check_text(run, index)
            if refusal.status is Status.DAMAGED:
                raise damaged("tables", "what no text may lead to", "tables that agree") from None
            raise ProtocolError("protocol.internal", f"tokenizer kernel: {refusal}") from refusal
