"""A2A: cancel and deadline reach the agent, and what is detachable is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatus,
)
from starlette.applications import Starlette
from support.core import in_loop
from support.servers import Served
from support.telemetry import instrumented
from support.waiting import eventually

import hangup
from hangup.core.cause import Cause
from hangup.core.current import current_run
from hangup.errors import ArgumentError, ConfigError, DeadlineExceeded, RunCancelled
from hangup.otel import names
from hangup.servers.a2a import protect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from a2a.client import Client

    from hangup.core.run import Run

pytestmark = pytest.mark.timeout(60)

CANCELED = TaskState.TASK_STATE_CANCELED
COMPLETED = TaskState.TASK_STATE_COMPLETED
FAILED = TaskState.TASK_STATE_FAILED


class Agent(AgentExecutor):
    """Begins a task, and works on it until it may end.

    Attributes:
        runs: The run of each message.
        live: How many are worked on now.
        cancels: How many ``tasks/cancel`` have come.
    """

    def __init__(self) -> None:
        self.runs: list[Run | None] = []
        self.live = 0
        self.cancels = 0
        self.may_end = False

    async def execute(self, context: Any, event_queue: Any) -> None:
        self.runs.append(current_run())
        self.live += 1
        try:
            task = Task(id=context.task_id, context_id=context.context_id)
            task.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_WORKING))
            await event_queue.enqueue_event(task)
            await eventually(lambda: self.may_end)
            hangup.check()
            updater = TaskUpdater(event_queue, context.task_id, context.context_id)
            await updater.complete()
        finally:
            self.live -= 1

    async def cancel(self, context: Any, event_queue: Any) -> None:
        self.cancels += 1
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.cancel()

    @property
    def run(self) -> Run:
        run = self.runs[-1]
        assert run is not None
        return run


@contextlib.asynccontextmanager
async def served(executor: Any, *, streaming: bool = True) -> AsyncIterator[Client]:
    """A client of an agent that is served over HTTP, with JSON-RPC."""
    card = AgentCard(
        name="agent",
        description="works",
        version="1",
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text"],
        default_output_modes=["text"],
    )
    app = Starlette()
    server = await asyncio.to_thread(Served(app).__enter__)
    try:
        url = f"{server.url}/"
        card.supported_interfaces.append(
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
        )
        handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
        app.router.routes.extend(create_jsonrpc_routes(handler, "/"))
        async with httpx.AsyncClient(timeout=30) as http:
            config = ClientConfig(httpx_client=http, streaming=streaming)
            yield ClientFactory(config).create(card)
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


def message(*, at_once: bool = False) -> SendMessageRequest:
    said = Message(message_id="1", role=Role.ROLE_USER, parts=[Part(text="go")])
    request = SendMessageRequest(message=said)
    request.configuration.return_immediately = at_once
    return request


async def begin(client: Client) -> tuple[Any, str]:
    """Send a message and wait for the task; return the stream and the task's id."""
    stream = client.send_message(message())
    async for event in stream:
        return stream, event.task.id
    raise AssertionError("the agent began nothing")


async def state_of(client: Client, task: str) -> int:
    return int((await client.get_task(GetTaskRequest(id=task))).status.state)


async def becomes(client: Client, task: str, state: int) -> None:
    """Wait until a task is in this state."""
    async with asyncio.timeout(30):
        while await state_of(client, task) != state:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.01)


def rigged(
    *, instrument: dict[str, Any] | None = None, **settings: Any
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], None]:
    """Run a check against an agent of its own."""

    def run(check: Callable[..., Coroutine[Any, Any, None]]) -> None:
        @in_loop
        async def main() -> None:
            with instrumented(**(instrument or {"mode": "enforce"})) as telemetry:
                agent = Agent()
                executor = protect(agent, **settings) if settings else agent
                async with served(executor) as client:
                    await check(agent, client, telemetry)

        main()

    return run


def test_f3_a_detachable_task_outlives_the_stream_that_is_cut() -> None:
    @rigged(on_disconnect="finish")
    async def check(agent: Agent, client: Client, telemetry: Any) -> None:
        stream, task = await begin(client)
        await stream.aclose()
        await eventually(lambda: agent.run.absence.left_at is not None)
        assert agent.live == 1
        events = client.subscribe(SubscribeToTaskRequest(id=task))
        reading = asyncio.ensure_future(anext(events))
        await reading
        await eventually(lambda: agent.run.absence.left_at is None)
        agent.may_end = True
        states = [event.status_update.status.state async for event in events]
        assert states[-1] == COMPLETED
        await becomes(client, task, COMPLETED)
        await eventually(lambda: telemetry.total(names.RUNS) == 1)
        assert telemetry.abandoned() == {}

    @rigged(on_disconnect="finish")
    async def nobody_comes_back(agent: Agent, client: Client, telemetry: Any) -> None:
        stream, task = await begin(client)
        await stream.aclose()
        await eventually(lambda: agent.run.absence.left_at is not None)
        agent.may_end = True
        await eventually(lambda: agent.live == 0)
        await becomes(client, task, COMPLETED)
        await eventually(lambda: telemetry.total(names.RUNS) == 1)
        assert telemetry.abandoned() == {}


