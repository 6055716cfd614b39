"""A second thread acts at every line of ours: what holds wherever it comes in between.

Kills come from a bus, deadlines from a timer thread, ends of calls from workers. Here
the other thread is let in at each line of the core, by choice (support.interleave).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from support import interleave, schedules
from support.core import spending
from support.interleave import Threads
from support.schedules import Choices, Explorer, ScheduleError, replay

import hangup
from hangup.core import (
    absence,
    alarm,
    drain,
    gather,
    hooks,
    interrupt,
    registry,
    scope,
    token,
    tree,
    work,
)
from hangup.core import run as runs
from hangup.core.alarm import Alarm
from hangup.core.cause import Cause
from hangup.core.deadline import Deadline
from hangup.core.opening import open_call
from hangup.core.registry import RunObserver
from hangup.core.token import CancelToken
from hangup.core.work import Work
from hangup.errors import RunAbandoned
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.schedules import Scenario, ScheduledLoop

    from hangup.core.cause import Abandonment
    from hangup.core.run import Run

WATCHED = [absence, alarm, drain, gather, hooks, interrupt, runs, scope, token]
WATCHED += [tree, work]


class Journal(RunObserver):
    """How often each thing was heard of each run."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.runs: list[Run] = []

    def started(self, run: Run) -> None:
        self.runs.append(run)

    def abandoned(self, run: Run) -> None:
        self.heard.append(("abandoned", run.name))

    def delivered(self, run: Run) -> None:
        self.heard.append(("delivered", run.name))

    def closed(self, run: Run) -> None:
        self.heard.append(("closed", run.name))

    def settled(self, run: Run, unsettled: int) -> None:
        assert unsettled == 0
        self.heard.append(("settled", run.name))

    def times(self, event: str, run: Run) -> int:
        return self.heard.count((event, run.name))


@contextlib.contextmanager
def journal(clock: FakeClock) -> Iterator[Journal]:
    """Watch the runs of the block, and see that each ends once and leaves nothing."""
    registry._registry.live.clear()  # what a schedule that failed may have left
    kept = Journal()
    registry.add_observer(kept)
    try:
        yield kept
    finally:
        registry.remove_observer(kept)
    for run in kept.runs:
        cause = run.token.abandonment
        assert kept.times("closed", run) == 1
        assert kept.times("abandoned", run) == int(cause is not None)
        assert kept.times("delivered", run) == int(cause is None)
        assert (run.delivered_at is None) == (cause is not None)
        assert kept.times("settled", run) == int(
            cause is not None and not cause.inherited
        )
    assert registry.live_runs() == ()
    assert clock.pending == 0


def stop_all(cause: str = "killed") -> list[bool]:
    """Cancel every root of the process, as a kill from a bus does."""
    live = [run for run in registry.live_runs() if run.parent is None]
    return [run.cancel(cause) for run in live]


# Tokens


def a_child_is_born_while_its_parent_is_cancelled(choices: Choices) -> None:
    clock, threads = FakeClock(), Threads(choices, [token])
    heard: list[str] = []
    said: list[bool] = []
    born: list[CancelToken] = []

    def bear() -> None:
        child = CancelToken(Deadline.after(5, clock), parent=parent)
        born.append(child)
        child.on_cancel(lambda _: heard.append("child"))
        child.finish()

    def cancel() -> None:
        said.append(parent.cancel(Cause.KILLED))

    with threads.ours():
        parent = CancelToken(Deadline(clock=clock))
        parent.on_cancel(lambda _: heard.append("parent"))
    threads.run(bear, cancel)
    [child] = born
    assert said == [True]
    assert child.finished == (child.abandonment is None)
    assert heard.count("child") == int(child.abandonment is not None)
    assert heard.count("parent") == 1


def a_node_finishes_while_the_one_above_it_is_cancelled(choices: Choices) -> None:
    clock, threads = FakeClock(), Threads(choices, [token])
    heard: list[Abandonment] = []
    with threads.ours():
        top = CancelToken(Deadline(clock=clock))
        middle = CancelToken(Deadline(clock=clock), parent=top)
        below = CancelToken(Deadline(clock=clock), parent=middle)
        below.on_cancel(heard.append)
    threads.run(middle.finish, lambda: top.cancel(Cause.KILLED))
    assert middle.finished == (middle.abandonment is None)
    assert below.abandonment is not None
    assert below.abandonment.cause is Cause.KILLED
    assert len(heard) == 1


def two_causes_come_at_once(choices: Choices) -> None:
    threads = Threads(choices, [token])
    said: dict[Cause, bool] = {}
    heard: list[Abandonment] = []
    with threads.ours():
        one = CancelToken(Deadline(clock=FakeClock()))
        below = CancelToken(Deadline(clock=FakeClock()), parent=one)
        below.on_cancel(heard.append)

    def cancel(cause: Cause) -> Callable[[], None]:
        return lambda: said.update({cause: one.cancel(cause)})

    threads.run(cancel(Cause.KILLED), cancel(Cause.DISCONNECT))
    [won] = [cause for cause, first in said.items() if first]
    assert one.abandonment is not None
    assert below.abandonment is not None
    assert one.abandonment.cause is below.abandonment.cause is won
    assert len(heard) == 1


# Runs


def a_run_is_killed_while_it_is_opened_and_left(choices: Choices) -> None:
    clock, threads = FakeClock(), Threads(choices, WATCHED)

    def live() -> None:
        with (
            contextlib.suppress(RunAbandoned),
            hangup.run(10, name="root", clock=clock),
            hangup.run(5, name="child") as child,
        ):
            hangup.check()
            with spending(child):
                pass
        assert hangup.current_run() is None

    with journal(clock):
        threads.run(live, stop_all)


