"""Installs hangup on OpenTelemetry: as an instrumentation, or from code."""

from __future__ import annotations

import atexit
import importlib
import logging
import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry._logs import get_logger_provider
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from hangup import config
from hangup.config import Mode
from hangup.core import quiet, registry, remote
from hangup.core.current import set_bridge
from hangup.core.guard import guarded
from hangup.otel import exchanges, names, propagator, settlement
from hangup.otel.abroad import tokens_so_far
from hangup.otel.accounts import Accounts
from hangup.otel.context import OtelBridge
from hangup.otel.guard import Guard
from hangup.otel.instruments import Instruments
from hangup.otel.prices import load_pricer
from hangup.otel.processor import HangupSpanProcessor
from hangup.otel.recorder import PATIENCE, Recorder
from hangup.otel.sampler import HangupSampler
from hangup.otel.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Collection

    from opentelemetry._logs import LoggerProvider

_logger = logging.getLogger("hangup")

# Adapters are plug-ins: they sit above this layer, so they are loaded by name.
_ADAPTERS = ("hangup.clients", "hangup.bus")


def installed_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("hangup")
    except PackageNotFoundError:  # pragma: no cover  run from a source tree
        return "0"


class HangupInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # the base is untyped
    """The OpenTelemetry instrumentation. A singleton, as every instrumentor.

    ``instrument()`` takes ``tracer_provider``, ``meter_provider`` and every setting of
    :mod:`hangup.config`; a second call does nothing. ``uninstrument()`` restores what
    was wrapped. Existing tracers of the provider are covered.
    """

    _instruments: Instruments | None = None
    _forks = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no dependency: hangup watches OpenTelemetry itself."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        tracer_provider = kwargs.pop("tracer_provider", None)
        meter_provider = kwargs.pop("meter_provider", None)
        logger_provider = kwargs.pop("logger_provider", None)
        # What callers give to every instrumentor alike.
        for unused in ("raise_exception_on_conflict", "skip_dep_check"):
            kwargs.pop(unused, None)
        environment = config.from_environment()
        settings = config.with_keywords(environment, **kwargs)
        if settings.mode is not None:
            settings = config.with_keywords(
                settings, mode=settings.mode.least(environment.mode)
            )
        if settings.mode is not Mode.OFF:
            # First: a wrong price file must leave nothing half installed.
            self._pricer = load_pricer(settings.prices)
        config.use(settings)
        self._mode = settings.mode
        if settings.mode is Mode.OFF:
            return
        self._install(
            tracer_provider or trace.get_tracer_provider(),
            meter_provider or metrics.get_meter_provider(),
            logger_provider or get_logger_provider(),
        )

    def _install(
        self,
        tracers: trace.TracerProvider,
        meters: metrics.MeterProvider,
        loggers: LoggerProvider,
    ) -> None:
        self._meters, self._loggers = meters, loggers
        instruments = self._instruments_on(meters)
        self._recorder = Recorder(instruments, self._pricer)
        logger = loggers.get_logger(names.SCOPE, installed_version())
        statements = Statements(logger, self._pricer.price_version)
        self._accounts = Accounts(
            instruments, self._recorder, settlement.observer(), statements
        )
        self._guard = Guard(self._recorder)
        self._watch(tracers)
        exchanges.watch(self._recorder)
        self._bridge = OtelBridge()
        set_bridge(self._bridge)
        # Accounts first: books are open before anybody asks about them.
        registry.add_observer(self._accounts)
        registry.add_observer(settlement.observer())
        propagator.install(on_lost=instruments.baggage_lost.add)
        quiet.install()
        remote.count_tokens_with(tokens_so_far)
        for adapter in _ADAPTERS:
            guarded(importlib.import_module(adapter).install)
        atexit.register(self._at_exit)
        if not self._forks and hasattr(os, "register_at_fork"):
            self._forks = True
            os.register_at_fork(after_in_child=self._after_fork)

    def _instruments_on(self, meters: metrics.MeterProvider) -> Instruments:
        """Return instruments on these meters, those of the last time if they were.

        An instrument that is made again is the first one with its first callbacks.
        """
        number = installed_version()
        mode = "unset" if self._mode is None else self._mode.value
        meter = meters.get_meter(names.SCOPE, number)
        if self._instruments is None or self._instruments.meter is not meter:
            self._instruments = Instruments(meter, number, mode, self._before_collect)
        self._instruments.info[names.MODE] = mode
        return self._instruments

    def _watch(self, tracers: Any) -> None:
        """Hook a provider of the SDK: guard, processor, sampler."""
        tracers = _of_the_sdk(tracers)
        multi_processor = getattr(tracers, "_active_span_processor", None)
        if multi_processor is None or not hasattr(tracers, "add_span_processor"):
            _logger.warning(
                "hangup found no OpenTelemetry SDK tracer provider (%s): runs are "
                "still stopped, but no call is measured. Set the provider up before "
                "hangup.instrument()",
                type(tracers).__name__,
            )
            self._guard.install_without_sdk()
            return
        if getattr(tracers, "_disabled", False):  # OTEL_SDK_DISABLED, by choice
            self._guard.install_without_sdk()
            return
        self._provider = tracers
        self._processor = HangupSpanProcessor(self._recorder)
        tracers.add_span_processor(self._processor)
        self._guard.install(multi_processor)
        self._set_sampler(HangupSampler(tracers.sampler))

    def _set_sampler(self, sampler: Any) -> None:
        """Give the provider, and the tracers it has made, this sampler."""
        self._provider.sampler = sampler
        for tracer in tuple(getattr(self._provider, "_tracers", {}).values()):
            tracer.sampler = sampler

    def _uninstrument(self, **_kwargs: Any) -> None:
        config.use(None)
        accounts = getattr(self, "_accounts", None)
        if accounts is None:
            return
        # Before the adapters go: one of them carries the notices of what is released.
        self._flush()
        for adapter in _ADAPTERS:
            guarded(importlib.import_module(adapter).uninstall)
        exchanges.watch(None)
        propagator.uninstall()
        remote.count_tokens_with(None)
        quiet.uninstall()
        atexit.unregister(self._at_exit)
        registry.remove_observer(settlement.observer())
        registry.remove_observer(accounts)
        set_bridge(None)
        self._guard.uninstall()
        provider = getattr(self, "_provider", None)
        if provider is not None:
            self._processor.retire()
            _remove_processor(provider, self._processor)
            if isinstance(provider.sampler, HangupSampler):
                self._set_sampler(provider.sampler.wrapped)
            del self._provider
        del self._accounts

    def _after_fork(self) -> None:
        if getattr(self, "_accounts", None) is not None:
            self._recorder.after_fork()
            if self._instruments is not None:
                self._instruments.after_fork()

    def _before_collect(self) -> None:
        accounts = getattr(self, "_accounts", None)
        if accounts is not None:
            guarded(self._recorder.settle, PATIENCE)
            guarded(accounts.drain)

    def flush(self, timeout: float = 5.0) -> None:
        """Export what has been measured so far. Thread-safe; raises nothing.

        Blocks, for about ``timeout`` seconds at most per provider: not for event loops.
        """
        if getattr(self, "_accounts", None) is None:
            return
        self._before_collect()
        tracers = getattr(self, "_provider", None)
        for provider in (tracers, self._meters, self._loggers):
            force_flush = getattr(provider, "force_flush", None)
            if force_flush is not None:
                guarded(force_flush, int(timeout * 1000))

    def _at_exit(self) -> None:
        # What still runs now reaches nobody any more: it was not delivered.
        guarded(registry.shutdown)
        self._flush()

    def _flush(self) -> None:
        accounts = getattr(self, "_accounts", None)
        if accounts is not None:
            guarded(self._recorder.settle, PATIENCE)
            guarded(accounts.flush)


def _of_the_sdk(tracers: Any) -> Any:
    """Return the provider behind a proxy, such as logfire's, or what it was given."""
    behind = getattr(tracers, "provider", None)
    if not hasattr(tracers, "_active_span_processor") and hasattr(
        behind, "_active_span_processor"
    ):
        return behind
    return tracers


def _remove_processor(provider: Any, processor: HangupSpanProcessor) -> None:
    """Take our processor out again; the SDK has no call for it."""
    multi: Any = getattr(provider, "_active_span_processor", None)
    lock, present = getattr(multi, "_lock", None), "_span_processors"
    if lock is None or not hasattr(multi, present):
        return  # another SDK: the processor stays, and does nothing
    with lock:
        rest = tuple(one for one in getattr(multi, present) if one is not processor)
        setattr(multi, present, rest)
