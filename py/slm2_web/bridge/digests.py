"""Digests by the browser, which computes them in a thread of its own while the model goes on.

Theory of operation. A SHA-256 of all logits takes a large part of what a step spends outside the kernels. The
browser copies what it is given and answers when this thread lets messages in; until then it keeps its copy,
so answers are waited for after every few steps.
"""

from __future__ import annotations

from typing import Any

import js
import numpy as np
from numpy.typing import NDArray
from pyodide.ffi import JsException, to_js

from slm2_web.bridge.convert import own_error

MAX_PENDING = 8


class WebDigests:
    """See digests.py."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._pending: list[Any] = []

    def __len__(self) -> int:
        return len(self._done) + len(self._pending)

    async def add(self, logits: NDArray[np.float32]) -> None:
        """See Digests. Raises: DeviceError `device.worker`."""
        if len(self._pending) == MAX_PENDING:
            await self._settle()
        data = to_js(np.ascontiguousarray(logits, dtype="<f4").data)
        self._pending.append(js.crypto.subtle.digest("SHA-256", data))

    async def take(self) -> tuple[str, ...]:
        """See Digests. Raises: DeviceError `device.worker`."""
        await self._settle()
        return tuple(self._done)

    async def _settle(self) -> None:
        try:
            found = await js.Promise.all(to_js(self._pending))
        except JsException as error:
            raise own_error(error, "device.worker") from None
        self._done += [buffer.to_bytes().hex() for buffer in found]
        self._pending.clear()
