"""Background responses: what the provider goes on with, whoever hangs up.

OpenAI answers a request with ``background: true`` at once, or streams, and generates to
the end whatever its caller does; what it used is told to those who ask again. So such
a call stays open when its answer is over, until an answer that passes says what it
used. If its run is stopped before that, the provider is told to cancel: one request,
past our own policy and meter, the way the first one went.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import json
import os
import re
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hangup.clients.bodies import Watched
from hangup.core import registry
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.current import position
from hangup.core.guard import guarded
from hangup.core.interrupt import awaited_outside
from hangup.core.tree import current_task
from hangup.otel import exchanges, wire
from hangup.otel.call import Exchange
from hangup.otel.once import warn_once
from hangup.spend.dialects import Provider
from hangup.spend.meter import Meter
from hangup.spend.modelcall import parse

if TYPE_CHECKING:
    from hangup.core.clock import Timer
    from hangup.core.run import Run

LONG: Final = 600.0
"""Seconds without a sign after which nobody of a closed run will ask any more.

A response that is not to be stored is kept about as long, for those who poll.
"""
_MOST: Final = 10_000
_THREADS: Final = 8
_TIMEOUT: Final = 5.0
_OK: Final = 200
_NOT_FOUND: Final = 404
_WANTED: Final = re.compile(rb'"background"\s*:\s*true')
_ID: Final = re.compile(r"[\w:-][\w.:-]{0,255}", re.ASCII)
# What headers say of their own request alone; the others go along with a cancel.
_ITS_OWN: Final = frozenset((
    *("content-length", "content-type", "content-encoding", "transfer-encoding"),
    *("accept", "accept-encoding", "connection", "host", "idempotency-key"),
    *("traceparent", "tracestate", wire.HEADER, wire.BAGGAGE),
))  # fmt: skip


class _Response:
    """One background response, and the way to its provider."""

    def __init__(
        self, exchange: Exchange, request: Any, stack: Any, send: partial[Any]
    ) -> None:
        here, task = position(), current_task()
        self.exchange = exchange
        self.send = send
        self.loop: asyncio.AbstractEventLoop | None = None
        self.asynchronous = isinstance(send.args[0], stack.AsyncBaseTransport)
        if self.asynchronous and task is not None:
            self.loop = task.get_loop()
        self.task = None if task is None else weakref.ref(task)
        # What must be finished is not cancelled either.
        self.shielded = here is not None and here.shield is not None
        self.over = False  # the answer to its request has been read, or was cut
        self.asked = False  # to be cancelled
        self.told: Meter | None = None
        self.http = b""
        self.seen = 0.0
        self.timer: Timer | None = None
        self.clock = SYSTEM_CLOCK if exchange.run is None else exchange.run.clock
        self._new = stack.Request
        self._url = request.url
        self._headers = [
            (name, value)
            for name, value in request.headers.multi_items()
            if name.lower() not in _ITS_OWN and not name.startswith("x-stainless-")
        ]

    @property
    def key(self) -> tuple[str, str]:
        """Where it is, and its id there; "" where that is not known."""
        found = self.exchange.meter.response_id or ""
        return _origin(self._url), found if _ID.fullmatch(found) else ""

    def ask(self, method: str, what: str) -> Any:
        """Return a request about it."""
        path, mark, query = self._url.raw_path.partition(b"?")
        tail = f"/{self.key[1]}{what}".encode()
        headers = [
            *self._headers,
            ("accept", "application/json"),
            ("accept-encoding", "identity"),
        ]
        if self.http == b"HTTP/1.1":  # its client may be closed by now
            headers.append(("connection", "close"))
        names = ("connect", "read", "write", "pool")
        return self._new(
            method,
            self._url.copy_with(raw_path=path.rstrip(b"/") + tail + mark + query),
            headers=headers,
            extensions={"timeout": dict.fromkeys(names, _TIMEOUT)},
        )


class _Answer:
    """An answer that tells how it stands; whoever asked."""

    def __init__(self, response: Any) -> None:
        self.ok = response.status_code == _OK
        self.found = response.status_code != _NOT_FOUND
        self.stream = response.stream
        self._exchange = Exchange(Meter(Provider.OPENAI_RESPONSES))
        encoding = response.headers.get("content-encoding", "")
        self._watched = Watched(None, self._exchange if self.ok else None, encoding)
        self.feed = self._watched.feed

    def read(self) -> Meter:
        """Return what it said, once all of it has been fed."""
        if self._watched.meter is not None:
            self._watched.meter.close(0.0)
        return self._exchange.meter


class _Responses(registry.RunObserver):
    """The background responses whose fate is not known. Thread-safe, bounded."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child must: those calls are its parent's."""
        self._lock = threading.Lock()
        self._open: dict[int, _Response] = {}
        self.by_key: dict[tuple[str, str], _Response] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def attend(self, one: _Response) -> None:
        """Take up a call that is about to be made."""
        if len(self._open) >= _MOST and (oldest := next(iter(self._open), None)):
            self._give_up(self._open.get(oldest))
        self._open[one.exchange.span_id] = one
        one.exchange.lasting = True
        one.exchange.ending = partial(self._answered, one)

    def of(self, exchange: Exchange) -> _Response | None:
        """Return what is known of the response to a request."""
        return self._open.get(exchange.span_id) if exchange.lasting else None

    def _answered(self, one: _Response) -> bool:
        """Its own answer is over; return whether the call goes on."""
        exchange, meter = one.exchange, one.exchange.meter
        one.over = True
        if not (meter.finished or exchange.free):
            exchange.complete = False  # it was read, and told nothing
            if one.key[1] and one.exchange.span_id in self._open:
                self._keep(one)
                return True
        self._drop(one)
        return False

    def _keep(self, one: _Response) -> None:
        run = one.exchange.run
        _ = one.exchange.meter.request_model  # the body of its request is let go
        self.by_key[one.key] = one
        self.note(one)
        one.timer = one.clock.call_at(one.seen + LONG, partial(self._look_at, one))
        if run is not None:
            run.work.call_closed(one.exchange.ticket)  # nothing of ours runs for it
        if one.told is not None:
            self.tell(one, one.told)
        elif _stopped(run):
            self._cancel([one])

    def note(self, one: _Response) -> None:
        """Note a sign that somebody still asks for it."""
        one.seen = one.clock.monotonic()

    def _look_at(self, one: _Response) -> None:
        run, now = one.exchange.run, one.clock.monotonic()
        if run is not None and run.closed_at is None and not run.inert:
            one.seen = now
        if now - one.seen >= LONG:
            self._give_up(one)
        elif one.exchange.span_id in self._open:
            one.timer = one.clock.call_at(one.seen + LONG, partial(self._look_at, one))

    def tell(self, one: _Response, meter: Meter) -> None:
        """Enter what the provider says at its end. Once; later answers change nothing.

        Args:
            one: The response.
            meter: Has read an answer that is final.
        """
        one.told = meter
        if not one.over:
            return  # the stream it is read from may tell it better
        if not self._drop(one):
            return
        exchange = one.exchange
        before, body = exchange.meter, {
            "id": meter.response_id,
            "model": meter.response_model,
            "status": "completed",
            "usage": meter.raw_usage,
        }  # fmt: skip
        # What came in the stream says nothing of when the rest was generated.
        final = Meter(before.provider, before.call, started_at=before.started_at)
        final.first_token_at = before.first_token_at
        now = one.clock.monotonic()
        final.feed(json.dumps(body).encode(), now)
        final.close(now)
        exchange.meter, exchange.legible, exchange.halted = final, True, one.asked
        exchanges.end(exchange)

    def _give_up(self, one: _Response | None) -> None:
        """End the call of a response that nobody will tell of: outcome unknown."""
        if one is not None and self._drop(one) and one.over:
            exchanges.end(one.exchange)

    def _drop(self, one: _Response) -> bool:
        """Forget it; return whether it was known. Of several threads one gets true."""
        known = self._open.pop(one.exchange.span_id, None) is not None
        if self.by_key.get(one.key) is one:
            self.by_key.pop(one.key, None)
        if one.timer is not None:
            one.timer.cancel()
        return known

    def release(self) -> None:
        """Give up on everything."""
        for one in tuple(self._open.values()):
            self._give_up(one)

    # Cancelling

    def abandoned(self, run: Run) -> None:
        """Have the responses of a stopped run cancelled."""
        if run.work.acts:
            self._cancel([
                one
                for one in tuple(self._open.values())
                if run.work.encloses(one.exchange.run)
                and one.key[1]
                and not one.exchange.meter.finished
            ])  # fmt: skip

    def claim(self, one: _Response) -> bool:
        """Return whether nobody has had it cancelled before."""
        with self._lock:
            before, one.asked = one.asked, True
        return not before

    def unclaim(self, one: _Response) -> None:
        """The application's own cancel failed: if its run is stopped, ours is due."""
        one.asked = False
        if _stopped(one.exchange.run):
            self._cancel([one])

    def _cancel(self, ones: list[_Response]) -> None:
        """Send each its cancel, if none was sent. Never waits."""
        synchronous = []
        for one in ones:
            if one.shielded or not self.claim(one):
                continue
            if not one.asynchronous:
                synchronous.append(one)
            elif one.loop is not None:
                context = contextvars.Context()
                try:
                    one.loop.call_soon_threadsafe(self._begin, one, context=context)
                except RuntimeError:  # the loop is closed, and the connections with it
                    self._give_up(one)
        # A provider that is slow to answer must not hold up all the others.
        for part in range(min(_THREADS, len(synchronous))):
            threading.Thread(
                target=self._work,
                args=(synchronous[part::_THREADS],),
                name="hangup-cancel",
                daemon=True,
            ).start()

    def _begin(self, one: _Response) -> None:
        if _serves_others(one):
            one.asked = False
            return
        task = asyncio.get_running_loop().create_task(self._converse(one))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, one: _Response) -> None:
        try:
            async with asyncio.timeout(2 * _TIMEOUT):
                request = one.ask("POST", "/cancel")
                while request is not None:
                    answer = _Answer(await one.send(request))
                    try:
                        async for data in answer.stream:
                            answer.feed(data)
                    finally:
                        await answer.stream.aclose()
                    request = self._heard(one, request, answer)
        except Exception as error:  # noqa: BLE001  whatever a transport raises
            self._failed(one, error)
        except asyncio.CancelledError:  # the loop goes down
            self._give_up(one)
            raise

    def _work(self, ones: list[_Response]) -> None:
        for one in ones:
            try:
                request = one.ask("POST", "/cancel")
                while request is not None:
                    answer = _Answer(one.send(request))
                    try:
                        for data in answer.stream:
                            answer.feed(data)
                    finally:
                        answer.stream.close()
                    request = self._heard(one, request, answer)
            except Exception as error:  # noqa: BLE001  as above
                self._failed(one, error)

    def _heard(self, one: _Response, request: Any, answer: _Answer) -> Any:
        """Enter what was answered to our request; return what else is to be asked."""
        meter, last = answer.read(), request.method == "GET"
        if meter.finished and (last or meter.raw_usage is not None):
            self.tell(one, meter)
        elif answer.found and not last:
            return one.ask("GET", "")  # it may have ended just before
        else:
            self._failed(one, "no answer says how it ended")
        return None

    def _failed(self, one: _Response, why: object) -> None:
        warn_once(
            "background",
            "a background response of a stopped run was not seen to stop (%s); its "
            "outcome is counted as unknown (said once per process)",
            why,
        )
        self._give_up(one)


