"""What a run started and left running: stopped once where it spends, and reported."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from typing import TYPE_CHECKING, Any

import pytest
from support.core import for_ever, in_loop, settle, spending, witness

import hangup
from hangup import config
from hangup.config import Settings
from hangup.core import current
from hangup.core.current import Position
from hangup.core.scope import RunScope
from hangup.errors import RunAbandoned, RunCancelled, Stop
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run


class Background:
    """A task that has a spending call open, and counts the cancels it gets."""

    def __init__(self, run: Run | None = None, *, spends: bool = True) -> None:
        self.cancels = 0
        self.unwound = asyncio.Event()
        self.unwound.set()
        self.run = run
        self.task = asyncio.create_task(self._call() if spends else self._wait())

    async def _call(self) -> None:
        run = self.run or hangup.current_run()
        assert run is not None
        with spending(run):
            await self._wait()

    async def _wait(self) -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            self.cancels += 1
            await self._unwind()
            raise

    async def _unwind(self) -> None:
        while not self.unwound.is_set():
            try:
                await self.unwound.wait()
            except asyncio.CancelledError:
                self.cancels += 1


@in_loop
async def test_once_the_scope_has_unwound_what_spends_is_stopped_and_awaited() -> None:
    with witness() as seen, pytest.raises(RunCancelled):
        async with hangup.run(name="r") as run:
            left = Background()
            await settle()
            run.cancel("disconnect")
            run.check()
    assert left.task.cancelled()
    assert left.cancels == 1
    assert seen.events[-2:] == [("closed", "r"), ("settled", "r", 0)]


@in_loop
async def test_what_does_not_spend_is_left_alone() -> None:
    with witness() as seen, pytest.raises(RunCancelled):
        async with hangup.run(name="r") as run:
            idle = Background(spends=False)
            await settle()
            run.cancel("disconnect")
            run.check()
    await settle()
    assert not idle.task.done()
    assert seen.of("settled") == [("settled", "r", 0)]
    idle.task.cancel()


@in_loop
async def test_while_the_scope_unwinds_they_are_stopped_after_a_quarter_second() -> (
    None
):
    clock = FakeClock()
    release = asyncio.Event()
    lefts: list[Background] = []

    async def work() -> None:
        async with hangup.run(clock=clock) as run:
            runs.append(run)
            lefts.append(Background())
            try:
                await for_ever()
            finally:
                await release.wait()

    runs: list[Run] = []
    task = asyncio.create_task(work())
    await settle()
    runs[0].cancel("disconnect")
    await settle()
    clock.advance(0.2)
    await settle()
    assert lefts[0].cancels == 0
    clock.advance(0.05)
    await settle()
    assert lefts[0].task.cancelled()
    release.set()
    with pytest.raises(RunCancelled):
        await task
    assert lefts[0].cancels == 1


@in_loop
async def test_they_are_stopped_once_however_slowly_they_unwind() -> None:
    clock = FakeClock()

    async def work() -> None:
        async with hangup.run(clock=clock) as run:
            runs.append(run)
            lefts.append(Background())
            lefts[0].unwound.clear()
            await for_ever()

    runs: list[Run] = []
    lefts: list[Background] = []
    task = asyncio.create_task(work())
    await settle()
    runs[0].cancel("disconnect")
    for _ in range(8):
        await settle()
        clock.advance(0.25)
    assert lefts[0].cancels == 1
    assert not task.done()
    lefts[0].unwound.set()
    with pytest.raises(RunCancelled):
        await task
    assert lefts[0].cancels == 1


@in_loop
async def test_one_that_is_being_stopped_already_gets_no_second_cancel() -> None:
    """Its task group or gather is at it: a second cancel would cut its clean-up."""
    clock = FakeClock()
    with pytest.raises(RunCancelled):
        async with hangup.run(clock=clock) as run:
            left = Background()
            left.unwound.clear()
            await settle()
            left.task.cancel("a task group's")
            await settle()
            asyncio.get_running_loop().call_soon(left.unwound.set)
            run.cancel("disconnect")
            run.check()
    assert left.task.cancelled()
    assert left.cancels == 1


@in_loop
async def test_the_exception_of_one_we_stopped_is_not_logged() -> None:
    """The loop of these tests would report one that was never retrieved."""

    async def fails_on_cancel(run: Run) -> None:
        with spending(run):
            try:
                await for_ever()
            finally:
                raise ArithmeticError

    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            asyncio.create_task(fails_on_cancel(run))  # noqa: RUF006  nobody keeps it
            await settle()
            run.cancel("disconnect")
            run.check()
    gc.collect()


@in_loop
async def test_an_error_that_leaves_the_scope_stops_them_too() -> None:
    with pytest.raises(KeyError):
        async with hangup.run():
            left = Background()
            await settle()
            raise KeyError
    assert left.task.cancelled()


@in_loop
async def test_a_delivered_run_leaves_its_background_work_alone() -> None:
    async with hangup.run() as run:
        left = Background()
        await settle()
    assert run.state == "delivered"
    await settle()
    assert not left.task.done()
    left.task.cancel()


@pytest.mark.parametrize("mode", ["observe", "refuse"])
def test_where_nothing_is_cut_they_go_on_and_the_end_is_reported(mode: str) -> None:
    @in_loop
    async def scenario() -> None:
        with witness() as seen:
            async with hangup.run(name="r", mode=mode, clock=FakeClock()) as run:
                left = Background()
                await settle()
                run.cancel("disconnect")
            await settle()
            assert not left.task.done()
            assert seen.of("settled") == []
            left.task.cancel()
            await settle()
            assert seen.of("settled") == [("settled", "r", 0)]

    scenario()


@in_loop
async def test_a_child_that_is_stopped_stops_what_is_its_own_only() -> None:
    clock = FakeClock()
    async with hangup.run(clock=clock):
        of_parent = Background()
        with pytest.raises(RunCancelled):
            async with hangup.run(clock=clock) as child:
                of_child = Background()
                await settle()
                child.cancel()
                child.check()
        assert of_child.task.cancelled()
        assert not of_parent.task.done()
        of_parent.task.cancel()


# Settling


@in_loop
async def test_a_scope_waits_for_what_it_stopped_no_longer_than_settle() -> None:
    config.use(Settings(settle=2.0))
    clock = FakeClock()

    async def work() -> None:
        async with hangup.run(name="r", clock=clock) as run:
            runs.append(run)
            lefts.extend([Background(), Background()])
            for left in lefts:
                left.unwound.clear()
            await for_ever()

    runs: list[Run] = []
    lefts: list[Background] = []
    with witness() as seen:
        task = asyncio.create_task(work())
        await settle()
        runs[0].cancel("disconnect")
        await settle()
        clock.advance(1.75)
        await settle()
        assert not task.done()
        clock.advance(0.25)
        with pytest.raises(RunCancelled):
            await task
        assert seen.of("settled") == [("settled", "r", 2)]
        for left in lefts:
            left.unwound.set()
        await settle()
    assert len(seen.of("settled")) == 1
    assert clock.pending == 0


@in_loop
async def test_a_scope_that_does_not_unwind_is_reported_after_settle() -> None:
    clock = FakeClock()
    release = asyncio.Event()

    async def work() -> None:
        async with hangup.run(name="r", clock=clock) as run:
            runs.append(run)
            lefts.append(Background())
            lefts[0].unwound.clear()
            try:
                await for_ever()
            finally:
                await release.wait()

    runs: list[Run] = []
    lefts: list[Background] = []
    with witness() as seen:
        task = asyncio.create_task(work())
        await settle()
        runs[0].cancel("disconnect")
        await settle()
        clock.advance(5.0)
        assert seen.of("settled") == [("settled", "r", 2)]
        lefts[0].unwound.set()
        release.set()
        with pytest.raises(RunCancelled):
            await task
        assert len(seen.of("settled")) == 1


@in_loop
async def test_a_sync_scope_does_not_wait_and_reports_what_did_not_stop() -> None:
    """The form servers use: the connection is not held up by stragglers."""
    clock = FakeClock()
    with witness() as seen:
        with pytest.raises(KeyError), hangup.run(name="r", clock=clock):
            left = Background()
            left.unwound.clear()
            await settle()
            raise KeyError
        assert not left.task.done()
        await settle()
        assert left.cancels == 1
        assert seen.of("settled") == []
        clock.advance(5.0)
        assert seen.of("settled") == [("settled", "r", 1)]
        left.unwound.set()


@in_loop
async def test_a_cancel_from_outside_ends_the_waiting() -> None:
    clock = FakeClock()

    async def work() -> None:
        async with hangup.run(clock=clock):
            lefts.append(Background())
            lefts[0].unwound.clear()
            await settle()
            raise KeyError

    lefts: list[Background] = []
    task = asyncio.create_task(work())
    await settle()
    task.cancel("theirs")
    with pytest.raises(asyncio.CancelledError, match="theirs"):
        await task
    lefts[0].unwound.set()
    await settle()


# What somebody else waits for, or what serves somebody else


@in_loop
async def test_one_that_somebody_outside_awaits_is_left_to_them() -> None:
    clock = FakeClock()
    started: list[Background] = []
    waiting: list[asyncio.Task[Any]] = []

    async def outside() -> str:
        await started[0].task
        return "never"

    async def work() -> None:
        async with hangup.run(clock=clock) as run:
            started.append(Background())
            await go.wait()
            run.cancel("disconnect")
            run.check()

    go = asyncio.Event()
    task = asyncio.create_task(work())
    await settle()
    waiting.append(asyncio.create_task(outside()))
    await settle()
    go.set()
    await settle()
    assert started[0].cancels == 0
    clock.advance(5.0)
    with pytest.raises(RunCancelled):
        await task
    assert not started[0].task.done()
    waiting[0].cancel()
    await settle()


class Bridge:
    """A second context, as OpenTelemetry's: attached on purpose, it wins."""

    def __init__(self) -> None:
        self._position: contextvars.ContextVar[Position | None] = (
            contextvars.ContextVar("bridged", default=None)
        )

    def read(self) -> Position | None:
        return self._position.get()

    def attach(self, position: Position) -> Callable[[], None]:
        token = self._position.set(position)
        return lambda: self._position.reset(token)


