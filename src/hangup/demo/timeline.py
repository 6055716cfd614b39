"""One story as SVG: two panels on one scale, rows shared, time from left to right."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hangup.demo.scene import depth, label

if TYPE_CHECKING:
    from hangup.demo.scene import Bar, Panel, Story

_WIDTH = 1152
_LABELS = 158
_GAP = 34
_PANEL = (_WIDTH - _LABELS - _GAP) / 2
_COUNT = 62
"""Room right of a panel's time line for the number of tokens."""
_TOP = 62
_ROW = 24
_BAR = 14
_FOOT = 26


def timeline_svg(story: Story) -> str:
    """Return the drawing; its text is set by the page's style sheet."""
    height = _TOP + len(story.rows) * _ROW + _FOOT
    name = escape(f"{story.title}, {story.who}")
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}">'
    parts = [head, *_row_labels(story)]
    for index, panel in enumerate(story.panels):
        left = _LABELS + index * (_PANEL + _GAP)
        parts += _Drawing(story, panel, left).parts()
    return "\n".join([*parts, "</svg>"])


def _row_labels(story: Story) -> list[str]:
    return [
        _text(
            "inner" if "/" in path else "row",
            depth(path) * 14,
            _y(place) + 11,
            label(path),
            "start",
        )
        for place, path in enumerate(story.rows)
    ]


def _y(place: int) -> float:
    """Return the top of a row's bar."""
    return _TOP + place * _ROW + (_ROW - _BAR) / 2


class _Drawing:
    """One panel, drawn from ``left``."""

    def __init__(self, story: Story, panel: Panel, left: float) -> None:
        self._story = story
        self._panel = panel
        self._left = left
        self._scale = (_PANEL - _COUNT) / (story.seconds * 1.01)
        self._bottom = _TOP + len(story.rows) * _ROW

    def parts(self) -> list[str]:
        return [
            *self._grid(),
            *self._wash(),
            *(part for bar in self._panel.bars for part in self._bar(bar)),
            *self._counts(),
            *self._marks(),
            *self._head(),
        ]

    def _x(self, seconds: float) -> float:
        return self._left + max(0.0, seconds) * self._scale

    def _grid(self) -> list[str]:
        parts = []
        for second in range(int(self._story.seconds) + 1):
            x = self._x(second)
            parts += [
                _line("grid", x, _TOP, self._bottom),
                _text("tick", x, self._bottom + 16, f"{second} s"),
            ]
        return parts

    def _wash(self) -> list[str]:
        t0 = self._panel.t0
        if t0 is None:
            return []
        x, end = self._x(t0), self._x(self._story.seconds)
        return [_rect("wash", x, end, _TOP, self._bottom - _TOP, round_by=0)]

    def _bar(self, bar: Bar) -> list[str]:
        y = _y(self._story.rows.index(bar.path))
        start, end = self._x(bar.start), self._x(bar.end)
        if not bar.call:
            return [_rect("step", start, end, y, _BAR, tip=label(bar.path))]
        t0 = self._panel.t0
        turn = end if t0 is None else min(max(self._x(t0), start), end)
        tip = (
            f"{label(bar.path)}: {bar.end - bar.start:.2f} s, "
            f"{bar.sunk + bar.wasted} tokens, {bar.wasted} of them wasted"
        )
        top, high = y + 2, _BAR - 4
        parts = []
        if turn > start:
            parts.append(_rect("call", start, turn, top, high, tip=tip))
        if end > turn and bar.wasted:
            parts.append(_rect("wasted", turn, end, top, high, tip=tip))
        if bar.cut_at is not None:
            parts.append(_line("cut", self._x(bar.cut_at) + 1, y - 1, y + _BAR + 1))
        return parts

    def _counts(self) -> list[str]:
        """Return the tokens of each row, at the right."""
        x = self._left + _PANEL
        parts = [_text("tick", x, _TOP - 4, "tokens", "end")]
        for place, path in enumerate(self._story.rows):
            calls = [bar for bar in self._panel.bars if bar.call and bar.path == path]
            total = sum(bar.sunk + bar.wasted for bar in calls)
            wasted = sum(bar.wasted for bar in calls)
            if not calls:
                continue
            look = "count bad" if wasted > total / 2 else "count"
            parts.append(_text(look, x, _y(place) + 11, f"{total:,}", "end"))
        return parts

    def _marks(self) -> list[str]:
        """Return the line of T0, or of a deadline that only would have stopped."""
        panel, end = self._panel, self._bottom + 2
        if panel.t0 is not None:
            x = self._x(panel.t0)
            what = "user left" if panel.left else "deadline"
            return [
                _line("t0", x, _TOP - 14, end),
                self._flag("gone", x, what, panel.t0),
            ]
        if panel.deadline is not None:
            x = self._x(panel.deadline)
            flag = self._flag("over", x, "deadline", panel.deadline)
            return [_line("due", x, _TOP - 14, end), flag]
        return []

    def _flag(self, look: str, x: float, what: str, seconds: float) -> str:
        middle = max(x, self._left + 44)  # a flag at the very left stays in its panel
        return _text(f"flag {look}", middle, _TOP - 20, f"{what} {seconds:.2f} s")

    def _head(self) -> list[str]:
        look, verdict = _verdict(self._panel)
        return [
            _text("mode", self._left, 14, self._panel.mode, "start"),
            _text(f"verdict {look}", self._left + _PANEL, 14, verdict, "end"),
        ]


def _verdict(panel: Panel) -> tuple[str, str]:
    """Return how a run ended, in a few words, and whether that is good."""
    wasted = panel.truth.all_wasted_tokens
    if panel.t0 is not None:
        stopped = max(0.0, panel.stopped - panel.t0)
        after = f"{stopped:.2f} s" if stopped >= 1 else f"{stopped * 1000:.1f} ms"
        noun = "token" if wasted == 1 else "tokens"
        spent = f"{wasted:,} {noun} wasted" if wasted else "nothing wasted"
        ended = f"stopped after {after}, {spent}"
        if not panel.left:
            return "over", f"{ended}, answer lost"
        good = wasted * 20 <= panel.truth.sunk_tokens
        return ("good" if good else "bad"), ended
    answered = panel.answered or 0.0
    late = panel.deadline is not None and answered >= panel.deadline
    return "", f"answered {'late ' if late else ''}at {answered:.2f} s"


def _text(look: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return (
        f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _rect(  # noqa: PLR0913  a rectangle has that many sides
    look: str,
    start: float,
    end: float,
    y: float,
    height: float,
    *,
    tip: str = "",
    round_by: float = 3,
) -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return (
        f'<rect class="{look}" x="{start:.1f}" y="{y:.1f}" '
        f'width="{max(1.5, end - start):.1f}" height="{height:.1f}" '
        f'rx="{round_by}">{title}</rect>'
    )


def _line(look: str, x: float, top: float, bottom: float) -> str:
    return (
        f'<line class="{look}" x1="{x:.1f}" x2="{x:.1f}" '
        f'y1="{top:.1f}" y2="{bottom:.1f}"/>'
    )
