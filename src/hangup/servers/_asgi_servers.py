"""What some servers can do and ASGI has no word for, reached through their ``send``.

ASGI cannot say "leave this response unfinished", and nothing tells an application that
its server is going down. Servers are left to find out from what applications do, and
not all do well there (uvicorn 0.54, hypercorn 0.18, granian 2.8):

- a response that an application leaves unfinished is closed unfinished by all three
  over HTTP/1.1, and reset by granian over HTTP/2. Over HTTP/2 **hypercorn does
  neither**: its client waits on that stream for ever. So the stream is reset here;
- uvicorn calls it an error of the application, and logs one for every stream that was
  cut. So its connection is closed here, as it would do itself a moment later;
- hypercorn cancels what outlasts its ``graceful_timeout``, and says nothing about why;
  but it knows, and can be asked. (From Python 3.12 on it first waits for every
  connection to close, and that timeout means nothing: use ``shutdown_after``);
- with an unfinished HTTP/2 request, that cancel takes along the task that sends bodies,
  and **hypercorn then waits for ever** for a body to be sent, instead of ending: its
  lifespan never ends either. So that wait is ended here, and what is still to be said
  is said in a head without a body.

Only what is named above is touched. Where a server, or a middleware between it and us,
is not what was expected, nothing happens here, and the server does what it does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from hangup.core.guard import fault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hangup.servers._asgi_receive import Message

    Send = Callable[[Message], Awaitable[None]]

_MOST_AROUND: Final = 32
"""Middleware between a server and us that is looked through, at most."""
_INTERNAL_ERROR: Final = 2  # RFC 9113, 7: what granian resets a stream with


def next_to(send: Send) -> bool:
    """Whether nothing between us and the server keeps what is sent to itself."""
    return _server(send) is not None


def going_down(send: Send) -> bool:
    """Whether the server that ``send`` belongs to has begun to end, and says so."""
    server = _server(send)
    if not _is(server, "hypercorn"):
        return False
    try:
        return bool(server.context.terminated.is_set())
    except Exception as error:  # noqa: BLE001  not the hypercorn that was expected
        fault("going_down", error)
        return False


def drops_sockets(send: Send) -> bool:
    """Whether the server whose lifespan this is drops WebSockets when told to end."""
    return _is(_server(send), "granian")


async def release(send: Send) -> bool:
    """Let a server end that waits for a body which nobody sends any more.

    Call it when the server has cut the request.

    Returns:
        Whether it is so: only a head can be sent from now on, with :func:`head`.
    """
    try:
        stream = _http2_stream(send)
        if stream is not None:
            buffer = stream.send.__self__.stream_buffers.get(stream.stream_id)
            if buffer is not None:
                await buffer.close()
            # Else it would start to count the connection's idle time, in a task group
            # that ends; the connection is closed with that.
            stream.closed = True
            return True
    except Exception as error:  # noqa: BLE001  not the hypercorn that was expected
        fault("release", error)
    return False


async def head(send: Send, start: Message) -> None:
    """Answer with a head alone, past a server that sends no bodies any more."""
    try:
        stream = _http2_stream(send)
        fields = [(b":status", str(start["status"]).encode())]
        fields += [pair for pair in start["headers"] if pair[0] != b"content-length"]
        protocol = stream.send.__self__
        protocol.connection.send_headers(stream.stream_id, fields, end_stream=True)
        await protocol._flush()  # noqa: SLF001  see the module
    except Exception as error:  # noqa: BLE001  not the hypercorn that was expected
        fault("head", error)


async def cut(send: Send) -> bool:
    """Leave a response that has begun unfinished, so that its client knows.

    Returns:
        Whether the connection was closed: the server will report the disconnect. Where
        not, it closes it when the application returns.
    """
    try:
        stream = _http2_stream(send)
        if stream is not None:
            protocol = stream.send.__self__
            protocol.connection.reset_stream(stream.stream_id, _INTERNAL_ERROR)
            await protocol._flush()  # noqa: SLF001  see the module
            return False
        server = _server(send)
        if _is(server, "uvicorn"):
            server.transport.close()
            return True
    except Exception as error:  # noqa: BLE001  not the server that was expected
        fault("cut", error)
    return False


def _http2_stream(send: Send) -> Any:
    """Return hypercorn's stream, if it is one of HTTP/2; else None."""
    server = _server(send)
    if not _is(server, "hypercorn"):
        return None
    protocol = getattr(getattr(server, "send", None), "__self__", None)
    return server if hasattr(protocol, "stream_buffers") else None


def _is(server: object, package: str) -> bool:
    return type(server).__module__.partition(".")[0] == package


def _server(send: Any) -> Any:
    """Return the object whose method ``send`` is, looking through what wraps it.

    Pure ASGI middleware wraps ``send`` in a function that closes over the ``send`` it
    was given; the name is that of the specification. None where there is another kind
    of wrapper.
    """
    for _ in range(_MOST_AROUND):
        owner = getattr(send, "__self__", None)
        if owner is not None:
            return owner
        if isinstance(send, functools.partial):
            send = send.func
            continue
        inner = _closed_over(send)
        if inner is None:
            return None
        send = inner
    return None


def _closed_over(function: Any) -> Any:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(names, cells, strict=False):
        if name == "send":
            try:
                return cell.cell_contents
            except ValueError:  # not bound yet
                return None
    return None
