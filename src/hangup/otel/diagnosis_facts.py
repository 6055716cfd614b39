"""The facts of a process, for ``hangup doctor``: plain values that go into JSON.

Only looks: of the application's libraries nothing is imported, nothing is called that
could block or send, beside one connection to the bus if there is one. What an SDK keeps
private is read where it is there, and left out where it is not.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Final

from opentelemetry import metrics, propagate, trace
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from hangup import config
from hangup.core import rollout
from hangup.core.guard import guarded
from hangup.otel import diagnosis_bus, names
from hangup.otel.diagnosis_ports import listening_ports
from hangup.otel.diagnosis_processors import describe, name_of
from hangup.otel.diagnosis_servers import has_middleware, servers
from hangup.otel.diagnosis_sightings import SEEN
from hangup.otel.instrumentor import HangupInstrumentor, installed_version
from hangup.otel.propagator import HangupPropagator
from hangup.otel.sampler import HangupSampler

_CLIENTS: Final = ("openai", "anthropic", "httpx", "httpx2")
_MOST_ARGUMENTS: Final = 4


def collect(forked_from: int | None = None) -> dict[str, Any]:
    """Return everything a doctor asks about. Thread-safe, never raises.

    What could not be told is None.

    Args:
        forked_from: The process this one was forked from, where that is known.
    """
    instrumentor = HangupInstrumentor()
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "forked": forked_from is not None,
        "argv": [str(word)[:200] for word in sys.argv[:_MOST_ARGUMENTS]],
        "service": guarded(_resource, "service.name"),
        "instance": guarded(_resource, "service.instance.id"),
        "hangup": guarded(_hangup, instrumentor),
        "tracing": guarded(_tracing, instrumentor),
        "metrics": guarded(_metrics, instrumentor),
        "propagator": isinstance(propagate.get_global_textmap(), HangupPropagator),
        "clients": guarded(_clients),
        "servers": servers(),
        "listening": guarded(listening_ports),
        "middleware": guarded(has_middleware),
        "seen": guarded(_seen),
        "bus": guarded(diagnosis_bus.look),
        "samples": guarded(_samples, instrumentor) or [],
    }


def _hangup(instrumentor: Any) -> dict[str, Any]:
    settings = config.current()
    return {
        "installed": instrumentor.is_instrumented_by_opentelemetry,
        "version": installed_version(),
        "mode": None if settings.mode is None else settings.mode.value,
        "irreversible": list(settings.irreversible),
        "propagate_to": list(settings.propagate_to),
    }


def _resource(key: str) -> str | None:
    """Return a resource attribute; what a provider was told goes before a default."""
    found: str | None = None
    for provider in (metrics.get_meter_provider(), trace.get_tracer_provider()):
        made = _meters_behind(_behind(provider))
        made_with = getattr(made, "_sdk_config", made)
        resource = getattr(made_with, "resource", None)
        value = getattr(resource, "attributes", {}).get(key)
        if value is not None and (found is None or found.startswith("unknown_")):
            found = str(value)
    return found


def _behind(provider: Any) -> Any:
    """Return the provider behind a proxy such as logfire's, of whatever kind."""
    inner = getattr(provider, "provider", None)
    if hasattr(provider, "_active_span_processor") or inner is None:
        return provider
    return inner


def _tracing(instrumentor: Any) -> dict[str, Any]:
    hooked = _hooked(instrumentor)
    provider = _behind(trace.get_tracer_provider())
    if not hasattr(provider, "_active_span_processor"):
        # Nobody set one for all: there may be one that instrument() was given.
        provider = next(iter(hooked), provider)
    multi = getattr(provider, "_active_span_processor", None)
    sampler = getattr(provider, "sampler", None)
    tracers = tuple(getattr(provider, "_tracers", {}).values())
    return {
        "provider": name_of(provider),
        "sdk": multi is not None,
        "disabled": bool(getattr(provider, "_disabled", False)),
        "watched": any(provider is one for one in hooked),
        "sampler": None if sampler is None else _plain(sampler),
        "sampler_drops": _may_drop(sampler),
        "sampler_ours": isinstance(sampler, HangupSampler),
        "tracers_past_us": sum(
            not isinstance(getattr(one, "sampler", None), HangupSampler)
            for one in tracers
        ),
        "concurrent": "Concurrent" in type(multi).__name__,
        "processors": [describe(one) for one in getattr(multi, "_span_processors", ())],
        "calls_not_ended": _calls_not_ended(instrumentor),
    }


def _hooked(instrumentor: Any) -> list[Any]:
    """Return the tracer providers that hangup has hooked."""
    return list(getattr(instrumentor, "_providers", ()))


def _calls_not_ended(instrumentor: Any) -> int:
    """Count the calls whose span has ended without our processor having heard of it."""
    recorder = getattr(instrumentor, "_recorder", None)
    return sum(
        getattr(call.span, "end_time", None) is not None
        for call in getattr(recorder, "opened", ())
    )


