"""A service that answered hears what became of its answer, over real HTTP.

Caller and service share this process, as two roots with one token: everything between
them goes over a real socket, through the middleware and a real client.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import hangup
from hangup.clients.settle import courier
from hangup.core import registry
from hangup.otel import settlement
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


class Service:
    """An agent behind HTTP that spends 10 tokens in and 5 out per request."""

    def __init__(self, reader: InMemoryMetricReader, tracers: TracerProvider) -> None:
        self._reader = reader
        self._tracer = tracers.get_tracer("agent")
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        with self._tracer.start_as_current_span("chat m", attributes=CHAT) as span:
            await asyncio.sleep(0.01)
            span.set_attribute("gen_ai.usage.input_tokens", 10)
            span.set_attribute("gen_ai.usage.output_tokens", 5)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"answer"})

    def tokens(self) -> Counter[str]:
        """Tokens by fate, those that are not zero."""
        return self._sums("hangup.tokens", "hangup.fate")

    def runs(self) -> Counter[str]:
        """Runs by outcome, those that are not zero."""
        return self._sums("hangup.runs", "hangup.outcome")

    def _sums(self, name: str, label: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        data: Any = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        counts[str((point.attributes or {})[label])] += point.value
        return +counts

    def settled(self) -> Counter[str]:
        """Wait until nothing is held any more, then return the tokens."""
        assert courier().flush(5.0)
        deadline = time.monotonic() + 5.0
        while settlement.observer().held and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.tokens()


@contextmanager
def _served(app: Any) -> Iterator[str]:
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    reader, tracers = InMemoryMetricReader(), TracerProvider()
    meters = MeterProvider([reader])
    hangup.instrument(tracer_provider=tracers, meter_provider=meters)
    service = Service(reader, tracers)
    try:
        with _served(HangupMiddleware(service, mode="enforce")) as url:
            service.url = url
            yield service
    finally:
        hangup.uninstrument()
        meters.shutdown()
        tracers.shutdown()


async def _held() -> None:
    """Wait until the service's run is over and held."""
    while not settlement.observer().held:  # noqa: ASYNC110  nothing signals it
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_an_answer_that_reached_the_user_is_delivered_in_both_processes(
    service: Service, mode: str
) -> None:
    async def use() -> None:
        async with (
            hangup.run(30, name="user", mode=mode),
            httpx.AsyncClient() as client,
        ):
            await client.get(service.url)
            await _held()
            assert service.tokens() == {}

    asyncio.run(use())
    assert service.settled() == {"delivered": 15}


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_an_answer_to_somebody_who_left_later_is_sunk(
    service: Service, mode: str
) -> None:
    async def use() -> None:
        async with hangup.run(30, name="user", mode=mode) as run:
            async with httpx.AsyncClient() as client:
                await client.get(service.url)
                await _held()
            run.cancel("disconnect")

    asyncio.run(use())
    assert service.settled() == {"sunk": 15}


def test_an_answer_made_after_the_user_had_left_is_wasted(service: Service) -> None:
    async def use() -> None:
        async with hangup.run(30, name="user", mode="observe") as run:
            run.cancel("disconnect")
            await asyncio.sleep(0.01)
            async with httpx.AsyncClient() as client:
                await client.get(service.url)

    asyncio.run(use())
    assert service.settled() == {"wasted": 15}


def test_the_run_is_counted_once_over_both(service: Service) -> None:
    async def use() -> None:
        async with hangup.run(30, name="user"), httpx.AsyncClient() as client:
            await client.get(service.url)

    asyncio.run(use())
    service.settled()
    assert service.runs() == {"delivered": 1}
    assert registry.live_runs() == ()


def test_an_answer_nobody_read_is_settled_too(service: Service) -> None:
    """The service had answered in full; its caller stopped before reading a byte."""

    async def main() -> None:
        async with httpx.AsyncClient() as client:
            async with hangup.run(name="first"):
                await client.get(service.url)
            service.settled()  # the caller knows by now that this service holds runs
            with pytest.raises(hangup.RunCancelled):
                async with hangup.run(name="second") as run:
                    reading = asyncio.create_task(client.get(service.url))
                    await asyncio.sleep(0)  # it begins
                    while not settlement.observer().held:
                        await asyncio.sleep(0)  # it is on its way, and answered
                        time.sleep(0.002)  # noqa: ASYNC251  the loop is busy
                    run.cancel("killed")
                    reading.cancel()
                    await reading

    asyncio.run(main())
    assert service.settled()["sunk"] == 15
    assert settlement.observer().held == 0
