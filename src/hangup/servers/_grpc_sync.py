"""One RPC of a ``grpc.server`` and its run, on the thread that serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangup.servers._common_exchange import barred, cause_of, ends_here
from hangup.servers._common_respond import message
from hangup.servers._grpc_call import CODE, Exchange, cause_field, has_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hangup.core.run import Run


class SyncExchange(Exchange):
    """Serves one RPC. Used by its thread.

    Only what the run and gRPC call back may come from another one.
    """

    def serve(self, behavior: Callable[..., Any], request: Any) -> Any:
        """Call a handler that returns its response; return that.

        Raises:
            BaseException: What the handler raised, but for a stop; what gRPC wants
                raised where the caller is told something else.
        """
        stop: BaseException | None = None
        response = None
        try:
            with self._opening.run as run:
                self._enter(run)
                try:
                    response = behavior(request, self._call)
                except Exception as error:
                    self._aborted(run, error)
                    raise
                self._finished(run)
        except BaseException as error:
            if not ends_here(error):
                raise
            stop = error
        self._conclude(stop)
        return response

    def stream(self, behavior: Callable[..., Any], request: Any) -> Iterator[Any]:
        """Yield what a handler yields.

        Raises:
            BaseException: As :meth:`serve`.
        """
        stop: BaseException | None = None
        try:
            with self._opening.run as run:
                self._enter(run)
                try:
                    for response in behavior(request, self._call):
                        if barred(run):
                            break
                        yield response
                except Exception as error:
                    self._aborted(run, error)
                    raise
                self._finished(run)
        except BaseException as error:
            if not ends_here(error):
                raise
            stop = error
        self._conclude(stop)

    def _enter(self, run: Run) -> None:
        self.begin(run)
        if not self._call.add_callback(self.left):
            self.left()  # it has been cut off already

    def _aborted(self, run: Run, error: Exception) -> None:
        """Record the outcome where the handler has ended the call by ``abort``."""
        if type(error) is Exception and has_status(self._call):
            self._finished(run)

    def _finished(self, run: Run) -> None:
        before = run.clock.monotonic()
        if not barred(run):
            self.returned(run, before)

    def _conclude(self, stop: BaseException | None) -> None:
        """Say why there is no answer, where there is none."""
        run = self._run
        if run is None or self._last:
            return
        cause = cause_of(run, stop)
        self._last = True
        self.trail(cause_field(cause))
        self._call.abort(CODE[cause], message(cause))
