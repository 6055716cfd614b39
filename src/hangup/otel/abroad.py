"""What is told of the bus in metrics, and to the bus in tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

from hangup.core import remote
from hangup.otel.call import Call, Exchange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions

    from hangup.core.run import Run


def observe_bus(_options: CallbackOptions) -> Iterable[Observation]:
    """Yield 1 or 0; nothing without a bus, or before it was tried."""
    reach = remote.reach()
    up = None if reach is None else reach.up
    if up is not None:
        yield Observation(int(up))


def tokens_so_far(run: Run) -> int | None:
    """Return the tokens a run has used: calls that ended, and what streams so far.

    Of a child, those of its own calls. None where nobody keeps its books.
    """
    if run.ledger is None:
        return None
    used: int = run.ledger.tokens_so_far()
    for owner, _task, _position, call in tuple(run.work.tree.calls.values()):
        if not isinstance(call, Call) or not run.work.encloses(owner):
            continue
        exchanges = list(call.estimates or ())
        if isinstance(call, Exchange):
            exchanges.append(call)
        for exchange in exchanges:
            usage = exchange.usage
            used += 0 if usage is None else usage.total
    return used