class Worker:
    """A queue consumer: it serves whoever's job comes, in that job's context."""

    def __init__(self, bridge: Bridge | None = None) -> None:
        self.queue: asyncio.Queue[Run | None] = asyncio.Queue()
        self.outcomes: list[object] = []
        self.release = asyncio.Event()
        self._bridge = bridge
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while True:
            job = await self.queue.get()
            detach = None
            if job is not None and self._bridge is not None:
                detach = self._bridge.attach(Position(job))
            try:
                await self._serve()
            except RunAbandoned as error:
                self.outcomes.append(error)
            finally:
                if detach is not None:
                    detach()

    async def _serve(self) -> None:
        hangup.check()
        run = hangup.current_run()
        if run is None:
            self.outcomes.append("served")
            return
        with spending(run):
            await self.release.wait()
        self.outcomes.append(run.name)


async def abandoned_run(make: Callable[[], Worker], clock: FakeClock) -> Worker:
    """Return a worker that was created, lazily, inside a run that is abandoned."""
    with pytest.raises(RunCancelled):
        async with hangup.run(clock=clock) as run:
            worker = make()
            await settle()
            run.cancel("disconnect")
            run.check()
    assert not worker.task.done()
    return worker


@in_loop
async def test_a_worker_created_detached_in_an_abandoned_run_serves_at_once() -> None:
    def make() -> Worker:
        with hangup.detached():
            return Worker()

    worker = await abandoned_run(make, FakeClock())
    worker.queue.put_nowait(None)
    await settle()
    assert worker.outcomes == ["served"]
    worker.task.cancel()


