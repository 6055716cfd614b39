"""Background responses: what the provider goes on with, whoever hangs up.

OpenAI answers a request with ``background: true`` at once, or streams, and generates to
the end whatever its caller does; what it used is told to those who ask again. So such
a call stays open when its answer is over, until an answer that passes says what it
used. If its run is stopped before that, the provider is told to cancel (``recall``).
"""

from __future__ import annotations

import atexit
import json
import os
import re
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hangup.clients import recall
from hangup.core import registry
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.current import position
from hangup.core.guard import guarded
from hangup.core.interrupt import awaited_outside
from hangup.core.tree import current_task
from hangup.otel import exchanges
from hangup.otel.call import Exchange
from hangup.spend.dialects import Provider
from hangup.spend.meter import Meter
from hangup.spend.modelcall import parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangup.core.clock import Timer
    from hangup.core.run import Run

LONG: Final = 600.0
"""Seconds without a sign after which nobody of a closed run will ask any more.

A response that is not to be stored is kept about as long, for those who poll.
"""
_MOST: Final = 10_000
_WANTED: Final = re.compile(rb'"background"\s*:\s*true')
_ID: Final = re.compile(r"[\w-][\w.:-]{0,255}", re.ASCII)


class _Response:
    """One background response whose fate is not known."""

    def __init__(self, exchange: Exchange, line: recall.Line) -> None:
        here, task = position(), current_task()
        above, run = exchange.parent, exchange.run
        self.exchange = exchange
        self.line = line
        self.clock = SYSTEM_CLOCK if run is None else run.clock
        self.task = None if task is None else weakref.ref(task)
        # What must be finished is not cancelled either.
        self.shielded = (here is not None and here.shield is not None) or (
            above is not None and above.protected
        )
        self.over = False  # the answer to its request has been read, or was cut
        self.asked = False  # to be cancelled, by us or by the application
        self.told: Meter | None = None
        self.seen = 0.0
        self.timer: Timer | None = None

    @property
    def id(self) -> str:
        """Its id at the provider; "" where that is not known, or no id."""
        found = self.exchange.meter.response_id or ""
        return found if _ID.fullmatch(found) else ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others."""
        return self.line.origin, self.id

    def serves_others(self) -> bool:
        """Whether somebody outside its run waits for the task that asked for it.

        To be called where that task runs.
        """
        task = None if self.task is None else self.task()
        run = around = self.exchange.run
        if run is None or task is None or task.done():
            return False
        while around is not None:
            if around.work.task is task:
                return False
            around = around.parent
        return awaited_outside(task, run.root.work.outside)

    def final(self, told: Meter) -> Meter:
        """Return a meter of the whole call, by an answer that is final."""
        before = self.exchange.meter
        body = {
            "id": told.response_id,
            "model": told.response_model,
            "status": "completed",
            "usage": told.raw_usage,
        }
        # When the text came says nothing of what was generated past the cut.
        meter = Meter(before.provider, before.call, started_at=before.started_at)
        meter.first_token_at = before.first_token_at
        now = self.clock.monotonic()
        meter.feed(json.dumps(body).encode(), now)
        meter.close(now)
        return meter


class _Responses(registry.RunObserver):
    """The background responses whose fate is not known. Thread-safe, bounded."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child must: those calls are its parent's."""
        self._lock = threading.Lock()
        self._open: dict[int, _Response] = {}
        self.by_key: dict[tuple[str, str], _Response] = {}

    def of(self, exchange: Exchange) -> _Response | None:
        """Return what is known of the response to a request."""
        return self._open.get(exchange.span_id) if exchange.lasting else None

    def attend(self, one: _Response) -> None:
        """Take up a call that is about to be made."""
        if len(self._open) >= _MOST:
            self.give_up(next(iter(tuple(self._open.values())), None))
        self._open[one.exchange.span_id] = one
        one.exchange.lasting = True
        one.exchange.ending = partial(self._answered, one)

    def _answered(self, one: _Response) -> bool:
        """Its own answer is over; return whether the call goes on."""
        exchange = one.exchange
        one.over = True
        if not (exchange.meter.finished or exchange.free):
            exchange.complete = False  # whatever was read, it told nothing
            if one.id and exchange.span_id in self._open:
                self._keep(one)
                return True
        self._drop(one)
        return False

    def _keep(self, one: _Response) -> None:
        run = one.exchange.run
        _ = one.exchange.meter.request_model  # lets go of the body of the request
        self.by_key[one.key] = one
        self.note(one)
        self._watch(one)
        if run is not None:
            run.work.call_closed(one.exchange.ticket)  # nothing of ours runs for it
        if one.told is not None:
            self.tell(one, one.told)
        elif _stopped(run):
            self._cancel([one])

    def note(self, one: _Response) -> None:
        """Note a sign that somebody still asks for it."""
        one.seen = one.clock.monotonic()

    def _watch(self, one: _Response) -> None:
        one.timer = one.clock.call_at(one.seen + LONG, partial(self._look_at, one))

    def _look_at(self, one: _Response) -> None:
        run, now = one.exchange.run, one.clock.monotonic()
        if run is not None and run.closed_at is None and not run.inert:
            one.seen = now
        if now - one.seen >= LONG:
            self.give_up(one)
        elif one.exchange.span_id in self._open:
            self._watch(one)

    def tell(self, one: _Response, told: Meter | None) -> None:
        """Enter what the provider says at its end. Once; later answers change nothing.

        Args:
            one: The response.
            told: Has read an answer that is final; None: nobody will tell.
        """
        if told is None:
            self.give_up(one)
            return
        one.told = told
        if not one.over:
            return  # the stream it is read from may tell it better
        if self._drop(one):
            exchange = one.exchange
            exchange.meter, exchange.legible = one.final(told), True
            exchange.halted = one.asked
            exchanges.end(exchange)

    def give_up(self, one: _Response | None) -> None:
        """Nobody will tell of it: its outcome is unknown."""
        if one is not None and self._drop(one) and one.over:
            exchanges.end(one.exchange)

    def _drop(self, one: _Response) -> bool:
        """Forget it; return whether it was known: true for one of several threads."""
        known = self._open.pop(one.exchange.span_id, None) is not None
        if self.by_key.get(one.key) is one:
            self.by_key.pop(one.key, None)
        if one.timer is not None:
            one.timer.cancel()
        return known

    def release(self) -> None:
        """Give up on everything."""
        for one in tuple(self._open.values()):
            self.give_up(one)

    # Cancelling

    def abandoned(self, run: Run) -> None:
        """Have the responses of a stopped run cancelled."""
        if self._open and run.work.acts:
            ours = run.work.encloses
            everything = tuple(self._open.values())
            self._cancel(one for one in everything if ours(one.exchange.run))

    def claim(self, one: _Response) -> bool:
        """Return whether nobody has had it cancelled before."""
        with self._lock:
            before, one.asked = one.asked, True
        return not before

    def unclaim(self, one: _Response) -> None:
        """The application's own cancel failed: if its run is stopped, ours is due."""
        one.asked = False
        if _stopped(one.exchange.run):
            self._cancel([one])

    def _cancel(self, ones: Iterable[_Response]) -> None:
        """Send each its cancel, if none was sent. Never waits."""
        recall.send([
            recall.Recall(
                one.line, one.id, partial(self._wanted, one), partial(self.tell, one)
            )
            for one in ones
            if one.id
            and not (one.shielded or one.exchange.meter.finished)
            and self.claim(one)
        ])  # fmt: skip

    @staticmethod
    def _wanted(one: _Response) -> bool:
        if one.serves_others():
            one.asked = False
        return one.asked


