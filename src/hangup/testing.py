"""Tools to test code that runs under hangup. Import it in tests only.

:class:`FakeClock` jumps hours in microseconds; :func:`telemetry` instruments an
OpenTelemetry SDK of its own and reads back what was recorded.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hangup import config
from hangup.core import guard
from hangup.errors import MisuseError
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Tracer

# Far apart and whole, so that an instant of one clock is nonsense on another, and
# sums of simple fractions are exact.
_STARTS = itertools.count(100_000, 7_919)


class _FakeTimer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """A :class:`hangup.core.clock.Clock` that moves when told to.

    Each clock begins at an arbitrary instant of its own, so that two clocks mixed up
    do not go unnoticed. Reading and arming are thread-safe.

    Timers fire in the thread that calls :meth:`advance`. Call it on the event loop's
    thread, and from another task than the one under test: a timer may cancel a task,
    and that is never done to the task that is running. What a timer hands to the loop
    happens when the loop next turns.

    Args:
        wall: Seconds since the Unix epoch to begin at.
    """

    def __init__(self, *, wall: float = 1_750_000_000.0) -> None:
        self._now = float(next(_STARTS))
        self._wall_offset = wall - self._now
        self._timers: list[tuple[float, int, _FakeTimer]] = []
        self._sequence = itertools.count()
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """Seconds; only differences mean anything."""
        return self._now

    def wall(self) -> float:
        """Seconds since the Unix epoch; moves along, and steps with `set_wall`."""
        return self._now + self._wall_offset

    def call_at(self, when: float, callback: Callable[[], None]) -> _FakeTimer:
        """Run ``callback`` in the `advance` that reaches ``when``, once.

        One that is due already fires in the next `advance`, also in one by 0.
        """
        timer = _FakeTimer(callback)
        with self._lock:
            heapq.heappush(self._timers, (when, next(self._sequence), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass; due timers fire in order, each at its own instant.

        A timer that is armed meanwhile and falls due before the end fires too. An
        exception of a callback comes out, with the clock at that instant.

        Raises:
            ValueError: ``seconds`` is negative: this clock never steps back.
        """
        if not seconds >= 0:
            raise ValueError(f"a monotonic clock cannot advance by {seconds!r} s")
        end = self._now + seconds
        while (callback := self._next_due(end)) is not None:
            callback()
        self._now = max(self._now, end)

    def set_wall(self, seconds: float) -> None:
        """Step the wall clock, as an administrator or NTP does; timers do not care."""
        self._wall_offset = seconds - self._now

    @property
    def pending(self) -> int:
        """How many timers are armed and not cancelled."""
        with self._lock:
            return sum(timer.callback is not None for *_, timer in self._timers)

    def _next_due(self, end: float) -> Callable[[], None] | None:
        with self._lock:
            while self._timers and self._timers[0][0] <= end:
                when, _, timer = heapq.heappop(self._timers)
                if timer.callback is not None:
                    self._now = max(self._now, when)
                    return timer.callback
        return None


class Telemetry:
    """What :func:`telemetry` recorded. Reading it is thread-safe and has no effect.

    Attributes:
        tracer_provider: The SDK provider that hangup watches.
        meter_provider: Where hangup's metrics go.
    """

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider: TracerProvider = TracerProvider(
            sampler=sampler, shutdown_on_exit=False
        )
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider: MeterProvider = MeterProvider(
            [self._reader], shutdown_on_exit=False
        )

    def tracer(self, name: str = "test") -> Tracer:
        """Return a tracer of the watched provider."""
        return self.tracer_provider.get_tracer(name)

    def spans(self) -> tuple[ReadableSpan, ...]:
        """Return the spans that have ended, in the order of their ends."""
        return self._exporter.get_finished_spans()

    def points(self, name: str) -> tuple[Any, ...]:
        """Return the SDK's data points of a metric, () where there are none."""
        data = self._reader.get_metrics_data()
        return tuple(
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        )

    def value(
        self, name: str, labels: Mapping[str, object] | None = None, /, **more: object
    ) -> float:
        """Return the sum over the data points of a metric that have these labels.

        Args:
            name: The OpenTelemetry name, such as ``hangup.tokens``.
            labels: Label names, which mostly have dots, and their values.
            more: Labels whose names have none.

        Returns:
            0 where no point matches. Of a histogram, the number of recordings.
        """
        wanted = {**(labels or {}), **more}
        total: float = 0
        for point in self.points(name):
            if wanted.items() <= dict(point.attributes or {}).items():
                total += point.value if hasattr(point, "value") else point.count
        return total


@contextlib.contextmanager
def telemetry(
    *, sampler: Sampler | None = None, **settings: object
) -> Iterator[Telemetry]:
    """Instrument an OpenTelemetry SDK of its own for the block, and restore everything.

    The global providers are left alone: get tracers from the harness. Faults inside
    hangup, which production logs once and survives, are raised.

    Args:
        sampler: Of the tracer provider; everything is sampled if None.
        settings: As :func:`hangup.instrument` takes them, such as ``mode="enforce"``.

    Raises:
        MisuseError: hangup is instrumented already.
        ConfigError: A setting is unknown or its value cannot be used.
    """
    instrumentor = HangupInstrumentor()
    if instrumentor.is_instrumented_by_opentelemetry:
        raise MisuseError(
            "hangup.testing.telemetry() was entered while hangup is instrumented "
            "already; call hangup.uninstrument() first, and do not nest the harness"
        )
    recorded = Telemetry(sampler)
    was_strict = guard.strict(True)  # noqa: FBT003  a switch
    was_used = config.use(None)
    try:
        instrumentor.instrument(
            tracer_provider=recorded.tracer_provider,
            meter_provider=recorded.meter_provider,
            **({"frameworks": ()} | settings),
        )
        yield recorded
    finally:
        instrumentor.uninstrument()
        guard.strict(was_strict)
        config.use(was_used)
        recorded.tracer_provider.shutdown()
        recorded.meter_provider.shutdown()
