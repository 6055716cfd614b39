"""Work that is sent to a queue: when it is tied to a run, and what that means.

A task is **tied** to the run that sends it where somebody of that run may wait for its
result. It carries the run's token and deadline, it is not begun once the run has
stopped, and it is revoked when the run stops. It is not tied, and carries nothing,

- outside a run, inside ``hangup.detached()``, and inside ``hangup.cleanup`` or
  ``hangup.irreversible``: what is sent there is to be done whatever comes;
- where nobody can wait for it: its result is ignored, or there is no result backend;
- where its name is in ``HANGUP_IRREVERSIBLE``;
- in a run that a server opened and that has made no spending call: nobody's business.

A tied task whose run was delivered first was not waited for after all: it goes on as
background work, without a deadline, never refused and never waste.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hangup import config
from hangup.config import Mode
from hangup.core.admission import admit
from hangup.core.cause import Cause
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.current import position
from hangup.core.deadline import Deadline
from hangup.core.scope import RunScope
from hangup.otel import board, settlement, wire
from hangup.otel.propagator import outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.clock import Clock
    from hangup.core.run import Run
    from hangup.otel.board import Line

BOARD_HEADER: Final = "hangup-board"
"""Beside ``wire.HEADER``: where the sender keeps a line on the run."""

KIND: Final = "other"
"""The call kind of a task that wants to begin."""

_MOST_TIED: Final = 10_000
_MOST_WATCHED: Final = 10_000
_MOST_READ: Final = 500
_SOON: Final = 0.25
_NOT_SO_SOON: Final = 1.0

# The board key of each root: of what it sends, or of where it was sent to.
_lock = threading.Lock()
_keys: weakref.WeakKeyDictionary[Run, str] = weakref.WeakKeyDictionary()
_continued: weakref.WeakSet[Run] = weakref.WeakSet()


def tied_run(task: str) -> Run | None:
    """Return the run that a task sent here and now is tied to, if any.

    Whether its result may be awaited is for the caller to say. Thread-safe.
    """
    here = position()
    run = None if here is None else here.run
    if here is None or run is None or here.shield is not None:
        return None
    if run.inert or run.root.latent or run.mode is Mode.OFF:
        return None
    return None if task in config.current().irreversible else run


def key_of(run: Run) -> tuple[str, bool]:
    """Return the board key of the run, and whether it is kept elsewhere."""
    root = run.root
    with _lock:
        key = _keys.get(root)
        if key is None:
            key = _keys[root] = board.new_key(root.id)
        return key, root in _continued


def headers(run: Run) -> dict[str, str]:
    """Return what a tied message carries, made fresh."""
    key, _ = key_of(run)
    return {wire.HEADER: wire.encode_header(outgoing(run)), BOARD_HEADER: key}


@dataclass(frozen=True, slots=True)
class Errand:
    """A tied task, as it arrived.

    Attributes:
        inbound: The run.
        key: Where its line stands; None where the sender keeps none.
    """

    inbound: wire.Inbound
    key: str | None

    @property
    def token(self) -> str:
        """The run's id."""
        return self.inbound.token


def read(get: Callable[[str], object]) -> Errand | None:
    """Read the headers of a message; None where it is not tied. Never raises.

    Args:
        get: Returns a header, or None.
    """
    header = get(wire.HEADER)
    if not isinstance(header, str):
        return None
    inbound = wire.decode_header(header)
    if inbound is None:
        return None
    key = get(BOARD_HEADER)
    found = (
        key if isinstance(key, str) and board.is_key_of(key, inbound.token) else None
    )
    return Errand(inbound, found)


def left_of(errand: Errand, line: Line | None, clock: Clock = SYSTEM_CLOCK) -> float:
    """Return how many seconds the task has, from now; ``math.inf`` for no deadline.

    The board's own clock tells, where there is a line. Otherwise the time in the queue
    is what wall clocks make of it, and never less than nothing.
    """
    limit = config.current().max_budget
    most = math.inf if limit is None else limit
    left = errand.inbound.left
    if left is None:
        return most
    if line is not None and line.left is not None:
        return min(most, left, line.left)
    ahead = wire.skew_of(errand.inbound, clock)
    waited = 0.0 if ahead is None else max(0.0, -ahead)
    return min(most, left - waited)


def is_over(line: Line | None) -> bool:
    """Whether the run had its answer without the task, which so is background work."""
    return line is not None and line.outcome == board.DELIVERED


def scope(
    errand: Errand, line: Line | None, name: str, clock: Clock = SYSTEM_CLOCK
) -> RunScope:
    """Return the scope in which the task is done. Say ``deliver`` of it yourself.

    Its mode is the sender's, under the ceiling of ``HANGUP_MODE`` here.
    """
    mode = errand.inbound.mode or Mode.OBSERVE
    now = clock.monotonic()
    left = left_of(errand, line, clock)
    return RunScope(
        name=name,
        mode=Mode.OBSERVE if mode is Mode.OFF else mode,
        deadline=Deadline(now + max(0.0, left), clock),
        token=errand.token,
        joined=True,
        server=True,
        clock=clock,
    )


def begin(run: Run, errand: Errand, line: Line | None) -> BaseException | None:
    """Note what is known of a run whose task begins; return what to raise instead.

    Args:
        run: The run, which has just been opened.
        errand: What arrived.
        line: What stands on the board.
    """
    if errand.key is not None:
        with _lock:
            _keys[run] = errand.key
            _continued.add(run)
    gone = errand.inbound.gone
    if line is not None and line.cause is not None:
        told(run, line)
    elif gone is not None:
        at = run.clock.monotonic() - gone
        run.cancel(Cause.DISCONNECT, "abandoned upstream", at=at)
    return admit(run, KIND)


def told(run: Run, line: Line) -> None:
    """Act on what the board says of a run that goes on here."""
    if line.cause is not None:
        at = run.clock.monotonic() - line.ago
        run.cancel(line.cause, "told by the process that sent it", at=at)
    elif line.outcome == board.DELIVERED:
        run.deliver()


class Ties:
    """The tasks that live runs have sent, and may still be revoked. Thread-safe.

    Args:
        revoke: ``revoke(run, ids)`` when a run is abandoned that hangup stops. Called
            once per run, outside locks; must not block.
    """

    def __init__(self, revoke: Callable[[Run, list[str]], None]) -> None:
        self._revoke = revoke
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child must."""
        self._lock = threading.Lock()
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
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, tuple[weakref.WeakSet[Run], float]] = OrderedDict()

    def add(self, run: Run, key: str) -> None:
        """Watch a run."""
        with self._lock:
            runs, until = self._runs.pop(key, (weakref.WeakSet(), 0.0))
            runs.add(run)
            self._runs[key] = (runs, until)
            if len(self._runs) > _MOST_WATCHED:
                self._runs.popitem(last=False)

    def left(self, run: Run, key: str) -> None:
        """Note that the scope of a run was left; its books may still be open."""
        with self._lock:
            found = self._runs.get(key)
            if found is None:
                return
            runs, until = found
            runs.discard(run)
            if run.delivered_at is not None:
                until = max(
                    until, self._clock.monotonic() + settlement.hold_seconds(run)
                )
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
            told(run, line)
        notice = {
            "token": key.partition("-")[0],
            "outcome": line.outcome,
            "cause": "none" if line.cause is None else line.cause.value,
            "ago_ms": round(line.ago * 1000),
        }
        settlement.receive([notice])
