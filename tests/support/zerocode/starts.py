"""Starts an application that knows nothing of hangup as its owner would."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from support.serving import TESTS, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from support.serving import Serving

_SOURCE = TESTS.parent / "src"
_HANGUP = "hangup = hangup.otel.instrumentor:HangupInstrumentor"
_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 0\n"
QUIET = {
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "books",
    "OTEL_METRIC_EXPORT_INTERVAL": "200",
    "TRACELOOP_TELEMETRY": "false",
    # Whoever serves these has no such things, and they take a second to import.
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "celery,grpc_client,grpc_server,"
    "grpc_aio_client,grpc_aio_server",
}
"""Nothing is sent anywhere, but the metrics to the books."""
_DECLARED = """\
file_format: "1.0"
tracer_provider:
  processors:
    - batch: {{exporter: {{otlp_http: {{endpoint: "{traces}/v1/traces"}}}}}}
meter_provider:
  readers:
    - periodic: {{interval: 200, exporter: {{books: {{}}}}}}
instrumentation/development:
  python:
    hangup:
      policy_file: {policy}
      brake_share: 100
"""


def declared(directory: Path, policy: Path, traces: str) -> Path:
    """Write OpenTelemetry's declarative configuration, hangup's settings in it."""
    file = directory / "otel.yaml"
    file.write_text(_DECLARED.format(traces=traces, policy=policy))
    return file


def entry_points(directory: Path, *, hangup: bool) -> Path:
    """Make what pip leaves of the books' exporter, and of hangup where that is not."""
    _distribution(
        directory,
        "books",
        "opentelemetry_metrics_exporter",
        "books = support.books:ToDirectory",
    )
    if hangup:
        _distribution(directory, "hangup", "opentelemetry_instrumentor", _HANGUP)
    return directory


def _distribution(directory: Path, name: str, group: str, entry: str) -> None:
    place = directory / f"{name}-0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(_METADATA.format(name=name))
    (place / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")


def started(  # noqa: PLR0913  keywords
    target: str,
    directory: Path,
    model: str,
    *,
    python: Path,
    environment: Mapping[str, str],
    instrument: bool = True,
    installed: bool = True,
) -> AbstractAsyncContextManager[Serving]:
    """Serve ``support.zerocode.TARGET:app`` under uvicorn.

    Args:
        target: The module.
        directory: For the books and the log; made.
        model: The OpenAI base URL of the model.
        python: The interpreter.
        environment: More variables.
        instrument: Under ``opentelemetry-instrument``.
        installed: Whether pip has installed hangup there.
    """
    plugins = entry_points(directory / "plugins", hangup=not installed)
    path = [str(plugins), str(TESTS), str(_SOURCE)]
    launcher: tuple[str, ...] = (str(python),)
    if instrument:
        launcher = (str(python.parent / "opentelemetry-instrument"), *launcher)
    return serving(
        "uvicorn",
        directory,
        model,
        target=f"support.zerocode.{target}:app",
        launcher=launcher,
        environment={
            **QUIET,
            "PYTHONPATH": os.pathsep.join(path),
            **environment,
        },
    )


class Sink:
    """An OTLP receiver that only counts.

    Attributes:
        traces: Requests to ``/v1/traces`` so far.
    """

    traces = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Receive; the URL to send to."""

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    fields = head.decode("latin-1").lower().split("\r\n")
                    length = [one for one in fields if one.startswith("content-length")]
                    await reader.readexactly(int(length[0].partition(":")[2]))
                    self.traces += b"/v1/traces" in head
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
