"""Celery tasks share the deadline, the stop and the bill of the run that sent them.

A real Redis, real workers in processes of their own (one with the solo pool, one
prefork whose children are instrumented as OpenTelemetry tells one to), real clients.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain  # type: ignore[import-untyped]
from celery.signals import before_task_publish  # type: ignore[import-untyped]
from opentelemetry import baggage, context
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from support import celery_agent as agent
from support.celery_bench import Bench
from support.modelthread import ModelThread
from support.queue_workers import working
from support.rig import LONG, SHORT, traced
from support.stores import Redis, directory

import hangup
from hangup.demo.brain import Script
from hangup.otel import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hangup.core.run import Run

pytestmark = [
    pytest.mark.wide,
    pytest.mark.timeout(300),
    # Celery's own: files of a backend that is dropped, and what billiard forks.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

_SPANS: Any = CeleryInstrumentor
POOLS = ("solo", "prefork")
IN_TIME = 2.5
"""Seconds after T0, on a busy machine; the answers would take twenty."""
NOTICED = 30
"""Tokens: what another process, on a busy machine, has not read yet."""
MODEST = Script(tokens=60, input_tokens=20, rate=30, first_token=0.05, jitter=0)
"""An answer that takes two seconds."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with (
        directory() as place,
        Redis(place) as redis,
        ModelThread() as model,
        traced() as telemetry,
    ):
        made = Bench(place, model, telemetry, redis)
        agent.connect(made.url)
        both = (
            made.worker("solo"),
            made.worker("prefork", "prefork", IN_CHILDREN="1", SPANS="1"),
        )
        with working(*both):
            yield made
        agent.app.close()


def at_once(case: Callable[[str], None]) -> None:
    """Do a case on both pools at the same time."""
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(case, queue) for queue in POOLS]:
            done.result()


def later(seconds: float, what: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, what)
    timer.daemon = True
    timer.start()


@contextlib.contextmanager
def stopping(
    bench: Bench, model: str, cause: str = "killed", **run: Any
) -> Iterator[tuple[Run, list[float]]]:
    """A run that is stopped once a model has begun to answer it; when that was."""
    moment: list[float] = []

    def stop(run: Run) -> None:
        bench.model.begun(model, 20)
        moment.append(time.monotonic())
        run.cancel(cause)

    with hangup.run(**({"budget": 30} | run)) as opened:
        waiter = threading.Thread(target=stop, args=(opened,))
        waiter.start()
        try:
            yield opened, moment
        finally:
            waiter.join()


def test_f6_a_stop_reaches_the_task_the_waiter_and_both_books(bench: Bench) -> None:
    def case(queue: str) -> None:
        model = bench.model.script(f"killed-{queue}", LONG)
        with (
            pytest.raises(hangup.RunCancelled),
            stopping(bench, model, name=model) as (_, moment),
        ):
            sent = agent.ask.apply_async((model,), queue=queue)
            sent.get()
        woken = time.monotonic()
        bench.model.closed(model)
        assert woken - moment[0] < IN_TIME
        assert bench.model.late(model, moment[0]) < IN_TIME
        assert sent.state == "REVOKED"
        assert len(bench.model.of(model)) == 1
        # One run, counted by who opened it; the waste where it was spent.
        assert bench.telemetry.total("hangup.runs", run=model) == 1
        assert bench.workers[queue].books.runs() == {}
        wasted = bench.model.since(model, moment[0])
        until = time.monotonic() + 5
        while time.monotonic() < until:
            if abs(bench.spent(queue, model, "wasted") - wasted) <= NOTICED:
                break
            time.sleep(0.05)
        assert abs(bench.spent(queue, model, "wasted") - wasted) <= NOTICED
        assert bench.spent(queue, model, "delivered") == 0

    at_once(case)


def test_an_answer_is_booked_as_what_became_of_it_in_the_sender(bench: Bench) -> None:
    """The worker answers normally; only the sender knows whether anybody was there."""

    def case(queue: str) -> None:
        taken = bench.model.script(f"taken-{queue}", SHORT)
        with hangup.run(30, name="user"):
            assert agent.ask.apply_async((taken,), queue=queue).get()
        left = bench.model.script(f"left-{queue}", SHORT)
        with hangup.run(30, name="user", mode="observe") as run:
            agent.ask.apply_async((left,), queue=queue).get()
            run.cancel("disconnect")
        bench.settled(queue, taken, delivered=bench.model.total(taken))
        bench.settled(queue, left, sunk=bench.model.total(left))

    at_once(case)


