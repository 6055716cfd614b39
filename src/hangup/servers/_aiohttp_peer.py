"""What aiohttp.web knows of a request's connection, and how it is made to tell."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

POLL_SECONDS: Final = 0.25
"""Between two looks at the connection, where aiohttp does not tell of its end."""

_HOOK: Final = "_cancel"


def is_gone(request: web.BaseRequest) -> bool:
    """Whether the connection is closed, or about to be."""
    transport = request.transport
    return transport is None or transport.is_closing()


def abort(request: web.BaseRequest) -> None:
    """Close the connection at once, with what is still to be written."""
    transport = request.transport
    if transport is not None:
        transport.abort()


def template(request: web.Request) -> str | None:
    """Return the route template; never the path itself."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical or None


def is_lazy(response: web.StreamResponse) -> bool:
    """Whether code of the application runs while the response is sent."""
    body = response.body if isinstance(response, web.Response) else None
    return not isinstance(body, (bytes, bytearray, type(None)))


def write_into_nothing(response: web.StreamResponse, alone: Callable[[], bool]) -> None:
    """Keep it from the application that its client left, while ``alone`` says so."""
    for name in ("write", "write_eof"):
        setattr(response, name, _forgiving(getattr(response, name), alone))


def _forgiving(
    write: Callable[..., Awaitable[None]], alone: Callable[[], bool]
) -> Callable[..., Awaitable[None]]:
    @functools.wraps(write)
    async def written(*data: Any) -> None:
        try:
            await write(*data)
        except ConnectionError:
            if not alone():
                raise

    return written


def watch(
    request: web.BaseRequest,
    left: Callable[[], None],
    ending: Callable[[], None],
    *,
    told: bool,
) -> Callable[[], None]:
    """Hear of the end of a request's connection. On its event loop.

    aiohttp tells a request of it, and of a shutdown that it has outlasted, by a method
    that is not public. Where that is gone, or the request may be a clone of the one
    that is told, the connection is looked at now and then.

    Args:
        request: The request.
        left: Called once when the client has left; at once, if it has before.
        ending: Called when the server gives the request up to end.
        told: Whether this is the request that aiohttp made.

    Returns:
        A function that stops watching. Idempotent.
    """
    if is_gone(request):
        left()
        return lambda: None
    tell = getattr(request, _HOOK, None)
    if not told or not callable(tell):
        return _Poll(request, left).cancel

    def hook(error: BaseException) -> None:
        tell(error)
        shutdown = isinstance(error, asyncio.CancelledError)
        guarded(ending if shutdown else left)

    # Past a __setattr__ that in debug mode warns of attributes it does not know.
    object.__setattr__(request, _HOOK, hook)

    def forget() -> None:
        vars(request).pop(_HOOK, None)

    return forget


class _Poll:
    """Looks at a connection until it is gone, or nobody asks any more."""

    def __init__(self, request: web.BaseRequest, left: Callable[[], None]) -> None:
        self._request = request
        self._left = left
        self._timer = self._later()

    def _later(self) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(POLL_SECONDS, self._look)

    def _look(self) -> None:
        if is_gone(self._request):
            guarded(self._left)
        else:
            self._timer = self._later()

    def cancel(self) -> None:
        self._timer.cancel()
