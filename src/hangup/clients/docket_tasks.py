"""The worker's side of docket; see :mod:`hangup.clients.docket`."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import json
import math
import time
import weakref
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hangup.core import remote
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.guard import guarded
from hangup.errors import RunAbandoned
from hangup.otel import board, errands, wire
from hangup.otel.once import warn_once
from hangup.otel.ties import Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from hangup.core.run import Run
    from hangup.otel.board import Line
    from hangup.otel.errands import Errand
    from hangup.otel.patch import Patch

    Done = Coroutine[Any, Any, Any]

_ATTRIBUTE: Final = "_hangup"
_DAY: Final = 86_400  # seconds
_WHEN: Final = "when"
_LOOK: Final = 1.0
"""Seconds that a task which was cut waits, at most, to hear why."""

_now: ContextVar[tuple[Any, str, Errand] | None] = ContextVar(
    "hangup.docket", default=None
)


def board_name(docket: Any, key: str) -> str:
    """Return where a line stands in the docket's Redis."""
    name: str = docket.key(f"hangup:{key}")
    return name


async def look(docket: Any, keys: Sequence[str]) -> list[Line | None]:
    """Return what stands under each key; None for all where it cannot be read."""
    lines = []
    try:
        async with docket.redis() as redis:
            for key in keys:
                name = board_name(docket, key)
                text, asked = await redis.get(name), time.monotonic()
                ttl = await redis.pttl(name)
                # Redis answers at once; it is a busy loop that reads it late.
                left = max(ttl, 0) / 1000 - (time.monotonic() - asked)
                lines.append(board.read(text, left, time.time()))
    except Exception as error:  # noqa: BLE001  Redis is down: the deadline still holds
        warn_once(
            "docket board",
            "Redis could not be asked for runs: %r; tasks go on under the deadline "
            "they came with (said once per process)",
            error,
        )
        return [None for _ in keys]
    return lines


# What arrives


def _from_message(original: Any, patch: Patch) -> Any:
    # A class method, which is patched as it is found on the class: bound.
    make = original.__func__ if isinstance(original, classmethod) else original

    async def from_message(
        cls: Any, docket: Any, message: Any, *a: Any, **kw: Any
    ) -> Any:
        execution = await make(cls, docket, message, *a, **kw)
        if patch.active:
            guarded(_note, execution, message)
        return execution

    functools.update_wrapper(from_message, make)
    return classmethod(from_message)


def _note(execution: Any, message: dict[bytes, bytes]) -> None:
    def header(name: str) -> str | None:
        value = message.get(name.encode())
        return None if value is None else value.decode("latin-1")

    errand = errands.read(header)
    if errand is not None:
        _keep(execution, errand)


def _keep(execution: Any, errand: Errand) -> None:
    # Found out now: the time the worker takes until it begins counts too.
    at = SYSTEM_CLOCK.monotonic() + errands.left_of(errand, None)
    setattr(execution, _ATTRIBUTE, (errand, at))


async def park(
    docket: Any, message: dict[bytes, bytes], headers: dict[str, str]
) -> None:
    """Keep the headers of a task that waits for its time, as a delayed retry does.

    Of its message docket (0.27) hands on what it wrote itself, and drops the rest.
    """
    inbound = wire.decode_header(headers[wire.HEADER])
    left = None if inbound is None else inbound.left
    text = json.dumps({**headers, _WHEN: message[b"when"].decode()})
    async with docket.redis() as redis:
        name = board_name(docket, f"parked.{message[b'key'].decode()}")
        await redis.set(name, text, ex=_DAY if left is None else math.ceil(left) + 1)


async def _recall(docket: Any, execution: Any) -> Errand | None:
    """Return what was kept of a task when it had to wait; None where nothing was."""
    try:
        async with docket.redis() as redis:
            text = await redis.get(board_name(docket, f"parked.{execution.key}"))
        headers = {} if text is None else dict(json.loads(text))
    except Exception as error:  # noqa: BLE001  Redis is down, or no text of ours
        warn_once(
            "docket parked",
            "Redis could not be asked for the run of a delayed task: %r; it goes on as "
            "nobody's (said once per process)",
            error,
        )
        return None
    # The key may be that of another task by now.
    if headers.pop(_WHEN, "") != execution.when.isoformat():
        return None
    return errands.read(headers.get)


def carried_again(execution: Any) -> dict[str, str] | None:
    """Return the headers of an execution that the worker puts back, if it is tied."""
    errand, at = getattr(execution, _ATTRIBUTE, (None, 0.0))
    if errand is None:
        return None
    left = max(0.0, at - SYSTEM_CLOCK.monotonic())
    unix = SYSTEM_CLOCK.wall() + left if math.isfinite(left) else None
    inbound = replace(errand.inbound, left=left, deadline_unix=unix)
    found = {wire.HEADER: wire.encode_header(inbound)}
    return found if errand.key is None else {**found, errands.BOARD_HEADER: errand.key}