def test_in_observe_nothing_is_cut_and_the_waste_is_exact(bench: Bench) -> None:
    def case(queue: str) -> None:
        model = bench.model.script(f"observed-{queue}", MODEST)
        with stopping(bench, model, "disconnect", mode="observe", name=model) as (
            _,
            moment,
        ):
            sent = agent.ask.apply_async((model,), queue=queue)
            assert sent.get()
        assert bench.model.total(model) == 80
        wasted = bench.model.since(model, moment[0])
        until = time.monotonic() + 5
        while time.monotonic() < until:
            found = [bench.spent(queue, model, fate) for fate in ("sunk", "wasted")]
            if sum(found) == 80:
                break
            time.sleep(0.05)
        assert sum(found) == 80
        assert abs(found[1] - wasted) <= NOTICED
        assert bench.telemetry.total("hangup.runs", run=model) == 1
        assert bench.workers[queue].books.runs() == {}

    at_once(case)


def test_f4_a_task_that_waits_in_the_worker_is_not_begun(bench: Bench) -> None:
    def case(queue: str) -> None:
        first = bench.model.script(f"first-{queue}", MODEST)
        never = bench.model.script(f"never-{queue}", SHORT)
        with hangup.run(30, name="first"):
            busy = agent.ask.apply_async((first,), queue=queue)
            bench.model.begun(first)
            waiting = []
            for around in (contextlib.nullcontext(), hangup.detached()):
                # A part of the run, and then one of its own.
                with (
                    pytest.raises(hangup.RunCancelled),
                    around,
                    hangup.run(30, name="second") as run,
                ):
                    waiting.append(agent.ask.apply_async((never,), queue=queue))
                    later(0.2, run.cancel)
                    waiting[-1].get()
            assert busy.get()
            after = bench.model.script(f"next-{queue}", SHORT)
            assert agent.ask.apply_async((after,), queue=queue).get()  # it is past it
        assert [one.state for one in waiting] == ["REVOKED", "REVOKED"]
        assert bench.model.of(never) == []

    at_once(case)


def test_a_retry_never_runs_past_the_stop(bench: Bench) -> None:
    """Neither of a task that asks for it, nor one that Celery makes of any error."""

    def killed(queue: str) -> None:
        model = bench.model.script(f"again-{queue}", SHORT)
        with contextlib.suppress(hangup.RunCancelled), hangup.run(30) as run:
            sent = agent.again.apply_async((model, 1.0), queue=queue)
            bench.model.closed(model)
            while sent.state != "RETRY":
                time.sleep(0.02)
            run.cancel("killed")
        _wait_for(sent, "REVOKED")
        assert len(bench.model.of(model)) == 1

    def past(queue: str) -> None:
        model = bench.model.script(f"past-{queue}", SHORT)
        began = time.monotonic()
        with pytest.raises(hangup.DeadlineExceeded), hangup.run(3.0):
            sent = agent.again.apply_async((model, 3.5), queue=queue)
            sent.get()
        assert time.monotonic() - began < 3.0 + IN_TIME
        time.sleep(1.5)  # the retry is due, and there is nothing to wait for
        assert sent.state == "REVOKED"
        assert len(bench.model.of(model)) == 1

    def of_any_error(queue: str) -> None:
        model = bench.model.script(f"stubborn-{queue}", LONG)
        with (
            pytest.raises(hangup.RunCancelled),
            stopping(bench, model) as (_, moment),
        ):
            agent.stubborn.apply_async((model,), queue=queue).get()
        bench.model.closed(model)
        assert bench.model.late(model, moment[0]) < IN_TIME
        assert len(bench.model.of(model)) == 1

    at_once(of_any_error)
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(killed, "solo"), pool.submit(past, "prefork")]:
            done.result()


def _wait_for(sent: Any, state: str) -> None:
    until = time.monotonic() + 10
    while sent.state != state and time.monotonic() < until:
        time.sleep(0.05)
    assert sent.state == state


def test_a_task_with_a_name_of_its_own_is_stopped_and_its_name_goes_on(
    bench: Bench,
) -> None:
    """Celery would refuse every later task of that name, were it revoked."""

    def case(queue: str) -> None:
        model = bench.model.script(f"named-{queue}", LONG, SHORT)
        name = f"sync-{queue}"
        with pytest.raises(hangup.RunCancelled), stopping(bench, model) as (_, moment):
            agent.ask.apply_async((model,), queue=queue, task_id=name).get()
        bench.model.closed(model)
        assert bench.model.late(model, moment[0]) < IN_TIME
        agent.ask.AsyncResult(name).forget()
        with hangup.run(30):
            again = agent.ask.apply_async((model,), queue=queue, task_id=name)
            assert again.get()

    at_once(case)


