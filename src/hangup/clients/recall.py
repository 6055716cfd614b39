"""Tells a provider to cancel a background response, and hears what it used.

One request to cancel, and one to ask where the answer to that does not say: sent by the
transport that sent the request for the response, outside any run, past our own policy
and meter. On the loop of an asynchronous client, else on a daemon thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import types
from typing import TYPE_CHECKING, Any, Final

from hangup.clients.bodies import Watched
from hangup.core.guard import guarded
from hangup.core.tree import current_task
from hangup.otel import wire
from hangup.otel.call import Exchange
from hangup.otel.once import warn_once
from hangup.spend.dialects import Provider
from hangup.spend.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

_THREADS: Final = 8
_TIMEOUT: Final = 5.0
_AT_END: Final = 1.0
_OK: Final = 200
_NOT_FOUND: Final = 404
# What headers say of their own request alone; the others go along with a cancel.
_ITS_OWN: Final = frozenset(
    [
        *("content-length", "content-type", "content-encoding", "transfer-encoding"),
        *("accept", "accept-encoding", "connection", "host", "idempotency-key"),
        *("traceparent", "tracestate", wire.HEADER, wire.BAGGAGE),
    ]
)
_SDKS_OWN: Final = "x-stainless-"


class Line:
    """The way a request went, for others about its response.

    Args:
        request: The request, as its library has it.
        stack: The library.
        send: Sends a request through the same transport, past us.
        asynchronous: Whether that has to be awaited.

    Attributes:
        http: The protocol that the server was seen to speak; empty: not seen yet.
    """

    def __init__(
        self,
        request: Any,
        stack: Any,
        send: Callable[[Any], Any],
        *,
        asynchronous: bool,
    ) -> None:
        self.send = send
        self.asynchronous = asynchronous
        task = current_task()
        self.loop = task.get_loop() if task is not None and self.asynchronous else None
        self.http = b""
        self._new = stack.Request
        self._url = request.url
        self._headers = [
            (name, value)
            for name, value in request.headers.multi_items()
            if name.lower() not in _ITS_OWN and not name.lower().startswith(_SDKS_OWN)
        ]

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return origin_of(self._url)

    def request(self, method: str, tail: str) -> Any:
        """Return a request for what lies ``tail`` below, with the same credentials."""
        path, mark, query = self._url.raw_path.partition(b"?")
        path = path.rstrip(b"/") + tail.encode("ascii")
        headers = [
            *self._headers,
            ("accept", "application/json"),
            ("accept-encoding", "identity"),
        ]
        if self.http == b"HTTP/1.1":  # the client may be closed by then
            headers.append(("connection", "close"))
        each = ("connect", "read", "write", "pool")
        return self._new(
            method,
            self._url.copy_with(raw_path=path + mark + query),
            headers=headers,
            extensions={"timeout": dict.fromkeys(each, _TIMEOUT)},
        )


def origin_of(url: Any) -> str:
    """Return scheme, host and port of a URL of httpx."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