@in_loop
async def test_a_worker_born_in_an_abandoned_run_serves_when_that_is_long_over() -> (
    None
):
    config.use(Settings(refuse_for=60.0))
    clock = FakeClock()
    worker = await abandoned_run(Worker, clock)
    worker.queue.put_nowait(None)
    await settle()
    (refused,) = worker.outcomes
    assert isinstance(refused, RunCancelled)
    clock.advance(60.25)
    worker.queue.put_nowait(None)
    await settle()
    assert worker.outcomes[1:] == ["served"]
    assert not worker.task.done()
    worker.task.cancel()


@in_loop
async def test_a_worker_born_in_an_abandoned_run_serves_a_later_run() -> None:
    bridge = Bridge()
    current.set_bridge(bridge)
    try:
        worker = await abandoned_run(lambda: Worker(bridge), FakeClock())
        async with hangup.run(name="later") as later:
            worker.queue.put_nowait(later)
            worker.release.set()
            await settle()
        assert worker.outcomes == ["later"]
        worker.task.cancel()
        await settle()
    finally:
        current.set_bridge(None)


@pytest.mark.parametrize("born", ["outside any run", "in another run"])
def test_a_worker_that_serves_an_abandoned_run_is_not_cancelled(born: str) -> None:
    """Its task was not born in that run: it serves others too."""

    @in_loop
    async def scenario() -> None:
        if born == "outside any run":
            await serves_an_abandoned_run()
        else:
            with hangup.run(name="another"):
                await serves_an_abandoned_run()

    scenario()


