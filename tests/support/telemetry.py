"""hangup on an SDK of its own, and the spans that instrumentations make.

As :mod:`hangup.testing`, with what only tests of hangup itself need: a multi-processor
of choice, processors around ours, and short names for labels.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import (
    InMemoryLogRecordExporter,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from hangup import testing
from hangup.core.scope import RunScope
from hangup.errors import RunAbandoned
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry._logs import LogRecord
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import (
        ConcurrentMultiSpanProcessor,
        ReadableSpan,
        Span,
        SynchronousMultiSpanProcessor,
    )
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Tracer

    from hangup.core.run import Run

_LABELS = {
    "basis": names.BASIS,
    "caller": names.CALLER,
    "cause": names.CAUSE,
    "decision": names.DECISION,
    "fate": names.FATE,
    "in_run": names.IN_RUN,
    "kind": names.CALL_KIND,
    "mode": names.MODE,
    "model": names.MODEL,
    "outcome": names.OUTCOME,
    "run": names.RUN_NAME,
    "state": names.STATE,
    "tenant": names.TENANT,
    "type": names.TOKEN_TYPE,
}


class Series(NamedTuple):
    """One label set of one instrument.

    Attributes:
        labels: The label set.
        value: The sum, the gauge's value, or the count of a histogram.
        width: How many Prometheus series it makes: 1, or the buckets, sum and count.
    """

    labels: Mapping[str, Any]
    value: float
    width: int


class CountingProcessor(SpanProcessor):
    """Counts what a processor that is not ours hears of each span."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.started.append(span.name)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span.name)

    @property
    def balanced(self) -> bool:
        """Whether every span that was started was ended."""
        return sorted(self.started) == sorted(self.ended)


class Telemetry(testing.Telemetry):
    """Reads spans and metrics back, in short words.

    Attributes:
        before: A processor added before hangup's own.
        after: A processor added after it.
    """

    def __init__(
        self,
        sampler: Sampler | None = None,
        multi: SynchronousMultiSpanProcessor
        | ConcurrentMultiSpanProcessor
        | None = None,
    ) -> None:
        super().__init__(sampler)
        if multi is not None:
            self.tracer_provider.shutdown()
            self.tracer_provider = TracerProvider(
                sampler=sampler, active_span_processor=multi, shutdown_on_exit=False
            )
            self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._logs = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        self.logger_provider = LoggerProvider(shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(
            SimpleLogRecordProcessor(self._logs)
        )
        self.before, self.after = CountingProcessor(), CountingProcessor()
        self.tracer_provider.add_span_processor(self.before)

    @property
    def closed(self) -> list[Mapping[str, Any]]:
        """The attributes of every ``hangup.run.closed`` event, in order."""
        return [dict(record.attributes or {}) for record in self.records]

    @property
    def records(self) -> list[LogRecord]:
        """The ``hangup.run.closed`` events, in order."""
        self.total(names.TOKENS)  # what has ended is told of
        records = [log.log_record for log in self._logs.get_finished_logs()]
        return [one for one in records if one.event_name == names.EVENT_CLOSED]

    def span(self, name: str) -> ReadableSpan:
        """The one exported span of that name."""
        [found] = [span for span in self.spans() if span.name == name]
        return found

    def series(self, metric: str | None = None) -> dict[str, list[Series]]:
        """Collect, and return every series by metric, or those of one metric."""
        data = self._reader.get_metrics_data()
        found: dict[str, list[Series]] = {}
        for resource in () if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                for one in scope.metrics:
                    if metric in (None, one.name):
                        points = found.setdefault(one.name, [])
                        points += [_series(point) for point in one.data.data_points]
        return found

    def total(self, metric: str, **labels: object) -> float:
        """Sum the series of a metric that carry these labels, in short names."""
        wanted = {_LABELS[key]: value for key, value in labels.items()}
        return sum(
            series.value
            for series in self.series(metric).get(metric, ())
            if wanted.items() <= series.labels.items()
        )

    def tokens(self, fate: str, **labels: object) -> tuple[float, float]:
        """Input and output tokens of one fate."""
        return (
            self.total(names.TOKENS, fate=fate, type="input", **labels),
            self.total(names.TOKENS, fate=fate, type="output", **labels),
        )

    def abandoned(self) -> dict[str, int]:
        """Abandoned runs by cause, those with any."""
        counted: dict[str, int] = {}
        for series in self.series(names.RUNS).get(names.RUNS, ()):
            if series.labels[names.OUTCOME] == "abandoned" and series.value:
                cause = series.labels[names.CAUSE]
                counted[cause] = counted.get(cause, 0) + int(series.value)
        return counted


def _series(point: Any) -> Series:
    labels = dict(point.attributes or {})
    if isinstance(point, HistogramDataPoint):
        return Series(labels, point.count, len(point.bucket_counts) + 2)
    return Series(labels, point.value, 1)


@contextmanager
def instrumented(
    sampler: Sampler | None = None,
    multi: SynchronousMultiSpanProcessor | ConcurrentMultiSpanProcessor | None = None,
    **settings: object,
) -> Iterator[Telemetry]:
    """Install hangup on providers of its own for the block."""
    telemetry = Telemetry(sampler, multi)
    instrumentor = HangupInstrumentor()
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider,
        meter_provider=telemetry.meter_provider,
        **({"logger_provider": telemetry.logger_provider, "frameworks": ()} | settings),
    )
    telemetry.tracer_provider.add_span_processor(telemetry.after)
    try:
        yield telemetry
    finally:
        instrumentor.uninstrument()
        telemetry.tracer_provider.shutdown()
        telemetry.meter_provider.shutdown()


def opened(
    clock: testing.FakeClock, budget: float | None = None, **options: Any
) -> RunScope:
    """A run on a clock that the test moves."""
    return RunScope(budget, clock=clock, **({"name": "research"} | options))


@contextmanager
def abandoned(
    clock: testing.FakeClock,
    budget: float | None = None,
    *,
    around: AbstractContextManager[object] | None = None,
    **options: Any,
) -> Iterator[Run]:
    """A run that ends in ``RunAbandoned``, or the test fails.

    Args:
        clock: The run's.
        budget: The run's.
        around: What the run is opened in.
        options: Of the run.
    """
    with (
        pytest.raises(RunAbandoned),
        around or nullcontext(),
        opened(clock, budget, **options) as run,
    ):
        yield run


def chat(
    tracer: Tracer,
    model: str | None = "gpt-4o",
    name: str = "chat",
    more: Mapping[str, Any] | None = None,
) -> Any:
    """A model call as instrumentations report it: ``with chat(tracer) as span``."""
    return tracer.start_as_current_span(
        name,
        attributes={
            "gen_ai.operation.name": "chat",
            **({} if model is None else {"gen_ai.request.model": model}),
            **(more or {}),
        },
    )


def used(span: Any, tokens_in: int | None, tokens_out: int | None) -> None:
    """Report usage on a span."""
    if tokens_in is not None:
        span.set_attribute("gen_ai.usage.input_tokens", tokens_in)
    if tokens_out is not None:
        span.set_attribute("gen_ai.usage.output_tokens", tokens_out)


def tool(tracer: Tracer, name: str = "search") -> Any:
    """A tool call as instrumentations report it."""
    return tracer.start_as_current_span(
        name,
        attributes={
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
        },
    )


def agent(tracer: Tracer, name: str = "agent") -> Any:
    """An agent call as instrumentations report it."""
    return tracer.start_as_current_span(
        name, attributes={"gen_ai.operation.name": "invoke_agent"}
    )
