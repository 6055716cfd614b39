"""Cancel once; the first cause wins; deadlines tighten; cancels flow down, never up."""

from __future__ import annotations

import gc
import secrets
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from hangup.core import guard
from hangup.core.cause import Abandonment, Cause
from hangup.core.deadline import Deadline
from hangup.core.token import CancelToken, new_token_id
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def token(
    clock: FakeClock,
    budget: float | None = None,
    parent: CancelToken | None = None,
    *,
    binding: bool = True,
) -> CancelToken:
    return CancelToken(Deadline.after(budget, clock), binding=binding, parent=parent)


def test_ids_are_128_unguessable_bits_in_lower_hex() -> None:
    ids = {new_token_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 32 and set(one) <= set("0123456789abcdef") for one in ids)


@pytest.mark.parametrize("status", ["408", "429", "500", "503", "529"])
def test_no_id_holds_what_a_retry_takes_for_a_status(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    drawn = iter([f"{status}{'a' * 29}", f"{'b' * 29}{status}", "c4" * 16])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(drawn))
    assert new_token_id() == "c4" * 16


def test_the_first_cause_wins_for_ever(clock: FakeClock) -> None:
    node = token(clock, 10.0)
    assert node.cancel(Cause.DISCONNECT, "left")
    first = node.abandonment
    clock.advance(20.0)
    assert not node.cancel(Cause.KILLED, "by operator")
    assert not node.finish()
    assert node.poll() is first
    now = clock.monotonic() - 20.0
    assert first == Abandonment(Cause.DISCONNECT, "left", now, now)


def test_the_cause_takes_effect_when_it_did_not_when_it_was_noticed(
    clock: FakeClock,
) -> None:
    node = token(clock)
    now = clock.monotonic()
    node.cancel(Cause.DISCONNECT, at=now - 3.0)
    assert node.abandonment == Abandonment(Cause.DISCONNECT, "", now - 3.0, now)


def test_a_cause_never_takes_effect_in_the_future(clock: FakeClock) -> None:
    node = token(clock)
    now = clock.monotonic()
    node.cancel(Cause.DISCONNECT, at=now + 3.0)
    assert node.abandonment == Abandonment(Cause.DISCONNECT, "", now, now)


def test_a_passed_deadline_is_recorded_at_its_instant_whenever_it_is_noticed(
    clock: FakeClock,
) -> None:
    node = token(clock, 10.0)
    at = clock.monotonic() + 10.0
    clock.advance(25.0)
    assert node.abandonment is None
    assert node.poll() == Abandonment(Cause.DEADLINE, "", at, at + 15.0)
    assert node.abandonment is node.poll()


def test_past_a_binding_deadline_a_cancel_says_deadline(clock: FakeClock) -> None:
    node = token(clock, 10.0)
    at = clock.monotonic() + 10.0
    clock.advance(10.0)
    assert not node.cancel(Cause.DISCONNECT)
    assert node.abandonment == Abandonment(Cause.DEADLINE, "", at, at)


def test_past_a_binding_deadline_a_finish_says_deadline(clock: FakeClock) -> None:
    node = token(clock, 10.0)
    clock.advance(10.0)
    assert not node.finish()
    assert not node.finished
    assert node.abandonment is not None
    assert node.abandonment.cause is Cause.DEADLINE


def test_a_deadline_that_does_not_bind_is_only_a_number(clock: FakeClock) -> None:
    node = token(clock, 10.0, binding=False)
    clock.advance(25.0)
    assert node.poll() is None
    assert node.finish()


def test_a_finished_node_cannot_be_abandoned(clock: FakeClock) -> None:
    node = token(clock, 10.0)
    assert node.finish()
    assert node.finished
    assert not node.finish()
    assert not node.cancel(Cause.KILLED)
    clock.advance(25.0)
    assert node.poll() is None


def test_a_childs_deadline_is_the_earlier_one(clock: FakeClock) -> None:
    parent = token(clock, 10.0)
    assert token(clock, 3.0, parent).deadline.at == clock.monotonic() + 3.0
    assert token(clock, 30.0, parent).deadline.at == parent.deadline.at
    assert token(clock, None, parent).deadline.at == parent.deadline.at


