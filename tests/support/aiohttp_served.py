"""An aiohttp.web application on a free port, on the test's own event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from aiohttp import web
from support.servers import listening

if TYPE_CHECKING:
    from types import TracebackType


class AiohttpServed:
    """Serves an application; an async context manager.

    Args:
        app: The application.
        options: For ``web.AppRunner``.
    """

    def __init__(self, app: web.Application, **options: Any) -> None:
        settings: dict[str, Any] = {"shutdown_timeout": 1.0, "access_log": None}
        self._runner = web.AppRunner(app, **(settings | options))
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        sock = listening()
        self.port = sock.getsockname()[1]
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()
        return self

    async def stop(self) -> None:
        """Shut down, as at SIGTERM. Idempotent."""
        await self._runner.cleanup()

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.stop()
