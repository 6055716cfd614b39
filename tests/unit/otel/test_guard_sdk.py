"""What the guard does to the SDK: as little as can be seen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as context_api
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, StatusCode
from support.telemetry import chat, opened

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span
    from opentelemetry.trace import Tracer
    from support.telemetry import Telemetry

    from hangup.testing import FakeClock


def test_a_provider_that_is_not_watched_is_left_alone(
    telemetry: Telemetry, clock: FakeClock
) -> None:
    class Looks(SpanProcessor):
        def on_start(self, span: Span, parent_context: Context | None = None) -> None:
            seen.append(parent_context)

    seen: list[Context | None] = []
    other = TracerProvider(shutdown_on_exit=False)
    other.add_span_processor(Looks())
    with opened(clock, 10):
        clock.advance(11)
        with chat(other.get_tracer("x")) as span:
            assert span.is_recording()
    other.shutdown()
    assert seen == [None]


def test_all_ways_to_call_start_span_still_work(
    telemetry: Telemetry, tracer: Tracer
) -> None:
    root = tracer.start_span(name="keywords", kind=SpanKind.CLIENT, start_time=7)
    link = trace.Link(root.get_span_context())
    attributes = {"gen_ai.operation.name": "chat"}
    both = tracer.start_span(
        "mixed", None, SpanKind.SERVER, attributes, [link], start_time=8
    )
    for span in (root, both):
        span.end()
    assert telemetry.span("keywords").start_time == 7
    mixed = telemetry.span("mixed")
    assert (mixed.start_time, mixed.kind) == (8, SpanKind.SERVER)
    assert len(mixed.links) == 1


def test_a_processor_is_given_the_context_that_was_current(
    telemetry: Telemetry, tracer: Tracer
) -> None:
    """Also one that works on another thread, where another one is current."""

    class Looks(SpanProcessor):
        def on_start(self, span: Span, parent_context: Context | None = None) -> None:
            look = elsewhere.submit(baggage.get_baggage, "who", parent_context)
            seen.append(look.result())

    seen: list[object] = []
    elsewhere = ThreadPoolExecutor(1)
    telemetry.tracer_provider.add_span_processor(Looks())
    here = baggage.set_baggage("who", "current")
    given = baggage.set_baggage("who", "given")
    token = context_api.attach(here)
    tracer.start_span("nothing said").end()
    with chat(tracer):
        pass
    tracer.start_span("one is given", given).end()
    context_api.detach(token)
    elsewhere.shutdown()
    assert seen == ["current", "current", "given"]


def test_all_ways_to_call_set_status_still_work(
    telemetry: Telemetry, tracer: Tracer
) -> None:
    for name, arguments, keywords in (
        ("positional", (StatusCode.ERROR, "boom"), {}),
        ("described", (StatusCode.ERROR,), {"description": "boom"}),
        ("named", (), {"status": trace.Status(StatusCode.ERROR, "boom")}),
    ):
        span = tracer.start_span(name)
        span.set_status(*arguments, **keywords)
        span.end()
        status = telemetry.span(name).status
        assert (status.status_code, status.description) == (StatusCode.ERROR, "boom")


def test_a_fault_of_ours_never_reaches_the_caller(
    telemetry: Telemetry,
    tracer: Tracer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    clock: FakeClock,
) -> None:
    from hangup.core import guard  # noqa: PLC0415  only here
    from hangup.otel.recorder import Recorder  # noqa: PLC0415

    guard.strict(False)  # noqa: FBT003  a switch

    def broken(*_args: Any) -> None:
        raise LookupError("ours")

    for method in ("around", "start", "end", "nest"):
        monkeypatch.setattr(Recorder, method, broken)
    with opened(clock), chat(tracer), tracer.start_as_current_span("inner"):
        pass
    assert [span.name for span in telemetry.spans()] == ["inner", "chat"]
    assert "failed inside hangup" in caplog.text


def test_under_tests_a_fault_of_ours_is_loud(
    telemetry: Telemetry, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hangup.otel.recorder import Recorder  # noqa: PLC0415

    def broken(*_args: Any) -> None:
        raise LookupError("ours")

    monkeypatch.setattr(Recorder, "start", broken)
    with pytest.raises(LookupError), chat(tracer):
        pass
