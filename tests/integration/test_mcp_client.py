"""An MCP client in a run: what its calls carry, when they are cut, what that costs."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from openinference.instrumentation.mcp import MCPInstrumentor
from opentelemetry import baggage, context
from support.core import in_loop
from support.mcp_rig import TRANSPORTS, Workshop, text, traced
from support.waiting import eventually

import hangup
from hangup.clients import mcp as adapter
from hangup.core.cause import Cause
from hangup.errors import DeadlineExceeded, RunAbandoned
from hangup.otel import names, settlement, wire
from hangup.servers import mcp as server_adapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run

pytestmark = pytest.mark.timeout(60)

MANY = 50
OVER_ALL = pytest.mark.parametrize("transport", TRANSPORTS)


@OVER_ALL
def test_f1_mcp_cancel_never_sent(transport: str) -> None:
    """50 runs are killed, 50 cancels reach the server, and nothing of them is left.

    By the 2026 protocol over HTTP the cancel is the end of the response.
    """

    @in_loop
    async def main() -> None:
        with traced(mode="enforce") as telemetry:
            shop = Workshop(telemetry)
            async with shop.session(transport) as session:
                runs: list[Run] = []

                async def work() -> None:
                    async with hangup.run(60, name="agent") as run:
                        runs.append(run)
                        await session.call_tool("hang", {})

                working = [asyncio.create_task(work()) for _ in range(MANY)]
                await eventually(lambda: shop.live == MANY)
                for run in runs:
                    run.cancel("killed")
                ended = await asyncio.gather(*working, return_exceptions=True)
                assert {type(error) for error in ended} == {hangup.RunCancelled}
                await eventually(lambda: shop.live == 0)
                served = [run for run in shop.runs if run is not None]
                await eventually(lambda: all(run.abandonment for run in served))
                assert len(served) == MANY
                assert {run.cause for run in served} <= {Cause.DISCONNECT, Cause.KILLED}
                if transport != "http":
                    await eventually(lambda: shop.cancels == MANY)
                answer = await session.call_tool("add", {"a": 1, "b": 2})
                assert text(answer) == "3"
            assert telemetry.abandoned() == {"killed": MANY}
            assert telemetry.total(names.CALLS, kind="tool") == MANY + 1

    main()


@OVER_ALL
def test_a_call_of_an_abandoned_run_is_refused_and_none_other(transport: str) -> None:
    """Two runs use one session at a time: that one is stopped harms the other not."""

    @in_loop
    async def main() -> None:
        with traced(mode="enforce") as telemetry:
            shop = Workshop(telemetry)
            async with shop.session(transport) as session:

                async def other() -> str:
                    async with hangup.run(30, name="other"):
                        return text(await session.call_tool("check", {}))

                waiting = asyncio.create_task(other())
                await eventually(lambda: shop.live == 1)
                with pytest.raises(RunAbandoned):
                    async with hangup.run(30, name="agent") as run:
                        run.cancel("superseded")
                        await session.call_tool("add", {"a": 1, "b": 2})
                assert len(shop.runs) == 1
                assert telemetry.total(names.REFUSALS, kind="tool") == 1
                shop.go_on.set()
                assert await waiting == "went on"

    main()


def test_a_call_without_any_span_is_refused_and_carries_the_run_too() -> None:
    """The SDK's spans are on a provider that hangup does not watch."""

    @in_loop
    async def main() -> None:
        adapter.install()
        server_adapter.install()
        try:
            shop = Workshop()
            async with shop.session("streams") as session:
                async with hangup.run(30, name="agent", mode="observe") as run:
                    await session.call_tool("add", {"a": 1, "b": 2})
                    assert shop.run.id == run.id
                with pytest.raises(RunAbandoned):
                    async with hangup.run(30) as run:
                        run.cancel("killed")
                        await session.call_tool("add", {"a": 1, "b": 2})
                assert len(shop.runs) == 1
        finally:
            adapter.uninstall()
            server_adapter.uninstall()

    main()


