"""Three runs, one inside the other, with tasks, and all that may happen to them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from support import schedules
from support.telemetry import chat, used

import hangup
from hangup.core import registry
from hangup.core.cause import Cause
from hangup.core.current import position
from hangup.core.registry import RunObserver
from hangup.errors import RunAbandoned

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Tracer
    from support.schedules import Choices, ScheduledLoop

    from hangup.core.cause import Abandonment
    from hangup.core.run import Run

BUDGETS = {"root": 30.0, "child": 20.0, "grandchild": 10.0}
INPUT, OUTPUT = 10, 5
"""Tokens of every call."""
TAKES = 0.01
"""Seconds until any answer."""


class Diary(RunObserver):
    """What was heard of each run, by its name.

    Attributes:
        heard: What happened, in order: the event, the run and what was told.
        causes: The first abandonment heard of each run.
        prompt: The runs for which nothing but what was ready came between their
            abandonment and the end of their stop, and the seconds that took.
    """

    def __init__(self) -> None:
        self.prompt: dict[str, float] = {}
        self._since: dict[str, tuple[int, float]] = {}
        self.loop: ScheduledLoop | None = None
        self.heard: list[tuple[str, str, Any]] = []
        self.causes: dict[str, Abandonment] = {}

    def of(self, event: str, name: str) -> list[Any]:
        return [what for one, run, what in self.heard if (one, run) == (event, name)]

    def abandoned(self, run: Run) -> None:
        abandonment = run.token.abandonment
        assert abandonment is not None
        self.causes.setdefault(run.name, abandonment)
        assert self.loop is not None
        self._since[run.name] = (self.loop.hurries, run.clock.monotonic())
        self.heard.append(("abandoned", run.name, abandonment))

    def delivered(self, run: Run) -> None:
        self.heard.append(("delivered", run.name, run.delivered_at))

    def closed(self, run: Run) -> None:
        self.heard.append(("closed", run.name, run.closed_at))

    def settled(self, run: Run, unsettled: int) -> None:
        self.heard.append(("settled", run.name, unsettled))
        assert self.loop is not None
        hurries, since = self._since[run.name]
        if hurries == self.loop.hurries:
            self.prompt[run.name] = run.clock.monotonic() - since


class Family:
    """The runs, and who may do what to them.

    Args:
        loop: Where they live; its clock is theirs.
        tracer: For the spans of their calls.
        stubborn: A task in the child run swallows every cancel while it is asked.
        grace: The caller may leave, and has so many seconds to come back, which may
            happen too. None: leaving is final.

    Attributes:
        runs: By name, in the order they were opened.
        attempts: Every cancel: the run, the cause, whether there was one before, and
            what it returned.
        tokens: What the calls have used.
    """

    def __init__(
        self,
        loop: ScheduledLoop,
        tracer: Tracer,
        *,
        stubborn: bool = False,
        grace: float | None = None,
    ) -> None:
        self.loop = loop
        self.runs: dict[str, Run] = {}
        self.attempts: list[tuple[str, str, bool, bool]] = []
        self.tokens = 0
        self.stuck: asyncio.Future[None] | None = None
        self._tracer = tracer
        self._stubborn = stubborn
        self._grace = grace
        self._aside: list[asyncio.Task[None]] = []

    async def call(self, *, fails: bool = False, late: bool = False) -> None:
        """Make a model call; its answer, or else its failure, may come at any time."""
        with chat(self._tracer) as span:
            answer = self.loop.create_future()

            def arrive(what: Exception | None = None) -> None:
                self.loop.clock.advance(TAKES)
                if not answer.done():
                    answer.set_exception(what) if what else answer.set_result(None)

            events = [self.loop.may(arrive, unlikely=late)]
            if fails:
                failure = ValueError("the model is unwell")
                events.append(self.loop.may(lambda: arrive(failure), unlikely=True))
            try:
                await answer
            finally:
                for withdraw in events:
                    withdraw()
                used(span, INPUT, OUTPUT)
                self.tokens += INPUT + OUTPUT

    async def stay(self) -> None:
        """Make a call that takes no notice of a cancel."""
        with chat(self._tracer) as span:
            self.stuck = self.loop.create_future()
            while not self.stuck.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(self.stuck)
            used(span, INPUT, OUTPUT)
            self.tokens += INPUT + OUTPUT

    def _stop(self, run: Run, cause: str) -> None:
        before = run.abandonment is not None or run.delivered_at is not None
        said = run.cancel(cause)
        self.attempts.append((run.name, cause, before, said))

    @contextlib.asynccontextmanager
    async def _run(self, name: str, *causes: str) -> Any:
        scope = hangup.run(
            BUDGETS[name],
            name=name,
            clock=self.loop.clock,
            on_disconnect="abandon" if self._grace is None else "grace",
            grace=self._grace,
        )
        async with scope as run:
            self.runs[name] = run
            if self._grace is not None and run.parent is None:
                self.loop.may(run.leave, unlikely=True)
                self.loop.may(run.reattach, unlikely=True)

            def stopper(cause: str) -> Callable[[], None]:
                return lambda: self._stop(run, cause)

            for cause in causes:
                self.loop.may(stopper(cause), unlikely=True)
            yield run

    async def grandchild(self) -> str:
        async with self._run("grandchild", "killed"):
            await self.call(fails=True)
            await self.call()
        return "found"

    async def child(self) -> str:
        try:
            async with self._run("child", "superseded") as run:
                aside = self.stay() if self._stubborn else self.call(late=True)
                self._aside.append(asyncio.create_task(aside))
                await hangup.gather(self.call(), self.call())
                try:
                    await self.grandchild()  # on the same task: one stop, then another
                except RunAbandoned:
                    run.check()  # its own end is no reason to stop; ours is
                await self.think()
        except RunAbandoned:
            return "partial"
        return "whole"

    async def think(self) -> None:
        """Wait for something that is no spending call."""
        thought = self.loop.create_future()

        def done() -> None:
            self.loop.clock.advance(TAKES)
            if not thought.done():
                thought.set_result(None)

        withdraw = self.loop.may(done)
        try:
            await thought
        finally:
            withdraw()

    async def root(self) -> list[Any]:
        async with self._run("root", "disconnect", "killed"):
            await self.call(fails=True)
            both = await hangup.gather(self.child(), self.call())
            await self.call()
        return both

    async def live(self) -> None:
        """Run the whole tree as one request, to its end."""
        request = asyncio.create_task(self.root())
        with contextlib.suppress(RunAbandoned, ValueError):
            await request
        assert request.cancelling() == 0
        assert position() is None
        if self.stuck is not None:
            self.stuck.set_result(None)
        for task in self._aside:
            if task.cancelling() == 0 and not self._stubborn:
                task.cancel()
        await asyncio.gather(*self._aside, return_exceptions=True)


def lived(choices: Choices, tracer: Tracer, **traits: Any) -> Family:
    """Let a family live by these choices, and check what holds whatever they are."""
    registry._registry.live = type(
        registry._registry.live
    )()  # of a schedule that failed
    diary = Diary()
    registry.add_observer(diary)
    families: list[Family] = []

    async def main(loop: ScheduledLoop) -> None:
        diary.loop = loop
        families.append(Family(loop, tracer, **traits))
        await families[0].live()

    try:
        loop = schedules.run(main, choices)
    finally:
        registry.remove_observer(diary)
    [family] = families
    for run in family.runs.values():
        _ends_once(run, diary)
    _first_cause_wins(family, diary)
    _cancels_once(family, loop)
    if family.stuck is None:
        assert set(diary.prompt.values()) <= {0.0}, "a stop took time for nothing"
    assert loop.complaints == []
    assert registry.live_runs() == ()
    assert loop.timers == 0
    tree = family.runs["root"].work.tree
    assert (tree.calls, tree.drains, dict(tree._shields)) == ({}, set(), {})
    return family


def _ends_once(run: Run, diary: Diary) -> None:
    """A run is abandoned or delivered, once; closed once; then settled or reported."""
    abandonment = run.token.abandonment
    times = {
        event: len(diary.of(event, run.name))
        for event in ("abandoned", "delivered", "closed", "settled")
    }
    own = abandonment is not None and not abandonment.inherited
    assert times == {
        "abandoned": int(abandonment is not None),
        "delivered": int(abandonment is None),
        "closed": 1,
        "settled": int(own),
    }, run


def _first_cause_wins(family: Family, diary: Diary) -> None:
    """What was said first is what the record says, for ever."""
    for name, run in family.runs.items():
        abandonment = run.token.abandonment
        assert diary.causes.get(name) is abandonment
        won = [
            cause
            for one, cause, before, said in family.attempts
            if one == name and _counts(before=before, said=said)
        ]
        assert len(won) <= 1
        if won:
            assert abandonment is not None
            assert (abandonment.cause.value, abandonment.inherited) == (won[0], False)
        if abandonment is None:
            continue
        assert abandonment.at <= abandonment.noticed_at
        assert abandonment.inherited or run.started_at <= abandonment.at
        assert abandonment.at <= run.deadline.at
        if abandonment.at == run.deadline.at:
            assert abandonment.cause is Cause.DEADLINE
        elif abandonment.cause is Cause.DEADLINE and not abandonment.inherited:
            # That of a run below, whose error nobody caught: this one ended by it.
            assert any(_ended_by(below, run) for below in family.runs.values())
        if abandonment.inherited:
            above = run.parent
            assert above is not None
            assert above.token.abandonment is not None
            assert above.token.abandonment.cause is abandonment.cause
            assert above.token.abandonment.at == abandonment.at


def _ended_by(below: Run, run: Run) -> bool:
    cause, own = below.token.abandonment, run.token.abandonment
    if below.parent is not run or cause is None or own is None:
        return False
    return cause.cause is own.cause and cause.at <= own.at


def _counts(*, before: bool, said: bool) -> bool:
    # A cancel says it won just where nothing had come before it.
    assert said is not before
    return said


def _cancels_once(family: Family, loop: ScheduledLoop) -> None:
    """No task is cancelled while a cancel is on it, and none twice for one cause."""
    own = sum(
        run.token.abandonment is not None and not run.token.abandonment.inherited
        for run in family.runs.values()
    )
    for task in loop.tasks:
        assert set(task.cancels) <= {0}, task
        assert len(task.cancels) <= max(own, 1), task


def tokens_by_fate(family: Family) -> dict[str, int]:
    """Return what the ledgers of all runs of the family have posted."""
    found: dict[str, int] = {}
    for run in family.runs.values():
        for fate, total in run.ledger.totals().items():
            found[fate.value] = found.get(fate.value, 0) + total.input + total.output
    return found
