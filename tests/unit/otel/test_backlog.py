"""Threads that outrun whoever works off their queue give way to it."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from support.telemetry import chat, instrumented, used

import hangup
from hangup.otel import backlog, names
from hangup.otel.backlog import Backlog
from hangup.otel.bookkeeper import Bookkeeper
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.otel.later import _MANY, Later

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

AT_MOST = 60.0


class Turns:
    """What another thread does in its turns, in place of waiting for one.

    Attributes:
        taken: How many turns it has had.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, turn: Callable[[], object]
    ) -> None:
        self.taken = 0

        def turn_taken(seconds: float) -> None:
            assert seconds == backlog._TURN
            self.taken += 1
            turn()

        monkeypatch.setattr("hangup.otel.backlog.sleep", turn_taken)


def shorter(queue: deque[int], by: int) -> None:
    for _ in range(by):
        queue.popleft()


def test_who_adds_to_a_long_queue_waits_until_it_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = deque(range(1_000))
    one = Backlog(queue, 1_000)
    turns = Turns(monkeypatch, lambda: shorter(queue, 1))
    assert len(queue) >= one.limit
    one.give_way()
    assert (turns.taken, len(queue), one.limit) == (1, 999, 1_000)


def test_nobody_waits_for_long_and_soon_again_if_that_was_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = deque(range(5_000))
    one = Backlog(queue, 1_000)
    turns = Turns(monkeypatch, lambda: shorter(queue, 100))
    one.give_way()
    assert (turns.taken, len(queue), one.limit) == (10, 4_000, 4_500)
    shorter(queue, 2_950)
    one.give_way()
    assert (len(queue), one.limit) == (950, 1_000)


def test_who_is_waited_for_itself_waits_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a finaliser in the middle of a collection, with the SDK's locks held."""
    queue = deque(range(1_000))
    one = Backlog(queue, 1_000)
    turns = Turns(monkeypatch, lambda: None)
    for number in range(50_000):
        if len(queue) >= one.limit:
            one.give_way()
        queue.append(number)
    assert turns.taken == 6  # at 1, 2, 4, 8, 16 and 32 thousand


def test_who_works_it_off_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = deque(range(5_000))
    turns = Turns(monkeypatch, lambda: None)
    done = threading.Event()

    def work() -> None:
        Backlog(queue, 1_000).give_way()
        done.set()

    keeper = Bookkeeper(work)
    keeper.start()
    keeper.wake()
    assert done.wait(AT_MOST)
    keeper.stop()
    assert turns.taken == 0


def test_a_thread_does_not_outrun_what_hands_on_its_measurements() -> None:
    handed: list[int] = []

    def record(amount: float, *_: object) -> None:
        sum(range(200))  # an SDK takes longer to count than hangup to queue
        handed.append(int(amount))

    later = Later()
    keeper = Bookkeeper(later.drain)
    later.wake = keeper.wake
    keeper.start()
    longest = 0
    for number in range(20_000):
        later.put(record, number, None, None)
        longest = max(longest, len(later._queue))
    keeper.stop()
    later.drain(AT_MOST)
    assert longest < 4 * _MANY  # without giving way: 15,000 and more
    assert handed == list(range(20_000))


def test_no_call_is_lost_while_another_thread_is_kept_from_the_books(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has begun to settle, and gets the interpreter only when others give way."""
    with instrumented() as telemetry:
        tracer = telemetry.tracer_provider.get_tracer("test")
        recorder = HangupInstrumentor()._recorder
        assert recorder is not None
        settling = threading.Lock()
        settling.acquire()
        monkeypatch.setattr(recorder, "_settling", settling)

        def turn() -> None:
            if settling.locked():
                settling.release()
                recorder.settle()
                settling.acquire()

        Turns(monkeypatch, turn)
        longest = 0
        with hangup.run(name="job"):
            for _ in range(2_500):
                with chat(tracer) as span:
                    used(span, 7, 3)
                longest = max(longest, len(recorder._pending))
        settling.release()
        assert longest <= 1_000
        assert telemetry.total(names.METERED_TOKENS) == 25_000
