"""Retries and timeouts around a call: no attempt after the stop, no sleep past it.

Real SDKs, tenacity and stamina, asyncio's and anyio's own timeouts, real sockets. The
variants of each case run beside each other.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING, Any

import anthropic
import anyio
import openai
import pytest
import stamina
import tenacity
from support.busy import Busy, busy
from support.core import in_loop
from support.rig import IN_TIME
from support.telemetry import Telemetry, instrumented

import hangup
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

pytestmark = pytest.mark.timeout(60)

BUDGET = 1.5
ON_THE_WAY = 0.25
"""Seconds for a request that was made in time to arrive."""
MESSAGES: Any = [{"role": "user", "content": "Well?"}]


def warm() -> None:
    """Import what the SDKs import at their first call: budgets are short here."""
    for client in (openai.OpenAI(api_key="x"), openai.AsyncOpenAI(api_key="x")):
        assert client.chat.completions
    for other in (
        anthropic.Anthropic(api_key="x"),
        anthropic.AsyncAnthropic(api_key="x"),
    ):
        assert other.messages


# No certificates: to load them takes as long as some budgets here.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def ask_openai(url: str, **options: Any) -> Any:
    """Ask from a thread."""
    http = openai.DefaultHttpxClient(verify=_NO_TLS)
    with openai.OpenAI(
        base_url=url, api_key="x", http_client=http, **options
    ) as client:
        return client.chat.completions.create(model="m", messages=MESSAGES)


def ask_anthropic(url: str, **options: Any) -> Any:
    """Ask from a thread."""
    http = anthropic.DefaultHttpxClient(verify=_NO_TLS)
    base = url.removesuffix("/v1")
    with anthropic.Anthropic(
        base_url=base, api_key="x", http_client=http, **options
    ) as client:
        return client.messages.create(model="m", messages=MESSAGES, max_tokens=9)


async def ask_openai_async(url: str, **options: Any) -> Any:
    """Ask from a task."""
    http = openai.DefaultAsyncHttpxClient(verify=_NO_TLS)
    async with openai.AsyncOpenAI(
        base_url=url, api_key="x", http_client=http, **options
    ) as client:
        return await client.chat.completions.create(model="m", messages=MESSAGES)


async def ask_anthropic_async(url: str, **options: Any) -> Any:
    """Ask from a task."""
    http = anthropic.DefaultAsyncHttpxClient(verify=_NO_TLS)
    base = url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(
        base_url=base, api_key="x", http_client=http, **options
    ) as client:
        return await client.messages.create(model="m", messages=MESSAGES, max_tokens=9)


ON_THREADS: dict[str, tuple[Callable[..., Any], type[Exception]]] = {
    "openai": (ask_openai, openai.RateLimitError),
    "anthropic": (ask_anthropic, anthropic.RateLimitError),
}
ON_TASKS: dict[str, Callable[..., Awaitable[Any]]] = {
    "openai-async": ask_openai_async,
    "anthropic-async": ask_anthropic_async,
}


async def outcome(body: Callable[[], Awaitable[Any]], **options: Any) -> Any:
    """Run ``body`` in a run; return what it ended with, the run, and when."""
    error: BaseException | None = None
    scope = hangup.run(**({"budget": BUDGET} | options))
    try:
        async with scope as run:
            await body()
    except Exception as caught:  # noqa: BLE001  to look at it
        error = caught
    return error, run, time.monotonic()


# Retry-After


@in_loop
async def test_on_a_thread_no_client_sleeps_past_the_deadline() -> None:
    """Nothing ends that sleep: the provider's error comes at once instead."""
    warm()
    with instrumented() as telemetry:
        async with busy(429, retry_after="30") as provider:

            async def go(name: str) -> None:
                ask, expected = ON_THREADS[name]
                error, run, ended = await outcome(
                    lambda: asyncio.to_thread(ask, provider.url(name)), budget=5.0
                )
                assert type(error) is expected, name
                assert run.cause == "failed"
                assert ended < run.started_at + 4.0, name
                assert len(provider.opened[name]) == 1, name

            await asyncio.gather(*map(go, ON_THREADS))
        assert telemetry.abandoned() == {"failed": len(ON_THREADS)}


