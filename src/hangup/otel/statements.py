"""One log event for each run that is over: who it was, what became of it, what it cost.

Metrics carry trends and never an id; chargeback and "which run was it" live here. The
sums of all events are exactly what the counters counted: what a run spends after its
event (a call that ends late) comes in another one, marked as amending.
"""

from __future__ import annotations

import contextvars
import threading
import weakref
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber

from hangup.core.clock import unix_offset
from hangup.core.guard import guarded
from hangup.otel import names
from hangup.spend.fate import Basis, Fate
from hangup.spend.posting import merged
from hangup.spend.pricing import add_usd

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

    from opentelemetry._logs import Logger
    from opentelemetry.context import Context

    from hangup.core.run import Run
    from hangup.spend.posting import Posting

_MOST_DUE = 10_000
_FEW = 16


class _Sum:
    __slots__ = ("calls", "estimated", "input", "output", "seconds", "usd")

    def __init__(self) -> None:
        self.input = self.output = self.calls = self.estimated = 0
        self.seconds = 0.0
        self.usd: Decimal | None = None

    def add(self, posting: Posting) -> None:
        self.input += posting.input
        self.output += posting.output
        self.calls += posting.calls
        self.seconds += posting.seconds
        if posting.basis is Basis.ESTIMATED:
            self.estimated += posting.input + posting.output
        if posting.usd is not None:
            here = self.usd
            self.usd = posting.usd if here is None else add_usd(here, posting.usd)


class Statement:
    """What one ledger has posted and no event has told yet. Thread-safe.

    Args:
        run: Whose books they are; not kept.
        post: Where every portion goes on to.
        due: Called when there is something to tell of a run that is over.
        catch_up: Enters the calls that have ended into the books.
    """

    def __init__(
        self,
        run: Run,
        post: Callable[[Posting], None],
        due: Callable[[Statement], None],
        catch_up: Callable[[], None],
    ) -> None:
        self._post = post
        self._due = due
        self.catch_up = catch_up
        # Reentrant, as the ledger's: a finaliser may post in the middle of a sum.
        self._lock = threading.RLock()
        self._sums: dict[Fate, _Sum] = {}
        self._told = 0
        self._run: weakref.ref[Run] | None = None
        self.over: bool = False
        self._facts: dict[str, Any] = {
            names.RUN_ID: run.id,
            names.RUN_NAME: run.root.name,
            names.TENANT: run.tenant,
            names.MODE: run.mode.value,
            names.JOINED: run.root.joined,
            names.CHILD: run.parent is not None,
        }
        self._span: trace.SpanContext | None = None
        self._offset = unix_offset(run.clock)
        self._at = run.started_at

    def post(self, postings: list[Posting]) -> None:
        """Take portions, and hand them on, alike ones as one."""
        postings = merged(postings)
        with self._lock:
            for posting in postings:
                entry = self._sums.get(posting.fate)
                if entry is None:
                    entry = self._sums[posting.fate] = _Sum()
                entry.add(posting)
        for posting in postings:
            self._post(posting)
        if self.over:
            self._due(self)

    def close(self, run: Run | None) -> None:
        """The run is over; what is known of it now is what the events say.

        Args:
            run: None where it was garbage collected open.
        """
        facts = self._facts
        if run is not None:
            self._run = weakref.ref(run)
            abandonment = run.token.abandonment
            self._at = run.clock.monotonic()
            ended = self._at
            if abandonment is not None:
                facts[names.OUTCOME], ended = "abandoned", abandonment.at
                facts[names.CAUSE] = abandonment.cause.value
                if abandonment.detail:
                    facts[names.DETAIL] = abandonment.detail
            else:
                if run.delivered_at is not None:
                    ended = run.delivered_at
                late = ended > run.deadline.at
                facts[names.OUTCOME] = "late" if late else "delivered"
                facts[names.CAUSE] = names.NONE
            facts[names.CALLER] = run.root.caller
            facts[names.RUN_DURATION] = max(0.0, ended - run.started_at)
            # Not the span itself: it holds the run, and finalisers hold this.
            span = run.root.span
            self._span = None if span is None else span.get_span_context()
        self.over = True
        self._due(self)

    @property
    def still(self) -> bool:
        """Whether nothing more is expected: no call is open, the fate is known."""
        run = None if self._run is None else self._run()
        return run is None or (not run.work.open_calls and run.ledger.decided)

    def record(self, price_version: str) -> LogRecord | None:
        """Return the event for what was not told yet; None where there is nothing."""
        with self._lock:
            sums, self._sums = self._sums, {}
            if not sums and self._told:
                return None
            self._told += 1
            amends = self._told > 1
        attributes = {**self._facts, names.AMENDS: amends}
        estimated = 0
        for fate in Fate:
            entry = sums.get(fate) or _Sum()
            attributes[f"{names.TOKENS}.{fate}.input"] = entry.input
            attributes[f"{names.TOKENS}.{fate}.output"] = entry.output
            attributes[f"{names.CALLS}.{fate}"] = entry.calls
            attributes[f"{names.CALL_TIME}.{fate}"] = entry.seconds
            if entry.usd is not None:
                attributes[f"{names.COST}.{fate}"] = float(entry.usd)
            estimated += entry.estimated
        attributes[names.ESTIMATED_TOKENS] = estimated
        if price_version:
            attributes[names.PRICE_VERSION] = price_version
        at = round((self._at + self._offset) * 1e9)
        return LogRecord(
            timestamp=at,
            observed_timestamp=at,
            context=None if self._span is None else _around(self._span),
            severity_number=SeverityNumber.INFO,
            severity_text="INFO",
            body=self._text(sums),
            attributes=attributes,
            event_name=names.EVENT_CLOSED,
        )

    def _text(self, sums: dict[Fate, _Sum]) -> str:
        name, outcome = self._facts[names.RUN_NAME], self._facts.get(names.OUTCOME)
        wasted = sums.get(Fate.WASTED) or _Sum()
        total = sum(entry.input + entry.output for entry in sums.values())
        cause = self._facts.get(names.CAUSE, names.NONE)
        why = "" if cause == names.NONE else f" ({cause})"
        return (
            f"run {name} {outcome or 'lost'}{why}: {total} tokens, "
            f"{wasted.input + wasted.output} of them wasted"
        )


