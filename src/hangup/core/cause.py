"""Why a run was abandoned, and when that took effect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hangup.errors import ConfigError


class Cause(StrEnum):
    """The closed list of causes. The first one wins, for ever."""

    DISCONNECT = "disconnect"
    DEADLINE = "deadline"
    SUPERSEDED = "superseded"
    KILLED = "killed"
    FAILED = "failed"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Abandonment:
    """The one abandonment of a run.

    Attributes:
        cause: Why.
        detail: Free text, or "".
        at: T0 in seconds on the run's monotonic clock: when the cause took
            effect (the deadline instant, the moment the client was gone).
        noticed_at: When hangup learnt of it, same clock, never before ``at``.
        inherited: The cause came down from a parent run. Only the run that owns
            its cause turns the stop into ``RunAbandoned``.
    """

    cause: Cause
    detail: str
    at: float
    noticed_at: float
    inherited: bool = False


def read_cause(value: Cause | str) -> Cause:
    """Return the cause that ``value`` names.

    Raises:
        ConfigError: It names none; says which there are.
    """
    if isinstance(value, Cause):
        return value  # a stop waits for this; the call below is frames of Python
    try:
        return Cause(value)
    except ValueError:
        choices = ", ".join(Cause)
        raise ConfigError("cause", value, f"choose one of {choices}") from None
