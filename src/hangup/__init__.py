"""SIGHUP for AI agents: when the user leaves, the whole agent tree stops.

Where things live::

    errors      every exception and its message
    config      every setting
    core        the cancel tree: clock, deadline, cause, token, run, scope (stdlib only)
    spend       the accounts: usage, fate (the split), ledger, prices (pure)
    otel        the act: policy at span start, processor, guard, sampler, propagator
    servers     who is waiting: one adapter a protocol
    clients     what is called: HTTP clients, threads, retries
    demo, cli   ``hangup demo``

A newcomer reads ``core/token.py`` (the idea), ``core/policy.py`` (the rule),
``otel/processor.py`` (the act) and ``spend/fate.py`` (the number).
"""

from __future__ import annotations

from hangup.api import check, instrument, remaining, uninstrument
from hangup.config import Mode
from hangup.core.cause import Abandonment, Cause
from hangup.core.cleanup import CleanupScope as cleanup  # noqa: N813  read as verbs
from hangup.core.cleanup import Detached as detached  # noqa: N813
from hangup.core.current import current_run
from hangup.core.deadline import Deadline
from hangup.core.drain import DrainScope as drain  # noqa: N813
from hangup.core.gather import gather
from hangup.core.irreversible import irreversible
from hangup.core.registry import find_run, shutdown
from hangup.core.rollout import release_brake
from hangup.core.run import Run
from hangup.core.scope import RunScope as run  # noqa: N813
from hangup.core.threads import to_thread
from hangup.errors import (
    ApprovalDenied,
    ConfigError,
    DeadlineExceeded,
    MisuseError,
    RunAbandoned,
    RunCancelled,
    Stop,
)

__version__ = "0.1.0"

__all__ = [
    "Abandonment",
    "ApprovalDenied",
    "Cause",
    "ConfigError",
    "Deadline",
    "DeadlineExceeded",
    "MisuseError",
    "Mode",
    "Run",
    "RunAbandoned",
    "RunCancelled",
    "Stop",
    "__version__",
    "check",
    "cleanup",
    "current_run",
    "detached",
    "drain",
    "find_run",
    "gather",
    "instrument",
    "irreversible",
    "release_brake",
    "remaining",
    "run",
    "shutdown",
    "to_thread",
    "uninstrument",
]
