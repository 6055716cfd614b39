"""Cases c2, c4, c10 and c14: telemetry as people have it, on real servers."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    ParentBased,
    TraceIdRatioBased,
)
from opentelemetry.trace import StatusCode
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.core import in_loop
from support.rig import LONG, MODEL, SHORT, Caller, rig
from support.telemetry import opened

from hangup.core import registry
from hangup.demo.brain import Script
from hangup.errors import DeadlineExceeded
from hangup.otel import names
from hangup.servers.asgi import HangupMiddleware
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from starlette.requests import Request
    from support.rig import Rig

pytestmark = pytest.mark.timeout(60)

CLIENTS = 20
UNSAMPLED = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-00"}


def _json_route(rig_: Rig) -> Route:
    async def ask(request: Request) -> Response:
        await rig_.agent.ask()
        return JSONResponse({})

    return Route("/", ask)


@pytest.mark.parametrize(
    ("sampler", "headers"),
    [
        pytest.param(TraceIdRatioBased(0.0), {}, id="ratio 0"),
        pytest.param(ParentBased(ALWAYS_ON), UNSAMPLED, id="unsampled traceparent"),
        pytest.param(None, {}, id="SDK disabled"),
    ],
)
def test_c2_sampled_out_run_is_unprotected(
    sampler: Any, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call of an unsampled run whose client left is closed, and counted."""
    if sampler is None:
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")

    @in_loop
    async def check() -> None:
        async with rig(LONG, sampler=sampler) as rig_:
            provider = rig_.telemetry.tracer_provider

            def wrap(app: Any) -> Any:
                # A server span with the client's traceparent for a parent.
                return OpenTelemetryMiddleware(
                    HangupMiddleware(app), tracer_provider=provider
                )

            async with rig_.serving(_json_route(rig_), wrap=wrap) as served:
                callers = [
                    await Caller.asks(served, headers=headers) for _ in range(CLIENTS)
                ]
                await rig_.model.log.opened_count(CLIENTS)
                left = max(caller.leaves() for caller in callers)
                await rig_.model.log.closed_count(CLIENTS, within=5)
                await rig_.idle(served)
            await rig_.closed_in_time(left)
            assert all(call.cut for call in rig_.model.log.calls)
            assert rig_.telemetry.spans() == ()
            # Without an SDK there are no numbers; the stopping is what counts.
            expected = {} if sampler is None else {"disconnect": CLIENTS}
            assert rig_.telemetry.abandoned() == expected

    check()


# The pending change of the SDK, (ii), is in test_enforcement; here is its other half.


def test_c4_raising_in_on_start_is_borrowed_time() -> None:
    """Users' own errors arrive unchanged, and other processors miss no half of a span.

    That an SDK which swallows what processors raise changes nothing is shown in
    test_enforcement.
    """

    @in_loop
    async def check() -> None:
        async with rig(SHORT) as rig_, rig_.agent.talking():
            tracer = rig_.telemetry.tracer()
            mine = ValueError("mine")

            async def healthy() -> None:
                async with opened(FakeClock(), 10):
                    with tracer.start_as_current_span("step"):
                        await rig_.agent.ask()
                        raise mine

            with pytest.raises(ValueError, match="mine") as raised:
                await healthy()
            assert raised.value is mine

            async def expired() -> None:
                clock = FakeClock()
                async with opened(clock, 10):
                    clock.advance(10)
                    with tracer.start_as_current_span("late step"):
                        await rig_.agent.ask()

            with pytest.raises(DeadlineExceeded):
                await expired()
            assert rig_.model.log.opened == 1
            for processor in (rig_.telemetry.before, rig_.telemetry.after):
                assert processor.balanced
                assert len(processor.started) == 4
            assert rig_.telemetry.abandoned() == {"failed": 1, "deadline": 1}

    check()


