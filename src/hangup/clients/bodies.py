"""The answer of a request, watched as it passes: metered, and closed in time.

Nothing is buffered or delayed: what the transport yields is handed on as it is. A body
is closed by whoever reads it; where nobody does any more (the reader left with
``break``, the stream was dropped, the run was stopped) it is closed here, so that the
provider hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
import weakref
import zlib
from typing import TYPE_CHECKING, Any, Final

from hangup.core.admission import stop_here
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.guard import fault, guarded
from hangup.otel import exchanges

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hangup.core.run import Run
    from hangup.otel.call import Exchange

_GZIP: Final = 16 + zlib.MAX_WBITS
# Decompressed at a time, so that a small chunk never becomes a huge one at once.
_PIECE: Final = 256 * 1024


def decoding(encoding: str) -> tuple[bool, Inflate | None]:
    """Return whether we can undo a content encoding, and what does it; None: nothing.

    Only the encodings that the standard library knows; the client library undoes all
    of its own for the application, whatever we can read.
    """
    name = encoding.strip().lower()
    if name in {"gzip", "x-gzip"}:
        return True, Inflate(_GZIP)
    if name == "deflate":
        return True, Inflate(zlib.MAX_WBITS)
    return name in {"", "identity"}, None


class Inflate:
    """Undoes gzip or deflate, chunk by chunk, in pieces of bounded size."""

    def __init__(self, bits: int) -> None:
        self._inflate = zlib.decompressobj(bits)

    def __call__(self, data: bytes) -> list[bytes]:
        """Return what a chunk holds."""
        pieces = []
        while data:
            pieces.append(self._inflate.decompress(data, _PIECE))
            data = self._inflate.unconsumed_tail
        return pieces


class Watched:
    """What a body has to do with its run and its exchange. Ended exactly once.

    Args:
        run: The run it is read for.
        exchange: To be fed; None for an answer that is no model's.
        encoding: The content encoding of what passes.
    """

    def __init__(
        self,
        run: Run | None,
        exchange: Exchange | None,
        encoding: str = "",
    ) -> None:
        self.run = run
        self.reading = 0
        self.ended = False
        # The answer comes as a whole, when all of it was generated and will be billed.
        self.whole = False
        self._exchange = exchange
        legible, self._inflate = decoding(encoding)
        self.meter = exchange.meter if exchange is not None and legible else None
        self._now = (SYSTEM_CLOCK if run is None else run.clock).monotonic
        if exchange is not None:
            exchange.legible = legible

    def feed(self, data: bytes) -> None:
        """Meter what has passed."""
        meter, inflate = self.meter, self._inflate
        if meter is None:
            return
        if inflate is None:
            meter.feed(data, self._now())
            return
        now = self._now()
        for piece in inflate(data):
            meter.feed(piece, now)

    def end(self, *, complete: bool) -> None:
        """The answer was read to its end, or not. Idempotent."""
        if self.ended:
            return
        self.ended = True
        exchange = self._exchange
        if exchange is None:
            return
        exchange.complete = complete
        if self.meter is not None:
            self.meter.close(self._now())
        exchanges.end(exchange)


class AsyncBody:
    """The body of an asynchronous client. Mixed into its stack's own stream class."""

    def __init__(self, inner: Any, watched: Watched) -> None:
        self._inner = inner
        self._watched = watched
        self._loop = _running_loop()
        if watched.run is not None:
            _open.add(self)

    @property
    def watched(self) -> Watched:
        """Its run and its exchange."""
        return self._watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _AsyncReader(self, self._inner, self._watched)

    async def aclose(self) -> None:
        """Close the answer; a second time does no harm."""
        try:
            await self._inner.aclose()
        finally:
            guarded(_end, self._watched)

    def abandon(self) -> None:
        """Close it from outside: nobody will. Never waits, may be called anywhere."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            loop.call_soon_threadsafe(
                _close_soon, self._inner, self._watched, context=contextvars.Context()
            )
        except RuntimeError:  # the loop was closed meanwhile
            return

    def __del__(self) -> None:
        if not self._watched.ended:
            self.abandon()


class _AsyncReader:
    """Reads a body. It goes with the loop that reads: then nobody can read on."""

    __slots__ = ("_body", "_next", "_watched")

    def __init__(self, body: AsyncBody, inner: Any, watched: Watched) -> None:
        self._body = body
        self._next = inner.__aiter__().__anext__
        self._watched = watched

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        watched = self._watched
        if watched.ended and watched.run is not None:
            # Closed from outside between two chunks: the reader is told why.
            stop = guarded(stop_here, watched.run)
            if stop is not None:
                raise stop
        watched.reading += 1
        try:
            data: bytes = await self._next()
        except StopAsyncIteration:
            guarded(_end, watched, True)  # noqa: FBT003
            raise
        except BaseException:
            guarded(_end, watched)
            raise
        finally:
            watched.reading -= 1
        if watched.meter is not None:
            try:
                watched.feed(data)
            except Exception as error:  # noqa: BLE001  any fault of ours
                fault("Watched.feed", error)
        return data

    def __del__(self) -> None:
        if not self._watched.ended:
            self._body.abandon()


class SyncBody:
    """The body of a synchronous client. Mixed into its stack's own stream class."""

    def __init__(self, inner: Any, watched: Watched) -> None:
        self._inner = inner
        self._watched = watched
        if watched.run is not None:
            _open.add(self)

    @property
    def watched(self) -> Watched:
        """Its run and its exchange."""
        return self._watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[bytes]:
        return _SyncReader(self, self._inner, self._watched)

    def close(self) -> None:
        """Close the answer; a second time does no harm."""
        try:
            self._inner.close()
        finally:
            guarded(_end, self._watched)

    def abandon(self) -> None:
        """Close it from outside: nobody will. Never waits, may be called anywhere."""
        closer.close(self._inner, self._watched)

    def __del__(self) -> None:
        if not self._watched.ended:
            self.abandon()