@OVER_ALL
def test_e8_a_deadline_is_not_fed_back_to_the_model(transport: str) -> None:
    """The server may come to the deadline first: its error reaches no handler."""

    @in_loop
    async def main() -> None:
        handled: list[BaseException] = []
        with traced(mode="enforce") as telemetry:
            shop = Workshop(telemetry)
            async with shop.session(transport) as session:

                async def work(budget: float) -> None:
                    async with hangup.run(budget, name="agent"):
                        for _ in range(3):
                            try:
                                await session.call_tool("hang", {})
                            except Exception as error:  # noqa: BLE001  as agents do
                                handled.append(error)

                budgets = [0.8 + number / 50 for number in range(10)]
                ended = await asyncio.gather(
                    *map(work, budgets), return_exceptions=True
                )
                assert {type(error) for error in ended} == {DeadlineExceeded}
                assert handled == []
                # None is called again; on a busy machine some come too late at once.
                assert 0 < len(shop.runs) <= len(budgets)
                await eventually(lambda: shop.live == 0)
            assert telemetry.abandoned() == {"deadline": len(budgets)}

    main()


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The timeouts that requests for tools were sent with."""
    found: list[float | None] = []
    original = JSONRPCDispatcher.send_raw_request

    async def send(self: Any, method: str, params: Any, opts: Any = None) -> Any:
        if method == "tools/call":
            found.append((opts or {}).get("timeout"))
        return await original(self, method, params, opts)

    monkeypatch.setattr(JSONRPCDispatcher, "send_raw_request", send)
    return found


def test_timeouts_are_clamped_to_the_time_left(timeouts: list[float | None]) -> None:
    @in_loop
    async def main() -> None:
        add = ("add", {"a": 1, "b": 2})
        with traced():
            shop = Workshop()
            async with shop.session("streams") as session:
                await session.call_tool(*add)
                async with hangup.run(30):
                    await session.call_tool(*add)
                    await session.call_tool(*add, read_timeout_seconds=5)
                    await session.call_tool(*add, read_timeout_seconds=50)
                async with hangup.run(30, mode="observe"):
                    await session.call_tool(*add, read_timeout_seconds=50)
                    await session.call_tool(*add)
                async with hangup.run():
                    await session.call_tool(*add)
        clamped = pytest.approx(30, abs=1)
        assert timeouts == [None, clamped, 5, clamped, 50, None, None]

    main()


def test_e3_one_request_and_one_deadline_whatever_the_timeout() -> None:
    """A read timeout longer than the run is not what ends the call."""

    @in_loop
    async def main() -> None:
        with traced(mode="enforce"):
            shop = Workshop()
            async with shop.session("streams") as session:
                with pytest.raises(DeadlineExceeded) as caught:
                    async with hangup.run(0.5):
                        await session.call_tool("hang", {}, read_timeout_seconds=30)
                assert caught.value.elapsed == pytest.approx(0.5, abs=0.05)
                await eventually(lambda: shop.live == 0)
                assert len(shop.runs) == 1
                # Without a deadline of ours the timeout is as ever.
                with pytest.raises(MCPError, match="timed out"):
                    await session.call_tool("hang", {}, read_timeout_seconds=0.1)

    main()


@OVER_ALL
def test_a_destructive_tool_is_finished_although_its_callers_run_ends(
    transport: str,
) -> None:
    """What the list says of a tool is heeded; the cancel comes after it."""

    @in_loop
    async def main() -> None:
        with traced(mode="enforce") as telemetry:
            shop = Workshop(telemetry)
            async with shop.session(transport) as session:
                await session.list_tools()
                answers = []

                async def work() -> None:
                    async with hangup.run(30, name="agent") as run:
                        asyncio.get_running_loop().call_soon(run.cancel)
                        answers.append(await session.call_tool("charge", {}))

                working = asyncio.create_task(work())
                await eventually(lambda: shop.live == 1)
                # Abandoned before, it is begun all the same: half a change is worse.
                with pytest.raises(RunAbandoned):
                    async with hangup.run(30, name="agent") as run:
                        run.cancel()
                        shop.go_on.set()
                        assert text(await session.call_tool("charge", {})) == "charged"
                        await session.call_tool("add", {"a": 1, "b": 2})
                await working
                assert [text(answer) for answer in answers] == ["charged"]
                assert shop.done.count("finished") == 2
                assert shop.cancels == 0
                assert shop.live == 0

    main()


@OVER_ALL
def test_what_an_observed_run_wastes_in_another_process_is_waste(
    transport: str,
) -> None:
    """Nothing is cut, and the server hears afterwards what its answer came to."""

    @in_loop
    async def main() -> None:
        with traced() as telemetry:
            shop = Workshop(telemetry)
            async with shop.session(transport) as session:
                async with hangup.run(30, name="agent", mode="observe") as run:
                    asking = asyncio.create_task(session.call_tool("spend", {}))
                    await eventually(lambda: shop.live == 1)
                    run.cancel("disconnect")
                    # Its age travels: on the way it comes to look a little younger.
                    await asyncio.sleep(0.2)
                    shop.go_on.set()
                    assert text(await asking) == "spent"
                    await eventually(lambda: not settlement.observer().held)
                await eventually(lambda: telemetry.tokens("wasted")[1] == 10)
                assert telemetry.tokens("sunk")[1] == 10
                # And one that reaches its caller is delivered, in both.
                async with hangup.run(30, name="agent", mode="observe"):
                    await session.call_tool("spend", {})
                await eventually(lambda: telemetry.tokens("delivered")[1] == 20)
            assert telemetry.tokens("wasted")[1] == 10
            assert telemetry.total(names.RUNS) == 2

    main()


def answering(seen: list[Any]) -> Callable[[httpx2.Request], httpx2.Response]:
    """A server somewhere: it answers every call, and keeps what it was sent."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        message = json.loads(request.content)
        seen.append((message, dict(request.headers)))
        result = {"content": [{"type": "text", "text": "hello"}], "tools": []}
        body = {"jsonrpc": "2.0", "id": message.get("id"), "result": result}
        return httpx2.Response(200, json=body)

    return answer


