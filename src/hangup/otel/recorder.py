"""The open spending calls of the process: each one counted once, whoever reports it.

The innermost reporter of a model call wins; an agent's aggregate counts only what its
descendants did not. Ancestry is followed through every span inside an open call, also
those that are no calls themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangup.core.clock import SYSTEM_CLOCK
from hangup.otel import calls, names
from hangup.spend.usage import Usage, read_aggregate, read_first_token, read_usage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from typing import Any

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span

    from hangup.core.run import Run
    from hangup.otel.instruments import Instruments
    from hangup.spend.pricing import Cost

_MOST_OPEN = 10_000
_MODEL_CALLS = (calls.INFERENCE, calls.EMBEDDINGS)
_NOTHING = Usage(0, 0)


class Call:
    """A spending call that has started and not ended."""

    __slots__ = (
        "counted",
        "duplicate",
        "kind",
        "model",
        "nested",
        "parent",
        "protected",
        "run",
        "span",
        "span_id",
        "task",
    )

    def __init__(
        self, span: Span, span_id: int, kind: str, model: str | None, run: Run | None
    ) -> None:
        self.span = span
        self.span_id = span_id
        self.kind = kind
        self.model = model
        self.run = run
        self.parent: Call | None = None
        # What descendants have reported, and whether one of them is this same call.
        self.counted: Usage | None = None
        self.duplicate = False
        # Inside a tool that must finish once begun.
        self.protected = False
        self.task: asyncio.Task[Any] | None = None
        self.nested: list[int] | None = None


class Recorder:
    """Follows calls from span start to span end. Thread-safe, bounded, never raises.

    Args:
        instruments: Where calls outside runs, and totals, are recorded.
        price: Prices a call; None for a model without a price.
    """

    def __init__(
        self,
        instruments: Instruments,
        price: Callable[[str, Usage], Cost | None] | None,
    ) -> None:
        self._instruments = instruments
        self._price = price
        self._open: dict[int, Call] = {}
        # Every open span inside a call, by id, with the nearest call around it.
        self.inside: dict[int, Call] = {}

    @property
    def open_calls(self) -> int:
        """How many calls are open in the process."""
        return len(self._open)

    def around(self, parent_id: int) -> Call | None:
        """Return the open call that a span with this parent stands in."""
        return self.inside.get(parent_id)

    def nest(self, span_id: int, parent_id: int) -> None:
        """Note a span that is no call: its children stand in the call around it."""
        call = self.inside.get(parent_id)
        if call is None:
            return
        self.inside[span_id] = call
        if call.nested is None:
            call.nested = []
        call.nested.append(span_id)

    def start(self, call: Call, around: Call | None) -> None:
        """Open a call that was allowed to start."""
        call.parent = around
        run = call.run
        if len(self._open) >= _MOST_OPEN:
            self._evict()
        self._open[call.span_id] = call
        self.inside[call.span_id] = call
        if run is None:
            return
        call.task = run.work.call_opened()
        ledger = run.ledger
        if ledger is not None:
            ledger.start(
                call.span_id,
                call.kind,
                call.model or calls.UNKNOWN_MODEL,
                run.clock.monotonic(),
                call.span.get_span_context(),
            )

    def end(self, span: ReadableSpan) -> None:
        """Close the call of a span that has ended, if it is one."""
        if not self.inside:
            return
        span_id = span.context.span_id
        call = self.inside.pop(span_id, None)
        if call is None or self._open.pop(span_id, None) is None:
            return
        self._close(call, span.attributes or {})

    def mark_abandoned(self, run: Run, cause: str) -> None:
        """Put the cause on every open call of an abandoned run."""
        for call in tuple(self._open.values()):
            if call.run is not None and run.work.encloses(call.run):
                call.span.set_attribute(names.CAUSE, cause)

    def _evict(self) -> None:
        """Give up on the oldest open call: its span was most likely never ended."""
        oldest = next(iter(self._open), None)
        call = None if oldest is None else self._open.pop(oldest, None)
        if call is not None:
            self.inside.pop(call.span_id, None)
            self._close(call, {})

    def _close(self, call: Call, attributes: Mapping[str, object]) -> None:
        for span_id in call.nested or ():
            self.inside.pop(span_id, None)
        run = call.run
        now = (SYSTEM_CLOCK if run is None else run.clock).monotonic()
        usage = self._usage(call, attributes)
        model = call.model or calls.model_of(attributes) or calls.UNKNOWN_MODEL
        same_call_above = call.kind in _MODEL_CALLS and _enclosing_model_call(call)
        repeats = call.duplicate or (usage is None and same_call_above)
        cost = None
        if usage is not None and not repeats:
            cost = None if self._price is None else self._price(model, usage)
            self._count(call, usage)
            self._instruments.metered.add(
                model,
                usage,
                None if cost is None else cost.total,
                in_run=run is not None,
            )
        elif call.kind in _MODEL_CALLS and not repeats:
            self._unknown(model, attributes)
        if run is None:
            return
        ledger = run.ledger
        if ledger is not None:
            if repeats:
                ledger.drop(call.span_id)
            else:
                ledger.end(
                    call.span_id,
                    now,
                    usage,
                    first_token=read_first_token(attributes),
                    model=model,
                    cost=cost,
                )
        run.work.call_closed(call.task)

    @staticmethod
    def _usage(call: Call, attributes: Mapping[str, object]) -> Usage | None:
        if call.kind != calls.AGENT:
            return read_usage(attributes)
        aggregate = read_aggregate(attributes) or read_usage(attributes)
        if aggregate is None:
            return None
        own = aggregate.beyond(call.counted or _NOTHING)
        return own if own.total else None

    @staticmethod
    def _count(call: Call, usage: Usage) -> None:
        """Tell every call around that this much has been counted."""
        above = call.parent
        while above is not None:
            above.counted = usage if above.counted is None else above.counted + usage
            if above.kind in _MODEL_CALLS and call.kind in _MODEL_CALLS:
                above.duplicate = True
            above = above.parent

    def _unknown(self, model: str, attributes: Mapping[str, object]) -> None:
        labels = {names.MODEL: self._instruments.models(model)}
        self._instruments.unknown.add(1, labels)
        bound = attributes.get("gen_ai.request.max_tokens")
        if isinstance(bound, int) and bound > 0:
            self._instruments.unknown_bound.add(bound, labels)


def _enclosing_model_call(call: Call) -> bool:
    above = call.parent
    while above is not None:
        if above.kind in _MODEL_CALLS:
            return True
        above = above.parent
    return False
