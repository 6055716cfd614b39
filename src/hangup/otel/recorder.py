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
# Spans that are no calls, remembered per open call: with more of them open at a time,
# or dropped by the sampler (and those never end), the oldest lose their place.
_MOST_NESTED = 4_096
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
        "vague",
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
        # How many further reports of this same call, or of its retries, said nothing.
        self.vague = 0
        # Inside a tool that must finish once begun.
        self.protected = False
        self.task: asyncio.Task[Any] | None = None
        self.nested: dict[int, None] | None = None


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
            call.nested = {}
        call.nested[span_id] = None
        if len(call.nested) > _MOST_NESTED:
            oldest = _first(call.nested)
            if oldest is not None:
                call.nested.pop(oldest, None)
                self.inside.pop(oldest, None)

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
        self._instruments.seed_call(call.kind, call.model, run.name, run.mode)
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
        if call is None:
            return
        if self._open.pop(span_id, None) is not None:
            self._close(call, span.attributes or {})
        elif call.nested is not None:
            call.nested.pop(span_id, None)

    def mark_abandoned(self, run: Run, cause: str) -> None:
        """Put the cause on every open call of an abandoned run."""
        for call in tuple(self._open.values()):
            if call.run is not None and run.work.encloses(call.run):
                call.span.set_attribute(names.CAUSE, cause)

    def _evict(self) -> None:
        """Give up on the oldest open call: its span was most likely never ended."""
        oldest = _first(self._open)
        call = None if oldest is None else self._open.pop(oldest, None)
        if call is not None:
            self.inside.pop(call.span_id, None)
            self._close(call, {})

    def _close(self, call: Call, attributes: Mapping[str, object]) -> None:
        for span_id in tuple(call.nested or ()):
            self.inside.pop(span_id, None)
        run = call.run
        now = (SYSTEM_CLOCK if run is None else run.clock).monotonic()
        usage = self._usage(call, attributes)
        model = call.model or calls.model_of(attributes) or calls.UNKNOWN_MODEL
        above = _same_call_above(call)
        repeats = call.duplicate or (usage is None and above is not None)
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
        if call.kind in _MODEL_CALLS:
            self._note_unknown(call, above, model, usage, attributes)
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
        same = _same_call_above(call)
        while same is not None:
            same.duplicate = True
            same = _same_call_above(same)
        above = call.parent
        while above is not None:
            above.counted = usage if above.counted is None else above.counted + usage
            above = above.parent

    def _note_unknown(
        self,
        call: Call,
        above: Call | None,
        model: str,
        usage: Usage | None,
        attributes: Mapping[str, object],
    ) -> None:
        """Count a model call whose usage, or a part of it, nobody reported.

        Whether anybody does is known when the outermost report of the call has ended:
        a retry in between may have said nothing while another one said all.
        """
        if call.duplicate:
            count = call.vague
        elif _complete(call.kind, usage):
            return  # it speaks for the silent ones inside it
        else:
            count = max(1, call.vague)
            if usage is None and above is not None:
                above.vague += count
                return
        if not count:
            return
        labels = {names.MODEL: self._instruments.models(model)}
        self._instruments.unknown.add(count, labels)
        bound = attributes.get("gen_ai.request.max_tokens")
        if isinstance(bound, int) and bound > 0:
            self._instruments.unknown_bound.add(bound * count, labels)


def _same_call_above(call: Call) -> Call | None:
    """Return the report that this same model call stands in, from another layer.

    Only right around it: a tool in between, or another kind, makes it another call.
    """
    above = call.parent
    if above is None or call.kind not in _MODEL_CALLS or above.kind != call.kind:
        return None
    return above


def _complete(kind: str, usage: Usage | None) -> bool:
    """Whether the usage says all there is; embeddings put nothing out."""
    if usage is None or usage.input is None:
        return False
    return usage.output is not None or kind == calls.EMBEDDINGS


def _first(entries: Mapping[int, object]) -> int | None:
    """Return the oldest key of a dictionary that other threads may change."""
    try:
        return next(iter(entries), None)
    except RuntimeError:  # changed in between: another one comes soon
        return None
