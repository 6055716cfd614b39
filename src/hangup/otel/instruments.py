"""The instruments: what is recorded, with which labels, at zero from the start.

The span path never calls an SDK instrument (about 7 us each): what every call adds goes
into plain sums that observable counters read at collection. Everything else is recorded
once per run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import Observation

from hangup.core import registry
from hangup.core.absence import stopping_since
from hangup.core.cause import Cause
from hangup.core.policy import Decision
from hangup.otel import calls, names
from hangup.otel.abroad import observe_bus
from hangup.otel.avoidance import Avoidance
from hangup.otel.labels import FewValues, Room
from hangup.otel.later import PATIENCE, Later, LaterMeter
from hangup.otel.marks import exemplar_of
from hangup.otel.metered import Metered
from hangup.spend.fate import Basis, Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter

    from hangup.config import Mode
    from hangup.core.run import Run
    from hangup.spend.posting import Posting

_CALLERS = ("connected", "gone", "unknown")
_OUTCOMES = ("delivered", "late")
# Kinds whose series exist from a run's start; those of the others from their first call
# on, for most runs never make one.
_USUAL_KINDS = (calls.INFERENCE, calls.TOOL)
# Modes a run that is counted can have: so many label sets are kept free for "other".
_MODES = 3


def fates() -> Iterator[tuple[str, str]]:
    """Yield every pair of fate and cause that can occur."""
    yield Fate.DELIVERED.value, names.NONE
    yield Fate.AFTER.value, names.NONE
    for cause in Cause:
        yield Fate.SUNK.value, cause.value
        yield Fate.WASTED.value, cause.value


# How many label sets a run name (and mode) adds to the runs, and a call to the fates.
_RUN_SETS = (len(_OUTCOMES) + len(Cause)) * len(_CALLERS)
_FATE_SETS = len(tuple(fates()))


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
        self.meter = meter
        self.later = Later()
        later = LaterMeter(meter, self.later)
        self.names = FewValues(names.MOST_RUN_NAMES)
        self.models = FewValues(names.MOST_MODELS)
        self.metered = Metered(self.models)
        self._seeded: set[tuple[str, ...]] = set()
        self._calls_seen: set[tuple[str, str | None, str, str]] = set()
        self._run_room = Room(_MODES * _RUN_SETS)
        self._call_room = Room(len(calls.KINDS) * _FATE_SETS)
        self._refusal_room = Room(2 * len(calls.KINDS) * len(Cause))
        self._token_room = Room(_MODES * _FATE_SETS * 2)
        self.avoided = Avoidance(later, self.models, self.names)
        self.info = {names.VERSION: version, names.MODE: mode}
        self._before_collect = before_collect
        self._tenants: tuple[str, ...] = ()
        # A meter of the API, before anybody has set a provider, forgets what is added.
        self._forgets = getattr(meter, "_real_meter", meter) is None

        def counter(name: str, unit: str, doc: str) -> Counter:
            return later.create_counter(name, unit=unit, description=doc)

        def histogram(name: str, doc: str, bounds: tuple[float, ...]) -> Histogram:
            return later.create_histogram(
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
        meter.create_observable_gauge(
            names.BUS_UP, callbacks=[observe_bus], description="Is the bus reached"
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
        self.outcome_unknown = counter(
            names.OUTCOME_UNKNOWN,
            "{call}",
            "Model calls that were cut, and that the provider may have finished",
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

    def seed_shared(self, tenants: Iterable[str]) -> None:
        """Make the series exist at zero that belong to no run name and no model."""
        self._tenants = tenants = tuple(tenants)
        for fate in Fate:
            for basis in (Basis.PRORATED, Basis.ESTIMATED):
                labels = {names.FATE: fate.value, names.BASIS: basis.value}
                self.estimated.add(0, labels)
            for tenant in tenants:
                labels = {names.TENANT: tenant, names.FATE: fate.value}
                self.tenant_cost.add(0, labels)

    def seed_run(self, name: str, mode: Mode) -> str:
        """Make the series of a run name exist at zero; returns the name as a label."""
        name = self.names(name)
        if ("run", name, mode) in self._seeded:
            return name
        self._seeded.add(("run", name, mode))
        for outcome in _OUTCOMES:
            self._seed_runs(outcome, names.NONE, name, mode)
        for cause in Cause:
            self._seed_runs("abandoned", cause.value, name, mode)
            # A kill is refused in every mode.
            refused = mode.refuses or cause is Cause.KILLED
            decision = Decision.REFUSE if refused else Decision.WOULD_REFUSE
            for kind in calls.KINDS:
                self.add_refusal(0, kind, cause.value, decision.value, name)
        for counter in (self.unsettled, self.swallowed):
            counter.add(0, {names.RUN_NAME: name})
        for kind in _USUAL_KINDS:
            self._seed_kind(kind, name)
        return name

    def seed_call(self, kind: str, model: str | None, name: str, mode: Mode) -> None:
        """Make the series of a call exist at zero, from the raw name of its run.

        To be called when the call starts: a scrape must see the zero before the tokens.
        """
        call = (kind, model, name, mode)
        if call in self._calls_seen:
            return  # the span path: one look-up
        label = self.names(name)
        if ("kind", kind, label) not in self._seeded:
            self._seed_kind(kind, label)
        if model is not None:
            self._seed_model(self.models(model), label, mode)
        if len(self._calls_seen) < names.MOST_LABEL_SETS:
            self._calls_seen.add(call)

    def _seed_kind(self, kind: str, name: str) -> None:
        self._seeded.add(("kind", kind, name))
        for fate, cause in fates():
            labels = self._work_labels(fate, cause, kind, name)
            self.calls.add(0, labels)
            self.call_time.add(0, labels)

    def _seed_model(self, model: str, name: str, mode: Mode) -> None:
        if ("model", model, name, mode) in self._seeded:
            return
        self._seeded.add(("model", model, name, mode))
        self.avoided.seed(model, name)
        self.metered.seed(model)
        self.unknown.add(0, {names.MODEL: model})
        self.unknown_bound.add(0, {names.MODEL: model})
        self.outcome_unknown.add(0, {names.MODEL: model})
        for fate, cause in fates():
            labels = self._labels(fate, cause, model, name, mode)
            self.cost.add(0, labels)
            self.tokens.add(0, {**labels, names.TOKEN_TYPE: "input"})
            self.tokens.add(0, {**labels, names.TOKEN_TYPE: "output"})

    def add_run(  # noqa: PLR0913, PLR0917  one for each label
        self,
        count: int,
        outcome: str,
        cause: str,
        caller: str,
        name: str,
        mode: Mode,
        context: Context | None = None,
    ) -> None:
        """Count runs that are over; ``name`` is a label."""
        if not self._run_room.has((name, mode), _RUN_SETS):
            name = names.OTHER
        self.runs.add(
            count,
            {
                names.OUTCOME: outcome,
                names.CAUSE: cause,
                names.CALLER: caller,
                names.MODE: str(mode),
                names.RUN_NAME: name,
            },
            context,
        )

    def add_refusal(
        self, count: int, kind: str, cause: str, decision: str, name: str
    ) -> None:
        """Count refused calls, or such that would have been; ``name`` is a label."""
        if not self._refusal_room.has((name, kind, decision), len(Cause)):
            name = names.OTHER
        self.refusals.add(
            count,
            {
                names.CALL_KIND: kind,
                names.CAUSE: cause,
                names.DECISION: decision,
                names.RUN_NAME: name,
            },
        )

    def post(self, posting: Posting, name: str, mode: Mode, tenant: str) -> None:
        """Record one portion of a run's spend; ``name`` and ``tenant`` are labels."""
        model = self.models(posting.model)
        self._seed_model(model, name, mode)
        fate = posting.fate.value
        labels = self._labels(fate, posting.cause, model, name, mode)
        context = exemplar_of(posting)
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
        work = self._work_labels(fate, posting.cause, posting.kind, name)
        if posting.calls:
            self.calls.add(posting.calls, work, context)
        if posting.seconds:
            self.call_time.add(posting.seconds, work, context)

    def _labels(
        self, fate: str, cause: str, model: str, name: str, mode: Mode
    ) -> dict[str, str]:
        if not self._token_room.has((model, name, mode), _FATE_SETS * 2):
            model = name = names.OTHER
        return {
            names.FATE: fate,
            names.CAUSE: cause,
            names.MODEL: model,
            names.RUN_NAME: name,
            names.MODE: mode.value,
        }

    def _work_labels(
        self, fate: str, cause: str, kind: str, name: str
    ) -> dict[str, str]:
        if not self._call_room.has((kind, name), _FATE_SETS):
            name = names.OTHER
        return {
            names.FATE: fate,
            names.CAUSE: cause,
            names.CALL_KIND: kind,
            names.RUN_NAME: name,
        }

    def _seed_runs(self, outcome: str, cause: str, name: str, mode: Mode) -> None:
        for caller in _CALLERS:
            self.add_run(0, outcome, cause, caller, name, mode)

    def after_fork(self) -> None:
        """Begin at zero in a child process, with locks of one's own."""
        self.later.after_fork()
        rooms = (self._run_room, self._call_room, self._refusal_room, self._token_room)
        for part in (self.names, self.models, self.metered, self.avoided, *rooms):
            part.after_fork()
        self._calls_seen.clear()
        # What the parent has made to exist at zero exists here too.
        self._seed_again()

    def _seed_again(self) -> None:
        """Make what was to exist at zero do so: in another provider, or process."""
        seeded, self._seeded = self._seeded, set()
        self.baggage_lost.add(0)
        self.seed_shared(self._tenants)
        for what, *labels in seeded:
            again: Any = getattr(self, f"_seed_{what}", self.seed_run)
            again(*labels)

    def _observe_info(self, _options: CallbackOptions) -> Iterable[Observation]:
        if self._forgets:
            self._forgets = False
            self._seed_again()
        self._before_collect()
        self.later.drain(PATIENCE)
        yield Observation(1, self.info)

    def _observe_active(self, _options: CallbackOptions) -> Iterable[Observation]:
        roots = _live_roots()
        stopping = sum(run.token.abandonment is not None for run in roots)
        yield Observation(len(roots) - stopping, {names.STATE: "running"})
        yield Observation(stopping, {names.STATE: "stopping"})

    def _observe_oldest(self, _options: CallbackOptions) -> Iterable[Observation]:
        ages = [
            run.clock.monotonic() - stopping_since(run, run.token.abandonment)
            for run in _live_roots()
            if run.token.abandonment is not None
        ]
        yield Observation(max(ages, default=0.0))


def _live_roots() -> list[Run]:
    return [run for run in registry.live_runs() if run.parent is None]
