"""The rollout as it is used: two processes, a file that is edited, a hostile peer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support import policy_child
from support.core import in_loop
from support.rig import Caller
from support.servers import Served
from support.telemetry import chat, instrumented

import hangup
from hangup.config import Mode
from hangup.core import registry, rollout
from hangup.core.policy import Decision
from hangup.core.scope import RunScope
from hangup.errors import RunAbandoned
from hangup.otel import names
from hangup.otel.propagator import outgoing
from hangup.otel.wire import Inbound, encode_header
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.trace import Tracer
    from starlette.requests import Request

    from hangup.core.run import Run

pytestmark = pytest.mark.timeout(110)

RUNS = 1_000
SHARE = 5


def test_a_share_is_the_same_for_parent_and_child_in_a_thousand_runs(
    tmp_path: Path,
) -> None:
    """Whether the child is told the mode, or has nothing but the token to go by."""
    path = tmp_path / "policy.yaml"
    path.write_text(f"default: {{mode: enforce, share: {SHARE}}}\n")
    parents: list[tuple[str, Mode]] = []
    told: list[str] = []
    untold: list[str] = []
    with instrumented(policy_file=str(path)):
        for _ in range(RUNS):
            with RunScope(60, name="parent") as run:
                sent = outgoing(run)
            parents.append((run.id, run.mode))
            assert sent.mode is run.mode
            told.append(encode_header(sent))
            untold.append(encode_header(dataclasses.replace(sent, mode=None)))
    child = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, policy_child.__file__],
        input="\n".join([*told, *untold]) + "\n",
        env=os.environ
        | {
            "HANGUP_POLICY_FILE": str(path),
            "HANGUP_HOLD": "0",  # nobody settles these runs
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    lines = child.stdout.splitlines()
    expected = [f"{token} {mode}" for token, mode in parents]
    assert lines[:RUNS] == expected
    assert lines[RUNS:] == expected
    enforced = sum(mode is Mode.ENFORCE for _, mode in parents)
    assert 10 < enforced < 100  # 50, and six standard deviations of 7


class Refusals(registry.RunObserver):
    """When calls were refused, and when they only would have been."""

    def __init__(self) -> None:
        self.at: dict[str, list[float]] = {one.value: [] for one in Decision}
        self.enough = threading.Event()

    def refused(
        self, run: Run, kind: str, cause: object, decision: str, model: str | None
    ) -> None:
        self.at[decision].append(time.monotonic())
        if len(self.at[Decision.REFUSE]) > 100:
            self.enough.set()


def agent(tracer: Tracer, over: threading.Event) -> None:
    """Make runs that do not heed their deadline, as long as nobody stops them."""
    while not over.is_set():
        until = time.monotonic() + 0.03
        with contextlib.suppress(RunAbandoned), hangup.run(0.01, name="load"):
            while time.monotonic() < until:
                with chat(tracer):
                    time.sleep(0.001)


def leftover(run: Run, over: threading.Event) -> None:
    """Go on wanting to spend for a run that is over."""
    while not over.is_set():
        with contextlib.suppress(RunAbandoned):
            run.check()
        time.sleep(0.01)


def test_an_edit_from_enforce_to_observe_ends_all_refusals_within_5_s(
    tmp_path: Path,
) -> None:
    """Under load, and also those of a thread that lives on in a run that is over."""
    path = tmp_path / "policy.yaml"
    path.write_text("default: {mode: enforce}\n")
    seen = Refusals()
    over = threading.Event()
    with instrumented(policy_file=str(path), brake_share=100) as telemetry:
        registry.add_observer(seen)
        with pytest.raises(RunAbandoned), hangup.run(name="over") as run:
            run.cancel("superseded")
            run.check()
        load = (telemetry.tracer(), over)
        threads = [threading.Thread(target=agent, args=load) for _ in range(4)]
        threads.append(threading.Thread(target=leftover, args=(run, over)))
        try:
            for thread in threads:
                thread.start()
            assert seen.enough.wait(30)
            before = rollout.digest()
            path.write_text("default: {mode: observe}\n")
            edited = time.monotonic()
            while rollout.digest() == before:
                assert time.monotonic() - edited < 30
                time.sleep(0.02)
            time.sleep(2)  # the load goes on
        finally:
            over.set()
            for thread in threads:
                thread.join(30)
            registry.remove_observer(seen)
        ended = time.monotonic()
        assert run.mode is Mode.OBSERVE
    last = seen.at[Decision.REFUSE][-1]
    would = [at for at in seen.at[Decision.WOULD_REFUSE] if at > ended - 1]
    assert last - edited < 5
    assert last < ended - 1, "refused in the last second"
    assert len(would) > 10


@in_loop
async def test_a_peer_that_sends_deadlines_of_a_millisecond_trips_the_brake() -> None:
    async def agent(_request: Request) -> Response:
        hangup.check()
        await asyncio.sleep(0.01)
        hangup.check()
        return JSONResponse({})

    app = HangupMiddleware(Starlette(routes=[Route("/", agent)]))

    with instrumented() as telemetry, Served(app) as served:

        async def ask() -> int:
            sent = {"Hangup": encode_header(Inbound(os.urandom(16).hex(), left=0.001))}
            caller = await Caller.asks(served, headers=sent)
            return (await caller.answer())[0]

        async def asked(many: int) -> list[int]:
            return await asyncio.gather(*(ask() for _ in range(many)))

        statuses = [status for _ in range(5) for status in await asked(10)]
        assert statuses == [504] * 50
        assert rollout.braked()
        assert telemetry.total(names.BRAKE_TRIPPED) == 1
        assert telemetry.total(names.INFO, mode="observe") == 1
        assert await asked(10) == [200] * 10
        assert hangup.release_brake()
        assert await asked(1) == [504]


@in_loop
async def test_observe_under_a_ceiling_beats_enforce_in_code() -> None:
    modes: list[str] = []

    async def agent(_request: Request) -> Response:
        async with hangup.run(0.01, mode="enforce") as run:
            modes.append(str(run.mode))
            await asyncio.sleep(0.05)
            run.check()
        return JSONResponse({})

    app = HangupMiddleware(
        Starlette(routes=[Route("/", agent)]), mode="enforce", budget=0.01
    )
    with instrumented(mode="observe") as telemetry, Served(app) as served:
        status, *_ = await (await Caller.asks(served)).answer()
        assert (status, modes) == (200, ["observe"])
        assert telemetry.total(names.REFUSALS, decision="refuse") == 0
        assert telemetry.total(names.REFUSALS, decision="would_refuse") >= 1
