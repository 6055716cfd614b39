"""What passes on the wire is the innermost report: real clients, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import gzip
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
import tenacity
from support.scripted import WITHIN, Provider, scripted, whole
from support.telemetry import instrumented

import hangup
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.telemetry import Telemetry

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "a question"}]}


class Rig:
    """A provider, a client and what hangup measured."""

    def __init__(
        self, provider: Provider, client: openai.AsyncOpenAI, measured: Telemetry
    ) -> None:
        self.provider = provider
        self.client = client
        self.measured = measured

    async def stream(self, into: list[str], *, usage: bool = True) -> None:
        """Read a stream to its end."""
        options: Any = {"stream_options": {"include_usage": True}} if usage else {}
        stream = await self.client.chat.completions.create(
            **ASK, **options, stream=True
        )
        async for chunk in stream:
            into.extend(choice.delta.content or "" for choice in chunk.choices)

    def tokens(self, fate: str) -> tuple[float, float]:
        """Input and output of a fate."""
        return self.measured.tokens(fate)


@contextlib.asynccontextmanager
async def _rig() -> AsyncIterator[Rig]:
    with instrumented() as measured:
        async with (
            scripted() as provider,
            openai.AsyncOpenAI(base_url=provider.url, api_key="x") as client,
        ):
            yield Rig(provider, client, measured)


def rigged(check: Callable[[Rig], Awaitable[None]]) -> Callable[[], None]:
    """Run the test on a loop, with a rig."""

    @functools.wraps(check)
    def test() -> None:
        async def main() -> None:
            async with _rig() as rig, asyncio.timeout(30):
                await check(rig)

        asyncio.run(main())

    del test.__wrapped__  # pytest would ask for a rig
    return test


async def heard(said: list[str], count: int) -> None:
    """Wait until so many pieces have reached the application."""
    async with asyncio.timeout(WITHIN):
        while len(said) < count:  # noqa: ASYNC110  the client's own loop fills it
            await asyncio.sleep(0)


@rigged
async def test_a_call_without_any_span_is_counted_by_what_the_wire_says(
    rig: Rig,
) -> None:
    async with hangup.run(name="r"):
        asking = asyncio.create_task(rig.client.chat.completions.create(**ASK))
        await (await rig.provider.call()).answer(whole(7, 5))
        await asking
    assert rig.tokens("delivered") == (7, 5)
    assert rig.measured.total(names.METERED_TOKENS) == 12
    assert rig.measured.total(names.CALLS) == 1


@rigged
async def test_a_span_around_it_does_not_count_it_again(rig: Rig) -> None:
    tracer = rig.measured.tracer()
    async with hangup.run(name="r"):
        with tracer.start_as_current_span("chat m", attributes=CHAT) as span:
            asking = asyncio.create_task(rig.client.chat.completions.create(**ASK))
            await (await rig.provider.call()).answer(whole(7, 5))
            await asking
            span.set_attribute("gen_ai.usage.input_tokens", 7)
            span.set_attribute("gen_ai.usage.output_tokens", 5)
    assert rig.tokens("delivered") == (7, 5)
    assert rig.measured.total(names.METERED_TOKENS) == 12
    assert rig.measured.total(names.CALLS) == 1


@rigged
async def test_a_stream_is_split_at_t0_by_what_had_come(rig: Rig) -> None:
    said: list[str] = []
    async with hangup.run(name="r", mode="observe") as run:
        reading = asyncio.create_task(rig.stream(said))
        call = await rig.provider.call()
        await call.begin()
        for word in ("one ", "two ", "three "):
            await call.say(word)
        await heard(said, 3)
        run.cancel("disconnect")
        await call.say("four ")
        await call.report(10, 40)
        await call.finish()
        await reading
    # Four pieces of about the same length: three of them had come.
    assert rig.tokens("sunk")[0] == 10
    assert rig.tokens("sunk")[1] + rig.tokens("wasted")[1] == 40
    assert 25 <= rig.tokens("sunk")[1] <= 35
    assert rig.measured.total(names.ESTIMATED_TOKENS) == 0


@rigged
async def test_d3_include_usage_absent(rig: Rig) -> None:
    """Without usage on the wire, output is estimated from the text, and says so."""
    said: list[str] = []
    async with hangup.run(name="r", mode="observe") as run:
        reading = asyncio.create_task(rig.stream(said, usage=False))
        call = await rig.provider.call()
        assert "stream_options" not in call.json
        await call.begin()
        for number in range(200):
            if number == 100:
                await heard(said, 100)
                run.cancel("deadline")
            await call.say("word ")
        await call.event("[DONE]")
        await call.finish()
        await reading
    assert rig.tokens("wasted")[1] == pytest.approx(100, abs=5)
    assert rig.tokens("sunk")[1] == pytest.approx(100, abs=5)
    labels = {"basis": "estimated", "fate": "wasted"}
    assert rig.measured.total(names.ESTIMATED_TOKENS, **labels) > 0


@rigged
async def test_d1_usage_lost_on_abandon_chat(rig: Rig) -> None:
    """(i): a chat stream cut after 40 chunks of one token: 40 tokens, estimated."""
    said: list[str] = []
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            reading = asyncio.create_task(rig.stream(said))
            call = await rig.provider.call()
            await call.begin()
            for _ in range(40):
                await call.say("word ")
            await heard(said, 40)
            run.cancel("disconnect")
            await reading
    await call.left()
    await _ended(rig)
    assert rig.tokens("sunk")[1] == pytest.approx(40, abs=2)
    assert rig.tokens("sunk")[0] > 0
    assert rig.tokens("wasted") == (0, 0)
    assert rig.measured.total(names.OUTCOME_UNKNOWN) == 1
    labels = {"basis": "estimated", "fate": "sunk"}
    assert rig.measured.total(names.ESTIMATED_TOKENS, **labels) == sum(
        rig.tokens("sunk")
    )


async def _ended(rig: Rig) -> None:
    """Wait until the cut call is in the books: no event of ours tells."""
    async with asyncio.timeout(WITHIN):
        while not rig.measured.total(names.CALLS):  # noqa: ASYNC110  see above
            await asyncio.sleep(0.01)


@rigged
async def test_an_explicit_zero_stays_zero(rig: Rig) -> None:
    """d1 (iii): usage {0, 0, 0} is what the provider says, not a missing report."""
    said: list[str] = []
    async with hangup.run(name="r"):
        reading = asyncio.create_task(rig.stream(said))
        call = await rig.provider.call()
        await call.begin()
        await call.say("")
        await call.report(0, 0)
        await call.finish()
        await reading
    assert rig.tokens("delivered") == (0, 0)
    assert rig.measured.total(names.ESTIMATED_TOKENS) == 0
    assert rig.measured.total(names.UNKNOWN_CALLS) == 0


@rigged
async def test_a_whole_answer_cut_in_flight_is_sunk_input_and_unknown_output(
    rig: Rig,
) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            asking = asyncio.create_task(
                rig.client.chat.completions.create(**ASK, max_tokens=300)
            )
            call = await rig.provider.call()
            run.cancel("disconnect")
            await asking
    await call.left()
    await _ended(rig)
    assert rig.tokens("sunk")[0] > 0
    assert rig.tokens("sunk")[1] == 0
    assert rig.measured.total(names.UNKNOWN_CALLS) == 1
    assert rig.measured.total(names.OUTCOME_UNKNOWN) == 1
    assert rig.measured.total(names.UNKNOWN_BOUND) == 300


@rigged
async def test_a_request_that_never_left_spent_nothing(rig: Rig) -> None:
    nobody = openai.AsyncOpenAI(
        base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0
    )
    async with hangup.run(name="r"):
        with pytest.raises(openai.APIConnectionError):
            await nobody.chat.completions.create(**ASK)
    assert rig.measured.total(names.TOKENS) == 0
    assert rig.measured.total(names.UNKNOWN_CALLS) == 0


@rigged
async def test_an_error_answer_used_nothing(rig: Rig) -> None:
    tracer = rig.measured.tracer()
    client = rig.client.with_options(max_retries=0)
    async with hangup.run(name="r"):
        with tracer.start_as_current_span("chat m", attributes=CHAT):
            asking = asyncio.create_task(client.chat.completions.create(**ASK))
            await (await rig.provider.call()).answer({"error": {}}, status=500)
            with pytest.raises(openai.InternalServerError):
                await asking
    assert rig.measured.total(names.TOKENS) == 0
    assert rig.measured.total(names.UNKNOWN_CALLS) == 0


@rigged
async def test_a_compressed_answer_is_read_too(rig: Rig) -> None:
    async with hangup.run(name="r"):
        asking = asyncio.create_task(rig.client.chat.completions.create(**ASK))
        body = gzip.compress(json.dumps(whole(7, 5)).encode())
        await (await rig.provider.call()).answer(body, content_encoding="gzip")
        assert (await asking).choices[0].message.content == "well"
    assert rig.tokens("delivered") == (7, 5)


@rigged
async def test_an_expired_run_makes_no_request_also_without_a_span(rig: Rig) -> None:
    with pytest.raises(hangup.DeadlineExceeded):
        async with hangup.run(name="r", budget=0.0):
            await rig.client.chat.completions.create(**ASK)
    assert rig.provider.requests == 0
    assert rig.measured.total(names.REFUSALS) == 1


@rigged
async def test_c3_span_lost_on_early_close_break(rig: Rig) -> None:
    """A reader who breaks off and forgets the stream: the provider is told at once."""

    async def first() -> str:
        stream = await rig.client.chat.completions.create(**ASK, stream=True)
        async for chunk in stream:
            return chunk.choices[0].delta.content or ""
        return ""

    async with hangup.run(name="r"):
        reading = asyncio.create_task(first())
        call = await rig.provider.call()
        await call.begin()
        await call.say("word ")
        assert await reading == "word "
        await call.left()
    await _ended(rig)
    assert rig.tokens("delivered")[1] == pytest.approx(1, abs=1)
    assert rig.measured.total(names.CALLS) == 1


@rigged
async def test_an_unread_answer_is_closed_when_the_run_stops(rig: Rig) -> None:
    """Also where its holder ends well, and keeps it."""
    async with hangup.run(name="r") as run:
        asking = asyncio.create_task(
            rig.client.chat.completions.create(**ASK, stream=True)
        )
        call = await rig.provider.call()
        await call.begin()
        await call.say("word ")
        stream = await asking
        run.cancel("disconnect")
    await call.left()
    assert stream is not None


def test_e5_slow_drip_never_times_out() -> None:
    """A sync client in a thread, a trickle that restarts its read timeout for ever."""

    async def main() -> None:
        with instrumented():
            async with scripted() as provider:
                client = openai.OpenAI(
                    base_url=provider.url, api_key="x", max_retries=0, timeout=5.0
                )

                def read() -> int:
                    with client:
                        stream = client.chat.completions.create(**ASK, stream=True)
                        return sum(1 for _ in stream)

                async def serve() -> None:
                    call = await provider.call()
                    await call.begin()
                    while not call.gone.is_set():
                        with contextlib.suppress(ConnectionError):
                            await call.say("word ")
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(call.gone.wait(), 0.1)

                serving = asyncio.create_task(serve())
                begun = asyncio.get_running_loop().time()
                with pytest.raises(hangup.DeadlineExceeded):
                    async with hangup.run(name="r", budget=1.0):
                        await hangup.to_thread(read)
                assert asyncio.get_running_loop().time() - begun < 3.0
                await serving

    asyncio.run(main())


@rigged
async def test_e3_sdk_retries_multiply_timeout(rig: Rig) -> None:
    """A silent provider: one request until the deadline, not one per attempt."""
    client = rig.client.with_options(timeout=30.0)  # and two retries
    begun = time.monotonic()
    with pytest.raises(hangup.DeadlineExceeded):
        async with hangup.run(name="r", budget=1.5):
            await client.chat.completions.create(**ASK)
    assert time.monotonic() - begun < 3.5
    call = await rig.provider.call()
    await call.left()
    assert rig.provider.requests == 1


@rigged
async def test_e3_retries_are_untouched_while_there_is_time(rig: Rig) -> None:
    client = rig.client.with_options(timeout=0.2)
    async with hangup.run(name="r", budget=100):
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(**ASK)
    assert rig.provider.requests == 3


@rigged
async def test_b3_retry_eats_cancel(rig: Rig) -> None:
    """A decorator that retries all but one error: no attempt opens after the stop."""

    @tenacity.retry(
        retry=tenacity.retry_if_not_exception_type(ValueError),
        stop=tenacity.stop_after_attempt(5),
    )
    async def ask() -> None:
        await rig.client.chat.completions.create(**ASK)

    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            asking = asyncio.create_task(ask())
            call = await rig.provider.call()
            run.cancel("killed")
            await asking
    await call.left()
    assert rig.provider.requests == 1
    killed = {"outcome": "abandoned", "cause": "killed"}
    assert rig.measured.total(names.RUNS, **killed) == 1
    assert rig.measured.total(names.RUNS) == 1


@rigged
async def test_the_bytes_are_those_of_the_provider(rig: Rig) -> None:
    """Whatever is metered, the application gets every byte as it was sent."""
    body = b'data: {"choices":[{"delta":{"content":"h\xc3\xa9"}}]}\n\ndata: [DONE]\n\n'
    async with httpx.AsyncClient() as client, hangup.run(name="r"):
        url = f"{rig.provider.url}/chat/completions"
        asking = asyncio.create_task(client.post(url, json=ASK))
        call = await rig.provider.call()
        await call.begin()
        for byte in body:
            await call.raw(bytes([byte]))
        await call.finish()
        assert (await asking).content == body


@rigged
async def test_a_stream_that_a_healthy_run_waits_for_is_not_closed(rig: Rig) -> None:
    """A shared task reads it for two runs; the stop of one is not the other's."""
    go, said = asyncio.Event(), []

    async def read() -> int:
        stream = await rig.client.chat.completions.create(**ASK, stream=True)
        async for chunk in stream:
            said.append(chunk)
            await go.wait()
        return len(said)

    async def healthy() -> int:
        async with hangup.run(name="healthy"):
            return await asyncio.shield(reading)

    with contextlib.suppress(hangup.RunCancelled):
        async with hangup.run(name="stopped") as run:
            reading = asyncio.create_task(read())
            other = asyncio.create_task(healthy(), context=contextvars.Context())
            call = await rig.provider.call()
            await call.begin()
            await call.say("one ")
            await heard(said, 1)
            run.cancel("disconnect")
            await asyncio.sleep(0)
    go.set()
    await call.say("two ")
    await call.event("[DONE]")
    await call.finish()
    assert await other == 2


