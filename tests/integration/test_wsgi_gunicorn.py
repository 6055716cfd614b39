"""Flask and Django under gunicorn: threads that stop when their client leaves."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import pytest
from support.blocking_names import MODEL
from support.core import in_loop
from support.gunicorn import Gunicorn
from support.pulse import Pulse
from support.rig import IN_TIME

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


pytestmark = pytest.mark.timeout(240)

MANY = 50
FLASK, DJANGO = "/<any(agent, late, kept):kind>/", "/<str:kind>/"
APPS = {"": FLASK, "/django": DJANGO}
LONG = Script(tokens=400, input_tokens=20, rate=8, first_token=0.05, chunk_most=1)
"""An answer that takes 50 s, a chunk every 0.13 s."""
SLOW = Script(tokens=40, input_tokens=20, rate=16, first_token=0.05)
"""An answer that takes 2.5 s."""
SHORT = Script(tokens=6, input_tokens=20, rate=200, first_token=0.01)
SPENT = 26


def served(model: ModelServer, *options: str) -> Gunicorn:
    return Gunicorn("support.wsgi_agents:app", {"MODEL": model.base_url}, *options)


async def walk_away(
    gunicorn: Gunicorn, model: ModelServer, paths: Sequence[str]
) -> None:
    """Ask for all of the paths at once, leave when all stream, and see them stop."""
    log = model.log
    before = log.opened
    callers = await asyncio.gather(*map(gunicorn.asks, paths))
    await log.opened_count(before + len(paths), 30)
    calls = log.calls[before:]
    await log.wait_for(lambda: all(len(call.chunks) >= 2 for call in calls), 30)
    async with Pulse() as pulse:
        left = [caller.leaves() for caller in callers]
        await log.closed_count(before + len(paths), 30)
    # All left at the same time: which call was whose does not matter.
    for call in calls:
        assert call.cut
        assert call.closed is not None
        assert call.closed - max(left) <= IN_TIME + pulse.allowance


async def succeed(gunicorn: Gunicorn, path: str) -> None:
    """The path is answered whole."""
    status, _, body = await (await gunicorn.asks(path)).answer()
    assert status == 200
    assert len(body) > 20


async def wait_in_vain(gunicorn: Gunicorn, model: ModelServer) -> None:
    """What cannot be stopped is reported as not stopped, and its tokens are counted.

    A call on a client that hangup does not know goes on; the one after it does not.
    """
    model.script(MODEL, SLOW)
    caller = await gunicorn.asks("/agent/stubborn")
    late = await gunicorn.asks("/late/stubborn")
    await model.log.opened_count(2, 30)
    caller.leaves()
    status, headers, _ = await late.answer()
    assert (status, headers["hangup-cause"]) == (504, "deadline")
    await model.log.closed_count(2)
    found = await gunicorn.books(runs=2, active=0)
    assert model.log.opened == 2  # the second call of neither was ever made
    assert not any(call.cut for call in model.log.calls)
    assert found["abandoned"] == {"disconnect": 1, "deadline": 1}
    assert found["unsettled"] == 2
    tokens = found["tokens"]
    assert tokens["sunk"] + tokens["wasted"] == 120
    assert tokens["wasted"] > 40
    assert found["metered"] == 120


def test_fifty_walk_away_from_threads_and_fifty_more_are_served() -> None:
    """JSON and streams of Flask and of Django, each fifty at once.

    Then the server is told to quit at once (SIGINT, with ``worker_int`` configured),
    and the one who waits is told to try again.
    """
    kinds = ("json", "stream")

    @in_loop
    async def check() -> None:
        async with ModelServer(default=LONG) as model:
            hook = ("-c", "python:support.gunicorn_config")
            options = ("-k", "gthread", "--threads", str(MANY + 2), *hook)
            with served(model, *options) as gunicorn:
                await gunicorn.ready()
                await wait_in_vain(gunicorn, model)
                model.script(MODEL, LONG)
                paths = [f"{app}/agent/{kind}" for app in APPS for kind in kinds]
                for path in paths:
                    await walk_away(gunicorn, model, [path] * MANY)
                # Loops that come and go in a thread: a few, as each has a client.
                inside = ["/agent/async", "/agent/run", "/django/agent/async"]
                await walk_away(gunicorn, model, inside * 2)
                away = len(paths) * MANY + len(inside) * 2 + 1
                gone = {"disconnect": away, "deadline": 1}
                found = await gunicorn.books(runs=away + 1, active=0)
                assert found["abandoned"] == gone
                assert found["unsettled"] == 2  # those that waited in vain
                assert found["by name"] == {
                    f"{FLASK}stubborn": 2,
                    f"{FLASK}async": 2,
                    f"{FLASK}run": 2,
                    f"{DJANGO}async": 2,
                    **{f"{of}{kind}": MANY for of in APPS.values() for kind in kinds},
                }
                assert found["tokens"]["delivered"] == 0
                assert found["tokens"]["sunk"] > found["tokens"]["wasted"]

                model.script(MODEL, SHORT)
                await asyncio.gather(*(succeed(gunicorn, path) for path in paths * 13))
                found = await gunicorn.books(delivered=52, active=0)
                assert found["tokens"]["delivered"] == 52 * SPENT
                assert found["abandoned"] == gone

                model.script(MODEL, LONG)
                opened = model.log.opened
                caller = await gunicorn.asks("/agent/json")
                await model.log.opened_count(opened + 1)
                await model.log.wait_for(lambda: bool(model.log.calls[-1].chunks))
                gunicorn.signal(signal.SIGINT)
                status, headers, _ = await caller.answer()
                assert (status, headers["hangup-cause"]) == (503, "shutdown")
                assert headers["retry-after"] == "1"
                await model.log.closed_count(model.log.opened)
                assert model.log.calls[-1].cut
                await asyncio.to_thread(gunicorn.wait)
                assert "Error" not in gunicorn.log
                assert "Traceback" not in gunicorn.log

    check()


def test_a_sync_worker_hears_of_its_one_client_too() -> None:
    """And the deadline stops a stream of the model, before and after the first byte."""

    @in_loop
    async def check() -> None:
        async with ModelServer(default=LONG) as model:
            with served(model, "-k", "sync") as gunicorn:
                await gunicorn.ready()
                for app in APPS:
                    await walk_away(gunicorn, model, [f"{app}/agent/json"])
                    await walk_away(gunicorn, model, [f"{app}/agent/stream"])
                    caller = await gunicorn.asks(f"{app}/late/json")
                    status, headers, body = await caller.answer()
                    assert (status, headers["hangup-cause"]) == (504, "deadline")
                    assert b"deadline" in body
                    caller = await gunicorn.asks(f"{app}/late/stream")
                    status, headers, body = await caller.answer()
                    assert (status, headers["transfer-encoding"]) == (200, "chunked")
                    assert body
                    assert not body.endswith(b"0\r\n\r\n")
                await model.log.closed_count(8)
                assert all(call.cut for call in model.log.calls)
                # One who left, and is to be served to the end all the same.
                model.script(MODEL, SHORT)
                caller = await gunicorn.asks("/kept/stream")
                await model.log.opened_count(9)
                caller.leaves()
                for app in APPS:
                    await succeed(gunicorn, f"{app}/agent/json")
                    await succeed(gunicorn, f"{app}/agent/stream")
                assert not any(call.cut for call in model.log.calls[8:])
                found = await gunicorn.books(runs=13, active=0)
                assert found["abandoned"] == {"disconnect": 4, "deadline": 4}
                assert found["delivered"] == 5
                assert found["unsettled"] == 0
                assert found["tokens"]["delivered"] == 5 * SPENT
                assert gunicorn.log == ""

    check()


def test_the_books_of_a_worker_are_complete_when_it_is_told_to_quit(
    tmp_path: Path,
) -> None:
    """SIGINT reaches a sync worker in the middle of a request: cause shutdown."""
    spent = tmp_path / "spent.json"

    @in_loop
    async def check() -> None:
        environment = {"SPENT": str(spent)}
        with Gunicorn("support.dying_wsgi:app", environment, "-k", "sync") as gunicorn:
            assert (await (await gunicorn.asks("/?0")).answer())[0] == 200
            caller = await gunicorn.asks("/?60")
            await caller.begins()
            assert not spent.exists()
            gunicorn.signal(signal.SIGINT)
            await asyncio.to_thread(gunicorn.wait)
            caller.leaves()

    check()
    sums = {
        (row[0], row[1].get("hangup.fate") or row[1]["hangup.outcome"]): row[2]
        for row in json.loads(spent.read_text())
        if row[2] and row[1].get("gen_ai.token.type") != "input"
    }
    assert sums == {
        ("hangup.tokens", "delivered"): 3,
        ("hangup.tokens", "sunk"): 3,
        ("hangup.runs", "delivered"): 1,
        ("hangup.runs", "abandoned"): 1,
    }
