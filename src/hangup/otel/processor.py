"""The span processor: where a spending call ends and its usage is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import SpanProcessor

from hangup.core.guard import guarded
from hangup.otel.later import PATIENCE

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span

    from hangup.otel.recorder import Recorder


def _nothing(span: Span, parent_context: Context | None = None) -> None:
    pass


class HangupSpanProcessor(SpanProcessor):
    """Hands ended spans to the recorder. Thread-safe, never raises.

    Starts are decided in the guard, not here: see ``otel.guard`` for why.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # This is every span's path, and each frame of Python on it is one per cent of
        # what a span costs: so the recorder's own method stands here, and where nothing
        # is to be done what does nothing at the least price.
        self.on_start = _nothing  # type: ignore[method-assign]
        self._on_ending = id  # type: ignore[method-assign,assignment]
        self.on_end = recorder.end  # type: ignore[method-assign]

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        """Close the call of this span, if it is one; nothing once retired."""

    def retire(self) -> None:
        """Hand on no more spans. Idempotent."""
        self.__dict__.pop("on_end", None)

    def shutdown(self) -> None:
        """Put what has ended into the books; the metrics may go next."""
        guarded(self._recorder.settle, PATIENCE)

    def force_flush(
        self,
        timeout_millis: int = 30000,  # noqa: ARG002  the SDK's signature
    ) -> bool:
        """Put what has ended into the books; ``timeout_millis`` is not needed."""
        guarded(self._recorder.settle, PATIENCE)
        return True
