"""The functions at the top of the package that are more than a name for another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hangup.core.current import current_run, position

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from hangup.config import Mode


def remaining() -> float:
    """Seconds left here: of the run, or of a cleanup around us; infinite outside."""
    here = position()
    if here is not None and here.shield is not None:
        return here.shield.deadline.remaining()
    run = current_run()
    return math.inf if run is None else run.remaining()


def check(needs: float = 0.0) -> None:
    """Stop here unless the present run may make a spending call; see ``Run.check``.

    Outside a run it does nothing.

    Args:
        needs: The least time in seconds the work is worth starting with.

    Raises:
        Stop: The run is abandoned or has too little time.
    """
    run = current_run()
    if run is not None:
        run.check(needs)


def instrument(
    *,
    mode: Mode | str | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    **settings: object,
) -> None:
    """Install hangup on OpenTelemetry. Idempotent; undone by :func:`uninstrument`.

    Where it is installed, a call can only lower the mode, for the runs under way too:
    the rest of what it says has no effect.

    Args:
        mode: A ceiling over every run of the process, as ``HANGUP_MODE``; where both
        are
            given the less intrusive wins.
        tracer_provider: The SDK provider to watch; the global one if None.
        meter_provider: Where hangup's metrics go; the global one if None.
        settings: Any setting of :mod:`hangup.config`, by name.

    Raises:
        ConfigError: A setting is unknown or its value cannot be used.
    """
    from hangup.otel.instrumentor import HangupInstrumentor  # noqa: PLC0415  slow

    HangupInstrumentor().instrument(
        mode=mode,
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        **settings,
    )


def uninstrument() -> None:
    """Take hangup off again and restore what it wrapped. Idempotent."""
    from hangup.otel.instrumentor import HangupInstrumentor  # noqa: PLC0415  slow

    HangupInstrumentor().uninstrument()
