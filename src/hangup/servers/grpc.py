"""gRPC: a run for every RPC of ``grpc.aio`` and ``grpc`` servers.

    from hangup.servers.grpc import AioInterceptor
    server = grpc.aio.server(interceptors=[AioInterceptor(budget=30)])

    from hangup.servers.grpc import Interceptor
    server = grpc.server(pool, interceptors=[Interceptor(budget=30)])

Put it first, or after those of tracing. ``hangup.instrument()`` puts one into every
server that is made afterwards and has none; it observes, unless a mode was said there
or in ``HANGUP_MODE``.

The run is latent until the handler makes its first spending call; it is named by the
method, ``/package.Service/Method``. Its deadline is the earliest of the budget, of the
call's own deadline, and of that of the run it continues. From the first spending call
on

- the client's leaving (a cancel, a lost connection) abandons the run, cause
  ``disconnect``; a call whose own deadline has passed is abandoned by that;
- the end of the handler delivers it; an exception, or a status that says the server is
  at fault (``UNKNOWN``, ``INTERNAL``, ``UNAVAILABLE``, ``DATA_LOSS``,
  ``UNIMPLEMENTED``, ``DEADLINE_EXCEEDED``), abandons it, cause ``failed``;
- in ``enforce``, the caller of an abandoned run gets a status at once:
  ``DEADLINE_EXCEEDED``, ``ABORTED`` where it was killed or superseded, ``UNAVAILABLE``
  at a shutdown, with the cause as ``hangup-cause`` in the trailing metadata.

The default budget (``HANGUP_BUDGET``) is for RPCs with one response. One in code is
also for a stream of responses to one request; a stream both ways has a budget only by
its route: ``routes={"/package.Service/Talk": {"budget": 60}}``.

What a client's leaving means (``on_disconnect``) and the budget header, here a metadata
field, are as in :mod:`hangup.servers.asgi`.

A handler of ``grpc.aio`` runs in a task of its own, so that the cancel of a client that
left is not taken for one of the handler's own.

The limits of ``grpc.server`` are those of every blocking server (see
:mod:`hangup.servers.wsgi`): nothing interrupts a thread. Its handler hears of a stop,
and its caller of the cause, at the next spending call or response.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

import grpc  # type: ignore[import-untyped]

from hangup import config
from hangup.config import Mode
from hangup.core.guard import guarded
from hangup.otel.notices import SETTLE_RPC
from hangup.servers._common_settle import take
from hangup.servers._common_terms import Keywords, RouteSettings, Terms
from hangup.servers._grpc_aio import AioExchange
from hangup.servers._grpc_call import fields_of, time_left
from hangup.servers._grpc_sync import SyncExchange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.servers._common_terms import Opening
    from hangup.servers._grpc_call import Exchange

    Handler = Any  # an RpcMethodHandler

    AnyExchange = TypeVar("AnyExchange", bound=Exchange)

__all__ = ["AioInterceptor", "Interceptor", "RouteSettings", "join"]

_MARK: Final = "__hangup_rpc__"
_ANSWERS: Final = 0.1
"""Seconds before the end of a grace in which callers are told of the shutdown."""
_FACTORY: Final = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class _Shared:
    """What both kinds of interceptor do.

    Args:
        terms: As the adapter takes them.
    """

    def __init__(self, **terms: Unpack[Keywords]) -> None:
        self._terms = Terms(**terms)
        self._exchanges: weakref.WeakSet[Exchange] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_on: Callable[[], bool] = lambda: True

    @classmethod
    def by_itself(cls, is_on: Callable[[], bool]) -> Self:
        """Return one that nobody asked for: it observes where no mode is said.

        Args:
            is_on: Whether it is to do anything.
        """
        ours = cls()
        ours._terms = Terms(unruled=Mode.OBSERVE)
        ours._is_on = is_on
        return ours

    @property
    def active(self) -> bool:
        """Whether it does anything."""
        return self._is_on() and config.current().mode is not Mode.OFF

    def shut_down(self) -> None:
        """Abandon the runs that are being served, cause ``shutdown``. Any thread."""
        with self._lock:
            exchanges = tuple(self._exchanges)
        for exchange in exchanges:
            guarded(exchange.shut_down)

    def _exchange(
        self, kind: type[AnyExchange], method: str, context: Any, shape: str
    ) -> AnyExchange | None:
        """Return what serves a call; None where hangup stays out of it."""
        opening = guarded(self._opening, method, context, shape)
        if opening is None:
            return None
        exchange = kind(opening, context, method)
        with self._lock:
            self._exchanges.add(exchange)
        return exchange

    def _opening(self, method: str, context: Any, shape: str) -> Opening | None:
        if not self.active:
            return None
        fields, left = fields_of(context), time_left(context)
        return self._terms.open(shape, "", method, "", fields, context, left)

    def _wrapped(
        self,
        handler: Handler | None,
        method: str,
        wrap: Callable[[Callable[..., Any], str, str], Callable[..., Any] | None],
    ) -> Handler | None:
        """Return the handler with its behavior wrapped, itself if that cannot be."""
        if handler is None:
            return None
        streams = (bool(handler.request_streaming), bool(handler.response_streaming))
        name = "_".join("stream" if one else "unary" for one in streams)
        behavior = getattr(handler, name)
        if hasattr(behavior, _MARK):
            self._terms.stands_inside()
            return handler
        shape = {
            (False, True): "stream",
            (True, True): "websocket",
        }.get(streams, "http")
        wrapped = wrap(behavior, method, shape)
        if wrapped is None:
            return handler
        setattr(wrapped, _MARK, True)
        return _FACTORY[streams](
            wrapped, handler.request_deserializer, handler.response_serializer
        )

    def _sync(
        self, behavior: Callable[..., Any], method: str, shape: str
    ) -> Callable[..., Any] | None:
        if getattr(behavior, "experimental_non_blocking", False):
            return None  # it is over before it has answered

        if shape in ("stream", "websocket"):

            @functools.wraps(behavior)
            def stream(request: Any, context: Any) -> Any:
                exchange = self._exchange(SyncExchange, method, context, shape)
                if exchange is None:
                    return behavior(request, context)
                return exchange.stream(behavior, request)

            return stream

        @functools.wraps(behavior)
        def serve(request: Any, context: Any) -> Any:
            exchange = self._exchange(SyncExchange, method, context, shape)
            if exchange is None:
                return behavior(request, context)
            return exchange.serve(behavior, request)

        return serve


class Interceptor(_Shared, grpc.ServerInterceptor):  # type: ignore[misc]  # untyped
    """Opens a run per RPC of a ``grpc.server``. Thread-safe; one for each server.

    Args:
        terms: ``budget``, ``mode``, ``name``, ``tenant``, ``routes`` (by method),
            ``budget_header``, ``on_disconnect`` and ``grace``, each as
            :class:`~hangup.servers._common_terms.Keywords` tells. In ``routes``
            ``background_in_run`` means nothing here.

    Raises:
        ConfigError: A budget or grace that is negative or NaN, an unknown mode or
            ``on_disconnect``, a pattern that does not start with ``/``.
        TypeError: There is no such keyword.
    """

    def intercept_service(
        self, continuation: Callable[[Any], Handler | None], details: Any
    ) -> Handler | None:
        """Return what serves the RPC, in its run."""
        if details.method == SETTLE_RPC and self.active:
            return grpc.unary_unary_rpc_method_handler(_take)
        return self._wrapped(continuation(details), details.method, self._sync)


class AioInterceptor(_Shared, grpc.aio.ServerInterceptor):  # type: ignore[misc]  # untyped
    """Opens a run per RPC of a ``grpc.aio.server``, on its loop; one for each server.

    Args:
        terms: As for :class:`Interceptor`.

    Raises:
        ConfigError: As for :class:`Interceptor`.
        TypeError: There is no such keyword.
    """

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler | None]], details: Any
    ) -> Handler | None:
        """Return what serves the RPC, in its run."""
        method = details.method
        if isinstance(method, bytes):
            method = method.decode()
        if method == SETTLE_RPC and self.active:
            return grpc.unary_unary_rpc_method_handler(_take_async)
        return self._wrapped(await continuation(details), method, self._async)

    def _async(
        self, behavior: Callable[..., Any], method: str, shape: str
    ) -> Callable[..., Any] | None:
        # gRPC looks at the function for how to call it: ours must look the same.
        if inspect.isasyncgenfunction(behavior):

            @functools.wraps(behavior)
            async def stream(request: Any, context: Any) -> Any:
                exchange = self._exchange(AioExchange, method, context, shape)
                served: Any = (
                    behavior(request, context)
                    if exchange is None
                    else exchange.stream(behavior, request)
                )
                async with contextlib.aclosing(served):
                    async for response in served:
                        yield response

            return stream
        if not inspect.iscoroutinefunction(behavior):
            return self._sync(behavior, method, shape)  # in gRPC's thread pool

        @functools.wraps(behavior)
        async def serve(request: Any, context: Any) -> Any:
            exchange = self._exchange(AioExchange, method, context, shape)
            if exchange is None:
                return await behavior(request, context)
            return await exchange.serve(behavior, request)

        return serve


def _take(body: bytes, context: Any) -> bytes:
    if take(body) != 204:  # noqa: PLR2004  HTTP's
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no notices")
    return b""


async def _take_async(body: bytes, context: Any) -> bytes:
    if take(body) != 204:  # noqa: PLR2004  HTTP's
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no notices")
    return b""


# For the layer that instruments servers; it loads this module by name.


def join(
    interceptors: Any, kind: type[_Shared], is_on: Callable[[], bool]
) -> tuple[list[Any], _Shared]:
    """Return interceptors with one of ours among them, and that one.

    One that the application has put there itself stays the only one. Ours goes after
    those of tracing, which are outermost.
    """
    present = list(interceptors or ())
    for one in present:
        if isinstance(one, _Shared):
            return present, one
    ours = kind.by_itself(is_on)
    at = 0
    while at < len(present) and type(present[at]).__module__.startswith(
        "opentelemetry."
    ):
        at += 1
    present.insert(at, ours)
    return present, ours


def stop(ours: _Shared, grace: float | None) -> None:
    """Tell callers of a server that stops in ``grace`` seconds, before it cuts them."""
    if grace is None or grace <= _ANSWERS:
        ours.shut_down()
        return
    timer = threading.Timer(grace - _ANSWERS, ours.shut_down)
    timer.daemon = True
    timer.start()


def stop_aio(ours: _Shared, grace: float | None) -> bool:
    """Do the same on the loop; returns whether it was done at once."""
    if grace is None or grace <= _ANSWERS:
        ours.shut_down()
        return True
    asyncio.get_running_loop().call_later(grace - _ANSWERS, ours.shut_down)
    return False
