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
import weakref
from typing import TYPE_CHECKING, Any

from hangup.clients.closing import closer, opened
from hangup.clients.encodings import decoding
from hangup.config import Mode
from hangup.core.admission import owner_of_cause, serves_others, stop_here
from hangup.core.cause import Cause
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.current import position
from hangup.core.guard import fault, guarded
from hangup.core.tree import current_task, place
from hangup.core.unwind import hides_refusal
from hangup.otel import exchanges

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hangup.core.drain import DrainScope
    from hangup.core.run import Run
    from hangup.core.tree import Place
    from hangup.otel.call import Exchange


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
        self.reading = False
        self.ended: bool = False
        self.reader: weakref.ref[asyncio.Task[Any]] | None = None
        # The answer comes as a whole, when all of it was generated and will be billed.
        self.whole = False
        # Who reads it, and in which drain block: either may let it go on.
        self._place: Place = None
        self._drain: DrainScope | None = None
        self.read_here()
        self._exchange = exchange
        legible, self._inflate = decoding(encoding)
        self.meter = exchange.meter if exchange is not None and legible else None
        # What most answers are: fed as they come, without the frame that ``feed`` is.
        self.plain = None if self._inflate is not None else self.meter
        self.now = (SYSTEM_CLOCK if run is None else run.clock).monotonic
        if exchange is not None:
            exchange.legible = legible

    @property
    def drained(self) -> bool:
        """Whether it is read to its end on purpose, though its run has stopped."""
        run = self.run
        return run is not None and run.work.tree.draining(self._place, self._drain)

    def read_here(self) -> None:
        """Note who reads it from here on."""
        if self.run is None:
            return
        self._place = place()
        here = position()
        self._drain = None if here is None else here.drain

    def feed(self, data: bytes) -> None:
        """Meter what has passed."""
        meter, inflate = self.meter, self._inflate
        if meter is None:
            return
        if inflate is None:
            meter.feed(data, self.now())
            return
        now = self.now()
        for piece in inflate(data):
            meter.feed(piece, now)

    def abort(self) -> None:
        """The answer was not read to its end. Idempotent."""
        self.end(complete=False)

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
            self.meter.close(self.now())
        exchanges.end(exchange)


class Body:
    """What the bodies of both kinds of clients have in common."""

    def __init__(self, inner: Any, watched: Watched) -> None:
        self._inner = inner
        self._watched = watched
        closer.start()
        if watched.run is not None:
            opened.add(self)

    @property
    def watched(self) -> Watched:
        """Its run and its exchange."""
        return self._watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def abandon(self) -> None:
        """Close it from outside: nobody will. Never waits, may be called anywhere."""
        raise NotImplementedError

    def __del__(self) -> None:
        if not self._watched.ended:
            self.abandon()


class AsyncBody(Body):
    """The body of an asynchronous client. Mixed into its stack's own stream class."""

    def __init__(self, inner: Any, watched: Watched) -> None:
        self._loop = _running_loop()
        super().__init__(inner, watched)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _AsyncReader(self, self._inner, self._watched)

    async def aclose(self) -> None:
        """Close the answer; a second time does no harm."""
        try:
            await self._inner.aclose()
        finally:
            guarded(_end, self._watched)

    def abandon(self) -> None:
        """Close it from outside, on its loop."""
        loop, watched = self._loop, self._watched
        try:
            if loop is not None:
                loop.call_soon_threadsafe(
                    _close_soon, self._inner, watched, context=contextvars.Context()
                )
                return
        except RuntimeError:  # the loop is closed, and its connections with it
            pass
        closer.close(None, watched)


