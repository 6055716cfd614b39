"""The metered totals: plain sums that observable counters read at collection."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Iterable
    from decimal import Decimal

    from opentelemetry.metrics import CallbackOptions

    from hangup.otel.labels import FewValues
    from hangup.spend.usage import Usage


class Metered:
    """What every call reported, whatever its fate: sums that only grow. Thread-safe."""

    def __init__(self, models: FewValues) -> None:
        self._models = models
        # Reentrant: a garbage collection may end a call in the middle of these.
        self._lock = threading.RLock()
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

    def after_fork(self) -> None:
        """Begin at zero, with a lock of one's own: the parent's may have been held."""
        self._lock = threading.RLock()
        self._sums.clear()

    def _snapshot(self) -> list[tuple[tuple[str, bool], list[float]]]:
        with self._lock:
            return [(key, list(sums)) for key, sums in list(self._sums.items())]