@in_loop
async def test_on_a_task_the_stop_ends_the_sleep() -> None:
    warm()
    with instrumented() as telemetry:
        async with busy(429, retry_after="30") as provider:

            async def go(name: str) -> None:
                ask = ON_TASKS[name]
                error, run, ended = await outcome(lambda: ask(provider.url(name)))
                assert type(error) is hangup.DeadlineExceeded, name
                assert run.deadline.at <= ended < run.deadline.at + IN_TIME, name
                assert len(provider.opened[name]) == 1, name

            await asyncio.gather(*map(go, ON_TASKS))
        assert telemetry.abandoned() == {"deadline": len(ON_TASKS)}


@in_loop
async def test_while_there_is_time_every_retry_is_made() -> None:
    """Also where the provider says how long to wait; and outside any run."""
    with instrumented():
        async with busy(503, retry_after="0.05") as provider:

            async def go(name: str, budget: float | None) -> None:
                tag = f"{name}-{budget}"
                if name in ON_TASKS:
                    asking = ON_TASKS[name](provider.url(tag))
                else:
                    ask, _ = ON_THREADS[name]
                    asking = asyncio.to_thread(ask, provider.url(tag))
                with pytest.raises((openai.APIError, anthropic.APIError)):
                    if budget is None:
                        await asking
                    else:
                        async with hangup.run(budget=budget):
                            await asking
                assert len(provider.opened[tag]) == 3, tag

            everybody = [*ON_THREADS, *ON_TASKS]
            await asyncio.gather(
                *(go(name, budget) for name in everybody for budget in (None, 60.0))
            )


@in_loop
async def test_a_client_asleep_on_a_thread_makes_no_attempt_after_the_stop() -> None:
    """It slept when the caller left: its next attempt is refused, and it ends."""
    with instrumented() as telemetry:
        async with busy(503, retry_after="0.5") as provider:

            async def go(name: str) -> None:
                ask, _ = ON_THREADS[name]
                ended = asyncio.Event()

                async def body() -> None:
                    asking = asyncio.create_task(
                        asyncio.to_thread(ask, provider.url(name))
                    )
                    asking.add_done_callback(lambda _: ended.set())
                    await provider.came(name)
                    run = hangup.current_run()
                    assert run is not None
                    run.cancel("disconnect")
                    await asking

                error, _, _ = await outcome(body, budget=None)
                assert type(error) is hangup.RunCancelled, name

            await asyncio.gather(*map(go, ON_THREADS))
            await asyncio.get_running_loop().shutdown_default_executor()
            assert [len(provider.opened[name]) for name in ON_THREADS] == [1, 1]
        assert telemetry.abandoned() == {"disconnect": len(ON_THREADS)}


# tenacity and stamina


def tenacious(url: str) -> Any:
    """Retry unless, with sleeps, on a thread."""

    @tenacity.retry(
        retry=tenacity.retry_if_not_exception_type(ValueError),
        stop=tenacity.stop_after_attempt(50),
        wait=tenacity.wait_fixed(0.3),
        reraise=True,
    )
    def attempt() -> Any:
        return ask_openai(url, max_retries=0)

    return attempt()


async def tenacious_async(url: str) -> Any:
    """Retry unless, with sleeps, on a task."""

    @tenacity.retry(
        retry=tenacity.retry_if_not_exception_type(ValueError),
        stop=tenacity.stop_after_attempt(50),
        wait=tenacity.wait_fixed(0.3),
        reraise=True,
    )
    async def attempt() -> Any:
        return await ask_openai_async(url, max_retries=0)

    return await attempt()


_STAMINA: dict[str, Any] = {
    "on": Exception,
    "attempts": 50,
    "timeout": None,
    "wait_initial": 0.3,
    "wait_max": 0.3,
    "wait_jitter": 0.0,
}


def with_stamina(url: str) -> Any:
    """As its users do, on a thread."""
    return stamina.retry(**_STAMINA)(ask_openai)(url, max_retries=0)


async def with_stamina_async(url: str) -> Any:
    """As its users do, on a task."""
    return await stamina.retry(**_STAMINA)(ask_openai_async)(url, max_retries=0)


def on_a_thread(ask: Callable[[str], Any]) -> Callable[[str], Awaitable[Any]]:
    return lambda url: asyncio.to_thread(ask, url)


LOOPS: dict[str, Callable[[str], Awaitable[Any]]] = {
    "tenacity": on_a_thread(tenacious),
    "tenacity-async": tenacious_async,
    "stamina": on_a_thread(with_stamina),
    "stamina-async": with_stamina_async,
}


