"""What is kept of a metered stream once it has ended: when its output came, in short.

A ledger may hold hundreds of ended calls until the fate of their run is known; the
meter of each is a hundred times as large as this.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from hangup.spend.fate import Metering

if TYPE_CHECKING:
    from hangup.spend.meter import Meter

MOST_POINTS = 64
"""Points kept of one call: at most 1.5 % of its output lies between two."""


class Profile:
    """Points of (time, output by then). Immutable, thread-safe.

    Exact at its points. What lies between two came evenly, unless all of them are kept
    and it came in steps.
    """

    __slots__ = ("_counts", "_steps", "_times")

    def __init__(self, meter: Meter, most: int = MOST_POINTS) -> None:
        moments = meter.moments()
        self._steps = meter.in_steps and len(moments) <= most
        if len(moments) > most:
            step = (len(moments) - 1) / (most - 1)
            moments = [moments[round(index * step)] for index in range(most)]
        self._times = array("d", moments)
        self._counts = array("q", map(meter.tokens_before, moments))

    def came(self, moment: float) -> int:
        """Return how much of the output had come at or before ``moment``."""
        times, counts = self._times, self._counts
        index = bisect_right(times, moment)
        if not index:
            return 0
        done = counts[index - 1]
        if self._steps or index == len(times):
            return done
        first, last = times[index - 1], times[index]
        share = (moment - first) / (last - first)
        return done + int((counts[index] - done) * share + 0.5)


def metering_of(meter: Meter) -> Metering:
    """Return what is worth keeping of a meter that is fed no more."""
    came = Profile(meter).came if meter.streamed and meter.moments() else None
    return Metering(meter.input_basis, meter.output_basis, came)
