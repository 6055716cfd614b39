"""Live runs can be found, watched and superseded; nothing keeps a run alive."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest
from support.core import Witness, opened, witness

import hangup
from hangup.config import Mode
from hangup.core import guard, registry
from hangup.core.cause import Cause
from hangup.core.scope import RunScope
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from hangup.core.run import Run


def test_a_run_is_live_from_its_start_to_its_close() -> None:
    with hangup.run(name="r") as run:
        assert run in registry.live_runs()
        assert registry.runs_by_id(run.id) == (run,)
    assert run not in registry.live_runs()
    assert registry.runs_by_id(run.id) == ()


def test_a_child_is_live_but_found_by_its_root_only() -> None:
    with hangup.run(name="r") as root, hangup.run() as child:
        assert child in registry.live_runs()
        assert child.id == root.id
        assert registry.runs_by_id(root.id) == (root,)


def test_a_latent_run_is_not_live_until_it_spends() -> None:
    with RunScope(latent=True, server=True) as run:
        assert run not in registry.live_runs()
        run.begin_spending()
        assert run in registry.live_runs()
    assert run not in registry.live_runs()


def test_a_run_that_nobody_closes_goes_when_its_owner_goes() -> None:
    scope = RunScope(name="dropped")
    run = scope.__enter__()
    gone = weakref.ref(run)
    leave = scope._leave
    assert leave is not None
    leave()
    del scope, run, leave
    gc.collect()
    assert gone() is None
    assert all(one.name != "dropped" for one in registry.live_runs())


def test_an_observer_hears_the_life_of_a_delivered_run_in_order() -> None:
    with witness() as seen, hangup.run(name="r"):
        pass
    assert seen.events == [("started", "r"), ("delivered", "r"), ("closed", "r")]


def test_an_observer_hears_the_life_of_an_abandoned_run_in_order() -> None:
    with witness() as seen, hangup.run(name="r") as run:
        run.cancel("killed")
    assert seen.events == [
        ("started", "r"),
        ("abandoned", "r", "killed"),
        ("closed", "r"),
        ("settled", "r", 0),
    ]


def test_an_observer_hears_of_abandoned_children_first() -> None:
    with (
        witness() as seen,
        hangup.run(name="root") as root,
        hangup.run(name="child"),
    ):
        root.cancel("killed")
    assert seen.of("abandoned") == [
        ("abandoned", "child", "killed"),
        ("abandoned", "root", "killed"),
    ]


def test_an_observer_is_added_once_and_removed_once() -> None:
    seen = Witness()
    registry.add_observer(seen)
    registry.add_observer(seen)
    with hangup.run():
        pass
    registry.remove_observer(seen)
    registry.remove_observer(seen)
    with hangup.run():
        pass
    assert [event for event, *_ in seen.events] == ["started", "delivered", "closed"]


def test_an_observer_is_bothered_with_what_it_wants_to_hear_only() -> None:
    """However it says so: in its class, in one above, or on the instance alone."""

    class Above(registry.RunObserver):
        def closed(self, run: Run) -> None:
            seen.append(("closed", run.name))

    class Below(Above):
        pass

    seen: list[tuple[str, str]] = []
    observers = [registry.RunObserver(), Below(), registry.RunObserver()]
    observers[2].started = lambda run: seen.append(("started", run.name))  # type: ignore[method-assign]
    for one in observers:
        registry.add_observer(one)
    try:
        hear = registry._registry.hear
        assert not any(observers[0] in told for told in hear.values())
        assert [event for event in hear if observers[1] in hear[event]] == ["closed"]
        with hangup.run(name="r"):
            pass
    finally:
        for one in observers:
            registry.remove_observer(one)
    assert seen == [("started", "r"), ("closed", "r")]


def test_the_fault_of_an_observer_reaches_neither_the_run_nor_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Witness):
        def started(self, run: Run) -> None:
            raise ArithmeticError("the fault of an observer")

    guard.strict(False)  # noqa: FBT003  a switch
    broken = Broken()
    registry.add_observer(broken)
    try:
        with witness() as seen, hangup.run(name="r"):
            pass
    finally:
        registry.remove_observer(broken)
    assert len(seen.events) == 3
    assert "the fault of an observer" in caplog.text


def test_a_newer_run_with_the_same_key_supersedes_the_older() -> None:
    with RunScope(supersede_key="acme:7", name="old") as old:
        with hangup.detached(), RunScope(supersede_key="acme:7") as new:
            assert old.cause is Cause.SUPERSEDED
            assert old.abandonment is not None
            assert "'acme:7'" in old.abandonment.detail
            assert new.abandonment is None
        assert new.state == "delivered"


def test_a_key_goes_with_the_run_that_held_it() -> None:
    with RunScope(supersede_key="acme:7") as old:
        pass
    with RunScope(supersede_key="acme:7") as new:
        assert old.abandonment is None
        assert new.abandonment is None
    assert "acme:7" not in registry._registry.holders


def test_an_older_run_that_ends_does_not_take_the_key_of_the_newer() -> None:
    old, new = (
        opened(RunScope(supersede_key="k", clock=FakeClock())) for _ in range(2)
    )
    old.close()
    with RunScope(supersede_key="k"):
        assert new.cause is Cause.SUPERSEDED
    new.close()


def test_a_run_is_not_superseded_by_one_inside_it() -> None:
    with RunScope(supersede_key="k") as outer:
        with RunScope(supersede_key="k") as inner:
            pass
        assert outer.abandonment is None
        assert inner.state == "delivered"
        newer = opened(RunScope(supersede_key="k", clock=FakeClock()))
        assert outer.cause is Cause.SUPERSEDED
        newer.close()


def test_in_observe_a_newer_run_is_only_a_would_stop() -> None:
    with RunScope(supersede_key="k", mode="observe") as old, hangup.detached():
        with RunScope(supersede_key="k", mode="observe"):
            pass
        assert old.abandonment is None


def test_a_latent_run_is_superseded_at_its_first_spending_call() -> None:
    with RunScope(supersede_key="k", latent=True, server=True) as old:
        with hangup.detached(), RunScope(supersede_key="k"):
            assert old.abandonment is None
        old.begin_spending()
        assert old.cause is Cause.SUPERSEDED


def test_shutdown_abandons_every_live_root_once() -> None:
    with witness() as seen:
        runs = [
            opened(RunScope(name=name, clock=FakeClock())) for name in ("one", "two")
        ]
        assert registry.shutdown() == 2
        assert registry.shutdown() == 0
        for run in runs:
            assert run.cause is Cause.SHUTDOWN
            run.close()
    assert len(seen.of("abandoned")) == 2


def test_a_run_in_mode_off_is_nobodys_business() -> None:
    with witness() as seen:
        with hangup.run(mode="off", budget=0, clock=FakeClock()) as run:
            assert run.mode is Mode.OFF
            run.check()
            run.begin_spending()
            run.cancel("killed")
            run.check()
            assert run.abandonment is None
            assert run not in registry.live_runs()
        with pytest.raises(KeyError), hangup.run(mode="off"):
            raise KeyError
    assert seen.events == []
