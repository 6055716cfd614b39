"""OpenAI Agents SDK: the tool or agent that a refused span stands for is not begun.

Its instrumentations are trace processors, and the SDK logs what these raise and goes
on: a refusal that is an ordinary error (in ``refuse``, and where the run's own task has
had its stop) would keep no tool from being begun. Here it is raised again where the SDK
starts the span, once every processor has heard of it; these are told of the end, and
the log is spared what was no error. Nothing is asked or counted a second time.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from hangup.core import registry
from hangup.core.admission import owner_of_cause
from hangup.core.guard import guarded
from hangup.core.policy import Decision
from hangup.otel.mending import Mending

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.cause import Cause
    from hangup.core.run import Run
    from hangup.otel.patch import Patch

_MODULE: Final = "agents.tracing.spans"
_SPAN: Final = "SpanImpl"
_logger: Final = logging.getLogger("openai.agents")
_SWALLOWED: Final = "Error in trace processor during on_span_start"


class _Starting(threading.local):
    """The span that the SDK starts on this thread, and whether it was refused."""

    now = False
    refused: Run | None = None


_starting: Final = _Starting()


class _Refusals(registry.RunObserver):
    def refused(
        self,
        run: Run,
        kind: str,  # noqa: ARG002  an observer
        cause: Cause,  # noqa: ARG002
        decision: str,
        model: str | None,  # noqa: ARG002
    ) -> None:
        if _starting.now and decision == Decision.REFUSE.value:
            _starting.refused = run


_refusals: Final = _Refusals()


def _start(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        if not patch.active:
            original(self, *args, **kwargs)
            return
        around = (_starting.now, _starting.refused)
        _starting.now, _starting.refused = True, None
        try:
            original(self, *args, **kwargs)
            run = _starting.refused
        finally:
            _starting.now, _starting.refused = around
        if run is not None:
            guarded(self.finish, True)  # noqa: FBT003  it is not to stay current
            raise owner_of_cause(run).error()

    return start


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a line of the SDK's log is about anything but a refusal of ours."""
    swallowed = record.getMessage().startswith(_SWALLOWED)
    return _starting.refused is None or not swallowed


_mending: Final = Mending((_MODULE, _SPAN, "start", _start))


def install() -> None:
    """Mend the SDK if it is imported, else when it is. Idempotent."""
    registry.add_observer(_refusals)
    _logger.addFilter(_worth_a_line)
    _mending.install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    registry.remove_observer(_refusals)
    _logger.removeFilter(_worth_a_line)
    _mending.uninstall()
