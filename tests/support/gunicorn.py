"""gunicorn in processes of its own, on a port the system chooses."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.rig import Caller
from support.servers import listening

if TYPE_CHECKING:
    from types import TracebackType

_TESTS = Path(__file__).parents[1]
_PATIENCE = 40.0


class Gunicorn:
    """One worker of a WSGI application under gunicorn; a context manager.

    Its log goes to a file, so that a test can see that there was nothing to tell.

    Args:
        target: ``module:attribute``, with the tests on the path.
        environment: Variables besides this process's own.
        options: For gunicorn's command line.
    """

    def __init__(self, target: str, environment: dict[str, str], *options: str) -> None:
        self._socket = listening()
        self.port: int = self._socket.getsockname()[1]
        self._command = [
            *(sys.executable, "-m", "gunicorn", target),
            *("--bind", f"fd://{self._socket.fileno()}", "--workers", "1"),
            *("--log-level", "warning", "--graceful-timeout", "10", *options),
        ]
        path = os.pathsep.join([str(_TESTS), *sys.path])
        self._environment = {**os.environ, **environment, "PYTHONPATH": path}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  as long as this
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter
            self._command,
            pass_fds=[self._socket.fileno()],
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
        )
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._socket.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_PATIENCE)
            finally:
                self._process.kill()
                self._process.wait()
        self._log.close()

    @property
    def log(self) -> str:
        """What gunicorn and its worker have logged."""
        self._log.seek(0)
        return self._log.read()

    def signal(self, number: int) -> None:
        """Send a signal to gunicorn, which passes it on to its worker."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until it has ended."""
        assert self._process is not None
        return self._process.wait(_PATIENCE)

    async def ready(self) -> None:
        """Wait until it serves: it imports for seconds, on a busy machine for many."""
        await self.books()

    async def asks(self, path: str, **headers: str) -> Caller:
        """Ask for a path, on a connection of its own."""
        return await Caller.asks(self, path, headers)

    async def books(self, **wanted: Any) -> dict[str, Any]:
        """Read the books of the worker until they say what is wanted."""
        found: dict[str, Any] = {}
        try:
            async with asyncio.timeout(_PATIENCE):
                while not found or any(found[k] != v for k, v in wanted.items()):
                    found = json.loads((await (await self.asks("/books")).answer())[2])
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"wanted {wanted}, found {found}") from None
        return found
