from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import pytest
from support.core import in_loop
from support.telemetry import Telemetry, instrumented
from support.waiting import eventually

import hangup
from hangup import bus
from hangup.bus import connect, member, messages, timing
from hangup.bus.base import Claim
from hangup.bus.live import Live
from hangup.bus.member import Member
from hangup.bus.memory import Memory, MemoryTransport
from hangup.bus.messages import key_name, write_marker
from hangup.core import registry, remote
from hangup.core.cause import Cause
from hangup.core.remote import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run
    from hangup.core.scope import RunScope

ID = "ab" * 16
PATIENCE = 10.0


async def ended_by(
    scope: RunScope, then: Callable[[Run], Awaitable[object] | object]
) -> str:
    """Open a run, do something, and return what stops it."""
    async with asyncio.timeout(PATIENCE):
        try:
            async with scope as run:
                done = then(run)
                if isinstance(done, Awaitable):
                    await done
                await asyncio.Event().wait()
        except hangup.RunAbandoned as error:
            return error.cause
    raise AssertionError("it was not stopped")


def post(there: Memory, run_id: str, detail: str = "") -> None:
    """Post a kill without a word: as if it had been said while nobody listened."""
    with there.changed:
        marker = write_marker(run_id, Cause.KILLED, detail)
        there.markers[run_id] = f"operator {marker}"


def a_member() -> Member:
    reach = remote.reach()
    assert isinstance(reach, Member)
    return reach


def gauge(telemetry: Telemetry) -> list[float]:
    found = telemetry.series("hangup.bus.up")
    return [series.value for series in found.get("hangup.bus.up", ())]


def test_without_a_setting_there_is_no_bus() -> None:
    bus.install()
    assert remote.reach() is None
    assert remote.verdict(ID) is None


@in_loop
async def test_a_kill_stops_the_run_and_is_acknowledged(url: str) -> None:
    with instrumented(bus_url=url):
        kill = asyncio.Event()

        async def work() -> str:
            async with hangup.run(name="agent") as run:
                kill.set()
                await asyncio.Event().wait()
            return run.id

        task = asyncio.create_task(work())
        await kill.wait()
        (run,) = registry.live_runs()
        transport = connect(url)
        await eventually(lambda: bool(remote.reach() and a_member().up))
        marker = write_marker(run.id, Cause.KILLED, "too dear")
        assert transport.stop(run.id, marker, "reply") == 1
        with pytest.raises(hangup.RunCancelled, match=r"killed \(too dear"):
            await task
        answer = await asyncio.to_thread(transport.next_answer, "reply", PATIENCE)
        assert answer is not None
        said = json.loads(answer)
        assert said["run"] == run.id
        assert said["process"] == a_member().process
        assert (said["name"], said["cause"], said["joined"]) == (
            *("agent", "killed"),
            False,
        )


@pytest.mark.usefixtures("joined")
@in_loop
async def test_a_kill_acts_in_every_mode(url: str) -> None:
    transport = connect(url)

    def stop(_run: Run) -> None:  # one that is posted already is published again
        transport.stop(ID, write_marker(ID, Cause.KILLED, ""), "r")

    for mode in ("observe", "refuse"):
        assert await ended_by(hangup.run(mode=mode, token=ID), stop) == "killed"


@in_loop
async def test_what_is_delivered_is_nobodys_any_more(url: str, joined: Memory) -> None:
    transport = connect(url)
    with hangup.run() as run:
        run.deliver()
        transport.stop(run.id, write_marker(run.id, Cause.KILLED, ""), "late")
        transport.publish(messages.write_listing("after", run.id))
        answer = await asyncio.to_thread(transport.next_answer, "after", PATIENCE)
    assert answer is not None
    (row,) = json.loads(answer)["runs"]
    assert (row["state"], row["cause"]) == ("delivered", None)
    assert not joined.replies["late"]


@in_loop
async def test_what_was_said_while_the_bus_was_down_is_found(joined: Memory) -> None:
    """Subscribe first, read second: a kill that was published to nobody still acts."""

    async def gap(run: Run) -> None:
        joined.goes_down()
        await eventually(lambda: a_member().up is False)
        post(joined, run.id)
        joined.comes_back()

    assert await ended_by(hangup.run(), gap) == "killed"
    await eventually(lambda: a_member().up is True)


@in_loop
async def test_a_run_from_elsewhere_asks_whether_it_was_stopped(
    joined: Memory,
) -> None:
    post(joined, ID, "before it came")
    assert remote.verdict(ID) == Verdict(Cause.KILLED, "before it came")
    assert remote.verdict("cd" * 16) is None
    scope = hangup.run(token=ID, joined=True)
    assert await ended_by(scope, lambda _run: None) == "killed"


