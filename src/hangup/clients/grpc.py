"""gRPC, ``grpc`` and ``grpc.aio``: what leaves carries the run and ends with it.

Wrapped beneath every interceptor, where an RPC is handed to gRPC's core; so it does not
matter who instruments first, and nothing is carried twice. For a run that is enforced

- an RPC takes no longer than the run has left, nor than its caller said;
- it is cancelled when the run stops;
- when its answer is read, once the run has stopped, the error is the stop, which no
  retry swallows.

In every mode the metadata of an RPC to an internal host carries the run (``hangup``,
``baggage``), and that to any other host nothing of it, whatever an interceptor has put
there. Servers that are made while this is installed get the interceptor of
:mod:`hangup.servers.grpc`.

RPCs behind ``hangup.cleanup`` and ``hangup.irreversible`` are neither cut nor given
less time, nor are those that begin when the run has stopped.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hangup.clients import grpc_aio, grpc_sync, settle
from hangup.clients.grpc_settle import SCHEME, channels, post
from hangup.core.guard import guarded
from hangup.errors import ArgumentError
from hangup.otel.mending import Mending

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.otel.patch import Patch

# A server's adapter is no business of a client's: it is loaded by name.
_SERVERS: Final = "hangup.servers.grpc"
_OURS: Final = "_hangup_interceptor"
_CORE: Final = "grpc._cython"

Channel = TypeVar("Channel")


def _made_channel(original: Any, patch: Patch) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(  # noqa: N807
        self: Any, target: str, options: Any, credentials: Any, *more: Any, **named: Any
    ) -> None:
        if patch.active:
            guarded(channels.note, target, options, credentials)
        original(self, target, options, credentials, *more, **named)
        if patch.active:
            guarded(grpc_aio.note_target, self, self._channel, target)

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


def _tell_servers(what: str, ours: Any, grace: float | None) -> Any:
    return getattr(import_module(_SERVERS), what)(ours, grace)


def _stop(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    def stop(self: Any, grace: float | None) -> Any:
        ours = getattr(self, _OURS, None)
        if patch.active and ours is not None:
            guarded(_tell_servers, "stop", ours, grace)
        return original(self, grace)

    return stop


def _stop_aio(original: Any, patch: Patch) -> Callable[..., Any]:
    @functools.wraps(original)
    async def stop(self: Any, grace: float | None) -> None:
        ours = getattr(self, _OURS, None)
        if (
            patch.active
            and ours is not None
            and (guarded(_tell_servers, "stop_aio", ours, grace))
        ):
            await asyncio.sleep(0)  # who was told answers before it is cut
        await original(self, grace)

    return stop


def _every(_channel: object) -> bool:
    return True


_mending = Mending(
    *grpc_sync.patches(_every),
    *grpc_aio.patches(_every),
    ("grpc._channel", "Channel", "__init__", _made_channel),
    ("grpc.aio._channel", "Channel", "__init__", _made_channel),
    ("grpc._server", "_Server", "__init__", _made_server("Interceptor")),
    ("grpc._server", "_Server", "stop", _stop),
    ("grpc.aio._server", "Server", "__init__", _made_server("AioInterceptor")),
    ("grpc.aio._server", "Server", "stop", _stop_aio),
)


class _State:
    installed = False


_attached: dict[int, Any] = {}


def _is_attached(channel: object) -> bool:
    return not _State.installed and id(channel) in _attached


_by_hand = Mending(*grpc_sync.patches(_is_attached), *grpc_aio.patches(_is_attached))


def attach(channel: Channel, target: str | None = None) -> Channel:
    """Do for one channel what ``hangup.instrument()`` does for all.

    For a process that does not call that. Where it was called, nothing is done twice.

    Args:
        channel: Of ``grpc`` or ``grpc.aio``, with or without interceptors. Keep it for
            as long as its stubs are used: they do not, and it goes with the channel.
        target: Where it goes, as it was made with. Older versions of ``grpc.aio`` do
            not tell; without it nothing of the run is sent there then.

    Returns:
        The channel.

    Raises:
        ArgumentError: It is no channel of gRPC's.
    """
    core: Any = channel
    while core is not None and not type(core).__module__.startswith(_CORE):
        core = getattr(core, "_channel", None)
    if core is None:
        remedy = "give it what grpc.aio.insecure_channel(...) or its like returned"
        raise ArgumentError("hangup.clients.grpc.attach", repr(channel), remedy)
    if target is not None:
        grpc_aio.note_target(channel, core, target)
    _attached[id(core)] = core
    weakref.finalize(channel, _attached.pop, id(core), None)
    _by_hand.install()
    return channel


def install() -> None:
    """Wrap gRPC, or see that it is when it is imported. Idempotent."""
    _State.installed = True
    settle.POSTS[SCHEME] = post
    _mending.install()


def uninstall() -> None:
    """Unwrap it; servers that were made meanwhile do nothing more. Idempotent."""
    _State.installed = False
    _mending.uninstall()
