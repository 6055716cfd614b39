"""Threads and pools: what is handed to another thread keeps its run.

Python gives a pool or a thread no context, so run and deadline would be gone there.
Here each piece of work that is handed over inside a run gets the submitter's place in
it, and the OpenTelemetry context, for as long as it runs. It gets nothing else: what a
pool's initializer set up in its threads stays. The threads of a pool themselves are
born outside of every run: they serve others.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry import context as context_api

from hangup.core import registry
from hangup.core.admission import owner_of_cause
from hangup.core.current import POSITION, Position, enter, position
from hangup.core.guard import guarded
from hangup.core.threads import COUNTED
from hangup.errors import RunAbandoned, Stop
from hangup.otel.context import POSITION_KEY
from hangup.otel.patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run

# Whose threads serve everybody, whoever came first: pools, loops, exporters.
_FOR_ALL: Final = frozenset({
    "anyio",
    "asyncio",
    "concurrent",
    "hangup",
    "logging",
    "multiprocessing",
    "opentelemetry",
    "trio",
})  # fmt: skip


class _Born(Position):
    """The place of a thread that was started in a run.

    Who lives on may be a worker that was started lazily in somebody's request, and
    serves others. So it holds no run that ended well; and out of one that was stopped
    it goes as soon as it takes its next work from a queue.
    """

    __slots__ = ("_kept", "_line", "_waiting", "context")

    def __init__(self, around: Position, *, daemon: bool) -> None:
        # A daemon that is started where nobody spends is no agent's: it is lent no
        # span, or all that it does while it lives would stand in that request's trace.
        run = around.run
        bare = daemon and run is not None and run.root.latent
        here = context_api.Context() if bare else None
        self.context = context_api.set_value(POSITION_KEY, self, here)
        self._kept: Run | None = None
        self._line: tuple[weakref.ref[Run], ...] = ()
        self._waiting = False
        super().__init__(run, around.shield, around.drain)

    @property
    def held(self) -> Run | None:
        """The innermost run that is open, or was stopped."""
        if self._kept is not None:
            return self._kept
        alive = (reference() for reference in self._line)
        return next((run for run in alive if run is not None), None)

    @held.setter
    def held(self, run: Run | None) -> None:
        self._kept = None
        line = []
        while run is not None:
            line.append(weakref.ref(run))
            run = run.parent
        self._line = tuple(line)

    def stopped(self, run: Run) -> None:
        """Stay in a run that is stopped: what goes on for it is refused and booked."""
        if run.work.encloses(self.held):
            self._kept = self.held

    def take(self, get: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Take something from a queue."""
        self._waiting = True
        try:
            return get(*args, **kwargs)
        finally:
            self._waiting = False
            self.move_on()
            if self.held is None and context_api.get_current() is self.context:
                context_api.attach(context_api.Context())

    def closed(self) -> None:
        """Note that a run was left."""
        if self._waiting:
            self.move_on()

    def move_on(self) -> None:
        """Leave the runs that are over."""
        run = now = self.held
        while now is not None and now.closed_at is not None:
            now = now.parent
        if now is not run:
            self.held = now


class _Births(registry.RunObserver):
    """The threads that were born in runs, while they live."""

    def __init__(self) -> None:
        self.living: set[_Born] = set()

    def abandoned(self, run: Run) -> None:
        """Have them stay in it."""
        for one in tuple(self.living):
            one.stopped(run)

    def closed(self, run: Run) -> None:  # noqa: ARG002  whichever it was
        """Have those that are idle leave it."""
        for one in tuple(self.living):
            one.closed()


_births = _Births()


class _Carried:
    """A function that runs at the place where it was handed over. Thread-safe.

    A stop that leaves it does so as an ordinary error: a ``BaseException`` would kill
    the worker, and hang a pool.
    """

    __slots__ = ("_context", "_function", "_position")

    def __init__(self, function: Callable[..., Any], here: Position) -> None:
        self._function = function
        self._position = here
        self._context = context_api.get_current()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _Stay(self._position, self._context) as stay:
            try:
                return self._function(*args, **kwargs)
            except (Stop, asyncio.CancelledError) as signal:
                error = stay.ordinary(signal)
                if error is None:
                    raise
                raise error from signal


