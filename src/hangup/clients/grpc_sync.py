"""``grpc``: where blocking calls begin, and where their ends are heard of.

A call that blocks until its answer is there cannot be cut. Where a run may have to, it
is made as a future and waited for, and looks the same from outside.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from hangup.clients.grpc_hop import Hop
from hangup.core.guard import guarded
from hangup.errors import RunAbandoned

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.otel.mending import Wanted
    from hangup.otel.patch import Patch

    Accepts = Callable[[Any], bool]

_HOP: Final = "_hangup_hop"
_MODULE: Final = "grpc._channel"


def _hop_from(callable_: Any) -> Hop:
    target = getattr(callable_, "_target", None)
    if target is None:
        target = callable_._channel.target()  # noqa: SLF001  it has no other name
    return Hop(target.decode() if isinstance(target, bytes) else str(target))


def _prepared(
    hop: Hop, timeout: float | None, metadata: Any
) -> tuple[float | None, Any]:
    pairs = hop.metadata(metadata)
    return hop.timeout(timeout), tuple(pairs) if pairs or metadata else metadata


def _whole(accepts: Accepts, original: Any, patch: Patch) -> Callable[..., Any]:
    """Make ``__call__``, which returns the response."""

    @functools.wraps(original)
    def __call__(  # noqa: N807
        self: Any, request: Any, *args: Any, **named: Any
    ) -> Any:
        ours = patch.active and accepts(self._channel)
        hop = guarded(_hop_from, self) if ours else None
        if hop is not None and hop.matters:
            return self.with_call(request, *args, **named)[0]
        return _bare(self, hop, original, request, *args, **named)

    return __call__


def _bare(  # noqa: PLR0913, PLR0917  gRPC's, and three of ours
    self: Any,
    hop: Hop | None,
    original: Any,
    request: Any,
    timeout: float | None = None,
    metadata: Any = None,
    *more: Any,
    **named: Any,
) -> Any:
    """Call for no run: all that is done is to let nothing of one out."""
    if hop is not None and metadata:
        prepared = guarded(_prepared, hop, timeout, metadata)
        timeout, metadata = prepared or (timeout, None)
    return original(self, request, timeout, metadata, *more, **named)


def _with_call(accepts: Accepts, original: Any, patch: Patch) -> Callable[..., Any]:
    """Make ``with_call``, which returns the response and the call."""

    @functools.wraps(original)
    def with_call(
        self: Any,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        *more: Any,
        **named: Any,
    ) -> tuple[Any, Any]:
        ours = patch.active and accepts(self._channel)
        hop = guarded(_hop_from, self) if ours else None
        if hop is None or not hop.matters:
            found: tuple[Any, Any] = _bare(
                self, hop, original, request, timeout, metadata, *more, **named
            )
            return found
        if hop.interruptible:
            call = self.future(request, timeout, metadata, *more, **named)
            return _result(call), call
        prepared = guarded(_prepared, hop, timeout, metadata)
        timeout, metadata = prepared or (timeout, None)
        try:
            response, call = original(self, request, timeout, metadata, *more, **named)
        except Exception as error:
            guarded(_over, error, hop)
            _instead(hop, error)
            raise
        guarded(_over, call, hop)
        return response, call

    return with_call


def _result(call: Any) -> Any:
    """Wait for a future as the blocking call would have; raises what that would."""
    try:
        return call.result()
    except Exception as error:
        inactive = _inactive(call)
        if inactive is None or isinstance(error, type(inactive)):
            raise
        if error is call or type(error).__name__ == "FutureCancelledError":
            raise inactive from None
        raise
    except BaseException:
        call.cancel()
        raise


def _inactive(call: Any) -> Any:
    """Return the error of the blocking calls for the end that a future came to."""
    state = getattr(call, "_state", None)
    make = getattr(_module(), "_InactiveRpcError", None)
    return None if state is None or make is None else make(state)


def _module() -> Any:
    """Return gRPC's module, which is imported: calls of it come through here."""
    return sys.modules[_MODULE]


def _begun(accepts: Accepts, original: Any, patch: Patch) -> Callable[..., Any]:
    """Make what returns a call at once: ``future``, and ``__call__`` of streams."""

    @functools.wraps(original)
    def begin(
        self: Any,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        *more: Any,
        **named: Any,
    ) -> Any:
        ours = patch.active and accepts(self._channel)
        hop = guarded(_hop_from, self) if ours else None
        if hop is None or not hop.matters:
            return _bare(
                self, hop, original, request, timeout, metadata, *more, **named
            )
        prepared = guarded(_prepared, hop, timeout, metadata)
        timeout, metadata = prepared or (timeout, None)
        call = original(self, request, timeout, metadata, *more, **named)
        guarded(_watch, call, hop)
        return call

    return begin


def _watch(call: Any, hop: Hop) -> None:
    # Nothing of ours may hold the call: gRPC cancels a stream that its owner drops.
    state, there = call._state, weakref.ref(call)  # noqa: SLF001  as in _inactive

    def cancel() -> None:
        one = there()
        if one is not None:
            one.cancel()

    setattr(call, _HOP, hop)
    hop.watch(cancel)
    if not call.add_callback(lambda: guarded(_ended, state, hop)):
        hop.over(None)


def _ended(state: Any, hop: Hop) -> None:
    hop.over(state.trailing_metadata)


def _over(call: Any, hop: Hop) -> None:
    """Note the end of a call by what is left of it: itself, or its error."""
    trailing = getattr(call, "trailing_metadata", None)
    hop.over(None if trailing is None else trailing())


def _instead(hop: Hop | None, error: BaseException) -> None:
    """Raise the stop of the run in place of an error, where that is due."""
    if hop is None or hop.run is None or isinstance(error, RunAbandoned):
        return  # it is a stop where the channel is attached, and instrumented too
    code = getattr(error, "code", None)
    timed_out = callable(code) and getattr(code(), "name", "") == "DEADLINE_EXCEEDED"
    wait = hop.patience(timed_out=timed_out)
    if wait:
        time.sleep(wait)
    stop = hop.stop()
    if stop is not None:
        raise stop from error


def _heard(original: Any, patch: Patch) -> Callable[..., Any]:
    """Make what waits for a call: ``__next__`` and ``result``."""

    @functools.wraps(original)
    def heard(self: Any, *args: Any, **named: Any) -> Any:
        hop = getattr(self, _HOP, None) if patch.active else None
        if hop is None:
            return original(self, *args, **named)
        try:
            return original(self, *args, **named)
        except StopIteration:
            raise
        except Exception as error:
            _instead(hop, error)
            raise

    return heard


def patches(accepts: Accepts) -> tuple[Wanted, ...]:
    """Return what is wrapped.

    Args:
        accepts: Whether a channel, one of gRPC's core, is concerned.
    """
    begun = functools.partial(_begun, accepts)
    wholes = ("_UnaryUnaryMultiCallable", "_StreamUnaryMultiCallable")
    streams = (
        "_UnaryStreamMultiCallable",
        "_SingleThreadedUnaryStreamMultiCallable",
        "_StreamStreamMultiCallable",
    )
    whole = functools.partial(_whole, accepts)
    with_call = functools.partial(_with_call, accepts)
    return (
        *((_MODULE, name, "__call__", whole) for name in wholes),
        *((_MODULE, name, "with_call", with_call) for name in wholes),
        *((_MODULE, name, "future", begun) for name in wholes),
        *((_MODULE, name, "__call__", begun) for name in streams),
        (_MODULE, "_Rendezvous", "__next__", _heard),
        (_MODULE, "_MultiThreadedRendezvous", "result", _heard),
    )
