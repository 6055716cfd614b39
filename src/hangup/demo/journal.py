"""The model server's log: the ground truth of what was generated when.

All times are seconds on ``time.monotonic()``, which every process of one machine
shares.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(slots=True)
class CallRecord:
    """One request to the model, as the server saw it.

    Attributes:
        id: The call's number.
        user: The caller's tag (header ``X-Demo-User``), or "".
        path: Where in the caller's work the call belongs (``X-Demo-Path``), or "".
        model: As requested.
        stream: Whether a stream was asked for.
        opened: When the request's head had arrived; its input is spent then.
        input_tokens: Tokens of the prompt; 0 for an error.
        status: The HTTP status.
        chunks: (time, tokens) of what was generated. Of a call that is not a
            stream they are written down when it is over.
        closed: When the exchange was over: the last byte was handed over, or the
            caller hung up. None while it runs.
        ended: When generating was over: ``closed``, or later for a provider that
            goes on after the close.
        cut: The caller hung up before it had the whole response.
        input_sent: The caller was told the input tokens.
        usage_sent: The caller was told the whole usage.
        headers: The request's headers, lower case. Not part of the JSON.
    """

    id: str
    user: str
    path: str
    model: str
    stream: bool
    opened: float
    input_tokens: int = 0
    status: int = 200
    chunks: list[tuple[float, int]] = field(default_factory=list)
    closed: float | None = None
    ended: float | None = None
    cut: bool = False
    input_sent: bool = False
    usage_sent: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far, whether or not anybody took them."""
        return sum(tokens for _, tokens in self.chunks)

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the record without its headers."""
        return {k: v for k, v in asdict(self).items() if k != "headers"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallRecord:
        """Return the record that :meth:`to_json` described."""
        chunks = [(float(at), int(tokens)) for at, tokens in data["chunks"]]
        return cls(**{**data, "chunks": chunks})


class ModelLog:
    """All calls in the order they came, and a way to wait for what they do.

    For the server's event loop only. Waiting is for events, never for time:
    nothing here sleeps or polls.

    Args:
        most: How many calls are kept, the latest; None keeps all.
    """

    def __init__(self, most: int | None = None) -> None:
        self.calls: list[CallRecord] = []
        self._most = most
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def add(self, record: CallRecord) -> None:
        """Write down a new call."""
        self.calls.append(record)
        if self._most is not None and len(self.calls) > self._most:
            del self.calls[0]
        self.changed()

    def changed(self) -> None:
        """Wake whoever waited for what is now so."""
        for holds, future in self._waiters:
            if not future.done() and holds():
                future.set_result(None)

    @property
    def opened(self) -> int:
        """Calls that ever came."""
        return len(self.calls)

    @property
    def closed(self) -> int:
        """Calls whose exchange is over."""
        return sum(1 for call in self.calls if call.closed is not None)

    def of(self, user: str) -> list[CallRecord]:
        """Return the calls that came with this tag."""
        return [call for call in self.calls if call.user == user]

    async def wait_for(self, holds: Callable[[], bool], within: float = 10.0) -> None:
        """Wait until ``holds()`` is true; asked again at every change of the log.

        Raises:
            TimeoutError: It was not so within that many seconds.
        """
        if holds():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (holds, future)
        self._waiters.append(entry)
        try:
            async with asyncio.timeout(within):
                await future
        finally:
            self._waiters.remove(entry)

    async def opened_count(self, count: int, within: float = 10.0) -> None:
        """Wait until ``count`` calls have come."""
        await self.wait_for(lambda: self.opened >= count, within)

    async def closed_count(self, count: int, within: float = 10.0) -> None:
        """Wait until the exchange of ``count`` calls is over."""
        await self.wait_for(lambda: self.closed >= count, within)

    async def tokens_count(self, count: int, within: float = 10.0) -> None:
        """Wait until that many output tokens were generated over all calls."""
        await self.wait_for(
            lambda: sum(call.output_tokens for call in self.calls) >= count, within
        )
