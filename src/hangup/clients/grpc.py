"""gRPC, ``grpc`` and ``grpc.aio``: what leaves carries the run and ends with it.

Wrapped beneath every interceptor, where an RPC is handed to gRPC's core; so it does not
matter who instruments first, and nothing is carried twice. For a run that is enforced

- an RPC takes no longer than the run has left, nor than its caller said;
- it is cancelled when the run stops;
- its error, once the run has stopped, is the stop, which no retry swallows.

In every mode the metadata of an RPC to an internal host carries the run (``hangup``,
``baggage``), and that to any other host nothing of it, whatever an interceptor has put
there. Servers that are made while this is installed get the interceptor of
:mod:`hangup.servers.grpc`.

RPCs behind ``hangup.cleanup`` and ``hangup.irreversible`` are neither cut nor given
less time, nor are those that begin when the run has stopped.
"""

from __future__ import annotations

import functools
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hangup.clients import settle
from hangup.clients.grpc_aio import PATCHES as AIO
from hangup.clients.grpc_settle import SCHEME, channels, post
from hangup.clients.grpc_sync import PATCHES as SYNC
from hangup.clients.mending import Mending
from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.clients.patch import Patch

# A server's adapter is no business of a client's: it is loaded by name.
_SERVERS: Final = "hangup.servers.grpc"
_OURS: Final = "_hangup_interceptor"
_ANSWERS: Final = 0.1


def _made_channel(original: Any, patch: Patch) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(  # noqa: N807
        self: Any, target: str, options: Any, credentials: Any, *more: Any, **named: Any
    ) -> None:
        if patch.active:
            guarded(channels.note, target, options, credentials)
        original(self, target, options, credentials, *more, **named)

    return __init__


def _made_server(kind: str) -> Callable[[Any, Patch], Callable[..., None]]:
    def make(original: Any, patch: Patch) -> Callable[..., None]:
        def join(server: Any, interceptors: Any) -> Any:
            servers = import_module(_SERVERS)
            joined, ours = servers.join(
                interceptors, getattr(servers, kind), lambda: patch.active
            )
            setattr(server, _OURS, ours)
            return joined

        @functools.wraps(original)
        def __init__(  # noqa: N807
            self: Any, pool: Any, handlers: Any, interceptors: Any, *a: Any, **kw: Any
        ) -> None:
            joined = guarded(join, self, interceptors) if patch.active else None
            joined = interceptors if joined is None else joined
            original(self, pool, handlers, joined, *a, **kw)

        return __init__

    return make


def _stop(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def stop(self: Any, grace: float | None) -> Any:
        ours = getattr(self, _OURS, None)
        if patch.active and ours is not None:
            if grace is not None and grace > _ANSWERS:
                timer = threading.Timer(grace - _ANSWERS, ours.shut_down)
                timer.daemon = True
                timer.start()
            else:
                ours.shut_down()
        return original(self, grace)

    return stop


def _stop_aio(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def stop(self: Any, grace: float | None) -> None:
        ours = getattr(self, _OURS, None)
        if patch.active and ours is not None:
            await import_module(_SERVERS).stop_aio(ours, grace)
        await original(self, grace)

    return stop


_mending = Mending(
    *SYNC,
    *AIO,
    ("grpc._channel", "Channel", "__init__", _made_channel),
    ("grpc.aio._channel", "Channel", "__init__", _made_channel),
    ("grpc._server", "_Server", "__init__", _made_server("Interceptor")),
    ("grpc._server", "_Server", "stop", _stop),
    ("grpc.aio._server", "Server", "__init__", _made_server("AioInterceptor")),
    ("grpc.aio._server", "Server", "stop", _stop_aio),
)


def install() -> None:
    """Wrap gRPC, or see that it is when it is imported. Idempotent."""
    settle.POSTS[SCHEME] = post
    _mending.install()


def uninstall() -> None:
    """Unwrap it; servers that were made meanwhile do nothing more. Idempotent."""
    _mending.uninstall()
