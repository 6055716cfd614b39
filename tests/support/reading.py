"""A reader on a hand-driven server."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any

from support.asgi import Peer, http_scope, ticks

from hangup.servers._asgi_receive import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from support.asgi import Message, Scope

WS_CLOSE = {"type": "websocket.disconnect", "code": 1001, "reason": "away"}


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run one test on a loop of its own; nothing may be left on it, nor reported."""

    async def checked() -> None:
        reported: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, report: reported.append(report))
        before = asyncio.all_tasks()
        await test()
        assert asyncio.all_tasks() == before
        assert reported == []

    asyncio.run(checked())


class Rig:
    """A reader on a hand-driven server."""

    def __init__(
        self, scope: Scope | None = None, *messages: Message | Exception
    ) -> None:
        self.peer = Peer(*messages)
        self.gone: list[Message] = []
        self.reader = Reader(
            self.peer.receive,
            http_scope() if scope is None else scope,
            self.gone.append,
            contextvars.copy_context(),
        )

    async def watch(self) -> None:
        self.reader.watch()
        await ticks()


def text(number: int) -> dict[str, Any]:
    return {"type": "websocket.receive", "text": str(number)}
