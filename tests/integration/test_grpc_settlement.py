"""What a run came to is told over gRPC to the processes that helped it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
import pytest
import trustme
from support.core import in_loop
from support.rpc import on, service
from support.telemetry import Telemetry, chat, instrumented, used

import hangup
from hangup.clients.settle import courier
from hangup.otel import names, settlement
from hangup.otel.notices import SETTLE_RPC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(60)


def tokens(telemetry: Telemetry) -> dict[str, float]:
    """Output tokens by fate, those with any."""
    fates = ("delivered", "sunk", "wasted", "after")
    found = {fate: telemetry.tokens(fate)[1] for fate in fates}
    return {fate: count for fate, count in found.items() if count}


async def settled(telemetry: Telemetry) -> dict[str, float]:
    """Wait until nothing is held any more; what the tokens came to."""
    assert await asyncio.to_thread(courier().flush, 5.0)
    async with asyncio.timeout(5):
        while settlement.observer().held:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.005)
    return tokens(telemetry)


async def held() -> None:
    """Wait until the server's run is over and held."""
    async with asyncio.timeout(5):
        while not settlement.observer().held:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def helping(
    telemetry: Telemetry, *, secure: bool = False
) -> AsyncIterator[tuple[str, Any]]:
    """A server that spends 5 output tokens an answer; its target and credentials."""
    tracer = telemetry.tracer_provider.get_tracer("test")

    async def help_uu(request: bytes, context: Any) -> bytes:
        with chat(tracer) as span:
            used(span, 10, 5)
        return b"answer"

    async def help_us(request: bytes, context: Any) -> AsyncIterator[bytes]:
        with chat(tracer) as span:
            used(span, 10, 5)
        yield b"answer"

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service(help_uu=help_uu, help_us=help_us),))
    credentials = None
    if secure:
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        pair = (issued.private_key_pem.bytes(), chain)
        port = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([pair])
        )
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"localhost:{port}", credentials
    finally:
        await server.stop(None)


def opened(target: str, credentials: Any, *, sync: bool = False) -> Any:
    made = grpc if sync else grpc.aio
    if credentials is None:
        return made.insecure_channel(target)
    return made.secure_channel(target, credentials)


async def helped(target: str, credentials: Any) -> None:
    """Have the server help by every kind of client: four answers, 20 tokens."""
    async with opened(target, credentials) as channel:
        await on(channel, "help_uu")(b"")
        assert [piece async for piece in on(channel, "help_us")(b"")]

    def on_thread() -> None:
        with opened(target, credentials, sync=True) as channel:
            on(channel, "help_uu")(b"")
            assert list(on(channel, "help_us")(b""))

    await hangup.to_thread(on_thread)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("mode", ["observe", "enforce"])
@in_loop
async def test_an_answer_has_the_fate_of_the_whole_run(
    mode: str,
    secure: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """Delivered with it, or sunk where its user left later; the run is counted once."""
    with instrumented(mode=mode) as telemetry:
        async with helping(telemetry, secure=secure) as place:
            async with hangup.run(30, name="user", mode=mode):
                await helped(*place)
                await held()
                assert tokens(telemetry) == {}
            assert await settled(telemetry) == {"delivered": 20}
            stopped: Any = contextlib.nullcontext()
            if mode == "enforce":
                stopped = pytest.raises(hangup.RunCancelled)
            with stopped:
                async with hangup.run(30, name="user", mode=mode) as run:
                    await helped(*place)
                    await held()
                    run.cancel("disconnect")
                    await asyncio.sleep(0.05)
            assert await settled(telemetry) == {"delivered": 20, "sunk": 20}
        assert telemetry.total(names.RUNS) == 2


@in_loop
async def test_notices_that_are_none_are_refused() -> None:
    with instrumented() as telemetry:
        async with (
            helping(telemetry) as (target, _),
            grpc.aio.insecure_channel(target) as channel,
        ):
            for body in (b"", b"[]", b"\xff" * 100, b"x" * 70_000):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(SETTLE_RPC)(body)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
