"""The span processor: where a spending call ends and its usage is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import SpanProcessor

from hangup.core.guard import guarded

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span

    from hangup.otel.recorder import Recorder


class HangupSpanProcessor(SpanProcessor):
    """Hands ended spans to the recorder. Thread-safe, never raises.

    Starts are decided in the guard, not here: see ``otel.guard`` for why.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.active = True

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        """Close the call of this span, if it is one."""
        if self.active:
            guarded(self._recorder.end, span)
