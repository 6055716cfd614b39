"""A server in a process of its own: the child's side of :mod:`hangup.demo.child`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import socket
import sys
import threading
from typing import TYPE_CHECKING, Self

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

Peers = dict[str, str]


def listen() -> socket.socket:
    """Return a socket that listens on a loopback port chosen by the system."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(512)
    return sock


class QuietServer(uvicorn.Server):
    """uvicorn without signal handlers and log set-up, that says when it serves.

    Attributes:
        ready: Set once connections are accepted.
    """

    ready: asyncio.Event

    @classmethod
    def of(cls, app: ASGIApp) -> Self:
        """Return a server for ``app``; call it with a socket on a running loop."""
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
        )
        server = cls(config)
        server.ready = asyncio.Event()
        return server

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever embeds the server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets)
        self.ready.set()

    def hang_up(self) -> None:
        """End, hanging up on calls that still run. On the server's loop."""
        self.should_exit = True
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


def serve_process(make_app: Callable[[Peers], ASGIApp]) -> None:
    """Run the child's side of the protocol; returns when the parent says stop.

    Args:
        make_app: Makes the app, given what the parent sent. Slow imports belong
            before this call, so that processes start side by side.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    sock = listen()
    sys.stdout.write(json.dumps({"port": sock.getsockname()[1]}) + "\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    # What was imported stays: not looking through it again keeps the pauses short.
    gc.collect()
    gc.freeze()
    if line:
        asyncio.run(_serve(make_app, json.loads(line), sock))


def _is_news(record: logging.LogRecord) -> bool:
    """Drop uvicorn's complaint about responses that hangup leaves unfinished.

    That is how a stream is cut in enforce mode; a service would see the line, too.
    """
    return "without completing response" not in record.getMessage()


async def _serve(
    make_app: Callable[[Peers], ASGIApp], peers: Peers, sock: socket.socket
) -> None:
    server = QuietServer.of(make_app(peers))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # Work that is cut off here is cut off on purpose: no tracebacks of it.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        server.hang_up()

    def wait_for_the_parent() -> None:
        sys.stdin.read()
        with contextlib.suppress(RuntimeError):  # the loop may be gone already
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=wait_for_the_parent, daemon=True).start()
    await server.serve([sock])