def _first(statements: dict[Statement, object]) -> Statement | None:
    try:
        return next(iter(statements), None)
    except RuntimeError:  # another thread changes it: one more comes soon
        return None


def _around(span: trace.SpanContext) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(span))


class Statements:
    """Emits the events of runs that are over, as soon as their books are still.

    Thread-safe, bounded: past ten thousand runs whose calls do not end, the oldest are
    told as they stand.

    Args:
        logger: Where the events go.
        price_version: Which prices the dollars are by.
    """

    def __init__(self, logger: Logger, price_version: str = "") -> None:
        self._logger = logger
        self._price_version = price_version
        self._due: dict[Statement, object] = {}
        # Looked at, and not still yet: a run that is held for half a minute is one.
        self._waiting: dict[Statement, object] = {}
        self._looks = 0

    def after_fork(self) -> None:
        """Forget what the parent process has to tell."""
        self._due, self._waiting = {}, {}

    def due(self, statement: Statement) -> None:
        """Note that a run that is over has something to tell, or may have now."""
        self._waiting.pop(statement, None)
        self._due[statement] = None
        if len(self._due) + len(self._waiting) > _MOST_DUE:
            oldest = _first(self._waiting) or _first(self._due)
            guarded(self._tell_one, oldest)

    def tell(self, *, all_of_them: bool = False) -> None:
        """Emit what is due and still. Never raises.

        Args:
            all_of_them: Also what is not still; more may come of it.
        """
        if not (self._due or self._waiting):
            return
        found = tuple(self._due)
        # What waits comes back when it has more to tell. Where it never will (its last
        # call told nothing) somebody has to look: at a few of them always, at many
        # only after as many looks, so that what waits costs no more for being much.
        self._looks += 1
        if all_of_them or len(self._waiting) <= max(_FEW, self._looks):
            self._looks = 0
            found += tuple(self._waiting)
        for statement in found:
            if all_of_them or statement.still:
                guarded(self._tell_one, statement)
            elif self._due.pop(statement, self) is not self:
                self._waiting[statement] = None

    def _tell_one(self, statement: Statement | None) -> None:
        if statement is None:
            return
        due, waiting = (
            one.pop(statement, self) is not self for one in (self._due, self._waiting)
        )
        if not (due or waiting):
            return  # another thread told it
        # Made and emitted outside any context: else it would stand in the trace of
        # whoever comes by, and keep what that is about.
        contextvars.Context().run(self._emit, statement)

    def _emit(self, statement: Statement) -> None:
        record = statement.record(self._price_version)
        if record is not None:
            self._logger.emit(record)
