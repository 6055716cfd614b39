"""The tree of cancel tokens against a naive model, on generated histories."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
)

from hangup.core.cause import Abandonment, Cause
from hangup.core.deadline import Deadline
from hangup.core.token import CancelToken
from hangup.testing import FakeClock


class Naive:
    """What a node should say: (cause, when it took effect, inherited), or None."""

    def __init__(self, at: float, parent: Naive | None) -> None:
        self.own = parent is None or at < parent.at
        self.at: float = at if parent is None else min(at, parent.at)
        self.children: list[Naive] = []
        self.gone: tuple[Cause, float, bool] | None = None
        self.done = False
        self.below(parent)

    def below(self, parent: Naive | None) -> None:
        while parent and parent.done:
            parent = parent.parent
        self.parent: Naive | None = parent
        if parent:
            parent.children.append(self)
            if parent.gone:
                self.inherit(*parent.gone)

    def poll(self, now: float) -> None:
        if not self.gone and not self.done:
            if self.parent:
                self.parent.poll(now)
            if self.own and now >= self.at:
                self.abandon(Cause.DEADLINE, self.at)

    def inherit(self, cause: Cause, effect: float, _inherited: bool = False) -> None:  # noqa: FBT001, FBT002  a part of the tuple above
        if self.at < effect:
            self.abandon(Cause.DEADLINE, self.at)
        else:
            self.abandon(cause, effect, inherited=True)

    def abandon(self, cause: Cause, effect: float, *, inherited: bool = False) -> None:
        if not self.gone and not self.done:
            self.gone = (cause, effect, inherited)
            for child in self.children:
                child.inherit(cause, effect)

    def finish(self, now: float) -> None:
        self.poll(now)
        if not self.gone and not self.done:
            self.done = True
            for child in self.children:
                child.below(self.parent)


class Pair:
    """A real node, its model, and what its callbacks heard."""

    def __init__(self, real: CancelToken, naive: Naive, above: Pair | None) -> None:
        self.real, self.naive, self.above = real, naive, above
        self.heard: list[Abandonment] = []
        self.first: Abandonment | None = None
        real.on_cancel(self.heard.append)


budgets = st.none() | st.integers(0, 40).map(lambda quarters: quarters / 4)
causes = st.sampled_from([cause for cause in Cause if cause is not Cause.DEADLINE])


class TokenTree(RuleBasedStateMachine):
    pairs: Bundle[Pair] = Bundle("pairs")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.all: list[Pair] = []

    def _add(self, budget: float | None, above: Pair | None) -> Pair:
        deadline = Deadline.after(budget, self.clock)
        real = CancelToken(deadline, parent=above.real if above else None)
        pair = Pair(real, Naive(deadline.at, above.naive if above else None), above)
        self.all.append(pair)
        return pair

    @rule(target=pairs, budget=budgets)
    def open_root(self, budget: float | None) -> Pair:
        return self._add(budget, None)

    @rule(target=pairs, above=pairs, budget=budgets)
    def open_child(self, above: Pair, budget: float | None) -> Pair:
        return self._add(budget, above)

    @rule(seconds=st.integers(0, 20).map(lambda quarters: quarters / 4))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(pair=pairs, cause=causes, ago=st.integers(0, 12).map(lambda n: n / 4))
    def cancel(self, pair: Pair, cause: Cause, ago: float) -> None:
        now = self.clock.monotonic()
        pair.naive.poll(now)
        wins = not pair.naive.gone and not pair.naive.done
        pair.naive.abandon(cause, now - ago)
        assert pair.real.cancel(cause, at=now - ago) is wins

    @rule(pair=pairs)
    def finish(self, pair: Pair) -> None:
        was_done = pair.naive.done
        pair.naive.finish(self.clock.monotonic())
        assert pair.real.finish() is (pair.naive.done and not was_done)

    @rule(pair=pairs)
    def poll(self, pair: Pair) -> None:
        pair.naive.poll(self.clock.monotonic())
        pair.real.poll()

    @invariant()
    def the_model_agrees(self) -> None:
        for pair in self.all:
            found: Any = pair.real.abandonment
            if found is not None:
                found = (found.cause, found.at, found.inherited)
            assert found == pair.naive.gone
            assert pair.real.finished is pair.naive.done

    @invariant()
    def the_first_cause_wins_for_ever(self) -> None:
        for pair in self.all:
            if pair.first is None:
                pair.first = pair.real.abandonment
            assert pair.real.abandonment is pair.first
            assert not (pair.real.finished and pair.first)

    @invariant()
    def each_callback_ran_exactly_once(self) -> None:
        for pair in self.all:
            found = pair.real.abandonment
            assert pair.heard == ([] if found is None else [found])

    @invariant()
    def no_deadline_is_later_than_the_one_above(self) -> None:
        for pair in self.all:
            above = math.inf if pair.above is None else pair.above.real.deadline.at
            assert pair.real.deadline.at <= above

    @invariant()
    def a_cause_took_effect_before_it_was_noticed_and_deadlines_at_theirs(self) -> None:
        for pair in self.all:
            found = pair.real.abandonment
            if found is not None:
                assert found.at <= found.noticed_at <= self.clock.monotonic()
                if found.cause is Cause.DEADLINE and not found.inherited:
                    assert found.at == pair.real.deadline.at

    @invariant()
    def what_is_inherited_is_what_the_node_above_says(self) -> None:
        for pair in self.all:
            found = pair.real.abandonment
            if found is not None and found.inherited:
                above = pair.above
                while above is not None and above.real.finished:
                    above = above.above
                assert above is not None
                assert above.real.abandonment is not None
                said = above.real.abandonment
                assert (found.cause, found.at) == (said.cause, said.at)

    @invariant()
    def nothing_below_an_abandoned_node_goes_on(self) -> None:
        for pair in self.all:
            above = pair.above
            if above is not None and above.real.abandonment is not None:
                assert pair.real.abandonment is not None or pair.real.finished


TestTokenTree = TokenTree.TestCase
TestTokenTree.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None
)