def _stopped(run: Run | None) -> bool:
    """Whether the stop of this run, or of one around it, acts."""
    while run is not None:
        if run.work.acts:
            return True
        run = run.parent
    return False


_responses = _Responses()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_responses.reset)


def asks_for_it(meter: Meter, content: bytes) -> bool:
    """Whether a request, of which ``meter`` reads the answer, is for the background."""
    if meter.provider is not Provider.OPENAI_RESPONSES or not _WANTED.search(content):
        return False
    request = parse(content)
    return request is not None and request.get("background") is True


def attend(exchange: Exchange, line: recall.Line) -> None:
    """Take up the exchange of a request for a background response, before it goes."""
    _responses.attend(_Response(exchange, line))


def look(request: Any) -> Exchange | None:
    """Return what an answer is to be fed to that tells of a background response.

    None where it does not. It is no call of its own, and never in the books.
    """
    if not _responses.by_key:
        return None
    url = request.url
    path: str = url.path.rstrip("/")
    cancels = request.method == "POST" and path.endswith("/cancel")
    if not cancels and request.method != "GET":
        return None
    key = (recall.origin_of(url), path.removesuffix("/cancel").rpartition("/")[2])
    one = _responses.by_key.get(key)
    if one is None:
        return None
    _responses.note(one)
    looking = Exchange(Meter(Provider.OPENAI_RESPONSES))
    claimed = cancels and _responses.claim(one)
    looking.ending = partial(_seen, one, looking, claimed)
    return looking


def _seen(one: _Response, looking: Exchange, claimed: bool) -> bool:  # noqa: FBT001
    if looking.meter.finished:
        _responses.tell(one, looking.meter)
    elif claimed and (looking.free or not looking.status):
        _responses.unclaim(one)
    return True


def must_be_read(exchange: Exchange, response: Any) -> bool:
    """Whether an answer is to be read though its run is stopped: it tells an id.

    It is short, and comes at once; but for a stream, which tells it first of all.
    """
    one = _responses.of(exchange)
    if one is None:
        return False
    one.line.http = response.extensions.get("http_version", b"")
    kind: str = response.headers.get("content-type", "")
    return not kind.startswith("text/event-stream")


def release() -> None:
    """Give up on what is open, as of unknown outcome: the process is going down."""
    guarded(_responses.release)


def install() -> None:
    """Have background responses cancelled with their runs. Idempotent."""
    registry.add_observer(_responses)
    atexit.unregister(release)
    atexit.register(release)


def uninstall() -> None:
    """Give up on those that are open. Idempotent."""
    registry.remove_observer(_responses)
    release()
    atexit.unregister(release)
