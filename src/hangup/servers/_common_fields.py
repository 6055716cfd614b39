"""What the headers of a request say to hangup."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, get_value

from hangup.otel import wire
from hangup.otel.context import INBOUND_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangup.core.clock import Clock
    from hangup.otel.wire import Inbound


class Fields:
    """The request's headers that matter here, found in one pass.

    Args:
        headers: Names in lower case, and values.
        budget_header: The name of the one that may tighten the budget.
        tenant_header: The name of the one that says whom it is for.
    """

    __slots__ = ("_baggage", "_header", "budget", "event_stream", "tenant")

    def __init__(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        budget_header: bytes,
        tenant_header: bytes = b"",
    ) -> None:
        self.budget: bytes | None = None
        self.tenant = ""
        self.event_stream = False
        self._header: bytes | None = None
        self._baggage: bytes | None = None
        for name, value in headers:
            if name == budget_header:
                self.budget = value
            elif name == b"hangup":
                self._header = value
            elif name == b"baggage":
                # Several fields are one list (RFC 9110, 5.3).
                before: bytes | None = self._baggage
                self._baggage = value if before is None else before + b"," + value
            elif name == b"accept" and b"text/event-stream" in value:
                self.event_stream = True
            if name == tenant_header:
                self.tenant = value.decode("utf-8", "replace")

    def entry(self, key: str) -> str:
        """Return an entry of the request's baggage, or ""."""
        found = baggage.get_baggage(key)
        if found is None and self._baggage is not None:
            text = self._baggage.decode("latin-1")
            context = W3CBaggagePropagator().extract({"baggage": text}, Context())
            found = baggage.get_baggage(key, context)
        return found if isinstance(found, str) else ""

    def inbound(self, clock: Clock) -> Inbound | None:
        """Return the run that came with the request, if any.

        An instrumentation around us has extracted it already; without one, or with a
        propagator that is not ours, it is read from the headers.

        Args:
            clock: Tells the skew of the caller's.
        """
        found = get_value(INBOUND_KEY)
        if isinstance(found, wire.Inbound):
            return found
        decoded = None
        if self._header is not None:
            decoded = wire.decode_header(self._header.decode("latin-1"))
        if decoded is None and self._baggage is not None:
            decoded = wire.from_baggage_text(self._baggage.decode("latin-1"))
        return None if decoded is None else wire.arrived(decoded, clock)


_SECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")


def read_budget(text: bytes) -> float | None:
    """Return the seconds a budget header grants; None where it is malformed.

    Zero counts as malformed: it is what "no limit" looks like in many clients, and a
    header must never expire a run on the spot.
    """
    match = _SECONDS.fullmatch(text.strip())
    seconds = float(match[0]) if match else math.nan
    return seconds if seconds > 0 else None
