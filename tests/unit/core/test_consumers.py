"""A worker that takes jobs from a queue is refused, not cancelled: it serves others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from support.core import in_loop, settle, spending, witness

import hangup
from hangup.clients import queues
from hangup.core.current import set_bridge
from hangup.errors import DeadlineExceeded, RunAbandoned, RunCancelled
from hangup.otel.context import OtelBridge
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hangup.core.run import Run

    Job = Callable[[], Awaitable[object]]


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    queues.install()
    yield
    queues.uninstall()


class Worker:
    """Takes jobs from a queue, and survives what they raise."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Job] = asyncio.Queue()
        self.outcomes: list[object] = []
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while True:
            job = await self.queue.get()
            try:
                self.outcomes.append(await job())
            except Exception as error:  # noqa: BLE001  a worker goes on
                self.outcomes.append(type(error))

    async def does(self, job: Job) -> None:
        self.queue.put_nowait(job)
        await settle()


def calling(
    run: Run, what: Callable[[], Awaitable[object]]
) -> Callable[[], Awaitable[object]]:
    async def job() -> object:
        with spending(run):
            return await what()

    return job


async def answer() -> str:
    return "answer"


async def stopped(
    what: Job,
    clock: FakeClock,
    *,
    budget: float | None = None,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> tuple[Worker, list[Any]]:
    """Stop a run whose worker, born in it, is at work for it; return how it settled."""
    workers: list[Worker] = []
    runs: list[Run] = []

    async def body() -> None:
        async with hangup.run(budget, name="r", clock=clock) as run:
            runs.append(run)
            workers.append(Worker())
            await workers[0].does(calling(run, what))
            await asyncio.Event().wait()

    with witness() as seen:
        task = asyncio.create_task(body())
        await settle()
        if budget is None:
            runs[0].cancel("disconnect")
        else:
            clock.advance(budget)
        await settle()
        if meanwhile is not None:
            await meanwhile()
        with pytest.raises(RunAbandoned):
            await task
        return workers[0], seen.of("settled", "swallowed")


@pytest.mark.parametrize("budget", [None, 5.0])
def test_what_it_waits_for_fails_and_it_serves_on(budget: float | None) -> None:
    @in_loop
    async def scenario() -> None:
        worker, seen = await stopped(asyncio.Event().wait, FakeClock(), budget=budget)
        expected = RunCancelled if budget is None else DeadlineExceeded
        assert worker.outcomes == [expected]
        assert seen == [("settled", "r", 0)]
        await worker.does(answer)
        assert worker.outcomes[1:] == ["answer"]
        worker.task.cancel()

    scenario()


@in_loop
async def test_it_is_refused_once_and_may_clean_up() -> None:
    cleaned = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await cleaned.wait()

    async def meanwhile() -> None:
        cleaned.set()

    worker, _ = await stopped(work, FakeClock(), meanwhile=meanwhile)
    assert worker.outcomes == [RunCancelled]
    worker.task.cancel()


@in_loop
async def test_a_task_that_took_no_job_is_cancelled_as_ever() -> None:
    ended: list[object] = []

    async def work(run: Run) -> None:
        with spending(run):
            try:
                await asyncio.Event().wait()
            except BaseException as error:
                ended.append(type(error))
                raise

    with pytest.raises(KeyError):
        async with hangup.run(clock=FakeClock()) as run:
            task = asyncio.create_task(work(run))
            await settle()
            raise KeyError
    assert task.cancelled()
    assert ended == [asyncio.CancelledError]


@in_loop
async def test_a_worker_born_outside_is_left_alone() -> None:
    worker = Worker()
    release = asyncio.Event()
    clock = FakeClock()
    with witness() as seen:

        async def body() -> None:
            async with hangup.run(name="r", clock=clock) as run:
                await worker.does(calling(run, release.wait))
                raise KeyError

        task = asyncio.create_task(body())
        await settle()
        clock.advance(5.0)
        with pytest.raises(KeyError):
            await task
        assert seen.of("settled") == [("settled", "r", 1)]
    release.set()
    await settle()
    assert worker.outcomes == [True]
    worker.task.cancel()


@in_loop
async def test_one_that_is_idle_hears_nothing() -> None:
    async def no_work() -> str:
        return "done"

    worker, seen = await stopped(no_work, FakeClock())
    assert worker.outcomes == ["done"]
    assert seen == [("settled", "r", 0)]
    await worker.does(answer)
    assert worker.outcomes == ["done", "answer"]
    worker.task.cancel()


@in_loop
async def test_a_task_group_that_it_hosts_is_not_torn() -> None:
    """It is refused when the group has ended: its tasks would be left behind."""
    inside = asyncio.Event()
    joined: list[str] = []

    async def part() -> None:
        await inside.wait()
        joined.append("part")

    async def work() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(part)
        await asyncio.Event().wait()

    async def meanwhile() -> None:
        assert joined == []
        inside.set()

    worker, _ = await stopped(work, FakeClock(), meanwhile=meanwhile)
    assert joined == ["part"]
    assert worker.outcomes == [RunCancelled]
    worker.task.cancel()


@in_loop
async def test_a_cleanup_is_finished_first() -> None:
    release = asyncio.Event()
    steps: list[str] = []

    async def work() -> None:
        async with hangup.cleanup(budget=60):
            await release.wait()
            steps.append("cleaned")
        await asyncio.Event().wait()

    async def meanwhile() -> None:
        assert steps == []
        release.set()

    worker, _ = await stopped(work, FakeClock(), meanwhile=meanwhile)
    assert steps == ["cleaned"]
    assert worker.outcomes == [RunCancelled]
    worker.task.cancel()


@pytest.mark.parametrize("bridge", [None, OtelBridge()])
def test_its_next_job_is_out_of_the_run_that_was_stopped(
    bridge: OtelBridge | None,
) -> None:
    """Also where it brings no context of its own, but opens a run."""

    async def job() -> object:
        async with hangup.run(name="later") as run:
            run.check()
        return run.parent

    @in_loop
    async def scenario() -> None:
        set_bridge(bridge)
        try:
            worker, _ = await stopped(answer, FakeClock())
            await worker.does(job)
            await worker.does(where)
            assert worker.outcomes == ["answer", None, None]
            worker.task.cancel()
        finally:
            set_bridge(None)

    scenario()


async def where() -> object:
    return hangup.current_run()


@in_loop
async def test_out_of_a_stopped_child_it_goes_to_the_parent() -> None:
    async with hangup.run(name="parent") as parent:
        with pytest.raises(RunCancelled):
            async with hangup.run(name="child") as child:
                worker = Worker()
                await worker.does(where)
                child.cancel("disconnect")
                child.check()
        await worker.does(where)
        assert worker.outcomes == [child, parent]
    worker.task.cancel()


@in_loop
async def test_who_takes_a_job_inside_its_own_run_stays_in_it() -> None:
    jobs: asyncio.Queue[str] = asyncio.Queue()
    jobs.put_nowait("job")
    async with hangup.run() as run:
        await jobs.get()
        assert hangup.current_run() is run
        run.cancel("failed")
        await asyncio.sleep(0)
        jobs.put_nowait("job")
        await jobs.get()
        assert hangup.current_run() is run


@in_loop
async def test_taking_it_off_restores_the_queue() -> None:
    queues.uninstall()
    before = dict(vars(asyncio.Queue))
    queues.install()
    assert dict(vars(asyncio.Queue)) != before
    assert asyncio.iscoroutinefunction(asyncio.Queue.get)
    queues.uninstall()
    assert dict(vars(asyncio.Queue)) == before


@in_loop
async def test_the_end_of_the_worker_itself_is_a_cancel() -> None:
    """Whoever owns it ends it as before."""
    worker, _ = await stopped(asyncio.Event().wait, FakeClock())
    worker.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await worker.task
    assert worker.task.cancelled()