@pytest.mark.parametrize("order", ["around", "inside"])
@pytest.mark.parametrize("cause", ["disconnect", "deadline"])
def test_c10_write_after_end(
    order: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The exported root span tells why, by when, and how late; nothing came too late.

    The server span may stand around the run or inside it.
    """

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_:
            provider = rig_.telemetry.tracer_provider
            budget = 0.4 if cause == "deadline" else 30

            def wrap(app: Any) -> Any:
                if order == "inside":
                    app = OpenTelemetryMiddleware(app, tracer_provider=provider)
                    return HangupMiddleware(app, budget=budget)
                app = HangupMiddleware(app, budget=budget)
                return OpenTelemetryMiddleware(app, tracer_provider=provider)

            async with rig_.serving(_json_route(rig_), wrap=wrap) as served:
                caller = await Caller.asks(served)
                await rig_.model.log.opened_count(1)
                if cause == "disconnect":
                    caller.leaves()
                else:
                    assert (await caller.answer())[0] == 504
                await rig_.model.log.closed_count(1, within=5)
                await rig_.idle(served)
            [root] = [span for span in rig_.telemetry.spans() if span.parent is None]
            attributes = dict(root.attributes or {})
            assert root.kind.name == "SERVER"
            assert attributes[names.CAUSE] == cause
            deadline = attributes[names.DEADLINE]
            assert isinstance(deadline, int)
            assert deadline / 1e3 == pytest.approx(time.time(), abs=60)
            overrun = attributes[names.SPAN_OVERRUN]
            assert isinstance(overrun, float)
            assert (overrun > 0) is (cause == "deadline")
            assert overrun < 5

    with caplog.at_level(logging.WARNING):
        check()
    assert "ended span" not in caplog.text


def test_c14_cancel_is_not_an_error() -> None:
    """Of a disconnect, a kill, a deadline and a 500, two are errors, and say so."""

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_:
            rig_.model.script("broken", Script(status=500, first_token=0.0))

            async def ask(request: Request) -> Response:
                name = request.path_params["cause"]
                model = "broken" if name == "failed" else MODEL
                await rig_.agent.client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "Well?"}]
                )
                return JSONResponse({})

            def wrap(app: Any) -> Any:
                app = HangupMiddleware(app, routes={"/deadline": {"budget": 0.4}})
                return OpenTelemetryMiddleware(
                    app, tracer_provider=rig_.telemetry.tracer_provider
                )

            async with rig_.serving(Route("/{cause}", ask), wrap=wrap) as served:
                leaver = await Caller.asks(served, "/disconnect")
                await rig_.model.log.opened_count(1)
                leaver.leaves()
                await rig_.model.log.closed_count(1, within=5)

                killed = await Caller.asks(served, "/killed")
                await rig_.model.log.opened_count(2)
                [run] = [one for one in registry.live_runs() if one.cause is None]
                run.cancel("killed", "by test")
                assert (await killed.answer())[0] == 409

                late = await Caller.asks(served, "/deadline")
                assert (await late.answer())[0] == 504

                failed = await Caller.asks(served, "/failed")
                assert (await failed.answer())[0] == 500
                await rig_.idle(served)
            calls = {
                _cause(span): span
                for span in rig_.telemetry.spans()
                if span.name.startswith("chat")
            }
            assert calls.keys() == {"disconnect", "killed", "deadline", None}
            assert {
                cause
                for cause, span in calls.items()
                if span.status.status_code is StatusCode.ERROR
            } == {"deadline", None}
            servers = {
                _cause(span): span.status.status_code
                for span in rig_.telemetry.spans()
                if span.kind.name == "SERVER"
            }
            assert servers == {
                "disconnect": StatusCode.UNSET,
                "killed": StatusCode.UNSET,
                "deadline": StatusCode.ERROR,
                "failed": StatusCode.ERROR,
            }
            exceptions = [
                (event.attributes or {})["exception.type"]
                for span in rig_.telemetry.spans()
                for event in span.events
                if event.name == "exception"
            ]
            assert not [one for one in exceptions if "Cancel" in str(one)]
            assert rig_.telemetry.abandoned() == {
                "disconnect": 1,
                "killed": 1,
                "deadline": 1,
                "failed": 1,
            }

    check()


def _cause(span: ReadableSpan) -> object:
    return (span.attributes or {}).get(names.CAUSE)
