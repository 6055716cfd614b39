"""An MCP server serves in runs: what stops them, what is answered, and what is not."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import pytest
from mcp.shared.exceptions import MCPError
from support.core import in_loop
from support.mcp_rig import TRANSPORTS, Workshop, text, told, traced
from support.telemetry import tool
from support.waiting import eventually

import hangup
from hangup.config import Mode
from hangup.core.cause import Cause
from hangup.errors import ArgumentError, ConfigError
from hangup.otel import names
from hangup.servers.mcp import protect

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mcp import ClientSession

pytestmark = pytest.mark.timeout(60)

# Its own: what becomes of a run is remembered in a process, by this.
TOKEN = "3ca1c0de" * 4
EVERYWHERE = pytest.mark.parametrize("transport", [*TRANSPORTS, "http-json"])


def header(left_ms: int, mode: str = "enforce", more: str = "") -> dict[str, Any]:
    """The ``_meta`` of a caller that has so long."""
    return {"hangup": f't="{TOKEN}", l={left_ms}, m="{mode}"{more}'}


def serving(
    transport: str, **settings: Any
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], None]:
    """Run a check against a fresh server, of an instrumented process."""

    def run(check: Callable[..., Coroutine[Any, Any, None]]) -> None:
        @in_loop
        async def main() -> None:
            with traced(**({"mode": "enforce"} | settings)) as telemetry:
                shop = Workshop(telemetry)
                async with shop.session(transport) as session:
                    await check(shop, session, telemetry)

        main()

    return run


@EVERYWHERE
def test_a_tool_runs_inside_the_run_of_its_caller(transport: str) -> None:
    @serving(transport)
    async def check(shop: Workshop, session: ClientSession, _: Any) -> None:
        async with hangup.run(20, name="agent") as run:
            answer = await session.call_tool("add", {"a": 1, "b": 2})
            assert text(answer) == "3"
            assert (shop.run.id, shop.run.joined, shop.run.name) == (
                run.id,
                True,
                "add",
            )
            assert shop.run.deadline.at == pytest.approx(run.deadline.at, abs=1)
        await session.call_tool("add", {"a": 1, "b": 2})
        assert shop.run.id != run.id
        assert not shop.run.joined
        assert shop.run.deadline.at == math.inf


@EVERYWHERE
def test_a_deadline_that_comes_with_a_request_is_answered_and_the_server_lives(
    transport: str,
) -> None:
    @serving(transport)
    async def check(shop: Workshop, session: ClientSession, _: Any) -> None:
        asked = time.monotonic()
        with pytest.raises(MCPError) as caught:
            await told(session, "hang", header(300))
        assert 0.2 < time.monotonic() - asked < 2
        assert caught.value.error.code == -32001
        assert caught.value.error.data == {
            "hangup": {"run": TOKEN, "cause": "deadline"}
        }
        await eventually(lambda: shop.live == 0)
        assert shop.run.cause is Cause.DEADLINE
        # One that has no time left is refused before its tool hears of it.
        with pytest.raises(MCPError) as caught:
            await told(session, "hang", header(0))
        assert caught.value.error.code == -32001
        assert len(shop.runs) == 1
        assert text(await session.call_tool("add", {"a": 1, "b": 2})) == "3"


@EVERYWHERE
def test_observe_never_interferes(transport: str) -> None:
    @serving(transport, mode=None)
    async def check(shop: Workshop, session: ClientSession, _: Any) -> None:
        meta: Any = header(0)
        assert text(await told(session, "add", meta, a=1, b=2)) == "3"
        assert shop.run.mode is Mode.OBSERVE
        asking = asyncio.create_task(told(session, "check", header(50)))
        await eventually(lambda: shop.live == 1)
        await eventually(shop.run.deadline.expired)
        shop.go_on.set()
        assert text(await asking) == "went on"


@pytest.mark.parametrize("transport", ["streams", "http"])
def test_inbound_only_tightens_and_malformed_input_says_nothing(transport: str) -> None:
    metas: list[Any] = [
        header(60_000),
        {"hangup": "nonsense"},
        {"hangup": 7, "baggage": ["x"]},
        {"hangup": "t=" + "x" * 100_000},
        {"baggage": "hangup.token=%zz,hangup.left=-1"},
        {"baggage": f"hangup.token={TOKEN},hangup.left=99999999999999999"},
        None,
    ]

    @serving(transport, budget=5)
    async def check(shop: Workshop, session: ClientSession, _: Any) -> None:
        for meta in metas:
            answer = await told(session, "add", meta, a=1, b=2)
            assert text(answer) == "3"
            assert 4 < shop.run.deadline.remaining() <= 5
        meta = {"baggage": f"a=b,hangup.token={TOKEN},hangup.left=2000"}
        await told(session, "add", meta, a=1, b=2)
        assert shop.run.id == TOKEN
        assert 1 < shop.run.deadline.remaining() <= 2
        await told(session, "add", header(2000, "observe"), a=1, b=2)
        assert shop.run.mode is Mode.OBSERVE


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_cancel_of_the_client_is_a_disconnect(transport: str) -> None:
    @serving(transport)
    async def check(shop: Workshop, session: ClientSession, telemetry: Any) -> None:
        asking = asyncio.create_task(session.call_tool("hang", {}))
        await eventually(lambda: shop.live == 1)
        asking.cancel()
        await asyncio.wait([asking])
        await eventually(lambda: shop.live == 0)
        assert shop.run.cause is Cause.DISCONNECT
        await eventually(lambda: telemetry.abandoned() == {"disconnect": 1})
        assert text(await session.call_tool("add", {"a": 1, "b": 2})) == "3"


@pytest.mark.parametrize("transport", ["streams", "http", "http-legacy"])
def test_a_thread_that_cannot_be_stopped_is_in_a_run_that_is(transport: str) -> None:
    """Its client's cancel is noted while the thread still sleeps, not when it wakes."""

    @serving(transport)
    async def check(shop: Workshop, session: ClientSession, _: Any) -> None:
        asking = asyncio.create_task(session.call_tool("sleep", {}))
        await eventually(lambda: shop.threads == 1)
        asking.cancel()
        await asyncio.wait([asking])
        await eventually(lambda: shop.run.abandonment is not None)
        assert (shop.run.cause, shop.threads) == (Cause.DISCONNECT, 1)
        shop.go_on.set()
        await eventually(lambda: shop.threads == 0)


