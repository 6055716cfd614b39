from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Self

import pytest

from hangup.bus import connect, messages, operator
from hangup.bus.base import BusDown
from hangup.bus.operator import kill, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hangup.bus.base import Transport
    from hangup.bus.memory import Memory

ID = "ab" * 16
SOON = 0.2


class Holder:
    """A process that holds the run, as the bus sees it."""

    def __init__(self, url: str) -> None:
        self.transport: Transport = connect(url)
        self.answers: list[dict[str, object]] = []
        self.write: Callable[[object], str] = json.dumps
        self._subscription = self.transport.subscribe()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                message = self._subscription.receive(0.02)
            except BusDown:
                time.sleep(0.01)
                self._again()
                continue
            said = None if message is None else messages.read(message)
            if isinstance(said, messages.Stop | messages.Listing):
                texts = [self.write(answer) for answer in self.answers]
                with contextlib.suppress(BusDown):
                    self.transport.answer(said.reply, texts)

    def _again(self) -> None:
        with contextlib.suppress(BusDown):
            self._subscription = self.transport.subscribe()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def acknowledgement(*, joined: bool) -> dict[str, object]:
    return {"process": "p", "run": ID, "cause": "killed", "joined": joined}


@pytest.fixture
def holder(url: str) -> Iterator[Holder]:
    with Holder(url) as holder:
        yield holder


def test_a_kill_ends_as_soon_as_who_opened_the_run_says_so(
    url: str, holder: Holder
) -> None:
    mine, theirs = acknowledgement(joined=False), acknowledgement(joined=True)
    holder.answers = [theirs, mine]
    result = kill(connect(url), ID, patience=60)
    assert (result.holders, result.by_opener) == ([theirs, mine], True)
    assert result.fault is None


def test_it_waits_for_who_opened_the_run(url: str, holder: Holder) -> None:
    holder.answers = [acknowledgement(joined=True)]
    began = time.monotonic()
    result = kill(connect(url), ID, patience=SOON)
    assert time.monotonic() - began >= SOON
    assert (len(result.holders), result.by_opener) == (1, False)


def test_a_stop_is_published_again_for_who_has_just_come(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "_AGAIN", SOON)
    late = threading.Event()

    def comes() -> None:
        late.wait(3 * SOON)
        with Holder(url) as holder:
            holder.answers = [acknowledgement(joined=False)]
            late.wait()

    thread = threading.Thread(target=comes)
    thread.start()
    assert kill(connect(url), ID, patience=60).by_opener
    late.set()
    thread.join()


def test_a_kill_that_nobody_acknowledges_stays_posted(url: str, there: Memory) -> None:
    result = kill(connect(url), ID, "why", patience=SOON)
    assert (result.holders, result.posted, result.fault) == ([], True, None)
    posted = messages.read_stop(there.markers[ID])
    assert posted is not None
    assert posted.marker.verdict == ("killed", "why")


def test_the_first_cause_stays(url: str, there: Memory) -> None:
    kill(connect(url), ID, "first", patience=SOON)
    kill(connect(url), ID, "second", patience=SOON)
    posted = messages.read_stop(there.markers[ID])
    assert posted is not None
    assert posted.marker.verdict.detail == "first"


def test_a_bus_that_is_down_is_said_to_be(url: str, there: Memory) -> None:
    there.goes_down()
    result = kill(connect(url), ID, patience=SOON)
    assert (result.holders, result.posted) == ([], False)
    assert "told to be down" in (result.fault or "")
    with pytest.raises(BusDown):
        survey(connect(url))


def test_a_kill_outlasts_a_bus_that_forgets_it(
    url: str, there: Memory, holder: Holder
) -> None:
    """Posted, lost with the bus, and posted again; an answer ends it at last."""

    posted: list[bool] = []

    def restart() -> None:
        with there.changed:
            posted.append(there.changed.wait_for(lambda: ID in there.markers, 10))
            # The holder has heard nothing of it so far: it has no answers.
        there.goes_down(keeping=False)
        time.sleep(SOON)
        holder.answers = [acknowledgement(joined=False)]
        there.comes_back()

    thread = threading.Thread(target=restart)
    thread.start()
    result = kill(connect(url), ID, patience=60)
    thread.join()
    assert posted == [True]
    assert result.by_opener
    assert ID in there.markers


@pytest.mark.parametrize("answer", [{}, {"joined": "no"}, {"runs": 3, "joined": None}])
def test_an_answer_that_is_none_is_passed_over(
    url: str, holder: Holder, answer: dict[str, object]
) -> None:
    holder.answers = [answer]
    assert kill(connect(url), ID, patience=SOON).holders == []
    found = survey(connect(url), patience=SOON)
    assert (found.asked, found.answered, found.runs) == (1, 0, [])


def test_text_that_is_no_json_is_passed_over(url: str) -> None:
    with Holder(url) as holder:
        holder.write = str
        holder.answers = [{"no": "json"}]
        assert kill(connect(url), ID, patience=SOON).holders == []


def test_a_survey_counts_who_did_not_answer(url: str, holder: Holder) -> None:
    deaf = connect(url).subscribe()
    holder.answers = [
        {"process": "p", "runs": [{"age": 1.0}], "last": False, "more": 2},
        {"process": "p", "runs": [{"age": 2.0}], "last": True, "more": 2},
    ]
    found = survey(connect(url), patience=SOON)
    assert (found.asked, found.answered, found.more) == (2, 1, 2)
    assert [row["age"] for row in found.runs] == [2.0, 1.0]
    assert {row["process"] for row in found.runs} == {"p"}
    deaf.close()