class Recall:
    """The cancel of one response. Never raises, never waits; sent at most once.

    Args:
        line: The way to its provider.
        response_id: Its id there; safe in a path.
        wanted: Asked where it is about to be sent.
        done: Gets the meter of an answer that was final, None where none came. Not
            called if it was not wanted.
    """

    def __init__(
        self,
        line: Line,
        response_id: str,
        wanted: Callable[[], bool],
        done: Callable[[Meter | None], None],
    ) -> None:
        self.line = line
        self._tail = f"/{response_id}"
        self._wanted = wanted
        self._done = done
        self._sent = False

    def begin(self) -> None:
        """Send it, on the loop of the client."""
        if not guarded(self._wanted):
            return
        talk = self._converse()
        # A task that is cancelled before its first step has none: take it here.
        talk.send(None)
        task = asyncio.get_running_loop().create_task(talk)
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def _converse(self) -> None:
        limit = _TIMEOUT
        try:
            request = self._first()
            request.extensions["trace"] = self._note
            while request is not None:
                try:
                    await _once()
                    async with asyncio.timeout(limit):
                        request = await self._ask(request)
                except asyncio.CancelledError:
                    if limit == _AT_END:
                        raise
                    # The end of asyncio.run: it waits for those it has cancelled.
                    limit = _AT_END
                    _go_on()
                    if self._sent:
                        request = self._last()
        except Exception as error:  # noqa: BLE001  whatever a transport raises
            self.fail(error)
        except asyncio.CancelledError as error:
            self.fail(error)
            raise

    async def _note(self, event: str, _info: object) -> None:
        """Note that the request begins to leave; called by the transport."""
        self._sent = self._sent or event.endswith("send_request_headers.started")

    async def _ask(self, request: Any) -> Any:
        answer = _Answer(await self.line.send(request))
        try:
            async for data in answer.stream:
                answer.feed(data)
        finally:
            await answer.stream.aclose()
        return self._heard(request, answer)

    def work(self) -> None:
        """Send it, on this thread."""
        try:
            request = self._first()
            while request is not None:
                answer = _Answer(self.line.send(request))
                try:
                    for data in answer.stream:
                        answer.feed(data)
                finally:
                    answer.stream.close()
                request = self._heard(request, answer)
        except Exception as error:  # noqa: BLE001  as above
            self.fail(error)

    def _first(self) -> Any:
        return self.line.request("POST", f"{self._tail}/cancel")

    def _last(self) -> Any:
        return self.line.request("GET", self._tail)

    def _heard(self, request: Any, answer: _Answer) -> Any:
        """Hand on what was answered; return what else is to be asked."""
        meter, last = answer.read(), request.method == "GET"
        if meter.finished and (last or meter.raw_usage is not None):
            guarded(self._done, meter)
        elif answer.status != _NOT_FOUND and not last:
            return self._last()  # it may just have ended
        else:
            self.fail(f"status {answer.status}")
        return None

    def fail(self, why: object) -> None:
        """Say that nobody knows what became of it."""
        warn_once(
            "background",
            "a background response of a stopped run was not seen to stop (%r): its "
            "outcome is unknown, and counted so (said once per process)",
            why,
        )
        guarded(self._done, None)


@types.coroutine
def _once() -> Generator[None, None, None]:
    """Let everything else have a turn."""
    yield


def _go_on() -> None:
    """Take back a cancel of the running task."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


class _Answer:
    """An answer to one of our own requests."""

    def __init__(self, response: Any) -> None:
        self.status = response.status_code
        self.stream = response.stream
        self._meter = Meter(Provider.OPENAI_RESPONSES)
        exchange = Exchange(self._meter) if self.status == _OK else None
        encoding = response.headers.get("content-encoding", "")
        self._watched = Watched(None, exchange, encoding)
        self.feed = self._watched.feed

    def read(self) -> Meter:
        """Return what it said, once all of it has been fed."""
        self._meter.close(0.0)
        return self._meter


_tasks: set[asyncio.Task[None]] = set()


def send(recalls: Sequence[Recall]) -> None:
    """Send them all, from where their clients can. Never waits."""
    threaded = [one for one in recalls if not one.line.asynchronous]
    for one in recalls:
        if not one.line.asynchronous:
            continue
        loop = one.line.loop
        if loop is None:
            one.fail("its client runs on no loop of asyncio")
            continue
        try:
            loop.call_soon_threadsafe(one.begin, context=contextvars.Context())
        except RuntimeError as error:  # the loop is closed, the connections with it
            one.fail(error)
    # A provider that is slow to answer must not hold up all the others.
    for part in range(min(_THREADS, len(threaded))):
        mine = threaded[part::_THREADS]
        thread = threading.Thread(
            target=_work, args=(mine,), name="hangup-cancel", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the interpreter is going down
            for one in mine:
                one.fail(error)


def _work(recalls: Sequence[Recall]) -> None:
    for one in recalls:
        one.work()
