"""Measure what the sampler drops, without exporting more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from hangup.otel.calls import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind
    from opentelemetry.trace.span import TraceState
    from opentelemetry.util.types import Attributes


# Members of an Enum are looked up through a Python frame before 3.12.
_DROP = Decision.DROP


class HangupSampler(Sampler):
    """Wraps the configured sampler: a dropped spending call is recorded, not exported.

    A span processor never hears of a dropped span. ``RECORD_ONLY`` makes it hear, and
    leaves the sampled flag off, so exporters and children behave as before.
    """

    def __init__(self, wrapped: Sampler) -> None:
        self.wrapped = wrapped
        self._ask = wrapped.should_sample  # every span comes by: looked up once

    def should_sample(  # noqa: PLR0913, PLR0917  the SDK's signature
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Ask the wrapped sampler, and lift DROP to RECORD_ONLY for spending calls."""
        result = self._ask(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )
        if result.decision is _DROP and kind_of(attributes) is not None:
            return SamplingResult(
                Decision.RECORD_ONLY,
                attributes,
                result.trace_state,
            )
        return result

    def get_description(self) -> str:
        """Return the wrapped sampler's description, marked as ours."""
        return f"HangupSampler{{{self.wrapped.get_description()}}}"
