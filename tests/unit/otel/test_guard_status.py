"""A deliberate stop is not an error on any span; a missed deadline is one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from opentelemetry.trace import StatusCode
from support.telemetry import abandoned, chat, opened

from hangup.errors import RunAbandoned
from hangup.otel import names

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.testing import FakeClock


def _status(telemetry: Telemetry, name: str) -> tuple[StatusCode, object]:
    span = telemetry.span(name)
    return span.status.status_code, (span.attributes or {}).get(names.CAUSE)


@pytest.mark.parametrize(
    ("cause", "status"),
    [("killed", StatusCode.UNSET), ("deadline", StatusCode.ERROR)],
)
def test_a_span_that_was_cut_is_an_error_only_if_late(
    telemetry: Telemetry,
    tracer: Tracer,
    clock: FakeClock,
    cause: str,
    status: StatusCode,
) -> None:
    async def work() -> None:
        async with opened(clock, 10) as run:
            span = tracer.start_span(
                "cut", attributes={"gen_ai.operation.name": "chat"}
            )
            if cause == "deadline":
                clock.advance(10)
            else:
                run.cancel(cause)
            try:
                await asyncio.Event().wait()
            except BaseException as error:
                # What genai-openai does.
                span.record_exception(error)
                span.set_status(StatusCode.ERROR, str(error))
                span.end()
                raise

    with pytest.raises(RunAbandoned):
        asyncio.run(work())
    assert _status(telemetry, "cut") == (status, cause)
    # The event of the run, on the span it is seen by; and no "exception".
    events = [event.name for event in telemetry.span("cut").events]
    assert events == [names.EVENT_ABANDONED]


@pytest.mark.parametrize(
    ("cause", "status"),
    [("disconnect", StatusCode.UNSET), ("deadline", StatusCode.ERROR)],
)
def test_a_span_around_the_run_is_an_error_only_if_late(
    telemetry: Telemetry,
    tracer: Tracer,
    clock: FakeClock,
    cause: str,
    status: StatusCode,
) -> None:
    with abandoned(clock, 10, around=tracer.start_as_current_span("around")) as run:
        if cause == "deadline":
            clock.advance(10)
        else:
            run.cancel(cause)
        with chat(tracer):
            pass
    assert _status(telemetry, "around") == (status, cause)


def test_a_real_error_in_a_stopped_run_stays_an_error(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    def work() -> None:
        with opened(clock) as run:
            run.cancel("killed")
            with tracer.start_as_current_span("broken"):
                raise ValueError("real")

    with pytest.raises(ValueError, match="real"):
        work()
    assert telemetry.span("broken").status.status_code is StatusCode.ERROR
    assert [event.name for event in telemetry.span("broken").events] == ["exception"]


def test_a_cancel_that_is_not_ours_keeps_the_status_it_is_given(
    telemetry: Telemetry, tracer: Tracer, clock: FakeClock
) -> None:
    async def work() -> None:
        async with opened(clock):
            span = tracer.start_span("cut")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                span.record_exception(error)
                span.set_status(StatusCode.ERROR)
                span.end()
                raise

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert _status(telemetry, "cut") == (StatusCode.ERROR, None)
    assert len(telemetry.span("cut").events) == 1
