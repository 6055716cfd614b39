"""The open spending calls of the process: each one counted once, whoever reports it.

The innermost reporter of a model call wins; an agent's aggregate counts only what its
descendants did not. Ancestry is followed through every span inside an open call, also
those that are no calls themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

from hangup.core import registry
from hangup.core.guard import fault, guarded
from hangup.otel import calls, names
from hangup.spend.usage import Usage, read_aggregate, read_first_token, read_usage

if TYPE_CHECKING:
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
# Calls that have ended and wait for a turn of the loop; their spans are kept for it.
_MOST_PENDING = 256
_MODEL_CALLS = (calls.INFERENCE, calls.EMBEDDINGS)
_NOTHING = Usage(0, 0)


class Call:
    """A spending call that has started and not ended."""

    # What few calls ever have stands here, once; an instance says only what differs.
    run: Run | None = None
    # The call around this one, and whether both are inside a tool that must finish.
    parent: Call | None = None
    protected = False
    # What descendants have reported, and whether one of them is this same call.
    counted: Usage | None = None
    duplicate = False
    # How many further reports of this same call, or of its retries, said nothing.
    vague = 0
    nested: dict[int, None] | None = None
    # Set when it starts, on the run's clock
    span: Span
    span_id: int
    started_at = 0.0
    ticket = 0
    # Set when it ends; no report: it was given up
    ended_at = 0.0
    report: ReadableSpan | None = None

    def __init__(self, kind: str, model: str | None) -> None:
        self.kind = kind
        self.model = model


class Recorder(registry.RunObserver):
    """Follows calls from span start to span end. Thread-safe, bounded, never raises.

    Reading what a call used, pricing it and entering it costs more than all the rest,
    so it is not done while the application waits for its span to end. On an event loop
    it is done in the loop's next turn (nothing that waits for time or for another task
    sees the difference), and before that when a run's fate is known. Where no loop
    runs, it is done at once. Always in the order the calls ended in.

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
        # What of a process starts at zero, has been made to.
        self._seeded: set[tuple[str, str | None, str, str]] = set()
        # Calls that have ended and are not in the books, and the loop whose next turn
        # will see to them. The lock is never waited for: who holds it goes on until
        # nothing is left, and a finaliser may come by in the middle of that.
        self._pending: deque[Call] = deque(maxlen=_MOST_OPEN)
        self._due_on: asyncio.AbstractEventLoop | None = None
        self._settling = threading.Lock()

    def after_fork(self) -> None:
        """Begin anew in a child process: the parent's calls are the parent's."""
        self._settling = threading.Lock()
        self._due_on = None
        self._pending.clear()
        self._open.clear()
        self.inside.clear()

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

    def start(self, call: Call, span: Span) -> None:
        """Open a call that was allowed to start."""
        call.span = span
        call.span_id = span_id = span.get_span_context().span_id
        if len(self._open) >= _MOST_OPEN:
            self._evict()
        self._open[span_id] = self.inside[span_id] = call
        run = call.run
        if run is None:
            return
        if (call.kind, call.model, run.name, run.mode) not in self._seeded:
            self._seed(call, run)
        call.ticket = run.work.call_opened()
        call.started_at = run.clock.monotonic()

    def _seed(self, call: Call, run: Run) -> None:
        if len(self._seeded) >= _MOST_OPEN:
            self._seeded.clear()  # models are text from outside
        self._instruments.seed_call(call.kind, call.model, run.name, run.mode)
        self._seeded.add((call.kind, call.model, run.name, run.mode))

    def end(self, span: ReadableSpan) -> None:
        """Close the call of a span that has ended, if it is one."""
        # Most spans of most processes stand in no call: this is all they cost.
        if not self.inside:
            return
        try:
            span_id = span.context.span_id
            call = self.inside.pop(span_id, None)
            if call is None:
                return
            if self._open.pop(span_id, None) is not None:
                self._close(call, span)
            elif call.nested is not None:
                call.nested.pop(span_id, None)
        except Exception as error:  # noqa: BLE001  any fault of ours
            fault("Recorder.end", error)

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
            self._close(call, None)

    def _close(self, call: Call, report: ReadableSpan | None) -> None:
        if call.nested:
            for span_id in tuple(call.nested):
                self.inside.pop(span_id, None)
        call.report = report
        run = call.run
        if run is not None:
            call.ended_at = run.clock.monotonic()
            run.work.call_closed(call.ticket)
        self._pending.append(call)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.settle()
            return
        if loop is not self._due_on:
            self._due_on = loop
            loop.call_soon(guarded, self.settle)
        elif len(self._pending) >= _MOST_PENDING:  # the loop has had no turn for long
            self.settle()

    # Into the books

    def abandoned(self, run: Run) -> None:  # noqa: ARG002  whichever it is
        """Settle, before the fate of what the run spent is decided."""
        self.settle()

    def delivered(self, run: Run) -> None:  # noqa: ARG002  whichever it is
        """Settle, likewise."""
        self.settle()

    def closed(self, run: Run) -> None:  # noqa: ARG002  whichever it is
        """Settle, likewise."""
        self.settle()

    def settle(self) -> None:
        """Enter every call that has ended into the books; nobody waits for another."""
        # First: a turn that finds the lock taken has had its use all the same.
        self._due_on = None
        pending = self._pending
        while pending and self._settling.acquire(blocking=False):
            try:
                while pending:
                    guarded(self._enter, pending.popleft())
            finally:
                self._settling.release()

    def _enter(self, call: Call) -> None:
        report = call.report
        attributes = {} if report is None else _plain(report.attributes)
        run = call.run
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
        ledger = None if run is None or repeats else run.ledger
        if ledger is not None:
            context = call.span.get_span_context()
            ledger.start(call.span_id, call.kind, model, call.started_at, context)
            ledger.end(
                call.span_id,
                call.ended_at,
                usage,
                first_token=read_first_token(attributes),
                cost=cost,
            )

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


def _plain(attributes: Any) -> Mapping[str, object]:
    """Return a copy that is a plain dictionary.

    Every look into the SDK's own mapping goes through two frames of Python.
    """
    copy: Callable[[], Mapping[str, object]] | None = getattr(attributes, "copy", None)
    return dict(attributes or ()) if copy is None else copy()


def _first(entries: Mapping[int, object]) -> int | None:
    """Return the oldest key of a dictionary that other threads may change."""
    try:
        return next(iter(entries), None)
    except RuntimeError:  # changed in between: another one comes soon
        return None
