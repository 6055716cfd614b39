"""Counting waits for no lock of the SDK: a finaliser may be what counts."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.core import in_loop
from support.telemetry import Telemetry, chat, instrumented, used

import hangup
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.otel.later import PATIENCE, Later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.trace import Tracer

    Dropped = Callable[[Tracer], object]


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with instrumented() as telemetry:
        yield telemetry


def locks(telemetry: Telemetry) -> list[Any]:
    """Every lock that a collection of the SDK holds at some time."""
    consumer: Any = telemetry.meter_provider._measurement_consumer
    found = [consumer._lock]
    for storage in consumer._reader_storages.values():
        found.append(storage._lock)
        matches = storage._instrument_view_instrument_matches
        found += [one._lock for several in matches.values() for one in several]
    return found


class Stream:
    """A stream whose span is ended when it is dropped."""

    def __init__(self, tracer: Tracer) -> None:
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
        self.span = tracer.start_span("chat", attributes=attributes)

    def __del__(self) -> None:
        used(self.span, 7, 3)
        self.span.end()


def holding_a_run(tracer: Tracer) -> object:
    """A generator that is in a run: dropped, it closes it."""

    def pieces() -> Iterator[str]:
        with hangup.run(name="dropped"):
            with chat(tracer) as span:
                used(span, 7, 3)
            yield "piece"

    generator = pieces()
    next(generator)
    return generator


@pytest.mark.parametrize("make", [Stream, holding_a_run])
def test_what_is_dropped_in_the_middle_of_a_collection_is_counted_after_it(
    telemetry: Telemetry, make: Dropped
) -> None:
    """As when a garbage collection strikes there, on the very thread with the locks."""
    tracer = telemetry.tracer_provider.get_tracer("test")
    with hangup.run(name="first"), chat(tracer) as span:
        used(span, 1, 1)
    assert sum(telemetry.tokens("delivered")) == 2  # every instrument is in use
    done = threading.Event()

    def collect() -> None:
        dropped = [make(tracer)]
        held = locks(telemetry)
        for lock in held:
            lock.acquire()
        dropped.clear()
        for lock in held:
            lock.release()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(20), "it waits for a lock that its own thread holds"
    assert telemetry.total(names.METERED_TOKENS) == 12


def test_what_was_counted_before_a_collection_is_in_it(telemetry: Telemetry) -> None:
    """Though it waits for a turn of a loop that does not come."""

    @in_loop
    async def check() -> None:
        tracer = telemetry.tracer_provider.get_tracer("test")
        with hangup.run(name="job"), chat(tracer) as span:
            used(span, 7, 3)
        assert telemetry.tokens("delivered") == (7, 3)
        assert telemetry.total(names.RUNS, outcome="delivered") == 1

    check()


def test_a_loop_hands_on_what_was_counted_in_its_next_turn(
    telemetry: Telemetry,
) -> None:
    @in_loop
    async def check() -> None:
        tracer = telemetry.tracer_provider.get_tracer("test")
        for _ in range(3):
            with hangup.run(name="job"), chat(tracer) as span:
                used(span, 7, 3)
        queue = HangupInstrumentor()._instruments.later._queue  # type: ignore[union-attr]
        assert queue
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not queue

    check()


def test_what_a_measurement_measures_is_handed_on_before_a_collection_too() -> None:
    """Another thread has it in hand: whoever is patient waits for what comes of it."""
    later = Later()
    done: list[int] = []
    in_hand, go_on = threading.Event(), threading.Event()

    def counted() -> None:
        in_hand.set()
        assert go_on.wait(PATIENCE)
        later.put(done.append, 1)
        later.put(done.append, 2)

    later.put(counted)
    books = threading.Thread(target=later.drain)
    books.start()
    assert in_hand.wait(PATIENCE)
    later._draining = Held(later._draining, go_on)  # type: ignore[assignment]
    later.drain(PATIENCE)
    assert done == [1, 2]
    books.join()


class Held:
    """A lock that somebody waits for, and gets before anybody else does."""

    def __init__(self, lock: threading.Lock, wanted: threading.Event) -> None:
        self._lock, self._wanted = lock, wanted

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking:
            return False  # the other thread: it is late for what it has measured
        self._wanted.set()
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()
