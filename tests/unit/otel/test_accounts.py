"""What happens to runs becomes numbers, each once."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context as context_api
from support.core import in_loop
from support.telemetry import abandoned, chat, instrumented, opened, tool, used

import hangup
from hangup.core.scope import RunScope
from hangup.errors import DeadlineExceeded, Stop
from hangup.otel import names

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.core.run import Run
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


# Roots


def test_a_delivered_run(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 10) as run:
        run.caller = "connected"
        _call(tracer, clock, 4, (56, 5))
    assert telemetry.tokens("delivered", cause="none", mode="enforce") == (56, 5)
    assert telemetry.total(names.TOKENS) == 61
    assert _outcomes(telemetry) == {("delivered", "none"): 1}
    assert telemetry.total(names.RUNS, caller="connected", run="research") == 1
    assert telemetry.total(names.SLACK, run="research") == 1
    assert telemetry.total(names.OVERRUN) == 0
    assert telemetry.total(names.RUN_DURATION, outcome="delivered") == 1
    assert telemetry.total(names.STOP_DURATION) == 0


def test_an_abandoned_run_is_counted_once_however_often_it_is_cancelled(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock, 10) as run:
        _call(tracer, clock, 4, (56, 5))
        run.cancel("disconnect")
        run.cancel("killed")
        clock.advance(10)
        for _ in range(3):
            with pytest.raises(Stop), chat(tracer):
                pass
        raise run.error()
    assert _outcomes(telemetry) == {("abandoned", "disconnect"): 1}
    assert telemetry.total(names.RUNS, caller="gone") == 1
    assert telemetry.total(names.REFUSALS, cause="disconnect") == 3
    assert telemetry.tokens("sunk", cause="disconnect") == (56, 5)
    assert telemetry.total(names.TOKENS) == 61
    assert telemetry.total(names.RUN_DURATION, outcome="abandoned") == 1
    assert telemetry.total(names.STOP_DURATION, cause="disconnect") == 1


def test_a_call_across_t0_is_split_there_and_posted_when_it_ends(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as run:
        with chat(tracer) as span:
            clock.advance(1)
            span.set_attribute("gen_ai.response.time_to_first_chunk", 1.0)
            clock.advance(3)
            run.cancel("disconnect")
            assert telemetry.total(names.TOKENS) == 0
            clock.advance(7)
            used(span, 20, 100)
        assert telemetry.tokens("sunk") == (20, 30)
        assert telemetry.tokens("wasted") == (0, 70)
    assert telemetry.total(names.ESTIMATED_TOKENS, basis="prorated") == 100
    assert telemetry.total(names.CALL_TIME, fate="sunk") == 4
    assert telemetry.total(names.CALL_TIME, fate="wasted") == 7
    assert telemetry.total(names.CALLS) == 1


def test_a_t0_noticed_late_still_splits_what_ended_before_it_was_noticed(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as run:
        _call(tracer, clock, 2, (1, 1))
        left = clock.monotonic()
        _call(tracer, clock, 2, (10, 10))
        run.cancel("disconnect", at=left)
    assert telemetry.tokens("sunk") == (1, 1)
    assert telemetry.tokens("wasted") == (10, 10)


def test_a_call_that_ends_after_its_run_was_closed_is_posted_then(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="observe") as run:
        run.cancel("disconnect")
        clock.advance(1)
        span = tracer.start_span("chat", attributes={"gen_ai.operation.name": "chat"})
    del run
    gc.collect()
    clock.advance(1)
    used(span, 3, 4)
    span.end()
    assert telemetry.tokens("wasted", cause="disconnect") == (3, 4)


def test_work_after_delivery_is_neither_refused_nor_waste(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 10) as run:
        inside = context_api.get_current()
        with chat(tracer) as across:
            clock.advance(2)
            run.deliver()
            clock.advance(2)
            used(across, 10, 40)
        clock.advance(20)
        _call(tracer, clock, 1, (3, 4))
    span = tracer.start_span(
        "late", context=inside, attributes={"gen_ai.operation.name": "chat"}
    )
    span.end()
    assert telemetry.tokens("delivered") == (10, 20)
    assert telemetry.tokens("after") == (0, 20)
    assert telemetry.total(names.TOKENS, fate="wasted") == 0
    assert telemetry.total(names.REFUSALS) == 0
    assert _outcomes(telemetry) == {("delivered", "none"): 1}
    # Over is over: what starts afterwards belongs to no run at all.
    assert telemetry.total(names.METERED_TOKENS, in_run=False) == 7


def test_in_observe_a_passed_deadline_is_only_a_would_stop(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 10, mode="observe"):
        clock.advance(12)
        _call(tracer, clock, 3, (56, 5))
        with tool(tracer):
            pass
    assert _outcomes(telemetry) == {("late", "none"): 1}
    assert telemetry.tokens("delivered") == (56, 5)
    assert telemetry.total(names.TOKENS, fate="wasted") == 0
    assert telemetry.total(names.REFUSALS, decision="would_refuse") == 2
    assert telemetry.total(names.REFUSALS, decision="refuse") == 0
    assert telemetry.total(names.OVERRUN) == 1
    assert telemetry.total(names.SLACK) == 0


def test_a_failed_run_wastes_what_its_leftovers_spend(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    def work() -> None:
        with opened(clock, mode="observe"):
            _call(tracer, clock, 1, (1, 1))
            spans.append(
                tracer.start_span("x", attributes={"gen_ai.operation.name": "chat"})
            )
            clock.advance(1)
            raise ValueError("real")

    spans: list[Any] = []
    with pytest.raises(ValueError, match="real"):
        work()
    clock.advance(2)
    used(spans[0], 8, 9)
    spans[0].end()
    assert _outcomes(telemetry) == {("abandoned", "failed"): 1}
    assert telemetry.tokens("sunk", cause="failed") == (9, 4)
    assert telemetry.tokens("wasted", cause="failed") == (0, 6)


def test_a_run_that_is_off_or_stayed_latent_is_counted_nowhere(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, mode="off"):
        pass
    with opened(clock, latent=True, server=True) as run:
        run.cancel("disconnect")
    with opened(clock, latent=True, server=True) as run:
        run.deliver()
    assert telemetry.series(names.RUNS) == {}


def test_whoever_answers_for_a_run_hears_of_its_end_after_the_books(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    """With the answer the server span ends, and must carry the cause by then."""
    seen: list[object] = []

    def answer(run: Run) -> None:
        seen.append((run.span.attributes[names.CAUSE], telemetry.abandoned()))

    def spending() -> None:
        run.on_abandon(answer)

    with (
        tracer.start_as_current_span("server"),
        opened(clock, latent=True, server=True, mode="observe") as run,
    ):
        run.on_spending(spending)
        run.begin_spending()
        run.cancel("killed")
    assert seen == [("killed", {"killed": 1})]


# Children


def test_a_childs_books_go_to_its_parent_whose_fate_they_share(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock, name="parent") as run:
        with opened(clock, name="child"):
            _call(tracer, clock, 1, (3, 4))
            with opened(clock, name="grandchild"):
                _call(tracer, clock, 1, (5, 6))
        assert telemetry.total(names.TOKENS) == 0
        run.cancel("killed")
        raise run.error()
    assert telemetry.tokens("sunk", run="parent", cause="killed") == (8, 10)
    assert telemetry.total(names.TOKENS) == 18
    assert _outcomes(telemetry) == {("abandoned", "killed"): 1}


def test_a_childs_own_deadline_is_its_own_waste_while_its_parent_is_delivered(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    def child() -> None:
        with opened(clock, 5, name="child"):
            with hangup.cleanup(budget=60):
                _call(tracer, clock, 4, (1, 2))
                with chat(tracer) as span:
                    clock.advance(4)
                    used(span, 10, 40)
                _call(tracer, clock, 1, (3, 4))
            hangup.check()

    with opened(clock, 100, name="parent"):
        with pytest.raises(DeadlineExceeded):
            child()
        _call(tracer, clock, 1, (7, 8))
    assert telemetry.tokens("sunk", run="child", cause="deadline") == (11, 12)
    assert telemetry.tokens("wasted", run="child", cause="deadline") == (3, 34)
    assert telemetry.tokens("delivered", run="parent") == (7, 8)
    assert _outcomes(telemetry) == {("delivered", "none"): 1}


def test_a_child_that_inherits_the_stop_is_not_a_second_abandoned_run(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock, name="parent") as run, opened(clock, name="child"):
        _call(tracer, clock, 1, (3, 4))
        run.cancel("disconnect")
        with chat(tracer):
            pass
    assert _outcomes(telemetry) == {("abandoned", "disconnect"): 1}
    assert telemetry.tokens("sunk", run="parent") == (3, 4)


@in_loop
async def test_a_childs_call_that_outlives_both_is_booked_once() -> None:
    with instrumented() as telemetry:
        tracer = telemetry.tracer()
        go_on = asyncio.Event()

        async def background() -> None:
            async with RunScope(name="child"):
                with chat(tracer) as span:
                    await go_on.wait()
                    used(span, 3, 4)

        async with RunScope(name="parent"):
            task = asyncio.create_task(background())
            await asyncio.sleep(0)
        assert _outcomes(telemetry) == {("delivered", "none"): 1}
        go_on.set()
        await task
        assert telemetry.total(names.TOKENS) == 7
        assert telemetry.tokens("after")[1] > 0
