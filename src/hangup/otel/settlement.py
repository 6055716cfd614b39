"""What became of an answer, told to the processes that helped to make it.

A run that continues one of another process cannot know its own fate: it answers
normally while the user of the first process may be long gone, above all in observe
mode, where nothing is cut. So its books stay open (*held*) until the process that
opened the run sends a notice, or until the hold expires; then the answer counts as
delivered.

Sending is not done here: the client layer registers a transport. A process in the
middle of a chain passes on what it learns to the origins that it called itself.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from hangup import config
from hangup.core import registry
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.guard import guarded
from hangup.otel import notices
from hangup.otel.notices import Notice, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangup.core.cause import Cause
    from hangup.core.clock import Clock, Timer
    from hangup.core.run import Run

_MAX_ORIGINS: Final = 64  # per run
_MAX_HELD: Final = 10_000
_MAX_EARLY: Final = 1_000
_SLACK: Final = 64
_MARGIN: Final = 2.0  # seconds after the deadline in which a notice may still come


class Settle(Protocol):
    """Closes the books of a held run; called once, outside locks."""

    def __call__(self, outcome: Outcome, cause: Cause | None, at: float) -> None:
        """Take the fate; ``at`` is on the run's monotonic clock.

        For an abandoned run it is T0, for a delivered one the end of its answer here.
        """


class Transport(Protocol):
    """Takes a notice for an origin such as ``http://host:8000``.

    Must return at once and never raise.
    """

    def __call__(self, origin: str, notice: Notice) -> None:
        """Queue the notice."""


class _Held:
    __slots__ = ("expires", "run", "settle", "timer")

    def __init__(self, run: Run, settle: Settle, expires: float) -> None:
        self.run = run
        self.settle = settle
        self.expires = expires
        self.timer: Timer | None = None


class Settlement(registry.RunObserver):
    """The held runs of this process, and whom to tell about the others.

    Every method is thread-safe and none blocks. Register it with
    :func:`hangup.core.registry.add_observer`.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.transport: Transport | None = None
        # For origins that are no URLs: what goes before their colon.
        self.transports: dict[str, Transport] = {}
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child must: those runs are its parent's."""
        # Reentrant: a garbage collection may close a run in the middle of these.
        self._lock = threading.RLock()
        self._origins: weakref.WeakKeyDictionary[Run, dict[str, None]] = (
            weakref.WeakKeyDictionary()
        )
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._by_token: dict[str, set[int]] = {}
        self._by_expiry: list[tuple[float, int]] = []
        self._sequence = itertools.count()
        # Notices for runs that cannot take them yet: still answering, or still latent.
        self._early: weakref.WeakKeyDictionary[Run, Notice] = (
            weakref.WeakKeyDictionary()
        )
        self._early_tokens: OrderedDict[str, Notice] = OrderedDict()

    # The process that opened the run

    def remember(self, run: Run, origin: str) -> None:
        """Tell ``origin`` the fate of ``run`` once it is known; at once if it is.

        Args:
            run: The run, or a child of it: the fate of the whole run is told.
            origin: Scheme, host and port. At most 64 are kept per run.
        """
        root = run.root
        with self._lock:
            origins = self._origins.setdefault(root, {})
            if len(origins) < _MAX_ORIGINS:
                origins[origin] = None
        if (abandonment := root.abandonment) is not None:
            self._tell(root, Outcome.ABANDONED, abandonment.cause, abandonment.at)
        elif root.delivered_at is not None and not self._waits(root):
            self._tell(root, Outcome.DELIVERED, None, root.delivered_at)

    def abandoned(self, run: Run) -> None:
        """Tell the origins; see :class:`~hangup.core.registry.RunObserver`."""
        abandonment = run.token.abandonment
        if run.parent is None and abandonment is not None:
            self._tell(run, Outcome.ABANDONED, abandonment.cause, abandonment.at)

    def delivered(self, run: Run) -> None:
        """Tell the origins, unless the run's fate is decided elsewhere."""
        if run.parent is None and not run.joined and run.delivered_at is not None:
            self._tell(run, Outcome.DELIVERED, None, run.delivered_at)

    def closed(self, run: Run) -> None:
        """Tell the origins of a joined run that nobody holds."""
        if run.joined and run.delivered_at is not None and not self._waits(run):
            self._tell(run, Outcome.DELIVERED, None, run.delivered_at)

    # The process that helped

    def started(self, run: Run) -> None:
        """Apply a notice that came while the run was latent."""
        if not run.joined:
            return
        with self._lock:
            notice = self._early_tokens.get(run.id)
        if notice is not None:
            self._abandon(run, notice)

    def hold(self, run: Run, settle: Settle) -> None:
        """Keep the books of a joined run open after its answer.

        Call it when the run is delivered, instead of booking. ``settle`` is called
        once: when a notice comes (at once if it came before), or when the hold expires.

        Args:
            run: A joined root that was delivered.
            settle: Closes the books.
        """
        held = _Held(run, settle, self._clock.monotonic() + hold_seconds(run))
        evicted = None
        with self._lock:
            early = self._early.pop(run, None)
            if early is None:
                self._put(held)
                if len(self._held) > _MAX_HELD:
                    evicted = self._take(next(iter(self._held)))
        if early is not None:
            self._settle(held, early)
        else:
            held.timer = self._clock.call_at(held.expires, self.expire)
        self._release([evicted])
        # A timer is lost with its event loop, so look at the others here too.
        self.expire()

    def receive(self, settlements: object) -> bool:
        """Apply notices from the wire; False when malformed, and then none is applied.

        Tokens that are unknown here are ignored. Never raises.

        Args:
            settlements: The decoded list of the body.
        """
        found = notices.read(settlements, self._clock)
        if found is None:
            return False
        for notice in found:
            guarded(self._apply, notice)
        self.expire()
        return True

    def receive_body(self, body: bytes) -> bool:
        """Apply the body of a request to ``SETTLE_PATH``; False when malformed."""
        return self.receive(notices.decode(body))

    def expire(self) -> None:
        """Settle as delivered the held runs that have waited long enough."""
        now = self._clock.monotonic()
        expired = []
        with self._lock:
            while self._by_expiry and self._by_expiry[0][0] <= now:
                _, number = heapq.heappop(self._by_expiry)
                expired.append(self._take(number))
        self._release(expired)

    def release(self) -> None:
        """Settle every held run as delivered: the process is going down."""
        with self._lock:
            everything = [self._take(number) for number in tuple(self._held)]
            self._by_expiry.clear()
        self._release(everything)

    @property
    def held(self) -> int:
        """How many runs are held."""
        return len(self._held)

    def _apply(self, notice: Notice) -> None:
        with self._lock:
            numbers = tuple(self._by_token.get(notice.token, ()))
            helds = [held for held in map(self._take, numbers) if held is not None]
        for held in helds:
            self._settle(held, notice)
        done = {held.run for held in helds}
        alive = [
            run
            for run in registry.runs_by_id(notice.token)
            if run.joined and run not in done
        ]
        for run in alive:
            self._apply_to_live(run, notice)
        if not helds and not alive and notice.outcome is Outcome.ABANDONED:
            with self._lock:
                self._early_tokens[notice.token] = notice
                if len(self._early_tokens) > _MAX_EARLY:
                    self._early_tokens.popitem(last=False)

    def _apply_to_live(self, run: Run, notice: Notice) -> None:
        if notice.outcome is Outcome.ABANDONED and self._abandon(run, notice):
            return
        if run.abandonment is None:
            # It is about to answer, or just has; the hold will find this.
            with self._lock:
                self._early.setdefault(run, notice)

    def _abandon(self, run: Run, notice: Notice) -> bool:
        if notice.cause is None:
            return False
        at = run.clock.monotonic() - notice.ago()
        return run.cancel(
            notice.cause, "told by the process that opened the run", at=at
        )

    def _settle(self, held: _Held, notice: Notice) -> None:
        run = held.run
        if notice.outcome is Outcome.DELIVERED:
            self._finish(held)
            return
        at = max(run.started_at, run.clock.monotonic() - notice.ago())
        guarded(held.settle, notice.outcome, notice.cause, at)
        self._tell(run, notice.outcome, notice.cause, at)

    def _finish(self, held: _Held) -> None:
        run = held.run
        at = run.clock.monotonic() if run.delivered_at is None else run.delivered_at
        guarded(held.settle, Outcome.DELIVERED, None, at)
        self._tell(run, Outcome.DELIVERED, None, at)

    def _release(self, helds: Sequence[_Held | None]) -> None:
        for held in helds:
            if held is not None:
                self._finish(held)

    def _tell(self, run: Run, outcome: Outcome, cause: Cause | None, at: float) -> None:
        with self._lock:
            origins = self._origins.pop(run, None)
        if not origins:
            return
        notice = Notice(run.id, outcome, cause, at, run.clock)
        for origin in origins:
            scheme = origin.partition(":")[0]
            transport = self.transports.get(scheme, self.transport)
            if transport is not None:
                guarded(transport, origin, notice)

    def _waits(self, run: Run) -> bool:
        with self._lock:
            numbers = self._by_token.get(run.id, ())
            return any(self._held[number].run is run for number in numbers)

    def _put(self, held: _Held) -> None:
        """Enter a held run. Under the lock."""
        number = next(self._sequence)
        self._held[number] = held
        self._by_token.setdefault(held.run.id, set()).add(number)
        heapq.heappush(self._by_expiry, (held.expires, number))
        if len(self._by_expiry) > 2 * len(self._held) + _SLACK:
            # Most settle long before they expire.
            self._by_expiry = [(one.expires, n) for n, one in self._held.items()]
            heapq.heapify(self._by_expiry)

    def _take(self, number: int) -> _Held | None:
        """Remove one held run, whoever comes first. Under the lock."""
        held = self._held.pop(number, None)
        if held is not None:
            if held.timer is not None:
                held.timer.cancel()
            siblings = self._by_token[held.run.id]
            siblings.discard(number)
            if not siblings:
                del self._by_token[held.run.id]
        return held


def hold_seconds(run: Run) -> float:
    """Return for how long the books of a joined run wait after its answer."""
    # Not the deadline alone: in observe mode the run may outlive it, and a route here
    # may have tightened what the opening process still waits for.
    least = config.current().hold
    return (
        max(run.deadline.remaining() + _MARGIN, least) if run.deadline.is_set else least
    )


_settlement = Settlement()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_settlement.reset)

remember = _settlement.remember
hold = _settlement.hold
receive = _settlement.receive
receive_body = _settlement.receive_body
release = _settlement.release


def observer() -> Settlement:
    """Return the process-wide settlement, to be added to the run observers."""
    return _settlement


def set_transport(transport: Transport | None, scheme: str | None = None) -> None:
    """Register what sends the notices; None drops them.

    Args:
        transport: Takes them.
        scheme: Of the origins it is for, those that have no transport of their own if
            None.
    """
    if scheme is None:
        _settlement.transport = transport
    elif transport is None:
        _settlement.transports.pop(scheme, None)
    else:
        _settlement.transports[scheme] = transport