@pytest.mark.parametrize("status", [500, None])
def test_retry_loops_end_with_the_deadline(status: int | None) -> None:
    """Whether the provider fails at once or says nothing: no attempt comes later."""

    @in_loop
    async def check() -> None:
        warm()
        with instrumented() as telemetry:
            async with busy(status) as provider:

                async def go(name: str) -> str:
                    error, run, ended = await outcome(
                        lambda: LOOPS[name](provider.url(name))
                    )
                    opened = provider.opened[name]
                    assert opened, name
                    assert max(opened) < run.deadline.at + ON_THE_WAY, name
                    assert ended < run.deadline.at + IN_TIME, name
                    if status is None:
                        assert len(opened) == 1, name
                        await provider.hung_up(name)
                        closed = max(provider.closed[name])
                        assert closed < run.deadline.at + IN_TIME, name
                    else:
                        assert len(opened) > 1, name
                    if type(error) is openai.InternalServerError:
                        # On a thread: the next attempt would have come too late.
                        assert status is not None, name
                        assert "async" not in name
                        return "failed"
                    assert type(error) is hangup.DeadlineExceeded, name
                    return "deadline"

                causes = await asyncio.gather(*map(go, LOOPS))
                await asyncio.get_running_loop().shutdown_default_executor()
            counted = {cause: causes.count(cause) for cause in set(causes)}
            assert telemetry.abandoned() == counted

    check()


@in_loop
async def test_retry_loops_end_when_the_caller_leaves() -> None:
    """In an attempt, on a thread or a task: it is cut, and none follows."""
    warm()
    with instrumented() as telemetry:
        async with busy(None) as provider:

            async def go(name: str) -> None:
                async def body() -> None:
                    asking = asyncio.ensure_future(LOOPS[name](provider.url(name)))
                    await provider.came(name)
                    run = hangup.current_run()
                    assert run is not None
                    run.cancel("disconnect")
                    await asking

                # A thread's attempt ends by its clamped timeout: it cannot be cut.
                error, run, _ = await outcome(body)
                assert type(error) is hangup.RunCancelled, name
                await provider.hung_up(name)
                closed = max(provider.closed[name])
                limit = run.abandonment.at if "async" in name else run.deadline.at
                assert closed < limit + IN_TIME, name

            await asyncio.gather(*map(go, LOOPS))
            await asyncio.get_running_loop().shutdown_default_executor()
            assert {len(provider.opened[name]) for name in LOOPS} == {1}
        assert telemetry.abandoned() == {"disconnect": len(LOOPS)}


# Timeouts of the user's own


async def by_asyncio_timeout(seconds: float, url: str) -> None:
    async with asyncio.timeout(seconds):
        await ask_openai_async(url, max_retries=2)


async def by_wait_for(seconds: float, url: str) -> None:
    await asyncio.wait_for(ask_openai_async(url, max_retries=2), seconds)


async def by_fail_after(seconds: float, url: str) -> None:
    with anyio.fail_after(seconds):
        await ask_openai_async(url, max_retries=2)


async def by_move_on_after(seconds: float, url: str) -> None:
    with anyio.move_on_after(seconds) as scope:
        await ask_openai_async(url, max_retries=2)
    if not scope.cancelled_caught:
        raise AssertionError("the call returned")
    raise TimeoutError


async def by_a_task_group(seconds: float, url: str) -> None:
    with anyio.fail_after(seconds):
        async with anyio.create_task_group() as group:
            group.start_soon(ask_openai_async, url)


TIMEOUTS: dict[str, Callable[[float, str], Awaitable[None]]] = {
    "asyncio.timeout": by_asyncio_timeout,
    "wait_for": by_wait_for,
    "fail_after": by_fail_after,
    "move_on_after": by_move_on_after,
    "task-group": by_a_task_group,
}


async def each(
    go: Callable[[str, Busy, Telemetry], Coroutine[Any, Any, None]],
) -> dict[str, int]:
    """Do it for every kind of timeout, against a provider that says nothing.

    Returns:
        The abandoned runs by cause.
    """
    warm()
    with instrumented() as telemetry:
        async with busy(None) as provider:
            tasks = [
                asyncio.create_task(go(name, provider, telemetry)) for name in TIMEOUTS
            ]
            await asyncio.gather(*tasks)
            assert [task.cancelling() for task in tasks] == [0] * len(tasks)
        delivered = telemetry.total(names.RUNS, outcome="delivered")
        return telemetry.abandoned() | {"delivered": int(delivered)}