class _Stay:
    """A thread at a place in a run, for the body of a ``with``."""

    __slots__ = ("_before", "_context", "_position", "_run", "_token")

    def __init__(self, here: Position, context: Any, *, counted: bool = True) -> None:
        run = here.run
        self._position = here
        self._context = context
        # Nobody can interrupt it: until it ends, the run has not settled.
        self._run = run if counted and run is not None and not run.inert else None

    def __enter__(self) -> Self:
        self._before = POSITION.get()
        POSITION.set(self._position)
        self._token = context_api.attach(self._context)
        if self._run is not None:
            guarded(self._run.work.thread_changed, 1)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._run is not None:
            guarded(self._run.work.thread_changed, -1)
        context_api.detach(self._token)
        POSITION.set(self._before)

    def ordinary(self, error: BaseException) -> RunAbandoned | None:
        """Return the ordinary error for a stop of the run, None for anything else."""
        run = self._position.run
        if run is None or run.token.abandonment is None:
            return None
        if isinstance(error, RunAbandoned):
            return error if error.run_id == run.id else None
        if isinstance(error, Stop) or owner_of_cause(run).work.acts:
            return run.error()
        return None  # a cancel of their own


class _Run:
    """Stands in for the ``run`` of one thread until that begins."""

    __slots__ = ("_before", "_position", "_thread")

    def __init__(self, thread: threading.Thread, here: _Born) -> None:
        self._thread: threading.Thread | None = thread
        self._position = here
        self._before = vars(thread).get("run")
        thread.run = self  # type: ignore[method-assign]  # also where it is overridden

    def take_back(self) -> threading.Thread | None:
        """Give the thread its own ``run`` back; return the thread, the first time."""
        thread, self._thread = self._thread, None
        if thread is not None and vars(thread).get("run") is self:
            if self._before is None:
                del thread.run
            else:
                thread.run = self._before  # type: ignore[method-assign]
        return thread

    def __call__(self) -> None:
        thread = self.take_back()
        if thread is None:
            return
        here = self._position
        del self
        # A daemon's own life says nothing: its open calls do.
        _births.living.add(here)
        with _Stay(here, here.context, counted=not thread.daemon) as stay:
            try:
                thread.run()
            except (Stop, asyncio.CancelledError, RunAbandoned) as error:
                # Nobody waits for what a thread raises: the stop ends here, silently.
                if stay.ordinary(error) is None:
                    raise
            finally:
                _births.living.discard(here)


def _place() -> Position | None:
    """Return the position here, None outside any run: the one check there."""
    here = position()
    return None if here is None or here.run is None or here.run.inert else here


def _is_for_all(thread: threading.Thread) -> bool:
    says = next(cls for cls in type(thread).__mro__ if "run" in vars(cls))
    does = getattr(thread, "_target", None) if says is threading.Thread else says
    name = getattr(does, "__module__", None) or ""
    return name.partition(".")[0] in _FOR_ALL


def _lend(thread: threading.Thread) -> _Run | None:
    """Give a thread that is about to start the place here, or none in any run."""
    here = _place()
    if here is None:
        return None
    for_all = _is_for_all(thread)
    born = Position(None) if for_all else _Born(here, daemon=thread.daemon)
    # OpenTelemetry's own instrumentation of threads has taken its copy already.
    if (copied := vars(thread).get("_otel_context")) is not None:
        copied = context_api.set_value(POSITION_KEY, born, copied)
        vars(thread)["_otel_context"] = copied
    return _Run(thread, born) if isinstance(born, _Born) else None


def _start(original: Any, patch: Patch) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        lent = guarded(_lend, self) if patch.active else None
        if lent is None:
            original(self)
            return
        try:
            original(self)
        except BaseException:
            lent.take_back()  # no more threads, or this one was started before
            raise

    return start


def _hand_over(original: Any, patch: Patch) -> Callable[..., Any]:
    """Wrap a method of a pool whose first argument, ``func``, is what to call."""

    @functools.wraps(original)
    def hand_over(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        here = _place() if patch.active else None
        if here is None:
            return original(self, *args, **kwargs)
        if args and not COUNTED.get():
            args = (_Carried(args[0], here), *args[1:])
        elif "func" in kwargs and not args:
            kwargs["func"] = _Carried(kwargs["func"], here)
        # It may start a thread.
        leave = enter(Position(None))
        try:
            return original(self, *args, **kwargs)
        finally:
            leave()

    return hand_over


def _get(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def get(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        here = POSITION.get() if patch.active else None
        if isinstance(here, _Born):
            return here.take(original, self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return get


_PATCHES: Final = (
    Patch(queue.Queue, "get", _get),
    Patch(threading.Thread, "start", _start),
    Patch(ThreadPoolExecutor, "submit", _hand_over),
    # All the others (map, starmap, apply) go through these.
    Patch(ThreadPool, "apply_async", _hand_over),
    Patch(ThreadPool, "_map_async", _hand_over),
    Patch(ThreadPool, "imap", _hand_over),
    Patch(ThreadPool, "imap_unordered", _hand_over),
)


def install() -> None:
    """Have threads and pools carry the run. Idempotent."""
    registry.add_observer(_births)
    for patch in _PATCHES:
        patch.apply()


def uninstall() -> None:
    """Take it back; what runs keeps its place to its end. Idempotent."""
    for patch in _PATCHES:
        patch.revert()
    registry.remove_observer(_births)
