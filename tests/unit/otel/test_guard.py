"""Where a spending call starts: refused or let through, decided once, seen by all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from support.telemetry import abandoned, chat, opened, tool, used

from hangup import config
from hangup.errors import DeadlineExceeded, RunAbandoned, RunCancelled, Stop
from hangup.otel import names

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.testing import FakeClock


def _refused_by(clock: FakeClock, tracer: Tracer, cause: str) -> None:
    """Let a run be abandoned for ``cause`` and have one call refused."""
    with abandoned(clock, 10) as run:
        if cause == "deadline":
            clock.advance(10)
        else:
            run.cancel(cause, "by test")
        with chat(tracer):
            pytest.fail("the body of a refused span must not run")


@pytest.mark.parametrize(
    "cause", ["deadline", "disconnect", "killed", "superseded", "shutdown"]
)
def test_a_refused_span_is_exported_with_its_cause_and_is_an_error_only_if_late(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock, cause: str
) -> None:
    _refused_by(clock, tracer, cause)
    span = telemetry.span("chat")
    assert span.attributes is not None
    assert span.attributes[names.CAUSE] == cause
    assert span.attributes[names.DECISION] == "refuse"
    assert len(str(span.attributes[names.RUN_ID])) == 32
    late = cause == "deadline"
    assert span.status.status_code is (StatusCode.ERROR if late else StatusCode.UNSET)
    assert not span.events
    assert telemetry.total(names.REFUSALS, cause=cause, kind="inference") == 1
    assert telemetry.total(names.REFUSALS) == 1


def test_every_processor_hears_of_a_refused_span_from_start_to_end(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with chat(tracer, name="healthy"):
        pass
    _refused_by(clock, tracer, "deadline")
    for processor in (telemetry.before, telemetry.after):
        assert processor.started == ["healthy", "chat"]
        assert processor.balanced


def test_the_current_span_is_what_it_was_after_a_refusal(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with tracer.start_as_current_span("outer") as outer, opened(clock, 10):
        clock.advance(11)
        with pytest.raises(Stop), chat(tracer):
            pass
        assert trace.get_current_span() is outer


def test_only_spending_calls_are_refused(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 10) as run:
        clock.advance(11)
        for attributes in (
            None,
            {},
            {"http.request.method": "POST"},
            {"gen_ai.operation.name": "create_agent"},
            {"mcp.method.name": "tools/list"},
            {"gen_ai.operation.name": 7},
        ):
            tracer.start_span("not a call", attributes=attributes).end()
        assert run.cause == "deadline"
    assert telemetry.total(names.REFUSALS) == 0
    assert len(telemetry.spans()) == 6


def test_a_call_within_its_time_is_let_through(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 10):
        clock.advance(9.999)
        with chat(tracer):
            pass
    span = telemetry.span("chat")
    assert span.attributes is not None
    assert names.DECISION not in span.attributes
    assert telemetry.total(names.REFUSALS) == 0


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_outside_refuse_and_enforce_a_late_call_goes_on(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock, mode: str
) -> None:
    with opened(clock, 10, mode=mode):
        clock.advance(11)
        with chat(tracer) as span:
            used(span, 5, 7)
    watched = mode == "observe"
    assert telemetry.total(names.REFUSALS, decision="would_refuse") == watched
    assert telemetry.total(names.REFUSALS, decision="refuse") == 0
    assert telemetry.span("chat").status.status_code is StatusCode.UNSET


def test_a_kill_acts_in_observe_too(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock, mode="observe") as run:
        run.cancel("killed")
        with chat(tracer):
            pass
    assert telemetry.total(names.REFUSALS, decision="refuse", cause="killed") == 1


def test_chat_inside_chat_is_one_call_and_decided_once(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 10, mode="observe"):
        clock.advance(11)
        with chat(tracer, name="framework"), chat(tracer, name="provider") as inner:
            used(inner, 5, 7)
    assert telemetry.total(names.REFUSALS) == 1


def test_a_call_that_runs_late_between_two_reporters_is_stopped_uncounted(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with abandoned(clock, 10), chat(tracer, name="framework"):
        clock.advance(11)
        with chat(tracer, name="provider"):
            pytest.fail("it must not start")
    assert telemetry.total(names.REFUSALS) == 0
    assert telemetry.before.balanced


def test_a_tool_that_asks_a_model_inside_a_model_call_is_decided_anew(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, 10, mode="observe"):
        clock.advance(11)
        with chat(tracer), tool(tracer), chat(tracer):
            pass
    assert telemetry.total(names.REFUSALS, kind="inference") == 2
    assert telemetry.total(names.REFUSALS, kind="tool") == 1


def test_on_a_thread_the_run_did_not_start_a_refusal_is_an_ordinary_error(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    raised: list[BaseException] = []

    def serve(context: Any) -> None:
        token = context_api.attach(context)
        try:
            with chat(tracer):
                pass
        except RunAbandoned as error:
            raised.append(error)
        finally:
            context_api.detach(token)

    with opened(clock, 10):
        clock.advance(11)
        worker = threading.Thread(target=serve, args=(context_api.get_current(),))
        worker.start()
        worker.join()
    [error] = raised
    assert isinstance(error, DeadlineExceeded)
    assert telemetry.before.balanced


def test_a_context_given_to_start_span_decides_whose_call_it_is(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, name="one") as one:
        inside = context_api.get_current()
        one.cancel("killed")
    attributes = {"gen_ai.operation.name": "chat"}
    tracer.start_span("outside", attributes=attributes).end()
    with pytest.raises(RunCancelled):
        tracer.start_span("inside", context=inside, attributes=attributes)


def test_a_delivered_run_and_one_closed_long_ago_refuse_nothing(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock) as run:
        delivered = context_api.get_current()
        run.deliver()
        with chat(tracer):
            pass
    with opened(clock) as run:
        abandoned = context_api.get_current()
        run.cancel("killed")
    attributes = {"gen_ai.operation.name": "chat"}

    def start(context: Any) -> None:
        tracer.start_span("leftover", context=context, attributes=attributes).end()

    start(delivered)
    with pytest.raises(RunCancelled):
        start(abandoned)
    clock.advance(config.current().refuse_for)
    with pytest.raises(RunCancelled):
        start(abandoned)
    clock.advance(0.001)
    start(abandoned)


def test_a_latent_run_leaves_latency_with_its_first_spending_call(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    with opened(clock, latent=True, server=True) as run:
        with tracer.start_as_current_span("SELECT"):
            pass
        run.cancel("disconnect")
        assert run.latent
        assert run.cause is None
        with pytest.raises(Stop), chat(tracer):
            pass
        assert not run.latent
    assert telemetry.abandoned() == {"disconnect": 1}