@pytest.mark.parametrize(
    ("host", "allowed", "inside"),
    [
        ("mcp.example.com", (), False),
        ("mcp.example.com", ("*.example.com",), True),
        ("tools.svc", (), True),
    ],
)
def test_c7_nothing_of_ours_goes_to_a_server_outside(
    host: str,
    allowed: tuple[str, ...],
    inside: bool,  # noqa: FBT001  a column
) -> None:
    seen: list[Any] = []

    @in_loop
    async def main() -> None:
        with traced(mode="enforce", propagate_to=allowed):
            transport = httpx2.MockTransport(answering(seen))
            async with (
                httpx2.AsyncClient(transport=transport) as client,
                streamable_http_client(
                    f"http://{host}/mcp", http_client=client
                ) as streams,
                ClientSession(*streams) as session,
            ):
                await session.send_ping()
                token = context.attach(baggage.set_baggage("customer", "acme"))
                try:
                    async with hangup.run(30):
                        await session.call_tool("any", {})
                finally:
                    context.detach(token)

    main()
    for message, headers in seen:
        meta = (message.get("params") or {}).get("_meta") or {}
        ours = message["method"] != "ping" and inside
        assert (wire.HEADER in meta) is ours
        assert ("hangup." in meta.get("baggage", "")) is ours
        assert [name for name in headers if name.startswith("hangup")] == []
        assert "hangup" not in headers.get("baggage", "")
    assert "customer=acme" in str(seen[-1])


def test_c5_a_full_baggage_does_not_lose_the_deadline() -> None:
    @in_loop
    async def main() -> None:
        with traced(mode="enforce"):
            shop = Workshop()
            here = context.get_current()
            for number in range(40):
                here = baggage.set_baggage(f"key{number}", "x" * 300, here)
            token = context.attach(here)
            try:
                async with shop.session("streams") as session, hangup.run(20) as run:
                    await session.call_tool("add", {"a": 1, "b": 2})
            finally:
                context.detach(token)
            assert shop.run.id == run.id
            assert shop.run.deadline.at == pytest.approx(run.deadline.at, abs=1)

    main()


@OVER_ALL
def test_an_instrumentation_of_mcp_beside_it_changes_nothing(transport: str) -> None:
    """It carries the context through ``_meta`` itself, beneath the SDK's own spans."""
    instrumentor = MCPInstrumentor()

    @in_loop
    async def main() -> None:
        with traced(mode="enforce") as telemetry:
            instrumentor.instrument(tracer_provider=telemetry.tracer_provider)
            shop = Workshop(telemetry)
            async with shop.session(transport) as session:
                async with hangup.run(30, name="agent") as run:
                    await session.call_tool("add", {"a": 1, "b": 2})
                    assert shop.run.id == run.id
                with pytest.raises(RunAbandoned):
                    async with hangup.run(30, name="agent") as run:
                        asyncio.get_running_loop().call_later(0.2, run.cancel)
                        await session.call_tool("hang", {})
                await eventually(lambda: len(shop.runs) == 2 and shop.live == 0)
                await eventually(lambda: shop.run.abandonment is not None)
                assert shop.run.id == run.id
            assert telemetry.abandoned() == {"killed": 1}
            assert telemetry.total(names.CALLS, kind="tool") == 2
            assert telemetry.total(names.RUNS) == 2

    try:
        main()
    finally:
        instrumentor.uninstrument()
