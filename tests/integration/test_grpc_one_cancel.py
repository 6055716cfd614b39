"""Case b6 over gRPC: whoever ends a call, however often, its handler hears it once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from support.core import in_loop
from support.requires import wide
from support.rig import LONG, Rig, rig
from support.rpc import channel, on, path, serving, status
from support.waiting import eventually

from hangup.core.current import current_run
from hangup.servers.grpc import AioInterceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(60)

LIMIT = 3.0
"""Seconds that each call has: the model is asked and the client gone long before."""
AFTER = 0.5
"""Seconds that clean-ups go on after the deadline."""
PATIENCE = 20.0
KINDS = ("ask_uu", "ask_us", "ask_su", "ask_ss")
WAYS = ("timeout", "budget", "late")
"""What follows the client's cancel: the end of the call's own time, or of its budget.
And the reverse: the deadline comes first."""


class Heard(NamedTuple):
    """What a handler has heard.

    Attributes:
        cancels: How many ``CancelledError``.
        early: Whether the first came well before the deadline.
        past: Whether its clean-up went on after the deadline.
    """

    cancels: int
    early: bool
    past: bool


class Agent:
    """Handlers of every kind whose clean-up lasts until after their deadline."""

    def __init__(self, rig_: Rig) -> None:
        self._rig = rig_
        self.heard: dict[tuple[str, str], Heard] = {}
        self.cleaning = 0

    async def _works(self, kind: str, context: Any) -> None:
        run = current_run()
        assert run is not None
        cancels, early = 0, False
        try:
            if kind[-1] == "s":
                async for _ in self._rig.agent.pieces():
                    pass
            else:
                await self._rig.agent.ask()
        except asyncio.CancelledError:
            cancels, early = 1, run.deadline.remaining() > AFTER
            raise
        finally:
            self.cleaning += 1
            until = max(run.deadline.at, time.monotonic()) + AFTER
            while time.monotonic() < until:
                try:
                    await asyncio.sleep(until - time.monotonic())
                except asyncio.CancelledError:
                    cancels += 1
            past = run.deadline.remaining() < 0
            way = dict(context.invocation_metadata())["way"]
            self.heard[kind, way] = Heard(cancels, early, past)

    async def ask_uu(self, request: bytes, context: Any) -> bytes:
        await self._works("ask_uu", context)
        return b""

    async def ask_us(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"begun"
        await self._works("ask_us", context)

    async def ask_su(self, requests: Any, context: Any) -> bytes:
        async for _ in requests:
            await self._works("ask_su", context)
        return b""

    async def ask_ss(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield b"begun"
            await self._works("ask_ss", context)

    @property
    def methods(self) -> dict[str, Any]:
        return {kind: getattr(self, kind) for kind in KINDS}


async def _requests() -> AsyncIterator[bytes]:
    yield b"?"


def _called(opened: Any, kind: str, way: str) -> Any:
    request = _requests() if kind[-2] == "s" else b"?"
    fields = [("way", way)]
    if way == "budget":
        fields.append(("x-hangup-budget", str(LIMIT)))
        return on(opened, kind)(request, metadata=fields)
    return on(opened, kind)(request, metadata=fields, timeout=LIMIT)


@pytest.mark.parametrize("mode", ["enforce", wide("refuse"), wide("observe")])
@in_loop
async def test_b6_second_cancel_cuts_cleanup(mode: str) -> None:
    """A client's cancel, then the deadline, and the reverse: one cancel, in every kind.

    The connection is lost and the server stops on top of it, and the clean-up comes to
    its end.
    """
    count = len(KINDS) * len(WAYS)
    async with rig(LONG) as rig_, rig_.agent.talking():
        agent = Agent(rig_)
        routes = {path("ask_ss"): {"budget": 60}}
        interceptor = AioInterceptor(budget=60, routes=routes, mode=mode)
        async with (
            serving(interceptor, **agent.methods) as target,
            channel(target) as opened,
        ):
            calls = {
                (kind, way): _called(opened, kind, way)
                for kind in KINDS
                for way in WAYS
            }
            await rig_.model.log.opened_count(count)
            for (_, way), call in calls.items():
                if way != "late":
                    call.cancel()
            late = [call for (_, way), call in calls.items() if way == "late"]
            ended = await asyncio.gather(*map(status, late))
            assert {code for code, _, _ in ended} == {"DEADLINE_EXCEEDED"}
            for call in late:
                call.cancel()
            await eventually(lambda: agent.cleaning == count, PATIENCE)
        await eventually(lambda: len(agent.heard) == count, PATIENCE)
        expected = {
            (kind, way): Heard(1, early=way != "late", past=True)
            for kind in KINDS
            for way in WAYS
        }
        assert agent.heard == expected
        assert rig_.telemetry.abandoned() == {"disconnect": 8, "deadline": 4}
