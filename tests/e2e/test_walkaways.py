"""Fifty clients leave at once, on every server and every kind of connection.

All their model calls are closed in time, each run is counted once, and the next fifty
requests succeed. The servers are real, each in a process of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.core import in_loop
from support.crowd import KINDS, MANY, Http1Crowd, Http2Crowd
from support.rig import IN_TIME, LONG, SHORT
from support.serving import SERVERS, serving

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from _pytest.mark import ParameterSet
    from support.crowd import Crowd
    from support.serving import Serving

pytestmark = pytest.mark.timeout(110)

WITHIN = {"uvicorn": IN_TIME, "hypercorn": IN_TIME, "granian": 2 * IN_TIME}
"""Seconds after T0; granian hears of it on threads of its own (case a7)."""
_ROUNDS = 3


def wide(*values: object) -> ParameterSet:
    """What one Python is enough for."""
    return pytest.param(*values, marks=pytest.mark.wide)


_PATIENT = Script(tokens=30, input_tokens=20, rate=60, first_token=0.05)


async def walk_away(
    server: str,
    kinds: tuple[str, ...],
    directory: Path,
    crowd: Callable[[Serving, str], Crowd],
    staying: int = 0,
) -> None:
    """Let everybody walk away from every kind of connection of one server."""
    async with ModelServer(default=LONG) as model:
        model.script("quick", SHORT)
        model.script("patient", _PATIENT)
        async with serving(server, directory, model.base_url) as served:
            for kind in kinds:
                rounds, slowest = 0, 0.0
                while rounds < _ROUNDS:
                    found = await crowd(served, kind).walk_away(model)
                    assert len(found) == MANY
                    rounds, slowest = rounds + 1, max(found)
                    # A machine that is busy with others may be late; a fault always is.
                    if slowest <= WITHIN[server]:
                        break
                assert slowest <= WITHIN[server]
                await crowd(served, kind).come_back()
                expected = {
                    ("abandoned", "disconnect"): MANY * rounds,
                    ("delivered", "none"): MANY + staying * rounds,
                }
                await served.books.settle(expected, name=f"/{kind}")
            assert await served.terminate() in (0, -15)
            # Nothing was counted any later either, nor under another name.
            assert sum(served.books.runs().values()) == sum(
                sum(served.books.runs(name=f"/{kind}").values()) for kind in kinds
            )
            assert served.books.runs(name=f"/{kinds[-1]}") == expected
            assert "Traceback" not in served.said
            assert "ERROR" not in served.said.upper()


@pytest.mark.parametrize("server", [pytest.param("uvicorn"), *map(wide, SERVERS[1:])])
def test_everybody_walks_away(server: str, tmp_path: Path) -> None:
    """JSON, stream, SSE and WebSocket over HTTP/1.1."""

    @in_loop
    async def check() -> None:
        await walk_away(server, KINDS, tmp_path, Http1Crowd)

    check()


@pytest.mark.parametrize(
    ("server", "kinds"),
    [
        wide("hypercorn", KINDS),
        wide("granian", KINDS[:3]),  # it has no WebSockets over HTTP/2
    ],
)
def test_a_reset_of_one_stream_is_that_request_walking_away(
    server: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    """Over HTTP/2 the others on the same connection get their whole answers."""

    @in_loop
    async def check() -> None:
        await walk_away(server, kinds, tmp_path, Http2Crowd, staying=10)

    check()
