"""One client by hand: what is wrapped does what instrumenting does for every client.

Both stacks, over real sockets and with transports that are nobody's but the user's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from support.scripted import WITHIN, scripted, whole
from support.telemetry import instrumented

import hangup
from hangup.clients.transport import wrap
from hangup.errors import ArgumentError
from hangup.otel import names, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "a question"}]}
MODEL = "http://127.0.0.1:9/v1/chat/completions"
OUTSIDE = "http://outside.example/v1/chat/completions"


@pytest.fixture(params=["httpx", "httpx2"])
def stack(request: pytest.FixtureRequest) -> Any:
    return import_module(request.param)


def looped(check: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on a loop of its own, for so long at most."""

    @functools.wraps(check)
    def test(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(check(**fixtures), 30))

    return test


class Answers:
    """Answers every request itself, and remembers them."""

    def __init__(self, stack: Any) -> None:
        self.requests: list[Any] = []
        self.timeouts: list[Any] = []
        self._stack = stack

    def __call__(self, request: Any) -> Any:
        self.requests.append(request)
        self.timeouts.append(request.extensions["timeout"])
        return self._stack.Response(200, json=whole(7, 5))

    @property
    def transport(self) -> Any:
        """A transport that is none of the stack's own connections."""
        return self._stack.MockTransport(self)


# Nothing is instrumented


@looped
async def test_an_expired_run_makes_no_request(stack: Any) -> None:
    async with scripted() as provider:
        transport = wrap(stack.AsyncHTTPTransport())
        url = f"{provider.url}/chat/completions"
        async with stack.AsyncClient(transport=transport) as client:
            with pytest.raises(hangup.DeadlineExceeded):
                async with hangup.run(budget=0.0):
                    await client.post(url, json=ASK)
        assert provider.requests == 0


@looped
async def test_nor_on_a_thread(stack: Any) -> None:
    async with scripted() as provider:

        def ask() -> None:
            with (
                stack.Client(transport=wrap(stack.HTTPTransport())) as client,
                pytest.raises(hangup.DeadlineExceeded),
                hangup.run(budget=0.0),
            ):
                client.post(f"{provider.url}/chat/completions", json=ASK)

        await asyncio.to_thread(ask)
        assert provider.requests == 0


@looped
async def test_an_unread_answer_is_closed_when_the_run_stops(stack: Any) -> None:
    async with scripted() as provider:
        transport = wrap(stack.AsyncHTTPTransport())
        url = f"{provider.url}/chat/completions"
        async with stack.AsyncClient(transport=transport) as client:
            with pytest.raises(hangup.RunCancelled):
                async with hangup.run() as run:
                    request = client.build_request("POST", url, json=ASK)
                    asking = asyncio.create_task(client.send(request, stream=True))
                    call = await provider.call()
                    await call.begin()
                    await call.say("word ")
                    answer = await asking
                    run.cancel("disconnect")
                    await asyncio.Event().wait()
            await call.left()  # before the client goes, and though somebody holds it
            assert answer is not None


@looped
async def test_a_thread_reads_no_further_when_the_run_stops(stack: Any) -> None:
    """And the provider is told: there is no other way to stop a thread."""
    heard, abandoned = threading.Event(), threading.Event()

    def read(url: str) -> None:
        with (
            stack.Client(transport=wrap(stack.HTTPTransport())) as client,
            client.stream("POST", url, json=ASK) as answer,
        ):
            for _ in answer.iter_raw():
                heard.set()
                assert abandoned.wait(WITHIN)

    async with scripted() as provider:
        url = f"{provider.url}/chat/completions"
        with pytest.raises(hangup.RunCancelled):
            async with hangup.run() as run:
                reading = asyncio.create_task(hangup.to_thread(read, url))
                call = await provider.call()
                await call.begin()
                await call.say("word ")
                await asyncio.to_thread(heard.wait, WITHIN)
                run.cancel("disconnect")
                await asyncio.Event().wait()
        abandoned.set()
        await asyncio.wait([reading])
        assert isinstance(reading.exception(), hangup.RunCancelled)
        await call.left()


@looped
async def test_a_response_that_is_dropped_is_closed_at_once(stack: Any) -> None:
    async with scripted() as provider:
        transport = wrap(stack.AsyncHTTPTransport())
        url = f"{provider.url}/chat/completions"
        async with stack.AsyncClient(transport=transport) as client:

            async def first() -> None:
                request = client.build_request("POST", url, json=ASK)
                answer = await client.send(request, stream=True)
                async for _ in answer.aiter_raw():
                    break

            async with hangup.run():
                asking = asyncio.create_task(first())
                call = await provider.call()
                await call.begin()
                await call.say("word ")
                await asking
                await call.left()


