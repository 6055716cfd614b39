"""When the output of a call came: marks on a clock, bounded, corrected by reports.

T0 is often noticed after tokens have come that lie behind it. So the meter keeps, for
every moment something came, how much had come by then; a split at any earlier instant
is then read off.
"""

from __future__ import annotations

from bisect import bisect_right

MOST_MARKS = 1024
"""Marks kept of one call: about 180 KiB at the most."""

# A mark: the first and the last moment it stands for, and what had come by the last,
# estimated in two ways. A list, because it is written on every event of a stream.
_Mark = list[float]
_FIRST, _LAST, _SINGLE, _GROUPED = range(4)


class Timeline:
    """Marks of (time, output so far). Not thread-safe.

    The amount at each mark is known twice while it is an estimate (see
    :class:`~hangup.spend.estimate.Tally`), and once a report of the provider has set
    it right (:meth:`report`).

    **Resolution.** Exact while there are at most :data:`MOST_MARKS` moments. Then
    neighbours are merged, two by two, as often as needed: a mark then stands for
    :attr:`stride` moments in a row, at most ``2 / MOST_MARKS`` of them all,
    and inside it tokens are taken to have come evenly.

    Attributes:
        stride: How many moments a mark stands for.
        room: How many more the last mark does. While it is 2 or more, a moment may be
            taken off it and handed in with the next one, or by :meth:`catch_up`.
    """

    __slots__ = ("_base", "_marks", "_most", "_raw", "_reported", "room", "stride")

    def __init__(self, most: int = MOST_MARKS) -> None:
        self._most = max(2, most)
        self._marks: list[_Mark] = []
        self._reported = 0  # marks before this one are set right by a report
        self._base = 0.0  # what that report said
        self._raw = (0.0, 0.0)  # what the estimates were at that report
        self.room: int = 0
        self.stride: int = 1

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, now: float, single: float, grouped: float) -> None:
        """Mark that the estimates since the start of the call are these by ``now``.

        Times go forward; an earlier one is taken for the last.
        """
        if self._reported:
            single += self._base - self._raw[0]
            grouped += self._base - self._raw[1]
        if not self.room:
            self._append(now, single, grouped)
            return
        self.room -= 1
        mark = self._marks[-1]
        if now > mark[_LAST]:  # noqa: PLR1730  a call less, at every event of a stream
            mark[_LAST] = now
        mark[_SINGLE] = single
        mark[_GROUPED] = grouped

    def catch_up(self, now: float, single: float, grouped: float) -> None:
        """Hand in the latest moment that was taken off ``room`` already."""
        self.room += 1
        self.add(now, single, grouped)

    def report(
        self, now: float, total: float, tally: tuple[float, float, bool]
    ) -> bool:
        """Set right what came so far: the provider says it is ``total`` by ``now``.

        Marks since the last report are stretched to fit in proportion. Tokens that
        no text came for are marked at ``now``.

        Args:
            now: When the report came.
            total: Output since the start of the call.
            tally: The two estimates for the same stretch, and whether the second is
                the one to trust.

        Returns:
            Whether tokens were marked at ``now``.
        """
        column = _GROUPED if tally[2] else _SINGLE
        if total < self._base:
            # The report takes an earlier one back: nothing before it holds either.
            self._reported, self._base = 0, 0.0
        base = self._base
        unset = self._marks[self._reported :]
        end = unset[-1][column] if unset else base
        silent = False
        if end > base:
            scale = (total - base) / (end - base)
            for mark in unset:
                mark[_SINGLE] = mark[_GROUPED] = base + (mark[column] - base) * scale
        elif total > base:
            silent = True
            self._append(now, total, total)
        self._base = total
        self._raw = tally[:2]
        self._reported = len(self._marks)
        self.room = 0  # what comes next must not stretch a set mark
        return silent

    def before(self, moment: float, *, grouped: bool) -> float:
        """Return how much had come at or before ``moment``."""
        marks, column = self._marks, _GROUPED if grouped else _SINGLE
        index = bisect_right(marks, moment, key=_last)
        done = marks[index - 1][column] if index else 0.0
        if index < len(marks) and marks[index][_FIRST] <= moment:
            first, last = marks[index][:_SINGLE]
            share = (moment - first) / (last - first)
            done += (marks[index][column] - done) * share
        return done

    def moments(self) -> list[float]:
        """Return the instants of the marks, in order."""
        return [mark[_LAST] for mark in self._marks]

    def _append(self, now: float, single: float, grouped: float) -> None:
        marks = self._marks
        if marks:
            now = max(now, marks[-1][_LAST])
            if len(marks) >= self._most:
                self._merge()
        marks.append([now, now, single, grouped])
        self.room = self.stride - 1

    def _merge(self) -> None:
        marks = self._marks
        count = len(marks)
        odd = count % 2
        # Of each pair the second tells when it was over, the first when it began.
        for index in range(0, count - odd, 2):
            marks[index + 1][_FIRST] = marks[index][_FIRST]
        del marks[0 : count - odd : 2]
        all_reported = self._reported == count
        self._reported = len(marks) if all_reported else self._reported // 2
        self.stride *= 2


def _last(mark: _Mark) -> float:
    return mark[_LAST]
