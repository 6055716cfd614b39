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
from hangup.core import quiet, registry, remote, rollout, sleeps
from hangup.core.current import set_bridge
from hangup.core.guard import guarded
from hangup.errors import ConfigError
from hangup.otel import exchanges, forks, names, propagator, settlement
from hangup.otel.abroad import tokens_so_far
from hangup.otel.accounts import Accounts
from hangup.otel.context import OtelBridge
from hangup.otel.guard import Guard
from hangup.otel.instruments import Instruments
from hangup.otel.later import PATIENCE
from hangup.otel.prices import load_pricer
from hangup.otel.providers import Providers
from hangup.otel.recorder import Recorder
from hangup.otel.rollout import Rollout
from hangup.otel.statements import Statements

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Collection

    from opentelemetry._logs import LoggerProvider

    from hangup.otel.call import Call

_logger = logging.getLogger("hangup")

# Adapters are plug-ins: they sit above this layer, so they are loaded by name.
_ADAPTERS = (
    "hangup.clients",
    "hangup.servers._asgi_auto",
    "hangup.servers.mcp",
    "hangup.servers.a2a",
    "hangup.bus",
)

_LAST_PATIENCE = 5.0
"""Seconds that the end of a process waits for calls that are being entered."""


def installed_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("hangup")
    except PackageNotFoundError:  # pragma: no cover  run from a source tree
        return "0"


def _answer_doctor(instrumentor: HangupInstrumentor | None = None) -> None:
    from hangup.otel import diagnosis  # noqa: PLC0415  seldom asked for

    diagnosis.watch(instrumentor)


class HangupInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # the base is untyped
    """The OpenTelemetry instrumentation. A singleton, as every instrumentor.

    ``instrument()`` takes ``tracer_provider``, ``meter_provider`` and every setting of
    :mod:`hangup.config`; a second call does nothing. ``uninstrument()`` restores what
    was wrapped. Existing tracers of the provider are covered.
    """

    _instruments: Instruments | None = None
    _made_on: metrics.MeterProvider | None = None
    _given_meters: metrics.MeterProvider | None = None
    _given_loggers: LoggerProvider | None = None
    _forks = False

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no dependency: hangup watches OpenTelemetry itself."""
        return ()

    def instrument(self, **kwargs: Any) -> Any:
        """Install; where that was done, only lower the mode to the one given, if any.

        Runs under way follow. To raise it again, ``uninstrument()`` first.

        Raises:
            ConfigError: A setting cannot be used. Not where OpenTelemetry's zero code
                calls: there it is logged, and hangup not installed.
        """
        if not kwargs.get("skip_dep_check"):
            return self._instrument_once(**kwargs)
        if self.is_instrumented_by_opentelemetry:
            return None  # by OTEL_CONFIG_FILE, whose settings these are
        try:
            return self._instrument_once(**kwargs)
        except ConfigError as error:
            # The loader would stop there, and leave out what comes after us.
            _logger.error("hangup is not installed: %s", error)  # noqa: TRY400
            return None

    def _instrument_once(self, **kwargs: Any) -> Any:
        mode = config.read_mode("mode", kwargs.get("mode"))
        if not self.is_instrumented_by_opentelemetry or mode is None:
            return super().instrument(**kwargs)
        settings = config.current()
        config.use(config.with_keywords(settings, mode=mode.least(settings.mode)))
        rollout.lower()
        return None

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
            # First: a wrong file must leave nothing half installed.
            self._pricer = load_pricer(settings.prices)
            self._rollout = Rollout(settings)
        if os.environ.get("HANGUP_DOCTOR"):
            guarded(_answer_doctor)
        config.use(settings)
        rollout.lower()
        self._mode = settings.mode
        if settings.mode is Mode.OFF:
            return
        self._given_meters, self._given_loggers = meter_provider, logger_provider
        self._install(tracer_provider)

    @property
    def _meters(self) -> metrics.MeterProvider:
        """Those that were given, or the process' own: they may have been set since."""
        return self._given_meters or metrics.get_meter_provider()

    @property
    def _loggers(self) -> LoggerProvider:
        """Likewise."""
        return self._given_loggers or get_logger_provider()

    def _install(self, tracers: trace.TracerProvider | None) -> None:
        self._made_on = self._meters
        instruments = self._instruments_on(self._made_on)
        self._rollout.install(instruments.meter)
        self._recorder = Recorder(instruments, self._pricer)
        logger = self._loggers.get_logger(names.SCOPE, installed_version())
        statements = Statements(logger, self._pricer.price_version)
        self._accounts = Accounts(
            instruments, self._recorder, settlement.observer(), statements
        )
        self._guard = Guard(self._recorder)
        self._providers = Providers(self._recorder, self._guard)
        self._providers.watch(
            tracers or trace.get_tracer_provider(), more=tracers is None
        )
        exchanges.watch(self._recorder)
        self._bridge = OtelBridge()
        set_bridge(self._bridge)
        if os.environ.get("HANGUP_DOCTOR"):
            guarded(_answer_doctor, self)
        # Accounts first: books are open before anybody asks about them.
        registry.add_observer(self._accounts)
        registry.add_observer(settlement.observer())
        registry.add_observer(sleeps.observer())
        propagator.install(on_lost=instruments.baggage_lost.add)
        quiet.install()
        remote.count_tokens_with(tokens_so_far)
        for adapter in _ADAPTERS:
            guarded(_tell_adapter, adapter, "install")
        atexit.register(self._at_exit)
        if not self._forks:
            self._forks = True
            forks.first(self._after_fork)

    def _instruments_on(self, meters: metrics.MeterProvider) -> Instruments:
        """Return instruments on these meters, those of the last time if they were.

        An instrument that is made again is the first one with its first callbacks.
        """
        number = installed_version()
        mode = "unset" if self._mode is None else self._mode.value
        meter = meters.get_meter(names.SCOPE, number)
        if self._instruments is None or self._instruments.meter is not meter:
            self._instruments = Instruments(meter, number, mode, self._before_collect)
        self._rollout.tell(self._instruments.info)
        return self._instruments

    def _uninstrument(self, **_kwargs: Any) -> None:
        config.use(None)
        accounts = getattr(self, "_accounts", None)
        if accounts is None:
            return
        # Before the adapters go: one of them carries the notices of what is released.
        self._flush()
        for adapter in _ADAPTERS:
            guarded(_tell_adapter, adapter, "uninstall")
        exchanges.watch(None)
        propagator.uninstall()
        remote.count_tokens_with(None)
        quiet.uninstall()
        atexit.unregister(self._at_exit)
        registry.remove_observer(sleeps.observer())
        registry.remove_observer(settlement.observer())
        registry.remove_observer(accounts)
        self._rollout.uninstall()
        set_bridge(None)
        self._guard.uninstall()
        self._providers.uninstall()
        if self._instruments is not None:
            self._instruments.later.drain(PATIENCE)
        del self._accounts

    def _after_fork(self) -> None:
        if getattr(self, "_accounts", None) is None:
            return
        forks.renew_identity(*self._providers, self._meters, self._loggers)
        forks.renew_sums(self._meters)
        self._recorder.after_fork()
        self._rollout.after_fork()
        if self._instruments is not None:
            self._instruments.after_fork()
        self._accounts.after_fork()
        forks.at_exit(self._end_child)

    def _before_collect(self) -> None:
        accounts = getattr(self, "_accounts", None)
        if accounts is not None:
            if self._instruments is not None:
                self._rollout.tell(self._instruments.info)
            guarded(self._recorder.settle, PATIENCE)
            guarded(accounts.drain)

    def flush(self, timeout: float = 5.0) -> None:
        """Export what has been measured so far. Thread-safe; raises nothing.

        Blocks, for about ``timeout`` seconds at most per provider: not for event loops.
        """
        if getattr(self, "_accounts", None) is None:
            return
        self._before_collect()
        for provider in (*self._providers, self._meters, self._loggers):
            force_flush = getattr(provider, "force_flush", None)
            if force_flush is not None:
                guarded(force_flush, int(timeout * 1000))

    def give_up(self, loop: AbstractEventLoop | None = None) -> None:
        """Close the calls that will not end any more: what they used is unknown.

        For whoever knows that the process is going down. Thread-safe; raises nothing.

        Args:
            loop: Only those made on tasks of this one; None: every call.
        """
        if getattr(self, "_accounts", None) is None:
            return
        # What stands in others goes first, as where they end by themselves.
        for call in reversed(self._recorder.opened):
            if loop is None or _runs_on(loop, call):
                guarded(self._recorder.give_up, call)

    def _end_child(self) -> None:
        # Its providers do not shut down either, so nobody else exports.
        self._at_exit()
        self.flush()

    def _at_exit(self) -> None:
        forks.conclude()
        # What still runs now reaches nobody any more: it was not delivered.
        guarded(registry.shutdown)
        self.give_up()
        self._flush()

    def _flush(self) -> None:
        accounts = getattr(self, "_accounts", None)
        if accounts is not None:
            guarded(self._recorder.settle, _LAST_PATIENCE)
            guarded(accounts.flush)


def _tell_adapter(name: str, what: str) -> None:
    getattr(importlib.import_module(name), what)()


def _runs_on(loop: AbstractEventLoop, call: Call) -> bool:
    task = None if call.run is None else call.run.work.tree.task_of(call.ticket)
    return task is not None and task.get_loop() is loop
