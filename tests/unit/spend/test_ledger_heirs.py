"""Books that were handed over are posted with those of whoever has them now."""

from __future__ import annotations

import pytest

from hangup.spend.fate import Fate
from hangup.spend.ledger import Ledger, Posting
from hangup.spend.usage import Usage


def _spend(ledger: Ledger, at: float, tokens: int = 10) -> None:
    used = Usage(tokens, tokens)
    ledger.enter(("inference", "m", at, None, at + 1, used, None, None, None))


@pytest.mark.parametrize("capacity", [0, 1, 512], ids=["folded", "half", "kept"])
@pytest.mark.parametrize("late", [False, True], ids=["undecided", "decided"])
def test_a_grandchild_that_closes_after_its_parent_loses_nothing(
    capacity: int, *, late: bool
) -> None:
    """Its books, folded or not, go past its parent to whoever has that one's."""
    posted: list[Posting] = []
    root, child, grandchild = (
        Ledger(posted.extend, capacity=capacity) for _ in range(3)
    )
    for at in range(3):
        _spend(grandchild, at)
    root.absorb(child)
    if late:
        root.abandon(1.0, "killed")
    child.absorb(grandchild)
    root.abandon(1.0, "killed")
    assert sum(one.input for one in posted) == 30
    assert sum(one.output for one in posted) == 30
    assert sum(one.calls for one in posted) == 3
    assert {one.fate for one in posted} == {Fate.SUNK, Fate.WASTED}
    assert {one.cause for one in posted} == {"killed"}


def test_a_ledger_says_when_its_books_are_closed_or_handed_over() -> None:
    root, child = Ledger(lambda _posting: None), Ledger(lambda _posting: None)
    assert not root.decided
    assert not child.decided
    root.absorb(child)
    assert child.decided
    assert not root.decided
    root.deliver(1.0)
    assert root.decided
