"""Threads of which one moves at a time, and may lose its turn at every line.

At each line of the watched modules, and wherever a lock is taken, somebody chooses (see
:mod:`support.schedules`) which thread goes on. So a race between two lines is found by
looking, not by luck, and found again from its schedule. Locks that the watched modules
make meanwhile are ours: a thread that waits for one gives its turn away.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from hangup.core import registry
from hangup.core.token import new_token_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, ModuleType

    from support.schedules import Choices

PLANTED: set[str] = set()
"""Names of functions where a thread may lose its turn, wherever they stand."""

_PATIENCE = 20.0
"""Seconds without a turn after which a thread gives up: the test has a fault."""


class Lock:
    """A lock, also a reentrant one, that gives the turn away where it is taken."""

    def __init__(self, threads: Threads, *, reentrant: bool = False) -> None:
        self._threads = threads
        self._reentrant = reentrant
        self._owner: int | None = None
        self._depth = 0

    def acquire(self) -> bool:
        me = threading.get_ident()
        if self._owner == me and not self._reentrant:
            raise AssertionError("a thread waits for a lock that it holds")
        while self._owner not in (None, me):
            self._threads.give_way()
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Threads:
    """Runs functions beside each other, as chosen.

    Args:
        choices: Who is asked.
        modules: Where a thread may lose its turn.
        opcodes: At every operation, not only at every line.
    """

    def __init__(
        self,
        choices: Choices,
        modules: Sequence[ModuleType],
        *,
        opcodes: bool = False,
    ) -> None:
        self._choices = choices
        self._files = {module.__file__ for module in modules}
        self._modules = modules
        self._opcodes = opcodes
        self._turns: list[threading.Semaphore] = []
        self._alive: list[int] = []
        self._errors: list[BaseException] = []
        self._current = 0

    def run(self, *bodies: Callable[[], object]) -> None:
        """Run every body to its end; raises the first error of any."""
        self._turns = [threading.Semaphore(0) for _ in bodies]
        self._alive = list(range(len(bodies)))
        threads = [
            threading.Thread(target=self._live, args=(me, body), daemon=True)
            for me, body in enumerate(bodies)
        ]
        with self.ours():
            for thread in threads:
                thread.start()
            self._current = self._choices.choose(len(bodies))
            self._turns[self._current].release()
            for thread in threads:
                thread.join(_PATIENCE)
        if self._errors:
            raise self._errors[0]
        assert not self._alive, "the threads wait for each other"

    def give_way(self) -> bool:
        """Let another thread go on; False if there is none."""
        me, others = self._current, [one for one in self._alive if one != self._current]
        if not others:
            return False
        self._pass_to(others[self._choices.choose(len(others))])
        self._wait(me)
        return True

    def pause(self) -> None:
        """Lose the turn here, if so chosen."""
        me, others = self._current, [one for one in self._alive if one != self._current]
        choice = self._choices.choose(1 + len(others))
        if choice:
            self._pass_to(others[choice - 1])
            self._wait(me)

    def _pass_to(self, other: int) -> None:
        self._current = other
        self._turns[other].release()

    def _wait(self, me: int) -> None:
        if not self._turns[me].acquire(timeout=_PATIENCE):
            raise AssertionError("no turn came")

    def _live(self, me: int, body: Callable[[], object]) -> None:
        before = sys.gettrace()
        try:
            self._wait(me)
            sys.settrace(self._trace)
            body()
        except BaseException as error:  # noqa: BLE001  the one who runs us raises it
            self._errors.append(error)
        finally:
            sys.settrace(before)
            self._alive.remove(me)
            if self._alive:
                self._pass_to(self._alive[0])

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        if name not in self._files and frame.f_code.co_name not in PLANTED:
            return None
        if frame.f_code.co_name == new_token_id.__name__:
            return (
                None  # draws until it likes what it drew: as many steps as that takes
            )
        if self._opcodes:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event in {"line", "opcode"}:
            self.pause()
        return self._step

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """Let the watched modules, and the registry, take locks of ours."""
        plain = {
            name: getattr(threading, name)
            for name in ("get_ident", "Thread", "TIMEOUT_MAX", "Condition")
        }
        ours = SimpleNamespace(
            **plain,
            Lock=lambda: Lock(self),
            RLock=lambda: Lock(self, reentrant=True),
        )
        watched = [one for one in self._modules if hasattr(one, "threading")]
        kept = registry._registry.lock
        for module in watched:
            module.threading = ours  # type: ignore[attr-defined]
        registry._registry.lock = Lock(self, reentrant=True)  # type: ignore[assignment]
        try:
            yield
        finally:
            registry._registry.lock = kept
            for module in watched:
                module.threading = threading  # type: ignore[attr-defined]
