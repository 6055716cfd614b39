"""Carries the run out of the process and into it, around the configured propagator.

Outbound, the entries are made fresh from the live run and go only where
:mod:`hangup.otel.hosts` or the kind of the current span says the carrier is internal;
everywhere else they are taken out, also those a carrier still holds from an earlier
hop. Inbound, what arrived is kept as one :class:`~hangup.otel.wire.Inbound` under a
context key, never as raw baggage: that would leave again with any other propagator.

Must not import ``opentelemetry.instrumentation``: propagators load before it.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from opentelemetry import baggage, propagate, trace
from opentelemetry.context import get_current, set_value
from opentelemetry.propagators.textmap import (
    TextMapPropagator,
    default_getter,
    default_setter,
)

from hangup import config
from hangup.config import Mode
from hangup.core.clock import SYSTEM_CLOCK, unix_offset
from hangup.core.guard import fault, guarded
from hangup.otel import carriers, wire
from hangup.otel.context import INBOUND_KEY, position_in
from hangup.otel.hosts import host_allowed, host_of_url
from hangup.otel.luggage import MAX_LENGTH, Ahead, Past, fits, joined
from hangup.otel.once import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context.context import Context
    from opentelemetry.propagators.textmap import CarrierT, Getter, Setter

    from hangup.core.clock import Clock
    from hangup.core.run import Run

REQUEST_HOST: ContextVar[str | None] = ContextVar("hangup.request_host", default=None)
"""The host of the request being sent here, where our client layer knows it."""

_HOST_ATTRIBUTES = ("server.address", "net.peer.name", "net.peer.ip")
_URL_ATTRIBUTES = ("url.full", "http.url")
_TELLING = frozenset(
    {
        *_HOST_ATTRIBUTES,
        *_URL_ATTRIBUTES,
        "mcp.method.name",
        "messaging.system",
        "rpc.service",
        "rpc.system",
    }
)
# Remote calls to services of one's own. Not here: "aws-api", whose calls are HTTP
# requests to a cloud, models included.
_INTERNAL_RPC = frozenset(
    {
        "grpc",
        "connect_rpc",
        "connectrpc",
        "apache_dubbo",
        "dubbo",
        "java_rmi",
        "jsonrpc",
    }
)

# Providers whose clients speak gRPC to hosts that their spans do not name.
_OUTSIDE_SERVICES = ("google.",)


class HangupPropagator(TextMapPropagator):
    """Wraps another propagator and adds the run. Thread-safe, never raises of itself.

    Args:
        wrapped: Does everything else; public as ``wrapped``.
        on_lost: Called with 1 for every carrier whose baggage was too large for all of
            its entries, outbound or inbound.
        clock: Tells the skew of inbound deadlines.
    """

    def __init__(
        self,
        wrapped: TextMapPropagator,
        *,
        on_lost: Callable[[int], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.wrapped = wrapped
        self.active = True
        self._on_lost = on_lost
        self._clock = clock
        self._carries_baggage = wire.BAGGAGE in wrapped.fields

    @property
    def fields(self) -> set[str]:
        """The fields of the wrapped propagator and ours."""
        return {*self.wrapped.fields, wire.HEADER}

    def inject(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        setter: Setter[CarrierT] = default_setter,
    ) -> None:
        """Inject as the wrapped propagator does, with the run or without a trace of it.

        Safe to call again on a carrier that was written before.
        """
        here = get_current() if context is None else context
        if not self.active:
            self.wrapped.inject(carrier, here, setter=setter)
            return
        # Without guarded(): on this path its frames are a tenth of the cost.
        bare, ours, count = here, None, 0
        try:
            if users := baggage.get_all(here):
                bare = _without(here, users)
                count = len(users if bare is here else baggage.get_all(bare))
            ours = self._write(carrier, here, setter)
        except Exception as error:  # noqa: BLE001  ours must not reach the caller
            fault("HangupPropagator.inject", error)
        if ours is None or not self._carries_baggage:
            self.wrapped.inject(carrier, bare, setter=setter)
            return
        ahead = Ahead(setter, ours)
        self.wrapped.inject(carrier, bare, setter=ahead)
        # Ours go first, for on overflow the last are dropped.
        if not ahead.written:
            guarded(ahead.set, carrier, wire.BAGGAGE, "")
        if ahead.pairs < count:
            guarded(self._look_for_loss, bare, ours)

    def extract(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        getter: Getter[CarrierT] = default_getter,
    ) -> Context:
        """Extract as the wrapped propagator does, and put the ``Inbound`` beside it."""
        if not self.active:
            return self.wrapped.extract(carrier, context, getter=getter)
        past = Past(getter)
        found = self.wrapped.extract(carrier, context, getter=past)
        # Without any propagator the composite one returns what it was given, None.
        here = get_current() if found is None else found
        try:
            return self._receive(carrier, here, getter, past)
        except Exception as error:  # noqa: BLE001  as in inject
            fault("HangupPropagator.extract", error)
        bare = guarded(without_entries, here)
        return here if bare is None else bare

    def _write(self, carrier: Any, context: Context, setter: Setter[Any]) -> str | None:
        """Write the header; return our entries, None where nothing of ours may leave.

        What the carrier still holds of ours from an earlier hop is taken out.
        """
        # First, so that a fault further down leaves the carrier without our entries.
        if carrier or not isinstance(carrier, dict):
            carriers.strip(carrier, partial(setter.set, carrier))
        run = run_in(context)
        if run is None or not carrier_allowed(trace.get_current_span(context)):
            return None
        header, entries = wire.encode(outgoing(run))
        setter.set(carrier, wire.HEADER, header)
        return entries

    def _look_for_loss(self, context: Context, ours: str) -> None:
        """Tell of entries that did not go, unless it was not the limits that kept them.

        What is wrapped may send a choice of them, or none.
        """
        if not fits(baggage.get_all(context), ours):
            self._report_lost()

    def _report_lost(self) -> None:
        warn_once(
            "baggage lost",
            "baggage over the W3C limits was lost; hangup's own entries went first and "
            "in a header of their own (said once per process)",
        )
        if self._on_lost is not None:
            self._on_lost(1)

    def _receive(
        self, carrier: Any, context: Context, getter: Getter[Any], past: Past
    ) -> Context:
        """Return the context with the ``Inbound`` in place of our raw entries."""
        found = None
        if lines := getter.get(carrier, wire.HEADER):
            found = wire.decode_header(joined(lines))
        if found is None and past.text is not None:
            found = wire.from_baggage_text(past.text)
        if entries := baggage.get_all(context):
            if found is None and past.text is None:  # it came in another form
                found = wire.from_baggage(entries)
            context = _without(context, entries)
        elif past.length > MAX_LENGTH:
            self._report_lost()
        if found is not None:
            found = wire.arrived(found, self._clock)
            context = set_value(INBOUND_KEY, found, context)
        return context


class _Installed:
    ours: HangupPropagator | None = None
    listed: ClassVar[WeakSet[HangupPropagator]] = WeakSet()


def listed(made: HangupPropagator) -> None:
    """Note one that the operator named in ``OTEL_PROPAGATORS``; see ``listed``.

    It falls silent while one of ours is installed around it.
    """
    made.active = _Installed.ours is None
    _Installed.listed.add(made)


def install(on_lost: Callable[[int], None] | None = None) -> HangupPropagator:
    """Wrap the process-wide propagator; idempotent. Returns the one in force."""
    present = propagate.get_global_textmap()
    by_name = tuple(_Installed.listed)
    if isinstance(present, HangupPropagator) and present not in by_name:
        present.active = True
    else:
        uninstall()  # one that somebody else's propagator may still hold inside
        present = HangupPropagator(present, on_lost=on_lost)
        propagate.set_global_textmap(present)
    for inside in by_name:
        inside.active = False
    _Installed.ours = present
    return present


def uninstall() -> None:
    """Take ours away; one that somebody set after us stays. Idempotent.

    Where that one goes on calling ours, ours hands everything through.
    """
    ours, _Installed.ours = _Installed.ours, None
    if ours is None:
        return
    ours.active = False
    for inside in _Installed.listed:
        inside.active = True
    if propagate.get_global_textmap() is ours:
        propagate.set_global_textmap(ours.wrapped)


def without_entries(context: Context) -> Context:
    """Return ``context`` without our raw baggage entries; itself if there are none."""
    return _without(context, baggage.get_all(context))


def _without(context: Context, entries: Mapping[str, object]) -> Context:
    for key in entries:
        if key.startswith(wire.PREFIX):
            break
    else:
        return context
    for key in tuple(entries):
        if key.startswith(wire.PREFIX):
            context = baggage.remove_baggage(key, context)
    return context


def outgoing(run: Run) -> wire.Inbound:
    """Return the run as it stands now, for the wire.

    Inside a cleanup of the run the time left is that of the cleanup.
    """
    clock, left = run.clock, run.remaining()
    now, abandonment = clock.monotonic(), run.abandonment
    return wire.Inbound(
        run.id,
        left,
        now + left + unix_offset(clock),
        run.mode,
        None if abandonment is None else max(0.0, now - abandonment.at),
    )


def run_in(context: Context | None = None) -> Run | None:
    """Return the run that a request leaving from ``context`` works for, if any.

    Args:
        context: The present one if None; where it holds no run, the present code's.

    Returns:
        None also for a run that is over, and for one whose mode is off: there hangup
        leaves no trace.
    """
    found = position_in(context)
    run = None if found is None else found.run
    return None if run is None or run.inert or run.mode is Mode.OFF else run


def carrier_allowed(span: trace.Span) -> bool:
    """Say whether a carrier written under ``span`` stays inside: default deny.

    A host that is known decides, whatever the kind of call. Without one, messages,
    remote calls and MCP are internal; anything else is not.
    """
    allowed = config.current().propagate_to
    host = REQUEST_HOST.get()
    if host is not None:
        return host_allowed(host, allowed)
    kind = getattr(span, "kind", None)
    if kind is trace.SpanKind.PRODUCER:
        return True  # a message: the broker's host is not its reader
    if kind is not trace.SpanKind.CLIENT:
        return False
    attributes: Mapping[str, object] = getattr(span, "attributes", None) or {}
    # To look for what is not there costs the SDK's mapping an exception each time.
    present = _TELLING.intersection(attributes)
    if "messaging.system" in present:
        return True
    host = _host_of(attributes, present)
    if host:
        return host_allowed(host, allowed)
    return _inside_by_nature(attributes, present)


def _inside_by_nature(
    attributes: Mapping[str, object], present: frozenset[str]
) -> bool:
    service = str(attributes["rpc.service"]) if "rpc.service" in present else ""
    if service.startswith(_OUTSIDE_SERVICES):
        return False
    return "mcp.method.name" in present or (
        "rpc.system" in present
        and str(attributes["rpc.system"]).lower() in _INTERNAL_RPC
    )


def _host_of(attributes: Mapping[str, object], present: frozenset[str]) -> str:
    # The URL first: it is what was asked for; an address may be a proxy's.
    for key in _URL_ATTRIBUTES:
        if key in present and (host := host_of_url(str(attributes[key] or ""))):
            return host
    for key in _HOST_ATTRIBUTES:
        if key in present and (host := str(attributes[key] or "")):
            return host
    return ""
