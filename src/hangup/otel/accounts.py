"""Keeps the books of every run: its ledger, its fate, and the metrics of both."""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from hangup import config
from hangup.core import registry
from hangup.core.absence import stopping_since
from hangup.core.policy import Decision
from hangup.otel import forks, names, runspan
from hangup.otel.context import get_current
from hangup.otel.labels import FewValues
from hangup.otel.statements import Statement
from hangup.spend.ledger import Ledger

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from hangup.config import Mode
    from hangup.core.cause import Cause
    from hangup.core.run import Run
    from hangup.otel.instruments import Instruments
    from hangup.otel.notices import Outcome
    from hangup.otel.recorder import Recorder
    from hangup.otel.settlement import Settlement
    from hangup.otel.statements import Statements

_MOST_TENANTS = 200


class Accounts(registry.RunObserver):
    """The observer that turns what happens to runs into numbers. Thread-safe.

    Args:
        instruments: Where to record.
        recorder: The open calls, for marking their spans.
        settlement: Who knows the fate of runs that another process opened.
        statements: Tells of each run that is over.
    """

    def __init__(
        self,
        instruments: Instruments,
        recorder: Recorder,
        settlement: Settlement,
        statements: Statements,
    ) -> None:
        self._instruments = instruments
        self._recorder = recorder
        self._settlement = settlement
        self._statements = statements
        recorder.after_settling = statements.tell
        recorder.bookkeeper.also(self.drain)
        self._tenants = FewValues(_MOST_TENANTS)
        for tenant in config.current().tenants:
            self._tenants(tenant)
        self._seed()
        # Which process this is, counted from the one that made this object.
        self._generation = 0
        # Ledgers of runs that were garbage collected open, and of the run above. Their
        # finaliser may run in the middle of anything, with any lock held, so it only
        # leaves them here.
        self._orphans: deque[tuple[Ledger, Ledger | None, Statement]] = deque(
            maxlen=10_000
        )

    def _seed(self) -> None:
        self._instruments.seed_shared((*self._tenants.admitted(), names.OTHER))
        for name, mode in registry.declared():
            self.declared(name, mode)

    def after_fork(self) -> None:
        """Begin anew in a child process: the parent tells of its runs itself."""
        self._generation += 1
        self._orphans.clear()
        self._statements.after_fork()
        self._tenants.after_fork()
        self._seed()
        forks.adopt(self.started)

    def declared(self, name: str, mode: Mode) -> None:
        """Make the series of runs that will come exist at zero."""
        self._instruments.seed_run(name, mode.least(config.current().mode))

    def started(self, run: Run) -> None:
        """Open the ledger."""
        name = self._instruments.seed_run(run.name, run.mode)
        known = run.tenant in config.current().tenants
        tenant = self._tenants(run.tenant) if known else names.OTHER
        post = partial(self._instruments.post, name=name, mode=run.mode, tenant=tenant)
        due, catch_up = self._statements.due, self._recorder.settle
        statement = Statement(run, post, due, catch_up)
        ledger = Ledger(statement.post)
        run.ledger = ledger
        run.statement = statement
        above = None
        if run.parent is None:
            runspan.adopt_current(run)
        else:
            above = run.parent.ledger
        finalizer = weakref.finalize(
            run, self._orphaned, ledger, above, statement, self._generation
        )
        finalizer.atexit = False

    def abandoned(self, run: Run) -> None:
        """Post what was sunk; count the run, unless it came from another process."""
        abandonment = run.token.abandonment
        if abandonment is None or abandonment.inherited or run.ledger is None:
            return
        cause = str(abandonment.cause)  # C; ``value`` is two frames before 3.12
        runspan.note_abandoned(run)
        self._recorder.mark_abandoned(run, cause)
        run.ledger.abandon(abandonment.at, cause)
        if run.parent is None and not run.joined:
            self._count(run, "abandoned", cause, abandonment.at)

    def delivered(self, run: Run) -> None:
        """Post what was delivered, or wait to hear whether it reached anybody."""
        if run.parent is not None or run.delivered_at is None or run.ledger is None:
            return
        if run.joined:
            self._settlement.hold(run, partial(self._settle_held, run.ledger))
            return
        run.ledger.deliver(run.delivered_at)
        late = run.delivered_at > run.deadline.at
        outcome = "late" if late else "delivered"
        self._count(run, outcome, names.NONE, run.delivered_at)
        if run.deadline.is_set:
            over = run.delivered_at - run.deadline.at
            histogram = self._instruments.overrun if late else self._instruments.slack
            histogram.record(abs(over), {names.RUN_NAME: self._name(run)})

    def closed(self, run: Run) -> None:
        """Hand a child's books to its parent, whose fate they share; tell of others."""
        if run.parent is not None and _shares_fate(run):
            run.parent.ledger.absorb(run.ledger)
        elif run.statement is not None:
            run.statement.close(run)
            self._recorder.settle()

    def settled(self, run: Run, unsettled: int) -> None:
        """Record how long the stop took, and what did not stop."""
        abandonment = run.token.abandonment
        if abandonment is None:
            return
        labels = {names.CAUSE: abandonment.cause.value, names.MODE: run.mode.value}
        took = run.clock.monotonic() - stopping_since(run, abandonment)
        self._instruments.stop_duration.record(took, labels)
        if unsettled:
            self._instruments.unsettled.add(
                unsettled, {names.RUN_NAME: self._name(run)}
            )

    def swallowed(self, run: Run) -> None:
        """Count a run whose task swallowed the stop."""
        self._instruments.swallowed.add(1, {names.RUN_NAME: self._name(run)})

    def refused(
        self, run: Run, kind: str, cause: Cause, decision: str, model: str | None
    ) -> None:
        """Count a refused call, or one that would have been."""
        self._instruments.add_refusal(1, kind, cause.value, decision, self._name(run))
        if decision == Decision.REFUSE and model is not None:
            self._instruments.avoided.refused(run, kind, cause, model)

    def lowered(self, run: Run) -> None:
        """Make the series of the run's new mode exist at zero."""
        self._instruments.seed_run(run.root.name, run.mode)

    def drain(self) -> None:
        """Post the books of runs that were garbage collected open."""
        while True:
            try:
                ledger, above, statement = self._orphans.popleft()
            except IndexError:
                break
            if above is None:
                ledger.close()
                statement.close(None)
            else:
                above.absorb(ledger)

    def flush(self) -> None:
        """Post what every run has so far: the process is going down."""
        self._settlement.release()
        runs = [run for run in registry.live_runs() if run.ledger is not None]
        for run in runs:
            if run.parent is not None and _shares_fate(run):
                run.parent.ledger.absorb(run.ledger)
        for run in runs:
            run.ledger.close(run.clock.monotonic())
            if run.statement is not None and not _shares_fate(run):
                run.statement.close(run)
        self.drain()
        self._recorder.settle()
        self._statements.tell(all_of_them=True)

    def _orphaned(
        self,
        ledger: Ledger,
        above: Ledger | None,
        statement: Statement,
        generation: int,
    ) -> None:
        # A forked child frees what its parent still has: that tells of it itself.
        if generation == self._generation and not ledger.decided:
            self._orphans.append((ledger, above, statement))
            self._recorder.bookkeeper.wake()

    @staticmethod
    def _settle_held(
        ledger: Ledger, outcome: Outcome, cause: Cause | None, at: float
    ) -> None:
        if cause is None or outcome == "delivered":
            ledger.deliver(at)
        else:
            ledger.abandon(at, cause.value)

    def _count(self, run: Run, outcome: str, cause: str, at: float) -> None:
        # Later: what is to stop is not kept waiting for it. As it is now, though.
        about = outcome, cause, run.caller, run.root.name, run.mode
        took = max(0.0, at - run.started_at)
        self._instruments.later.put(self._counted, *about, took, get_current())

    def _counted(  # noqa: PLR0913, PLR0917  what there is to say of a run
        self,
        outcome: str,
        cause: str,
        caller: str,
        name: str,
        mode: Mode,
        seconds: float,
        context: Context,
    ) -> None:
        name = self._instruments.names(name)
        self._instruments.add_run(1, outcome, cause, caller, name, mode, context)
        self._instruments.run_duration.record(
            seconds, {names.OUTCOME: outcome, names.RUN_NAME: name}, context
        )

    def _name(self, run: Run) -> str:
        return self._instruments.names(run.root.name)


def _shares_fate(run: Run) -> bool:
    """Whether a child run's books go to its parent. Runs before ours have none."""
    abandonment, parent = run.token.abandonment, run.parent
    if parent is None or parent.ledger is None or run.ledger is None:
        return False
    return abandonment is None or abandonment.inherited
