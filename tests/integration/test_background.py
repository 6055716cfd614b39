"""What a provider goes on with in the background: told to stop, and counted once.

The real client of OpenAI against a provider whose every byte is sent here.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from support.scripted import WITHIN, Call, Provider, scripted, whole
from support.telemetry import instrumented, opened

import hangup
from hangup.clients import background
from hangup.otel import names, once
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.telemetry import Telemetry

ASK: Any = {"model": "m", "input": "a question", "background": True}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def response(status: str, used: tuple[int, int] | None = None) -> dict[str, Any]:
    """A response as the provider has it."""
    usage = used and {
        "input_tokens": used[0],
        "output_tokens": used[1],
        "total_tokens": sum(used),
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status,
        "background": True,
        "output": [],
        "usage": usage,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


class Rig:
    """A provider, two clients and what hangup measured."""

    def __init__(self, provider: Provider, measured: Telemetry) -> None:
        self.provider = provider
        self.measured = measured
        self.client = openai.AsyncOpenAI(
            base_url=provider.url, api_key="secret", max_retries=0
        )
        self.blocking = openai.OpenAI(
            base_url=provider.url, api_key="secret", max_retries=0
        )

    async def queued(self) -> None:
        """Have a background response made."""
        asking = asyncio.create_task(self.client.responses.create(**ASK))
        await (await self.provider.call()).answer(response("queued"))
        assert (await asking).status == "queued"

    async def poll(self, answer: dict[str, Any]) -> None:
        """Ask for it, and have that answered."""
        asking = asyncio.create_task(self.client.responses.retrieve("resp_1"))
        call = await self.provider.call()
        assert (call.method, call.path) == ("GET", "/v1/responses/resp_1")
        await call.answer(answer)
        assert (await asking).status == answer["status"]

    async def cancel(self) -> Call:
        """Wait for the request that cancels it."""
        call = await self.provider.call()
        assert (call.method, call.path) == ("POST", "/v1/responses/resp_1/cancel")
        return call

    async def booked(self) -> None:
        """Wait until the call is in the books: no event of ours tells."""
        async with asyncio.timeout(WITHIN):
            while not self.measured.total(names.CALLS):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def spent(self) -> float:
        """Tokens of every fate."""
        return self.measured.total(names.TOKENS)

    def unknown(self) -> tuple[float, float]:
        """Calls of unknown usage, and of unknown outcome."""
        return (
            self.measured.total(names.UNKNOWN_CALLS),
            self.measured.total(names.OUTCOME_UNKNOWN),
        )


@contextlib.asynccontextmanager
async def _rig() -> AsyncIterator[Rig]:
    with instrumented() as measured:
        async with scripted() as provider, asyncio.timeout(30):
            rig = Rig(provider, measured)
            async with rig.client:
                with rig.blocking:
                    yield rig


def rigged(check: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test on a loop, with a rig."""

    @functools.wraps(check)
    def test(**given: Any) -> None:
        async def main() -> None:
            async with _rig() as rig:
                await check(rig, **given)

        asyncio.run(main())

    asked = inspect.signature(check)
    [_, *others] = asked.parameters.values()  # pytest would ask for a rig
    test.__signature__ = asked.replace(parameters=others)  # type: ignore[attr-defined]
    return test


