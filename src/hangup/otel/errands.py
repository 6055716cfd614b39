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
import os
import threading
import uuid
import weakref
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from hangup import config
from hangup.config import Mode
from hangup.core.admission import admit
from hangup.core.cause import Cause
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.current import position
from hangup.core.deadline import Deadline
from hangup.core.scope import RunScope
from hangup.otel import board, wire
from hangup.otel.board import Post
from hangup.otel.notices import Notice, Outcome
from hangup.otel.propagator import outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangup.core.clock import Clock
    from hangup.core.remote import Verdict
    from hangup.core.run import Run
    from hangup.otel.board import Line

Where = TypeVar("Where")

_MOST_LINES: Final = 10_000

BOARD_HEADER: Final = "hangup-board"
"""Beside ``wire.HEADER``: where the sender keeps a line on the run."""

LOOKS: Final = 4
AGAIN: Final = 0.25

KIND: Final = "other"
"""The call kind of a task that wants to begin."""

OF_A_TASK: Final = "."


# The board key of each root: of what it sends, or of where it was sent to.
# Reentrant: a garbage collection may end a run in the middle of these.
_lock = threading.RLock()
_keys: weakref.WeakKeyDictionary[Run, str] = weakref.WeakKeyDictionary()
_continued: weakref.WeakSet[Run] = weakref.WeakSet()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  another thread of the parent may have held it
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Lines(Generic[Where]):
    """The lines that this process keeps for runs, and where; the latest 10,000.

    Thread-safe: each step is one of a dictionary's own.

    Args:
        scheme: What the origins of these lines begin with, for the settlement.
    """

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self._kept: OrderedDict[str, tuple[Where, Post, bool]] = OrderedDict()

    def open(self, run: Run, where: Where) -> Post | None:
        """Return the line to keep for a run; None where one is kept, here or there."""
        key, elsewhere = key_of(run)
        if elsewhere or key in self._kept:
            return None
        clock = run.clock
        left = run.root.deadline.remaining()
        post = Post(key, left, clock.monotonic(), clock.wall())
        self._kept[key] = (where, post, run.root.joined)
        if len(self._kept) > _MOST_LINES:
            self._kept.popitem(last=False)
        return post

    def origin_of(self, post: Post) -> str:
        """Return whom the settlement is to tell what became of the run."""
        return f"{self._scheme}:{post.key}"

    def close(self, origin: str, notice: Notice) -> tuple[Where, Post, str] | None:
        """Return where to write what, now that the fate of a run is known.

        None for a run that another process opened and that has failed here: whoever
        opened it may try again.
        """
        found = self._kept.pop(origin.partition(":")[2], None)
        if found is None:
            return None
        where, post, joined = found
        if joined and notice.cause is Cause.FAILED:
            return None
        return where, post, post.closed(notice, notice.clock.wall())


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

    def keys(self, task_id: str) -> list[str]:
        """Return where to look: the line of the run, and that of the task alone."""
        return [] if self.key is None else [self.key, task_key(self.key, task_id)]


def task_key(key: str, task_id: str) -> str:
    """Return where a line stands on one task: a part of its run may stop alone."""
    return f"{key}{OF_A_TASK}{task_id}"


def task_line(run: Run, task_id: str) -> tuple[Post, str] | None:
    """Return the line, and its text, on a task that is revoked alone.

    Returns:
        None where the line of the whole run says it.
    """
    abandonment = run.token.abandonment
    key, elsewhere = key_of(run)
    if abandonment is None or (run.parent is None and not elsewhere):
        return None
    clock = run.clock
    post = Post(task_key(key, task_id), math.inf, clock.monotonic(), clock.wall())
    at, cause = abandonment.at, abandonment.cause
    notice = Notice(run.id, Outcome.ABANDONED, cause, at, clock)
    return post, post.closed(notice, clock.wall())


def is_own(task_id: str) -> bool:
    """Whether a task's id is of this one task: made by the library, a UUID.

    A name that somebody gave may be another's by now, or stand for the next one too.
    Such a task is not revoked: the board stops it.
    """
    try:
        uuid.UUID(task_id)
    except ValueError:
        return False
    return True


def verdict(lines: Sequence[Line | None]) -> Line | None:
    """Return what the lines on a run and on its task come to."""
    if not lines:
        return None
    of_run, of_task = lines
    if of_task is None or of_task.cause is None:
        return of_run
    return replace(of_task, left=None if of_run is None else of_run.left)


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


def in_doubt(errand: Errand, line: Line | None, clock: Clock = SYSTEM_CLOCK) -> bool:
    """Whether only a wall clock says that the time is up, and a line may still come.

    It is written while the message is on its way. Look again ``LOOKS`` times, ``AGAIN``
    seconds apart, before the task is refused.
    """
    return errand.key is not None and line is None and left_of(errand, None, clock) <= 0


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


def begin(
    run: Run, errand: Errand, line: Line | None, killed: Verdict | None
) -> BaseException | None:
    """Note what is known of a run whose task begins; return what to raise instead.

    Args:
        run: The run, which has just been opened.
        errand: What arrived.
        line: What stands on the board.
        killed: What an operator has said on the bus, perhaps while nobody held the run.
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
    if killed is not None and killed.binds(run):
        run.cancel(killed.cause, killed.detail)
    return admit(run, KIND)


def told(run: Run, line: Line) -> None:
    """Act on what the board says of a run that goes on here."""
    if line.cause is not None:
        at = run.clock.monotonic() - line.ago
        run.cancel(line.cause, "told by the process that sent it", at=at)
    elif line.outcome == board.DELIVERED:
        run.deliver()