def a_caller_leaves_and_returns_while_the_run_ends(choices: Choices) -> None:
    clock, threads = FakeClock(), Threads(choices, WATCHED)
    opened: list[Run] = []

    def live() -> None:
        scope = hangup.run(
            10, name="root", clock=clock, on_disconnect="grace", grace=3.0
        )
        with contextlib.suppress(RunAbandoned), scope as run:
            opened.append(run)

    def come_and_go() -> None:
        for run in registry.live_runs():
            run.leave()
            run.reattach()
            run.leave()

    with journal(clock) as kept:
        threads.run(live, come_and_go)
    [run] = opened
    cause = run.token.abandonment
    assert cause is None or cause.cause is Cause.DISCONNECT
    assert kept.runs == [run]


def the_last_work_ends_while_the_scope_is_left(choices: Choices) -> None:
    clock, threads = FakeClock(), Threads(choices, WATCHED)
    opened: list[tuple[Run, int]] = []

    def live() -> None:
        with (
            contextlib.suppress(RunAbandoned),
            hangup.run(10, name="root", clock=clock) as run,
        ):
            run.work.thread_changed(1)
            opened.append((run, open_call(run)))
            run.cancel()
            run.check()

    def finish() -> None:
        while not opened:
            assert threads.give_way()
        [(run, number)] = opened
        run.work.call_closed(number)
        run.work.thread_changed(-1)

    with journal(clock):
        threads.run(live, finish)


def a_run_on_a_loop_is_killed_from_a_thread(choices: Choices) -> None:
    clock, threads = FakeClock(), Threads(choices, WATCHED)

    async def call(loop: ScheduledLoop, seconds: float) -> None:
        run = hangup.current_run()
        assert run is not None
        run.check()
        with spending(run):
            answer = loop.create_future()
            timer = loop.call_later(seconds, answer.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await answer
            if timer.when() > loop.time():
                timer.cancel()
                raise asyncio.CancelledError

    async def child(loop: ScheduledLoop) -> None:
        async with hangup.run(5, name="child"):
            await call(loop, 1.0)

    async def root(loop: ScheduledLoop) -> None:
        async with hangup.run(10, name="root", clock=clock):
            aside = loop.create_task(call(loop, 0.5))
            await hangup.gather(child(loop), call(loop, 1.0))
            await aside

    async def main(loop: ScheduledLoop) -> None:
        loop.on_idle = threads.give_way
        request = loop.create_task(root(loop))
        with contextlib.suppress(RunAbandoned):
            await request
        assert request.cancelling() == 0

    def live() -> None:
        loop = schedules.run(main, Choices(), clock)
        assert loop.complaints == []
        assert loop.timers == 0
        assert {task.cancels for task in loop.tasks} <= {(), (0,)}

    with journal(clock):
        threads.run(live, stop_all)


OF_TOKENS = [
    a_child_is_born_while_its_parent_is_cancelled,
    a_node_finishes_while_the_one_above_it_is_cancelled,
    two_causes_come_at_once,
]
OF_RUNS = [
    a_run_is_killed_while_it_is_opened_and_left,
    a_caller_leaves_and_returns_while_the_run_ends,
    the_last_work_ends_while_the_scope_is_left,
    a_run_on_a_loop_is_killed_from_a_thread,
]


@pytest.mark.parametrize("scenario", OF_TOKENS)
def test_tokens_agree_wherever_another_thread_comes_between(scenario: Scenario) -> None:
    explorer = Explorer(scenario)
    explorer.systematic(1_200)
    assert len(explorer.seen) > 200


@pytest.mark.parametrize("scenario", OF_RUNS)
def test_runs_end_once_wherever_another_thread_comes_between(
    scenario: Scenario,
) -> None:
    explorer = Explorer(scenario)
    explorer.systematic(600)
    assert len(explorer.seen) == 600


# The explorer finds what is planted


@pytest.mark.parametrize("scenario", [*OF_TOKENS, OF_RUNS[0]])
def test_the_explorer_finds_the_race_where_locks_do_nothing(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleave.Lock, "acquire", lambda self: True)
    monkeypatch.setattr(interleave.Lock, "release", lambda self: None)
    with pytest.raises(ScheduleError) as found:
        Explorer(scenario).systematic(2_000)
    with pytest.raises((AssertionError, AttributeError, ValueError)):
        replay(scenario, found.value.schedule)


def _arms_blindly(self: Alarm, call_at: Any, at: float, callback: Any) -> None:
    if not self._stopped and not self._timers:
        self._timers.append(call_at(at, callback))


def _finishes_blindly(self: CancelToken, now: float | None = None) -> bool:
    if self.poll(now) is not None:
        return False
    with self._lock:
        self._finished = True
    return True


def _settles_blindly(self: Work, unsettled: int) -> None:
    if self._settled:
        return
    self._leftover_timer.stop()
    self._report_timer.stop()
    registry.notify("settled", self.run, unsettled)
    self._settled = True


@pytest.mark.parametrize(
    ("scenario", "owner", "method", "planted"),
    [
        (OF_RUNS[0], Alarm, "arm", _arms_blindly),
        (OF_TOKENS[0], CancelToken, "finish", _finishes_blindly),
        (OF_RUNS[2], Work, "_settle", _settles_blindly),
    ],
)
def test_the_explorer_finds_a_planted_race(
    scenario: Scenario,
    owner: type,
    method: str,
    planted: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, method, planted)
    monkeypatch.setattr(interleave, "PLANTED", {planted.__name__})
    with pytest.raises(ScheduleError) as found:
        Explorer(scenario).systematic(3_000)
    with pytest.raises(AssertionError):
        replay(scenario, found.value.schedule)
