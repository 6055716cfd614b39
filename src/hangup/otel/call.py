"""One spending call: what its span, and the HTTP exchanges inside it, tell of it.

A call is seen at up to three heights: by a framework's span, by the client library's
span, and on the wire. Each is a :class:`Call`; the one around it is its parent.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from hangup.otel import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from decimal import Decimal

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, SpanContext

    from hangup.core.run import Run
    from hangup.spend.meter import Meter
    from hangup.spend.usage import Usage

MODEL_CALLS: Final = (calls.INFERENCE, calls.EMBEDDINGS)
# Span ids are positive: no exchange is ever taken for a span.
_NO_ANSWER: Final = 300  # this status and above
_numbers = itertools.count(-1, -1)


class Call:
    """A spending call that has started and not ended.

    Made without an initialiser, which would be a frame on the path of every call: who
    makes one sets its kind and its model.
    """

    kind: str
    model: str | None
    # What few calls ever have stands here, once; an instance says only what differs.
    run: Run | None = None
    # The call around this one, and whether both are inside a tool that must finish.
    parent: Call | None = None
    protected = False
    # Calls right inside that have not been entered into the books yet.
    inner: dict[int, Call] | None = None
    # It has ended, and waits for those.
    held = False
    # What descendants have reported, and whether one of them is this same call.
    counted: Usage | None = None
    duplicate = False
    # How many further reports of this same call, or of its retries, said nothing, and
    # how many were answered with an error, which uses nothing.
    vague = 0
    failed = 0
    # Exchanges of this call that told too little, for whoever knows more.
    estimates: list[Exchange] | None = None
    nested: dict[int, None] | None = None
    # The thread that opened it.
    thread = 0
    # Set when it starts, on the run's clock; the context is for an exemplar, and of
    # an exchange it is the one of the span around it.
    span: Span | None = None
    span_context: SpanContext | None = None
    span_id: int
    started_at = 0.0
    ticket = 0
    # Set when it ends; no report: it was given up
    ended_at = 0.0
    report: ReadableSpan | None = None

    @property
    def answered(self) -> bool:
        """Whether somebody further in has told of it already."""
        return self.duplicate or bool(self.estimates)


class Exchange(Call):
    """One request to a model and its answer, as they pass on the wire.

    Fed by one reader at a time; closed once, by :meth:`Recorder.end_exchange`.

    Attributes:
        meter: Reads the answer.
        sent: Whether a byte of the request has left: before that nothing was spent.
        status: The answer's status code; 0 while there is none.
        legible: Whether the meter could be fed: not where the content encoding is one
            that the standard library cannot undo.
        complete: Whether the answer was read to its end.
        provider: Who serves it, as prices know it; "" where the host does not tell.
        stops: Whether the provider is known to stop when its caller hangs up.
        billed: The bill in the answer's head, in dollars.
        lasting: Whether the provider goes on with it whoever hangs up, until it is
            done or told to cancel.
        halted: Whether it was told to cancel.
        ending: Asked when its answer is over; true where the call goes on all the same
            and is ended later. It may end it itself.
    """

    def __init__(self, meter: Meter) -> None:
        self.kind, self.model = calls.INFERENCE, None
        self.meter = meter
        self.sent = False
        self.status = 0
        self.legible = True
        self.complete = False
        self.provider = ""
        self.stops = False
        self.billed: Decimal | None = None
        self.lasting = False
        self.halted = False
        self.ending: Callable[[], bool] | None = None
        self.span_id = next(_numbers)

    def stands_in(self, context: SpanContext) -> None:
        """Note the span around it, whatever that is."""
        self.span_context = context if context.is_valid else None

    @property
    def free(self) -> bool:
        """Whether it spent nothing: it was never sent, or answered with an error."""
        return not self.sent or self.status >= _NO_ANSWER

    @property
    def outcome_unknown(self) -> bool:
        """Whether it was cut: the provider may have gone on, and may bill it."""
        stopped = self.stops and self.meter.streamed and not self.lasting
        return self.cut and not stopped

    @property
    def cut(self) -> bool:
        """Whether its answer was not read to the end."""
        return not (self.free or self.complete or self.meter.finished)

    @property
    def usage(self) -> Usage | None:
        """What the wire tells, reported or estimated; None where it tells nothing."""
        if self.free or (not self.legible and self.status):
            return None
        usage = self.meter.usage
        return usage if usage.known else None


def least_time(needs: Mapping[str, float], kind: str, model: str | None) -> float:
    """Return the least time worth starting a call with, in seconds; its model first."""
    if model is not None and model in needs:
        return needs[model]
    return needs.get(kind, 0.0)


def same_above(call: Call) -> Call | None:
    """Return the report that this same model call stands in, from another layer.

    Only right around it: a tool in between, or another kind, makes it another call.
    """
    above = call.parent
    if above is None or call.kind not in MODEL_CALLS or above.kind != call.kind:
        return None
    return above