def test_the_end_of_the_connection_is_a_disconnect_that_of_the_server_is_none() -> None:
    @in_loop
    async def main() -> None:
        with traced(mode="enforce") as telemetry:
            shop = Workshop(telemetry)
            async with shop.streams() as (session, _):
                asking = asyncio.create_task(session.call_tool("hang", {}))
                await eventually(lambda: shop.live == 1)
            await asyncio.wait([asking])
            assert asking.exception() is not None
            assert (shop.live, shop.run.cause) == (0, Cause.DISCONNECT)
            async with shop.streams() as (session, serving):
                asking = asyncio.create_task(session.call_tool("hang", {}))
                await eventually(lambda: shop.live == 1)
                serving.cancel()
                await asyncio.wait([serving, asking])
                assert asking.exception() is not None
            assert (shop.live, shop.run.cause) == (0, Cause.SHUTDOWN)
            assert telemetry.abandoned() == {"disconnect": 1, "shutdown": 1}

    main()


def test_the_client_of_an_answer_in_one_piece_is_watched_too() -> None:
    """With ``json_response`` the SDK would hear of it when it answers."""

    @serving("http-json")
    async def check(shop: Workshop, session: ClientSession, _: Any) -> None:
        asking = asyncio.create_task(session.call_tool("hang", {}))
        await eventually(lambda: shop.live == 1)
        asking.cancel()
        await asyncio.wait([asking])
        await eventually(lambda: shop.live == 0)
        assert shop.run.cause is Cause.DISCONNECT


@pytest.mark.parametrize("transport", ["streams", "http", "http-legacy"])
def test_a_refusal_inside_a_tool_is_a_protocol_error(transport: str) -> None:
    """In refuse mode nothing is cut, and the stop comes out of the tool itself."""

    @serving(transport, mode="refuse")
    async def check(shop: Workshop, session: ClientSession, _: Any) -> None:
        asking = asyncio.create_task(told(session, "check", header(60_000, "refuse")))
        await eventually(lambda: shop.live == 1)
        shop.run.cancel("killed")
        shop.go_on.set()
        with pytest.raises(MCPError) as caught:
            await asking
        assert caught.value.error.code == -32800
        assert caught.value.error.data == {"hangup": {"run": TOKEN, "cause": "killed"}}
        assert text(await session.call_tool("add", {"a": 1, "b": 2})) == "3"


