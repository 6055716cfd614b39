"""Runs that end in unusual ways: lost, told from elsewhere, stubborn."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
from typing import TYPE_CHECKING, Any

import pytest
from support.core import for_ever, in_loop
from support.telemetry import chat, instrumented, opened, used

import hangup
from hangup.core import registry
from hangup.core.cause import Cause
from hangup.core.scope import RunScope
from hangup.errors import RunAbandoned, Stop
from hangup.otel import names, settlement
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.otel.notices import Notice, Outcome

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.testing import FakeClock


def _call(
    tracer: Tracer, clock: FakeClock, seconds: float, tokens: tuple[int, int]
) -> None:
    with chat(tracer) as span:
        clock.advance(seconds)
        used(span, *tokens)


def _outcomes(telemetry: Telemetry) -> dict[tuple[str, str], float]:
    return {
        (series.labels[names.OUTCOME], series.labels[names.CAUSE]): series.value
        for series in telemetry.series(names.RUNS)[names.RUNS]
        if series.value
    }


# Runs that nobody closes


def _leave_open(clock: FakeClock, tracer: Tracer, *, child: bool) -> None:
    """Open a run, spend in it, and lose it without leaving its scope."""

    def work() -> None:
        scope = opened(clock)
        run = scope.__enter__()
        _call(tracer, clock, 1, (3, 4))
        if child:
            inner = opened(clock, name="child")
            inner.__enter__()
            _call(tracer, clock, 1, (5, 6))
            run.cancel("killed")

    contextvars.copy_context().run(work)


def test_a_run_that_is_garbage_collected_open_posts_what_it_has(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    _leave_open(clock, tracer, child=False)
    telemetry.total(names.TOKENS)  # what has ended is in the books
    gc.collect()
    assert registry.live_runs() == ()
    assert telemetry.tokens("delivered") == (3, 4)
    assert telemetry.total(names.TOKENS) == 7


def test_a_lost_child_of_an_abandoned_run_is_not_called_delivered(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    _leave_open(clock, tracer, child=True)
    telemetry.total(names.TOKENS)  # what has ended is in the books
    gc.collect()
    assert telemetry.tokens("sunk", cause="killed") == (8, 10)
    assert telemetry.total(names.TOKENS) == 18


def test_closed_runs_leave_no_orphans_behind(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    for _ in range(50):
        with opened(clock), opened(clock, name="child"):
            _call(tracer, clock, 1, (1, 1))
    gc.collect()
    assert not HangupInstrumentor()._accounts._orphans


def test_what_live_runs_have_spent_is_posted_when_the_process_goes_down(
    clock: FakeClock,
) -> None:
    with instrumented() as telemetry:
        tracer = telemetry.tracer()
        with opened(clock, name="open"), opened(clock, name="child"):
            _call(tracer, clock, 1, (3, 4))
            with opened(clock, name="stopped", mode="observe") as stopped:
                _call(tracer, clock, 1, (5, 6))
                stopped.cancel("disconnect")
                with opened(clock, name="below"):
                    clock.advance(1)
                    _call(tracer, clock, 1, (7, 8))
                    hangup.uninstrument()
                    assert telemetry.tokens("delivered", run="open") == (3, 4)
                    assert telemetry.tokens("sunk", run="stopped") == (5, 6)
                    assert telemetry.tokens("wasted", run="stopped") == (7, 8)
                    assert telemetry.total(names.TOKENS) == 33


def test_a_run_opened_before_hangup_was_installed_does_no_harm(
    clock: FakeClock,
) -> None:
    with opened(clock, name="before") as run, instrumented() as telemetry:
        tracer = telemetry.tracer()
        with opened(clock, name="child"):
            _call(tracer, clock, 1, (3, 4))
        run.cancel("killed")
        with pytest.raises(Stop), chat(tracer):
            pass
    with opened(clock, name="before"), instrumented():
        pass


# Runs of other processes


def _joined(clock: FakeClock, **options: Any) -> RunScope:
    return opened(clock, token="ab" * 16, joined=True, mode="observe", **options)


def test_a_joined_run_is_booked_when_its_fate_is_told_and_counted_elsewhere(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with _joined(clock):
        _call(tracer, clock, 1, (3, 4))
        left = clock.monotonic()
        _call(tracer, clock, 1, (5, 6))
    assert telemetry.total(names.TOKENS) == 0
    settlement.observer()._apply(
        Notice("ab" * 16, Outcome.ABANDONED, Cause.DISCONNECT, left, clock)
    )
    assert telemetry.tokens("sunk", cause="disconnect") == (3, 4)
    assert telemetry.tokens("wasted", cause="disconnect") == (5, 6)
    assert _outcomes(telemetry) == {}


def test_a_joined_run_whose_fate_nobody_tells_is_delivered_at_shutdown(
    clock: FakeClock,
) -> None:
    with instrumented() as telemetry:
        with _joined(clock):
            _call(telemetry.tracer(), clock, 1, (3, 4))
        hangup.uninstrument()
        assert telemetry.tokens("delivered") == (3, 4)


def test_a_joined_run_that_is_abandoned_here_is_counted_where_it_was_opened(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with _joined(clock) as run:
        run.cancel("disconnect")
        clock.advance(1)
        _call(tracer, clock, 1, (3, 4))
    assert telemetry.tokens("wasted") == (3, 4)
    assert _outcomes(telemetry) == {}


# Tenants, and what did not stop


def test_only_listed_tenants_have_a_label_of_their_own(clock: FakeClock) -> None:
    with instrumented(tenants="acme") as telemetry:
        for tenant in ("acme", "somebody", ""):
            with opened(clock, tenant=tenant):
                _call(telemetry.tracer(), clock, 1, (1_000, 1_000))
        spent = {
            series.labels[names.TENANT]: series.value
            for series in telemetry.series(names.TENANT_COST)[names.TENANT_COST]
            if series.value
        }
    assert spent.keys() == {"acme", "other"}
    assert spent["other"] == pytest.approx(2 * spent["acme"])


@in_loop
async def test_a_task_that_goes_on_after_the_stop_is_reported() -> None:
    with instrumented(settle=0.05) as telemetry:
        tracer = telemetry.tracer()
        enough = asyncio.Event()

        async def stubborn() -> None:
            with chat(tracer):
                while not enough.is_set():
                    try:
                        await enough.wait()
                    except asyncio.CancelledError:
                        continue

        async def work() -> None:
            async with RunScope(name="research") as run:
                task = asyncio.create_task(stubborn())
                await asyncio.sleep(0)
                run.cancel("killed")
                await asyncio.shield(task)

        with pytest.raises(RunAbandoned):
            await work()
        assert telemetry.total(names.UNSETTLED, run="research") == 1
        assert telemetry.total(names.STOP_DURATION, cause="killed") == 1
        enough.set()


@in_loop
async def test_a_swallowed_stop_is_counted_once_per_run() -> None:
    with instrumented() as telemetry:
        tracer = telemetry.tracer()

        async def work() -> None:
            async with RunScope(name="research") as run:
                run.cancel("killed")
                with contextlib.suppress(asyncio.CancelledError):
                    await for_ever()
                for _ in range(3):
                    with pytest.raises(Stop), chat(tracer):
                        pass
                hangup.check()

        with pytest.raises(RunAbandoned):
            await work()
        assert telemetry.total(names.SWALLOWED, run="research") == 1
        assert telemetry.abandoned() == {"killed": 1}