# Doing it


def _execute(original: Any, patch: Patch) -> Callable[..., Done]:
    @functools.wraps(original)
    async def execute(self: Any, execution: Any, *args: Any, **kwargs: Any) -> Any:
        errand, _ = getattr(execution, _ATTRIBUTE, (None, 0.0))
        if patch.active and errand is None:
            errand = await _recall(self.docket, execution)
            if errand is not None:
                _keep(execution, errand)
        if patch.active and errand is not None:
            _now.set((self.docket, execution.key, errand))
            guarded(_wrap, execution)
        return await original(self, execution, *args, **kwargs)

    return execute


def _wrap(execution: Any) -> None:
    execution._function = _wrapped(execution.function)  # noqa: SLF001  no other way in


def _wrapped(function: Any) -> Any:
    """Return the function that does ``function``, in the run it is sent for.

    One for each: docket keeps what it learnt of a function for ever.
    """
    found = getattr(function, _ATTRIBUTE, None)
    if found is None:

        @functools.wraps(function)
        async def found(*args: Any, **kwargs: Any) -> Any:
            here = _now.get()
            if here is None:
                return await function(*args, **kwargs)
            _now.set(None)  # what it calls itself is its own affair
            body = functools.partial(function, *args, **kwargs)
            return await _do(*here, function.__name__, body)

        with contextlib.suppress(AttributeError):
            setattr(function, _ATTRIBUTE, found)
        setattr(found, _ATTRIBUTE, found)
    return found


async def _do(
    docket: Any, key: str, errand: Errand, name: str, body: Callable[[], Done]
) -> Any:
    """Do a tied task, or see that it is not done.

    Raises:
        CancelledError: It was not begun, or was stopped: docket knows what to do.
    """
    keys = errand.keys(key)
    line = errands.verdict(await look(docket, keys))
    for _ in range(errands.LOOKS):
        if not errands.in_doubt(errand, line):
            break
        await asyncio.sleep(errands.AGAIN)
        line = errands.verdict(await look(docket, keys))
    if errands.is_over(line):
        return await body()
    killed = None
    if remote.reach() is not None:
        killed = await asyncio.to_thread(remote.verdict, errand.token)
    try:
        async with errands.scope(errand, line, name) as run:
            if (refusal := errands.begin(run, errand, line, killed)) is not None:
                raise refusal
            with _watched(docket, run, keys):
                try:
                    result = await body()
                except asyncio.CancelledError:
                    await _ask_why(docket, run, keys)
                    raise
                run.deliver()
                return result
    except RunAbandoned as error:
        if error.run_id != errand.token:
            raise
        raise asyncio.CancelledError(f"hangup: {error}") from None


async def _ask_why(docket: Any, run: Run, keys: Sequence[str]) -> None:
    """Look up what the sender says of a run whose task docket has cancelled."""
    if run.abandonment is not None:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LOOK):
            line = errands.verdict(await look(docket, keys))
            if line is not None:
                errands.told(run, line)


# Looking what became of the runs

_of: weakref.WeakKeyDictionary[Any, Watched] = weakref.WeakKeyDictionary()
_watching: weakref.WeakKeyDictionary[Any, asyncio.Task[None]] = (
    weakref.WeakKeyDictionary()
)


@contextlib.contextmanager
def _watched(docket: Any, run: Run, keys: Sequence[str]) -> Iterator[None]:
    if not keys:
        yield
        return
    watched = _of.setdefault(docket, Watched())
    watched.add(run, *keys)
    task = _watching.get(docket)
    loop = asyncio.get_running_loop()
    if task is None or task.done() or task.get_loop() is not loop:
        _watching[docket] = loop.create_task(
            _watch(weakref.ref(docket), watched),
            name="hangup-watch",
            context=contextvars.Context(),
        )
    try:
        yield
    finally:
        watched.left(run, *keys)


async def _watch(docket: Callable[[], Any], watched: Watched) -> None:
    while True:
        await asyncio.sleep(watched.pause)
        keys, here = watched.due(), docket()
        if not keys or here is None:
            return
        for key, line in zip(keys, await look(here, keys), strict=True):
            guarded(watched.apply, key, line)
        del here


WANTED: Final = (
    ("docket.execution", "Execution", "from_message", _from_message),
    ("docket.worker", "Worker", "_execute", _execute),
)
