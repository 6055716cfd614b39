"""Work handed to a thread or a pool keeps its run; the threads themselves have none."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import functools
import gc
import logging
import queue
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.dummy import Process as DummyProcess
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import pytest
import wrapt
from opentelemetry import context as context_api
from support.core import in_loop, witness

import hangup
from hangup.clients import threads
from hangup.core.current import set_bridge
from hangup.core.scope import RunScope
from hangup.errors import RunCancelled, Stop
from hangup.otel.context import OtelBridge
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT_MOST = 10.0


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    set_bridge(OtelBridge())
    threads.install()
    yield
    threads.uninstall()
    set_bridge(None)


def here(*_: object) -> Any:
    """The run, as whoever is called sees it."""
    return hangup.current_run()


def in_executor() -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(here).result(AT_MOST)


def by_executor_map() -> Any:
    with ThreadPoolExecutor(1) as pool:
        [seen] = pool.map(here, [0])
        return seen


def in_thread_pool(how: Callable[[ThreadPool], Any]) -> Callable[[], Any]:
    def call() -> Any:
        pool = ThreadPool(1)
        try:
            return how(pool)
        finally:
            pool.close()
            pool.join()

    return call


def in_a_thread(make: Callable[[Callable[[], None]], Any]) -> Callable[[], Any]:
    def call() -> Any:
        seen: list[Any] = []
        thread = make(lambda: seen.append(here()))
        thread.start()
        thread.join(AT_MOST)
        return seen[0]

    return call


class Overriding(threading.Thread):
    """A thread that says itself what it does."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work

    def run(self) -> None:
        self._work()