def test_the_stop_of_a_part_of_a_run_stops_the_tasks_of_that_part(
    bench: Bench,
) -> None:
    def case(queue: str) -> None:
        model = bench.model.script(f"part-{queue}", LONG)
        after = bench.model.script(f"rest-{queue}", SHORT)
        with hangup.run(30, name="whole"):
            with (
                pytest.raises(hangup.RunCancelled),
                stopping(bench, model) as (_, moment),
            ):
                agent.ask.apply_async((model,), queue=queue).get()
            assert agent.ask.apply_async((after,), queue=queue).get()
        bench.model.closed(model)
        assert bench.model.late(model, moment[0]) < IN_TIME

    at_once(case)


def test_every_step_of_a_chain_belongs_to_the_run(bench: Bench) -> None:
    def case(queue: str) -> None:
        one = bench.model.script(f"one-{queue}", SHORT)
        two = bench.model.script(f"two-{queue}", LONG)
        steps = chain(
            agent.ask.s(one).set(queue=queue), agent.after.s(two).set(queue=queue)
        )
        with (
            contextlib.suppress(hangup.RunCancelled),
            stopping(bench, two) as (
                _,
                moment,
            ),
        ):
            sent = steps.apply_async()
            bench.model.begun(two)
        bench.model.closed(two)
        assert bench.model.late(two, moment[0]) < IN_TIME
        _wait_for(sent, "REVOKED")

    at_once(case)


def test_what_is_meant_to_outlive_the_run_does(bench: Bench) -> None:
    """Detached, not awaited, in a cleanup, or not waited for after all."""
    names = ("detached", "aside", "cleanup", "delivered")
    model = {name: bench.model.script(f"out-{name}", MODEST) for name in names}
    with pytest.raises(hangup.RunCancelled), hangup.run(30) as run:
        with hangup.detached():
            agent.ask.apply_async((model["detached"],), queue="solo")
        agent.ask_aside.apply_async((model["aside"],), queue="prefork")
        with hangup.cleanup():
            agent.ask.apply_async((model["cleanup"],), queue="prefork")
        bench.model.begun(model["detached"])
        run.cancel("killed")
        run.check()
    with hangup.run(2.0, name="quick") as quick:
        # Sent to be awaited, perhaps; but the run had its answer without it.
        agent.ask.apply_async((model["delivered"],), queue="solo")
    assert quick.delivered_at is not None
    for name in names:
        bench.model.closed(model[name])
        [call] = bench.model.of(model[name])
        assert call.output_tokens == 60, name


def test_c5_a_full_baggage_does_not_cost_the_deadline(bench: Bench) -> None:
    here = context.get_current()
    for number in range(40):
        here = baggage.set_baggage(f"user{number}", "x" * 300, here)
    users = context.attach(here)
    instrumentor = _SPANS()
    instrumentor.instrument(tracer_provider=bench.telemetry.tracer_provider)
    try:
        model = bench.model.script("full", LONG)
        began = time.monotonic()
        with pytest.raises(hangup.DeadlineExceeded), hangup.run(3.0):
            agent.ask.apply_async((model,), queue="prefork").get()
    finally:
        instrumentor.uninstrument()
        context.detach(users)
    bench.model.closed(model)
    assert abs(bench.model.late(model, began) - 3.0) < 1.5


def test_what_the_sender_does_not_keep_is_held_to_its_deadline(bench: Bench) -> None:
    """The sender was killed: nobody revokes, and no line says how it stands."""
    model = bench.model.script("orphan", LONG)
    late = bench.model.script("orphan-late", SHORT)
    now = time.time()

    def send(queue: str, model: str, sent: float) -> Any:
        run = wire.Inbound("0" * 31 + "1", 3.0, sent + 3.0, hangup.Mode.ENFORCE)

        def write(headers: dict[str, Any], **_signal: object) -> None:
            headers[wire.HEADER] = wire.encode_header(run)

        before_task_publish.connect(write)
        try:
            return agent.ask.apply_async((model,), queue=queue)
        finally:
            before_task_publish.disconnect(write)

    began = time.monotonic()
    sent = send("solo", model, now)
    too_late = send("prefork", late, now - 5)
    _wait_for(too_late, "REVOKED")
    _wait_for(sent, "REVOKED")
    assert abs(bench.model.late(model, began) - 3.0) < 1.5
    assert bench.model.of(late) == []
    refused = bench.workers["prefork"].books
    until = time.monotonic() + 5
    while not refused.total("hangup.refusals", kind="other", cause="deadline"):
        assert time.monotonic() < until
        time.sleep(0.05)