def test_a_cancel_flows_down_and_says_that_it_was_inherited(clock: FakeClock) -> None:
    top = token(clock)
    middle = token(clock, None, top)
    bottom = token(clock, 5.0, middle)
    top.cancel(Cause.KILLED, "why", at=clock.monotonic() - 1.0)
    now = clock.monotonic()
    inherited = Abandonment(Cause.KILLED, "why", now - 1.0, now, inherited=True)
    assert middle.abandonment == bottom.abandonment == inherited
    assert top.abandonment is not None
    assert not top.abandonment.inherited


def test_a_cancel_never_flows_up_nor_sideways(clock: FakeClock) -> None:
    top = token(clock)
    one, other = token(clock, None, top), token(clock, None, top)
    one.cancel(Cause.KILLED)
    assert top.poll() is None
    assert other.poll() is None


def test_a_child_of_an_abandoned_node_is_born_abandoned(clock: FakeClock) -> None:
    top = token(clock)
    top.cancel(Cause.SHUTDOWN)
    child = token(clock, 5.0, top)
    assert child.abandonment is not None
    assert child.abandonment.cause is Cause.SHUTDOWN
    assert child.abandonment.inherited


def test_a_shared_deadline_belongs_to_the_node_that_set_it(clock: FakeClock) -> None:
    top = token(clock, 10.0)
    child = token(clock, None, top)
    clock.advance(10.0)
    polled = child.poll()
    assert polled is not None
    assert polled.inherited
    assert top.abandonment is not None
    assert not top.abandonment.inherited


def test_a_tighter_deadline_belongs_to_the_child_alone(clock: FakeClock) -> None:
    top = token(clock, 10.0)
    child = token(clock, 5.0, top)
    clock.advance(7.0)
    polled = child.poll()
    assert polled is not None
    assert not polled.inherited
    assert top.poll() is None


def test_a_childs_deadline_that_passed_before_the_cause_above_is_the_earlier_truth(
    clock: FakeClock,
) -> None:
    top = token(clock)
    child = token(clock, 5.0, top)
    at = clock.monotonic() + 5.0
    clock.advance(8.0)
    top.cancel(Cause.DISCONNECT, at=clock.monotonic() - 1.0)
    assert child.abandonment == Abandonment(Cause.DEADLINE, "", at, at + 3.0)


def test_a_cause_above_that_took_effect_before_the_childs_deadline_comes_down(
    clock: FakeClock,
) -> None:
    top = token(clock)
    child = token(clock, 5.0, top)
    clock.advance(8.0)
    top.cancel(Cause.DISCONNECT, at=clock.monotonic() - 4.0)
    assert child.abandonment is not None
    assert child.abandonment.cause is Cause.DISCONNECT
    assert child.abandonment.inherited


def test_a_finished_node_takes_its_deadline_with_it(clock: FakeClock) -> None:
    """Background work of a delivered run is not stopped by that run's deadline."""
    top = token(clock, 10.0)
    child = token(clock, None, top)
    own = token(clock, 5.0, top)
    top.finish()
    clock.advance(10.0)
    assert child.poll() is None
    polled = own.poll()
    assert polled is not None
    assert polled.cause is Cause.DEADLINE


def test_callbacks_run_once_children_first(clock: FakeClock) -> None:
    top = token(clock)
    child = token(clock, None, top)
    calls: list[tuple[str, Abandonment | None]] = []
    top.on_cancel(lambda _: calls.append(("top", child.abandonment)))
    top.on_cancel(lambda _: calls.append(("top again", None)))
    child.on_cancel(lambda _: calls.append(("child", top.abandonment)))
    top.cancel(Cause.KILLED)
    child.cancel(Cause.KILLED)
    clock.advance(1.0)
    top.poll()
    assert [name for name, _ in calls] == ["child", "top", "top again"]
    assert calls[0][1] is not None
    assert calls[1][1] is not None


def test_a_callback_given_late_is_called_at_once(clock: FakeClock) -> None:
    node = token(clock)
    node.cancel(Cause.KILLED)
    seen: list[Abandonment] = []
    node.on_cancel(seen.append)
    assert seen == [node.abandonment]


def test_a_callback_that_was_forgotten_is_not_called(clock: FakeClock) -> None:
    node = token(clock)
    seen: list[Abandonment] = []
    forget = node.on_cancel(seen.append)
    forget()
    forget()
    node.cancel(Cause.KILLED)
    assert seen == []


def test_a_finished_node_calls_nobody(clock: FakeClock) -> None:
    node = token(clock)
    seen: list[Abandonment] = []
    node.on_cancel(seen.append)
    node.finish()
    node.on_cancel(seen.append)
    node.cancel(Cause.KILLED)
    assert seen == []