def test_f3_an_explicit_cancel_stops_the_agent() -> None:
    @rigged(name="agent")
    async def check(agent: Agent, client: Client, telemetry: Any) -> None:
        stream, task = await begin(client)
        answer = await client.cancel_task(CancelTaskRequest(id=task))
        assert answer.status.state == CANCELED
        await eventually(lambda: agent.live == 0)
        assert (agent.run.cause, agent.cancels) == (Cause.KILLED, 1)
        await eventually(lambda: telemetry.abandoned() == {"killed": 1})
        await stream.aclose()


def test_f3_the_deadline_ends_what_nobody_comes_back_for() -> None:
    @rigged(on_disconnect="finish", budget=1.0)
    async def check(agent: Agent, client: Client, telemetry: Any) -> None:
        began = time.monotonic()
        stream, task = await begin(client)
        await stream.aclose()
        await eventually(lambda: agent.live == 0)
        assert time.monotonic() - began == pytest.approx(1.0, abs=0.5)
        await eventually(lambda: telemetry.abandoned() == {"deadline": 1})
        await becomes(client, task, FAILED)


def test_a_stream_that_nobody_reads_is_a_client_that_left() -> None:
    @rigged(name="agent")
    async def check(agent: Agent, client: Client, telemetry: Any) -> None:
        stream, task = await begin(client)
        assert agent.live == 1
        await stream.aclose()
        await eventually(lambda: agent.live == 0)
        assert agent.run.cause is Cause.DISCONNECT
        await eventually(lambda: telemetry.abandoned() == {"disconnect": 1})

        await becomes(client, task, CANCELED)


def test_a_task_sent_to_go_on_by_itself_is_let_go_on() -> None:
    @rigged(name="agent")
    async def check(agent: Agent, client: Client, telemetry: Any) -> None:
        client._config.streaming = False  # type: ignore[attr-defined]
        [event] = [one async for one in client.send_message(message(at_once=True))]
        assert agent.live == 1
        agent.may_end = True
        await eventually(lambda: agent.live == 0)
        await becomes(client, event.task.id, COMPLETED)
        await eventually(lambda: telemetry.total(names.RUNS) == 1)
        assert telemetry.abandoned() == {}


def test_the_deadline_and_the_token_of_the_caller_hold_in_the_agent() -> None:
    """Zero code on both sides; one run, though two processes could count it."""

    @rigged(instrument={"mode": "enforce"})
    async def check(agent: Agent, client: Client, telemetry: Any) -> None:
        agent.may_end = True  # the first of anything takes its time
        async for _ in client.send_message(message()):
            pass
        agent.may_end = False
        with pytest.raises(DeadlineExceeded):
            async with hangup.run(2.0, name="caller") as run:
                async for _ in client.send_message(message()):
                    pass
        await eventually(lambda: agent.live == 0)
        assert (agent.run.id, agent.run.joined) == (run.id, True)
        assert agent.run.deadline.at < run.deadline.at + 1.0  # from its arrival
        assert agent.run.cause in (Cause.DEADLINE, Cause.DISCONNECT, Cause.KILLED)
        assert telemetry.abandoned() == {"deadline": 1}


def test_a_run_that_stops_cancels_its_task_once() -> None:
    @rigged(instrument={"mode": "enforce"}, on_disconnect="finish")
    async def check(agent: Agent, client: Client, telemetry: Any) -> None:
        with pytest.raises(RunCancelled):
            async with hangup.run(30, name="caller") as run:
                async for _ in client.send_message(message()):
                    run.cancel("superseded")
        await eventually(lambda: agent.cancels == 1)
        await eventually(lambda: agent.live == 0)
        with pytest.raises(RunCancelled):
            async with hangup.run(30, name="caller") as run:
                run.cancel()
                async for _ in client.send_message(message()):
                    raise AssertionError("it was sent")
        assert (len(agent.runs), agent.cancels) == (1, 1)
        assert telemetry.abandoned() == {"superseded": 1, "killed": 1}


def test_observe_never_interferes() -> None:
    @rigged(instrument={"mode": "observe"})
    async def check(agent: Agent, client: Client, telemetry: Any) -> None:
        stream, task = await begin(client)
        await stream.aclose()
        await eventually(lambda: agent.run.abandonment is not None)
        agent.may_end = True
        await eventually(lambda: agent.live == 0)
        await becomes(client, task, COMPLETED)
        assert telemetry.abandoned() == {"disconnect": 1}


def test_what_cannot_be_used_is_said_at_once() -> None:
    with pytest.raises(ArgumentError, match="AgentExecutor"):
        protect(object())
    with pytest.raises(ConfigError, match="budget"):
        protect(Agent(), budget=-1)