@rigged
async def test_d7_provider_keeps_going(rig: Rig) -> None:
    """First half: it ignores the close. What was received is counted, no more."""
    ask: Any = {"model": "m", "messages": [{"role": "user", "content": "a question"}]}
    async with hangup.run(name="before"):  # so that avoided would have a guess
        asking = asyncio.create_task(rig.client.chat.completions.create(**ask))
        await (await rig.provider.call()).answer(whole(5, 340))
        await asking
    before = rig.measured.total(names.TOKENS)
    said: list[str] = []

    async def read() -> None:
        stream = await rig.client.chat.completions.create(
            **ask, stream=True, max_completion_tokens=340
        )
        async for chunk in stream:
            said.extend(choice.delta.content or "" for choice in chunk.choices)

    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            reading = asyncio.create_task(read())
            call = await rig.provider.call()
            await call.begin()
            for _ in range(40):
                await call.say("word ")
            async with asyncio.timeout(WITHIN):
                while len(said) < 40:  # noqa: ASYNC110  the client fills it
                    await asyncio.sleep(0)
            run.cancel("disconnect")
            await reading
    await call.left()
    with contextlib.suppress(ConnectionError):
        for _ in range(300):
            await call.say("word ")
    async with asyncio.timeout(WITHIN):
        while rig.measured.total(names.CALLS) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert rig.measured.tokens("sunk")[1] + rig.measured.tokens("wasted")[
        1
    ] == pytest.approx(40, abs=2)
    assert rig.measured.total(names.TOKENS) - before < 60
    assert rig.measured.total(names.OUTCOME_UNKNOWN) == 1
    assert rig.measured.total(names.UNKNOWN_BOUND) == pytest.approx(300, abs=2)
    assert rig.measured.total(names.AVOIDED_TOKENS) == 0


@rigged
async def test_d7_provider_keeps_going_cancel(rig: Rig) -> None:
    """Second half: exactly one cancel at most 1 s after T0, and usage replaced."""
    loop = asyncio.get_running_loop()
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            asking = asyncio.create_task(rig.client.responses.create(**ASK))
            create = await rig.provider.call()
            await create.answer(response("queued"))
            await asking
            begun = loop.time()
            run.cancel("disconnect")
            await asyncio.sleep(60)
    cancel = await rig.cancel()
    assert loop.time() - begun < 1.0
    assert cancel.headers["authorization"] == "Bearer secret"
    assert cancel.headers["user-agent"] == create.headers["user-agent"]
    assert not {"hangup", "baggage", "traceparent"} & set(cancel.headers)
    await cancel.answer(response("cancelled"))  # it does not say yet
    final = await rig.provider.call()
    assert (final.method, final.path) == ("GET", "/v1/responses/resp_1")
    await final.answer(response("cancelled", (11, 23)))
    await rig.booked()
    sunk, wasted = rig.measured.tokens("sunk"), rig.measured.tokens("wasted")
    assert (sunk[0] + wasted[0], sunk[1] + wasted[1]) == (11, 23)
    assert sunk[0] == 11
    assert rig.unknown() == (0, 0)
    assert rig.measured.total(names.ESTIMATED_TOKENS, basis="estimated") == 0
    assert rig.measured.total(names.METERED_TOKENS) == 34
    assert rig.measured.total(names.CALLS) == 1
    await _passed(rig)
    assert rig.provider.requests == 4


@rigged
async def test_usage_in_the_answer_to_the_cancel_needs_no_further_request(
    rig: Rig,
) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            await rig.queued()
            run.cancel("disconnect")
            await asyncio.sleep(60)
    await (await rig.cancel()).answer(response("cancelled", (11, 23)))
    await rig.booked()
    assert rig.spent() == 34
    assert rig.provider.requests == 2


@rigged
async def test_what_polls_show_is_the_usage_of_the_call_once(rig: Rig) -> None:
    async with hangup.run(name="r"):
        await rig.queued()
        await rig.poll(response("in_progress"))
        await rig.poll(response("completed", (7, 5)))
        await rig.poll(response("completed", (7, 5)))
    assert rig.measured.tokens("delivered") == (7, 5)
    assert rig.measured.total(names.METERED_TOKENS) == 12
    assert rig.measured.total(names.CALLS) == 1
    assert rig.unknown() == (0, 0)


@rigged
async def test_a_poll_after_the_run_still_tells(rig: Rig) -> None:
    """The usual way to ask is another request of the user's."""
    async with hangup.run(name="r"):
        await rig.queued()
    assert rig.spent() == 0
    await rig.poll(response("completed", (7, 5)))
    assert rig.measured.tokens("delivered")[0] == 7
    assert rig.spent() == 12
    assert rig.unknown() == (0, 0)
    assert sum(event[names.CALLS + ".delivered"] for event in _closed(rig)) == 1


def _closed(rig: Rig) -> Any:
    return rig.measured.closed


