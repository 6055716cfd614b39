"""Where the present task or thread stands: in which run, and behind which shield.

The position lives in a context variable of its own, so that the core works without
OpenTelemetry. With it, a bridge keeps the same position in the OpenTelemetry context,
and that one wins: a context attached on purpose (a queue consumer serving somebody) is
more specific than the one a task happened to be born in.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from hangup.core.generators import Hold, hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.deadline import Deadline
    from hangup.core.drain import DrainScope
    from hangup.core.run import Run


class Shield:
    """A stretch of work that is not refused: cleanup, or an irreversible step.

    A new node, never a flag on the run: tasks started inside carry it, and it ends by
    its own deadline however long they live.
    """

    __slots__ = ("deadline", "kind")

    def __init__(self, kind: str, deadline: Deadline) -> None:
        self.kind: str = kind
        self.deadline: Deadline = deadline


class Position:
    """A run (None: deliberately outside any), and what stands around this work in it.

    Args:
        run: The run.
        shield: What keeps its calls from being refused.
        drain: What lets calls that are under way go on, but keeps none from being
            refused.

    Attributes:
        hold: Where an async generator entered it: which one.
        before: What to see in its place while that does not run.
    """

    __slots__ = ("before", "drain", "held", "hold", "shield")

    def __init__(
        self,
        run: Run | None,
        shield: Shield | None = None,
        drain: DrainScope | None = None,
    ) -> None:
        self.held = run
        self.shield: Shield | None = shield
        self.drain: DrainScope | None = drain
        self.hold: Hold | None = None
        self.before: Position | None = None

    @property
    def run(self) -> Run | None:
        """The run this work is for: a child that was delivered hands it up."""
        run = self.held
        while run is not None and run.delivered_at is not None:
            if run.parent is None:
                break
            run = self.held = run.parent
        return run


POSITION: ContextVar[Position | None] = ContextVar("hangup.position", default=None)


class ContextBridge(Protocol):
    """A second place that carries the position, such as the OpenTelemetry context."""

    def read(self) -> Position | None:
        """Return the position there, None where it says nothing."""

    def attach(self, position: Position) -> Callable[[], None]:
        """Put the position there; the returned function takes it back."""


class _Bridge:
    value: ContextBridge | None = None


def set_bridge(bridge: ContextBridge | None) -> None:
    """Install the bridge to another context; None removes it."""
    _Bridge.value = bridge


def position() -> Position | None:
    """Return the position of the present task or thread, if any."""
    bridge = _Bridge.value
    found = None if bridge is None else bridge.read()
    if found is None:
        found = POSITION.get()
    # Asked at every span: no further frame of Python, but for generators.
    return found if found is None or found.hold is None else seen(found)


def seen(found: Position | None) -> Position | None:
    """Return the position that the present code is to see where it has ``found`` one.

    Not that of a generator which it merely consumes.
    """
    while found is not None and found.hold is not None and found.hold.away:
        found = found.before
    return found


def current_run() -> Run | None:
    """Return the live run the calling task or thread works for, or None.

    A run that was delivered, or closed long ago, is over: its context is inert.
    """
    found = position()
    if found is None or found.run is None or found.run.inert:
        return None
    return found.run


def enter(new: Position) -> Callable[[], None]:
    """Make ``new`` the position; the returned function restores the one before.

    Restoring never uses a context-variable token and does nothing where the position is
    no longer ours: a scope closed in another context (an async generator that was
    dropped) must neither fail nor leak into that context.
    """
    before = POSITION.get()
    bridge = _Bridge.value
    new.hold = hold()
    if new.hold is not None:
        around = None if bridge is None else bridge.read()
        new.before = _open_still(before if around is None else around)
    POSITION.set(new)
    detach = None if bridge is None else bridge.attach(new)

    def leave() -> None:
        if new.hold is not None:
            new.hold.over()
        if POSITION.get() is new:
            POSITION.set(before)
        if detach is not None:
            detach()

    return leave


def _open_still(found: Position | None) -> Position | None:
    """Return the first that was not left: dropped generators must not pile up."""
    while found is not None and found.hold is not None and found.hold.frame is None:
        found = found.before
    return found
