"""Case a5: a network that goes silent, in namespaces of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.core import in_loop
from support.requires import require
from support.rig import LONG, rig

from hangup.core.current import current_run
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

pytestmark = pytest.mark.timeout(60)


_CLIENT = """
import json, socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sock.sendall(b"GET %s HTTP/1.1\\r\\nHost: agent\\r\\n\\r\\n" % sys.argv[3].encode())
print("asked", flush=True)
while sock.recv(65536):
    pass
"""


class Network:
    """A network namespace joined to this one by a pair of virtual interfaces."""

    def __init__(self) -> None:
        tag = uuid.uuid4().hex[:6]
        self.name = f"hangup-{tag}"
        self._here, self._there = f"hu{tag}a", f"hu{tag}b"
        third = int(tag[:2], 16)
        self.address = f"10.213.{third}.1"
        self._peer = f"10.213.{third}.2"

    def up(self) -> None:
        """Build it."""
        _run("ip", "netns", "add", self.name)
        _run(
            *("ip", "link", "add", self._here, "type", "veth"),
            *("peer", "name", self._there, "netns", self.name),
        )
        _run("ip", "addr", "add", f"{self.address}/30", "dev", self._here)
        _run("ip", "link", "set", self._here, "up")
        self.inside("ip", "addr", "add", f"{self._peer}/30", "dev", self._there)
        self.inside("ip", "link", "set", self._there, "up")

    def inside(self, *command: str) -> None:
        """Run a command in the namespace."""
        _run("ip", "netns", "exec", self.name, *command)

    def goes_silent(self) -> None:
        """Drop every packet, in both directions, without a word to anybody."""
        for chain in ("INPUT", "OUTPUT"):
            self.inside("iptables", "-A", chain, "-j", "DROP")

    def down(self) -> None:
        """Take down what there is of it."""
        # The pair first: a namespace lingers for as long as a socket in it does.
        for command in (("link", "delete", self._here), ("netns", "delete", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("ip", *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)  # noqa: S603  fixed words


@pytest.fixture
def network() -> Iterator[Network]:
    require("ip")
    require("iptables")
    network = Network()
    allowed = True
    try:
        network.up()
    except subprocess.CalledProcessError:
        network.down()
        allowed = False
    require("right to make network namespaces", present=allowed)
    yield network
    network.down()


@pytest.mark.parametrize("path", ["/json", "/stream"])
def test_a5_silent_network_loss(network: Network, path: str) -> None:
    """A client that vanishes without a packet is stopped for by the deadline, once."""
    budget = 1.5

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_:

            def note() -> None:
                run = current_run()
                assert run is not None
                rig_.agent.seen.append(run.deadline.at)

            async def as_json(request: Request) -> Response:
                note()
                await rig_.agent.ask()
                return JSONResponse({})

            async def as_stream(request: Request) -> Response:
                note()
                return StreamingResponse(rig_.agent.pieces())

            routes = [Route("/json", as_json), Route("/stream", as_stream)]

            def wrap(app: Any) -> Any:
                return HangupMiddleware(app, budget=budget)

            async with rig_.serving(*routes, wrap=wrap, host=network.address) as served:
                client = await asyncio.create_subprocess_exec(
                    *("ip", "netns", "exec", network.name),
                    *(sys.executable, "-c", _CLIENT),
                    *(network.address, str(served.port), path),
                )
                try:
                    await rig_.model.log.opened_count(1)
                    await asyncio.to_thread(network.goes_silent)
                    [deadline] = rig_.agent.seen
                    assert time.monotonic() < deadline, "the machine is too slow"
                    await rig_.model.log.closed_count(1, within=10)
                finally:
                    client.kill()
                    await client.wait()
            [call] = rig_.model.log.calls
            assert call.cut
            assert call.closed is not None
            assert deadline - 0.05 <= call.closed <= deadline + 1
            assert rig_.telemetry.abandoned() == {"deadline": 1}

    check()
