"""A caller who left, and may come back: what that means for the run.

Under ``grace`` nothing is decided while the grace lasts: nothing is refused and nothing
is stopped. Then one of these comes first, and decides for ever:

- somebody calls ``run.reattach()``: the caller never left;
- somebody calls ``run.deliver()``, because the result is stored: leaving is nothing;
- the grace passes, or the run ends with nobody there: the run was abandoned **when the
  caller left**;
- another cause takes effect (the deadline, a kill): it counts, from its own moment.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from hangup.config import OnDisconnect
from hangup.core.cause import Cause

if TYPE_CHECKING:
    from hangup.core.cause import Abandonment
    from hangup.core.run import Run


class Absence:
    """Whether the caller of one run is away. Thread-safe; nothing blocks.

    Args:
        run: Whose caller it is.
        on_disconnect: What their leaving means.
        grace: Seconds to come back in.

    Attributes:
        on_disconnect: As given.
        grace: As given.
        left_at: When the caller left, on the run's monotonic clock; None while there.
        ever: Whether the caller ever left.
        returned: Whether somebody ever came back. Then the connection the run was
            opened for no longer says where the caller is, also where it is noticed to
            be closed only after they are back on another.
    """

    __slots__ = (
        "_lock",
        "_over",
        "_run",
        "_timer",
        "ever",
        "grace",
        "left_at",
        "on_disconnect",
        "returned",
    )

    def __init__(self, run: Run, on_disconnect: OnDisconnect, grace: float) -> None:
        self._run = run
        self.on_disconnect: OnDisconnect = on_disconnect
        self.grace: float = grace
        self.left_at: float | None = None
        self.ever: bool = False
        self.returned: bool = False
        self._over = False
        self._timer: Any = None
        self._lock = threading.Lock()

    @property
    def away(self) -> bool:
        """Whether a result handed over now would reach nobody and count for nobody."""
        return self.left_at is not None and self.on_disconnect is OnDisconnect.GRACE

    @property
    def may_return(self) -> bool:
        """Whether the caller's leaving does not abandon the run at once."""
        return self.on_disconnect is not OnDisconnect.ABANDON

    def leave(self, at: float | None) -> None:
        """Note that the caller left, and see to what follows. Idempotent."""
        run = self._run
        if not self.may_return:
            run.cancel(Cause.DISCONNECT, at=at)
            return
        now = run.clock.monotonic()
        with self._lock:
            if self._over or self.left_at is not None or run.delivered_at is not None:
                return
            self.left_at = now if at is None else min(max(at, run.started_at), now)
            self.ever = True
        if not run.latent:
            self.begin()

    def begin(self) -> None:
        """Let an absence count that a latent run only remembered, or that begins."""
        with self._lock:
            left_at = self.left_at
            if left_at is None or self._over or self._is_decided():
                return
            self._run.caller = "gone"
        if self.away:
            self._arm(left_at + self.grace)
            self.poll()

    def reattach(self) -> bool:
        """See :meth:`hangup.core.run.Run.reattach`."""
        run = self._run
        if run.abandonment is not None:  # looks at the clock
            return False
        with self._lock:
            if self._over or self._is_decided() or run.closed_at is not None:
                return False
            self.left_at = None
            self.returned = True
            run.caller = "connected"
        self.stop()
        return True

    def poll(self, now: float | None = None) -> None:
        """Abandon the run if its grace has passed."""
        left_at = self.left_at
        if left_at is None or not self.away or self._over or self._run.latent:
            return
        ends = left_at + self.grace
        if (self._run.clock.monotonic() if now is None else now) >= ends:
            self._give_up(ends)

    def close(self) -> None:
        """Note that the scope is left: whoever is away now gets nothing any more."""
        if self._run.latent:
            return
        self.poll()
        if self.away:
            self._give_up(self._run.clock.monotonic())

    def stop(self) -> None:
        """Forget the timer: it has been decided what the absence means."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _give_up(self, now: float) -> None:
        """Abandon the run as of the caller's leaving, if nothing came before ``now``.

        The moment the absence ended, not the present one: a deadline that passed only
        after it does not come first because both are noticed late.
        """
        with self._lock:
            left_at = self.left_at
            if left_at is None or self._over:
                return
            self._over = True
        self._run.token.cancel(Cause.DISCONNECT, at=left_at, now=now)

    def _is_decided(self) -> bool:
        run = self._run
        return run.delivered_at is not None or run.token.abandonment is not None

    def _arm(self, when: float) -> None:
        timer = self._run.clock.call_at(when, self._expire)
        self._timer = timer
        if self._is_decided() or self.left_at is None:
            timer.cancel()

    def _expire(self) -> None:
        self.poll()
        # A loop's clock may run a moment ahead of ours (uvloop counts milliseconds).
        left_at = self.left_at
        if left_at is not None and not self._over and not self._is_decided():
            self._arm(left_at + self.grace)


def stopping_since(run: Run, abandonment: Abandonment) -> float:
    """Return from when on a run was to stop: T0, but for a grace the end of that."""
    graceful = run.root.absence.on_disconnect is OnDisconnect.GRACE
    if graceful and abandonment.cause is Cause.DISCONNECT:
        return abandonment.noticed_at
    return abandonment.at
