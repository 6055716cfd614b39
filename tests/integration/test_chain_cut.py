"""Case f6: three hosts in network namespaces, and one of them is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from support.chained import ROLES, SCRIPTS, TESTS, environment, lines_of
from support.core import in_loop
from support.pulse import Pulse
from support.requires import require
from support.rig import Caller
from support.servers import listening

from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.timeout(120), pytest.mark.wide]

BUDGET = 4.0
PORT = 8000
BOOTED_EARLIER = (
    *("unshare", "--time", "--fork", "--kill-child"),
    *("--monotonic", "500000", "--boottime", "500000"),
)
"""A host that was started six days before: what its monotonic clock says, no other
understands (case e1)."""


class Hosts:
    """A namespace for each, all on one bridge, and this one beside them."""

    def __init__(self) -> None:
        self._tag = uuid.uuid4().hex[:6]
        self._net = f"10.214.{int(self._tag[:2], 16)}"
        self.bridge = f"hub{self._tag}"
        self.here = f"{self._net}.100"

    def name(self, role: str) -> str:
        """The namespace of a host."""
        return f"hangup-{self._tag}-{role}"

    def address(self, role: str) -> str:
        """Where a host is reached by the others."""
        return f"{self._net}.{ROLES.index(role) + 1}"

    def up(self) -> None:
        """Build them."""
        _run("ip", "link", "add", self.bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.here}/24", "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")
        for number, role in enumerate(ROLES):
            name, outer = self.name(role), f"hu{self._tag}{number}"
            _run("ip", "netns", "add", name)
            _run(
                *("ip", "link", "add", outer, "type", "veth"),
                *("peer", "name", "eth0", "netns", name),
            )
            _run("ip", "link", "set", outer, "master", self.bridge, "up")
            address = f"{self.address(role)}/24"
            self.inside(role, "ip", "addr", "add", address, "dev", "eth0")
            self.inside(role, "ip", "link", "set", "eth0", "up")
            self.inside(role, "ip", "link", "set", "lo", "up")

    def inside(self, role: str, *command: str) -> None:
        """Run a command on a host."""
        _run("ip", "netns", "exec", self.name(role), *command)

    def cut_off(self, role: str) -> None:
        """Drop, without a word, whatever does not go to or come from the model."""
        for chain, end in (("INPUT", "-s"), ("OUTPUT", "-d")):
            self.inside(
                role, "iptables", "-A", chain, "!", end, self.here, "-j", "DROP"
            )

    def down(self) -> None:
        """Take down what there is of them."""
        for number, role in enumerate(ROLES):
            link = ("link", "delete", f"hu{self._tag}{number}")
            for command in (link, ("netns", "delete", self.name(role))):
                with contextlib.suppress(subprocess.CalledProcessError):
                    _run("ip", *command)
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("ip", "link", "delete", self.bridge)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)  # noqa: S603  fixed words


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    require("ip")
    require("iptables")
    require("unshare")
    hosts = Hosts()
    allowed = True
    try:
        try:
            hosts.up()
        except subprocess.CalledProcessError:
            allowed = False
        require("right to make network namespaces", present=allowed)
        yield hosts
    finally:
        hosts.down()


@contextlib.asynccontextmanager
async def _serving(hosts: Hosts, where: Path, model: str) -> AsyncIterator[None]:
    """Run one of the processes on each host, calling each other by address."""
    processes = []
    following = ""
    try:
        for role in ROLES[::-1]:
            command = (
                *("ip", "netns", "exec", hosts.name(role)),
                *(BOOTED_EARLIER if role == "child" else ()),
                *(sys.executable, "-m", "uvicorn", "support.chain:app"),
                *("--app-dir", str(TESTS), "--log-level", "warning"),
                *("--host", hosts.address(role), "--port", str(PORT)),
            )
            env = environment(where, role, MODEL=model, NEXT=following)
            processes.append(await asyncio.create_subprocess_exec(*command, env=env))
            following = f"http://{hosts.address(role)}:{PORT}"
        async with asyncio.timeout(60):
            for role in ROLES:
                while not await _answers(hosts.address(role)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.gather(*(process.wait() for process in processes))


@contextlib.asynccontextmanager
async def _model(model: ModelServer, host: str) -> AsyncIterator[str]:
    """Serve the model where the hosts reach it; yields its OpenAI base URL."""
    sock = listening(host=host)
    settings: dict[str, Any] = {
        "log_config": None,
        "access_log": False,
        "timeout_graceful_shutdown": 1,
    }
    server = uvicorn.Server(uvicorn.Config(model.app, **settings))
    serving = asyncio.create_task(server.serve([sock]))
    try:
        yield f"http://{host}:{sock.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await serving


async def _asks(address: str) -> Caller:
    reader, writer = await asyncio.open_connection(address, PORT)
    fields = f"Host: agent\r\nX-Hangup-Budget: {BUDGET}\r\n"
    writer.write(f"GET /cut/long HTTP/1.1\r\n{fields}\r\n".encode())
    await writer.drain()
    return Caller(reader, writer)


async def _answers(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, PORT)
    except OSError:
        return False
    writer.close()
    return True


def test_f6_a_host_that_is_cut_off_stops_at_the_deadline(
    hosts: Hosts, tmp_path: Path
) -> None:
    """The user leaves; the child hears nothing of it, nor does whom it called.

    Its monotonic clock is days ahead of everybody's. The parent stops at once. The
    others stop by themselves, at the deadline that came with the request, within 0.3 s,
    although nobody can tell them anything.
    """

    @in_loop
    async def check() -> None:
        model = ModelServer()
        for name, script in SCRIPTS.items():
            model.script(name, script)
        async with (
            _model(model, hosts.here) as url,
            _serving(hosts, tmp_path, url),
        ):
            async with Pulse() as there:
                caller = await _asks(hosts.address("parent"))
                deadline = time.monotonic() + BUDGET

                def streaming() -> bool:
                    calls = model.log.of("cut")
                    return sum(1 for one in calls if one.output_tokens) == len(ROLES)

                await model.log.wait_for(streaming, within=20)
            await asyncio.to_thread(hosts.cut_off, "child")
            left = caller.leaves()
            assert left < deadline - 1, "the machine is too slow"
            await model.log.closed_count(1)
            await asyncio.sleep(deadline - 0.05 - time.monotonic())
            async with Pulse() as stop:
                await model.log.closed_count(len(ROLES))
            closed = {one.path: one.closed for one in model.log.of("cut")}
            most = 0.3 + there.allowance + stop.allowance
            assert closed["parent"] is not None
            assert closed["parent"] - left < 1.0
            for role in ROLES[1:]:
                ended = closed[role]
                assert ended is not None
                assert -0.05 < ended - deadline < most, (role, ended - deadline)
            over: list[Any] = []
            async with asyncio.timeout(10):
                while len(over) < len(ROLES):
                    await asyncio.sleep(0.02)
                    over = lines_of(tmp_path, "over", scene="cut")
        at = {one["role"]: one["at"] for one in over}
        assert at["child"] - at["parent"] > 400_000
        causes = {one["role"]: one["cause"] for one in over}
        assert causes["parent"] == "disconnect"
        assert causes["child"] == "deadline"

    check()
