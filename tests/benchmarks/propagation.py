"""What carrying the run costs, beside the stock W3C baggage with as many entries.

    python tests/benchmarks/propagation.py [--json] [--rounds N]

Method. One operation is an injection into an empty carrier and the extraction of it.
Theirs is the stock W3C baggage propagator with our four entries and the user's in the
context; ours wraps the same one, inside a run and under the span of an HTTP client, and
carries the same entries, and the header beside them. Both in one process, in turn, the
first of each round alternating, in CPU time with the garbage collector off. Reported is
the median of the ratios of the rounds, and the best round of each side. The goal is a
ratio of at most 1.4, whatever the user carries; the exit status is 0 whether or not it
is met.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import baggage, context, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

import hangup
from hangup.otel.context import INBOUND_KEY
from hangup.otel.propagator import HangupPropagator

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.propagators.textmap import TextMapPropagator

GOAL = 1.4
USERS = (0, 1, 4, 16)
TRIPS = 250
ATTRIBUTES = {"http.request.method": "POST", "server.address": "subagent.team.svc"}


def trip(propagator: TextMapPropagator, here: Context) -> Context:
    """Carry what is in ``here`` over, and return what arrived."""
    carrier: dict[str, str] = {}
    propagator.inject(carrier, here)
    return propagator.extract(carrier, Context())


def timed(propagator: TextMapPropagator, here: Context) -> float:
    """Return the CPU time of one trip, in microseconds."""
    begun = time.process_time()
    for _ in range(TRIPS):
        trip(propagator, here)
    return (time.process_time() - begun) / TRIPS * 1e6


def measured(users: int, rounds: int) -> dict[str, Any]:
    """Measure with that many entries of the user's."""
    stock = W3CBaggagePropagator()
    ours = HangupPropagator(W3CBaggagePropagator())
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("benchmark")
    entries = Context()
    for number in range(users):
        key, value = f"app.key-{number}", f"value-{number}"
        entries = baggage.set_baggage(key, value, entries)
    span = tracer.start_span("POST", kind=SpanKind.CLIENT, attributes=ATTRIBUTES)
    here = trace.set_span_in_context(span, entries)
    with hangup.run(budget=600, name="benchmark"):
        carrier: dict[str, str] = {}
        ours.inject(carrier, here)
        whole = stock.extract(carrier, here)
        # Both carry the same, or the comparison means nothing.
        assert len(baggage.get_all(trip(stock, whole))) == users + 4
        arrived = trip(ours, here)
        assert arrived.get(INBOUND_KEY) is not None
        assert len(baggage.get_all(arrived)) == users
        pairs = []
        sides: list[Callable[[], float]] = [
            lambda: timed(stock, whole),
            lambda: timed(ours, here),
        ]
        for number in range(rounds + 1):
            order = (0, 1) if number % 2 else (1, 0)
            taken = {side: sides[side]() for side in order}
            if number:  # the first warms up
                pairs.append((taken[0], taken[1]))
    ratios = sorted(mine / theirs for theirs, mine in pairs)
    quarter = len(ratios) // 4
    ratio = statistics.median(ratios)
    return {
        "users": users,
        "ratio": round(ratio, 4),
        "spread": [round(ratios[quarter], 4), round(ratios[-1 - quarter], 4)],
        "stock_us": round(min(theirs for theirs, _ in pairs), 3),
        "hangup_us": round(min(mine for _, mine in pairs), 3),
        "met": ratio <= GOAL,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    context.attach(Context())
    gc.disable()
    results = [measured(users, options.rounds) for users in USERS]
    if options.json:
        print(json.dumps({"goal": GOAL, "results": results}))
        return
    print(f"{'entries of the user':<21}{'ratio':>7}  {'middle half':<15}stock, hangup")
    for row in results:
        low, high = row["spread"]
        verdict = "met" if row["met"] else "MISSED"
        print(
            f"{row['users']:<21}{row['ratio']:>7.3f}  {f'{low:.3f} - {high:.3f}':<15}"
            f"{row['stock_us']:.2f} us, {row['hangup_us']:.2f} us  "
            f"{GOAL} {verdict}"
        )


if __name__ == "__main__":
    main()