def test_callbacks_run_outside_the_locks(clock: FakeClock) -> None:
    """A callback may open, cancel and watch nodes, also from another thread."""
    top = token(clock)
    child = token(clock, None, top)
    done: list[str] = []

    def elsewhere(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10.0)
        done.append("stuck" if thread.is_alive() else "through")

    def callback(_: Abandonment) -> None:
        elsewhere(lambda: token(clock, None, top))
        elsewhere(lambda: token(clock, None, child))
        elsewhere(lambda: top.cancel(Cause.KILLED))
        elsewhere(lambda: child.on_cancel(print))

    child.on_cancel(callback)
    top.cancel(Cause.KILLED)
    assert done == ["through"] * 4


def test_the_fault_of_a_callback_keeps_nobody_from_stopping(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    guard.strict(False)  # noqa: FBT003  a switch
    node = token(clock)
    seen: list[Abandonment] = []

    def fault(_: Abandonment) -> None:
        raise ArithmeticError("the fault of a callback")

    node.on_cancel(fault)
    node.on_cancel(seen.append)
    assert node.cancel(Cause.KILLED)
    assert len(seen) == 1
    assert "the fault of a callback" in caplog.text


def test_one_of_many_threads_wins(clock: FakeClock) -> None:
    node = token(clock)
    child = token(clock, None, node)
    calls: list[Abandonment] = []
    child.on_cancel(calls.append)
    won: list[str] = []
    start = threading.Barrier(8)

    def race(name: str) -> None:
        start.wait(10.0)
        if node.cancel(Cause.KILLED, name):
            won.append(name)

    threads = [threading.Thread(target=race, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert node.abandonment is not None
    assert won == [node.abandonment.detail]
    assert len(calls) == 1


def test_a_child_polled_while_the_cause_is_still_on_its_way_down_inherits_it(
    clock: FakeClock,
) -> None:
    """The cause is recorded above before it arrives below; nothing is made up then."""
    top = token(clock, 10.0)
    first, second = token(clock, None, top), token(clock, None, top)
    polled: list[Abandonment | None] = []
    # Whichever child hears of it first, the other has not yet.
    first.on_cancel(lambda _: polled.append(second.poll()))
    second.on_cancel(lambda _: polled.append(first.poll()))
    clock.advance(10.0)
    top.poll()
    assert len(polled) == 2
    assert all(one is not None and one.inherited for one in polled)


def test_a_node_is_not_kept_alive_by_its_parent(clock: FakeClock) -> None:
    top = token(clock)
    for _ in range(10):
        token(clock, None, top)
    gc.collect()
    assert len(top._children or ()) == 0


@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_a_node_that_is_over_keeps_nobody_alive(clock: FakeClock, end: str) -> None:
    class Listener:
        def hear(self, _: Abandonment) -> None:
            pass

    node, listener = token(clock), Listener()
    node.on_cancel(listener.hear)
    gone = weakref.ref(listener)
    del listener
    gc.collect()
    assert gone() is not None
    _ = node.finish() if end == "finish" else node.cancel(Cause.KILLED)
    gc.collect()
    assert gone() is None


def test_a_deadline_that_binds_nothing_is_no_cause_when_another_comes_down(
    clock: FakeClock,
) -> None:
    above = token(clock, 20.0)
    observed = token(clock, 5.0, above, binding=False)
    clock.advance(10.0)
    above.cancel(Cause.KILLED)
    assert observed.abandonment is not None
    assert observed.abandonment.cause is Cause.KILLED
    assert observed.abandonment.inherited


def test_a_callback_that_exits_keeps_nobody_from_hearing_of_the_stop(
    clock: FakeClock,
) -> None:
    """Not those after it, nor the other children; and what it raised comes out."""
    root = token(clock)
    children = [token(clock, parent=root) for _ in range(3)]
    heard: list[str] = []

    def exits(_: Abandonment) -> None:
        heard.append("exits")
        raise SystemExit(3)

    for number, node in enumerate([*children, root]):
        node.on_cancel(exits)
        node.on_cancel(lambda _, number=number: heard.append(str(number)))  # type: ignore[misc]
    with pytest.raises(SystemExit):
        root.cancel(Cause.KILLED)
    assert sorted(heard) == [*"0123", *["exits"] * 4]
    assert heard[-1] == "3", "children first"
    assert {node.abandonment.cause for node in (root, *children)} == {"killed"}  # type: ignore[union-attr]