def _stopped(run: Run | None) -> bool:
    """Whether the stop of this run, or of one around it, acts."""
    while run is not None:
        if run.work.acts:
            return True
        run = run.parent
    return False


def _serves_others(one: _Response) -> bool:
    """Whether somebody outside its run waits for the task that wants it."""
    task = None if one.task is None else one.task()
    run = around = one.exchange.run
    if run is None or task is None or task.done():
        return False
    while around is not None:
        if around.work.task is task:
            return False
        around = around.parent
    return awaited_outside(task, run.root.work.outside)


def _origin(url: Any) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


_responses = _Responses()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_responses.reset)


def asks_for_it(meter: Meter, content: bytes) -> bool:
    """Whether a request, of which ``meter`` reads the answer, is for the background."""
    if meter.provider is not Provider.OPENAI_RESPONSES or not _WANTED.search(content):
        return False
    request = parse(content)
    return request is not None and request.get("background") is True


def attend(exchange: Exchange, request: Any, stack: Any, send: partial[Any]) -> None:
    """Take up the exchange of a request for a background response.

    Args:
        exchange: Open, nothing of it was sent.
        request: The request, as its library has it.
        stack: The library.
        send: Sends a request through the same transport, bound to it, past us.
    """
    _responses.attend(_Response(exchange, request, stack, send))