def test_a_transport_of_ones_own_is_refused_and_timed_too(stack: Any) -> None:
    answers = Answers(stack)
    with stack.Client(transport=wrap(answers.transport), timeout=60.0) as client:
        with hangup.run(budget=5.0):
            assert client.post(MODEL, json=ASK).json() == whole(7, 5)
        with pytest.raises(hangup.DeadlineExceeded), hangup.run(budget=0.0):
            client.post(MODEL, json=ASK)
    [timeout] = answers.timeouts
    assert 0 < timeout["read"] <= 5.0


def test_inside_a_drain_there_is_so_much_more_time(stack: Any) -> None:
    answers = Answers(stack)
    with (
        stack.Client(transport=wrap(answers.transport), timeout=60.0) as client,
        hangup.run(budget=5.0),
        hangup.drain(budget=20.0),
    ):
        client.post(MODEL, json=ASK)
    assert 20.0 < answers.timeouts[0]["read"] <= 25.0


def test_the_header_goes_to_internal_hosts_only(stack: Any) -> None:
    answers = Answers(stack)
    with (
        stack.Client(transport=wrap(answers.transport)) as client,
        hangup.run(budget=5.0),
    ):
        client.post(MODEL, json=ASK)
        client.post(OUTSIDE, json=ASK, headers={wire.HEADER: "stolen"})
    inside, outside = answers.requests
    assert wire.HEADER in inside.headers
    assert wire.HEADER not in outside.headers


