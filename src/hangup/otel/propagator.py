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
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

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
from hangup.core.guard import guarded
from hangup.otel import carriers, wire
from hangup.otel.context import INBOUND_KEY, position_in
from hangup.otel.hosts import host_allowed, host_of_url
from hangup.otel.once import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context.context import Context
    from opentelemetry.propagators.textmap import CarrierT, Getter, Setter

    from hangup.core.clock import Clock
    from hangup.core.run import Run

REQUEST_HOST: ContextVar[str | None] = ContextVar("hangup.request_host", default=None)
"""The host of the request being sent here, where our client layer knows it."""

# The limits of the stock W3C propagator: what is over them it drops from the end.
_MAX_PAIRS: Final = 180
_MAX_PAIR: Final = 4096
_MAX_BAGGAGE: Final = 8192

_OUTWARD = (trace.SpanKind.CLIENT, trace.SpanKind.PRODUCER)
_HOST_ATTRIBUTES = ("server.address", "net.peer.name", "net.peer.ip")
_URL_ATTRIBUTES = ("url.full", "http.url")
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
        if self.active:
            bare = guarded(without_entries, here)
            here = _first(guarded(self._prepare, carrier, here, setter), bare, here)
        self.wrapped.inject(carrier, here, setter=setter)

    def extract(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        getter: Getter[CarrierT] = default_getter,
    ) -> Context:
        """Extract as the wrapped propagator does, and put the ``Inbound`` beside it."""
        found = self.wrapped.extract(carrier, context, getter=getter)
        if not self.active:
            return found
        # Without any propagator the composite one returns what it was given, None.
        here = _first(found, get_current())
        bare = guarded(without_entries, here)
        return _first(guarded(self._receive, carrier, here, getter), bare, here)

    def _prepare(self, carrier: Any, context: Context, setter: Setter[Any]) -> Context:
        """Write the header, and return the context to inject."""
        bare = without_entries(context)
        # First, so that a fault further down leaves the carrier without our entries.
        carriers.strip(carrier, lambda name, value: setter.set(carrier, name, value))
        run = run_in(context)
        if run is None or not carrier_allowed(trace.get_current_span(context)):
            return bare
        here = outgoing(run)
        setter.set(carrier, wire.HEADER, wire.encode_header(here))
        if not self._carries_baggage:
            return bare
        return self._with_entries(bare, wire.to_baggage(here))

    def _with_entries(self, context: Context, ours: dict[str, str]) -> Context:
        """Put our entries first: on overflow the stock propagator drops the last."""
        users = baggage.get_all(context)
        if not users:
            for key, value in ours.items():
                context = baggage.set_baggage(key, value, context)
            return context
        if not _fits({**ours, **users}):
            self._report_lost()
        context = baggage.clear(context)
        everything: dict[str, object] = {**ours, **users}
        for name, entry in everything.items():
            context = baggage.set_baggage(name, entry, context)
        return context

    def _report_lost(self) -> None:
        warn_once(
            "baggage lost",
            "baggage over the W3C limits was lost; hangup's own entries went first and "
            "in a header of their own (said once per process)",
        )
        if self._on_lost is not None:
            self._on_lost(1)

    def _receive(self, carrier: Any, context: Context, getter: Getter[Any]) -> Context:
        """Return the context with the ``Inbound`` in place of our raw entries."""
        found = None
        if lines := getter.get(carrier, wire.HEADER):
            found = wire.decode_header(_joined(lines))
        entries = baggage.get_all(context)
        if found is None:
            found = wire.from_baggage(entries)
        if not entries and self._carries_baggage:
            lines = getter.get(carrier, wire.BAGGAGE)
            if lines and len(_joined(lines)) > _MAX_BAGGAGE:
                self._report_lost()
        context = without_entries(context)
        if found is not None:
            found = replace(found, skew=wire.skew_of(found, self._clock))
            _report_skew(found.skew)
            context = set_value(INBOUND_KEY, found, context)
        return context


def _first(*contexts: Context | None) -> Context:
    """Return the first that is not None; an empty context is one, but false."""
    return next(context for context in contexts if context is not None)


def _fits(entries: Mapping[str, object]) -> bool:
    """Say whether the stock W3C propagator would inject all of ``entries``."""
    if len(entries) > _MAX_PAIRS:
        return False
    pairs = [
        len(quote_plus(str(key))) + 1 + len(quote_plus(str(value)))
        for key, value in entries.items()
    ]
    commas = len(pairs) - 1
    return max(pairs) <= _MAX_PAIR and sum(pairs) + commas <= _MAX_BAGGAGE


class _Installed:
    ours: HangupPropagator | None = None


def install(on_lost: Callable[[int], None] | None = None) -> HangupPropagator:
    """Wrap the process-wide propagator; idempotent. Returns the one in force."""
    present = propagate.get_global_textmap()
    if isinstance(present, HangupPropagator):
        present.active = True
    else:
        uninstall()  # one that somebody else's propagator may still hold inside
        present = HangupPropagator(present, on_lost=on_lost)
        propagate.set_global_textmap(present)
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
    if propagate.get_global_textmap() is ours:
        propagate.set_global_textmap(ours.wrapped)


def without_entries(context: Context) -> Context:
    """Return ``context`` without our raw baggage entries; itself if there are none."""
    for key in tuple(baggage.get_all(context)):
        if key.startswith(wire.PREFIX):
            context = baggage.remove_baggage(key, context)
    return context


def outgoing(run: Run) -> wire.Inbound:
    """Return the run as it stands now, for the wire.

    Inside a cleanup of the run the time left is that of the cleanup.
    """
    now, left = run.clock.monotonic(), run.remaining()
    abandonment = run.abandonment
    return wire.Inbound(
        token=run.id,
        left=left,
        deadline_unix=now + left + unix_offset(run.clock),
        mode=run.mode,
        gone=None if abandonment is None else max(0.0, now - abandonment.at),
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
    if getattr(span, "kind", None) not in _OUTWARD:
        return False
    attributes: Mapping[str, object] = getattr(span, "attributes", None) or {}
    if _is_message(span, attributes):
        return True
    host = _host_of(attributes)
    if host:
        return host_allowed(host, allowed)
    if str(attributes.get("rpc.service", "")).startswith(_OUTSIDE_SERVICES):
        return False
    return "mcp.method.name" in attributes or (
        str(attributes.get("rpc.system", "")).lower() in _INTERNAL_RPC
    )


def _is_message(span: trace.Span, attributes: Mapping[str, object]) -> bool:
    """Say whether the carrier is a message: the broker's host is not its reader."""
    return getattr(span, "kind", None) is trace.SpanKind.PRODUCER or (
        "messaging.system" in attributes
    )


def _host_of(attributes: Mapping[str, object]) -> str:
    # The URL first: it is what was asked for; an address may be a proxy's.
    for key in _URL_ATTRIBUTES:
        if host := host_of_url(str(attributes.get(key) or "")):
            return host
    for key in _HOST_ATTRIBUTES:
        if host := str(attributes.get(key) or ""):
            return host
    return ""


def _report_skew(skew: float | None) -> None:
    if skew is not None and abs(skew) > wire.SKEW_WORTH_REPORTING:
        warn_once(
            "clock skew",
            "the clock of a caller and ours are %.1f s apart, or its request was that "
            "long on its way; the time left is measured on the local clock from its "
            "arrival (said once per process)",
            skew,
        )


def _joined(lines: object) -> str:
    if isinstance(lines, (list, tuple)):
        return ", ".join(_text(line) for line in lines)
    return _text(lines)


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
