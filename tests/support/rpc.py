"""gRPC without generated code: methods by name, messages of bytes, on loopback."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from hangup.demo.journal import ModelLog

SERVICE = "test.Agent"
_KINDS = {
    "uu": grpc.unary_unary_rpc_method_handler,
    "us": grpc.unary_stream_rpc_method_handler,
    "su": grpc.stream_unary_rpc_method_handler,
    "ss": grpc.stream_stream_rpc_method_handler,
}


def path(method: str) -> str:
    """The full name of a method of the service."""
    return f"/{SERVICE}/{method}"


def service(**methods: Callable[..., Any]) -> Any:
    """A service; a method's kind is the end of its name: ``ask_us`` is unary-stream."""
    handlers = {name: _KINDS[name[-2:]](one) for name, one in methods.items()}
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def on(channel: Any, method: str) -> Any:
    """What calls a method over a channel."""
    kind = {"uu": "unary_unary", "us": "unary_stream"}
    kind |= {"su": "stream_unary", "ss": "stream_stream"}
    return getattr(channel, kind[method[-2:]])(path(method))


@contextlib.asynccontextmanager
async def serving(
    *interceptors: Any, **methods: Callable[..., Any]
) -> AsyncIterator[str]:
    """Serve coroutines on the running loop; gives the target."""
    server = grpc.aio.server(interceptors=interceptors)
    server.add_generic_rpc_handlers((service(**methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@contextlib.contextmanager
def serving_threads(*interceptors: Any, **methods: Callable[..., Any]) -> Iterator[str]:
    """Serve functions on a pool of threads; gives the target."""
    with ThreadPoolExecutor(8, "rpc") as pool:
        server = grpc.server(pool, interceptors=interceptors)
        server.add_generic_rpc_handlers((service(**methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@contextlib.asynccontextmanager
async def channel(target: str, **options: Any) -> AsyncIterator[Any]:
    """A channel of ``grpc.aio``."""
    async with grpc.aio.insecure_channel(target, **options) as opened:
        yield opened


async def all_speak(log: ModelLog, calls: int) -> None:
    """Wait until the model has begun to answer so many calls."""

    def speak() -> bool:
        return sum(one.output_tokens > 0 for one in log.calls) >= calls

    await log.wait_for(speak)


async def status(call: Any) -> tuple[str, str, dict[str, str]]:
    """Wait for the end of a call; return its status, its words and its last fields."""
    if hasattr(call, "__aiter__"):  # it ends when it has been read
        with contextlib.suppress(grpc.RpcError):
            async for _ in call:
                pass
    code = await call.code()
    trailing = {key: str(value) for key, value in await call.trailing_metadata() or ()}
    return code.name, await call.details(), trailing
