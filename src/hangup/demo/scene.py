"""A few runs, told for the picture: which calls ran when, in both passes.

Pure. Times in a :class:`Panel` are seconds since the user asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hangup.demo.population import Kind
from hangup.demo.truth import Truth, calls_by_visit, split_tokens, visit_truth
from hangup.demo.workload import RESEARCH, SUBAGENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hangup.demo.journal import CallRecord
    from hangup.demo.results import Demo, Pass
    from hangup.demo.users import Visit

_TELLING = 0.4
"""Share of the answer's time at which leaving shows most: some done, much to come."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A call to the model, or a step around some.

    Attributes:
        path: The row it belongs to.
        start: When it began.
        end: When it was over: the model stopped generating, or the step returned.
        call: It is a call to the model.
        cut_at: When the caller hung up on it, or None.
        sunk: Tokens before T0; all of them where there is no T0.
        wasted: Tokens at or after T0.
    """

    path: str
    start: float
    end: float
    call: bool = False
    cut_at: float | None = None
    sunk: int = 0
    wasted: int = 0


@dataclass(frozen=True, slots=True)
class Panel:
    """One run in one mode.

    Attributes:
        mode: observe or enforce.
        bars: Its steps and calls.
        t0: When it was of no more use to anybody, or None.
        left: The user walked away then; else the deadline passed.
        deadline: The end of a budget that the user asked for, or None.
        answered: When the user had the answer, or None.
        stopped: When the last model connection was over.
        truth: Its tokens.
    """

    mode: str
    bars: tuple[Bar, ...]
    t0: float | None
    left: bool
    deadline: float | None
    answered: float | None
    stopped: float
    truth: Truth


@dataclass(frozen=True, slots=True)
class Story:
    """One user in both passes; rows and time line are shared."""

    title: str
    who: str
    rows: tuple[str, ...]
    panels: tuple[Panel, Panel]

    @property
    def seconds(self) -> float:
        """The length of the time line."""
        ends = [bar.end for panel in self.panels for bar in panel.bars]
        marks = [
            at
            for panel in self.panels
            for at in (panel.t0, panel.deadline, panel.answered)
            if at is not None
        ]
        return max([*ends, *marks, 0.1])


def depth(path: str) -> int:
    """Return how deep in the tree of work a path is."""
    if path == RESEARCH:
        return 0
    return 1 + path.count("/")


def stories(demo: Demo) -> tuple[Story, ...]:
    """Return the runs worth a look: leavers of each kind, and an answer too late."""
    chosen = (
        ("Left while the response was streaming", _leaver(demo, streaming=True)),
        ("Left before the first byte", _leaver(demo, streaming=False)),
        ("Waited, but the answer came past its deadline", _late(demo)),
    )
    return tuple(
        _story(demo, title, name) for title, name in chosen if name is not None
    )


def _leaver(demo: Demo, *, streaming: bool) -> str | None:
    """Return the leaver of that kind whose leaving shows most.

    Preferably one whose call enforce cut in flight.
    """
    cut = {call.user.rpartition("/")[2] for call in demo.enforce.calls if call.cut}

    def telling(visit: Visit) -> tuple[bool, float]:
        calls = [call for call in demo.observe.calls if call.user == visit.tag]
        over = max((call.ended or 0.0 for call in calls), default=visit.finished)
        share = (visit.finished - visit.started) / max(0.1, over - visit.started)
        return visit.user.name not in cut, abs(share - _TELLING)

    return _best(
        (
            visit
            for visit in demo.observe.visits
            if visit.left is not None and (visit.first_byte is not None) == streaming
        ),
        telling,
    )


def _late(demo: Demo) -> str | None:
    return _best(
        (
            visit
            for visit in demo.observe.visits
            if visit.user.kind is Kind.NEAR and visit.user.name in demo.lost_answers
        ),
        lambda visit: visit.deadline - visit.finished,
    )


def _best(visits: Iterable[Visit], key: Callable[[Visit], Any]) -> str | None:
    ordered = sorted(visits, key=key)
    return ordered[0].user.name if ordered else None


def _story(demo: Demo, title: str, name: str) -> Story:
    panels = tuple(_panel(one, name) for one in demo.passes.values())
    route = next(v.user.route for v in demo.observe.visits if v.user.name == name)
    first: dict[str, float] = {}
    for bar in panels[0].bars + panels[1].bars:
        first.setdefault(bar.path, bar.start)
    order = sorted(
        first, key=lambda path: (_top(first, path), depth(path), first[path])
    )
    who = f"user {name}, asking {route}"
    return Story(title, who, tuple(order), (panels[0], panels[1]))


def _top(first: Mapping[str, float], path: str) -> tuple[bool, float]:
    """Sort below the root, what is inside a step next to the step."""
    top = path.partition("/")[0]
    return path != RESEARCH, first.get(top, first[path])


def _panel(one: Pass, name: str) -> Panel:
    visit, calls = next(
        pair
        for pair in calls_by_visit(one.visits, one.calls)
        if pair[0].user.name == name
    )
    begin, t0 = visit.started, visit.t0
    bars = [_step(step, begin) for step in one.steps if step["user"] == visit.tag]
    bars += [_call(call, begin, t0) for call in calls]
    over = max((call.closed or call.opened for call in calls), default=begin)
    given = None if visit.user.budget is None else visit.user.seconds_given
    return Panel(
        mode=one.mode,
        bars=tuple(sorted(bars, key=lambda bar: (bar.call, bar.start))),
        t0=None if t0 is None else t0 - begin,
        left=visit.left is not None,
        deadline=given,
        answered=visit.finished - begin if visit.answered else None,
        stopped=over - begin,
        truth=visit_truth(visit, calls),
    )


def _step(step: Mapping[str, Any], begin: float) -> Bar:
    return Bar(step["path"], step["start"] - begin, step["end"] - begin)


def _call(call: CallRecord, begin: float, t0: float | None) -> Bar:
    before, after = (call.total_tokens, 0) if t0 is None else split_tokens(call, t0)
    end = call.ended if call.ended is not None else call.opened
    return Bar(
        call.path,
        call.opened - begin,
        end - begin,
        call=True,
        cut_at=(call.closed or end) - begin if call.cut else None,
        sunk=before,
        wasted=after,
    )


def label(path: str) -> str:
    """Return what a row is called."""
    if path == SUBAGENT:
        return "subagent process"
    return path.rpartition("/")[2]