async def serves_an_abandoned_run() -> None:
    bridge, clock = Bridge(), FakeClock()
    current.set_bridge(bridge)
    try:
        worker = Worker(bridge)
        with witness() as seen:

            async def work() -> None:
                with hangup.detached():
                    scope = hangup.run(name="r", clock=clock)
                    async with scope as run:
                        await enqueue(run)

            async def enqueue(run: Run) -> None:
                worker.queue.put_nowait(run)
                worker.queue.put_nowait(run)
                await go.wait()
                run.cancel("disconnect")
                run.check()

            go = asyncio.Event()
            task = asyncio.create_task(work())
            await settle()
            go.set()
            await settle()
            assert not worker.task.done()
            clock.advance(5.0)
            with pytest.raises(RunCancelled):
                await task
            assert seen.of("settled") == [("settled", "r", 1)]
        worker.release.set()
        await settle()
        # What had begun was finished; the next job is refused, by an ordinary error.
        assert worker.outcomes[0] == "r"
        assert isinstance(worker.outcomes[1], RunCancelled)
        assert not worker.task.done()
        worker.task.cancel()
        await settle()
    finally:
        current.set_bridge(None)


@in_loop
async def test_a_foreign_task_is_refused_by_an_ordinary_error_at_once() -> None:
    bridge = Bridge()
    current.set_bridge(bridge)
    try:
        workers = [Worker(bridge)]
        with hangup.run(name="another"):
            workers.append(Worker(bridge))
        async with hangup.run(mode="refuse") as run:
            run.cancel("disconnect")
            for worker in workers:
                worker.queue.put_nowait(run)
            await settle()
            for worker in workers:
                assert [type(one) for one in worker.outcomes] == [RunCancelled]
                assert not worker.task.done()
                worker.task.cancel()
        await settle()
    finally:
        current.set_bridge(None)


def test_what_is_left_on_a_loop_that_was_closed_is_past_stopping() -> None:
    async def background(run: Run) -> None:
        with spending(run):
            await for_ever()

    loop = asyncio.new_event_loop()
    with pytest.raises(KeyError), hangup.run(clock=FakeClock()) as run:
        left = loop.create_task(background(run))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        raise KeyError
    assert not left.done()
    left._log_destroy_pending = False  # type: ignore[attr-defined]


@in_loop
async def test_late_refusals_are_ordinary_errors_until_there_are_too_many() -> None:
    """A leftover that swallows 32 refusals gets the signal it cannot swallow."""
    go = asyncio.Event()
    kinds: list[type[BaseException]] = []

    async def stubborn() -> None:
        await go.wait()
        while True:
            try:
                hangup.check()
            except BaseException as refusal:
                kinds.append(type(refusal))
                if isinstance(refusal, Stop):
                    raise

    with pytest.raises(RunCancelled):
        async with hangup.run() as run:
            left = asyncio.create_task(stubborn())
            await settle()
            run.cancel("disconnect")
            run.check()
    go.set()
    with pytest.raises(Stop):
        await left
    assert kinds == [RunCancelled] * 32 + [Stop]


# Work a finished child has left


@in_loop
async def test_what_a_delivered_child_left_running_belongs_to_its_parent() -> None:
    with pytest.raises(RunCancelled):
        async with hangup.run(name="parent") as parent:
            async with hangup.run(name="child") as child:
                left = Background()
                await settle()
            assert child.state == "delivered"
            parent.cancel("disconnect")
            parent.check()
    assert left.task.cancelled()


@in_loop
async def test_the_background_run_of_a_delivered_one_outlives_its_deadline() -> None:
    """Fate ``after``: never refused, never waste, not stopped by an old deadline."""
    clock = FakeClock()
    go = asyncio.Event()

    async def report() -> str:
        async with hangup.run(name="report", clock=clock):
            await go.wait()
            hangup.check(needs=30.0)
            await asyncio.sleep(0)
            return "written"

    async with RunScope(10.0, clock=clock) as run:
        task = asyncio.create_task(report())
        await settle()
        run.deliver()
    clock.advance(60.0)
    go.set()
    assert await task == "written"
