"""Task groups of anyio are stopped from the inside, with one cancel for each task."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from support.core import for_ever, in_loop, settle, witness

from hangup import config
from hangup.core import levels
from hangup.core.scope import RunScope
from hangup.errors import RunAbandoned
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from hangup.core.run import Run


class Worker:
    """Waits for ever; counts the cancels it gets, and may eat them."""

    def __init__(self, *, stubborn: bool = False, log: list[str] | None = None) -> None:
        self.cancels = 0
        self.enough = asyncio.Event()
        self._stubborn = stubborn
        self._log = log
        self._name = "stubborn" if stubborn else "worker"

    async def __call__(self) -> None:
        while not self.enough.is_set():
            try:
                await self.enough.wait()
            except asyncio.CancelledError:
                self.cancels += 1
                if self._log is not None:
                    self._log.append(self._name)
                if not self._stubborn:
                    raise


async def _hosting(
    *workers: Callable[[], Coroutine[Any, Any, None]], log: list[str] | None = None
) -> None:
    """Run workers in a task group of anyio, and wait in its body."""
    try:
        async with anyio.create_task_group() as group:
            for worker in workers:
                group.start_soon(worker)
            await for_ever()
    finally:
        if log is not None:
            log.append("host")


async def _abandoned(
    work: Callable[[], Awaitable[Any]], clock: FakeClock | None = None
) -> None:
    """Run ``work`` in a run that is killed once everything waits."""
    async with RunScope(name="research", clock=clock or FakeClock()) as run:
        asyncio.get_running_loop().call_soon(
            asyncio.ensure_future, _kill_when_all_wait(run)
        )
        await work()


async def _kill_when_all_wait(run: Run) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    run.cancel("killed")


@in_loop
async def test_each_task_in_the_group_gets_one_cancel_and_then_its_host() -> None:
    log: list[str] = []
    workers = [Worker(log=log) for _ in range(3)]
    with pytest.raises(RunAbandoned):
        await _abandoned(lambda: _hosting(*workers, log=log))
    assert [worker.cancels for worker in workers] == [1, 1, 1]
    assert log == ["worker"] * 3 + ["host"]


@in_loop
async def test_groups_in_groups_end_from_the_innermost() -> None:
    log: list[str] = []
    worker = Worker(log=log)
    with pytest.raises(RunAbandoned):
        await _abandoned(
            lambda: _hosting(lambda: _hosting(lambda: _hosting(worker, log=log)))
        )
    assert worker.cancels == 1
    assert log == ["worker", "host"]


@pytest.mark.parametrize("siblings", [0, 2])
def test_a_stubborn_task_is_left_alone_and_its_host_left_waiting(
    siblings: int,
) -> None:
    """One cancel; a second where anyio adds its own because a sibling has ended."""

    @in_loop
    async def check() -> None:
        stubborn = Worker(stubborn=True)
        workers = [Worker() for _ in range(siblings)]
        clock = FakeClock()
        with witness() as seen:
            task = asyncio.ensure_future(
                _abandoned(lambda: _hosting(stubborn, *workers), clock)
            )
            await settle()
            await settle()
            assert [worker.cancels for worker in workers] == [1] * siblings
            assert stubborn.cancels == (2 if siblings else 1)
            clock.advance(config.current().settle)
            await settle()
            assert seen.of("settled") == [("settled", "research", 1)]
            assert stubborn.cancels == (2 if siblings else 1)
            assert not task.done()
            stubborn.enough.set()
            with pytest.raises(RunAbandoned):
                await task

    check()


@in_loop
async def test_a_clean_up_below_the_host_is_not_cut() -> None:
    cleaned: list[str] = []

    async def worker() -> None:
        try:
            await for_ever()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(RunAbandoned):
        await _abandoned(lambda: _hosting(worker))
    assert cleaned == ["up"]


@in_loop
async def test_a_group_around_the_run_is_none_of_its_business() -> None:
    other = Worker()

    async def around() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(other)
            with pytest.raises(RunAbandoned):
                await _abandoned(for_ever)
            assert other.cancels == 0
            other.enough.set()

    await around()


@pytest.mark.parametrize("below", [False, True])
def test_what_anyio_shields_is_stopped_when_the_shield_has_ended(
    *, below: bool
) -> None:
    """A shield of anyio holds the stop back, on the scope's own task and below it."""

    @in_loop
    async def check() -> None:
        saved = asyncio.Event()
        log: list[str] = []

        async def saving() -> None:
            with anyio.CancelScope(shield=True):
                await saved.wait()
                log.append("saved")
            await for_ever()

        work = partial(_hosting, saving) if below else saving
        task = asyncio.ensure_future(_abandoned(work))
        await settle()
        assert not task.done()
        saved.set()
        with pytest.raises(RunAbandoned):
            await task
        assert log == ["saved"]

    check()


@in_loop
async def test_a_task_that_has_not_begun_is_stopped_when_it_has() -> None:
    """Cancelled before, what it was to run would never be awaited."""
    begun: list[str] = []

    async def worker() -> None:
        begun.append("worker")
        await for_ever()

    async def work() -> None:
        async with RunScope(name="research") as run, anyio.create_task_group() as group:
            run.cancel("killed")
            group.start_soon(worker)
            await for_ever()

    with pytest.raises(RunAbandoned):
        await work()
    assert begun == ["worker"]


@in_loop
async def test_a_timeout_of_anyio_without_tasks_changes_nothing() -> None:
    async def work() -> None:
        with anyio.fail_after(60):
            await for_ever()

    with pytest.raises(RunAbandoned):
        await _abandoned(work)


@in_loop
async def test_where_anyio_looks_different_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = asyncio.current_task()
    assert task is not None
    async with anyio.create_task_group() as group:
        group.start_soon(for_ever)
        await asyncio.sleep(0)
        assert len(levels.innermost(task)) == 1
        assert levels.innermost(task, since=levels.scope_of(task)) == []
        with monkeypatch.context() as patch:
            patch.setattr(levels, "_BACKEND", "anyio.nowhere")
            assert levels.scope_of(task) is None
            assert levels.innermost(task) == []
        with monkeypatch.context() as patch:
            patch.setattr(levels, "scope_of", lambda _task: object())
            assert levels.innermost(task) == []
        group.cancel_scope.cancel()


@in_loop
async def test_a_body_whose_group_was_cut_does_not_return_halves() -> None:
    """The group swallows the stop, and a shield holds back the one of the body itself.

    So do the clients of MCP on standard input and output.
    """
    found: list[str] = []

    async def part(name: str) -> None:
        try:
            await asyncio.sleep(0 if name == "quick" else 3600)
        finally:
            if name == "late":  # the body is behind its shield by then
                await asyncio.sleep(0.02)
        found.append(name)

    async def whole() -> list[str]:
        async with RunScope() as run:
            asyncio.get_running_loop().call_later(0.02, run.cancel)
            async with anyio.create_task_group() as group:
                group.start_soon(part, "quick")
                group.start_soon(part, "slow")
                group.start_soon(part, "late")
                try:
                    await for_ever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await asyncio.sleep(0.05)
        return found

    with pytest.raises(RunAbandoned):
        await whole()
    assert found == ["quick"]
