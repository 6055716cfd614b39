"""``hangup demo --serve``: a real Prometheus scrapes a real service, and is right."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from dashboards import files
from support.processes import free_port
from support.prometheus import Prometheus

from hangup.demo.journal import CallRecord
from hangup.demo.population import Kind
from hangup.demo.serving import PortTakenError, serve_demo
from hangup.demo.sockets import get_json
from hangup.demo.truth import Truth, truth_of
from hangup.demo.workload import ENFORCE, OBSERVE, Setting

if TYPE_CHECKING:
    from pathlib import Path

    from hangup.demo.harness import Rig
    from hangup.demo.serving import Round
    from hangup.demo.users import Visit

pytestmark = [pytest.mark.wide, pytest.mark.timeout(240)]

USERS, ROUNDS = 10, 2
TOKENS = "hangup_tokens_total"
COMMAND = "from hangup.cli import main; main()"


def free_pair() -> int:
    """Return a port that is free, and so is the next."""
    for _ in range(100):
        port = free_port()
        with suppress(PortTakenError):
            asyncio.run(_taken(port))
            return port
    raise AssertionError("no two free ports")


async def _taken(port: int) -> None:
    from hangup.demo import serving  # noqa: PLC0415

    serving._check(port)
    serving._check(port + 1)


async def settled(rig: Rig) -> list[CallRecord]:
    """The model's whole log, once nothing runs any more."""
    for mode in (OBSERVE, ENFORCE):
        await rig.until_settled(mode)
    log = await get_json(f"{rig.model.url}/log")
    return [CallRecord.from_json(call) for call in log["calls"]]


def caught_up(prometheus: Prometheus) -> None:
    """Wait for two scrapes of either process in which nothing runs any more."""
    prometheus.until(
        lambda: (
            prometheus.number("sum(hangup_runs_total)") == 2 * ROUNDS * USERS
            and prometheus.number("sum(hangup_run_active)") == 0
        )
    )
    scrapes = "min(count_over_time(up[10m]))"
    after = prometheus.number(scrapes) + 2
    prometheus.until(lambda: prometheus.number(scrapes) >= after)


def test_what_prometheus_says_is_what_the_model_generated(tmp_path: Path) -> None:
    async def main() -> tuple[list[Visit], list[CallRecord]]:
        visits: list[Visit] = []
        over = asyncio.Event()
        rigs: list[Rig] = []

        def told(one: Round) -> None:
            visits.extend(one.visits)
            if one.number == ROUNDS:
                over.set()

        serving = asyncio.create_task(
            serve_demo(
                USERS,
                5,
                Setting(),
                port,
                rounds=ROUNDS,
                on_ready=rigs.append,
                on_round=told,
            )
        )
        waiting = asyncio.create_task(over.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not serving.done(), serving
        calls = await settled(rigs[0])
        await asyncio.to_thread(caught_up, prometheus)
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        return visits, calls

    port = free_pair()
    rules = files.prometheus_rules()
    with Prometheus(tmp_path, (port, port + 1), rules) as prometheus:
        visits, calls = asyncio.run(main())
        # The service is gone; Prometheus knows what it last scraped.
        shown = {
            fate: prometheus.number(f"sum(last_over_time({TOKENS}{{{labels}}}[5m]))")
            for fate in ("delivered", "sunk", "wasted")
            if (labels := f'hangup_fate="{fate}"')
        }
    truths = {
        mode: truth_of(
            [visit for visit in visits if visit.tag.startswith(mode)],
            [call for call in calls if call.user.startswith(mode)],
        )
        for mode in (OBSERVE, ENFORCE)
    }
    both = sum(truths.values(), Truth())
    assert len(visits) == 2 * ROUNDS * USERS
    assert [visit for visit in visits if visit.user.kind is Kind.LEAVES]
    assert shown["delivered"] == both.delivered_tokens
    assert shown["sunk"] + shown["wasted"] == pytest.approx(
        both.sunk_tokens + both.wasted_tokens, rel=0.02
    )
    # Where the two part is when a server saw its client go, late on a busy machine.
    assert shown["wasted"] == pytest.approx(both.wasted_tokens, rel=0.15)
    assert truths[ENFORCE].wasted_tokens < 0.2 * truths[OBSERVE].wasted_tokens


def test_ctrl_c_ends_it_and_a_taken_port_is_said_so() -> None:
    port = free_pair()
    command = [sys.executable, "-c", COMMAND, "demo", "--serve", "--port", str(port)]
    with subprocess.Popen(  # noqa: S603  our own
        [*command, "--users", "1", "--rounds", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == (
            f"agent     http://127.0.0.1:{port}/metrics\n"
        )
        second = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=60, check=False
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert second.returncode == 2
    assert f"port {port}: Address already in use" in second.stderr
    assert "--port" in second.stderr