@in_loop
async def test_a_shorter_timeout_is_theirs_and_no_stop_of_ours() -> None:
    """It comes out as their ``TimeoutError``; the run goes on and is delivered."""

    async def go(name: str, provider: Busy, telemetry: Telemetry) -> None:
        async with hangup.run(budget=30) as run:
            began = time.monotonic()
            with pytest.raises(TimeoutError) as error:
                await TIMEOUTS[name](0.8, provider.url(name))
            assert not isinstance(error.value, hangup.RunAbandoned), name
            assert time.monotonic() - began < 0.8 + IN_TIME, name
            await provider.hung_up(name)
            hangup.check()
        assert run.cause is None, name
        assert len(provider.opened[name]) == 1, name

    assert await each(go) == {"delivered": len(TIMEOUTS)}


@in_loop
async def test_a_longer_timeout_does_not_hide_the_deadline() -> None:
    async def go(name: str, provider: Busy, telemetry: Telemetry) -> None:
        error, run, ended = await outcome(
            lambda: TIMEOUTS[name](30.0, provider.url(name)), budget=1.0
        )
        assert type(error) is hangup.DeadlineExceeded, name
        assert ended < run.deadline.at + IN_TIME, name
        await provider.hung_up(name)
        assert max(provider.closed[name]) < run.deadline.at + IN_TIME, name
        assert len(provider.opened[name]) == 1, name

    assert await each(go) == {"deadline": len(TIMEOUTS), "delivered": 0}


@in_loop
async def test_a_timeout_around_the_run_is_a_cancel_from_outside() -> None:
    """It stays theirs, and the run failed: nobody gets its result."""

    async def go(name: str, provider: Busy, telemetry: Telemetry) -> None:
        async def inside(url: str) -> None:
            async with hangup.run(budget=30):
                await ask_openai_async(url, max_retries=2)

        began = time.monotonic()
        with pytest.raises(TimeoutError) as error:
            await around(name, 0.8, lambda: inside(provider.url(name)))
        assert not isinstance(error.value, hangup.RunAbandoned), name
        assert time.monotonic() - began < 0.8 + IN_TIME, name
        await provider.hung_up(name)
        assert len(provider.opened[name]) == 1, name

    assert await each(go) == {"failed": len(TIMEOUTS), "delivered": 0}


async def around(name: str, seconds: float, body: Callable[[], Any]) -> None:
    """Await ``body()`` under a timeout of this kind."""
    if name == "wait_for":
        await asyncio.wait_for(body(), seconds)
    elif name == "asyncio.timeout":
        async with asyncio.timeout(seconds):
            await body()
    elif name == "move_on_after":
        with anyio.move_on_after(seconds) as scope:
            await body()
        assert scope.cancelled_caught
        raise TimeoutError
    elif name == "fail_after":
        with anyio.fail_after(seconds):
            await body()
    else:
        with anyio.fail_after(seconds):
            async with anyio.create_task_group() as group:
                group.start_soon(body)


@in_loop
async def test_at_the_same_instant_the_run_is_over_and_nothing_leaks() -> None:
    """Whichever comes first: a timeout comes out, and no cancel is left behind."""

    async def go(name: str, provider: Busy, telemetry: Telemetry) -> None:
        error, run, ended = await outcome(
            lambda: TIMEOUTS[name](1.0, provider.url(name)), budget=1.0
        )
        assert isinstance(error, TimeoutError), name
        assert ended < run.deadline.at + IN_TIME, name
        await provider.hung_up(name)
        assert len(provider.opened[name]) == 1, name
        await asyncio.sleep(0)  # where a leaked cancel would strike

    assert await each(go) == {"deadline": len(TIMEOUTS), "delivered": 0}


@in_loop
async def test_a_loop_over_short_timeouts_ends_with_the_deadline() -> None:
    """ "Try again on ``TimeoutError``" would try again for ever."""

    async def go(name: str, provider: Busy, telemetry: Telemetry) -> None:
        async def body() -> None:
            while True:
                try:
                    await TIMEOUTS[name](0.5, provider.url(name))
                except TimeoutError:
                    continue

        error, run, ended = await outcome(body, budget=3.0)
        assert type(error) is hangup.DeadlineExceeded, name
        assert ended < run.deadline.at + IN_TIME, name
        opened = provider.opened[name]
        assert len(opened) > 1, name
        assert max(opened) < run.deadline.at + ON_THE_WAY, name
        await provider.hung_up(name, len(opened))

    assert await each(go) == {"deadline": len(TIMEOUTS), "delivered": 0}
