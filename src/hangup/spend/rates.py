"""How fast a model writes, learned from its streams.

The answer of a call that is no stream comes at once. Where T0 falls in the middle, its
output is divided by time; but no model writes from the first moment on. From the rate
of the model's own streams follows when the writing must have begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hangup.spend.meter import Meter

_MOST_MODELS: Final = 256
# Of each new stream so much goes into the rate: about the last ten count.
_WEIGHT: Final = 0.2
_LEAST_TOKENS: Final = 8


class Rates:
    """Output tokens a second, by model. Not thread-safe, bounded."""

    __slots__ = ("_rates",)

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def learn(self, model: str, meter: Meter) -> None:
        """Learn from a stream that was read to its end."""
        first, last = meter.first_token_at, meter.last_token_at
        if not meter.streamed or first is None or last is None or last <= first:
            return
        tokens = (meter.usage.output or 0) - meter.tokens_before(first)
        if tokens < _LEAST_TOKENS:
            return
        rate = tokens / (last - first)
        known = self._rates.pop(model, rate)
        self._rates[model] = known + (rate - known) * _WEIGHT
        if len(self._rates) > _MOST_MODELS:
            self._rates.pop(next(iter(self._rates)))

    def began(self, model: str, output: int, took: float) -> float | None:
        """Return how long after its start a call began to write, in seconds.

        Args:
            model: Its model.
            output: Output tokens it reported.
            took: How long it took, in seconds.

        Returns:
            None while no stream of the model has been seen.
        """
        rate = self._rates.get(model)
        return None if rate is None else max(0.0, took - output / rate)
