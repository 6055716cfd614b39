"""The worker's side of Celery; see :mod:`hangup.clients.celery`."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from wrapt import register_post_import_hook

from hangup import config
from hangup.clients.celery_board import look
from hangup.core import remote
from hangup.core.guard import guarded
from hangup.errors import RunAbandoned
from hangup.otel import errands
from hangup.otel.ties import Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hangup.core.run import Run
    from hangup.otel.errands import Errand

_TRACE: Final = "celery.app.trace"
_MARK: Final = "_hangup_original"
_RUN: Final = "_hangup_run"

_logger = logging.getLogger("hangup")


class _State:
    active = False
    hooked = False


# Tying the body of every task


def _mend(module: Any) -> None:
    """Wrap what prepares a task for a worker: it asks for the body once, there."""
    original = module.build_tracer
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def build_tracer(name: str, task: Any, *args: Any, **kwargs: Any) -> Any:
        if _State.active:
            guarded(_wrap, task)
        return original(name, task, *args, **kwargs)

    setattr(build_tracer, _MARK, original)
    module.build_tracer = build_tracer


def _imported(module: Any) -> None:
    if _State.active:
        guarded(_mend, module)


def _wrap(task: Any) -> None:
    body = task.run
    if getattr(body, _MARK, None) is not None:
        return

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        errand = guarded(_errand, task) if _State.active else None
        if errand is None:
            return body(*args, **kwargs)
        return _do(task, errand, functools.partial(body, *args, **kwargs))

    setattr(run, _MARK, body)
    task.run = run


def _errand(task: Any) -> Errand | None:
    """Return what the task is done for; None where it is not tied, or just called."""
    request = task.request
    if request.called_directly or request.is_eager or request.id is None:
        return None
    if request.__dict__.get(_MARK):  # it calls its own body
        return None
    custom = request.headers or {}

    def header(name: str) -> object:
        return getattr(request, name, None) or custom.get(name)

    errand = errands.read(header)
    if errand is not None:
        request.__dict__[_MARK] = True
    return errand


def _do(task: Any, errand: Errand, body: Callable[[], Any]) -> Any:
    """Do a tied task, or see that it is not done.

    Raises:
        Ignore: It was not begun, or was stopped: its state says so by now.
    """
    request = task.request
    keys = errand.keys(request.id)
    line = errands.verdict(look(task.app, keys))
    for _ in range(errands.LOOKS):
        if not errands.in_doubt(errand, line):
            break
        time.sleep(errands.AGAIN)
        line = errands.verdict(look(task.app, keys))
    if errands.is_over(line):
        return body()
    killed = remote.verdict(errand.token)
    try:
        with errands.scope(errand, line, task.name) as run:
            request.__dict__[_RUN] = run
            if (refusal := errands.begin(run, errand, line, killed)) is not None:
                raise refusal
            with _watched(task.app, run, keys):
                try:
                    result = body()
                except Exception as error:
                    if _goes_again(error):
                        run.deliver()
                    raise
                run.deliver()
                return result
    except RunAbandoned as error:
        if error.run_id != errand.token:
            raise
        raise _revoked(task, request.id, error) from None


def _goes_again(error: Exception) -> bool:
    """Whether it only tells Celery what to do next, and nothing has failed."""
    exceptions = sys.modules["celery.exceptions"]
    return isinstance(error, (exceptions.Retry, exceptions.Ignore, exceptions.Reject))


def _revoked(task: Any, task_id: str, error: RunAbandoned) -> Exception:
    """Store the state of a task that is not done; return what tells Celery so."""
    reason = f"hangup: {error}"
    try:
        task.backend.mark_as_revoked(task_id, reason, request=task.request)
    except Exception:
        _logger.exception("the state of the revoked task %s was not stored", task_id)
    _logger.info("Task %s[%s] is not done: %s", task.name, task_id, error)
    ignore: Exception = sys.modules["celery.exceptions"].Ignore(reason)
    return ignore


def run_of_step(app: Any, name: str) -> Run | None:
    """Return the run of the task whose end sends the next one, if that is what sends.

    Of a chain every step belongs to the run that sent the first.
    """
    task = app.current_worker_task
    run: Run | None = None if task is None else task.request.__dict__.get(_RUN)
    return None if name in config.current().irreversible else run


# Looking what became of the runs


class _Watch:
    """One daemon thread that looks at the boards while there is anything to look up."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._running = False
        self._of: weakref.WeakKeyDictionary[Any, Watched] = weakref.WeakKeyDictionary()

    def of(self, app: Any) -> Watched:
        with self._lock:
            found = self._of.get(app)
            if found is None:
                found = self._of[app] = Watched()
            return found

    def wake(self) -> None:
        with self._lock:
            if self._running:
                return
            self._running = True
        thread = threading.Thread(target=self._work, name="hangup-watch", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter goes down
            self._running = False

    def _work(self) -> None:
        while True:
            with self._lock:
                boards = list(self._of.items())
            time.sleep(min((of.pause for _, of in boards), default=0.0))
            with self._lock:
                # Anew: one may have come meanwhile, and has seen that we run.
                due = [(app, of, of.due()) for app, of in self._of.items()]
                if not any(keys for *_, keys in due):
                    self._running = False
                    return
            for app, watched, keys in due:
                for key, line in zip(keys, look(app, keys), strict=True):
                    guarded(watched.apply, key, line)


_watch: Final = _Watch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.reset)


@contextlib.contextmanager
def _watched(app: Any, run: Run, keys: Sequence[str]) -> Iterator[None]:
    if not keys:
        yield
        return
    watched = _watch.of(app)
    watched.add(run, *keys)
    _watch.wake()
    try:
        yield
    finally:
        watched.left(run, *keys)


# Installing

_PREPARING: Final = (_TRACE, "celery.worker.consumer.consumer")
"""Where the function is, and who has it from there by its name."""


def install() -> None:
    """Tie what is done from now on; a worker that has begun is prepared anew."""
    _State.active = True
    if not _State.hooked:
        _State.hooked = True
        for name in _PREPARING:
            register_post_import_hook(_imported, name)
    for name in _PREPARING:
        if name in sys.modules:
            guarded(_mend, sys.modules[name])
    trace = sys.modules.get(_TRACE)
    if trace is None:
        return
    for app in sys.modules["celery._state"]._get_active_apps():  # noqa: SLF001
        for name, task in (app._tasks or {}).items() if app.finalized else ():  # noqa: SLF001
            if task.__trace__ is not None and not hasattr(task.run, _MARK):
                hostname = trace.gethostname()
                task.__trace__ = trace.build_tracer(
                    name, task, app.loader, hostname, app=app
                )


def uninstall() -> None:
    """Do every task as it is written again. Idempotent."""
    _State.active = False
    for name in _PREPARING:
        original = getattr(sys.modules.get(name), "build_tracer", None)
        if (inner := getattr(original, _MARK, None)) is not None:
            sys.modules[name].__dict__["build_tracer"] = inner
