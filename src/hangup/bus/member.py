"""This process on the bus: one thread listens, one speaks.

The listener subscribes, then has everything re-read: what was said while nobody
listened is in the markers. The speaker asks, claims and answers, on connections of its
own, so that a stop never waits behind a question. Neither ever ends by a fault: the bus
is down meanwhile, and both try again. What ends one all the same (no thread can be
started, an exception that was thrown into it) is noticed by the other, by the next run
and by who reads whether the bus is up; until it runs again, it is not.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, TypeVar

from hangup.bus import messages
from hangup.bus.base import BusDown, Holder
from hangup.bus.live import row_of
from hangup.bus.threads import Threads
from hangup.bus.timing import Clock, Pause, chance
from hangup.core.guard import fault, guarded

if TYPE_CHECKING:
    from hangup.bus.base import Claim, Subscription, Transport
    from hangup.bus.live import Live
    from hangup.bus.messages import Listing, Stop
    from hangup.core.remote import Verdict
    from hangup.core.run import Run

T = TypeVar("T")

_logger = logging.getLogger("hangup")

RECONCILE: Final = 30.0
"""Seconds between two times that everything is re-read, give or take a half."""
_TURN: Final = 1.0  # seconds until a thread looks whether all is as it should be
_FAREWELL: Final = 1.0  # seconds
_AFTER_YOU: Final = 0.002  # seconds
_HAND_OVER: Final = 0.001
"""Seconds in which the loop that is to stop gets the interpreter from us."""
_AT_A_TIME: Final = 500
_MOST_LISTED: Final = 5_000
_MOST_WAITING: Final = 1_000
_MOST_PARTS: Final = 4


class Member:
    """Connects the live runs of this process to a bus. Thread-safe.

    Args:
        transport: The bus.
        live: The runs.
        reconcile: Seconds between two times that everything is re-read.
    """

    def __init__(
        self, transport: Transport, live: Live, *, reconcile: float = RECONCILE
    ) -> None:
        self._transport = transport
        self._live = live
        self._reconcile = reconcile
        self._clock = Clock(transport)
        self._host = socket.gethostname()
        works = {"listen": self._listen, "speak": self._speak}
        self._threads = Threads(works, self._fell)
        live.on_change = self._changed
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.process: str = f"{self._host}:{os.getpid()}"
        self._ended = threading.Event()
        self._wake = threading.Event()
        # Bounded: who asked asks again, and who was not answered knows it.
        self._obeyed: deque[tuple[str, Run]] = deque(maxlen=_MOST_WAITING)
        self._asked_again: deque[tuple[str, str]] = deque(maxlen=_MOST_WAITING)
        # What stopped runs were acknowledged with: they may be gone when somebody asks,
        # and an acknowledgement may be lost with the bus.
        self._acknowledged: OrderedDict[str, list[str]] = OrderedDict()
        self._listings: deque[Listing] = deque(maxlen=_MOST_WAITING)
        self._listening: bool | None = None
        self._speaking = True
        self._obeying: set[int] = set()  # threads
        self._answering = False
        self._due = 0.0
        self._clock.forget()

    # The process

    @property
    def up(self) -> bool | None:
        """Whether the bus is reached; None while that has not been tried."""
        if not self.start():
            return False
        if self._listening is None:
            return None
        return self._listening and self._speaking

    def start(self) -> bool:
        """Start the threads, where they do not run. Idempotent; blocks for nothing.

        Returns:
            Whether they run.
        """
        if self._ended.is_set():
            return False
        if self._threads.start():
            return True
        self._live.tell_of_next()
        return False

    def _fell(self, name: str) -> None:
        """Note that a thread has ended; the other one starts it again."""
        if name == "listen":
            self._listening = False
            self._wake.set()
        else:
            self._silent()

    def farewell(self) -> None:
        """Say what is still to be said: the process ends. Blocks a second at most."""
        until = time.monotonic() + _FAREWELL
        while self._speaking and time.monotonic() < until:
            owed = self._obeying or self._obeyed or self._asked_again
            if not (owed or self._answering):
                return
            time.sleep(_AFTER_YOU)

    def stop(self) -> None:
        """End the threads, which takes them a second or two; does not wait."""
        self._ended.set()
        self._wake.set()
        if not self._threads.whole:
            self._transport.close()

    def after_fork(self) -> None:
        """Begin anew in a child process, with threads once it has a run or is asked."""
        ended = self._ended.is_set()
        self._threads.after_fork()
        self._begin_anew()
        if ended:
            self._ended.set()
        self._transport.after_fork()
        self._live.after_fork()

    def _changed(self) -> None:
        self._wake.set()
        self.start()

    # Listening

    def _listen(self) -> None:
        pause = Pause()
        ended = self._ended
        while not ended.is_set():
            subscription = None
            try:
                subscription = self._transport.subscribe()
                pause.reset()
                self._hears()
                while not ended.is_set():
                    message = subscription.receive(_TURN)
                    if message is not None:
                        guarded(self._handle, message)
                    self.start()
            except BaseException as error:  # noqa: BLE001  it never ends by a fault
                self._deaf(error)
                _loud(error)
            finally:
                _close(subscription)
            ended.wait(pause.length())

    def _hears(self) -> None:
        before, self._listening = self._listening, True
        if before is False:
            _logger.info("hangup reaches its bus again")
        # Subscribed first, read second: nothing falls between.
        self._due = 0.0
        self._wake.set()

    def _deaf(self, error: BaseException) -> None:
        if self._listening is not False and not self._ended.is_set():
            _logger.warning(
                "hangup cannot reach its bus (%s); work goes on, under its own "
                "deadline",
                str(error) or type(error).__name__,
            )
        self._listening = False

    def _handle(self, message: str) -> None:
        said = messages.read(message)
        if isinstance(said, messages.Stop):
            self._stop_run(said)
        elif isinstance(said, messages.Held):
            self._live.heard(said.key, Holder(said.rank, said.run_id))
        elif isinstance(said, messages.Listing):
            self._listings.append(said)
            self._wake.set()

    def _stop_run(self, stop: Stop) -> None:
        run_id = stop.marker.run_id
        runs = self._live.holding(run_id)
        self._obey(runs, stop)
        if not runs:  # perhaps any more
            self._asked_again.append((stop.reply, run_id))
            self._wake.set()

    def _obey(self, runs: list[Run], stop: Stop) -> None:
        """Stop runs as an operator said. Acts in every mode; idempotent."""
        verdict, here = stop.marker.verdict, threading.get_ident()
        self._obeying.add(here)
        try:
            for run in runs:
                try:
                    if verdict.binds(run):
                        guarded(run.cancel, verdict.cause, verdict.detail)
                        time.sleep(_HAND_OVER)
                finally:  # whatever a callback of the application throws at us
                    # The speaker's: every step here delays the loop that is to stop.
                    self._obeyed.append((stop.reply, run))
                    self._wake.set()
        finally:
            self._obeying.discard(here)

    def _acknowledge(self, run: Run) -> str | None:
        """Return what the holder of a run answers; None where it has delivered it."""
        abandonment = run.token.abandonment
        if abandonment is None:
            return None
        return json.dumps(
            {
                "process": self.process,
                "run": run.id,
                "name": run.name,
                "state": run.state,
                "cause": abandonment.cause.value,
                "joined": run.joined,
            }
        )

    # Speaking

    def _speak(self) -> None:
        pause = Pause()
        ended = self._ended
        while not ended.is_set():
            try:
                self._wake.wait(self._quiet_for())
                if ended.is_set():
                    break
                # The interpreter belongs to the loops that are to stop now.
                time.sleep(_AFTER_YOU)
                self._wake.clear()
                self.start()
                self._turn()
            except BaseException as error:  # noqa: BLE001  it never ends by a fault
                self._silent()
                _loud(error)
                ended.wait(pause.length())
                self._due = 0.0  # everything again: what was under way is lost
            else:
                self._speaking = True
                pause.reset()
        self._transport.close()

    def _quiet_for(self) -> float:
        """Return the seconds until the speaker has something to do by itself."""
        wait = max(0.0, self._due - time.monotonic())
        return wait if self._threads.whole else min(wait, _TURN)

    def _silent(self) -> None:
        self._speaking = self._answering = False
        self._clock.forget()
        self._due = 0.0

    def _turn(self) -> None:
        """Say all there is to say."""
        self._answering = True
        while self._obeyed:
            reply, run = self._obeyed.popleft()
            text = self._acknowledge(run)
            if text is not None:
                self._remember(run.id, text)
                self._answer(reply, [text])
        while self._asked_again:
            reply, run_id = self._asked_again.popleft()
            self._answer(reply, self._acknowledged.get(run_id, []))
        self._answering = False
        while self._listings:
            self._list(self._listings.popleft())
        if time.monotonic() >= self._due:
            # Before it is read: who asks for another meanwhile is not forgotten.
            wait = self._reconcile * chance.uniform(0.5, 1.5)
            self._due = time.monotonic() + wait
            self._clock.ask()
            self._claim(self._live.take_claims(self._clock.at, all_of_them=True))
            self._live.take_unread()
            self._read([run.id for run in self._live.roots()])
            return
        self._claim(self._live.take_claims(self._clock.at))
        self._read(self._live.take_unread())

    def _claim(self, claims: list[Claim]) -> None:
        for some in _in_pieces(claims):
            self._live.claimed(some, self._transport.claim(some))

    def _read(self, run_ids: list[str]) -> None:
        for some in _in_pieces(run_ids):
            for text in self._transport.markers(some):
                stop = messages.read_stop(text)
                if stop is not None:
                    self._obey(self._live.holding(stop.marker.run_id), stop)

    def _answer(self, reply: str, texts: list[str]) -> None:
        if reply and texts:
            self._transport.answer(reply, texts)

    def _remember(self, run_id: str, text: str) -> None:
        texts = self._acknowledged.setdefault(run_id, [])
        if text not in texts:
            texts.append(text)
        del texts[:-_MOST_PARTS]
        self._acknowledged.move_to_end(run_id)
        while len(self._acknowledged) > _MOST_WAITING:
            self._acknowledged.popitem(last=False)

    def _list(self, listing: Listing) -> None:
        runs = self._live.roots(listing.prefix)
        rows = [row_of(run)._asdict() for run in runs[:_MOST_LISTED]]
        pieces = list(_in_pieces(rows)) or [[]]
        answers = [
            {
                "process": self.process,
                "runs": piece,
                "last": number == len(pieces),
                "more": max(0, len(runs) - _MOST_LISTED),
            }
            for number, piece in enumerate(pieces, 1)
        ]
        self._transport.answer(listing.reply, [json.dumps(one) for one in answers])

    # Asking

    def verdict(self, run_id: str) -> Verdict | None:
        """See :class:`hangup.core.remote.Reach`."""
        if self._listening is False:
            return None  # known to be down: nobody waits to learn it again
        try:
            stop = messages.read_stop(self._transport.markers([run_id])[0])
        except BusDown:
            return None
        return None if stop is None else stop.marker.verdict


def _in_pieces(things: list[T]) -> list[list[T]]:
    return [
        things[start : start + _AT_A_TIME]
        for start in range(0, len(things), _AT_A_TIME)
    ]


def _close(subscription: Subscription | None) -> None:
    if subscription is not None:
        guarded(subscription.close)


def _loud(error: BaseException) -> None:
    """Report what no bus that is down does: a fault of ours."""
    if not isinstance(error, BusDown):
        fault("hangup.bus", error)