@rigged
async def test_a_span_around_it_is_the_same_call(rig: Rig) -> None:
    tracer = rig.measured.tracer()
    async with hangup.run(name="r"):
        with tracer.start_as_current_span("chat m", attributes=CHAT):
            await rig.queued()
        await rig.poll(response("completed", (7, 5)))
    assert rig.measured.tokens("delivered") == (7, 5)
    assert rig.measured.total(names.CALLS) == 1
    assert rig.unknown() == (0, 0)


@rigged
async def test_in_observe_nothing_is_sent(rig: Rig) -> None:
    async with hangup.run(name="r", mode="observe") as run:
        await rig.queued()
        run.cancel("disconnect")
        await rig.poll(response("completed", (7, 5)))
    await _passed(rig)
    assert rig.provider.requests == 3
    assert rig.spent() == 12
    assert rig.measured.tokens("wasted")[1] > 0


@rigged
async def test_one_that_is_finished_is_not_cancelled(rig: Rig) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            await rig.queued()
            await rig.poll(response("completed", (7, 5)))
            run.cancel("disconnect")
            await asyncio.sleep(60)
    await rig.booked()
    await _passed(rig)
    assert rig.provider.requests == 3


async def _passed(rig: Rig) -> None:
    """Let a request of ours reach the provider first, if there is one."""
    asking = asyncio.create_task(rig.client.models.retrieve("m"))
    call = await rig.provider.call()
    assert call.path == "/v1/models/m"
    await call.answer({"id": "m", "object": "model", "created": 1, "owned_by": "x"})
    await asking


@rigged
async def test_a_cancel_of_the_applications_own_is_the_one(rig: Rig) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            await rig.queued()
            asking = asyncio.create_task(rig.client.responses.cancel("resp_1"))
            await (await rig.cancel()).answer(response("cancelled", (11, 23)))
            await asking
            run.cancel("disconnect")
            await asyncio.sleep(60)
    await rig.booked()
    await _passed(rig)
    assert rig.provider.requests == 3
    assert rig.spent() == 34


