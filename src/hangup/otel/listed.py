"""The propagator that operators name: ``OTEL_PROPAGATORS=tracecontext,baggage,hangup``.

It stands beside the others instead of around them, and carries the run also where
hangup is not installed as instrumentation, or installed later. Alone it carries the run
and nothing else: no baggage of the user's goes where nobody sent it.

Name it last: what ``baggage`` writes after it, takes the place of the entries in
baggage, and the header alone is left. While :func:`hangup.instrument` has one of ours
around the configured propagator, that one does its work, whatever the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.context import get_current
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import default_getter, default_setter

from hangup.core.guard import guarded
from hangup.otel import propagator, wire
from hangup.otel.luggage import Past, behind
from hangup.otel.propagator import HangupPropagator

if TYPE_CHECKING:
    from opentelemetry.context.context import Context
    from opentelemetry.propagators.textmap import CarrierT, Getter, Setter


class ListedPropagator(HangupPropagator):
    """One of several in a list. Takes no arguments, as the entry point demands."""

    def __init__(self) -> None:
        super().__init__(CompositePropagator([]))
        propagator.listed(self)

    @property
    def fields(self) -> set[str]:
        """The header, and the baggage that our entries are put into."""
        return {wire.HEADER, wire.BAGGAGE}

    def inject(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        setter: Setter[CarrierT] = default_setter,
    ) -> None:
        """Write the run, or take every trace of it out of the carrier."""
        if not self.active:
            return
        here = get_current() if context is None else context
        ours = guarded(self._write, carrier, here, setter)
        if ours is not None:
            guarded(_put, carrier, setter, ours)

    def extract(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        getter: Getter[CarrierT] = default_getter,
    ) -> Context:
        """Put the ``Inbound`` into the context, and our raw entries out of it."""
        here = get_current() if context is None else context
        if not self.active:
            return here
        past = Past(getter)
        guarded(past.get, carrier, wire.BAGGAGE)
        received = guarded(self._receive, carrier, here, getter, past)
        return here if received is None else received


def _put(carrier: Any, setter: Setter[Any], ours: str) -> None:
    """Put our entries ahead of what the carrier has; not where that cannot be read."""
    if not (hasattr(carrier, "keys") and hasattr(carrier, "__getitem__")):
        return
    key = next((key for key in carrier if _name(key) == wire.BAGGAGE), None)
    theirs = "" if key is None else carrier[key]
    if isinstance(theirs, str):
        name = key if isinstance(key, str) else wire.BAGGAGE
        setter.set(carrier, name, behind(ours, theirs)[0])


def _name(key: object) -> str:
    return (key.decode("latin-1") if isinstance(key, bytes) else str(key)).lower()
