"""What a caller looks like to the propagator: a span, a baggage, a run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import baggage, context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hangup.core.scope import RunScope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.testing import FakeClock

INSIDE = {"server.address": "subagent.team.svc"}
OUTSIDE = {"server.address": "api.openai.com"}

provider = TracerProvider()
tracer = provider.get_tracer("test")


def stock() -> CompositePropagator:
    return CompositePropagator(
        [TraceContextTextMapPropagator(), W3CBaggagePropagator()]
    )


@contextmanager
def calling(
    attributes: dict[str, Any] | None = None, kind: SpanKind = SpanKind.CLIENT
) -> Iterator[None]:
    with tracer.start_as_current_span("call", kind=kind, attributes=attributes):
        yield


@contextmanager
def with_baggage(**entries: str) -> Iterator[None]:
    here = context.get_current()
    for key, value in entries.items():
        here = baggage.set_baggage(key, value, here)
    token = context.attach(here)
    try:
        yield
    finally:
        context.detach(token)


def a_run(clock: FakeClock, budget: float | None = 10.0, **options: Any) -> RunScope:
    return RunScope(budget, name="test", clock=clock, **options)
