"""Who is tied to whom: what a run has sent, and the runs that a worker works for.

See :mod:`hangup.otel.errands`.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from hangup.core.cause import Cause
from hangup.core.clock import SYSTEM_CLOCK
from hangup.otel import board, errands, settlement

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.clock import Clock
    from hangup.core.run import Run
    from hangup.otel.board import Line

_MOST_TIED: Final = 10_000
_MOST_WATCHED: Final = 10_000
_MOST_READ: Final = 500
_SOON: Final = 0.25
_NOT_SO_SOON: Final = 1.0


class Ties:
    """The tasks that live runs have sent, and may still be revoked. Thread-safe.

    Args:
        revoke: ``revoke(run, ids)`` when a run is abandoned that hangup stops, and for
            each task that it sends after that. Called outside locks; must not block.
    """

    def __init__(self, revoke: Callable[[Run, list[str]], None]) -> None:
        self._revoke = revoke
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child must."""
        # Reentrant: a garbage collection may end a run in the middle of these.
        self._lock = threading.RLock()
        self._sent: weakref.WeakKeyDictionary[Run, OrderedDict[str, None]] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, run: Run, task_id: str) -> None:
        """Tie a task to a run and the runs around it; of each the latest 10,000."""
        around: Run | None = run
        while around is not None:
            with self._lock:
                known = around in self._sent
                sent = self._sent.setdefault(around, OrderedDict())
                sent[task_id] = None
                if len(sent) > _MOST_TIED:
                    sent.popitem(last=False)
            if not known:
                around.on_abandon(self._abandoned)
            around = around.parent

    def done(self, run: Run, task_id: str) -> None:
        """Note that the result of a task is there: nothing is left to revoke."""
        around: Run | None = run
        while around is not None:
            with self._lock:
                sent = self._sent.get(around)
                if sent is not None:
                    sent.pop(task_id, None)
            around = around.parent

    def _abandoned(self, run: Run) -> None:
        with self._lock:
            sent = list(self._sent.pop(run, ()))
        if sent and (run.mode.refuses or run.cause is Cause.KILLED):
            self._revoke(run, sent)


class Watched:
    """The tied runs of a worker process whose fate is to be looked up. Thread-safe.

    A run is watched while its task is done, and then for as long as its books are held
    open.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child must."""
        # Reentrant: a garbage collection may end a run in the middle of these.
        self._lock = threading.RLock()
        self._runs: OrderedDict[str, tuple[weakref.WeakSet[Run], float]] = OrderedDict()

    def add(self, run: Run, *keys: str) -> None:
        """Watch a run under each of these keys."""
        with self._lock:
            for key in keys:
                runs, until = self._runs.pop(key, (weakref.WeakSet(), 0.0))
                runs.add(run)
                self._runs[key] = (runs, until)
            while len(self._runs) > _MOST_WATCHED:
                self._runs.popitem(last=False)

    def left(self, run: Run, *keys: str) -> None:
        """Note that the scope of a run was left; its books may still be open."""
        ends = 0.0
        if run.delivered_at is not None:
            ends = self._clock.monotonic() + settlement.hold_seconds(run)
        with self._lock:
            for key in keys:
                if key not in self._runs:
                    continue
                runs, until = self._runs[key]
                runs.discard(run)
                until = 0.0 if errands.OF_A_TASK in key else max(until, ends)
                if runs or until:
                    self._runs[key] = (runs, until)
                else:
                    del self._runs[key]

    @property
    def pause(self) -> float:
        """Seconds until the next look: soon where tasks run, not so for open books."""
        with self._lock:
            runs = any(len(runs) for runs, _ in self._runs.values())
        return _SOON if runs else _NOT_SO_SOON

    def due(self) -> list[str]:
        """Return what to look up now: at most 500 keys, those seen last at the end."""
        now = self._clock.monotonic()
        with self._lock:
            for key in [k for k, (runs, until) in self._runs.items() if not runs]:
                if self._runs[key][1] <= now:
                    del self._runs[key]
            keys = list(self._runs)[:_MOST_READ]
            for key in keys:
                self._runs.move_to_end(key)
        return keys

    def apply(self, key: str, line: Line | None) -> None:
        """Act on what stands under ``key``."""
        if line is None or line.outcome == board.OPEN:
            return
        with self._lock:
            runs, _ = self._runs.pop(key, ((), 0.0))
            alive = list(runs)
        for run in alive:
            errands.told(run, line)
        if errands.OF_A_TASK in key:
            return
        notice = {
            "token": key.partition("-")[0],
            "outcome": line.outcome,
            "cause": "none" if line.cause is None else line.cause.value,
            "ago_ms": round(line.ago * 1000),
        }
        settlement.receive([notice])
