"""What one RPC opens, and how what becomes of it is said in gRPC.

======================== =====================
cause                    status
======================== =====================
deadline                 ``DEADLINE_EXCEEDED``
killed, superseded       ``ABORTED``
shutdown                 ``UNAVAILABLE``
disconnect (of the user  ``ABORTED``
behind a caller who is
still there)
failed                   ``INTERNAL``
======================== =====================

``ABORTED`` is what HTTP's 409 is in gRPC (google/rpc/code.proto). Not ``CANCELLED``: a
client takes that for its own cancel. The cause is in the trailing metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc  # type: ignore[import-untyped]

from hangup.core.cause import Cause
from hangup.servers._common_exchange import connect
from hangup.servers._common_farewell import shut_down
from hangup.servers._common_respond import CAUSE_HEADER, SETTLE_FIELD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.core.run import Run
    from hangup.servers._common_terms import Opening

CODE: Final = {
    Cause.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cause.KILLED: grpc.StatusCode.ABORTED,
    Cause.SUPERSEDED: grpc.StatusCode.ABORTED,
    Cause.SHUTDOWN: grpc.StatusCode.UNAVAILABLE,
    Cause.DISCONNECT: grpc.StatusCode.ABORTED,
    Cause.FAILED: grpc.StatusCode.INTERNAL,
}
# The statuses that say that the server, not the request, is at fault: 500 and above.
_FAULTS: Final = {
    code.value[0]: code.name
    for code in (
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    )
}
# A peer whose own deadline ends the RPC does so at that instant, give or take its way
# here and a turn of two event loops.
_NEAR: Final = 0.05
_NEVER: Final = 10 * 365 * 24 * 3600.0


def fields_of(context: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield the metadata of a call as header fields."""
    for key, value in context.invocation_metadata() or ():
        text = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
        yield key.encode("latin-1", "replace"), text


def time_left(context: Any) -> float | None:
    """Return the seconds to the call's own deadline, None where it has none."""
    left = context.time_remaining()
    return None if left is None or left > _NEVER else max(0.0, left)


def failure(context: Any) -> str | None:
    """Return how the status that the application set fails the run, if it does."""
    code = _code(context)
    return f"status {_FAULTS[code]}" if code in _FAULTS else None


def has_status(context: Any) -> bool:
    """Whether the application has set a status that is not OK."""
    return bool(_code(context))


def _code(context: Any) -> int:
    read = getattr(context, "code", None)
    code = None if read is None else read()
    if isinstance(code, grpc.StatusCode):
        return int(code.value[0])
    return int(code or 0)


class Exchange:
    """One RPC and its run, as both kinds of server see them.

    Args:
        opening: How to serve it.
        context: gRPC's.
        method: ``/package.Service/Method``.

    Attributes:
        closing: The server is going down; who is cut off now did not leave.
    """

    closing = False
    _last = False  # the last of it is being, or was, handed to the server

    def __init__(self, opening: Opening, context: Any, method: str) -> None:
        self._opening = opening
        self._call = context
        self._method = method
        self._run: Run | None = None

    def begin(self, run: Run) -> None:
        """See that the run, which was just entered, has its name once it needs one."""
        self._run = run
        connect(run, self._opening.inbound)
        run.on_spending(self.spending)

    def spending(self) -> None:
        """Name the run. Any thread; called once, before anybody hears of it."""
        if self._run is not None:
            self._run.name = self._opening.name or self._method

    def left(self) -> None:
        """Note that the call was cut off, and say for the run why. Any thread."""
        run = self._run
        if run is None or self._last:
            return
        left = time_left(self._call)
        if self.closing:
            if not run.latent:
                shut_down(run)
        elif left is not None and left <= _NEAR:
            # gRPC itself has ended it, here or at the caller's end.
            if run.cancel(Cause.DEADLINE, "of the call"):
                run.caller = "gone"
        elif not run.absence.returned:
            run.leave()

    def shut_down(self) -> None:
        """Abandon the run, unless it is latent, because the process goes down."""
        self.closing = True
        if self._run is not None and not self._run.latent:
            shut_down(self._run)

    def returned(self, run: Run, before: float) -> None:
        """Record the outcome: the handler has said all it has to say.

        Args:
            run: The run.
            before: When the answer was found to stand, on the run's clock.
        """
        self._last = True
        failed = failure(self._call)
        if run.latent:
            run.deliver()
        elif failed is not None:
            run.cancel(Cause.FAILED, failed)
        elif not run.absence.away:
            # The stop did not come before the answer stood.
            run.deliver(at=before if run.mode.refuses else None)
        if run.joined and not run.latent:
            self.trail(SETTLE_FIELD)

    def trail(self, *fields: tuple[str, str]) -> None:
        """Add to the metadata that ends the call."""
        there = self._call.trailing_metadata() or ()
        self._call.set_trailing_metadata((*there, *fields))


def cause_field(cause: Cause) -> tuple[str, str]:
    """Return the metadata that names the cause."""
    return (CAUSE_HEADER, cause.value)