@in_loop
async def test_what_was_missed_all_the_same_is_found_in_time(
    url: str, there: Memory
) -> None:
    """The reconcile needs no message and no reconnect."""
    live = Live()
    registry.add_observer(live)
    slow = Member(connect(url), live, reconcile=0.01)
    slow.start()

    async def missed(run: Run) -> None:
        await eventually(lambda: bool(slow.up))
        post(there, run.id)

    try:
        assert await ended_by(hangup.run(), missed) == "killed"
    finally:
        registry.remove_observer(live)
        slow.stop()


@in_loop
async def test_a_newer_run_elsewhere_supersedes(url: str, joined: Memory) -> None:
    elsewhere = connect(url)
    key = key_name("thread-7")

    async def newer(run: Run) -> None:
        await eventually(lambda: key in joined.holders)
        (older,) = elsewhere.claim([Claim(key, "old", elsewhere.now() - 10**9)])
        assert older.run_id == run.id
        (newest,) = elsewhere.claim([Claim(key, "new", elsewhere.now())])
        assert newest.run_id == "new"

    with hangup.run(supersede_key="thread-8") as other, hangup.detached():
        scope = hangup.run(supersede_key="thread-7")
        assert await ended_by(scope, newer) == "superseded"
        assert other.cause is None


@in_loop
async def test_claims_made_while_the_bus_was_down_are_ranked_by_their_age(
    url: str, joined: Memory
) -> None:
    """Not by who reached the bus first when it came back."""
    elsewhere = connect(url)
    joined.goes_down(keeping=False)
    await eventually(lambda: a_member().up is False)
    with hangup.run(supersede_key="k") as run:
        opened_at = time.monotonic()
        await asyncio.sleep(0.05)
        joined.comes_back()
        await eventually(lambda: key_name("k") in joined.holders)
        rank = joined.holders[key_name("k")].rank
        # A bus in memory has the clock of this process.
        assert rank / 1_000_000 == pytest.approx(opened_at, abs=0.02)
        older = Claim(key_name("k"), "older", round((opened_at - 1) * 1_000_000))
        (held,) = elsewhere.claim([older])
        assert held.run_id == run.id
        assert run.cause is None


@in_loop
async def test_who_holds_a_key_says_so_again_where_the_bus_forgot(
    joined: Memory,
) -> None:
    with hangup.run(supersede_key="k") as run:
        await eventually(lambda: key_name("k") in joined.holders)
        rank = joined.holders[key_name("k")].rank
        await eventually(lambda: a_member()._live._held[key_name("k")].rank > 0)
        joined.goes_down(keeping=False)
        await eventually(lambda: a_member().up is False)
        joined.comes_back()
        await eventually(lambda: key_name("k") in joined.holders)
        assert joined.holders[key_name("k")] == (rank, run.id)


@in_loop
async def test_the_list_comes_in_pieces(
    url: str, joined: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "_AT_A_TIME", 2)
    monkeypatch.setattr(member, "_MOST_LISTED", 3)
    transport = connect(url)
    scopes = [hangup.run() for _ in range(4)]
    for scope in scopes:
        scope.__enter__()
        scope.step_out()
    transport.publish(messages.write_listing("r", ""))
    answers = []
    for _ in range(2):
        text = await asyncio.to_thread(transport.next_answer, "r", PATIENCE)
        answers.append(json.loads(text or ""))
    for scope in scopes:
        scope.__exit__(None, None, None)
    assert [len(answer["runs"]) for answer in answers] == [2, 1]
    assert [answer["last"] for answer in answers] == [False, True]
    assert answers[-1]["more"] == 1


@in_loop
async def test_nonsense_is_heard_without_a_word(url: str, joined: Memory) -> None:
    transport = connect(url)
    with hangup.run() as run:
        for message in ("", "stop", f"stop r {{}} {run.id}", "held a b c", "\x00"):
            transport.publish(message)
        transport.publish(messages.write_listing("r", ""))
        assert await asyncio.to_thread(transport.next_answer, "r", PATIENCE)
        assert run.cause is None


@in_loop
async def test_opening_and_closing_runs_waits_for_no_bus(joined: Memory) -> None:
    """Whatever happens there, here is only a set to be written."""
    with joined.changed:  # nobody else gets a word in
        for _ in range(200):
            with hangup.run(supersede_key="k", token=ID, joined=True):
                pass
    assert len(a_member()._live._held) == 0


def test_the_clock_of_the_bus_is_known_by_the_quickest_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = 1_000.0
    delays = iter([0.5, 0.001, 2.0, 0.3, *[1.0] * 8])

    def now() -> int:
        nonlocal here
        delay = next(delays)
        here += delay * 0.9  # most of it on the way there
        there = round((here + 7_000) * 1_000_000)
        here += delay * 0.1
        return there

    transport = MemoryTransport(Memory())
    monkeypatch.setattr(transport, "now", now)
    clock = timing.Clock(transport, lambda: here)
    clock.ask()
    assert clock.at(500.0) / 1_000_000 == pytest.approx(7_500, abs=0.001)
    clock.ask()
    assert clock.at(500.0) / 1_000_000 == pytest.approx(7_500, abs=0.001)
    here += 1_000
    clock.ask()
    assert clock.at(500.0) / 1_000_000 == pytest.approx(7_500.4, abs=0.001)


