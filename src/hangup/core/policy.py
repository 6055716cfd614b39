"""The one rule: may this spending call start?

A pure function of values. The span processor, the tracer guard, the HTTP layer and
``run.check`` are ten-line callers of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from hangup.config import Mode
from hangup.core.cause import Cause


class Decision(StrEnum):
    """What becomes of a spending call that wants to start."""

    ALLOW = "allow"
    WOULD_REFUSE = "would_refuse"
    REFUSE = "refuse"


class Verdict(NamedTuple):
    """A decision, and the cause behind it where it is not ``allow``."""

    decision: Decision
    cause: Cause | None = None


ALLOWED = Verdict(Decision.ALLOW)


def decide(  # noqa: PLR0913  the rule has this many inputs, and no hidden ones
    *,
    mode: Mode,
    cause: Cause | None,
    remaining: float,
    needs: float = 0.0,
    shielded: bool = False,
    inert: bool = False,
) -> Verdict:
    """Decide on one spending call.

    Args:
        mode: The run's mode.
        cause: Why the run was abandoned; None while it is not.
        remaining: Seconds to the run's deadline, ``math.inf`` without one.
        needs: The least time in seconds the call is worth starting with.
        shielded: The call stands inside cleanup or an irreversible step.
        inert: The run is over (delivered, or abandoned and closed long ago).

    Returns:
        The verdict. A call that has less time than it needs counts as refused by the
        deadline.
    """
    if mode is Mode.OFF or inert or shielded:
        return ALLOWED
    if cause is None:
        if remaining > 0 and remaining >= needs:
            return ALLOWED
        cause = Cause.DEADLINE
    # An operator's kill acts in every mode.
    if mode.refuses or cause is Cause.KILLED:
        return Verdict(Decision.REFUSE, cause)
    return Verdict(Decision.WOULD_REFUSE, cause)