def _plain(sampler: Any) -> str:
    wrapped = getattr(sampler, "wrapped", sampler)
    text = str(wrapped.get_description())
    if text.startswith("ParentBased{root:"):  # the rest is what it always is, mostly
        text = f"ParentBased({text[17:].partition(',')[0]})"
    return text[:200].replace("Sampler", "")


def _may_drop(sampler: Any) -> bool:
    return sampler is not None and _plain(sampler) != "AlwaysOn"


def _metrics(instrumentor: Any) -> dict[str, Any]:
    provider: Any = metrics.get_meter_provider()
    used = getattr(instrumentor, "_made_on", None)
    made = _meters_behind(provider if used is None or _is_proxy(used) else used)
    readers: Any = getattr(made, "_metric_readers", ())
    return {
        "provider": name_of(made),
        "watched": made is _meters_behind(provider),
        "readers": [_reader(one) for one in readers],
        "ports": _prometheus_ports(),
    }


def _meters_behind(meters: Any) -> Any:
    """Return the SDK's provider behind a proxy such as logfire's."""
    inner = getattr(meters, "provider", None)
    return meters if hasattr(meters, "_metric_readers") or inner is None else inner


def _is_proxy(meters: Any) -> bool:
    # The API's stand-in, and logfire's, hand on to whatever provider is set later.
    return "Proxy" in type(meters).__name__


def _reader(reader: Any) -> dict[str, Any]:
    lineage = {base.__name__ for base in type(reader).__mro__}
    exporter = getattr(reader, "_exporter", None)
    return {
        "name": name_of(reader),
        "exporter": None if exporter is None else name_of(exporter),
        "prometheus": "PrometheusMetricReader" in lineage,
        "all_workers": "WorkersMetricReader" in lineage,
        "push": "PeriodicExportingMetricReader" in lineage,
    }


def _prometheus_ports() -> list[int]:
    """Return the ports on which threads of this process answer scrapes."""
    ports = []
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None)
        server = getattr(target, "__self__", None)
        address = getattr(server, "server_address", None)
        module = type(server).__module__
        if isinstance(address, tuple) and module.startswith(
            ("prometheus_client", "hangup.otel")
        ):
            ports.append(int(address[1]))
    return ports


def _clients() -> dict[str, Any]:
    loaded = [name for name in _CLIENTS if name in sys.modules]
    return {
        "loaded": loaded,
        "wire": {name: _is_wrapped(name) for name in loaded if "httpx" in name},
        "instrumentors": sorted(
            name_of(cls._instance) for cls in _instrumentors(BaseInstrumentor)
        ),
    }


def _is_wrapped(stack: str) -> bool:
    """Whether requests of ``httpx`` or ``httpx2`` pass our layer."""
    method = getattr(
        getattr(sys.modules[stack], "HTTPTransport", None), "handle_request", None
    )
    while method is not None:
        code_of = getattr(method, "__globals__", {})
        if str(code_of.get("__name__", "")).startswith("hangup."):
            return True
        method = getattr(method, "__wrapped__", None)
    return False


def _instrumentors(base: Any) -> list[Any]:
    """Return the classes of instrumentors that are instrumented now."""
    found: list[Any] = []
    for cls in base.__subclasses__():
        one = getattr(cls, "_instance", None)
        if type(one) is cls and getattr(one, "is_instrumented_by_opentelemetry", False):
            found.append(cls)
        found += _instrumentors(cls)
    return found


def _seen() -> dict[str, Any]:
    return {
        "hosts_denied": sorted(SEEN.denied - SEEN.model_hosts),
        "tools": dict(SEEN.tools),
        "protected": sorted(SEEN.protected),
        "destructive": sorted(SEEN.destructive),
        "model_calls": dict(SEEN.model_calls),
    }


def _samples(instrumentor: Any) -> list[Any]:
    """Return what was counted, as a scrape would tell it: name, labels, value."""
    found = [
        [name, dict(labels), value]
        for name, series in tuple(SEEN.samples.items())
        for labels, value in tuple(series.items())
    ]
    instruments = getattr(instrumentor, "_instruments", None)
    if instruments is None:
        return found
    metered = instruments.metered
    for name, callback in (
        (names.METERED_TOKENS, metered.tokens),
        (names.UNPRICED, metered.unpriced),
    ):
        for one in guarded(_observed, callback) or ():
            labels = {key: str(value) for key, value in (one.attributes or {}).items()}
            found.append([name, labels, one.value])
    found.append([names.INFO, dict(instruments.info), 1])
    rolled = getattr(instrumentor, "_rollout", None)
    if getattr(rolled, "_bad", None) is not None:
        found.append([names.POLICY_ERRORS, {}, 1])
    found.append([names.BRAKE_TRIPPED, {}, int(rollout.braked())])
    return found


def _observed(callback: Any) -> list[Any]:
    return list(callback(None))
