"""The server's side of one WSGI request, as PEP 3333 wants it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any
from wsgiref.validate import validator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LONG_GONE = BrokenPipeError(32, "Broken pipe")


def environ(path: str = "/", method: str = "GET", **more: Any) -> WSGIEnvironment:
    """A request; keywords in upper case are keys as they are, others are headers."""
    found: WSGIEnvironment = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "x",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for key, value in more.items():
        known = key.isupper() or "." in key
        found[key if known else f"HTTP_{key.upper()}"] = value
    return found


def answering(
    *chunks: bytes, status: str = "200 OK", before: Callable[[], object] = lambda: None
) -> WSGIApplication:
    """An application that returns a list."""

    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        before()
        start_response(status, [("Content-Type", "text/plain")])
        return list(chunks)

    return app


class Server:
    """Serves one request by the book, and looks over the application's shoulder.

    Args:
        app: What serves it.
        request: Its environ.
        leaves_at: The client is gone when so many chunks were written: the next one
            fails.
        strict: Check both sides against PEP 3333 with the standard library's validator.

    Attributes:
        status: Of the response, as a number; 0 before there is one.
        headers: Of the response, names in lower case.
        written: The chunks that were sent, empty ones left out.
        finished: Whether the response came to its end.
        error: What the application raised.
    """

    def __init__(
        self,
        app: WSGIApplication,
        request: WSGIEnvironment | None = None,
        *,
        leaves_at: int | None = None,
        strict: bool = True,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.written: list[bytes] = []
        self.finished = False
        self.error: BaseException | None = None
        self.started = 0
        self._leaves_at = leaves_at
        serving = validator(app) if strict else app
        try:
            result = serving(environ() if request is None else request, self._start)
            try:
                for chunk in result:
                    self._write(chunk)
                self.finished = True
            finally:
                if hasattr(result, "close"):
                    result.close()
        except BaseException as error:  # noqa: BLE001  looked at by the test
            self.error = error

    @property
    def body(self) -> bytes:
        """All that was sent."""
        return b"".join(self.written)

    def _start(self, status: str, headers: Any, exc_info: Any = None) -> Any:
        if exc_info is not None and self.written:
            raise exc_info[1].with_traceback(exc_info[2])
        assert exc_info is not None or not self.status
        self.started += 1
        self.status = int(status.split(maxsplit=1)[0])
        self.headers = {name.lower(): value for name, value in headers}
        return self._write

    def _write(self, chunk: bytes) -> None:
        assert self.status, "a chunk before start_response"
        if not chunk:
            return
        if self._leaves_at is not None and len(self.written) >= self._leaves_at:
            raise LONG_GONE
        self.written.append(chunk)
