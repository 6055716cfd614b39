"""Every order in which things may happen: an event loop whose order is chosen.

Written here, because what is on PyPI (detangle, simloop) orders the callbacks of a loop
but not the lines of two threads (see :mod:`support.interleave`), and brings a clock of
its own, where hangup takes one.

A schedule is the list of choices made on the way. Most are 0, what asyncio would have
done, so it is written as ``{position: choice}`` of the others; a failure is shrunk, and
prints what :func:`replay` takes.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
from typing import TYPE_CHECKING, Any

from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    Scenario = Callable[["Choices"], None]
    Schedule = Mapping[int, int]

_MOST_STEPS = 20_000


class Choices:
    """Makes the choices of one run of a scenario, and remembers them.

    Args:
        given: What to choose, by position; 0 elsewhere.
        seed: Choose at random instead, with this seed.
        chance: How often not 0, with a seed.
    """

    def __init__(
        self,
        given: Schedule | None = None,
        seed: int | None = None,
        chance: float = 0.0,
    ) -> None:
        self._given = given or {}
        self._random = None if seed is None else random.Random(seed)  # noqa: S311  no secret
        self._chance = chance
        self.taken: list[int] = []
        self.options: list[int] = []

    def choose(self, options: int) -> int:
        """Return one of ``range(options)``. One option is no choice."""
        if options < 2:
            return 0
        choice = min(self._given.get(len(self.taken), 0), options - 1)
        if self._random is not None and self._random.random() < self._chance:
            choice = self._random.randrange(options)
        self.taken.append(choice)
        self.options.append(options)
        return choice

    @property
    def schedule(self) -> dict[int, int]:
        """What was chosen other than 0."""
        return {at: choice for at, choice in enumerate(self.taken) if choice}


class ScheduleError(AssertionError):
    """A schedule on which the scenario fails.

    Attributes:
        schedule: The shortest found, for :func:`replay`.
    """

    def __init__(self, schedule: Schedule, error: BaseException) -> None:
        super().__init__(f"replay(scenario, {dict(schedule)}) fails with {error!r}")
        self.schedule = schedule


def replay(scenario: Scenario, schedule: Schedule) -> Choices:
    """Run the scenario on one schedule."""
    choices = Choices(schedule)
    play(scenario, choices)
    return choices


def play(scenario: Scenario, choices: Choices) -> None:
    """Run the scenario; nothing of an earlier one is collected in the middle of it.

    A collection comes when it likes, and finalisers take steps of their own: the same
    schedule would not be the same any more.
    """
    gc.disable()
    try:
        scenario(choices)
    finally:
        gc.enable()


class Explorer:
    """Runs a scenario on many schedules, no schedule twice.

    Attributes:
        seen: The schedules so far.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.seen: set[tuple[tuple[int, int], ...]] = set()

    def systematic(self, most: int, *, bound: int = 2, seed: int = 0) -> None:
        """Depart from asyncio's order in one place, then in two, up to ``bound``.

        Every place comes before any pair of places; where there are too many, the
        seed says which.
        """
        pick, budget = random.Random(seed), len(self.seen) + most  # noqa: S311  no secret
        level: list[dict[int, int]] = [{}]
        for _ in range(bound + 1):
            further: list[dict[int, int]] = []
            for given in level:
                if len(self.seen) >= budget:
                    return
                choices = self._try(Choices(given))
                begin = max(given, default=-1) + 1
                room = (budget - len(self.seen)) * 4
                places = [
                    (at, other)
                    for at in range(begin, len(choices.options))
                    for other in range(1, choices.options[at])
                ]
                further += [given | {at: other} for at, other in places]
                if len(further) > 2 * room and len(given) > 0:
                    further = pick.sample(further, room)
            pick.shuffle(further)
            level = further

    def seeded(self, seeds: range, chance: float) -> None:
        """Depart from asyncio's order at random, once for each seed."""
        for seed in seeds:
            self._try(Choices(seed=seed, chance=chance))

    def _try(self, choices: Choices) -> Choices:
        try:
            play(self._scenario, choices)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  any fault
            schedule, least = self._shrunk(choices.schedule, error)
            raise ScheduleError(schedule, least) from least
        self.seen.add(tuple(choices.schedule.items()))
        return choices

    def _shrunk(
        self, schedule: dict[int, int], error: BaseException
    ) -> tuple[dict[int, int], BaseException]:
        for at in sorted(schedule, reverse=True):
            less = {place: choice for place, choice in schedule.items() if place != at}
            try:
                play(self._scenario, Choices(less))
            except (Exception, asyncio.CancelledError) as still:  # noqa: BLE001  fails with less: go on from there
                schedule, error = less, still
        return schedule, error


class Watched(asyncio.Task[Any]):
    """A task that remembers how it was cancelled.

    Attributes:
        cancels: What ``cancelling()`` was before each cancel.
    """

    cancels: tuple[int, ...] = ()

    def cancel(self, msg: Any | None = None) -> bool:
        level = self.cancelling()
        cancelled = super().cancel(msg)
        if cancelled:
            self.cancels = (*self.cancels, level)
        return cancelled


