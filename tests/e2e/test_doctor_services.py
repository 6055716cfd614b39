"""``hangup doctor`` as it is typed: on stock applications, and on services that run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.processes import free_port

from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.wide

_SUPPORT = Path(__file__).parents[1] / "support"
_STOCK = _SUPPORT / "stock"
_HANGUP = (sys.executable, "-c", "from hangup.cli import main; main()")
_BESIDE = Path(sys.executable).parent
_INSTRUMENT = str(_BESIDE / "opentelemetry-instrument")


class Collector(BaseHTTPRequestHandler):
    """Takes whatever is exported."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@contextlib.contextmanager
def collecting() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def doctor(*words: str, **variables: str) -> tuple[int | None, dict[str, Any]]:
    """Type ``hangup doctor --json``; return its exit status and what it said."""
    process = await asyncio.create_subprocess_exec(
        *_HANGUP,
        *("doctor", "--json", *words),
        cwd=_STOCK,
        env={
            **os.environ,
            # What is installed beside the interpreter is typed by its name.
            "PATH": os.pathsep.join([str(_BESIDE), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            **variables,
        },
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    return process.returncode, json.loads(said)


async def stock_apps() -> Sequence[tuple[int | None, dict[str, Any]]]:
    port, another = free_port(), free_port()
    with collecting() as collector:
        async with ModelServer() as model:
            variables = {
                "MODEL_URL": model.url,
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
            }
            return await asyncio.gather(
                doctor(
                    *("--get", f"http://127.0.0.1:{port}/ask", "--", _INSTRUMENT),
                    *("uvicorn", "fastapi_app:app", "--port", str(port)),
                    **variables,
                ),
                doctor(
                    *("--get", f"http://127.0.0.1:{another}/ask", "--", _INSTRUMENT),
                    *("gunicorn", "flask_app:app", "--workers", "2"),
                    *("--bind", f"127.0.0.1:{another}"),
                    **variables,
                ),
                doctor("--", sys.executable, "worker.py", **variables),
            )


def test_nothing_is_wrong_with_three_stock_applications() -> None:
    told = asyncio.run(stock_apps())
    assert [
        (status, said.get("findings"), said.get("error")) for status, said in told
    ] == [(0, [], None)] * 3
    processes = [said["looked_at"] for _, said in told]
    # One of uvicorn; gunicorn and its two workers; one worker.
    assert [len(found) for found in processes] == [1, 3, 1]
    for found in processes:
        asked = [one["seen"]["model_calls"].get("span", 0) for one in found]
        assert sum(asked) >= 1
        assert all(one["hangup"]["installed"] for one in found)


def wait_for_files(room: Path, count: int) -> None:
    until = time.monotonic() + 60
    while len(list(room.glob("*.sock"))) < count:
        assert time.monotonic() < until, "they did not come up"
        time.sleep(0.05)


async def two_that_run() -> tuple[int | None, dict[str, Any]]:
    """Start two services that may be looked at, in different modes, and look."""
    with tempfile.TemporaryDirectory(prefix="hangup-") as room:
        running = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, str(_SUPPORT / "doctored.py"), "nothing"),
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "HANGUP_DOCTOR": room,
                    "HANGUP_MODE": mode,
                    "OTEL_SERVICE_NAME": service,
                },
            )
            for mode, service in (("enforce", "front"), ("observe", "back"))
        ]
        try:
            await asyncio.to_thread(wait_for_files, Path(room), len(running))
            # They may be looked at from their first line on: until they are up.
            async with asyncio.timeout(90):
                while True:
                    status, said = await doctor("--dir", room)
                    seen = [one["samples"] for one in said["looked_at"]]
                    if len(seen) == len(running) and all(seen):
                        return status, said
        finally:
            for one in running:
                one.send_signal(signal.SIGTERM)
                await one.wait()


def test_services_that_run_in_different_modes_are_found_out() -> None:
    status, said = asyncio.run(two_that_run())
    [finding] = said["findings"]
    assert (status, finding["id"]) == (1, "modes-disagree")
    assert finding["detail"].startswith("mode enforce at front (")
    assert "; mode observe at back (" in finding["detail"]