@pytest.mark.parametrize("mode", ["observe", "refuse"])
def test_what_is_in_flight_is_read_to_its_end_unless_enforced(mode: str) -> None:
    async def main() -> None:
        with instrumented():
            async with scripted() as provider:
                client = openai.OpenAI(base_url=provider.url, api_key="x")

                def read() -> int:
                    with client:
                        stream = client.chat.completions.create(**ASK, stream=True)
                        return sum(1 for _ in stream)

                async with hangup.run(name="r", mode=mode) as run:
                    reading = asyncio.create_task(asyncio.to_thread(read))
                    call = await provider.call()
                    await call.begin()
                    await call.say("one ")
                    run.cancel("disconnect")
                    await call.say("two ")
                    await call.event("[DONE]")
                    await call.finish()
                    assert await reading == 2

    asyncio.run(main())


# Its socket goes with the loop, unclosed: that is what is dropped here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stream_dropped_as_the_loop_ends_is_counted() -> None:
    kept: list[Any] = []

    async def main(url: str) -> None:
        client = openai.AsyncOpenAI(base_url=url, api_key="x")
        async with hangup.run(name="r"):
            kept.append(await client.chat.completions.create(**ASK, stream=True))

    async def serve(ready: threading.Event, done: asyncio.Event) -> None:
        async with scripted() as provider:
            urls.append(provider.url)
            loops.append(asyncio.get_running_loop())
            ready.set()
            call = await provider.call()
            await call.begin()
            await call.say("one ")
            await done.wait()

    urls: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []
    with instrumented() as measured:
        ready, done = threading.Event(), asyncio.Event()
        server = threading.Thread(target=lambda: asyncio.run(serve(ready, done)))
        server.start()
        assert ready.wait(WITHIN)
        asyncio.run(main(urls[0]))
        kept.clear()
        until = time.monotonic() + WITHIN
        while not measured.total(names.CALLS) and time.monotonic() < until:
            gc.collect()
        loops[0].call_soon_threadsafe(done.set)
        server.join(WITHIN)
        assert measured.total(names.CALLS) == 1
        assert len(measured.closed) == 1
    gc.collect()  # here, and not in whichever test comes next


@rigged
async def test_an_answer_that_was_closed_says_why_also_in_a_clean_up(rig: Rig) -> None:
    with pytest.raises(hangup.RunCancelled):
        async with hangup.run(name="r") as run:
            asking = asyncio.create_task(
                rig.client.chat.completions.create(**ASK, stream=True)
            )
            call = await rig.provider.call()
            await call.begin()
            await call.say("one ")
            stream = await asking
            try:
                run.cancel("disconnect")
                await call.left()
            finally:
                async with hangup.cleanup():
                    await call.left()
                    with pytest.raises(hangup.RunCancelled):
                        async for _ in stream:
                            pass
