"""The run in the OpenTelemetry context: one key, holding the live position.

The deadline and the token are *not* kept as baggage entries in the context: entries
there would go stale, and every baggage propagator would send them to whoever is called.
They are made from the live run when a request leaves (see ``propagator``).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from opentelemetry import context as context_api
from opentelemetry.trace import get_current_span

from hangup.core.current import POSITION, Position, seen
from hangup.otel import runspan

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context

    from hangup.core.run import Run

# What the module's function asks, where that is to be had: every span comes by, and
# the function is two frames of Python around one look-up.
_RUNTIME = getattr(context_api, "_RUNTIME_CONTEXT", context_api)
_VARIABLE = getattr(_RUNTIME, "_current_context", None)
get_current: Callable[[], Context] = (
    _VARIABLE.get if isinstance(_VARIABLE, ContextVar) else _RUNTIME.get_current
)
"""Returns the current OpenTelemetry context, as ``opentelemetry.context`` does."""
POSITION_KEY = context_api.create_key("hangup-position")
INBOUND_KEY = context_api.create_key("hangup-inbound")


def position_in(context: Context | None) -> Position | None:
    """Return the position in ``context``; of the present code where it says nothing."""
    where = get_current() if context is None else context
    found: Position | None = where.get(POSITION_KEY)  # type: ignore[assignment]  # ours
    if found is None:
        found = POSITION.get()
    return found if found is None or found.hold is None else seen(found)


def run_in(context: Context | None) -> Run | None:
    """Return the live run in ``context`` (of the present code if None), or None."""
    found = position_in(context)
    if found is None or found.run is None or found.run.inert:
        return None
    return found.run


class OtelBridge:
    """Keeps the position in the OpenTelemetry context, see ``core.current``."""

    def read(self) -> Position | None:
        """Return the position in the current context."""
        found = context_api.get_current().get(POSITION_KEY)
        return found if isinstance(found, Position) else None

    def attach(self, position: Position) -> Callable[[], None]:
        """Make ``position`` current.

        The returned function never detaches by token: in another task that fails with a
        logged error, and a context attached meanwhile and not taken off would keep a
        finished run alive for whatever comes next.
        """
        before = context_api.get_current()
        run = position.run
        opened = run is not None and run.origin is None
        if run is not None and opened:
            run.origin = before
            if run.parent is None and not get_current_span(before).is_recording():
                runspan.await_span(run)
        ours = context_api.set_value(POSITION_KEY, position, before)
        context_api.attach(ours)

        def leave() -> None:
            if run is not None and opened:
                runspan.forget(run)
            now = context_api.get_current()
            if now is ours:
                context_api.attach(before)
            elif now.get(POSITION_KEY) is position:
                context_api.attach(
                    context_api.set_value(POSITION_KEY, before.get(POSITION_KEY), now)
                )

        return leave
