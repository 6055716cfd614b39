"""Entering and leaving: what a scope opens, what it records, what comes out of it."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
from support.core import for_ever, in_loop, opened, settle

import hangup
from hangup import config
from hangup.config import Mode, Settings
from hangup.core.admission import owner_of_cause
from hangup.core.cause import Cause
from hangup.core.deadline import Deadline
from hangup.core.scope import RunScope
from hangup.errors import (
    ConfigError,
    DeadlineExceeded,
    RunAbandoned,
    RunCancelled,
    Stop,
)
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# What it opens


def test_inside_a_scope_the_run_is_the_current_one() -> None:
    assert hangup.current_run() is None
    with hangup.run() as run:
        assert hangup.current_run() is run
        with hangup.run() as child:
            assert hangup.current_run() is child
        assert hangup.current_run() is run
    assert hangup.current_run() is None


def test_a_child_takes_from_its_parent_what_it_is_not_given(clock: FakeClock) -> None:
    with hangup.run(budget=10.0, name="p", tenant="acme", clock=clock) as parent:
        with hangup.run(clock=clock) as child:
            assert (child.parent, child.root) == (parent, parent)
            assert (child.id, child.name, child.tenant) == (parent.id, "p", "acme")
            assert child.deadline.at == parent.deadline.at
        with hangup.run(budget=3.0, name="c", tenant="x", clock=clock) as child:
            assert (child.id, child.name, child.tenant) == (parent.id, "c", "x")
            assert child.remaining() == 3.0
        with hangup.run(budget=30.0, clock=clock) as child:
            assert child.remaining() == 10.0


def test_a_deadline_may_be_given_in_place_of_a_budget(clock: FakeClock) -> None:
    deadline = Deadline.after(7.0, clock)
    clock.advance(2.0)
    with hangup.run(deadline=deadline) as run:
        assert run.remaining() == 5.0
        assert run.clock is clock


@pytest.mark.parametrize(
    ("given", "ceiling", "around", "expected"),
    [
        (None, None, None, "enforce"),
        ("observe", None, None, "observe"),
        (None, "observe", None, "observe"),
        ("enforce", "refuse", None, "refuse"),
        ("observe", "enforce", None, "observe"),
        ("enforce", None, "observe", "observe"),
        ("observe", None, "enforce", "observe"),
        ("enforce", "refuse", "observe", "observe"),
        (None, "off", None, "off"),
    ],
)
def test_the_least_intrusive_mode_wins(
    given: str | None, ceiling: str | None, around: str | None, expected: str
) -> None:
    config.use(Settings(mode=config.read_mode("mode", ceiling)))
    if around is None:
        run = opened(RunScope(mode=given))
    else:
        with hangup.run(mode=around), hangup.run(mode=given) as run:
            pass
    assert run.mode is Mode(expected)


def test_a_child_measures_on_the_clock_of_the_run_around_it(clock: FakeClock) -> None:
    """Clocks of two kinds cannot be compared."""
    with hangup.run(budget=10.0, clock=clock), hangup.run(budget=3.0) as child:
        assert child.clock is clock
        assert child.remaining() == 3.0
        clock.advance(4.0)
        assert child.cause is Cause.DEADLINE


def test_what_is_around_a_run_that_is_over_is_no_parent(clock: FakeClock) -> None:
    with hangup.run(clock=clock) as over:
        over.deliver()
        with hangup.run(clock=clock) as fresh:
            assert fresh.parent is None
            assert fresh.id != over.id


def test_a_child_that_was_delivered_hands_its_place_to_its_parent(
    clock: FakeClock,
) -> None:
    """What it left running still works for the caller of the whole run."""
    with hangup.run(name="p", clock=clock) as parent:
        with hangup.run(name="c", clock=clock) as child:
            child.deliver()
            assert hangup.current_run() is parent
            with hangup.run(clock=clock) as grandchild:
                assert grandchild.parent is parent
                parent.cancel("killed")
                assert grandchild.cause is Cause.KILLED
                assert owner_of_cause(grandchild) is parent
                with pytest.raises(Stop) as stop:
                    hangup.check()
                assert stop.value.run_name == "p"
        assert child.abandonment is None


def test_a_run_below_a_delivered_child_is_still_stopped_from_above(
    clock: FakeClock,
) -> None:
    with hangup.run(name="p", clock=clock) as parent:
        with (
            hangup.run(name="c", clock=clock) as child,
            hangup.run(clock=clock) as grandchild,
        ):
            child.deliver()
            parent.cancel("killed", "by operator")
            assert grandchild.cause is Cause.KILLED
            assert str(owner_of_cause(grandchild).error()).startswith("run 'p'")
        assert child.state == "delivered"


# What it records


def test_leaving_normally_delivers(clock: FakeClock) -> None:
    with hangup.run(clock=clock) as run:
        clock.advance(2.0)
    assert run.state == "delivered"
    assert run.delivered_at == run.closed_at == run.started_at + 2.0


def test_a_server_says_itself_when_the_result_is_delivered() -> None:
    with RunScope(server=True) as run:
        pass
    assert run.delivered_at is None
    assert run.abandonment is None


def test_an_ordinary_error_passes_unchanged_and_fails_the_run() -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as error, hangup.run() as run:
        raise mine
    assert error.value is mine
    assert mine.__cause__ is None
    assert run.abandonment is not None
    assert (run.cause, run.abandonment.detail) == (Cause.FAILED, "KeyError")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_passes_unchanged_and_fails_the_run(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, hangup.run() as run:
        raise error
    assert caught.value is error
    assert run.cause is Cause.FAILED


def test_a_childs_uncaught_abandonment_is_the_end_of_its_parent_too(
    clock: FakeClock,
) -> None:
    with (
        pytest.raises(DeadlineExceeded) as error,
        hangup.run(name="p", clock=clock) as parent,
        hangup.run(budget=1.0, name="c", clock=clock),
    ):
        clock.advance(1.0)
        hangup.check()
    assert error.value.run_name == "c"
    assert parent.cause is Cause.DEADLINE


def test_a_childs_abandonment_that_is_caught_is_no_matter_of_its_parent(
    clock: FakeClock,
) -> None:
    with hangup.run(clock=clock) as parent:
        with pytest.raises(DeadlineExceeded), hangup.run(budget=1.0, clock=clock):
            clock.advance(1.0)
            hangup.check()
        parent.check()
    assert parent.state == "delivered"


@in_loop
async def test_somebody_elses_cancelled_work_is_not_taken_for_the_stop() -> None:
    """It came before the stop did: nothing of ours was delivered yet."""
    theirs = asyncio.create_task(for_ever())
    theirs.cancel("theirs")
    await settle()
    with pytest.raises(asyncio.CancelledError, match="theirs"):
        async with hangup.run() as run:
            run.cancel("disconnect")
            await theirs


@in_loop
async def test_a_cancel_from_outside_stays_one_and_fails_the_run() -> None:
    runs: list[Run] = []

    async def work() -> None:
        async with hangup.run() as run:
            runs.append(run)
            await for_ever()

    task = asyncio.create_task(work())
    await settle()
    task.cancel("theirs")
    with pytest.raises(asyncio.CancelledError, match="theirs"):
        await task
    assert runs[0].abandonment is not None
    assert runs[0].abandonment.detail == "cancelled from outside"


# What comes out of it


@pytest.mark.parametrize("cause", Cause)
def test_the_stop_comes_out_as_an_ordinary_error(cause: Cause) -> None:
    with pytest.raises(RunAbandoned) as error, hangup.run(name="r") as run:
        run.cancel(cause, "why")
        hangup.check()
    assert isinstance(error.value, TimeoutError) == (cause is Cause.DEADLINE)
    assert (error.value.run_id, error.value.run_name) == (run.id, "r")
    assert (error.value.cause, error.value.detail) == (cause.value, "why")
    assert isinstance(error.value.__cause__, Stop)


def test_nobody_who_handles_exceptions_can_eat_the_stop() -> None:
    """Retry loops, tool-error-to-message handlers, telemetry guards."""
    attempts = 0
    with pytest.raises(RunCancelled), hangup.run() as run:
        run.cancel("killed")
        for _ in range(5):
            try:
                attempts += 1
                hangup.check()
            except Exception:  # noqa: BLE001, S110  that is what they do
                pass
    assert attempts == 1


def test_only_the_run_that_owns_the_cause_turns_the_stop_into_an_error() -> None:
    with pytest.raises(RunCancelled) as error, hangup.run(name="outer") as outer:
        with pytest.raises(Stop), hangup.run(name="inner"):
            outer.cancel("killed")
            hangup.check()
        hangup.check()
    assert error.value.run_name == "outer"


def test_a_normal_return_from_an_abandoned_run_returns_normally() -> None:
    @hangup.run()
    def work() -> str:
        run = hangup.current_run()
        assert run is not None
        run.cancel("disconnect")
        runs.append(run)
        return "result"

    runs: list[Run] = []
    assert work() == "result"
    assert runs[0].state == "abandoned"


def test_a_normal_return_past_an_enforced_deadline_is_kept_and_recorded_as_missed(
    clock: FakeClock,
) -> None:
    with hangup.run(budget=1.0, clock=clock) as run:
        clock.advance(3.0)
    assert run.cause is Cause.DEADLINE
    assert run.delivered_at is None


@pytest.mark.parametrize("mode", ["observe", "refuse", "enforce"])
def test_somebodys_error_passes_unchanged_and_the_run_keeps_its_cause(
    mode: str,
) -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as error, hangup.run(mode=mode) as run:
        run.cancel("disconnect")
        raise mine
    assert error.value is mine
    assert run.cause is Cause.DISCONNECT


def test_observe_leaves_every_exception_as_it_is() -> None:
    theirs = RunCancelled("0" * 32, "x", "killed", "", 1.0)
    for error in (theirs, asyncio.CancelledError(), ValueError()):
        with pytest.raises(type(error)) as caught, hangup.run(mode="observe") as run:
            run.cancel("disconnect")
            raise error
        assert caught.value is error


def group_of(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("several", errors)


@in_loop
async def test_a_group_of_the_stop_and_framework_residue_is_the_stop() -> None:
    with pytest.raises(RunCancelled) as error:
        async with hangup.run() as run:
            run.cancel("disconnect")
            try:
                hangup.check()
            except BaseException as stop:  # noqa: BLE001  as a task group does
                mixed = group_of(stop, RuntimeError("No response returned."))
                raise mixed from None
    assert error.value.__cause__ is mixed


@in_loop
async def test_a_group_with_somebodys_error_in_it_passes_unchanged() -> None:
    with pytest.raises(BaseExceptionGroup) as error:
        async with hangup.run() as run:
            run.cancel("disconnect")
            try:
                hangup.check()
            except BaseException as stop:  # noqa: BLE001  as a task group does
                mixed = group_of(stop, ValueError("mine"))
                raise mixed from None
    assert error.value is mixed
    assert run.cause is Cause.DISCONNECT


@in_loop
async def test_the_stop_of_a_task_in_a_task_group_comes_out_as_an_ordinary_error() -> (
    None
):
    async def tool() -> None:
        hangup.check()

    with pytest.raises(RunCancelled):
        async with hangup.run() as run, asyncio.TaskGroup() as tools:
            run.cancel("killed")
            tools.create_task(tool())
            tools.create_task(for_ever())


def test_an_error_made_of_the_stop_is_the_stop() -> None:
    def wrapped() -> None:
        try:
            hangup.check()
        except BaseException as stop:
            raise ValueError("tool failed") from stop

    with pytest.raises(RunCancelled) as error, hangup.run() as run:
        run.cancel("killed")
        wrapped()
    assert isinstance(error.value.__cause__, ValueError)


def test_a_retry_that_gave_up_on_the_stop_is_the_stop() -> None:
    class RetryError(Exception):
        def __init__(self, attempt: Any) -> None:
            super().__init__(attempt)
            self.last_attempt = attempt

    class Attempt:
        def __init__(self, error: BaseException) -> None:
            self._error = error

        def exception(self) -> BaseException:
            return self._error

    with pytest.raises(RunCancelled), hangup.run() as run:
        run.cancel("killed")
        with pytest.raises(Stop) as stop:
            hangup.check()
        raise RetryError(Attempt(stop.value))


def test_a_childs_error_does_not_pass_for_the_cause_of_its_parent(
    clock: FakeClock,
) -> None:
    with (
        pytest.raises(RunCancelled) as error,
        hangup.run(name="outer", clock=clock) as outer,
    ):
        with pytest.raises(DeadlineExceeded) as of_child:
            time_out(clock)
        outer.cancel("disconnect")
        raise of_child.value
    assert (error.value.run_name, error.value.cause) == ("outer", "disconnect")
    assert error.value.__cause__ is of_child.value


def time_out(clock: FakeClock) -> None:
    with hangup.run(budget=1.0, name="inner"):
        clock.advance(1.0)
        hangup.check()


def test_a_refusal_that_says_the_cause_already_passes_as_it_is() -> None:
    with pytest.raises(RunCancelled) as error, hangup.run() as run:
        run.cancel("killed")
        refusal = run.error()
        raise refusal
    assert error.value is refusal


def test_what_a_scope_raises_has_the_time_the_run_took(clock: FakeClock) -> None:
    with (
        pytest.raises(DeadlineExceeded) as error,
        hangup.run(budget=2.5, clock=clock),
    ):
        clock.advance(9.0)
        hangup.check()
    assert error.value.elapsed == 2.5


# As a decorator


@in_loop
async def test_a_coroutine_function_runs_in_a_run_of_its_own_each_time() -> None:
    @hangup.run(budget=5.0, tenant="acme")
    async def research(topic: str) -> Run:
        """Find out."""
        run = hangup.current_run()
        assert run is not None
        assert topic == "x"
        return run

    assert research.__doc__ == "Find out."
    one, other = await asyncio.gather(research("x"), research(topic="x"))
    assert one.id != other.id
    assert one.name.endswith("research")
    assert (one.tenant, one.state) == ("acme", "delivered")


def test_a_function_runs_in_a_run_of_its_own_each_time() -> None:
    @hangup.run(name="plain")
    def work() -> Run:
        run = hangup.current_run()
        assert run is not None
        return run

    one, other = work(), work()
    assert one.id != other.id
    assert (one.name, one.state) == ("plain", "delivered")


@in_loop
async def test_a_decorated_call_that_is_stopped_raises_an_ordinary_error() -> None:
    @hangup.run()
    async def work() -> None:
        run = hangup.current_run()
        assert run is not None
        run.cancel("killed")
        await for_ever()

    with pytest.raises(RunCancelled):
        await work()


# Wrong input, where it is given


@pytest.mark.parametrize("budget", [-1.0, math.nan])
def test_a_wrong_budget_is_refused_where_it_is_given(budget: float) -> None:
    with pytest.raises(ConfigError, match=f"budget={budget!r} cannot be used: give"):
        hangup.run(budget=budget)


def test_an_unknown_mode_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match="mode='loud' cannot be used: choose one of"):
        hangup.run(mode="loud")
