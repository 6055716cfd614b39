"""The examples of the queues, as their heads say they are run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.modelthread import ModelThread
from support.processes import free_port
from support.queue_workers import Worker, working
from support.rig import LONG
from support.stores import Redis, directory

EXAMPLES = Path(__file__).parents[2] / "examples"
IN_TIME = 2.5
COMMANDS = {
    "celery_agent": (
        *("celery", "--workdir", str(EXAMPLES), "-A", "celery_agent:queue", "worker"),
        *("--concurrency", "2", "--loglevel", "INFO"),
    ),
    "docket_agent": (
        *("docket", "worker", "--docket", "agents"),
        *("--tasks", "docket_agent:tasks"),
    ),
}
BODY = json.dumps({"questions": ["why", "how"]})
REQUEST = (
    "POST /research HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n{BODY}"
).encode()
READY = {"celery_agent": " ready.", "docket_agent": "* note"}
SCHEME = {"celery_agent": "redis+socket", "docket_agent": "unix"}


@pytest.mark.wide
@pytest.mark.timeout(300)
def test_a_caller_who_hangs_up_stops_the_workers_of_both_examples() -> None:
    with (
        directory() as place,
        Redis(place) as redis,
        ModelThread() as model,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor() as pool,
    ):
        ports = {name: free_port() for name in COMMANDS}
        started: dict[str, tuple[Worker, Worker]] = {}
        for name, command in COMMANDS.items():
            model.script(name, LONG)
            url = f"{SCHEME[name]}://{redis.socket}"
            here = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
            environment = {
                "REDIS_URL": url,
                "DOCKET_URL": url,
                "OPENAI_API_KEY": "test",
                "OPENAI_BASE_URL": model.base_url,
                "OPENAI_MODEL": name,
                "PYTHONPATH": here,
            }
            serve = ["uvicorn", "--app-dir", str(EXAMPLES), f"{name}:app"]
            started[name] = (
                Worker(list(command), place / name, environment, ready=READY[name]),
                Worker(
                    [*serve, "--port", str(ports[name])],
                    place / f"{name}-app",
                    environment,
                    ready="startup complete",
                ),
            )
        stack.enter_context(working(*started["celery_agent"], *started["docket_agent"]))

        def walk_away(name: str) -> None:
            with socket.create_connection(("127.0.0.1", ports[name])) as caller:
                caller.sendall(REQUEST)
                model.wait(
                    lambda: sum(c.output_tokens > 5 for c in model.of(name)) == 2
                )
            left = time.monotonic()
            model.closed(name, calls=2)
            assert model.late(name, left) < IN_TIME
            worker, service = started[name]
            assert "asked: why, how" in worker.said
            for process in (worker, service):
                assert "inside hangup" not in process.said

        for done in [pool.submit(walk_away, name) for name in COMMANDS]:
            done.result()