class _AsyncReader:
    """Reads a body. It goes with the loop that reads: then nobody can read on."""

    __slots__ = ("_body", "_next", "_now", "_plain", "_watched")

    def __init__(self, body: AsyncBody, inner: Any, watched: Watched) -> None:
        self._body = body
        self._next = inner.__aiter__().__anext__
        self._watched = watched
        self._plain, self._now = watched.plain, watched.now
        task = current_task()
        watched.reader = None if task is None else weakref.ref(task)
        guarded(watched.read_here)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        watched = self._watched
        if (
            watched.ended
            and watched.run is not None
            and (stop := guarded(_why_closed, watched.run)) is not None
        ):
            raise stop
        watched.reading = True
        try:
            data: bytes = await self._next()
        except StopAsyncIteration:
            guarded(_end, watched, True)  # noqa: FBT003
            raise
        except BaseException as error:
            guarded(_end, watched)
            if watched.run is not None and hides_refusal(error):
                raise watched.run.error() from error
            raise
        finally:
            watched.reading = False
        if watched.meter is not None:
            try:
                if self._plain is not None:
                    self._plain.feed(data, self._now())
                else:
                    watched.feed(data)
            except Exception as error:  # noqa: BLE001  any fault of ours
                fault("Watched.feed", error)
        return data

    def __del__(self) -> None:
        if not self._watched.ended:
            self._body.abandon()


class SyncBody(Body):
    """The body of a synchronous client. Mixed into its stack's own stream class."""

    def __iter__(self) -> Iterator[bytes]:
        return _SyncReader(self, self._inner, self._watched)

    def close(self) -> None:
        """Close the answer; a second time does no harm."""
        try:
            self._inner.close()
        finally:
            guarded(_end, self._watched)

    def abandon(self) -> None:
        """Close it from outside, on a thread."""
        closer.close(self._inner, self._watched)


class _SyncReader:
    """Reads a body. A thread cannot be interrupted, so it is asked at every chunk."""

    __slots__ = ("_body", "_next", "_watched")

    def __init__(self, body: SyncBody, inner: Any, watched: Watched) -> None:
        self._body = body
        self._next = iter(inner).__next__
        self._watched = watched
        guarded(watched.read_here)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        watched = self._watched
        self._ask()
        watched.reading = True
        try:
            data: bytes = self._next()
        except StopIteration:
            guarded(_end, watched, True)  # noqa: FBT003
            raise
        except BaseException as error:
            guarded(_end, watched)
            self._tell(error)
            raise
        finally:
            watched.reading = False
        if watched.meter is not None:
            try:
                watched.feed(data)
            except Exception as error:  # noqa: BLE001  any fault of ours
                fault("Watched.feed", error)
        # Whoever waited for this may have been stopped meanwhile, and never ask again.
        self._ask()
        return data

    def _tell(self, error: BaseException) -> None:
        """Raise the stop in place of the timeout that it came by."""
        run = self._watched.run
        if run is None or not isinstance(error, Exception):
            return
        if (stop := guarded(stop_reading, run)) is not None:
            raise stop from error

    def _ask(self) -> None:
        """Close the answer and raise the stop if its run must not go on.

        Not while a whole answer is read: what it cost is spent, and stands at its end.
        """
        watched = self._watched
        run, meter = watched.run, watched.meter
        if run is None or (watched.whole and meter and not meter.streamed):
            return
        if watched.ended and (stop := guarded(_why_closed, run)) is not None:
            raise stop
        if (stop := guarded(stop_reading, run)) is not None:
            self._body.close()
            raise stop

    def __del__(self) -> None:
        if not self._watched.ended:
            self._body.abandon()


def stop_reading(run: Run) -> BaseException | None:
    """Return the stop for what is in flight; in refuse mode nothing of it is cut."""
    abandonment = run.token.abandonment
    killed = abandonment is not None and abandonment.cause is Cause.KILLED
    if run.mode is not Mode.ENFORCE and not killed:
        return None
    return stop_here(run, under_way=True)


def _why_closed(run: Run) -> BaseException | None:
    """Return what tells a reader that its answer was closed from outside.

    Also where it would not be refused, in a clean-up: the answer is gone.
    """
    if run.token.abandonment is None:
        return None
    return stop_here(run) or owner_of_cause(run).error()


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
    reader = None if watched.reader is None else watched.reader()
    if (
        watched.run is not None
        and reader is not None
        and not reader.done()
        and serves_others(watched.run, reader)
    ):
        return  # it is theirs too
    # Now: the loop may end before the task's first step.
    guarded(_end, watched)
    task = asyncio.get_running_loop().create_task(_close(inner))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close(inner: Any) -> None:
    with contextlib.suppress(Exception):  # the connection is gone either way
        await inner.aclose()