class ScheduledLoop(asyncio.BaseEventLoop):
    """An event loop that asks at every turn what comes next. Nothing sleeps.

    What comes next is a callback that is ready, an event from outside (see :meth:`may`)
    or the next timer. What one callback has scheduled stays in its order, as asyncio
    promises; between different ones any order may be.

    Args:
        choices: Who is asked.
        clock: Of the loop and of the runs in it.

    Attributes:
        complaints: What was handed to the exception handler.
        hurries: How often something else came while a callback was ready.
        tasks: Every task that was made here.
    """

    def __init__(self, choices: Choices, clock: FakeClock | None = None) -> None:
        super().__init__()
        self.clock = FakeClock() if clock is None else clock
        self.complaints: list[dict[str, Any]] = []
        self.tasks: list[Watched] = []
        self.hurries = 0
        self.on_idle: Callable[[], bool] | None = None
        self._choices = choices
        self._likely: list[Callable[[], object]] = []
        self._unlikely: list[Callable[[], object]] = []
        self._quiet: list[asyncio.Future[None]] = []
        self._batches: dict[int, int] = {}
        self._steps = 0
        self.set_exception_handler(lambda _, context: self.complaints.append(context))
        factory: Any = self._watched
        self.set_task_factory(factory)

    def may(
        self, event: Callable[[], object], *, unlikely: bool = False
    ) -> Callable[[], None]:
        """Let ``event`` happen at any time from now on, once; unlikely: not by default.

        Returns:
            A function that takes it back.
        """
        events = self._unlikely if unlikely else self._likely
        events.append(event)

        def withdraw() -> None:
            if event in events:
                events.remove(event)

        return withdraw

    async def quiet(self) -> None:
        """Wait until nothing is ready: what goes on from there needs time or events."""
        waiter = self.create_future()
        self._quiet.append(waiter)
        await waiter

    @property
    def timers(self) -> int:
        """How many timers are armed, on the clock or on the loop."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return self.clock.pending + sum(not one.cancelled() for one in scheduled)

    # What BaseEventLoop leaves to its subclasses

    def time(self) -> float:
        return self.clock.monotonic()

    def _write_to_self(self) -> None:
        """Nothing sleeps here that would have to be woken."""

    def _process_events(self, event_list: object) -> None:
        """There is no selector."""

    def _watched(
        self, loop: Any, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> Any:
        task = Watched(coro, loop=loop, **options)
        self.tasks.append(task)
        return task

    def _call_soon(self, *args: Any) -> Any:
        handle = super()._call_soon(*args)  # type: ignore[misc]
        self._batches[id(handle)] = self._steps
        return handle

    def _run_once(self) -> None:
        self._steps += 1
        assert self._steps < _MOST_STEPS, "it does not end"
        ready: Any = self._ready  # type: ignore[attr-defined]
        while not ready and self.on_idle is not None and self.on_idle():
            pass
        if not ready and self._quiet:
            for waiter in self._quiet:
                if not waiter.done():
                    waiter.set_result(None)
            self._quiet.clear()
            return
        first: dict[int, Any] = {}
        for handle in ready:
            first.setdefault(self._batches.get(id(handle), 0), handle)
        handles = list(first.values())
        time = [self._turn_time] if self._due() is not None else []
        events = [*self._likely, *time, *self._unlikely]
        assert handles or events, "everything waits, and nothing can come"
        choice = self._choices.choose(len(handles) + len(events))
        if choice < len(handles):
            self._run_handle(handles[choice])
        else:
            self.hurries += bool(handles)
            self._let_happen(events[choice - len(handles)])

    def _run_handle(self, handle: Any) -> None:
        self._ready.remove(handle)  # type: ignore[attr-defined]
        self._batches.pop(id(handle), None)
        if not handle.cancelled():
            handle._run()

    def _let_happen(self, event: Callable[[], object]) -> None:
        for events in (self._likely, self._unlikely):
            if event in events:
                events.remove(event)
        contextvars.Context().run(event)  # of nobody, as what comes from outside is

    # Time

    def _due(self) -> float | None:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)._scheduled = False
        timers = [when for when, _, one in self.clock._timers if one.callback]
        return min([*timers, *(one.when() for one in scheduled[:1])], default=None)

    def _turn_time(self) -> None:
        due = self._due()
        assert due is not None
        self.clock.advance(max(0.0, due - self.clock.monotonic()))
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].when() <= self.clock.monotonic():
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            self._batches[id(handle)] = self._steps
            self._ready.append(handle)  # type: ignore[attr-defined]


def run(
    main: Callable[[ScheduledLoop], Coroutine[Any, Any, None]],
    choices: Choices,
    clock: FakeClock | None = None,
) -> ScheduledLoop:
    """Run ``main(loop)`` on a loop of its own, until nothing is ready any more."""
    loop = ScheduledLoop(choices, clock)
    nowhere = contextvars.Context()
    try:
        nowhere.run(loop.run_until_complete, main(loop))
        nowhere.run(loop.run_until_complete, loop.quiet())
        nowhere.run(loop.run_until_complete, loop.shutdown_asyncgens())
        left = [task for task in loop.tasks if not task.done()]
        assert left == []
    finally:
        for task in loop.tasks:
            if not task.done():  # or the garbage collector would speak of it elsewhere
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
    return loop
