"""A bus whose threads cannot be started, or end: it comes back, and says so."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.core import in_loop
from support.telemetry import instrumented
from support.waiting import eventually

import hangup
from hangup.bus import connect
from hangup.bus import threads as threads_module
from hangup.bus.memory import Ear, MemoryTransport
from hangup.bus.operator import Kill, kill
from hangup.core import guard, remote

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run

PATIENCE = 10.0
ENDS = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
"""A thread may end by an exception: that is the case."""


def alive() -> set[str]:
    """Which threads of the bus run."""
    return {one.name for one in threading.enumerate() if "hangup-bus" in one.name}


BOTH = {"hangup-bus-listen", "hangup-bus-speak"}


async def killed(url: str, seen: Callable[[Run], object] = lambda _run: None) -> Kill:
    """Open a run, and let an operator kill it; nothing else asks how the bus is."""
    with pytest.raises(hangup.RunCancelled, match="killed"):
        async with hangup.run() as run, asyncio.timeout(PATIENCE):
            seen(run)
            with hangup.detached():
                asking = asyncio.create_task(
                    asyncio.to_thread(kill, connect(url), run.id, patience=PATIENCE)
                )
            await asyncio.Event().wait()
    return await asking


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of a test before have a moment to end."""
    monkeypatch.setattr("hangup.bus.member._TURN", 0.05)
    asyncio.run(eventually(lambda: not alive()))


class Once:
    """A method of the bus that ends the thread that calls it, at its first call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> None:
        self.called = 0
        method = getattr(of, name)

        def once(*arguments: Any) -> Any:
            self.called += 1
            if self.called == 1:
                raise SystemExit("thrown into it")
            return method(*arguments)

        monkeypatch.setattr(of, name, once)


class Refusing:
    """Refuses to start threads, as an operating system with a limit does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.names = names
        self.refused = 0
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name in self.names:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("which", [{"listen"}, {"speak"}, {"listen", "speak"}])
def test_a_bus_whose_threads_cannot_start_is_down_and_comes_back(
    which: set[str],
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next run starts them, or who reads the gauge; or the one that did start."""
    monkeypatch.setattr(threads_module, "AGAIN", 0.0)
    names = {f"hangup-bus-{one}" for one in which}
    refusing = Refusing(monkeypatch, *names)

    @in_loop
    async def check() -> None:
        with instrumented(bus_url=url) as telemetry:

            def gauge() -> list[float]:
                found = telemetry.series("hangup.bus.up")
                return [series.value for series in found.get("hangup.bus.up", ())]

            assert gauge() == [0]
            with hangup.run(), hangup.run(supersede_key="k"):
                assert remote.reach().up is False  # type: ignore[union-attr]
            assert alive() == BOTH - names
            assert caplog.text.count("can't start new thread") == 1
            assert refusing.refused >= 2
            refusing.names = ()
            result = await killed(url)
            assert result.by_opener
            assert alive() == BOTH
            await eventually(lambda: gauge() == [1])

    check()


@ENDS
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("of", "name"), [(Ear, "receive"), (MemoryTransport, "now")])
@in_loop
async def test_a_thread_that_is_thrown_out_comes_back(
    monkeypatch: pytest.MonkeyPatch, url: str, of: type, name: str, *, strict: bool
) -> None:
    """At once, and by itself: nobody reads the gauge, and no other run begins.

    Under ``strict``, which lets no fault be swallowed, the thread really ends.
    """
    guard.strict(strict)
    thrown = Once(monkeypatch, of, name)
    with instrumented(bus_url=url):
        await eventually(lambda: thrown.called)
        result = await killed(url)
        assert result.by_opener
        await eventually(lambda: alive() == BOTH and thrown.called > 1)


@ENDS
@pytest.mark.parametrize("strict", [True, False])
@in_loop
async def test_a_callback_that_exits_does_not_end_the_bus(
    url: str, *, strict: bool
) -> None:
    """What an application does when its run is killed is done on our thread."""
    guard.strict(strict)
    with instrumented(bus_url=url):
        for _ in range(2):
            result = await killed(url, lambda run: run.on_abandon(lambda _: sys.exit()))
            assert result.by_opener


@in_loop
async def test_leaving_a_bus_that_has_lost_a_thread_starts_none(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(monkeypatch, "hangup-bus-listen")
    with instrumented(bus_url=url):
        refusing.names = ()
        member = remote.reach()
    await eventually(lambda: not alive())
    assert member is not None
    assert member.up is False
    assert not alive()
