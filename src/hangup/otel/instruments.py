"""The instruments: what is recorded, with which labels, at zero from the start.

The span path never calls an SDK instrument (about 7 us each): what every call adds goes
into plain sums that observable counters read at collection. Everything else is recorded
once per run.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.metrics import Observation

from hangup.core import registry
from hangup.core.cause import Cause
from hangup.core.policy import Decision
from hangup.otel import calls, names
from hangup.otel.labels import FewValues
from hangup.spend.fate import Basis, Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from decimal import Decimal

    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter

    from hangup.config import Mode
    from hangup.core.run import Run
    from hangup.spend.posting import Posting
    from hangup.spend.usage import Usage

_CALLERS = ("connected", "gone", "unknown")
_OUTCOMES = ("delivered", "late")


def fates() -> Iterator[tuple[str, str]]:
    """Yield every pair of fate and cause that can occur."""
    yield Fate.DELIVERED.value, names.NONE
    yield Fate.AFTER.value, names.NONE
    for cause in Cause:
        yield Fate.SUNK.value, cause.value
        yield Fate.WASTED.value, cause.value


class Metered:
    """What every call reported, whatever its fate: sums that only grow. Thread-safe."""

    def __init__(self, models: FewValues) -> None:
        self._models = models
        self._lock = threading.Lock()
        # (model, in a run) -> input, output, dollars, unpriced tokens
        self._sums: dict[tuple[str, bool], list[float]] = {}

    def add(
        self, model: str, usage: Usage, usd: Decimal | None, *, in_run: bool
    ) -> None:
        """Add one call."""
        tokens_in, tokens_out = usage.input or 0, usage.output or 0
        key = (self._models(model), in_run)
        with self._lock:
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = [0, 0, 0.0, 0]
            sums[0] += tokens_in
            sums[1] += tokens_out
            if usd is None:
                sums[3] += tokens_in + tokens_out
            else:
                sums[2] += float(usd)

    def seed(self, model: str) -> None:
        """Make the model's series exist at zero."""
        with self._lock:
            for in_run in (True, False):
                self._sums.setdefault((self._models(model), in_run), [0, 0, 0.0, 0])

    def tokens(self, _options: CallbackOptions) -> Iterable[Observation]:
        """Report ``hangup.metered.tokens``."""
        for (model, in_run), sums in self._snapshot():
            for index, kind in enumerate(("input", "output")):
                labels: dict[str, str | bool] = {
                    names.MODEL: model,
                    names.IN_RUN: in_run,
                    names.TOKEN_TYPE: kind,
                }
                yield Observation(int(sums[index]), labels)

    def cost(self, _options: CallbackOptions) -> Iterable[Observation]:
        """Report ``hangup.metered.cost.usd``."""
        for (model, in_run), sums in self._snapshot():
            yield Observation(sums[2], {names.MODEL: model, names.IN_RUN: in_run})

    def unpriced(self, _options: CallbackOptions) -> Iterable[Observation]:
        """Report ``hangup.token.unpriced``."""
        totals: dict[str, float] = {}
        for (model, _), sums in self._snapshot():
            totals[model] = totals.get(model, 0) + sums[3]
        for model, tokens in totals.items():
            yield Observation(int(tokens), {names.MODEL: model})

    def _snapshot(self) -> list[tuple[tuple[str, bool], list[float]]]:
        with self._lock:
            return [(key, list(sums)) for key, sums in self._sums.items()]


