"""One RPC on its way: what it carries, how long it may take, and its stop.

What is done where an RPC leaves, past every interceptor. The same for ``grpc`` and
``grpc.aio``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry import propagate

from hangup.clients.grpc_settle import settled_by
from hangup.clients.grpc_targets import target_allowed
from hangup.config import Mode
from hangup.core.admission import owner_of_cause, stop_here
from hangup.core.current import position
from hangup.core.guard import guarded
from hangup.core.tree import current_task
from hangup.otel import carriers, wire
from hangup.otel.luggage import MAX_LENGTH
from hangup.otel.notices import SETTLE_HEADER
from hangup.otel.propagator import outgoing, run_in

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from hangup.core.run import Run

    Pairs = Iterable[tuple[str, str | bytes]]

# How early gRPC's own timer may come, by our clock: its milliseconds are rounded.
_EARLY: Final = 0.1


class Hop:
    """One RPC. Its methods never raise.

    Args:
        target: Where it goes, as the channel was told.

    Attributes:
        run: The run it is for, None where there is none that hangup acts for.
        clamped: It has less time than its caller gave it, because the run has.
        cut: It was cancelled because the run stopped.
    """

    __slots__ = ("_allowed", "_carried", "_forget", "_target", "clamped", "cut", "run")

    def __init__(self, target: str) -> None:
        self._target = target
        self._allowed = target_allowed(target)
        self._carried = run_in()
        self.run: Run | None = self._bound()
        self.clamped: bool = False
        self.cut: bool = False
        self._forget: Callable[[], None] | None = None

    def _bound(self) -> Run | None:
        """Return the run whose stop ends the RPC.

        What begins once that has come is somebody's clean-up, or says in its metadata
        that nobody waits for it.
        """
        run, here = self._carried, position()
        if run is None or run.latent or (here is not None and here.shield is not None):
            return None
        return run if run.abandonment is None else None

    @property
    def matters(self) -> bool:
        """Whether there is a run, and so more to do than to send."""
        return self._carried is not None

    @property
    def interruptible(self) -> bool:
        """Whether the run may stop it while it is under way."""
        return self.run is not None and self.run.mode is Mode.ENFORCE

    def metadata(self, given: Pairs | None) -> list[tuple[str, str | bytes]]:
        """Return the metadata to send: with the run as it stands now, or no trace."""
        pairs = [(key, value) for key, value in given or ()]
        carriers.strip(pairs)
        run = self._carried
        if run is None or not self._allowed:
            return pairs
        header, entries = wire.encode(outgoing(run))
        if wire.BAGGAGE in propagate.get_global_textmap().fields:
            _add_baggage(pairs, entries)
        pairs.append((wire.HEADER, header))
        return pairs

    def timeout(self, given: float | None) -> float | None:
        """Return the seconds it may take: the run's where they are fewer."""
        run = self.run
        if run is None or run.mode is not Mode.ENFORCE or not run.deadline.is_set:
            return given
        left = max(0.0, run.remaining())
        here = position()
        if here is not None and here.drain is not None:
            left += here.drain.budget  # it may go on for so long after the deadline
        if given is not None and given <= left:
            return given
        self.clamped = True
        return left

    def watch(self, cancel: Callable[[], object]) -> None:
        """Cancel the RPC when the run stops.

        Args:
            cancel: Does it, from any thread, once.
        """
        run, here = self.run, position()
        if run is None or (here is not None and here.drain is not None):
            return

        def stopped(run: Run) -> None:
            if owner_of_cause(run).work.acts:
                self.cut = True
                cancel()

        self._forget = run.on_abandon(stopped)

    def over(self, trailing: Pairs | None) -> None:
        """Note that the RPC has ended, with this metadata."""
        forget, self._forget = self._forget, None
        if forget is not None:
            forget()
        run = self._carried
        if run is None or not self._allowed:
            return
        held = any(key == SETTLE_HEADER for key, _ in trailing or ())
        settled_by(run, self._target, held=held)

    def patience(self, *, timed_out: bool) -> float:
        """Return for how many seconds to wait before ``stop`` is asked."""
        run = self.run
        if run is None or not (timed_out and self.clamped):
            return 0.0
        left = run.deadline.remaining()
        return max(0.0, left) if left < _EARLY else 0.0

    def stop(self, *, cancelled: bool = False) -> BaseException | None:
        """Return what to raise in place of the RPC's error, None where that stands.

        Args:
            cancelled: The error is an ``asyncio.CancelledError``.
        """
        run = self.run
        if run is None:
            return None
        if cancelled:
            task = current_task()
            if not self.cut or task is None or _is_cancelled(task, run):
                return None
        found = guarded(lambda: stop_here(run, under_way=True))
        return found if isinstance(found, BaseException) else None


def _is_cancelled(task: asyncio.Task[Any], run: Run) -> bool:
    """Whether the task itself was cancelled, by us or by anybody."""
    return task.cancelling() > 0 or run.work.tree.signalled(task)


def _add_baggage(pairs: list[tuple[str, str | bytes]], own: str) -> None:
    """Put our entries before what baggage there is, where that fits."""
    for number, (key, value) in enumerate(pairs):
        if key.lower() == wire.BAGGAGE:
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            if len(own) + 1 + len(text) <= MAX_LENGTH:
                pairs[number] = (key, f"{own},{text}")
            return
    pairs.append((wire.BAGGAGE, own))
