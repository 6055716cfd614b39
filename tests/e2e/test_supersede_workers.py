"""Case f7, whole: two workers of a real server, their bus, and a real model SDK."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

import pytest
from support.buses import BusServer
from support.core import in_loop
from support.pulse import Pulse
from support.rig import IN_TIME
from support.stores import directory
from support.workers import Workers, total, workers

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer
from hangup.demo.sockets import hang_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hangup.demo.journal import CallRecord

pytestmark = [pytest.mark.timeout(120), pytest.mark.wide]

SERVICE = Path(__file__).parents[1] / "support" / "threads"
SCRIPT = Script(tokens=80, input_tokens=20, rate=20, first_token=0.05)
"""Four seconds: what is not stopped is answered, and posted, before the newest is."""
QUICK = 10
EACH = QUICK // 2
PATIENCE = 60.0


class Browser:
    """A connection that is kept: whoever answered on it answers again."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def opens(cls, served: Workers) -> Self:
        """Connect to whichever worker takes it."""
        return cls(*await asyncio.open_connection("127.0.0.1", served.port))

    async def asks(self, path: str, body: object = None) -> None:
        """Send a request; one with a body is a POST."""
        data = b"" if body is None else json.dumps(body).encode()
        verb = "GET" if body is None else "POST"
        head = f"{verb} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + data)
        await self._writer.drain()

    async def hears(self) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Return the answer's status, headers and body."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await self._reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, json.loads(body)

    def closes(self) -> None:
        """Close the tab."""
        hang_up(self._writer)


@dataclass
class Message:
    """One message, and what came of it.

    Attributes:
        text: What it says; its model call is tagged with it.
        sent: When, on ``time.monotonic``.
        heard: When its answer was there.
        status: Of the answer.
        cause: The header of the answer that says why there is none.
        body: Of the answer.
    """

    text: str
    browser: Browser
    sent: float = 0.0
    heard: float = 0.0
    status: int = 0
    cause: str | None = None
    body: dict[str, Any] = field(default_factory=dict)

    async def send(self, user: str, *, stream: bool) -> asyncio.Task[None]:
        """Send it on a thread that is called alike for every user."""
        self.sent = time.monotonic()
        said = {"user": user, "thread": "7", "text": self.text, "stream": stream}
        await self.browser.asks("/messages", said)
        return asyncio.create_task(self._answered())

    async def _answered(self) -> None:
        self.status, headers, self.body = await self.browser.hears()
        self.heard = time.monotonic()
        self.cause = headers.get("hangup-cause")


class Site:
    """The service, its model, and what users were told."""

    def __init__(self, served: Workers, model: ModelServer, posts: Path) -> None:
        self.served = served
        self.model = model
        self._posts = posts
        self._opened: list[Browser] = []

    @property
    def posts(self) -> list[dict[str, str]]:
        """What was posted so far."""
        return [json.loads(line) for line in self._posts.read_text().splitlines()]

    def call(self, message: Message) -> CallRecord:
        """The one model call of a message."""
        (found,) = self.model.log.of(message.text)
        return found

    async def begun(self, message: Message) -> None:
        """Wait until the model has its call."""
        log = self.model.log
        await log.wait_for(lambda: bool(log.of(message.text)), PATIENCE)

    async def browsers(self, each: int) -> list[list[Browser]]:
        """Open so many connections to each of the two workers."""
        found: defaultdict[int, list[Browser]] = defaultdict(list)
        async with asyncio.timeout(PATIENCE):
            while len(found) < 2 or min(map(len, found.values())) < each:
                # Several at once: an idle worker may take all that come one by one.
                opened = [await Browser.opens(self.served) for _ in range(8)]
                self._opened += opened
                for browser in opened:
                    await browser.asks("/worker")
                for browser in opened:
                    _, _, said = await browser.hears()
                    found[said["worker"]].append(browser)
        assert len(found) == 2
        return [browsers[:each] for browsers in found.values()]

    def close(self) -> None:
        """Close what is still open of them."""
        for browser in self._opened:
            browser.closes()

    async def scraped(self, **expected: float) -> dict[str, float]:
        """Return how the runs of both workers ended, once that many have.

        Args:
            expected: How many by cause, ``none`` for those that were delivered.
        """
        async with asyncio.timeout(PATIENCE):
            while True:
                scrape = await asyncio.to_thread(self.served.scrape)
                runs = {
                    cause: total(scrape, "hangup_runs_total", cause=cause)
                    for cause in ("superseded", "none", "disconnect")
                }
                runs["all"] = total(scrape, "hangup_runs_total")
                if all(runs[cause] >= count for cause, count in expected.items()):
                    return runs
                await asyncio.sleep(0.1)

    async def ready(self, bus: BusServer) -> None:
        """Wait until both workers serve, and both listen to the bus."""
        await self.served.processes(2)
        with contextlib.closing(bus.client()) as admin:
            async with asyncio.timeout(PATIENCE):
                listen = functools.partial(admin.publish, "{hangup}:bus:0", "who?")
                while listen() < 2:  # noqa: ASYNC110  no such event
                    await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[Site]:
    with directory() as place:
        (store := place / "bus").mkdir()
        posts = place / "posts"
        posts.touch()
        with BusServer(store) as bus:
            async with ModelServer(default=SCRIPT) as model:
                environment = {
                    "HANGUP_MODE": "enforce",
                    "HANGUP_BUS_URL": bus.url,
                    "HANGUP_BRAKE_SHARE": "100",  # to stop those who wait is the case
                    "OPENAI_BASE_URL": model.base_url,
                    "POSTS": str(posts),
                }
                options = ("--workers", "2", "--log-level", "warning")
                async with workers(
                    "uvicorn", place, environment, *options, example=SERVICE
                ) as served:
                    found = Site(served, model, posts)
                    with contextlib.closing(found):
                        await found.ready(bus)
                        yield found
                assert "Traceback" not in served.said, served.said