@in_loop
async def test_a_process_that_ends_with_its_run_acknowledges_first(
    url: str, joined: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is: what is asked here is the order.
    monkeypatch.setattr("hangup.bus.member._FAREWELL", 60.0)
    transport = connect(url)
    mine = a_member()
    # The first look at what is posted is over: else it may find this kill before the
    # listener does, and nobody is to be told then. (Joined: it is looked for whether it
    # began before that look or after it.)
    post(joined, before := "cd" * 16)
    first = hangup.run(token=before, joined=True)
    assert await ended_by(first, lambda _run: None) == "killed"

    def stop(_run: Run) -> None:
        transport.stop(ID, write_marker(ID, Cause.KILLED, ""), "r")

    assert await ended_by(hangup.run(token=ID), stop) == "killed"
    mine.farewell()
    assert len(joined.replies["r"]) == 1


@in_loop
async def test_a_stop_that_was_found_later_is_acknowledged_to_who_asked_last(
    url: str, joined: Memory
) -> None:
    """The process may end with the run, and never hear the question again."""
    transport = connect(url)
    marker = write_marker(ID, Cause.KILLED, "")
    for reply in ("first", "last"):
        transport.stop(ID, marker, reply)
    scope = hangup.run(token=ID, joined=True)
    assert await ended_by(scope, lambda _run: None) == "killed"
    a_member().farewell()
    # Perhaps twice: it may have heard the question, and have read it.
    assert {json.loads(one)["run"] for one in joined.replies["last"]} == {ID}


@in_loop
async def test_a_stop_that_was_found_later_is_acknowledged_to_who_asks_again(
    url: str, joined: Memory
) -> None:
    """The run is gone by then, and the operator is to learn that it was stopped."""
    post(joined, ID)
    scope = hangup.run(token=ID, joined=True)
    assert await ended_by(scope, lambda _run: None) == "killed"
    transport = connect(url)
    for reply in ("first", "second"):
        await eventually(lambda: ID in a_member()._acknowledged)
        transport.stop(ID, "", reply)
        answer = await asyncio.to_thread(transport.next_answer, reply, PATIENCE)
        assert answer is not None
        assert json.loads(answer)["run"] == ID
    transport.stop("cd" * 16, write_marker("cd" * 16, Cause.KILLED, ""), "third")
    transport.publish(messages.write_listing("after", ""))
    assert await asyncio.to_thread(transport.next_answer, "after", PATIENCE)
    assert not joined.replies["third"], "that one was never here"


def test_what_is_remembered_is_bounded(joined: Memory) -> None:
    mine = a_member()
    for number in range(3_000):
        mine._remember(f"{number:032x}", "text")
    for number in range(10):
        mine._remember(ID, str(number))
    assert len(mine._acknowledged) <= 1_000
    assert mine._acknowledged[ID] == ["6", "7", "8", "9"]


def test_pauses_grow_to_a_second_and_are_never_the_same() -> None:
    pause = timing.Pause()
    lengths = [pause.length() for _ in range(40)]
    assert lengths[0] <= timing.FIRST_PAUSE
    assert max(lengths) <= timing.LONGEST_PAUSE
    assert min(lengths[10:]) >= timing.LONGEST_PAUSE / 2
    assert len(set(lengths)) == len(lengths)
    pause.reset()
    assert pause.length() <= timing.FIRST_PAUSE


def test_leaving_ends_both_threads(joined: Memory) -> None:
    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if "hangup-bus" in one.name]

    before = threads()
    assert before
    bus.uninstall()
    assert remote.reach() is None
    for thread in before:
        thread.join(PATIENCE)
    assert not threads()
    assert joined.ears == []


def test_the_gauge_is_absent_without_a_bus_and_tells_with_one(
    url: str, there: Memory
) -> None:
    with instrumented() as telemetry:
        assert gauge(telemetry) == []
    with instrumented(bus_url=url) as telemetry:
        asyncio.run(eventually(lambda: bool(a_member().up)))
        assert gauge(telemetry) == [1]
        there.goes_down()
        asyncio.run(eventually(lambda: not a_member().up))
        assert gauge(telemetry) == [0]


def test_a_bus_whose_library_is_missing_is_down_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name="redis")

    monkeypatch.setattr(bus, "import_module", missing)
    with instrumented(bus_url="redis://127.0.0.1:1") as telemetry:
        assert gauge(telemetry) == [0]
        assert remote.verdict(ID) is None
    assert "pip install 'hangup[redis]'" in caplog.text
