"""The tracer providers that are watched: the one there is, and those that will be.

Whoever sets telemetry up may do so before hangup is installed or after it, and may keep
a provider of their own beside the global one (Logfire does where another was first).
"""

from __future__ import annotations

import functools
import logging
import weakref
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import ProxyTracerProvider

from hangup.core.guard import guarded
from hangup.otel.patch import Patch
from hangup.otel.processor import HangupSpanProcessor
from hangup.otel.sampler import HangupSampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.otel.guard import Guard
    from hangup.otel.recorder import Recorder

_logger = logging.getLogger("hangup")


class Providers:
    """Hooks processor, guard and sampler into providers of the SDK. Holds them weakly.

    Args:
        recorder: Hears of the ended spans.
        guard: Decides on their spans at the start.
    """

    def __init__(self, recorder: Recorder, guard: Guard) -> None:
        self._guard = guard
        self._processor = HangupSpanProcessor(recorder)
        self._watched: weakref.WeakSet[Any] = weakref.WeakSet()
        self._later = Patch(TracerProvider, "__init__", self._init)

    def __iter__(self) -> Any:
        """Iterate over those that are watched."""
        return iter(tuple(self._watched))

    def watch(self, provider: Any, *, more: bool) -> None:
        """Watch ``provider``, existing tracers of it too. Idempotent.

        Args:
            provider: Of the SDK, or what stands before one; another kind is told of in
                the log, and calls are refused all the same.
            more: Watch every provider too that is made from now on.
        """
        if more:
            self._guard.begin()
            self._later.apply()
        if self._add(_of_the_sdk(provider)):
            return
        self._guard.install_without_sdk()
        if getattr(_of_the_sdk(provider), "_disabled", False):
            return  # OTEL_SDK_DISABLED, by choice
        if more and isinstance(provider, ProxyTracerProvider):
            _logger.info(
                "hangup is installed before any OpenTelemetry SDK tracer provider is "
                "set up: calls are measured from then on"
            )
            return
        _logger.warning(
            "hangup found no OpenTelemetry SDK tracer provider (%s): runs are "
            "still stopped, but no call is measured. Set the provider up before "
            "hangup.instrument()",
            type(provider).__name__,
        )

    def uninstall(self) -> None:
        """Leave every provider as it was without us. Idempotent."""
        self._later.revert()
        self._processor.retire()
        for provider in self:
            self._watched.discard(provider)
            _remove_processor(provider, self._processor)
            if isinstance(provider.sampler, HangupSampler):
                _set_sampler(provider, provider.sampler.wrapped)

    def _init(self, init: Any, patch: Patch) -> Callable[..., None]:
        @functools.wraps(init)
        def watched_init(provider: Any, *args: Any, **kwargs: Any) -> None:
            init(provider, *args, **kwargs)
            if patch.active:
                guarded(self._add, provider)

        return watched_init

    def _add(self, provider: Any) -> bool:
        multi_processor: Any = getattr(provider, "_active_span_processor", None)
        if not hasattr(multi_processor, "add_span_processor"):
            return False
        if getattr(provider, "_disabled", False):
            return False
        if provider not in self._watched:
            self._watched.add(provider)
            # Not by the provider's own method: Phoenix's takes its exporter out when
            # anybody adds a processor.
            multi_processor.add_span_processor(self._processor)
            self._guard.install(multi_processor)
            _set_sampler(provider, HangupSampler(provider.sampler))
        return True


def _set_sampler(provider: Any, sampler: Any) -> None:
    """Give the provider, and the tracers it has made, this sampler."""
    provider.sampler = sampler
    for tracer in tuple(getattr(provider, "_tracers", {}).values()):
        tracer.sampler = sampler


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
