"""How long a machine kept a loop waiting, so that a limit means hangup's own time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_BEAT = 0.01


class Pulse:
    """Beats on the running loop, and counts by how much it is late; a context manager.

    What runs on the loop for long counts too: use it where that is others' work.

    Attributes:
        late: Seconds, over all beats so far.
    """

    def __init__(self) -> None:
        self.late = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def allowance(self) -> float:
        """Seconds to add to a limit: next to none on a machine that is not busy.

        Twice what it was late: where another process takes every other slice of a
        core, half of the time that is missing falls into the beats themselves.
        """
        return 2 * self.late

    async def _beat(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_BEAT)
            self.late += time.monotonic() - before - _BEAT

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