@in_loop
async def test_f7_supersede_really_stops_the_old_run() -> None:
    """10 quick messages on one thread over two workers: nine superseded, one answer."""
    async with site() as there:
        await _one_by_one(there)
        await _all_at_once(there)


async def _one_by_one(there: Site) -> None:
    """Each as soon as the model has begun with the one before, at most ten a second."""
    log = there.model.log
    one, two = await there.browsers(EACH + 1)
    other = Message("other", one.pop())
    messages = [Message(str(n), (one, two)[n % 2][n // 2]) for n in range(QUICK)]
    async with Pulse() as pulse:
        untouched = await other.send("bob", stream=True)
        await there.begun(other)
        tasks = []
        began = time.monotonic()
        for number, message in enumerate(messages):
            await asyncio.sleep(max(0.0, began + number / QUICK - time.monotonic()))
            tasks.append(await message.send("alice", stream=number % 3 != 0))
            await there.begun(message)
        took = time.monotonic() - began
        assert took <= 1.0 + pulse.allowance
        *older, newest = messages
        await asyncio.gather(*tasks[:-1])
        await log.wait_for(lambda: all(there.call(one).closed for one in older))
        limit = IN_TIME + pulse.allowance
    closed = []
    for message, newer in zip(older, messages[1:], strict=True):
        call = there.call(message)
        assert call.cut
        assert call.closed is not None
        closed.append(call.closed - newer.sent)
        assert message.heard - newer.sent <= limit
        assert (message.status, message.cause) == (409, "superseded")
        message.browser.closes()
    worst = max(closed)
    print(  # noqa: T201  the figures are asked for
        f"{QUICK} messages in {took:.2f} s; the older call is closed "
        f"{median(closed):.3f} s after the newer message, {worst:.3f} s at most"
    )
    assert worst <= limit
    await asyncio.gather(tasks[-1], untouched)
    for message in (newest, other):
        assert (message.status, message.cause) == (200, None)
        assert not there.call(message).cut
        assert there.call(message).output_tokens == SCRIPT.tokens
    assert newest.body["to"] == newest.text
    assert {post["to"] for post in there.posts} == {newest.text, other.text}
    assert len(there.posts) == 2
    assert log.opened == QUICK + 1
    # Both have answered since those nine have left, and heard of it before that.
    await there.served.processes(2)
    assert await there.scraped(superseded=9, none=2) == {
        "superseded": 9,
        "none": 2,
        "disconnect": 0,
        "all": 11,
    }


async def _all_at_once(there: Site) -> None:
    """Nobody waits for anybody: which is the newest is for the bus to say."""
    log = there.model.log
    before, posted = log.opened, len(there.posts)
    one, two = await there.browsers(EACH)
    messages = [Message(f"burst {n}", (one, two)[n % 2][n // 2]) for n in range(QUICK)]
    tasks = [await message.send("carol", stream=True) for message in messages]
    await asyncio.gather(*tasks)
    assert sorted(message.status for message in messages) == [200, *[409] * 9]
    (newest,) = [message for message in messages if message.status == 200]
    (post,) = there.posts[posted:]
    assert post["to"] == newest.text
    await log.wait_for(lambda: log.closed == log.opened)
    (whole,) = [call for call in log.calls[before:] if not call.cut]
    assert whole.user == newest.text
    for message in messages:
        message.browser.closes()
    await there.served.processes(2)
    assert await there.scraped(superseded=18, none=3) == {
        "superseded": 18,
        "none": 3,
        "disconnect": 0,
        "all": 21,
    }
