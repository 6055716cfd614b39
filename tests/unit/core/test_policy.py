"""The one rule, as one table."""

from __future__ import annotations

import math

import pytest

from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.core.policy import Decision, decide

ALLOW, WOULD, REFUSE = Decision.ALLOW, Decision.WOULD_REFUSE, Decision.REFUSE
NO, LEFT, KILL = None, Cause.DISCONNECT, Cause.KILLED
DUE = Cause.DEADLINE

# cause, remaining, needs, shielded, inert -> off, observe, refuse, enforce; cause said
TABLE = [
    # A live run with time left.
    (NO, math.inf, 0.0, False, False, "aaaa", NO),
    (NO, 5.0, 0.0, False, False, "aaaa", NO),
    (NO, 5.0, 5.0, False, False, "aaaa", NO),
    # Too little time, or none.
    (NO, 5.0, 5.1, False, False, "awrr", DUE),
    (NO, 0.0, 0.0, False, False, "awrr", DUE),
    (NO, -1.0, 0.0, False, False, "awrr", DUE),
    # Abandoned: the cause of the run is that of the refusal, whatever time is left.
    (LEFT, math.inf, 0.0, False, False, "awrr", LEFT),
    (LEFT, -1.0, 5.0, False, False, "awrr", LEFT),
    (DUE, -1.0, 0.0, False, False, "awrr", DUE),
    (Cause.FAILED, 5.0, 0.0, False, False, "awrr", Cause.FAILED),
    (Cause.SUPERSEDED, 5.0, 0.0, False, False, "awrr", Cause.SUPERSEDED),
    (Cause.SHUTDOWN, 5.0, 0.0, False, False, "awrr", Cause.SHUTDOWN),
    # An operator's kill acts in every mode but off.
    (KILL, 5.0, 0.0, False, False, "arrr", KILL),
    # Cleanup and irreversible steps are never refused.
    (LEFT, 5.0, 0.0, True, False, "aaaa", NO),
    (KILL, 5.0, 0.0, True, False, "aaaa", NO),
    (NO, -1.0, 9.0, True, False, "aaaa", NO),
    # What is over means nothing any more.
    (LEFT, 5.0, 0.0, False, True, "aaaa", NO),
    (KILL, 5.0, 0.0, False, True, "aaaa", NO),
    (NO, -1.0, 9.0, False, True, "aaaa", NO),
]
LETTERS = {"a": ALLOW, "w": WOULD, "r": REFUSE}


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    ("cause", "remaining", "needs", "shielded", "inert", "decisions", "said"), TABLE
)
def test_the_rule(  # noqa: PLR0913, PLR0917  one row of the table
    mode: Mode,
    cause: Cause | None,
    remaining: float,
    needs: float,
    shielded: bool,  # noqa: FBT001
    inert: bool,  # noqa: FBT001
    decisions: str,
    said: Cause | None,
) -> None:
    verdict = decide(
        mode=mode,
        cause=cause,
        remaining=remaining,
        needs=needs,
        shielded=shielded,
        inert=inert,
    )
    expected = LETTERS[decisions[list(Mode).index(mode)]]
    assert verdict.decision is expected
    assert verdict.cause is (None if expected is ALLOW else said)