def with_its_own_run(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread()
    thread.run = work  # type: ignore[method-assign]
    return thread


WAYS: dict[str, Callable[[], Any]] = {
    "ThreadPoolExecutor.submit": in_executor,
    "ThreadPoolExecutor.map": by_executor_map,
    "ThreadPool.apply": in_thread_pool(lambda pool: pool.apply(here)),
    "ThreadPool.apply_async": in_thread_pool(
        lambda pool: pool.apply_async(func=here).get(AT_MOST)
    ),
    "ThreadPool.map": in_thread_pool(lambda pool: pool.map(here, [0])[0]),
    "ThreadPool.starmap": in_thread_pool(lambda pool: pool.starmap(here, [(0,)])[0]),
    "ThreadPool.imap": in_thread_pool(lambda pool: next(pool.imap(here, [0]))),
    "ThreadPool.imap_unordered": in_thread_pool(
        lambda pool: next(pool.imap_unordered(here, [0]))
    ),
    "Thread": in_a_thread(lambda work: threading.Thread(target=work)),
    "daemon Thread": in_a_thread(
        lambda work: threading.Thread(target=work, daemon=True)
    ),
    "Thread, overridden": in_a_thread(Overriding),
    "Thread with a run of its own": in_a_thread(with_its_own_run),
    "Timer": in_a_thread(lambda work: threading.Timer(0.0, work)),
    "multiprocessing.dummy": in_a_thread(lambda work: DummyProcess(target=work)),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_carries_the_run(way: str) -> None:
    with hangup.run() as run:
        assert WAYS[way]() is run


@pytest.mark.parametrize("way", WAYS)
def test_outside_a_run_there_is_none(way: str) -> None:
    assert WAYS[way]() is None


@pytest.mark.parametrize("way", WAYS)
def test_in_a_detached_block_there_is_none(way: str) -> None:
    with hangup.run(), hangup.detached():
        assert WAYS[way]() is None


@pytest.mark.parametrize("way", WAYS)
def test_when_it_is_taken_off_nothing_is_carried(way: str) -> None:
    threads.uninstall()
    with hangup.run():
        assert WAYS[way]() is None


def test_taking_it_off_restores_every_method() -> None:
    threads.uninstall()
    classes = (threading.Thread, ThreadPoolExecutor, ThreadPool, queue.Queue)
    before = [dict(vars(cls)) for cls in classes]
    threads.install()
    threads.install()
    assert [dict(vars(cls)) for cls in classes] != before
    threads.uninstall()
    assert [dict(vars(cls)) for cls in classes] == before


@in_loop
async def test_run_in_executor_and_asyncio_to_thread_carry_it() -> None:
    loop = asyncio.get_running_loop()
    async with hangup.run() as run:
        assert await loop.run_in_executor(None, here) is run
        assert await asyncio.to_thread(here) is run
        assert await hangup.to_thread(here) is run
    assert run.work.threads == 0


def instrumented(cls: type, name: str) -> None:
    """Wrap as opentelemetry-instrumentation-threading does."""

    def submit(wrapped: Any, _self: Any, args: Any, kwargs: Any) -> Any:
        present = context_api.get_current()
        function = args[0]

        def attached(*args: Any, **kwargs: Any) -> Any:
            token = context_api.attach(present)
            try:
                return function(*args, **kwargs)
            finally:
                context_api.detach(token)

        return wrapped(attached, *args[1:], **kwargs)

    def start(wrapped: Any, self: Any, _args: Any, _kwargs: Any) -> None:
        self._otel_context = context_api.get_current()
        wrapped()

    def run(wrapped: Any, self: Any, _args: Any, _kwargs: Any) -> None:
        token = context_api.attach(self._otel_context)
        try:
            wrapped()
        finally:
            context_api.detach(token)

    wrapper = {"submit": submit, "start": start, "run": run}[name]
    wrapt.wrap_function_wrapper(cls, name, wrapper)


METHODS: tuple[tuple[type, str], ...] = (
    (threading.Thread, "start"),
    (threading.Thread, "run"),
    (ThreadPoolExecutor, "submit"),
)


@pytest.fixture(params=["first", "last"])
def _otel(request: pytest.FixtureRequest) -> Iterator[None]:
    """OpenTelemetry's way to carry its context, put on before ours or after it."""
    if request.param == "first":
        threads.uninstall()
    for cls, name in METHODS:
        instrumented(cls, name)
    threads.install()
    yield
    for cls, name in METHODS:
        setattr(cls, name, vars(cls)[name].__wrapped__)


@pytest.mark.usefixtures("_otel")
@pytest.mark.parametrize("way", WAYS)
def test_beside_opentelemetrys_own_instrumentation_it_is_carried(way: str) -> None:
    with hangup.run() as run:
        assert WAYS[way]() is run
    assert WAYS[way]() is None


@pytest.mark.usefixtures("_otel")
def test_beside_opentelemetrys_own_a_pool_is_born_outside_too() -> None:
    test_a_pool_born_in_a_run_serves_others()


def test_a_pool_born_in_a_run_serves_others() -> None:
    """Neither its threads nor those it starts later are in the run."""
    with pytest.raises(RunCancelled), hangup.run() as stopped:
        executor, pool = ThreadPoolExecutor(1), ThreadPool(1)
        assert executor.submit(here).result(AT_MOST) is stopped
        assert pool.apply(here) is stopped
        stopped.cancel("disconnect")
        stopped.check()
    assert executor.submit(here).result(AT_MOST) is None
    assert pool.apply(here) is None
    with hangup.run() as later:
        assert executor.submit(here).result(AT_MOST) is later
        assert pool.apply(here) is later
    executor.shutdown()
    pool.close()
    pool.join()


def test_an_idle_worker_keeps_no_run_alive() -> None:
    executor, pool = ThreadPoolExecutor(1), ThreadPool(1)
    idle, born = threading.Event(), threading.Event()

    def lives_on() -> None:
        born.set()
        idle.wait(AT_MOST)

    thread = threading.Thread(target=lives_on, daemon=True)
    with hangup.run() as run:
        executor.submit(here).result(AT_MOST)
        pool.apply(here)
        thread.start()
        assert born.wait(AT_MOST)
        known = weakref.ref(run)
    del run
    executor.submit(int).result(AT_MOST)
    pool.apply(int)
    gc.collect()
    assert known() is None
    idle.set()
    thread.join(AT_MOST)
    executor.shutdown()
    pool.close()
    pool.join()


def test_only_the_run_is_carried_what_an_initializer_set_up_stays() -> None:
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="none")

    def set_up() -> None:
        mine.set("of the worker")
        decimal.getcontext().prec = 50

    with hangup.run(), ThreadPoolExecutor(1, initializer=set_up) as pool:
        mine.set("of the submitter")
        assert pool.submit(mine.get).result(AT_MOST) == "of the worker"
        assert pool.submit(lambda: decimal.getcontext().prec).result(AT_MOST) == 50


def test_the_opentelemetry_context_is_carried_and_taken_off_again() -> None:
    key = context_api.create_key("mine")

    def read() -> Any:
        return context_api.get_value(key)

    with ThreadPoolExecutor(1) as pool:
        with hangup.run():
            token = context_api.attach(context_api.set_value(key, "carried"))
            assert pool.submit(read).result(AT_MOST) == "carried"
            context_api.detach(token)
        assert pool.submit(read).result(AT_MOST) is None


# Stopping


def refused(release: threading.Event, caught: list[BaseException]) -> str:
    """Wait until released, then ask; an agent that eats every ordinary error."""
    release.wait(AT_MOST)
    try:
        hangup.check()
    except Exception as error:  # noqa: BLE001  as retry loops do
        caught.append(error)
    return "went on"


def test_on_a_pools_thread_a_refusal_is_an_ordinary_error() -> None:
    release = threading.Event()
    caught: list[BaseException] = []
    executor, pool = ThreadPoolExecutor(1), ThreadPool(1)
    with pytest.raises(RunCancelled), hangup.run() as run:
        future = executor.submit(refused, release, caught)
        result = pool.apply_async(refused, (release, caught))
        run.cancel("disconnect")
        release.set()
        assert (future.result(AT_MOST), result.get(AT_MOST)) == ("went on",) * 2
        run.check()
    assert [type(error) for error in caught] == [RunCancelled] * 2
    executor.shutdown()
    pool.close()
    pool.join()


def stopped_inside() -> None:
    """A scope on a worker thread: the stop comes to it as the signal."""
    with hangup.run(name="inner"):
        hangup.check()


def stopped_on_a_loop() -> None:
    asyncio.run(_cancelled())


async def _cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("work", [stopped_inside, stopped_on_a_loop])
def test_a_signal_that_leaves_the_work_kills_no_worker_and_hangs_no_pool(
    work: Callable[[], None],
) -> None:
    executor, pool = ThreadPoolExecutor(1), ThreadPool(1)
    with pytest.raises(RunCancelled), hangup.run() as run:
        run.cancel("disconnect")
        with pytest.raises(RunCancelled):
            executor.submit(work).result(AT_MOST)
        with pytest.raises(RunCancelled):
            pool.apply_async(work).get(AT_MOST)
        run.check()
    assert executor.submit(int, "7").result(AT_MOST) == 7
    assert pool.apply_async(int, ("7",)).get(AT_MOST) == 7
    executor.shutdown()
    pool.close()
    pool.join()


def test_a_cancel_that_is_not_ours_passes_unchanged() -> None:
    with hangup.run(), ThreadPoolExecutor(1) as pool:
        future = pool.submit(stopped_on_a_loop)
        with pytest.raises(asyncio.CancelledError):
            future.result(AT_MOST)


@pytest.fixture
def complaints(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What threads died of."""
    seen: list[Any] = []
    monkeypatch.setattr(
        threading, "excepthook", lambda args: seen.append(args.exc_type)
    )
    return seen


@pytest.mark.parametrize("work", [hangup.check, stopped_inside, stopped_on_a_loop])
def test_a_thread_ends_with_the_stop_silently(
    work: Callable[[], None], complaints: list[Any]
) -> None:
    with pytest.raises(RunCancelled), hangup.run() as run:
        run.cancel("disconnect")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(AT_MOST)
        run.check()
    assert complaints == []


@pytest.mark.parametrize("error", [KeyError, Stop, asyncio.CancelledError])
def test_what_else_a_thread_raises_is_told_as_ever(
    error: type[BaseException], complaints: list[Any]
) -> None:
    def fail() -> None:
        raise error("x") if error is not Stop else Stop("0" * 32, "other", "killed")

    with hangup.run():
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join(AT_MOST)
    assert complaints == [error]


@pytest.mark.parametrize("daemon", [True, False])
def test_a_thread_that_is_left_of_a_stopped_run_goes_out_of_it_by_a_queue(
    daemon: bool,  # noqa: FBT001
) -> None:
    """What it still does is refused; who then takes work from a queue serves others."""
    jobs: queue.Queue[Callable[[], object]] = queue.Queue()
    go = threading.Event()
    seen: list[Any] = []

    def work() -> None:
        go.wait(AT_MOST)
        for _ in range(3):
            try:
                hangup.check()
            except Exception as error:  # noqa: BLE001  to look at it
                seen.append(type(error))
            else:
                seen.append(here())
            jobs.get(timeout=AT_MOST)()

    thread = threading.Thread(target=work, daemon=daemon)
    with pytest.raises(RunCancelled), hangup.run() as run:
        thread.start()
        run.cancel("disconnect")
        run.check()
    go.set()
    with hangup.run(name="later"):
        for _ in range(3):
            jobs.put(int)
        thread.join(AT_MOST)
    assert seen == [RunCancelled, None, None]


def test_a_queue_worker_born_in_a_stopped_run_serves_each_job_in_its_own() -> None:
    jobs: queue.Queue[str | None] = queue.Queue()
    served: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        while (name := jobs.get()) is not None:
            with hangup.run(name=name) as run:
                hangup.check()
                served.put(run)

    worker = threading.Thread(target=work, daemon=True)
    with pytest.raises(RunCancelled), hangup.run() as stopped:
        worker.start()
        jobs.put("first")
        assert served.get(timeout=AT_MOST).parent is stopped
        stopped.cancel("disconnect")
        stopped.check()
    jobs.put("later")
    later = served.get(timeout=AT_MOST)
    assert (later.name, later.parent) == ("later", None)
    jobs.put(None)
    worker.join(AT_MOST)


def test_an_idle_queue_worker_keeps_no_stopped_run_alive() -> None:
    jobs: queue.Queue[None] = queue.Queue()
    told = threading.Event()

    def work() -> None:
        told.set()
        jobs.get()

    worker = threading.Thread(target=work, daemon=True)
    with pytest.raises(RunCancelled), hangup.run() as run:
        worker.start()
        assert told.wait(AT_MOST)
        while not any(one._waiting for one in threads._births.living):
            time.sleep(0)
        run.cancel("disconnect")
        run.check()
    known = weakref.ref(run)
    del run
    gc.collect()
    assert known() is None
    jobs.put(None)
    worker.join(AT_MOST)


KEY = context_api.create_key("a span, say")


def context_in_a_thread(*, daemon: bool, latent: bool) -> list[object]:
    """What a queue worker has of the OpenTelemetry context, in a run and after it."""
    jobs: queue.Queue[None] = queue.Queue()
    seen: queue.Queue[object] = queue.Queue()

    def work() -> None:
        for _ in range(2):
            jobs.get()
            seen.put(context_api.get_value(KEY))

    thread = threading.Thread(target=work, daemon=daemon)
    with RunScope(latent=latent):
        token = context_api.attach(context_api.set_value(KEY, "span"))
        thread.start()
        context_api.detach(token)
        jobs.put(None)
        found = [seen.get(timeout=AT_MOST)]
    jobs.put(None)
    found.append(seen.get(timeout=AT_MOST))
    thread.join(AT_MOST)
    return found


def test_a_thread_of_an_agent_stands_in_its_trace_until_it_serves_others() -> None:
    for daemon in (True, False):
        found = context_in_a_thread(daemon=daemon, latent=False)
        assert found == ["span", None]


def test_a_daemon_that_an_ordinary_request_starts_is_lent_no_span() -> None:
    """A worker of a connection pool, say: it lives on, and traces of its own."""
    assert context_in_a_thread(daemon=True, latent=True) == [None, None]
    assert context_in_a_thread(daemon=False, latent=True) == ["span", None]


def test_out_of_a_stopped_child_a_thread_goes_to_its_parent() -> None:
    jobs: queue.Queue[None] = queue.Queue()
    seen: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        for _ in range(2):
            jobs.get()
            seen.put(here())

    worker = threading.Thread(target=work)
    with hangup.run(name="parent") as parent:
        with pytest.raises(RunCancelled), hangup.run(name="child") as child:
            worker.start()
            jobs.put(None)
            assert seen.get(timeout=AT_MOST) is child
            child.cancel("disconnect")
            child.check()
        jobs.put(None)
        assert seen.get(timeout=AT_MOST) is parent
        worker.join(AT_MOST)


def test_a_daemon_of_a_delivered_child_belongs_to_its_parent_while_that_is_open() -> (
    None
):
    go = [threading.Event(), threading.Event()]
    seen = [threading.Event(), threading.Event()]
    runs: list[Any] = []

    def work() -> None:
        for ask, answered in zip(go, seen, strict=True):
            ask.wait(AT_MOST)
            runs.append(here())
            answered.set()

    with hangup.run(name="parent") as parent:
        with hangup.run(name="child"):
            threading.Thread(target=work, daemon=True).start()
        go[0].set()
        assert seen[0].wait(AT_MOST)
    go[1].set()
    assert seen[1].wait(AT_MOST)
    assert runs == [parent, None]


# Settling


def settled(
    start: Callable[[Callable[[], object]], object],
) -> list[tuple[object, ...]]:
    """Stop a run whose thread goes on and on; return what was reported."""
    clock = FakeClock()
    begun, release = threading.Event(), threading.Event()

    def blocks() -> None:
        begun.set()
        release.wait(AT_MOST)

    with witness() as seen:
        with pytest.raises(RunCancelled), hangup.run(name="r", clock=clock) as run:
            started = start(blocks)
            assert begun.wait(AT_MOST)
            run.cancel("disconnect")
            run.check()
        clock.advance(5.0)
        found = seen.of("settled")
        release.set()
    if isinstance(started, threading.Thread):
        started.join(AT_MOST)
    else:
        started.result(AT_MOST)  # type: ignore[attr-defined]
    assert run.work.threads == 0
    return found


def start_thread(work: Callable[[], object], *, daemon: bool = False) -> Any:
    thread = threading.Thread(target=work, daemon=daemon)
    thread.start()
    return thread


def test_what_cannot_be_stopped_is_reported_as_not_stopped() -> None:
    pool = ThreadPoolExecutor(1)
    assert settled(pool.submit) == [("settled", "r", 1)]
    pool.shutdown()
    assert settled(start_thread) == [("settled", "r", 1)]


def test_a_daemons_life_alone_keeps_no_run_from_settling() -> None:
    """It may be a worker that was born here: only its open calls say what it does."""
    start = functools.partial(start_thread, daemon=True)
    assert settled(start) == [("settled", "r", 0)]


@in_loop
async def test_to_thread_is_counted_once() -> None:
    release = threading.Event()
    async with hangup.run() as run:
        task = asyncio.create_task(hangup.to_thread(release.wait, AT_MOST))
        await asyncio.sleep(0)
        assert run.work.threads == 1
        inside = await hangup.to_thread(in_executor)
        assert inside is run
        release.set()
        await task
    assert run.work.threads == 0


@in_loop
async def test_to_thread_on_a_pool_that_is_shut_down_leaves_nothing_counted() -> None:
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(1)
    loop.set_default_executor(pool)
    pool.shutdown()
    async with hangup.run() as run:
        with pytest.raises(RuntimeError):
            await hangup.to_thread(int)
        assert run.work.threads == 0


# Edges


def test_a_thread_that_cannot_start_is_left_as_it_was() -> None:
    with hangup.run():
        thread = threading.Thread(target=int)
        thread.start()
        thread.join(AT_MOST)
        assert "run" not in vars(thread)
        with pytest.raises(RuntimeError):
            thread.start()
        assert "run" not in vars(thread)


def test_what_is_submitted_in_a_cleanup_is_behind_its_shield() -> None:
    with (
        pytest.raises(RunCancelled),
        ThreadPoolExecutor(1) as pool,
        hangup.run() as run,
    ):
        try:
            run.cancel("disconnect")
            hangup.check()
        finally:
            with hangup.cleanup():
                assert pool.submit(hangup.check).result(AT_MOST) is None


def test_a_library_thread_that_serves_everybody_is_not_of_the_run() -> None:
    """The listener of the standard library's logging, say: born lazily, for all."""
    from logging.handlers import QueueListener  # noqa: PLC0415

    runs: list[Any] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            runs.append(here())

    waiting: queue.Queue[Any] = queue.Queue()
    with hangup.run():
        listener = QueueListener(waiting, Handler())
        listener.start()
        waiting.put(logging.makeLogRecord({}))
        listener.stop()
    assert runs == [None]


def test_outside_any_run_the_cost_is_one_check() -> None:
    """A submit outside runs hands over the very function it was given."""
    given: list[Any] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self) -> None:
            super().__init__(1)
            self._work_queue = type("Q", (), {"put": given.append})()
            self._adjust_thread_count = lambda: None  # type: ignore[method-assign]

    Pool().submit(time.monotonic)
    with hangup.run():
        Pool().submit(time.monotonic)
    assert given[0].fn is time.monotonic
    assert given[1].fn is not time.monotonic
