"""The cancel token: a tree of stop signals under one clock.

Cancel once, the first cause wins, for ever. A child's deadline is the earlier of its
own and its parent's; a cancel flows down, never up. Nothing here is reversible, so
there are no states to reason about beyond open, abandoned and finished. What is still
open below a node that finishes goes on below the next one up.

Callbacks run outside every lock, on the thread that cancelled.
"""

from __future__ import annotations

import re
import secrets
import threading
import weakref
from typing import TYPE_CHECKING, Final

from hangup.core.cause import Abandonment, Cause
from hangup.core.guard import guarded, guarded_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.deadline import Deadline


# What retries look for in the text of an error; see hangup.errors.seconds.
_STATUS: Final = re.compile(r"4(?:08|09|25|29)|5(?:0[0234]|29)")


def new_token_id() -> str:
    """Return an unguessable id as 32 lower-case hex characters.

    Of the 128 bits a tenth of one is given up, so that it holds no HTTP status.
    """
    while _STATUS.search(token := secrets.token_hex(16)):
        pass
    return token


class CancelToken:
    """One node of the tree. Every method is thread-safe and none blocks.

    Args:
        deadline: The instant of this node.
        binding: Whether a passed deadline abandons it. Not so in observe mode, where
            a passed deadline is only a would-stop.
        parent: The node above; its deadline tightens this one's and its cancel comes
            down.

    Attributes:
        abandonment: The abandonment, if one was recorded; does not look at the clock.
            Read-only, and plain: it is read at the start of every spending call.
    """

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_children",
        "_finished",
        "_lock",
        "_owns_deadline",
        "abandonment",
        "binding",
        "deadline",
        "parent",
    )

    def __init__(
        self,
        deadline: Deadline,
        *,
        binding: bool = True,
        parent: CancelToken | None = None,
    ) -> None:
        self.deadline: Deadline = (
            deadline if parent is None else parent.deadline.tightened(deadline)
        )
        # A shared deadline belongs to the node that set it, and goes with it.
        self._owns_deadline = parent is None or self.deadline.at < parent.deadline.at
        self.binding: bool = binding
        self.parent = parent
        self._lock = threading.Lock()
        self.abandonment: Abandonment | None = None
        self._finished = False
        self._children: weakref.WeakSet[CancelToken] | None = None
        self._callbacks: list[Callable[[Abandonment], None]] = []
        if parent is not None:
            parent._adopt(self)  # noqa: SLF001  a node of the same tree

    @property
    def finished(self) -> bool:
        """Whether :meth:`finish` came first."""
        return self._finished

    @property
    def waits(self) -> bool:
        """Whether its deadline may still abandon it."""
        return self.binding and not self._finished and self.abandonment is None

    def loosen(self, lowered: Callable[[], None]) -> bool:
        """Call ``lowered``, which may change ``binding``, unless it is abandoned.

        Nothing abandons it in between: what was decided before is carried through.

        Returns:
            Whether that was done.
        """
        with self._lock:
            if self.abandonment is not None:
                return False
            lowered()
        return True

    def poll(self, now: float | None = None) -> Abandonment | None:
        """Return the abandonment, recording a binding deadline that has passed."""
        if self.abandonment is not None or self._finished:
            return self.abandonment
        if now is None:
            now = self.deadline.clock.monotonic()
        parent = self.parent
        above = None if parent is None else parent.poll(now)
        if above is not None:
            # Another thread may have recorded it a moment ago, on its way down to here.
            self._inherit(above)
        elif self.binding and self._owns_deadline and now >= self.deadline.at:
            self._record(Abandonment(Cause.DEADLINE, "", self.deadline.at, now))
        return self.abandonment

    def cancel(
        self,
        cause: Cause,
        detail: str = "",
        *,
        at: float | None = None,
        now: float | None = None,
    ) -> bool:
        """Abandon this node and everything below it; the first cause wins.

        Args:
            cause: Why.
            detail: Free text.
            at: T0, when the cause took effect; now if None, never later than now.
            now: The present instant, where the caller has just read the clock.

        Returns:
            Whether this call abandoned the node with ``cause``. Past a binding
            deadline it did not: the record says ``deadline``.
        """
        if now is None:
            now = self.deadline.clock.monotonic()
        if self.poll(now) is not None:
            return False
        effect = now if at is None else min(at, now)
        return self._record(Abandonment(cause, detail, effect, now))

    def finish(self, now: float | None = None) -> bool:
        """Close the node as done; later cancels do nothing.

        Returns:
            False when it was abandoned (also by a binding deadline passed by now) or
            finished before.
        """
        if self.poll(now) is not None:
            return False
        with self._lock:
            if self._finished or self.abandonment is not None:
                return False
            self._finished = True
            self._callbacks.clear()
            children = list(self._children or ())
            self._children = None
        for child in children:
            child._rise(self.parent)  # noqa: SLF001  a node of the same tree
        return True

    def on_cancel(
        self, callback: Callable[[Abandonment], None], *, first: bool = False
    ) -> Callable[[], None]:
        """Call ``callback`` once when the node is abandoned; at once if it has been.

        Args:
            callback: Gets the abandonment.
            first: Before those that were there already.

        Returns:
            A function that forgets the callback. Idempotent.
        """
        with self._lock:
            abandonment = self.abandonment
            if abandonment is None and not self._finished:
                self._callbacks.insert(0 if first else len(self._callbacks), callback)
        if abandonment is not None:
            guarded(callback, abandonment)

        def forget() -> None:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)

        return forget

    def _rise(self, parent: CancelToken | None) -> None:
        """Go on below ``parent``: the node between has finished."""
        self.parent = parent
        if parent is not None:
            parent._adopt(self)  # noqa: SLF001  a node of the same tree

    def _adopt(self, child: CancelToken) -> None:
        with self._lock:
            abandonment, finished = self.abandonment, self._finished
            if abandonment is None and not finished:
                if self._children is None:
                    self._children = weakref.WeakSet()
                self._children.add(child)
        if abandonment is not None:
            child._inherit(abandonment)
        elif finished:
            child._rise(self.parent)

    def _inherit(self, above: Abandonment) -> None:
        # A tighter deadline of this node's own that passed before the cause above took
        # effect is the earlier truth.
        if self.binding and self.deadline.at < above.at:
            own = Abandonment(Cause.DEADLINE, "", self.deadline.at, above.noticed_at)
            self._record(own)
        else:
            self._record(
                Abandonment(
                    above.cause,
                    above.detail,
                    above.at,
                    above.noticed_at,
                    inherited=True,
                )
            )

    def _record(self, abandonment: Abandonment) -> bool:
        with self._lock:
            if self._finished or self.abandonment is not None:
                return False
            self.abandonment = abandonment
            callbacks, self._callbacks = self._callbacks, []
            children = list(self._children or ())
            self._children = None
        # Children first: when a callback of this node runs, the whole tree agrees.
        try:
            heirs = [child._inherit for child in children]  # noqa: SLF001  of one tree
            guarded_each(heirs, abandonment)
        finally:
            guarded_each(callbacks, abandonment)
        return True