class Instruments:
    """Every instrument of hangup on one meter. Thread-safe.

    Args:
        meter: Where they are made.
        version: For ``hangup.info``.
        mode: For ``hangup.info``: the mode in force for the process.
        before_collect: Called at every collection, before anything is read.
    """

    def __init__(
        self, meter: Meter, version: str, mode: str, before_collect: Callable[[], None]
    ) -> None:
        self.names = FewValues(names.MOST_RUN_NAMES)
        self.models = FewValues(names.MOST_MODELS)
        self.metered = Metered(self.models)
        self._seeded: set[tuple[str, ...]] = set()
        self._info = {names.VERSION: version, names.MODE: mode}
        self._before_collect = before_collect

        def counter(name: str, unit: str, doc: str) -> Counter:
            return meter.create_counter(name, unit=unit, description=doc)

        def histogram(name: str, doc: str, bounds: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(
                name,
                unit="s",
                description=doc,
                explicit_bucket_boundaries_advisory=list(bounds),
            )

        # First, so that its callback comes first in every collection.
        meter.create_observable_gauge(
            names.INFO, callbacks=[self._observe_info], description="Always 1"
        )
        meter.create_observable_gauge(
            names.OLDEST,
            callbacks=[self._observe_oldest],
            unit="s",
            description="For how long the oldest abandoned run has been stopping",
        )
        meter.create_observable_up_down_counter(
            names.ACTIVE,
            callbacks=[self._observe_active],
            unit="{run}",
            description="Runs now, by state",
        )
        meter.create_observable_counter(
            names.METERED_TOKENS,
            callbacks=[self.metered.tokens],
            unit="{token}",
            description="Tokens that any call reported",
        )
        meter.create_observable_counter(
            names.METERED_COST,
            callbacks=[self.metered.cost],
            unit="{USD}",
            description="What the metered tokens cost",
        )
        meter.create_observable_counter(
            names.UNPRICED,
            callbacks=[self.metered.unpriced],
            unit="{token}",
            description="Tokens of models without a price",
        )
        self.tokens = counter(names.TOKENS, "{token}", "Tokens of runs, by fate")
        self.cost = counter(names.COST, "{USD}", "Cost of runs, by fate")
        self.estimated = counter(
            names.ESTIMATED_TOKENS, "{token}", "Tokens of runs that were not reported"
        )
        self.calls = counter(names.CALLS, "{call}", "Spending calls of runs, by fate")
        self.call_time = counter(names.CALL_TIME, "s", "Their time, by fate")
        self.unknown = counter(
            names.UNKNOWN_CALLS, "{call}", "Model calls that ended without usage"
        )
        self.unknown_bound = counter(
            names.UNKNOWN_BOUND, "{token}", "Upper bound on the tokens of such calls"
        )
        self.tenant_cost = counter(names.TENANT_COST, "{USD}", "Cost by tenant")
        self.runs = counter(names.RUNS, "{run}", "Runs that are over, by outcome")
        self.refusals = counter(names.REFUSALS, "{call}", "Refused spending calls")
        self.unsettled = counter(names.UNSETTLED, "{task}", "Work that did not stop")
        self.swallowed = counter(
            names.SWALLOWED, "{run}", "Runs in which a task swallowed the stop"
        )
        self.baggage_lost = counter(
            names.BAGGAGE_LOST, "{request}", "Requests that lost baggage entries"
        )
        self.stop_duration = histogram(
            names.STOP_DURATION, "From T0 until nothing ran", names.STOP_BOUNDS_LONG
        )
        self.run_duration = histogram(
            names.RUN_DURATION, "From the start to delivery or T0", names.RUN_BOUNDS
        )
        self.slack = histogram(names.SLACK, "Time left at delivery", names.RUN_BOUNDS)
        self.overrun = histogram(
            names.OVERRUN, "Time past the deadline at delivery", names.RUN_BOUNDS
        )
        self.baggage_lost.add(0)

    def seed_run(self, name: str, mode: Mode) -> str:
        """Make the series of a run name exist at zero; returns the name as a label."""
        name = self.names(name)
        if (name, mode) in self._seeded:
            return name
        self._seeded.add((name, mode))
        run = {names.RUN_NAME: name}
        shape = {**run, names.MODE: mode.value}
        for outcome in _OUTCOMES:
            self._seed_runs(outcome, names.NONE, shape)
        for cause in Cause:
            self._seed_runs("abandoned", cause.value, shape)
            for kind in calls.KINDS:
                for decision in (Decision.REFUSE, Decision.WOULD_REFUSE):
                    labels = {
                        **run,
                        names.CALL_KIND: kind,
                        names.CAUSE: cause.value,
                        names.DECISION: decision.value,
                    }
                    self.refusals.add(0, labels)
        for counter in (self.unsettled, self.swallowed):
            counter.add(0, run)
        for fate, cause_value in fates():
            for kind in calls.KINDS[:-1]:
                labels = {**run, names.FATE: fate, names.CAUSE: cause_value}
                self.calls.add(0, {**labels, names.CALL_KIND: kind})
                self.call_time.add(0, {**labels, names.CALL_KIND: kind})
        return name

    def seed_model(self, model: str, name: str, mode: Mode) -> str:
        """Make the series of a model in a run exist at zero; returns it as a label."""
        model = self.models(model)
        if (model, name, mode) in self._seeded:
            return model
        self._seeded.add((model, name, mode))
        self.metered.seed(model)
        self.unknown.add(0, {names.MODEL: model})
        self.unknown_bound.add(0, {names.MODEL: model})
        for fate, cause in fates():
            labels = self._labels(fate, cause, model, name, mode)
            self.cost.add(0, labels)
            self.tokens.add(0, {**labels, names.TOKEN_TYPE: "input"})
            self.tokens.add(0, {**labels, names.TOKEN_TYPE: "output"})
        return model

    def post(self, posting: Posting, name: str, mode: Mode, tenant: str) -> None:
        """Record one portion of a run's spend; ``name`` and ``tenant`` are labels."""
        model = self.seed_model(posting.model, name, mode)
        fate = posting.fate.value
        labels = self._labels(fate, posting.cause, model, name, mode)
        context = _exemplar(posting)
        for kind, amount in (("input", posting.input), ("output", posting.output)):
            if amount:
                self.tokens.add(amount, {**labels, names.TOKEN_TYPE: kind}, context)
        if posting.usd:
            self.cost.add(float(posting.usd), labels, context)
            self.tenant_cost.add(
                float(posting.usd), {names.TENANT: tenant, names.FATE: fate}
            )
        if posting.basis is not Basis.REPORTED and (posting.input or posting.output):
            inexact = posting.output
            if posting.basis is Basis.ESTIMATED:
                inexact += posting.input
            self.estimated.add(
                inexact, {names.FATE: fate, names.BASIS: posting.basis.value}
            )
        work = {
            names.FATE: fate,
            names.CAUSE: posting.cause,
            names.CALL_KIND: posting.kind,
            names.RUN_NAME: name,
        }
        if posting.calls:
            self.calls.add(posting.calls, work, context)
        if posting.seconds:
            self.call_time.add(posting.seconds, work, context)

    @staticmethod
    def _labels(
        fate: str, cause: str, model: str, name: str, mode: Mode
    ) -> dict[str, str]:
        return {
            names.FATE: fate,
            names.CAUSE: cause,
            names.MODEL: model,
            names.RUN_NAME: name,
            names.MODE: mode.value,
        }

    def _seed_runs(self, outcome: str, cause: str, shape: dict[str, str]) -> None:
        labels = {**shape, names.OUTCOME: outcome, names.CAUSE: cause}
        for caller in _CALLERS:
            self.runs.add(0, {**labels, names.CALLER: caller})

    def _observe_info(self, _options: CallbackOptions) -> Iterable[Observation]:
        self._before_collect()
        yield Observation(1, self._info)

    def _observe_active(self, _options: CallbackOptions) -> Iterable[Observation]:
        roots = _live_roots()
        stopping = sum(run.token.abandonment is not None for run in roots)
        yield Observation(len(roots) - stopping, {names.STATE: "running"})
        yield Observation(stopping, {names.STATE: "stopping"})

    def _observe_oldest(self, _options: CallbackOptions) -> Iterable[Observation]:
        ages = [
            run.clock.monotonic() - run.token.abandonment.at
            for run in _live_roots()
            if run.token.abandonment is not None
        ]
        yield Observation(max(ages, default=0.0))


def _live_roots() -> list[Run]:
    return [run for run in registry.live_runs() if run.parent is None]


def _exemplar(posting: Posting) -> Context | None:
    """Return a context naming the wasted call's span: exemplars read it."""
    if posting.fate is not Fate.WASTED or posting.span_context is None:
        return None
    if not isinstance(posting.span_context, trace.SpanContext):
        return None
    return trace.set_span_in_context(trace.NonRecordingSpan(posting.span_context))