@pytest.mark.parametrize("transport", ["streams", "http", "http-legacy"])
def test_a_destructive_tool_is_never_refused_and_begun_it_is_finished(
    transport: str,
) -> None:
    @serving(transport)
    async def check(shop: Workshop, session: ClientSession, _: Any) -> None:
        asking = [
            asyncio.create_task(told(session, "charge", meta))
            for meta in (header(0), header(100), None)
        ]
        await eventually(lambda: shop.live == 3)
        await eventually(lambda: all(run and run.cause for run in shop.runs[:2]))
        asking[2].cancel()
        await asyncio.wait(asking[2:])
        await eventually(lambda: shop.run.cause is Cause.DISCONNECT)
        assert shop.live == 3
        shop.go_on.set()
        assert [text(await one) for one in asking[:2]] == ["charged", "charged"]
        await eventually(lambda: shop.live == 0)
        assert shop.done == ["begun"] * 3 + ["finished"] * 3


def test_a_failed_tool_is_an_answer() -> None:
    @serving("streams")
    async def check(shop: Workshop, session: ClientSession, telemetry: Any) -> None:
        answer = await session.call_tool("fail", {})
        assert answer.is_error
        assert (await session.call_tool("nothing of ours", {})).is_error
        assert telemetry.abandoned() == {}
        labels = {"outcome": "delivered"}
        assert telemetry.total(names.RUNS, **labels) == 2
        # A name that anybody may make up is no label.
        assert telemetry.total(names.RUNS, run="tools/call", **labels) == 1


def test_each_call_is_counted_once() -> None:
    """By its caller; where that knows nothing of runs, by the one who serves it."""

    @serving("streams")
    async def check(shop: Workshop, session: ClientSession, telemetry: Any) -> None:
        def calls() -> float:
            return float(telemetry.total(names.CALLS, kind="tool"))

        async with hangup.run(20, name="agent"):
            await session.call_tool("add", {"a": 1, "b": 2})
        assert calls() == 1
        assert telemetry.total(names.RUNS) == 1
        await session.call_tool("add", {"a": 1, "b": 2})
        await eventually(lambda: calls() == 2)
        assert telemetry.total(names.RUNS) == 2
        # A framework whose tool this is tells of it too; of another it is a second.
        for name, more in (("add", 1), ("sums", 2)):
            before = calls()
            async with hangup.run(20, name="agent"):
                with tool(telemetry.tracer(), name):
                    await session.call_tool("add", {"a": 1, "b": 2})
            assert calls() == before + more


def test_other_requests_are_nobodys_business_until_they_spend() -> None:
    @serving("streams")
    async def check(shop: Workshop, session: ClientSession, telemetry: Any) -> None:
        @shop.server.resource("note://plain")
        async def plain() -> str:
            shop._seen()
            return "plain"

        @shop.server.resource("note://spends")
        async def spends() -> str:
            await shop.spend()
            return "spent"

        shop.go_on.set()
        await session.read_resource("note://plain")
        assert shop.runs[-1] is not None
        assert shop.run.latent
        assert telemetry.total(names.RUNS) == 0
        await session.read_resource("note://spends")
        assert telemetry.total(names.RUNS, run="resources/read") == 1
        await session.send_ping()
        await session.list_tools()
        assert len(shop.runs) == 2


def test_a_server_is_protected_by_hand_with_terms_of_its_own() -> None:
    @in_loop
    async def main() -> None:
        shop = Workshop()
        tools = {"add": {"budget": 3, "name": "sum", "tenant": "acme"}}
        assert protect(shop.server, budget=9, tools=tools) is shop.server
        async with shop.session("streams") as session:
            await session.call_tool("add", {"a": 1, "b": 2})
            assert (shop.run.name, shop.run.tenant) == ("sum", "acme")
            assert shop.run.mode is Mode.ENFORCE
            assert 2 < shop.run.deadline.remaining() <= 3
            asking = asyncio.create_task(session.call_tool("hang", {}))
            await eventually(lambda: shop.live == 1)
            assert 8 < shop.run.deadline.remaining() <= 9
            shop.run.cancel("superseded")
            with pytest.raises(MCPError, match="superseded"):
                await asking
        other = Workshop()  # of which nobody said anything
        async with other.session("streams") as session:
            await session.call_tool("add", {"a": 1, "b": 2})
            assert other.runs == [None]

    main()


def test_what_cannot_be_used_is_said_at_once() -> None:
    with pytest.raises(ArgumentError, match="MCPServer"):
        protect(object())
    with pytest.raises(ConfigError, match="budget"):
        protect(Workshop().server, budget=-1)
    with pytest.raises(ConfigError, match="tools"):
        protect(Workshop().server, tools={"add": {"bugdet": 1}})
