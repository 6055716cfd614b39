"""Something comes at every place where our paths wait, and leaves nothing behind.

Each program is run once for each of its suspensions, on any of its tasks, and there one
thing comes: a cancel from outside, a kill of the run, its deadline, or an error.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING

import pytest
from opentelemetry import context as otel_context
from support.injection import Injector
from support.programs import (
    BUDGET,
    PROGRAMS,
    Bench,
    drained,
    drained_too_slowly,
    in_groups,
)

from hangup.core import registry
from hangup.core.current import position
from hangup.errors import RunAbandoned

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Tracer
    from support.programs import Program

# Until Python 3.13 a task group keeps the cancel that it gives its own task where a
# child fails while it waits for others; and their errors go before a cancel.
KEEP_A_CANCEL = {in_groups}
# What may end after the stop: clean-up, a step that cannot be undone, a detached job.
LET_FINISH = {"closed", "half", "charged", "job"}
DRAINED: dict[Program, set[str]] = {
    drained: {"call", "wait"},
    drained_too_slowly: {"call"},  # at one instant with the end of its patience
}
every_program = pytest.mark.parametrize(
    "program", PROGRAMS, ids=lambda program: program.__name__
)


class BoomError(Exception):
    """What fails."""


# Running them


def perform(
    program: Program,
    tracer: Tracer,
    at: int | None = None,
    visit: Callable[[Bench], bool] | None = None,
    error: BaseException | None = None,
) -> Bench:
    """Run the program once, with something at a suspension; check what it leaves."""
    registry._registry.live.clear()  # what a program that failed may have left

    def come() -> None:
        bench.mark = len(bench.done)
        bench.in_time = visit is not None and visit(bench)

    loop = Injector(at, None if visit is None else come, error)
    bench = Bench(loop, tracer)

    async def request() -> str:
        try:
            return await program(bench)
        finally:
            assert position() is None
            assert otel_context.get_current() == {}

    async def main() -> None:
        bench.request = asyncio.create_task(request())
        await asyncio.wait([bench.request])
        # What outlives its run on purpose, or is being stopped.
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest)
        await loop.threads_idle()
        await loop.quiet()

    try:
        contextvars.Context().run(loop.run_until_complete, main())
        assert [task for task in loop.tasks if not task.done()] == []
        assert loop.timers == 0
        assert loop.complaints == []
        assert registry.live_runs() == ()
        if bench.run is not None:
            family = bench.run.work.tree
            assert (family.calls, family.drains) == ({}, set())
            assert (dict(family._shields), dict(family._held)) == ({}, {})
    finally:
        loop.close()
    return bench


def points_of(program: Program, tracer: Tracer) -> range:
    """Every suspension of the program when nothing comes."""
    bench = perform(program, tracer)
    assert bench.request.exception() is None
    assert bench.loop.points
    return range(bench.loop.points)


# What comes. Each returns whether it was in time.


def outside_cancel(bench: Bench) -> bool:
    return bench.request.cancel()


def kill(bench: Bench) -> bool:
    return bench.run is not None and bench.run.cancel("killed")


def deadline(bench: Bench) -> bool:
    run = bench.run
    alive = run is not None and not run.abandonment and run.delivered_at is None
    bench.loop.clock.advance(BUDGET)
    return alive


def kill_and_cancel(bench: Bench) -> bool:
    kill(bench)
    return outside_cancel(bench)


@every_program
@pytest.mark.parametrize("visit", [outside_cancel, kill_and_cancel])
def test_a_cancel_from_outside_wins_and_leaves_nothing(
    program: Program, visit: Callable[[Bench], bool], tracer: Tracer
) -> None:
    for at in points_of(program, tracer):
        bench = perform(program, tracer, at, visit)
        if program not in KEEP_A_CANCEL or visit is outside_cancel:
            assert bench.request.cancelled() == bench.in_time, at
            assert bench.request.cancelling() == int(bench.in_time), at
        after = set(bench.done[bench.mark :])
        assert not bench.in_time or after <= LET_FINISH, at
        finished_what_was_begun(bench)


@every_program
@pytest.mark.parametrize("visit", [kill, deadline])
def test_a_stop_comes_out_as_the_error_of_the_run_and_leaves_nothing(
    program: Program, visit: Callable[[Bench], bool], tracer: Tracer
) -> None:
    for at in points_of(program, tracer):
        bench = perform(program, tracer, at, visit)
        request, run = bench.request, bench.run
        assert not request.cancelled(), at
        assert request.cancelling() == 0 or program in KEEP_A_CANCEL, at
        out = request.exception()
        if out is not None:  # it may have returned, where it waits for nothing more
            assert bench.in_time, at
            assert isinstance(out, RunAbandoned), at
            assert run is not None
            assert run.cause == out.cause, at
            assert set(bench.done[bench.mark :]) <= LET_FINISH | DRAINED.get(
                program, set()
            )
        assert bench.late == [], at
        finished_what_was_begun(bench)


@pytest.mark.parametrize(
    "program",
    # Nothing is ever thrown into the exit of a task group but a cancel: it would break.
    [program for program in PROGRAMS if program is not in_groups],
    ids=lambda program: program.__name__,
)
def test_an_error_passes_unchanged_and_leaves_nothing(
    program: Program, tracer: Tracer
) -> None:
    for at in points_of(program, tracer):
        boom = BoomError()
        bench = perform(program, tracer, at, error=boom)
        assert bench.request.cancelling() == 0, at
        assert not bench.request.cancelled(), at
        if bench.loop.hit is bench.request:
            assert bench.request.exception() is boom, at
            finished_what_was_begun(bench)


def finished_what_was_begun(bench: Bench) -> None:
    """A step that cannot be undone is done once begun."""
    assert bench.done.count("charged") == bench.done.count("begun")
