"""What is done with each client, and what both sides say came of it.

Everything is real but the model: the client, its instrumentations, hangup, a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from matrix.clients import CALLERS
from support.providers.script import Script, text

import hangup
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from matrix.clients import Caller
    from matrix.rows import Row
    from support.providers.log import Log
    from support.providers.server import Provider

    from hangup.testing import Telemetry

    Act = Callable[[], Awaitable[object]]

WHOLE = Script(tokens=24, input=56, cache_read=16, reasoning=8)
CUT_AT = 40
CUT = Script(tokens=400, input=56, hold=CUT_AT)
GOES_ON = Script(tokens=100, input=56, rate=50)
FATES = ("delivered", "sunk", "wasted", "after")
_PATIENCE = 6.0
_BOOKED_IN = 3.0
_TYPE = names.TOKEN_TYPE


@dataclass
class Measured:
    """What one scenario came to, on both sides; tokens as [input, output].

    Attributes:
        requests: How many the server got.
        server: Tokens by the server's log.
        told: Whether the server told the usage of every request.
        attributed: ``hangup.tokens`` of every fate.
        metered: ``hangup.metered.tokens``.
        fates: ``hangup.tokens`` by fate.
        calls: ``hangup.calls`` of model calls.
        tools: ``hangup.calls`` of tool calls.
        unknown: ``hangup.unknown.calls``.
        estimated: ``hangup.estimated.tokens``.
        error: What the user's code got that it should not have.
    """

    requests: int = 0
    server: list[float] = field(default_factory=lambda: [0, 0])
    told: bool = True
    attributed: list[float] = field(default_factory=lambda: [0, 0])
    metered: list[float] = field(default_factory=lambda: [0, 0])
    fates: dict[str, float] = field(default_factory=dict)
    calls: float = 0
    tools: float = 0
    unknown: float = 0
    estimated: float = 0
    error: str = ""


Scenarios = dict[str, Measured]


class Counted:
    """What hangup has counted since this was made.

    Reads metrics as a user's backend gets them.
    """

    def __init__(self, recorded: Telemetry) -> None:
        self._recorded = recorded
        self._before = self._read()

    @property
    def calls(self) -> float:
        """Model calls counted since."""
        return self._read()["calls"] - self._before["calls"]

    def into(self, measured: Measured) -> None:
        """Write what was counted since into ``measured``."""
        change = {key: now - self._before[key] for key, now in self._read().items()}
        measured.attributed = [change["input"], change["output"]]
        measured.metered = [change["metered input"], change["metered output"]]
        measured.fates = {fate: change[fate] for fate in FATES if change[fate]}
        measured.calls, measured.tools = change["calls"], change["tools"]
        measured.unknown, measured.estimated = change["unknown"], change["estimated"]

    def _read(self) -> dict[str, float]:
        value = self._recorded.value
        found = {
            "calls": value(names.CALLS, {names.CALL_KIND: "inference"}),
            "tools": value(names.CALLS, {names.CALL_KIND: "tool"}),
            "unknown": value(names.UNKNOWN_CALLS),
            "estimated": value(names.ESTIMATED_TOKENS),
        }
        for kind in ("input", "output"):
            found[kind] = value(names.TOKENS, {_TYPE: kind})
            found[f"metered {kind}"] = value(names.METERED_TOKENS, {_TYPE: kind})
        for fate in FATES:
            found[fate] = value(names.TOKENS, {names.FATE: fate})
        return found


async def run_models(row: Row, recorded: Telemetry, server: Provider) -> Scenarios:
    """Run every scenario of a row that calls models."""
    caller = CALLERS[row.client](server.url)
    tool = "lookup" if row.tool else None
    thoughts = WHOLE.reasoning if row.thinks else 0
    script = replace(WHOLE, tool=tool, reasoning=thoughts)

    cut = GOES_ON if row.threads else CUT

    async def streamed() -> None:
        async for _ in caller.stream():
            pass

    scenarios: dict[str, tuple[Script, Act]] = {
        "whole": (script, lambda: in_run(caller.whole)),
        "stream": (script, lambda: in_run(streamed)),
        "cut stream": (cut, lambda: _cut_stream(caller)),
        "cut whole": (cut, lambda: _cut_whole(caller, server.log)),
        "refused whole": (script, lambda: expired(caller.whole)),
        "refused stream": (script, lambda: expired(streamed)),
    }
    found = {}
    for name, (answer, act) in scenarios.items():
        server.script = answer
        found[name] = await _measured(act, recorded, server.log)
    return found


async def _measured(act: Act, recorded: Telemetry, log: Log) -> Measured:
    first = len(log.requests)
    threads = ThreadPoolExecutor()
    asyncio.get_running_loop().set_default_executor(threads)
    counted = Counted(recorded)
    measured = Measured(error=await outcome(act))
    try:
        await asyncio.to_thread(log.settled, first)
    except AssertionError:
        measured.error += " a request stayed open"
    threads.shutdown()  # what nobody waited for has come to its end
    asked = log.requests[first:]
    await _booked(counted, len(asked))
    measured.requests = len(asked)
    measured.server = list(log.totals(first))
    measured.told = all(request.told for request in asked)
    counted.into(measured)
    return measured


async def _booked(counted: Counted, requests: int) -> None:
    """Wait until every request was counted as a call, or has had the time for it."""
    last = time.monotonic() + _BOOKED_IN
    while counted.calls < requests and time.monotonic() < last:  # noqa: ASYNC110  no such event
        await asyncio.sleep(0.01)


async def outcome(act: Act) -> str:
    """Return what ``act`` raises, in words; empty for nothing."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await act()
    except Exception as problem:  # noqa: BLE001  it is what came of the scenario
        return f"{type(problem).__name__}: {problem}"
    return ""


async def _cut_stream(caller: Caller) -> None:
    """The client leaves when it has so many tokens: mostly all that are ever sent."""
    here = asyncio.Event()
    enough = len(text(0, CUT_AT))

    async def read() -> None:
        got = ""
        async for piece in caller.stream():
            got += piece
            if len(got) >= enough:
                here.set()

    await _disconnected(read, here)


async def _cut_whole(caller: Caller, log: Log) -> None:
    """The client leaves while the server generates."""
    here = asyncio.Event()
    first = len(log.requests)

    def generated() -> None:
        log.wait(lambda: log.totals(first)[1] >= CUT_AT)

    async def look() -> None:
        await asyncio.to_thread(generated)
        here.set()

    looking = asyncio.create_task(look())
    await _disconnected(caller.whole, here)
    await looking


async def _disconnected(act: Act, here: asyncio.Event) -> None:
    """Run ``act``, and tell the run that its client left once ``here`` is set."""
    runs: asyncio.Queue[hangup.Run] = asyncio.Queue()

    async def leave() -> None:
        run = await runs.get()
        await here.wait()
        run.cancel("disconnect")

    # Outside the run, as a server's own task is.
    leaving = asyncio.create_task(leave())
    try:
        async with hangup.run(60, name="matrix") as run:
            runs.put_nowait(run)
            await act()
    except hangup.RunCancelled:
        return
    finally:
        leaving.cancel()
    raise AssertionError("the run was not stopped")


async def in_run(act: Act) -> None:
    """Run ``act`` in a run that has time."""
    async with hangup.run(60, name="matrix"):
        await act()


async def expired(act: Act) -> None:
    """Run ``act`` past the deadline, in a task that swallowed the stop."""
    try:
        async with hangup.run(0.001, name="matrix"):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await act()
    except hangup.DeadlineExceeded:
        return
    raise AssertionError("the call was not refused")
