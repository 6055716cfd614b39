"""One WSGI request and its run: what was sent, who is there, what is still owed."""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from hangup.config import Mode
from hangup.core.admission import stop_here
from hangup.core.cause import Cause
from hangup.core.current import Position, enter
from hangup.otel import runspan
from hangup.servers._common_exchange import (
    SERVER_ERROR,
    barred,
    cause_of,
    connect,
    ends_here,
    failure,
    goes_on,
)
from hangup.servers._common_farewell import shut_down
from hangup.servers._common_respond import SETTLE_FIELD, answer, to_nobody
from hangup.servers._wsgi_body import Body, SizedBody
from hangup.servers._wsgi_connection import Connection
from hangup.servers._wsgi_environ import django_route, flask_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from _typeshed import OptExcInfo

    from hangup.core.run import Run
    from hangup.servers._common_terms import Opening

    T = TypeVar("T")

_EXITS = (SystemExit, KeyboardInterrupt)
_NO_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class Exchange:
    """Serves one request. Used by the thread that serves it.

    Only what the run and the socket watch call back may come from another thread.
    ``start_response`` of the server is called with the first bytes, so that until then
    the application's response can be replaced.

    Args:
        environ: The request.
        start_response: The server's.
        opening: How to serve it.
    """

    def __init__(
        self, environ: WSGIEnvironment, start_response: StartResponse, opening: Opening
    ) -> None:
        self._environ = environ
        self._server = start_response
        self._opening = opening
        self._run: Run
        self._start: tuple[str, list[tuple[str, str]]] | None = None
        # The server's, once it has the headers.
        self._write: Callable[[bytes], object] | None = None
        self._status = 0
        self._rule: str | None = None
        self._left_to_send: int | None = None  # None: nobody said how much it will be
        self._last = False  # the last of it is being, or was, handed to the server
        self._instead = False  # the application's response is not for the caller
        self._handed_at: float | None = None
        self._complete = False  # the server has taken all of it
        self._concluded = False  # the caller has our answer, or was cut off
        self._gone = False
        self._over = False  # the scope was left
        self._connection = Connection(environ)
        self._result: Iterable[bytes] = ()

    def serve(self, app: WSGIApplication) -> Iterable[bytes]:
        """Call the application; return what the server is to send.

        Raises:
            BaseException: What the application raised, but for a stop.
        """
        run = self._run = self._opening.run.__enter__()
        unseen = id(run) in runspan.unseen
        try:
            connect(run, self._opening.inbound)
            run.on_spending(self._spending)
            self._result = result = app(self._environ, self.start_response)
            if self._is_barred():
                self._close_result()
            elif self._is_over_with(result):
                self._flush()
                self._finished()
                self._leave(None)
                return result
            else:
                self._opening.run.step_out()
                if unseen and run.span is None:
                    runspan.await_span(run)
                return (SizedBody if hasattr(result, "__len__") else Body)(self, result)
        except BaseException as error:  # noqa: BLE001  raised again unless it is a stop
            instead = self._conclude(error)
        else:
            instead = self._conclude(None)
        return [] if instead is None else [instead]

    def _is_over_with(self, result: Iterable[bytes]) -> bool:
        """Whether the run has no part in what is left to do: send ``result`` as it is.

        A file goes to the server untouched, so that it can be sent as one.
        """
        wrapper = self._environ.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(result, wrapper):
            return True
        return self._run.latent and isinstance(result, (list, tuple))

    # What the application calls

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: OptExcInfo | None = None,
        /,
    ) -> Callable[[bytes], object]:
        """Take the application's status and headers.

        Raises:
            AssertionError: Called twice without ``exc_info``.
            BaseException: That of ``exc_info``, where the headers are sent already.
        """
        if self._write is not None:
            # The server knows what PEP 3333 wants: it raises.
            self._server(status, headers, exc_info)
        elif self._start is not None and not exc_info:
            raise AssertionError("start_response was called twice without exc_info")
        self._start = (status, headers)
        self._rule = flask_rule(self._environ)
        self._status = int(status[:3]) if status[:3].isdecimal() else 0
        length = next((v for n, v in headers if n.lower() == "content-length"), "")
        self._left_to_send = int(length) if length.isdecimal() else None
        run = self._run
        # The framework's 500 for a call that was refused: the caller is told the cause.
        self._instead = (
            self._write is None
            and self._status == SERVER_ERROR
            and not run.latent
            and run.mode is Mode.REFUSE
            and run.cause not in (None, Cause.FAILED, Cause.DISCONNECT)
        )
        return self._written

    def _written(self, data: bytes) -> None:
        """Hand bytes on; what the application gets as ``write``."""
        if self._is_barred():
            stop = stop_here(self._run)
            if stop is not None:
                raise stop
            return
        self._flush()
        if self._write is None:  # pragma: no cover  flushed just now
            return
        try:
            self._write(data)
        except OSError:
            self.left()
            if not goes_on(self._run):
                raise

    # What the body calls

    def inside(self, function: Callable[..., T], *args: object) -> T:
        """Call a part of the application in its run."""
        leave = enter(Position(self._run))
        try:
            return function(*args)
        finally:
            leave()

    def next_chunk(self, iterator: Iterator[bytes]) -> bytes:
        """Return the next bytes for the server, the application's or ours.

        Raises:
            StopIteration: There are no more.
            BaseException: What the application raised, but for a stop; an ``OSError``
                to make the server leave the response unfinished.
        """
        if self._concluded:
            raise StopIteration
        if not self._last and self._is_barred():
            return self._ended_by(None)
        try:
            chunk: bytes = self.inside(next, iterator)
            stopped = not self._last and self._is_barred()
            if not stopped:
                self._flush()
        except StopIteration:
            if not self._last and self._is_barred():
                return self._ended_by(None)
            self._flush()
            self._finished()
            raise
        except BaseException as error:  # noqa: BLE001  raised again unless it is a stop
            return self._ended_by(error)
        if stopped:
            return self._ended_by(None)
        if self._left_to_send is not None and not self._last:
            self._left_to_send -= len(chunk)
            if self._left_to_send <= 0:
                self._last, self._handed_at = True, self._run.clock.monotonic()
        return chunk

    def _ended_by(self, error: BaseException | None) -> bytes:
        instead: bytes | None = self.inside(self._conclude, error)
        if instead is None:
            raise StopIteration
        return instead

    def closed(self, iterator: Iterator[bytes] | None) -> None:
        """See to a response that the server closes: sent, or given up.

        Raises:
            BaseException: What the application's ``close`` raised, but for a stop.
        """
        run = self._run
        if not self._over and not self._complete and self._is_cut_short():
            if isinstance(sys.exc_info()[1], _EXITS):  # what the server closes for
                shut_down(run)
            self.left()
            if iterator is not None and goes_on(run):
                self._read_on(iterator)
        try:
            self.inside(self._close_result)
        except BaseException as error:  # noqa: BLE001  raised again unless it is a stop
            out = self._leave(error)
            if out is not None and not ends_here(out):
                raise out from out.__cause__
        else:
            self.inside(self._leave, None)

    def _is_cut_short(self) -> bool:
        """Whether the server stopped before the end of the response.

        It need not read a body that is not to be sent, nor beyond its declared length:
        then only the socket tells whether there was somebody to take it.
        """
        if self._environ.get("REQUEST_METHOD") == "HEAD" or self._status in _NO_BODY:
            self._finished()
            return False
        if self._last and not self._gone and self._connection.is_up():
            self._finished()
            return False
        self._last = False
        return True

    def _read_on(self, iterator: Iterator[bytes]) -> None:
        """Let a run go on whose client left: read its response into nothing."""
        try:
            while goes_on(self._run):
                self.inside(next, iterator)
        except StopIteration:
            self._finished()
        except BaseException as error:  # noqa: BLE001  raised again unless it is a stop
            out = self.inside(self._leave, error)
            if out is not None and not ends_here(out):
                raise out from out.__cause__

    # The end

    def _finished(self) -> None:
        """Record the outcome: the response is complete."""
        run = self._run
        self._last = self._complete = True
        self._connection.unwatch()
        failed = failure(self._status)
        if failed is not None and not run.latent:
            run.cancel(Cause.FAILED, failed)
        elif not run.absence.away:
            # The answer stands, although the deadline may have passed while the server
            # took the last of it.
            run.deliver(at=self._handed_at if run.mode is Mode.ENFORCE else None)

    def _conclude(self, error: BaseException | None) -> bytes | None:
        """Leave the scope, and say what is owed instead of a response.

        Returns:
            The body of the answer; None where the response had begun and its connection
            was cut.

        Raises:
            BaseException: ``error``, where it is no stop.
            ConnectionResetError: The response had begun, and its connection cannot be
                cut here.
        """
        stop = self._leave(error)
        if stop is not None and not ends_here(stop):
            raise stop from stop.__cause__
        cause = cause_of(self._run, stop)
        self._last = self._concluded = True
        if self._write is not None:
            self._connection.cut(cause)
            return None
        nobody = cause is Cause.DISCONNECT and self._gone
        status, phrase, headers, body = to_nobody() if nobody else answer(cause)
        self._server(f"{status} {phrase}", headers)
        return body

    def _leave(self, error: BaseException | None) -> BaseException | None:
        """Leave the scope, once; return what is to be raised, if anything."""
        if self._over:
            return error
        self._over = True
        self._connection.unwatch()
        if isinstance(error, _EXITS):
            shut_down(self._run)
        kind = None if error is None else type(error)
        trace = None if error is None else error.__traceback__
        try:
            self._opening.run.__exit__(kind, error, trace)
        except BaseException as replacement:  # noqa: BLE001  the caller raises it
            return replacement
        return error

    def _close_result(self) -> None:
        result, self._result = self._result, ()
        close = getattr(result, "close", None)
        if close is not None:
            close()

    def _flush(self) -> None:
        """Let the server have the headers; from then on nothing else can be said."""
        if self._write is not None or self._start is None:
            return
        status, headers = self._start
        if self._run.joined:
            headers = [*headers, SETTLE_FIELD]
        self._write = self._server(status, headers)

    def _is_barred(self) -> bool:
        return self._instead or barred(self._run)

    # Who is there

    def left(self) -> None:
        """Note that the client left. Any thread."""
        run = self._run
        if self._last:
            return
        self._gone = True
        if not run.absence.returned:
            run.leave()

    def _spending(self) -> None:
        """Name the run, and look out for its client. Any thread; called once."""
        run, opening, environ = self._run, self._opening, self._environ
        run.name = (
            opening.name
            or self._rule
            or flask_rule(environ)
            or django_route(environ)
            or opening.fallback
        )
        if not self._over:
            self._connection.watch(self.left)
            if self._over:  # meanwhile, on its own thread
                self._connection.unwatch()
