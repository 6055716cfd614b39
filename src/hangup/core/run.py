"""A run: the tree of work done for one caller, under one deadline and one token."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

from hangup import config
from hangup.config import Mode, OnDisconnect
from hangup.core import admission, registry
from hangup.core.absence import Absence
from hangup.core.alarm import Alarm, weakly
from hangup.core.cause import Abandonment, Cause, read_cause
from hangup.core.clock import timer_of
from hangup.core.current import position
from hangup.core.guard import guarded
from hangup.core.hooks import Hooks
from hangup.core.token import CancelToken, new_token_id
from hangup.core.unwind import error_of
from hangup.core.work import Work
from hangup.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.clock import Clock
    from hangup.core.deadline import Deadline
    from hangup.errors import RunAbandoned


class Run:
    """One run, or a child run. Made by :class:`hangup.core.scope.RunScope`.

    Every method is thread-safe and none blocks.

    Attributes:
        id: The cancel token, 32 hex characters; a child shares its root's.
        name: Route template or declared name; a metric label, so keep it few-valued.
        tenant: Whom the work is for, or "".
        mode: How far hangup goes with this run.
        started_at: Seconds on ``clock.monotonic()``.
        joined: This root continues a run that another process opened.
        latent: Opened by a server, and no spending call yet: nobody's business. A run
            whose mode is off stays so.
        caller: "connected", "gone" or "unknown": is somebody still there?
        absence: Since when the caller has been away, and what that means.
        delivered_at: When the caller had the result, or None.
        closed_at: When the scope was left, or None.
        ledger: A slot for the layer that keeps the run's accounts.
        place: Where the rollout's rules look for it; None of one opened in code.
        plain: It is spending and not over, and no setting picks among its calls. While
            its root is too, and its token is open, every call may start.
        origin: A slot for the layer that keeps the context the run was opened in.
        statement: A slot for the layer that tells of the run when it is over.
        span: A slot for the layer that keeps the span the run is seen by.
    """

    __slots__ = (
        "__weakref__",
        "_beginning",
        "_lock",
        "_on_deliver",
        "_on_spending",
        "_pending",
        "_timer",
        "absence",
        "caller",
        "clock",
        "closed_at",
        "delivered_at",
        "id",
        "joined",
        "latent",
        "ledger",
        "mode",
        "name",
        "origin",
        "parent",
        "place",
        "plain",
        "root",
        "settings",
        "span",
        "started_at",
        "statement",
        "supersede_key",
        "tenant",
        "token",
        "work",
    )

    def __init__(  # noqa: PLR0913  a run is opened in one place, RunScope
        self,
        *,
        name: str,
        tenant: str,
        mode: Mode,
        deadline: Deadline,
        parent: Run | None = None,
        run_id: str | None = None,
        joined: bool = False,
        latent: bool = False,
        supersede_key: str | None = None,
        on_disconnect: OnDisconnect = OnDisconnect.ABANDON,
        grace: float = 0.0,
    ) -> None:
        self.name: str = name
        self.tenant: str = tenant
        self.mode: Mode = mode
        self.parent: Run | None = parent
        self.root: Run = self if parent is None else parent.root
        self.id: str = (run_id or new_token_id()) if parent is None else parent.id
        self.joined: bool = joined
        self.latent: bool = latent
        self.plain = False
        self.caller: str = "unknown"
        self.clock: Clock = deadline.clock
        self.started_at: float = self.clock.monotonic()
        self.supersede_key: str | None = supersede_key
        self.delivered_at: float | None = None
        self.closed_at: float | None = None
        self.settings: config.Settings = config.current()
        self.ledger: Any = None
        self.statement: Any = None
        self.origin: Any = None
        self.place: Any = None
        self.span: Any = None
        self.work: Work = Work(self)
        self.absence: Absence = Absence(self, on_disconnect, grace)
        self.token: CancelToken = CancelToken(
            deadline,
            binding=mode is Mode.ENFORCE,
            parent=None if parent is None else parent.token,
        )
        self._lock = threading.Lock()
        self._beginning = False
        self._pending: tuple[Cause, str, float] | None = None
        self._on_spending: list[Callable[[], None]] = []
        self._on_deliver: Hooks[Run] = Hooks(self._lock)
        self._timer = Alarm()

    def __repr__(self) -> str:
        return f"<Run {self.name!r} {self.id[:8]} {self.mode} {self.state}>"

    @property
    def deadline(self) -> Deadline:
        """The instant the run must finish by; the earliest of the tree above."""
        return self.token.deadline

    @property
    def abandonment(self) -> Abandonment | None:
        """The abandonment, if any; records a deadline or grace that has passed."""
        if self.latent:
            return None
        if self.absence.left_at is not None:
            self.absence.poll()
        return self.token.poll()

    @property
    def cause(self) -> Cause | None:
        """Why the run was abandoned, or None."""
        abandonment = self.abandonment
        return None if abandonment is None else abandonment.cause

    @property
    def state(self) -> str:
        """One of latent, running, stopping, abandoned, delivered."""
        if self.latent:
            return "latent"
        if self.delivered_at is not None:
            return "delivered"
        if self.token.abandonment is None:
            return "running"
        return "stopping" if self.closed_at is None else "abandoned"

    @property
    def inert(self) -> bool:
        """Whether the run is over and its context means nothing any more."""
        if self.delivered_at is not None or self.root.delivered_at is not None:
            return True
        closed_at = self.closed_at
        if closed_at is None:
            return False
        if self.token.abandonment is None:
            # A child that ended well hands its place back to its parent.
            return self.parent is None or self.parent.inert
        return self.clock.monotonic() - closed_at > self.settings.refuse_for

    def remaining(self) -> float:
        """Seconds left here: to the run's deadline, or that of a cleanup around us.

        Negative once past, ``math.inf`` without a deadline.
        """
        here = position()
        if here is not None and here.shield is not None and here.run is self:
            return here.shield.deadline.remaining()
        return self.token.deadline.remaining()

    def check(self, needs: float = 0.0) -> None:
        """Stop here unless a spending call may start.

        Call it before work that hangup cannot see. In observe mode it never raises.

        Args:
            needs: The least time in seconds the work is worth starting with.

        Raises:
            Stop: The run is abandoned or has too little time. An ordinary
                ``RunAbandoned`` instead on a thread or task the run did not start.
            ConfigError: ``needs`` is negative or NaN.
        """
        if not needs >= 0:
            raise ConfigError("needs", needs, "give seconds, zero or more")
        refusal = admission.admit(self, "other", needs)
        if refusal is not None:
            raise refusal

    def error(self) -> RunAbandoned:
        """Return the ordinary error for this run's abandonment."""
        return error_of(self)

    def cancel(
        self,
        cause: Cause | str = Cause.KILLED,
        detail: str = "",
        *,
        at: float | None = None,
    ) -> bool:
        """Abandon the run and everything below it. Acts in every mode.

        Args:
            cause: A :class:`Cause` or its value. The first cause wins, for ever.
            detail: Free text for logs and errors.
            at: When it took effect, on the run's monotonic clock; now if None. A time
                before the run began or in the future is clamped.

        Returns:
            Whether this call abandoned the run. A latent run remembers the cause until
            it makes a spending call; that returns False.

        Raises:
            ConfigError: The cause is not one of :class:`Cause`.
        """
        cause = read_cause(cause)
        now = self.clock.monotonic()
        effect = now if at is None else min(max(at, self.started_at), now)
        with self._lock:
            if self.latent:
                if self._pending is None:
                    self._pending = (cause, detail, effect)
                return False
            if cause is Cause.DISCONNECT and self.delivered_at is None:
                self.caller = "gone"
        self.absence.poll(now)
        return self.token.cancel(cause, detail, at=effect, now=now)

    def deliver(self, *, at: float | None = None) -> bool:
        """Say that the caller has the result. The run is over, its context inert.

        Servers call it at the last byte; call it when the result is stored durably for
        a caller who may have left.

        Returns:
            False when it was over: also by a binding deadline or grace that has passed.
        """
        now = self.clock.monotonic() if at is None else at
        with self._lock:
            latent, first = self.latent, self.delivered_at is None
            if latent and first:
                self.delivered_at = now
        if latent:
            if first:
                self._on_deliver.happened(self)
            return first
        self.absence.poll(now)
        if not self.token.finish(now):
            return False
        with self._lock:
            self.delivered_at, self.plain = now, False
        self._stop_timer()
        registry.notify("delivered", self)
        self._on_deliver.happened(self)
        return True

    def leave(self, *, at: float | None = None) -> None:
        """Say that the caller left; what follows is up to ``on_disconnect``.

        Servers call it; call it for whoever came back and left again. Acts on the whole
        run, also from a child. ``at`` as for :meth:`cancel`.
        """
        self.root.absence.leave(at)

    def reattach(self) -> bool:
        """Say that the caller is back: it counts as never having left.

        For the request that comes back; :func:`hangup.find_run` finds the run. Acts on
        the whole run, also from a child.

        Returns:
            Whether that was in time: the run is not over, nor its grace.
        """
        return self.root.absence.reattach()

    def begin_spending(self) -> None:
        """Leave latent: the run is measured and enforced from here on. Idempotent."""
        with self._lock:
            if not self.latent or self._beginning or self.delivered_at is not None:
                return
            if self.mode is Mode.OFF:
                return
            self._beginning = True
        # Callbacks first: they may name the run before anybody hears of it.
        while True:
            with self._lock:
                callbacks, self._on_spending = self._on_spending, []
                if not callbacks:
                    self.latent, pending = False, self._pending
                    break
            for callback in callbacks:
                guarded(callback)
        self.start()
        if pending is not None:
            cause, detail, effect = pending
            self.cancel(cause, detail, at=effect)
        self.absence.begin()

    def start(self) -> None:
        """Announce the run and arm its deadline. Called once, by the scope."""
        with self._lock:
            over = self.delivered_at is not None or self.closed_at is not None
            self.plain = not (over or self.settings.needs or self.settings.irreversible)
        registry.add(self)
        registry.notify("started", self)
        # First: who answers for the run may do so on another thread, and what observers
        # put on its span must be there before the span ends with that answer.
        self.token.on_cancel(self._abandoned, first=True)
        above = math.inf if self.parent is None else self.parent.deadline.at
        if self.token.binding and self.token.deadline.at < above:
            call_at = timer_of(self.clock, on_loop=self.work.loop is not None)
            self._timer.arm(call_at, self.token.deadline.at, weakly(self._poll))

    def close(self) -> None:
        """Note that the scope was left. Called once, by the scope."""
        if self.absence.left_at is not None:
            self.absence.close()
        self._stop_timer()
        with self._lock:
            self.closed_at, self.plain = self.clock.monotonic(), False
        registry.remove(self)
        if not self.latent:
            registry.notify("closed", self)
            self.work.settle_if_idle()

    def on_spending(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the run leaves latent; at once if it has."""
        with self._lock:
            if self.latent:
                self._on_spending.append(callback)
                return
        guarded(callback)

    def on_abandon(self, callback: Callable[[Run], None]) -> Callable[[], None]:
        """Call ``callback`` once when the run is abandoned; at once if it has been.

        Returns:
            A function that forgets the callback.
        """
        return self.token.on_cancel(lambda _abandonment: callback(self))

    def on_deliver(self, callback: Callable[[Run], None]) -> Callable[[], None]:
        """Call ``callback`` once when the run is delivered; at once if it has been.

        Returns:
            A function that forgets the callback.
        """
        return self._on_deliver.add(callback, self)

    @property
    def open_calls(self) -> int:
        """How many spending calls of this run are open."""
        return self.work.open_calls

    def _poll(self) -> None:
        # A loop's clock may run a moment ahead of ours (uvloop counts milliseconds).
        if self.token.poll() is None and self.token.waits:
            call_at = timer_of(self.clock, on_loop=self.work.loop is not None)
            self._timer.again(call_at, self.token.deadline.at, weakly(self._poll))

    def _abandoned(self, _abandonment: Abandonment) -> None:
        registry.notify("abandoned", self)
        self.work.abandoned()
        self._stop_timer()

    def _stop_timer(self) -> None:
        self._timer.stop()
        if self.absence.ever:
            self.absence.stop()
