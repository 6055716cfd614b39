"""One request on its way through a transport: asked for, timed, metered, closed.

What httpx and httpx2 have in common: both hand a transport a request with a stream, and
get a response with one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hangup.clients import background
from hangup.clients.bodies import AsyncBody, SyncBody, Watched, stop_reading
from hangup.clients.recall import Line
from hangup.clients.waits import end_in_vain
from hangup.config import Mode
from hangup.core.admission import stop_here
from hangup.core.current import position
from hangup.core.tree import current_task
from hangup.core.unwind import hides_refusal
from hangup.otel import exchanges
from hangup.spend.reported import billed_in_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from hangup.core.run import Run
    from hangup.otel.call import Exchange

_OK: Final = 200
# On a task the deadline's own stop comes first, with the better error.
_MARGIN: Final = 0.1
_BODIES: dict[type, tuple[type, type, type]] = {}


class Visit:
    """What hangup does about one request. Its methods never raise.

    Args:
        request: The request.
        stack: The library it is of.
        send: Sends another one the same way, past us.
        asynchronous: Whether that has to be awaited.

    Attributes:
        refusal: What to raise instead of sending the request; None to send it.
    """

    __slots__ = ("_exchange", "_run", "_stream", "refusal")

    def __init__(
        self,
        request: Any,
        stack: Any,
        send: Callable[[Any], Any],
        *,
        asynchronous: bool,
    ) -> None:
        url, content = request.url, _content(request)
        opening = exchanges.open_request(
            url.host, url.raw_path.decode("ascii", "replace"), content
        )
        self.refusal: BaseException | None = opening.refusal
        self._run: Run | None = opening.run
        exchange: Exchange | None = opening.exchange
        if exchange is not None:
            if content is not None and background.asks_for_it(exchange.meter, content):
                line = Line(request, stack, send, asynchronous=asynchronous)
                background.attend(exchange, line)
        elif opening.refusal is None:
            exchange = background.look(request)
        self._exchange = exchange
        self._stream: Any = None

    def leave(self, request: Any, stack: Any) -> None:
        """Before the request goes: clamp its timeouts, watch whether it is sent."""
        if self._run is not None:
            _clamp(request, self._run)
        if self._exchange is not None:
            sending = _classes(stack)[2]
            self._stream = request.stream
            request.stream = sending(self._stream, self._exchange)

    def stop(self) -> BaseException | None:
        """Return what to raise instead of sending it once more, None to send it."""
        return None if self._run is None else stop_here(self._run)

    def left(self, request: Any) -> None:
        """After it has gone: give the request its own stream back."""
        if self._stream is not None:
            request.stream, self._stream = self._stream, None

    def fail(self) -> None:
        """No answer came."""
        if self._exchange is not None:
            exchanges.end(self._exchange)

    def stop_in_flight(self) -> BaseException | None:
        """Return what to raise in place of an error, None where that stands.

        On a thread a clamped timeout is how the stop comes: the stop is to be told.
        """
        return None if self._run is None else stop_reading(self._run)

    def refusal_in(self, error: Exception) -> BaseException | None:
        """Return what to raise in place of an error that was made of a refusal."""
        run = self._run
        return run.error() if run is not None and hides_refusal(error) else None

    def advise(self, request: Any, response: Any) -> None:
        """Say of an answer in error where no further attempt can begin in time."""
        if self._run is not None and current_task() is None:
            end_in_vain(request, response, self._run)

    def answer(self, response: Any, stack: Any, *, asynchronous: bool) -> None:
        """Watch the body of an answer."""
        exchange = self._exchange
        if exchange is not None:
            exchange.sent = True  # a transport need not have read it from our stream
            exchange.status = response.status_code
            exchange.billed = billed_in_header(response.headers)
            if response.status_code != _OK:
                exchanges.end(exchange)
                exchange = None
        here = position()
        shielded = here is not None and here.shield is not None
        run = None if shielded else self._run
        if exchange is not None and background.must_be_read(exchange, response):
            run = None
        if exchange is None and run is None:
            return
        if response.is_closed:  # it was read, as answers that are made up here are
            watched = Watched(run, exchange)
            watched.feed(response.content)
            watched.end(complete=True)
            return
        encoding = response.headers.get("content-encoding", "")
        watched = Watched(run, exchange, encoding)
        kind = response.headers.get("content-type", "")
        watched.whole = kind.startswith("application/json")
        body, synchronous, _ = _classes(stack)
        if not asynchronous:
            body = synchronous
        response.stream = body(response.stream, watched)


def _content(request: Any) -> bytes | None:
    try:
        content: bytes = request.content
    except Exception:  # noqa: BLE001  a body that is streamed: RequestNotRead
        return None
    return content


def _clamp(request: Any, run: Run) -> None:
    """Let no timeout outlast the run: a silent server must not hold a thread."""
    if run.mode is not Mode.ENFORCE or not run.deadline.is_set:
        return
    here = position()
    if here is not None and here.shield is not None:
        return
    margin = 0.0 if current_task() is None else _MARGIN
    if here is not None and here.drain is not None:
        margin += here.drain.budget  # it may go on for so long after the deadline
    left = max(0.0, run.remaining()) + margin
    given = request.extensions.get("timeout") or {}
    clamped = {
        name: left if given.get(name) is None else min(given[name], left)
        for name in ("connect", "read", "write", "pool")
    }
    request.extensions = {**request.extensions, "timeout": clamped}


class _Sending:
    """The body of a request, noting that it goes out: from then on it may be billed."""

    def __init__(self, inner: Any, exchange: Exchange) -> None:
        self._inner = inner
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        self._exchange.sent = True
        return iter(self._inner)

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._exchange.sent = True
        inner: AsyncIterator[bytes] = self._inner.__aiter__()
        return inner

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()


def _classes(stack: Any) -> tuple[type, type, type]:
    """Return our streams as classes of the stack's own: it checks for them."""
    found = _BODIES.get(stack.AsyncByteStream)
    if found is None:
        both = (stack.AsyncByteStream, stack.SyncByteStream)
        found = _BODIES[stack.AsyncByteStream] = (
            type("WatchedAsyncBody", (AsyncBody, both[0]), {}),
            type("WatchedSyncBody", (SyncBody, both[1]), {}),
            type("Sending", (_Sending, *both), {}),
        )
    return found
