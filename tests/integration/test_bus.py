"""The bus between real processes, on a real Redis that goes down and comes back."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import pytest
from support.buses import (
    BusServer,
    Cluster,
    Owner,
    command,
    eventually,
    free_port,
)
from support.stores import directory
from typer.testing import CliRunner

from hangup.bus import connect
from hangup.bus.base import BusDown
from hangup.bus.operator import kill, survey
from hangup.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

    from hangup.bus.base import Transport

pytestmark = [pytest.mark.timeout(100), pytest.mark.wide]

ID = "ab" * 16


class Site:
    """A bus, two workers on it, and two processes with a fate of their own.

    They start together, once: a process takes its time to import.
    """

    def __init__(self, place: Path) -> None:
        self.server = BusServer(place)
        self.url = self.server.url
        user = self.url.replace("//", "//owner:pw@")
        self.one, self.two = Owner(self.url), Owner(self.url)
        self.cut_off = Owner(user)
        self.forks = Owner(self.url, program="forks")
        self.alone = Owner(f"redis://127.0.0.1:{free_port()}")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with directory() as place, contextlib.ExitStack() as stack:
        site = Site(place)
        stack.enter_context(site.server)
        with contextlib.closing(site.server.client()) as admin:
            rights = ["on", "+@all", "allkeys", "allchannels", ">pw"]
            admin.execute_command("ACL", "SETUSER", "owner", *rights)
        for owner in (site.one, site.two, site.cut_off, site.forks, site.alone):
            stack.enter_context(owner)
        yield site


@pytest.fixture
def workers(site: Site) -> tuple[Owner, Owner]:
    """Both are on the bus."""
    up(site.one, 1)
    up(site.two, 1)
    return site.one, site.two


def hangup(url: str, *arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, [*arguments, "--bus", url])


@contextlib.contextmanager
def speaking(url: str) -> Iterator[Transport]:
    transport = connect(url)
    try:
        yield transport
    finally:
        transport.close()


def opened(owner: Owner, **options: Any) -> str:
    owner.tell(open={"budget": 60, **options})
    run_id: str = owner.hears()["opened"]
    return run_id


def up(owner: Owner, expected: int | None) -> None:
    """Wait until the process exports that its bus is up, or is not."""

    def asked() -> bool:
        owner.tell(gauge=True)
        return bool(owner.hears()["gauge"] == expected)

    eventually(asked)


def test_kill_and_ps_reach_another_process(
    site: Site, workers: tuple[Owner, Owner]
) -> None:
    owner, other = workers
    run_id = opened(owner, name="agent", tenant="acme")
    stays = opened(other, name="other", mode="observe")
    listed = json.loads(hangup(site.url, "ps", "--json").stdout)
    assert listed["processes"]["answered"] == listed["processes"]["asked"] >= 2
    rows = {row["id"]: row for row in listed["runs"]}
    assert set(rows) >= {run_id, stays}
    assert rows[run_id]["tokens"] == 0
    assert rows[run_id]["process"] != rows[stays]["process"]
    assert run_id[:8] in hangup(site.url, "ps").stdout
    done = command(site.url, "kill", run_id[:10], "--detail", "too dear")
    assert (done.returncode, done.stderr) == (0, "")
    ended = owner.hears()
    assert (ended["ended"], ended["cause"]) == (run_id, "killed")
    assert hangup(site.url, "kill", "--wait", "0.3", ID).exit_code == 2
    assert hangup(site.url, "kill", stays).exit_code == 0, "in every mode"
    assert other.hears()["cause"] == "killed"


def test_f5_pubsub_gap_loses_kill(site: Site) -> None:
    """The owner is cut off for three seconds; the kill is published in the first."""
    owner = site.cut_off
    with contextlib.closing(site.server.client()) as admin, speaking(site.url) as bus:
        up(owner, 1)
        run_id = opened(owner)
        admin.execute_command("ACL", "SETUSER", "owner", "off")
        admin.execute_command("CLIENT", "KILL", "USER", "owner")
        cut = time.monotonic()
        up(owner, 0)
        time.sleep(max(0.0, cut + 1 - time.monotonic()))
        result = kill(bus, run_id, patience=0.5)
        assert (result.holders, result.posted) == ([], True)
        time.sleep(max(0.0, cut + 3 - time.monotonic()))
        back = time.monotonic()
        admin.execute_command("ACL", "SETUSER", "owner", "on")
        ended = owner.hears()
        assert (ended["ended"], ended["cause"]) == (run_id, "killed")
        assert ended["at"] - back <= 2.0
        up(owner, 1)


def test_f4_revoke_before_start_or_restart(
    site: Site, workers: tuple[Owner, Owner]
) -> None:
    """Killed while no process holds the run: who starts it afterwards finds out."""
    owner, _ = workers
    with speaking(site.url) as transport:
        kill(transport, ID, patience=0.1)
    owner.tell(verdict=ID)
    assert owner.hears() == {"verdict": "killed"}
    owner.tell(verdict="cd" * 16)
    assert owner.hears() == {"verdict": None}
    opened(owner, token=ID, joined=True)
    assert owner.hears()["cause"] == "killed"


def test_a_newer_run_in_another_process_supersedes(
    site: Site, workers: tuple[Owner, Owner]
) -> None:
    one, two = workers
    bystander = opened(one, supersede_key="another")
    older = opened(one, supersede_key="thread-7")
    observed = opened(one, supersede_key="thread-8", mode="observe")
    newer = opened(two, supersede_key="thread-7")
    ended = one.hears()
    assert (ended["ended"], ended["cause"]) == (older, "superseded")
    last = opened(two, supersede_key="thread-8")
    with speaking(site.url) as transport:
        alive = {row["id"] for row in survey(transport).runs}
        assert {bystander, observed, newer, last} <= alive
        for run_id in (bystander, observed, newer, last):
            assert kill(transport, run_id, patience=20).by_opener
    for owner in (one, one, two, two):
        assert owner.hears()["cause"] == "killed"


def test_f7_supersede_really_stops_the_old_run(
    site: Site, workers: tuple[Owner, Owner]
) -> None:
    """10 quick messages on one thread, over two workers: the newest is left."""
    for number in range(10):
        words = {"budget": 60, "name": str(number), "supersede_key": "acme:thread"}
        workers[number % 2].tell(open=words)
        time.sleep(0.1)
    told = [owner.hears() for owner in workers for _ in range(9)]
    told.append(workers[0].hears())  # the last of its five; the other keeps one
    ended = [one for one in told if "ended" in one]
    assert [one["cause"] for one in ended] == ["superseded"] * 9
    with speaking(site.url) as transport:
        alive = {row["id"]: row["name"] for row in survey(transport).runs}
        (newest,) = {one["opened"] for one in told if "opened" in one} & set(alive)
        assert alive[newest] == "9"
        assert kill(transport, newest, patience=20).by_opener
    assert workers[1].hears()["cause"] == "killed"


def test_a_bus_that_is_down_changes_nothing_for_the_work(
    site: Site, workers: tuple[Owner, Owner]
) -> None:
    owner, _ = workers
    before = opened(owner, budget=8)
    site.server.dies()
    up(owner, 0)
    opened(owner, budget=1, supersede_key="k")
    for words in (["kill", before], ["kill", before[:8]], ["ps"], ["ps", "--json"]):
        assert hangup(site.url, *words).exit_code == 3
    soon, later = owner.hears(), owner.hears()
    assert (soon["cause"], later["cause"]) == ("deadline", "deadline")
    assert soon["after"] == pytest.approx(1, abs=0.7)
    assert (later["ended"], later["after"]) == (before, pytest.approx(8, abs=0.7))
    site.server.comes_back()
    up(owner, 1)


def test_a_process_that_never_reaches_its_bus_works_all_the_same(site: Site) -> None:
    up(site.alone, 0)
    opened(site.alone, budget=0.2)
    assert site.alone.hears()["cause"] == "deadline"


def test_a_child_process_is_on_the_bus_too(site: Site) -> None:
    run_id = site.forks.hears()["opened"]
    with speaking(site.url) as transport:
        assert kill(transport, run_id, patience=20).by_opener
    assert site.forks.hears()["cause"] == "killed"
    assert site.forks.hears() == {"gauge": 1}, "and so is its parent still"


def test_a_question_under_way_fails_where_another_thread_gives_its_connection_back(
    site: Site,
) -> None:
    """As the listener does that finds the bus gone, while the speaker asks."""
    transport = connect(site.url)
    ended: list[Exception] = []

    def asks() -> None:
        try:
            transport.next_answer("nobody", 1.0)
        except Exception as error:  # noqa: BLE001  whichever: it is looked at
            ended.append(error)

    thread = threading.Thread(target=asks)
    thread.start()
    with contextlib.closing(site.server.client()) as admin:
        eventually(lambda: any(one["cmd"] == "blpop" for one in admin.client_list()))
    transport.close()
    thread.join(10)
    assert [type(error) for error in ended] == [BusDown]


class Restarts:
    """Keeps a bus going down and coming back, by turns with and without its data."""

    def __init__(self, server: BusServer) -> None:
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.count = 0

    def _work(self) -> None:
        while not self._ended.wait(1.0):
            self._server.dies(keeping=self.count % 2 == 0)
            self._server.comes_back()
            self.count += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def test_no_acknowledged_kill_is_lost_while_the_bus_restarts(
    site: Site, workers: tuple[Owner, Owner]
) -> None:
    """100 kills; whoever gets no acknowledgement tries again, as an operator would."""
    for owner in workers:
        for _ in range(60):
            owner.tell(open={"budget": 600})
    ids = [owner.hears()["opened"] for owner in workers for _ in range(60)]
    killed, spared = ids[:50] + ids[60:110], ids[50:60] + ids[110:]

    def operator(run_id: str) -> str:
        time.sleep(0.2)  # they are to meet the bus in every state
        with speaking(site.url) as transport:
            for _ in range(20):
                result = kill(transport, run_id, patience=4)
                if result.by_opener:
                    (holder,) = result.holders
                    assert (holder["run"], holder["cause"]) == (run_id, "killed")
                    return run_id
        raise AssertionError(f"nobody acknowledged {run_id}")

    with Restarts(site.server) as restarts, ThreadPoolExecutor(4) as pool:
        acknowledged = set(pool.map(operator, killed))
    assert restarts.count >= 2
    assert acknowledged == set(killed)
    told = [owner.hears() for owner in workers for _ in range(50)]
    assert {one["ended"] for one in told} == set(killed)
    assert {one["cause"] for one in told} == {"killed"}
    for owner in workers:
        up(owner, 1)
    with speaking(site.url) as transport:
        assert {row["id"] for row in survey(transport).runs} >= set(spared)


def test_a_cluster_carries_it_all_sharded() -> None:
    with directory() as place, Cluster(place) as cluster:
        urls = [node.url for node in cluster.nodes]
        with Owner(urls[0]) as one, Owner(urls[1].replace("redis:", "valkey:")) as two:
            up(one, 1)
            up(two, 1)
            older = opened(one, supersede_key="k")
            newer = opened(two, supersede_key="k")
            ended = one.hears()
            assert (ended["ended"], ended["cause"]) == (older, "superseded")
            subscribed = []
            for node in cluster.nodes:
                with contextlib.closing(node.client()) as client:
                    subscribed.append(client.pubsub_shardchannels())
            assert sorted(map(len, subscribed)) == [0, 0, 1], "on one node, sharded"
            done = command(urls[2], "kill", newer[:12])
            assert (done.returncode, done.stderr) == (0, "")
            assert two.hears()["cause"] == "killed"
            # The node that carries the bus dies, and comes back.
            run_id = opened(one)
            carrier = cluster.nodes[[len(found) for found in subscribed].index(1)]
            carrier.dies()
            up(one, 0)
            carrier.comes_back()
            for node in cluster.nodes:
                eventually(node.in_cluster)
            up(one, 1)
            with speaking(urls[0]) as transport:
                assert kill(transport, run_id, patience=20).by_opener
            assert one.hears()["cause"] == "killed"