@pytest.mark.parametrize("status", [404, 500])
@rigged
async def test_a_cancel_that_fails_leaves_the_outcome_unknown(
    rig: Rig, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    once.forget()
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            await rig.queued()
            run.cancel("disconnect")
            await asyncio.sleep(60)
    await (await rig.cancel()).answer({"error": {}}, status=status)
    if status != 404:
        await (await rig.provider.call()).answer({"error": {}}, status=status)
    await rig.booked()
    assert rig.unknown() == (1, 1)
    assert rig.provider.requests == (2 if status == 404 else 3)
    assert rig.measured.tokens("sunk")[1] == 0
    said = [one for one in caplog.records if "background response" in one.message]
    assert len(said) == 1


@rigged
async def test_a_provider_that_is_gone_leaves_the_outcome_unknown(rig: Rig) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            await rig.queued()
            run.cancel("disconnect")
            await asyncio.sleep(60)
    (await rig.cancel()).hang_up()
    await rig.booked()
    assert rig.unknown() == (1, 1)
    await _passed(rig)


@rigged
async def test_a_stream_that_the_stop_cuts_is_cancelled_too(rig: Rig) -> None:
    said = asyncio.Event()

    async def read() -> None:
        stream = await rig.client.responses.create(**ASK, stream=True)
        async for _ in stream:
            said.set()

    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            reading = asyncio.create_task(read())
            create = await rig.provider.call()
            await create.begin()
            kind = "response.created"
            await create.event(
                {
                    "type": kind,
                    "sequence_number": 0,
                    "response": response("queued"),
                },
                kind,
            )
            await said.wait()
            run.cancel("disconnect")
            await reading
    await (await rig.cancel()).answer(response("cancelled", (11, 23)))
    await create.left()
    await rig.booked()
    assert rig.spent() == 34
    assert rig.unknown() == (0, 0)
    assert rig.provider.requests == 2


@rigged
async def test_a_stream_read_to_its_end_needs_nothing(rig: Rig) -> None:

    async def read() -> None:
        async for _ in await rig.client.responses.create(**ASK, stream=True):
            pass

    async with hangup.run(name="r"):
        reading = asyncio.create_task(read())
        create = await rig.provider.call()
        await create.begin()
        kind = "response.completed"
        await create.event(
            {
                "type": kind,
                "sequence_number": 0,
                "response": response("completed", (7, 5)),
            },
            kind,
        )
        await create.finish()
        await reading
    assert rig.measured.tokens("delivered") == (7, 5)
    assert rig.unknown() == (0, 0)


@rigged
async def test_a_thread_that_asked_has_it_cancelled_too(rig: Rig) -> None:
    asked = threading.Event()

    def ask() -> None:
        rig.blocking.responses.create(**ASK)
        asked.set()

    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            asking = asyncio.create_task(hangup.to_thread(ask))
            await (await rig.provider.call()).answer(response("queued"))
            await asking
            run.cancel("disconnect")
            await asyncio.sleep(60)
    assert asked.is_set()
    await (await rig.cancel()).answer(response("cancelled", (11, 23)))
    await rig.booked()
    assert rig.spent() == 34
    assert rig.provider.requests == 2


@rigged
async def test_an_answer_to_a_thread_after_t0_is_still_cancelled(rig: Rig) -> None:
    """It is the answer that tells the id: a stopped run reads it all the same."""

    def ask() -> None:
        rig.blocking.responses.create(**ASK)

    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            asking = asyncio.create_task(hangup.to_thread(ask))
            create = await rig.provider.call()
            run.cancel("disconnect")
            await create.answer(response("queued"))
            await asking
    await (await rig.cancel()).answer(response("cancelled", (11, 23)))
    await rig.booked()
    assert rig.spent() == 34


@rigged
async def test_nobody_asks_and_the_process_ends_outcome_unknown(rig: Rig) -> None:
    async with hangup.run(name="r"):
        await rig.queued()
    background.release()
    await rig.booked()
    assert rig.unknown() == (1, 1)
    assert rig.measured.tokens("delivered")[1] == 0


@rigged
async def test_a_script_that_ends_with_its_run_has_it_cancelled_too(rig: Rig) -> None:
    """The end of ``asyncio.run`` cancels every task, ours too; and waits for them."""

    async def main() -> None:
        client = openai.AsyncOpenAI(base_url=rig.provider.url, api_key="x")
        async with client, hangup.run(name="r") as run:
            await client.responses.create(**ASK)
            run.cancel("disconnect")
            await asyncio.sleep(60)

    script = asyncio.create_task(asyncio.to_thread(asyncio.run, main()))
    await (await rig.provider.call()).answer(response("queued"))
    with contextlib.suppress(ConnectionError):
        await (await rig.cancel()).answer(response("cancelled", (11, 23)))
    # It may have been too late to hear that; then it asks.
    asking = asyncio.create_task(rig.provider.call())
    await asyncio.wait({script, asking}, return_when=asyncio.FIRST_COMPLETED)
    if asking.done():
        assert (await asking).method == "GET"
        await (await asking).answer(response("cancelled", (11, 23)))
    asking.cancel()
    with pytest.raises(hangup.RunCancelled):
        await script
    assert rig.spent() == 34
    assert rig.unknown() == (0, 0)


@rigged
async def test_nobody_asks_for_long_outcome_unknown(rig: Rig) -> None:
    clock = FakeClock()
    with opened(clock):
        await rig.queued()
        clock.advance(2 * background.LONG)
        assert rig.unknown() == (0, 0)  # who opened the run may still ask
    clock.advance(background.LONG - 1)
    await rig.poll(response("in_progress"))
    clock.advance(background.LONG - 1)
    assert rig.unknown() == (0, 0)
    clock.advance(1)
    await rig.booked()
    assert rig.unknown() == (1, 1)
    await rig.poll(response("completed", (7, 5)))  # too late, and counted by now
    assert rig.measured.total(names.CALLS) == 1


@rigged
async def test_what_must_be_finished_is_not_cancelled(rig: Rig) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            await hangup.irreversible(rig.queued)
            run.cancel("disconnect")
            await asyncio.sleep(60)
    await rig.poll(response("completed", (7, 5)))
    await rig.booked()
    await _passed(rig)
    assert rig.provider.requests == 3
    assert rig.spent() == 12


@rigged
async def test_a_task_that_others_wait_for_keeps_its_response(rig: Rig) -> None:
    joined: list[asyncio.Task[None]] = []
    wanted = asyncio.Event()

    async def both() -> None:
        await rig.client.responses.create(**ASK)
        wanted.set()
        await asyncio.Event().wait()

    async def other() -> None:
        async with hangup.run(name="other"):
            await wanted.wait()
            await asyncio.shield(joined[0])

    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            joined.append(asyncio.create_task(both()))
            outer = contextvars.Context()
            waiting = asyncio.get_running_loop().create_task(other(), context=outer)
            await (await rig.provider.call()).answer(response("queued"))
            await wanted.wait()
            await asyncio.sleep(0)  # the other's turn to wait
            run.cancel("disconnect")
            await asyncio.sleep(60)
    await _passed(rig)
    assert rig.provider.requests == 2
    for task in (waiting, *joined):
        task.cancel()
    await asyncio.gather(waiting, *joined, return_exceptions=True)


@rigged
async def test_the_cancel_goes_where_the_request_went(rig: Rig) -> None:
    """With the query and the keys of a deployment; nothing of the first request's."""
    url = f"{rig.provider.url}/responses?api-version=preview"
    keys = {"api-key": "secret", "idempotency-key": "once", "traceparent": "00-1"}
    with pytest.raises(hangup.RunCancelled):
        async with (
            httpx.AsyncClient(headers=keys) as client,
            hangup.run(name="r") as run,
        ):
            asking = asyncio.create_task(client.post(url, json=ASK))
            await (await rig.provider.call()).answer(response("queued"))
            await asking
            run.cancel("disconnect")
            await asyncio.sleep(60)
    cancel = await rig.provider.call()
    assert cancel.path == "/v1/responses/resp_1/cancel?api-version=preview"
    assert cancel.headers["api-key"] == "secret"
    assert not {"idempotency-key", "traceparent", "content-type"} & set(cancel.headers)
    await cancel.answer(response("cancelled", (11, 23)))
    await rig.booked()
    assert rig.spent() == 34


@rigged
async def test_a_kill_acts_in_observe_too(rig: Rig) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r", mode="observe") as run:
            await rig.queued()
            run.cancel("killed")
            await asyncio.sleep(60)
    await (await rig.cancel()).answer(response("cancelled", (11, 23)))
    await rig.booked()
    assert rig.spent() == 34


@rigged
async def test_a_child_of_a_stopped_run_has_its_own_cancelled_once(rig: Rig) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            async with hangup.run(name="child"):
                await rig.queued()
            run.cancel("disconnect")
            await asyncio.sleep(60)
    await (await rig.cancel()).answer(response("cancelled", (11, 23)))
    await rig.booked()
    await _passed(rig)
    assert rig.provider.requests == 3
    assert rig.spent() == 34


@rigged
async def test_a_stream_that_is_taken_up_again_tells(rig: Rig) -> None:
    async def read() -> None:
        async for _ in await rig.client.responses.retrieve("resp_1", stream=True):
            pass

    async with hangup.run(name="r"):
        await rig.queued()
        reading = asyncio.create_task(read())
        again = await rig.provider.call()
        await again.begin()
        kind, end = "response.completed", response("completed", (7, 5))
        await again.event({"type": kind, "sequence_number": 9, "response": end}, kind)
        await again.finish()
        await reading
    assert rig.measured.tokens("delivered") == (7, 5)
    assert rig.unknown() == (0, 0)


@rigged
async def test_a_cancel_of_the_applications_own_that_fails_leaves_it_to_us(
    rig: Rig,
) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            await rig.queued()
            asking = asyncio.create_task(rig.client.responses.cancel("resp_1"))
            await (await rig.cancel()).answer({"error": {}}, status=500)
            with pytest.raises(openai.InternalServerError):
                await asking
            run.cancel("disconnect")
            await asyncio.sleep(60)
    await (await rig.cancel()).answer(response("cancelled", (11, 23)))
    await rig.booked()
    assert rig.spent() == 34
    assert rig.unknown() == (0, 0)