def test_what_is_sent_again_further_in_is_asked_for_again(stack: Any) -> None:
    """A transport that retries by itself stands inside the one that was wrapped."""
    answers = Answers(stack)

    class Retrying(stack.BaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            inner.handle_request(request)
            runs[0].cancel("disconnect")
            return inner.handle_request(request)

    inner = wrap(answers.transport)
    runs: list[hangup.Run] = []
    with (
        stack.Client(transport=wrap(Retrying())) as client,
        pytest.raises(hangup.RunCancelled),
        hangup.run() as run,
    ):
        runs.append(run)
        client.post(MODEL, json=ASK)
    assert len(answers.requests) == 1


def test_a_request_can_be_sent_twice(stack: Any) -> None:
    """What marks it while it is under way is taken off: it is asked for each time."""
    answers = Answers(stack)
    with stack.Client(transport=wrap(answers.transport)) as client:
        request = client.build_request("POST", MODEL, json=ASK)
        with hangup.run():
            client.send(request)
        with pytest.raises(hangup.DeadlineExceeded), hangup.run(budget=0.0):
            client.send(request)
    assert len(answers.requests) == 1


# What is instrumented is metered too


@looped
async def test_over_a_patched_transport_it_is_counted_once(stack: Any) -> None:
    with instrumented() as measured:
        async with scripted() as provider:
            transport = wrap(stack.AsyncHTTPTransport())
            url = f"{provider.url}/chat/completions"
            async with (
                stack.AsyncClient(transport=transport) as client,
                hangup.run(name="r"),
            ):
                asking = asyncio.create_task(client.post(url, json=ASK))
                await (await provider.call()).answer(whole(7, 5))
                assert (await asking).json() == whole(7, 5)
        assert measured.tokens("delivered") == (7, 5)
        assert measured.total(names.METERED_TOKENS) == 12
        assert measured.total(names.CALLS) == 1


@looped
async def test_a_thread_over_a_patched_transport_too(stack: Any) -> None:
    with instrumented() as measured:
        async with scripted() as provider:
            url = f"{provider.url}/chat/completions"

            def ask() -> Any:
                with stack.Client(transport=wrap(stack.HTTPTransport())) as client:
                    return client.post(url, json=ASK).json()

            async with hangup.run(name="r"):
                asking = asyncio.create_task(hangup.to_thread(ask))
                await (await provider.call()).answer(whole(7, 5))
                assert await asking == whole(7, 5)
        assert measured.tokens("delivered") == (7, 5)
        assert measured.total(names.CALLS) == 1


def test_an_answer_that_was_made_up_on_the_spot_is_metered(stack: Any) -> None:
    answers = Answers(stack)
    with instrumented() as measured:
        with (
            stack.Client(transport=wrap(answers.transport)) as client,
            hangup.run(name="r"),
        ):
            client.post(MODEL, json=ASK)
        assert measured.tokens("delivered") == (7, 5)
        assert measured.total(names.OUTCOME_UNKNOWN) == 0


@looped
async def test_asynchronously_too(stack: Any) -> None:
    answers = Answers(stack)
    with instrumented() as measured:
        async with (
            stack.AsyncClient(transport=wrap(answers.transport)) as client,
            hangup.run(name="r"),
        ):
            await client.post(MODEL, json=ASK)
        assert measured.tokens("delivered") == (7, 5)
        assert measured.total(names.OUTCOME_UNKNOWN) == 0


@looped
async def test_it_goes_on_refusing_when_the_instrumentation_is_gone(stack: Any) -> None:
    async with scripted() as provider:
        transport = wrap(stack.AsyncHTTPTransport())
        with instrumented():
            pass
        url = f"{provider.url}/chat/completions"
        async with stack.AsyncClient(transport=transport) as client:
            with pytest.raises(hangup.RunCancelled):
                async with hangup.run() as run:
                    request = client.build_request("POST", url, json=ASK)
                    asking = asyncio.create_task(client.send(request, stream=True))
                    call = await provider.call()
                    await call.begin()
                    answer = await asking
                    run.cancel("disconnect")
                    await asyncio.Event().wait()
            await call.left()  # before the client goes, and though somebody holds it
            assert answer is not None


def test_a_background_response_is_cancelled_the_way_it_was_asked_for(
    stack: Any,
) -> None:
    """Once, through a transport that a thread uses though it could be awaited."""
    cancelled = threading.Event()
    paths: list[str] = []

    def answer(request: Any) -> Any:
        paths.append(request.url.path)
        if request.url.path.endswith("/cancel"):
            cancelled.set()
        usage = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
        status = "cancelled" if cancelled.is_set() else "queued"
        made = {"id": "resp_1", "object": "response", "model": "m", "status": status}
        return stack.Response(200, json=made | {"usage": usage, "background": True})

    body = {"model": "m", "input": "a question", "background": True}
    with (
        instrumented(),
        stack.Client(transport=wrap(stack.MockTransport(answer))) as client,
    ):
        with pytest.raises(hangup.RunCancelled), hangup.run(name="r") as run:
            client.post("http://127.0.0.1:9/v1/responses", json=body)
            run.cancel("disconnect")
            hangup.check()
        assert cancelled.wait(WITHIN)
    assert paths == ["/v1/responses", "/v1/responses/resp_1/cancel"]


# The object itself


def test_it_is_of_the_kind_that_the_inner_one_is(stack: Any) -> None:
    sync, asynchronous = stack.BaseTransport, stack.AsyncBaseTransport
    both = wrap(stack.MockTransport(lambda _: stack.Response(200)))
    assert isinstance(both, sync)
    assert isinstance(both, asynchronous)
    one = wrap(stack.HTTPTransport())
    assert isinstance(one, sync)
    assert not isinstance(one, asynchronous)
    assert not hasattr(one, "handle_async_request")
    one.close()


def test_it_is_wrapped_once_and_shows_what_is_inside(stack: Any) -> None:
    inner = stack.HTTPTransport()
    with contextlib.closing(wrap(inner)) as wrapped:
        assert wrap(wrapped) is wrapped
        assert wrapped._pool is inner._pool
        assert repr(inner) in repr(wrapped)
        with pytest.raises(AttributeError):
            _ = wrapped.nothing_of_the_kind


def test_entering_and_leaving_it_reaches_the_inner_one(stack: Any) -> None:
    seen: list[str] = []

    class Inner(stack.BaseTransport):  # type: ignore[misc]
        def __enter__(self) -> Any:
            seen.append("entered")
            return self

        def close(self) -> None:
            seen.append("closed")

    with stack.Client(transport=wrap(Inner())):
        pass
    assert seen == ["entered", "closed"]


def test_something_else_is_told_what_to_do_instead(stack: Any) -> None:
    name = stack.__name__
    with stack.Client() as client, pytest.raises(ArgumentError) as error:
        wrap(client)
    assert f"{name}.Client(transport=wrap({name}.HTTPTransport()))" in str(error.value)
    with pytest.raises(ArgumentError, match="got the class HTTPTransport: give it an"):
        wrap(stack.HTTPTransport)
    with pytest.raises(ArgumentError, match="got None: give it an instance"):
        wrap(None)