def look(request: Any) -> Exchange | None:
    """Return what an answer is to be fed to that tells of a background response.

    None where it does not. It is no call of its own, and never in the books.
    """
    if not _responses.by_key:
        return None
    url = request.url
    path, cancels = url.path.rstrip("/"), False
    if request.method == "POST" and path.endswith("/cancel"):
        path, cancels = path.removesuffix("/cancel"), True
    elif request.method != "GET":
        return None
    one = _responses.by_key.get((_origin(url), path.rpartition("/")[2]))
    if one is None:
        return None
    _responses.note(one)
    claimed = cancels and _responses.claim(one)
    looking = Exchange(Meter(Provider.OPENAI_RESPONSES))

    def seen() -> bool:
        if looking.meter.finished:
            _responses.tell(one, looking.meter)
        elif claimed and looking.status != _OK:
            _responses.unclaim(one)
        return True

    looking.ending = seen
    return looking


def must_be_read(exchange: Exchange, response: Any) -> bool:
    """Whether an answer is to be read though its run is stopped: it tells an id.

    It is short, and comes at once; but for a stream, which tells it first of all.
    """
    one = _responses.of(exchange)
    if one is None:
        return False
    one.http = response.extensions.get("http_version", b"")
    kind: str = response.headers.get("content-type", "")
    return not kind.startswith("text/event-stream")


def release() -> None:
    """Give up on what is open, as of unknown outcome: the process is going down."""
    guarded(_responses.release)


def install() -> None:
    """Have background responses cancelled with their runs. Idempotent."""
    registry.add_observer(_responses)
    atexit.unregister(release)
    atexit.register(release)


def uninstall() -> None:
    """Give up on those that are open. Idempotent."""
    registry.remove_observer(_responses)
    release()
    atexit.unregister(release)
