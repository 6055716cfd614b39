"""A tree of three runs, in every order of its ends: what holds whatever comes first.

Disconnect, deadline, kill, failure and completion come at any turn of the loop. A
failure prints the schedule that it happened on; give that to :func:`replay`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from support import telemetry
from support.family import lived, tokens_by_fate
from support.schedules import Explorer, ScheduleError, replay

from hangup.core.token import CancelToken
from hangup.core.tree import Tree
from hangup.core.work import Work
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from support.schedules import Choices, Scenario

    from hangup.core.cause import Abandonment


class Plot:
    """Lets families live, and remembers how their runs ended."""

    def __init__(self, tracer: Tracer, **traits: Any) -> None:
        self._tracer = tracer
        self._traits = traits
        self.causes: Counter[str] = Counter()
        self.fates: Counter[str] = Counter()

    def __call__(self, choices: Choices) -> None:
        family = lived(choices, self._tracer, **self._traits)
        HangupInstrumentor()._recorder.settle()
        fates = tokens_by_fate(family)
        assert sum(fates.values()) == family.tokens
        self.fates.update(fates)
        for run in family.runs.values():
            cause = run.token.abandonment
            self.causes[str(cause and cause.cause.value)] += 1


def test_whatever_comes_first_the_tree_ends_in_order(tracer: Tracer) -> None:
    plot = Plot(tracer)
    explorer = Explorer(plot)
    explorer.systematic(1_400)
    explorer.seeded(range(500), 0.1)
    explorer.seeded(range(500, 850), 0.4)
    assert len(explorer.seen) >= 2_000
    # Each way to end, and each fate, was there often: nothing was left out.
    ways = {"None", "disconnect", "deadline", "killed", "superseded", "failed"}
    assert {cause for cause, times in plot.causes.items() if times > 20} == ways
    assert {fate for fate, times in plot.fates.items() if times} == {
        *("delivered", "sunk", "wasted", "after")
    }


def test_a_task_that_swallows_its_cancel_is_reported_whatever_comes_first(
    tracer: Tracer,
) -> None:
    explorer = Explorer(Plot(tracer, stubborn=True))
    explorer.systematic(250)


def test_a_caller_may_leave_and_come_back_at_any_turn(tracer: Tracer) -> None:
    plot = Plot(tracer, grace=5.0)
    explorer = Explorer(plot)
    explorer.systematic(250)
    explorer.seeded(range(80), 0.3)
    assert plot.causes["disconnect"] > 50


def test_metrics_reconcile_whatever_comes_first() -> None:
    with telemetry.instrumented() as recorded:
        tracer, used = recorded.tracer(), [0]

        def scenario(choices: Choices) -> None:
            used[0] += lived(choices, tracer).tokens
            assert recorded.total(names.TOKENS) == used[0]
            assert recorded.total(names.METERED_TOKENS) == used[0]

        Explorer(scenario).seeded(range(50), 0.2)


# The explorer finds what is planted


def _forgets(self: Tree, task: object) -> bool:
    return False


def _last_cause_wins(self: CancelToken, abandonment: Abandonment) -> bool:
    with self._lock:
        if self._finished:
            return False
        self.abandonment = abandonment
        callbacks, self._callbacks = self._callbacks, []
        children = list(self._children or ())
    for child in children:
        child._inherit(abandonment)
    for callback in callbacks:
        callback(abandonment)
    return True


def _owes_nothing(self: Work) -> int:
    self.left, self.cancels = True, 0
    return 0


@pytest.mark.parametrize(
    ("owner", "method", "planted"),
    [
        (Tree, "raised", _forgets),
        (Tree, "signalled", _forgets),
        (CancelToken, "_record", _last_cause_wins),
        (Work, "leave", _owes_nothing),
        (Work, "_leftovers", lambda self: []),
        (Work, "release", lambda self: None),
    ],
)
def test_the_explorer_finds_a_planted_fault_and_the_way_to_it(
    owner: type, method: str, planted: Any, tracer: Tracer, monkeypatch: Any
) -> None:
    scenario: Scenario = Plot(tracer)
    monkeypatch.setattr(owner, method, planted)
    with pytest.raises(ScheduleError) as found:
        Explorer(scenario).systematic(2_000)
    with pytest.raises((AssertionError, asyncio.CancelledError)):
        replay(scenario, found.value.schedule)
