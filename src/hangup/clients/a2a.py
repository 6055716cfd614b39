"""A2A clients of the Python SDK (``a2a-sdk`` 1.x): a task ends with its caller's run.

Installed with ``hangup.instrument()``, or by hand with :func:`install`. A message is
refused once its run is abandoned. When the run stops while the task is worked on, the
agent gets a ``tasks/cancel``, once: by the protocol a stream that breaks cancels
nothing. Not from within ``hangup.detached()``, nor for a client that polls, whose tasks
are meant to outlive the request. The deadline and the token travel with the HTTP
request, as with every other (:mod:`hangup.clients.httpx`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hangup.core.admission import admit, stop_here
from hangup.core.guard import guarded
from hangup.otel import calls
from hangup.otel.call import least_time
from hangup.otel.mending import Mending
from hangup.otel.propagator import run_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hangup.core.run import Run
    from hangup.otel.patch import Patch

_CANCEL_WITHIN: Final = 5.0
_ENDED: Final = (
    "TASK_STATE_COMPLETED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_FAILED",
    "TASK_STATE_REJECTED",
)
# The loop keeps no task alive by itself.
_canceling: set[asyncio.Task[None]] = set()


def _messages(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def send_message(self: Any, request: Any, *, context: Any = None) -> Any:
        run = guarded(run_in) if patch.active else None
        events = original(self, request, context=context)
        if run is None:
            return events
        return _through(_Errand(self, run, context), events)

    return send_message


async def _through(errand: _Errand, events: Any) -> AsyncGenerator[Any, None]:
    refusal = guarded(errand.refusal)
    if refusal is not None:
        raise refusal
    try:
        async for event in events:
            guarded(errand.note, event)
            yield event
    except Exception as error:
        stop = guarded(partial(stop_here, errand.run, under_way=True))
        if stop is not None:
            raise stop from error
        raise
    finally:
        guarded(errand.end)
        await events.aclose()


class _Errand:
    """A message that is sent for a run, and the task that comes of it."""

    def __init__(self, client: Any, run: Run, context: Any) -> None:
        self.run = run
        self._client = client
        self._context = context
        self._task = ""
        self._over = False

    def refusal(self) -> BaseException | None:
        """Return what to raise instead of sending it, None to send it."""
        least = least_time(self.run.settings.needs, calls.AGENT, None)
        return admit(self.run, calls.AGENT, least)

    def note(self, event: Any) -> None:
        """See what an event says of the task."""
        kind = event.WhichOneof("payload")
        payload = getattr(event, kind or "", None)
        if kind == "message":
            self._over = True
        if kind == "task":
            self._task = getattr(payload, "id", "")
        elif payload is not None:
            self._task = getattr(payload, "task_id", "") or self._task
        status = getattr(payload, "status", None)
        if status is not None:
            state = type(status).DESCRIPTOR.fields_by_name["state"].enum_type
            self._over = state.values_by_number[status.state].name in _ENDED

    def end(self) -> None:
        """Cancel the task, where it goes on and its run does not."""
        run = self.run
        polls = getattr(getattr(self._client, "_config", None), "polling", False)
        if not self._task or self._over or polls or not run.mode.refuses:
            return
        if run.abandonment is None:
            return
        canceling = asyncio.get_running_loop().create_task(
            self._cancel(), name="hangup-a2a-cancel", context=Context()
        )
        _canceling.add(canceling)
        canceling.add_done_callback(_canceling.discard)

    async def _cancel(self) -> None:
        from a2a.types.a2a_pb2 import CancelTaskRequest  # noqa: PLC0415  was imported

        # Whatever it is: the agent still has the deadline.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CANCEL_WITHIN):
                request = CancelTaskRequest(id=self._task)
                await self._client.cancel_task(request, context=self._context)


_mending: Final = Mending(
    ("a2a.client.base_client", "BaseClient", "send_message", _messages)
)


def install() -> None:
    """See to every client of the process. Idempotent."""
    _mending.install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    _mending.uninstall()
