"""Real servers on loopback, on ports the system chooses.

``Served`` runs an ASGI application under uvicorn in a thread, ``ServedProcess`` in a
process of its own, ``SilentModel`` is a model server that never answers and knows when
its caller hung up.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import uvicorn
from support.processes import end

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future
    from types import TracebackType

_PATIENCE = 10.0


def listening(
    receive_buffer: int | None = None, host: str = "127.0.0.1"
) -> socket.socket:
    """A socket that listens on a free port of loopback, or of another address."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.bind((host, 0))
    sock.listen(128)
    return sock


def read_all(sock: socket.socket) -> bytes:
    """Everything until the server closes; only its end says whether that is all."""
    data = bytearray()
    while piece := sock.recv(65536):
        data += piece
    return bytes(data)


def get(server: Served, path: str) -> socket.socket:
    """A raw connection on which ``path`` was asked for."""
    sock = server.connect()
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return sock


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.ready.set()


class Served:
    """An application under uvicorn, in a thread; a context manager.

    Args:
        app: The ASGI application.
        receive_buffer: Bytes of the kernel's receive buffer, to see backpressure.
        host: The address to listen on.
        options: For ``uvicorn.Config``.
    """

    def __init__(
        self,
        app: Any,
        *,
        receive_buffer: int | None = None,
        host: str = "127.0.0.1",
        **options: Any,
    ) -> None:
        self._socket = listening(receive_buffer, host)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        settings: dict[str, Any] = {
            "log_config": None,
            "log_level": "warning",
            "access_log": False,
            # Responses are compared byte for byte.
            "date_header": False,
            "timeout_graceful_shutdown": 5,
        }
        self._server = _Uvicorn(uvicorn.Config(app, **(settings | options)))
        self._thread = threading.Thread(target=self._serve, name="uvicorn")

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.ready.set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._server.ready.wait(_PATIENCE)
        assert self._server.started, "uvicorn did not start"
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive(), "uvicorn did not stop"

    def connect(self, send_buffer: int | None = None) -> socket.socket:
        """A raw connection."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if send_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        sock.settimeout(_PATIENCE)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine on the server's loop."""
        assert self._server.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._server.loop)

    def idle(self) -> None:
        """Wait until no request is being served and every connection is gone."""

        async def wait() -> None:
            state = self._server.server_state
            while state.connections or state.tasks:  # noqa: ASYNC110  no such event
                await asyncio.sleep(0.002)

        self.submit(wait()).result(_PATIENCE)

    def gone(self) -> None:
        """Wait until the server knows that every connection is gone."""

        async def wait() -> None:
            while self._server.server_state.connections:  # noqa: ASYNC110  same
                await asyncio.sleep(0.002)

        self.submit(wait()).result(_PATIENCE)


class ServedProcess:
    """An application under uvicorn in a process of its own; a context manager.

    The socket listens before the process exists, so that no client comes too early.

    Args:
        target: ``module:attribute``, importable with ``path`` on ``sys.path``.
        path: A directory.
        environment: The whole environment of the process; None inherits this one's.
        options: For the command line of uvicorn.
    """

    def __init__(
        self,
        target: str,
        path: str,
        environment: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        self._socket = listening()
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(sys.executable, "-m", "uvicorn", target, "--app-dir", path),
            *("--fd", str(self._socket.fileno()), "--log-level", "warning"),
            *options,
        ]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter
            self._command,
            pass_fds=[self._socket.fileno()],
            env=self._environment,
        )
        return self

    def terminate(self) -> int:
        """Send SIGTERM, and wait for the end; returns the exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(_PATIENCE)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._socket.close()
        end(self._process, _PATIENCE)


class SilentModel:
    """A model server that accepts a request, never answers, and logs the hang-up.

    Attributes:
        opened: When requests came, in seconds of ``time.monotonic``.
        closed: When their callers hung up, in the order they did.
    """

    def __init__(self) -> None:
        self.opened: list[float] = []
        self.closed: list[float] = []
        self._changed = threading.Condition()
        self._socket = listening()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, name="silent-model")
        self._ending = False

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._ending = True
        # A blocked accept does not notice that its socket was closed.
        socket.create_connection(self._socket.getsockname()).close()
        self._acceptor.join(_PATIENCE)
        self._socket.close()
        for thread in self._threads:
            thread.join(_PATIENCE)
            assert not thread.is_alive(), "a model call was never closed"

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            if self._ending:
                connection.close()
                return
            thread = threading.Thread(target=self._hold, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _hold(self, connection: socket.socket) -> None:
        with connection:
            try:
                if not connection.recv(65536):
                    return
                self._log(self.opened)
                while connection.recv(65536):
                    pass
            except ConnectionError:
                pass
            self._log(self.closed)

    def _log(self, times: list[float]) -> None:
        with self._changed:
            times.append(time.monotonic())
            self._changed.notify_all()

    def wait_opened(self, count: int) -> None:
        """Wait until that many requests have come."""
        self._wait(self.opened, count)

    def wait_closed(self, count: int) -> None:
        """Wait until that many callers have hung up."""
        self._wait(self.closed, count)

    def _wait(self, times: list[float], count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(times) >= count, _PATIENCE)
