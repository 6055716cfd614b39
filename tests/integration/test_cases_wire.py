"""Cases c5, c7 and e2: a full baggage, hosts of others, and clocks that are set."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest
from opentelemetry.instrumentation.httpx import (
    HTTPX2ClientInstrumentor,
    HTTPXClientInstrumentor,
)
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.core import in_loop
from support.propagation import with_baggage
from support.pulse import Pulse
from support.rig import IN_TIME, LONG, Caller, Rig, rig
from support.wire import OUTSIDE, TOKEN, logged_server, resolving_outside

import hangup
from hangup.core.clock import SystemClock
from hangup.core.current import current_run
from hangup.otel import names
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

pytestmark = pytest.mark.timeout(60)

FULL = {f"user.key{number}": "v" * 289 for number in range(40)}
"""40 entries of 300 bytes: half as much again as a baggage may have."""


FORMS = ("both", "hangup", "baggage")
"""What somebody on the way lets through of our two forms."""


def _on_the_way(app: Any, form: str) -> Any:
    """A proxy that knows only one of them."""
    known = (b"hangup", b"baggage") if form == "both" else (form.encode(),)

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            kept = [
                (name, value)
                for name, value in scope["headers"]
                if name in known or name not in (b"hangup", b"baggage")
            ]
            scope = {**scope, "headers": kept}
        await app(scope, receive, send)

    return proxy


class _Overflow:
    """Runs with too much in the baggage, that call a subagent and are stopped."""

    budget = 2.5

    def __init__(self, rig_: Rig) -> None:
        self.rig = rig_
        self.seen: list[tuple[Any, dict[str, str]]] = []
        self._killed: list[hangup.Run] = []

    async def agent(self, request: Request) -> Response:
        self.seen.append((current_run(), dict(request.headers)))
        await self.rig.agent.ask()
        return JSONResponse({})

    def wrap(self, app: Any) -> Any:
        """The subagent as it is reached in each way."""
        ways = {form: _on_the_way(HangupMiddleware(app), form) for form in FORMS}

        async def by_path(scope: Any, receive: Any, send: Any) -> None:
            form = scope.get("path", "").strip("/")
            await ways[form or "both"](scope, receive, send)

        return by_path

    async def parent(self, http: httpx.AsyncClient, form: str, stop: str) -> None:
        seconds = self.budget if stop == "deadline" else None
        with pytest.raises(hangup.RunAbandoned) as caught, with_baggage(**FULL):
            async with hangup.run(budget=seconds, name=stop) as run:
                if stop == "killed":
                    self._killed.append(run)
                await http.get(f"/{form}")
        assert caught.value.cause == stop

    async def operator(self) -> float:
        """Kill those that have no deadline, once all have come that far."""
        await self.rig.model.log.opened_count(2 * len(FORMS))
        for run in self._killed:
            run.cancel("killed")
        return time.monotonic()

    def closed_in_time(self, killed: float, deadline: float, within: float) -> None:
        """The model calls of one half after the kill, of the other by the deadline."""
        closed = sorted(one.closed or 0.0 for one in self.rig.model.log.calls)
        assert closed[len(FORMS) - 1] - killed < within
        assert deadline - 0.05 < closed[len(FORMS)]
        assert closed[-1] - deadline < within


@contextlib.contextmanager
def http_instrumented(rig_: Rig) -> Iterator[None]:
    """Have the instrumentations of both generations of httpx inject."""
    instrumentors = (HTTPXClientInstrumentor(), HTTPX2ClientInstrumentor())
    for one in instrumentors:
        one.instrument(tracer_provider=rig_.telemetry.tracer_provider)
    try:
        yield
    finally:
        for one in instrumentors:
            one.uninstrument()


def test_c5_baggage_overflow_drops_deadline() -> None:
    """The subagent stops at the parent's deadline, and a kill of the parent reaches it.

    With more in the baggage than it may hold, and also where somebody on the way lets
    one of our forms through only. What is lost is the user's last, and that is counted.
    """

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_:
            over = _Overflow(rig_)
            with http_instrumented(rig_):
                async with (
                    rig_.serving(
                        Route("/{form}", over.agent), wrap=over.wrap
                    ) as served,
                    httpx.AsyncClient(base_url=served.url, timeout=30) as http,
                    Pulse() as pulse,
                ):
                    deadline = time.monotonic() + over.budget
                    parents = [
                        over.parent(http, form, stop)
                        for form in FORMS
                        for stop in ("deadline", "killed")
                    ]
                    operator = asyncio.create_task(over.operator())
                    await asyncio.gather(*parents)
                    killed = await operator
                    await rig_.model.log.closed_count(2 * len(FORMS))
            assert killed < deadline, "the machine is too slow"
            over.closed_in_time(killed, deadline, IN_TIME + pulse.allowance)
            assert rig_.telemetry.total(names.BAGGAGE_LOST) == 2 * len(FORMS)
            # Each is counted once, by who opened it.
            counted = {"deadline": len(FORMS), "killed": len(FORMS)}
            assert rig_.telemetry.abandoned() == counted
        assert len(over.seen) == 2 * len(FORMS)
        for run, headers in over.seen:
            assert run.joined
            if "baggage" in headers:
                assert headers["baggage"].startswith(f"hangup.token={run.id},")
                assert "user.key0" in headers["baggage"]
                assert len(headers["baggage"]) <= 8192

    check()


def test_c5_an_inbound_baggage_that_is_thrown_away_leaves_the_deadline() -> None:
    """12 kB: the stock propagator reads none of it, and ours stand in front of it."""
    deadlines: list[float] = []

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_:

            async def agent(request: Request) -> Response:
                run = current_run()
                assert run is not None
                deadlines.append(run.remaining())
                return JSONResponse({})

            async with rig_.serving(Route("/", agent)) as served:
                ours = f"hangup.token={TOKEN},hangup.left=60000"
                users = ",".join(f"key{n}={'v' * 290}" for n in range(40))
                caller = await Caller.asks(served, "/", {"baggage": f"{ours},{users}"})
                assert (await caller.answer())[0] == 200

    check()
    [left] = deadlines
    assert 30 < left <= 60


def test_c7_baggage_leaks_to_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 100 of 100 requests the outside host sees none of our keys, the inside all."""
    resolving_outside(monkeypatch)

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_:
            with http_instrumented(rig_), with_baggage(user="u1"):
                async with (
                    httpx.AsyncClient(follow_redirects=True) as first,
                    httpx2.AsyncClient(follow_redirects=True) as second,
                    hangup.run(budget=60, name="agent"),
                ):
                    for number in range(25):
                        for http in (first, second):
                            await http.get(server.url(f"/out/{number}", OUTSIDE))
                            await http.get(server.url(f"/redirect/{number}"))
                            await http.get(server.url(f"/in/{number}"))

    with logged_server() as server:
        for number in range(25):
            target = server.url(f"/out/redirected/{number}", OUTSIDE)
            server.redirects[f"/redirect/{number}"] = target
        check()
        outside = [sent for path, sent, _ in server.requests if "/out/" in path]
        inside = [sent for path, sent, _ in server.requests if "/out/" not in path]
    assert (len(outside), len(inside)) == (100, 100)
    for sent in outside:
        assert "hangup" not in str(sent).lower()
        assert sent["baggage"] == "user=u1"  # the user's own goes where it went before
    for sent in inside:
        assert sent["hangup"].startswith('t="')
        assert sent["baggage"].startswith("hangup.token=")
        assert sent["baggage"].endswith(",user=u1")


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_e2_clock_step_and_suspend_step(step: float) -> None:
    """A wall clock that is set while a run is on moves its deadline by nothing.

    Neither here nor in the service that was called before and after it.
    """
    budget = 2.0
    offset = [0.0]

    class Stepping(SystemClock):
        wall = staticmethod(lambda: time.time() + offset[0])

    clock = Stepping()
    seen: list[tuple[str, float]] = []

    @in_loop
    async def check() -> None:
        async with rig(LONG) as rig_:

            async def agent(request: Request) -> Response:
                run = current_run()
                assert run is not None
                seen.append((run.id, run.deadline.at))
                await rig_.agent.ask()
                return JSONResponse({})

            async with (
                rig_.serving(Route("/", agent)) as served,
                httpx.AsyncClient(timeout=30) as http,
                Pulse() as pulse,
            ):
                begun = time.monotonic()
                with pytest.raises(hangup.DeadlineExceeded):
                    async with hangup.run(budget, name="parent", clock=clock):
                        before = asyncio.create_task(http.get(served.url))
                        await rig_.model.log.opened_count(1)
                        offset[0] = step
                        after = asyncio.create_task(http.get(served.url))
                        await asyncio.gather(before, after)
                late = time.monotonic() - begun - budget
                assert -0.05 < late < 1.0 + pulse.allowance
                await rig_.model.log.closed_count(2)
                await rig_.closed_in_time(begun + budget, 1.0 + pulse.allowance)
            assert rig_.telemetry.abandoned() == {"deadline": 1}
            for _, at in seen:
                assert at == pytest.approx(begun + budget, abs=0.3 + pulse.allowance)

    check()
