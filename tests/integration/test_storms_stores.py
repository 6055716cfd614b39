"""Pools of connections to Redis and PostgreSQL outlive thousands of random stops.

Every answer carries the number that was asked with: one that belongs to another request
(redis-py's well-known fault of 2023) would be seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import asyncpg  # type: ignore[import-untyped]
import psycopg_pool
import pytest
import redis.asyncio as redis
from support.core import in_loop
from support.requires import narrow, wide
from support.stores import Postgres, Redis, directory
from support.storm import storm, succeed, without_hangup

from hangup.testing import telemetry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    Lent = Callable[[], int]
    Ask = Callable[[int], Awaitable[object]]

pytestmark = pytest.mark.timeout(300)

CANCELS = [narrow(500), wide(3_000)]
SIZE = 10
SLOWLY = 0.003
"""Seconds that some of the answers take, so that there is something to cut off."""


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Redis]:
    with directory() as path, Redis(path) as server:
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with directory() as path, Postgres(path) as server:
        yield server


@contextlib.asynccontextmanager
async def redis_py(server: Redis) -> AsyncIterator[tuple[Ask, Lent]]:
    pool = redis.BlockingConnectionPool(
        connection_class=redis.UnixDomainSocketConnection,
        path=str(server.socket),
        max_connections=SIZE,
        timeout=3,
    )
    client = redis.Redis(connection_pool=pool)

    async def ask(number: int) -> None:
        key = f"key-{number}"
        await client.set(key, number, px=60_000)
        assert int(await client.get(key) or -1) == number
        async with client.pipeline(transaction=False) as pipeline:
            pipeline.echo(key)
            pipeline.blpop(["nothing"], timeout=SLOWLY)
            pipeline.get(key)
            echoed, _, got = await pipeline.execute()
        assert (echoed, int(got)) == (key.encode(), number)

    try:
        yield ask, lambda: len(pool._in_use_connections)
    finally:
        await client.aclose()
        await pool.aclose()


@contextlib.asynccontextmanager
async def asyncpg_(server: Postgres) -> AsyncIterator[tuple[Ask, Lent]]:
    async with asyncpg.create_pool(
        host=server.host,
        user=server.user,
        database="postgres",
        min_size=0,
        max_size=SIZE,
    ) as pool:

        async def ask(number: int) -> None:
            async with pool.acquire(timeout=5) as connection:
                assert await connection.fetchval("select $1::int", number) == number
                async with connection.transaction():
                    slowly = "select $1::int from pg_sleep($2)"
                    found = await connection.fetchval(slowly, number, SLOWLY)
                    assert found == number

        yield ask, lambda: pool.get_size() - pool.get_idle_size()


@contextlib.asynccontextmanager
async def psycopg_(server: Postgres) -> AsyncIterator[tuple[Ask, Lent]]:
    async with psycopg_pool.AsyncConnectionPool(
        f"host={server.host} user={server.user} dbname=postgres",
        min_size=1,
        max_size=SIZE,
        timeout=5,
        open=False,
    ) as pool:

        async def ask(number: int) -> None:
            async with pool.connection() as connection:
                for query in ("select %s::int", f"select %s::int, pg_sleep({SLOWLY})"):
                    cursor = await connection.execute(query.encode(), (number,))
                    row = await cursor.fetchone()
                    assert row is not None
                    assert row[0] == number

        yield ask, lambda: pool._nconns - len(pool._pool)


async def _storm(
    sharing: Any, cancels: int, *, hangup_: bool
) -> tuple[int, int, list[str]]:
    """Return how many of 20 succeed afterwards, what is lent still, and wrong answers.

    A client may fail while it is cut off; it may not answer wrongly.
    """
    numbers = itertools.count()
    wrong: list[str] = []
    async with sharing as (ask, lent):

        async def work() -> None:
            try:
                await ask(next(numbers))
            except AssertionError as error:
                wrong.append(str(error))
                raise

        assert await storm(work, cancels, hangup_=hangup_) == cancels
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):  # what was given back comes back soon
                while lent():  # noqa: ASYNC110  pools tell nobody
                    await asyncio.sleep(0.02)
        return await succeed(work), int(lent()), wrong


def _survives(
    sharing: Callable[[], Any],
    name: str,
    cancels: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without = without_hangup(_storm(sharing(), cancels, hangup_=False))

    @in_loop
    async def check() -> None:
        with telemetry():
            succeeded, lent, wrong = await _storm(sharing(), cancels, hangup_=True)
        with capsys.disabled():
            print(  # noqa: T201  the figures are asked for
                f"\n{name} after {cancels} cancels: {succeeded} of 20 succeed and "
                f"{lent} of {SIZE} connections are lost; without hangup "
                f"{without[0]} of 20, {without[1]} lost"
            )
        assert wrong == []
        assert succeeded == 20
        assert lent == 0

    check()


@pytest.mark.parametrize("cancels", CANCELS)
def test_a_redis_pool_survives_a_storm(
    redis_server: Redis, cancels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _survives(lambda: redis_py(redis_server), "redis-py", cancels, capsys)


@pytest.mark.parametrize("cancels", CANCELS)
def test_an_asyncpg_pool_survives_a_storm(
    postgres: Postgres, cancels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _survives(lambda: asyncpg_(postgres), "asyncpg", cancels, capsys)


@pytest.mark.parametrize("cancels", CANCELS)
def test_a_psycopg_pool_survives_a_storm(
    postgres: Postgres, cancels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without hangup it loses a connection every few hundred cancels."""
    _survives(lambda: psycopg_(postgres), "psycopg_pool", cancels, capsys)


@pytest.mark.parametrize("mended", [True, False])
def test_what_psycopg_is_given_back_while_cancelled_it_gets(
    postgres: Postgres, *, mended: bool
) -> None:
    """The cancel comes while ``putconn`` waits for the pool's lock."""

    async def main() -> int:
        async with psycopg_pool.AsyncConnectionPool(
            f"host={postgres.host} user={postgres.user} dbname=postgres",
            min_size=1,
            max_size=1,
            open=False,
        ) as pool:
            connection = await pool.getconn()
            async with pool._lock:
                giving = asyncio.ensure_future(pool.putconn(connection))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                giving.cancel()
                await asyncio.wait([giving])
                assert giving.cancelled()
            await asyncio.sleep(0.05)
            available = pool.get_stats()["pool_available"]
            if not mended:
                await connection.close()
            return available

    if mended:
        with telemetry():
            assert asyncio.run(main()) == 1
    else:
        assert without_hangup(main()) == 0