class _SyncReader:
    """Reads a body. A thread cannot be interrupted, so it is asked at every chunk."""

    __slots__ = ("_body", "_next", "_watched")

    def __init__(self, body: SyncBody, inner: Any, watched: Watched) -> None:
        self._body = body
        self._next = iter(inner).__next__
        self._watched = watched

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        watched = self._watched
        self._ask()
        watched.reading += 1
        try:
            data: bytes = self._next()
        except StopIteration:
            guarded(_end, watched, True)  # noqa: FBT003
            raise
        except BaseException:
            guarded(_end, watched)
            raise
        finally:
            watched.reading -= 1
        if watched.meter is not None:
            try:
                watched.feed(data)
            except Exception as error:  # noqa: BLE001  any fault of ours
                fault("Watched.feed", error)
        # Whoever waited for this may have been stopped meanwhile, and never ask again.
        self._ask()
        return data

    def _ask(self) -> None:
        """Close the answer and raise the stop if its run must not go on.

        Not while a whole answer is read: what it cost is spent, and stands at its end.
        """
        watched = self._watched
        run, meter = watched.run, watched.meter
        if run is None or (watched.whole and meter and not meter.streamed):
            return
        if (stop := guarded(stop_here, run)) is not None:
            self._body.close()
            raise stop

    def __del__(self) -> None:
        if not self._watched.ended:
            self._body.abandon()


def _end(watched: Watched, complete: bool = False) -> None:  # noqa: FBT001, FBT002
    watched.end(complete=complete)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_closing: set[asyncio.Task[None]] = set()


def _close_soon(inner: Any, watched: Watched) -> None:
    if watched.reading:  # somebody reads on after all, and will see to it
        return
    task = asyncio.get_running_loop().create_task(_close(inner, watched))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close(inner: Any, watched: Watched) -> None:
    guarded(_end, watched)
    with contextlib.suppress(Exception):  # the connection is gone either way
        await inner.aclose()


class _Closer:
    """Closes synchronous bodies on a daemon thread.

    Closing takes the pool's lock, and a garbage collection may strike while the very
    thread it strikes in holds that.
    """

    def __init__(self) -> None:
        self._bodies: queue.SimpleQueue[tuple[Any, Watched]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._work, name="hangup-closer", daemon=True
            )
            self._thread.start()

    def close(self, inner: Any, watched: Watched) -> None:
        self._bodies.put((inner, watched))

    def _work(self) -> None:
        while True:
            inner, watched = self._bodies.get()
            guarded(_end, watched)
            guarded(inner.close)


closer = _Closer()


class _Open:
    """Bodies read for a run, so that its stop finds them. Thread-safe."""

    def __init__(self) -> None:
        self._bodies: dict[int, weakref.ref[AsyncBody | SyncBody]] = {}

    def add(self, body: AsyncBody | SyncBody) -> None:
        key = id(body)
        self._bodies[key] = weakref.ref(body, lambda _: self._bodies.pop(key, None))

    def of(self, run: Run) -> list[AsyncBody | SyncBody]:
        bodies = [reference() for reference in tuple(self._bodies.values())]
        return [
            body
            for body in bodies
            if body is not None
            and not body.watched.ended
            and body.watched.run is not None
            and run.work.encloses(body.watched.run)
        ]


_open = _Open()


def close_unread(run: Run) -> None:
    """Close the answers of a stopped run that nobody is reading right now.

    One that is being read is closed by its reader, which gets the stop itself, or
    belongs to somebody whom the stop does not concern.
    """
    for body in _open.of(run):
        if not body.watched.reading:
            body.abandon()
