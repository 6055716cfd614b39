"""``grpc.aio``: where calls begin, and where their ends are heard of."""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from hangup.clients.grpc_hop import Hop
from hangup.core.guard import guarded
from hangup.errors import RunAbandoned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator

    from hangup.otel.mending import Wanted
    from hangup.otel.patch import Patch

    Accepts = Callable[[Any], bool]

_HOP: Final = "_hangup_hop"
_MODULE: Final = "grpc.aio._call"


def _begun(accepts: Accepts, original: Any, patch: Patch) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(  # noqa: N807, PLR0913, PLR0917  gRPC's
        self: Any,
        request: Any,
        deadline: float | None,
        metadata: Any,
        credentials: Any,
        wait_for_ready: Any,
        channel: Any,
        *more: Any,
        **named: Any,
    ) -> None:
        ours = patch.active and accepts(channel)
        hop = guarded(_hop_to, channel) if ours else None
        if hop is not None:
            clamped = guarded(_deadline, hop, deadline)
            deadline = deadline if clamped is None else clamped
            metadata = guarded(_metadata, hop, metadata) or ()
        original(
            self,
            request,
            deadline,
            metadata,
            credentials,
            wait_for_ready,
            channel,
            *more,
            **named,
        )
        if hop is not None and hop.matters:
            setattr(self, _HOP, hop)
            guarded(_watch, self, hop)

    return __init__


_targets: dict[int, str] = {}


def note_target(channel: object, core: object, target: str) -> None:
    """Remember the target of a channel whose core does not tell, as in older gRPC."""
    if not hasattr(core, "target"):
        _targets[id(core)] = target
        weakref.finalize(channel, _targets.pop, id(core), None)


def _hop_to(channel: Any) -> Hop:
    # One that is not known is somebody else's: nothing of ours is sent there.
    target = getattr(channel, "target", None) or _targets.get(id(channel), "")
    return Hop(target.decode() if isinstance(target, bytes) else str(target))


def _deadline(hop: Hop, given: float | None) -> float | None:
    """Clamp a deadline, which gRPC counts by the wall clock."""
    now = time.time()
    before = None if given is None else given - now
    left = hop.timeout(before)
    return given if left is before or left is None else now + left


def _metadata(hop: Hop, given: Any) -> Any:
    pairs = hop.metadata(given)
    if hasattr(given, "get_all"):
        return type(given)(*pairs)
    return tuple(pairs)


def _watch(call: Any, hop: Hop) -> None:
    loop = call._loop  # noqa: SLF001  it has no other name

    def cancel() -> None:
        try:
            loop.call_soon_threadsafe(call.cancel)
        except RuntimeError:  # the loop is closed, and the call with it
            return

    call.add_done_callback(lambda done: guarded(_over, done, hop))
    hop.watch(cancel)


def _over(call: Any, hop: Hop) -> None:
    hop.over(_at_once(call.trailing_metadata()))


def _at_once(coroutine: Any) -> Any:
    """Return what a coroutine returns that has nothing left to wait for, or None."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    return None


def _is_timeout(error: BaseException) -> bool:
    code = getattr(error, "code", None)
    return callable(code) and getattr(code(), "name", "") == "DEADLINE_EXCEEDED"


def _concerns(call: Any, patch: Patch) -> Hop | None:
    hop: Hop | None = getattr(call, _HOP, None)
    return hop if patch.active and hop is not None and hop.run is not None else None


def _awaited(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def __await__(self: Any) -> Generator[Any, None, Any]:  # noqa: N807
        hop = _concerns(self, patch)
        if hop is None:
            return (yield from original(self))
        try:
            return (yield from original(self))
        except (asyncio.CancelledError, Exception) as error:
            stop = yield from _stop(hop, error).__await__()
            if stop is None:
                raise
            raise stop from error

    return __await__


async def _stop(hop: Hop, error: BaseException) -> BaseException | None:
    """Return the stop to raise in place of an error, None where that stands."""
    if isinstance(error, RunAbandoned):
        return None  # it is one: the channel is attached, and instrumented too
    wait = hop.patience(timed_out=_is_timeout(error))
    if wait:
        await asyncio.sleep(wait)
    return hop.stop(cancelled=isinstance(error, asyncio.CancelledError))


def _read(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def read(self: Any) -> Any:
        hop = _concerns(self, patch)
        if hop is None:
            return await original(self)
        try:
            return await original(self)
        except (asyncio.CancelledError, Exception) as error:
            stop = await _stop(hop, error)
            if stop is None:
                raise
            raise stop from error

    return read


def _iterated(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def fetch(self: Any) -> AsyncIterator[Any]:
        hop = _concerns(self, patch)
        try:
            async for message in original(self):
                yield message
        except (asyncio.CancelledError, Exception) as error:
            if hop is None:
                raise
            stop = await _stop(hop, error)
            if stop is None:
                raise
            raise stop from error

    return fetch


def patches(accepts: Accepts) -> tuple[Wanted, ...]:
    """Return what is wrapped.

    Args:
        accepts: Whether a channel, one of gRPC's core, is concerned.
    """
    begun = functools.partial(_begun, accepts)
    return (
        (_MODULE, "UnaryUnaryCall", "__init__", begun),
        (_MODULE, "UnaryStreamCall", "__init__", begun),
        (_MODULE, "StreamUnaryCall", "__init__", begun),
        (_MODULE, "StreamStreamCall", "__init__", begun),
        (_MODULE, "_UnaryResponseMixin", "__await__", _awaited),
        (_MODULE, "_StreamResponseMixin", "read", _read),
        (_MODULE, "_StreamResponseMixin", "_fetch_stream_responses", _iterated),
    )
