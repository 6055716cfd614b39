"""What stopping has kept from being spent: estimates, in counters of their own.

Never mixed with measured numbers. A refused call counts what calls of its model and
kind used in this process so far; a stream that was cut counts what streams that had
come as far still had to come, and only where the provider is known to stop when its
caller hangs up (``HANGUP_STOPS_ON_CLOSE``). The method: :mod:`hangup.spend.avoided`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangup.core.cause import Cause
from hangup.otel import calls, names
from hangup.otel.call import MODEL_CALLS
from hangup.otel.labels import Room
from hangup.spend.avoided import Avoided

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from hangup.core.run import Run
    from hangup.otel.call import Exchange
    from hangup.otel.labels import FewValues
    from hangup.otel.later import LaterMeter
    from hangup.spend.avoided import Estimate
    from hangup.spend.pricing import Cost
    from hangup.spend.usage import Usage


class Avoidance:
    """The history of whole calls, and the two counters. Thread-safe, bounded.

    Args:
        meter: Where the counters are made.
        models: Limits the models that are labels.
        run_names: Limits the run names that are.
    """

    def __init__(
        self, meter: Meter | LaterMeter, models: FewValues, run_names: FewValues
    ) -> None:
        self._models = models
        self._names = run_names
        self._history = Avoided()
        self._room = Room(len(Cause))
        self._tokens = meter.create_counter(
            names.AVOIDED_TOKENS,
            unit="{token}",
            description="Estimate of the tokens that stopping kept from being spent",
        )
        self._cost = meter.create_counter(
            names.AVOIDED_COST,
            unit="{USD}",
            description="Estimate of the dollars that stopping kept from being spent",
        )

    def seed(self, model: str, name: str) -> None:
        """Make the series of a model and a run name, both labels, exist at zero."""
        for cause in Cause:
            labels = self._labels(cause.value, model, name)
            self._tokens.add(0, labels)
            self._cost.add(0, labels)

    def record(self, model: str, kind: str, usage: Usage, cost: Cost | None) -> None:
        """Remember a call that ran to its end and reported what it used."""
        if kind in MODEL_CALLS:
            self._history.record(model, kind, usage, cost)

    def refused(self, run: Run, kind: str, cause: Cause, model: str) -> None:
        """Count a call that was refused before it began."""
        if kind in MODEL_CALLS:
            estimate = self._history.estimate_refused(model, kind)
            self._add(estimate, run, cause, model)

    def cut(self, exchange: Exchange, model: str) -> None:
        """Count a stream that the stop of its run has cut, at a provider that stops."""
        run = exchange.run
        abandonment = None if run is None else run.token.abandonment
        if run is None or abandonment is None or not exchange.meter.streamed:
            return
        meter = exchange.meter
        estimate = self._history.estimate_rest(
            model, calls.INFERENCE, meter.usage.output or 0, meter.call.max_output
        )
        self._add(estimate, run, abandonment.cause, model)

    def after_fork(self) -> None:
        """Take a lock of one's own in a child process."""
        self._room.after_fork()

    def _add(
        self, estimate: Estimate | None, run: Run, cause: Cause, model: str
    ) -> None:
        if estimate is None:
            return
        name = self._names(run.root.name)
        labels = self._labels(cause.value, self._models(model), name)
        self._tokens.add(estimate.input + estimate.output, labels)
        if estimate.usd:
            self._cost.add(float(estimate.usd), labels)

    def _labels(self, cause: str, model: str, name: str) -> dict[str, str]:
        if not self._room.has((model, name), len(Cause)):
            model = name = names.OTHER
        return {names.CAUSE: cause, names.MODEL: model, names.RUN_NAME: name}
