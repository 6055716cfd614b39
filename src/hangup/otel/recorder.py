"""The open spending calls of the process: each one counted once, whoever reports it.

The innermost reporter of a model call wins; an agent's aggregate counts only what its
descendants did not. Ancestry is followed through every span inside an open call, also
those that are no calls themselves.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import TYPE_CHECKING

from hangup.core import registry
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.guard import fault, guarded
from hangup.core.opening import loop_here, open_call
from hangup.otel import names
from hangup.otel.backlog import Backlog
from hangup.otel.booking import Booking
from hangup.otel.bookkeeper import Bookkeeper
from hangup.otel.call import Call, Exchange, stand_in
from hangup.otel.later import PATIENCE
from hangup.otel.twins import unanswered

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, SpanContext

    from hangup.core.run import Run
    from hangup.otel.instruments import Instruments
    from hangup.spend.pricer import Pricer

_MOST_OPEN = 10_000
# Spans that are no calls, remembered per open call: with more of them open at a time,
# or dropped by the sampler (and those never end), the oldest lose their place.
_MOST_NESTED = 4_096
# Calls that have ended and wait for a turn of the loop; their spans are kept for it.
_MOST_PENDING = 256
# Of those that another thread is to see to, and does not come to: threads wait for it
# from here on, and event loops, which do not, lose the oldest beyond the second.
_MANY_PENDING, _MOST_UNSETTLED = 1_000, 10_000


class Recorder(registry.RunObserver):
    """Follows calls from span start to span end. Thread-safe, bounded, never raises.

    Reading what a call used, pricing it and entering it costs more than all the rest,
    so it is not done while the application waits for its span to end. On an event loop
    it is done in the loop's next turn (nothing that waits for time or for another task
    sees the difference), elsewhere on a thread of its own; before that when a run's
    fate is known or metrics are read. Always in the order the calls ended in.

    Args:
        instruments: Where calls outside runs, and totals, are recorded.
        pricer: Says what a call cost.
    """

    def __init__(self, instruments: Instruments, pricer: Pricer) -> None:
        self._instruments = instruments
        self._booking = Booking(instruments, pricer)
        # The open calls, by the ids of their spans (an exchange's is negative), and the
        # open spans in them that are no calls, with the nearest call around each.
        self.live: dict[int, Call] = {}
        self._nested: dict[int, Call] = {}
        # Calls that have ended, and wait for what stands in them.
        self._held: dict[int, Call] = {}
        # What of a process starts at zero, has been made to.
        self._seeded: set[tuple[str, str | None, str, str]] = set()
        # Calls that have ended and are not in the books, runs that are over, and the
        # loop whose next turn will see to them. The lock is never waited for: who holds
        # it goes on until nothing is left, and a finaliser may come by in the middle.
        self._pending: deque[Call | Run] = deque(maxlen=_MOST_UNSETTLED)
        self._backlog = Backlog(self._pending, _MANY_PENDING)
        self._due_on: asyncio.AbstractEventLoop | None = None
        self._settling = threading.Lock()
        self._settler: int | None = None  # the thread that is at it
        self.bookkeeper: Bookkeeper = Bookkeeper(
            self._settle_present, instruments.later.drain
        )
        instruments.later.wake = self.bookkeeper.wake
        # Called when the books are still: runs may have to be told of.
        self.after_settling: Callable[[], None] = _nothing

    def begin(self) -> None:
        """Take up work: calls come in from here on. Idempotent."""
        self.bookkeeper.start()

    def finish(self) -> None:
        """Settle, and end what works in the background. Idempotent."""
        self.bookkeeper.stop()
        self.settle(PATIENCE)

    def after_fork(self) -> None:
        """Begin anew in a child process: the parent's calls are the parent's."""
        self._settling = threading.Lock()
        self._settler = None
        self._due_on = None
        self._pending.clear()
        self.live.clear()
        self._held.clear()
        self._nested.clear()
        self._seeded.clear()
        self.bookkeeper.after_fork()

    @property
    def open_calls(self) -> int:
        """How many calls are open in the process."""
        return len(self.live)

    @property
    def opened(self) -> tuple[Call, ...]:
        """The calls that are open in the process, the oldest first."""
        return tuple(self.live.values())

    def around(self, parent_id: int) -> Call | None:
        """Return the open call that a span with this parent stands in."""
        call = self.live.get(parent_id)
        return self._nested.get(parent_id) if call is None and self._nested else call

    def nest(self, span_id: int, parent_id: int) -> None:
        """Note a span that is no call: its children stand in the call around it."""
        call = self.around(parent_id)
        if call is None:
            return
        if call.nested is None:
            call.nested = {}
        call.nested[span_id] = None
        self._nested[span_id] = call
        # The call may have been ended meanwhile, on another thread.
        gone = None if call.span_id in self.live else span_id
        if len(call.nested) > _MOST_NESTED:
            gone = _first(call.nested)
        if gone is not None:
            call.nested.pop(gone, None)
            self._nested.pop(gone, None)

    def start(self, call: Call, span: Span, context: SpanContext) -> None:
        """Open a call that may start; its run, and when that was, are known already."""
        call.span = span
        call.span_context = context
        call.span_id = span_id = context[1]
        if len(self.live) >= _MOST_OPEN:
            self._evict()
        self.live[span_id] = call
        if call.parent is not None:
            stand_in(call, call.parent)
        run = call.run
        if run is None:
            return
        if (call.kind, call.model, run.name, run.mode) not in self._seeded:
            self._seed(call, run)
        call.thread = threading.get_ident()
        call.ticket = open_call(run, call)

    def start_exchange(self, exchange: Exchange) -> None:
        """Open an exchange that was allowed to start. Its parent and run are set."""
        if len(self.live) >= _MOST_OPEN:
            self._evict()
        self.live[exchange.span_id] = exchange
        if exchange.parent is not None:
            stand_in(exchange, exchange.parent)
        run = exchange.run
        if run is None:
            exchange.started_at = SYSTEM_CLOCK.monotonic()
            return
        exchange.ticket = open_call(run, exchange)
        exchange.started_at = run.clock.monotonic()

    def end_exchange(self, exchange: Exchange) -> None:
        """Close an exchange: its answer was read, cut, or never came. Idempotent."""
        if self.live.pop(exchange.span_id, None) is None:
            return
        self._seed_exchange(exchange)
        self._close(exchange, None)

    def _seed_exchange(self, exchange: Exchange) -> None:
        # Only now: its model is in the body, which is not parsed while it waits.
        if exchange.run is not None and exchange.parent is None:
            exchange.model = exchange.meter.request_model
            self._seed(exchange, exchange.run)

    def calling_here(self, context: SpanContext, run: Run | None) -> Call | None:
        """Return the open call that the present code stands in.

        By the span around it, and where that is none of ours (a span that was never
        made current) by the task or thread that has a model call open, of the same
        run and not answered yet: such spans may never end.
        """
        call = self.around(context.span_id)
        if call is not None:
            return call
        return None if run is None else unanswered(run)

    def _seed(self, call: Call, run: Run) -> None:
        if len(self._seeded) >= _MOST_OPEN:
            self._seeded.clear()  # models are text from outside
        self._instruments.seed_call(call.kind, call.model, run.name, run.mode)
        self._seeded.add((call.kind, call.model, run.name, run.mode))

    def end(self, span: ReadableSpan) -> None:
        """Close the call of a span that has ended, if it is one."""
        # Most spans of most processes stand in no call: this is all they cost.
        if not self.live:
            return
        try:
            try:  # properties are frames, on the path of every call
                span_id = span._context[1]  # type: ignore # noqa: PGH003, SLF001
            except AttributeError:  # the SDK has its own name for it
                span_id = span.context[1]
            call = self.live.pop(span_id, None)
            if call is None:
                around = self._nested.pop(span_id, None)
                if around is not None and around.nested is not None:
                    around.nested.pop(span_id, None)
                return
            run, loop = call.run, loop_here()
            if call.nested or run is None or loop is None or loop is not self._due_on:
                self._close(call, span)
                return  # of a call like most, in a run whose loop is due, the same:
            call.report = span
            call.ended_at = run.clock.monotonic()
            run.work.tree.calls.pop(call.ticket, None)
            self._pending.append(call)
            if len(self._pending) >= _MOST_PENDING:
                self.settle()
        except Exception as error:  # noqa: BLE001  any fault of ours
            fault("Recorder.end", error)

    def mark_abandoned(self, run: Run, cause: str) -> None:
        """Put the cause on every open call of an abandoned run."""
        # Of its tree: the process may have thousands that nobody ever ends.
        for call in run.work.tree.opened():
            if not isinstance(call, Call) or call.span is None:
                continue
            if run.work.encloses(call.run):
                call.span.set_attribute(names.CAUSE, cause)
                if run.work.acts and run.work.tree.drains_call(call.ticket):
                    call.span.set_attribute(names.DRAINED, True)  # noqa: FBT003

    def _evict(self) -> None:
        """Give up on the oldest open call: its span was most likely never ended."""
        oldest = _first(self.live)
        if oldest is not None and (call := self.live.get(oldest)) is not None:
            self.give_up(call)

    def give_up(self, call: Call) -> None:
        """Close a call that nobody will end: what it used is unknown. Idempotent."""
        if isinstance(call, Exchange):
            self.end_exchange(call)
        elif self.live.pop(call.span_id, None) is not None:
            self._close(call, None)

    def _close(self, call: Call, report: ReadableSpan | None) -> None:
        if call.nested:
            for span_id in tuple(call.nested):
                self._nested.pop(span_id, None)
        call.report = report
        run = call.run
        if run is not None:
            call.ended_at = run.clock.monotonic()
            # Only taken off the list: whether the run is settled by this is seen to
            # with the books, for a finaliser may have brought us here.
            run.work.tree.calls.pop(call.ticket, None)
        self._pending.append(call)
        if len(self._pending) >= _MOST_PENDING:  # nobody has had a turn for long
            self.settle()
            return
        loop = loop_here()
        if loop is None:
            self.bookkeeper.wake()
        elif loop is not self._due_on:
            self._due_on = loop
            loop.call_soon(guarded, self.settle)

    # Into the books

    def abandoned(self, run: Run) -> None:  # noqa: ARG002  whichever it is
        """Settle, before the fate of what the run spent is decided."""
        if self._pending:
            self.settle()

    def delivered(self, run: Run) -> None:  # noqa: ARG002  whichever it is
        """Settle, likewise."""
        self.settle()

    def closed(self, run: Run) -> None:
        """Settle, and wait no longer for what spans of the run may tell."""
        self._pending.append(run)
        self.settle()

    def settled(self, run: Run, unsettled: int) -> None:  # noqa: ARG002
        """Settle, likewise."""
        self._pending.append(run)
        self.settle()

    def _settle_present(self) -> None:
        """Settle what there is now; what comes meanwhile has its turn afterwards."""
        self.settle(most=len(self._pending))
        if self._pending:
            self.bookkeeper.wake()

    def settle(self, patience: float = 0.0, most: float = math.inf) -> None:
        """Enter every call that has ended into the books.

        Args:
            patience: How many seconds to wait for another thread that is at it. Not to
                be given where something is locked that entering a call may need.
            most: How many to enter; then others may have their turn.
        """
        # First: a turn that finds the lock taken has had its use all the same.
        self._due_on = None
        pending = self._pending
        here = threading.get_ident()
        while self._settler != here and (
            self._settling.acquire(timeout=patience)
            if patience
            else self._settling.acquire(blocking=False)
        ):
            self._settler = here
            try:
                while pending:
                    ended = pending.popleft()
                    most -= 1
                    try:
                        if isinstance(ended, Call):
                            self._enter(ended)
                        else:
                            self._conclude(ended)
                    except Exception as error:  # noqa: BLE001  any fault of ours
                        fault("Recorder.settle", error)
                    # No call is kept alive beyond its entry, nor is its run.
                    del ended
                    if most <= 0:
                        break
                # Nobody else is in the middle of a call's portions now.
                guarded(self.after_settling)
            finally:
                self._settler = None
                self._settling.release()
            if not pending or most <= 0:
                return
        # Another thread is at it, or has been interrupted in it by a finaliser here.
        many = len(pending) >= self._backlog.limit
        if many and self._settler != here and loop_here() is None:
            self._backlog.give_way()

    def _enter(self, call: Call) -> None:
        """Enter a call, after all that stand in it; then those that waited for it."""
        if not call.held:
            if call.run is not None:
                call.run.work.call_closed(call.ticket)
            if call.inner:
                call.held = True
                self._held[call.span_id] = call
                return
        try:
            self._booking.enter(call)
        except Exception as error:  # noqa: BLE001  any fault of ours
            fault("Booking.enter", error)
        if call.parent is not None:
            self._entered(call)

    def _entered(self, call: Call) -> None:
        above = call.parent
        if above is None or above.inner is None:
            return
        above.inner.pop(call.span_id, None)
        if above.held and not above.inner:
            self._held.pop(above.span_id, None)
            self._enter(above)

    def _conclude(self, run: Run) -> None:
        """Enter what the wire told of calls of a run whose spans never ended.

        A span that does end later finds it has been counted.
        """
        for call in run.work.tree.opened():
            if not isinstance(call, Call) or not call.estimates or call.inner:
                continue
            if run.work.encloses(call.run):
                guarded(self._booking.enter_estimates, call)
                call.duplicate = True


def _nothing() -> None:
    """Do nothing."""


def _first(entries: Mapping[int, object]) -> int | None:
    """Return the oldest key of a dictionary that other threads may change."""
    try:
        return next(iter(entries), None)
    except RuntimeError:  # changed in between: another one comes soon
        return None
