"""The output of one call as it comes: how much it is, and when it came."""

from __future__ import annotations

from hangup.spend.estimate import Tally
from hangup.spend.timeline import Timeline


class Output(Tally):
    """A tally that keeps the moments. Not thread-safe; times are handed in.

    Attributes:
        thoughts: The tally of the part of it that is thought.
        last_at: When the last of it came, or None.
    """

    __slots__ = ("_marked", "_timeline", "last_at", "thoughts")

    def __init__(self) -> None:
        super().__init__()
        self.thoughts: Tally = Tally()
        self.last_at: float | None = None
        self._timeline = Timeline()
        self._marked = 0  # deltas that the timeline knows of

    @property
    def estimates(self) -> tuple[float, float, bool]:
        """Both estimates of the tokens, and whether the second is the one to trust."""
        return self.single, self.grouped, self.is_grouped

    @property
    def stride(self) -> int:
        """How many moments in a row :meth:`before` cannot tell apart; 1: exact."""
        return self._timeline.stride

    def word(self, now: float) -> None:
        """Count a short word that came at ``now``, on the path of nearly every event.

        It is one token, and not the first there is.
        """
        self.deltas = deltas = self.deltas + 1
        self.last_at = now
        timeline = self._timeline
        if timeline.room > 1:
            timeline.room -= 1
            return
        self._marked = deltas
        timeline.add(now, deltas + self.more, deltas + self.more_grouped)

    def think(self, text: bytes) -> None:
        """Count one delta of thought."""
        self.add(text)
        self.thoughts.add(text)

    def mark(self, now: float) -> bool:
        """Note that what was counted since the last moment came at ``now``.

        To be preceded by :meth:`catch_up` where a word may have come before.

        Returns:
            Whether anything did.
        """
        if self.deltas == self._marked:
            return False
        self._marked = self.deltas
        self._timeline.add(now, self.single, self.grouped)
        self.last_at = now
        return True

    def catch_up(self) -> None:
        """Tell the timeline of words that it was not told of at once."""
        if self.deltas != self._marked and self.last_at is not None:
            self._marked = self.deltas
            self._timeline.catch_up(self.last_at, self.single, self.grouped)

    def report(self, now: float, total: float) -> bool:
        """Set right what came so far: it is ``total``, the provider says at ``now``.

        Returns:
            Whether there was more of it than of the text, and so came unseen.
        """
        return self._timeline.report(now, total, self.estimates)

    def before(self, moment: float) -> float:
        """Return how many tokens had come at or before ``moment``."""
        self.catch_up()
        return self._timeline.before(moment, grouped=self.is_grouped)

    def moments(self) -> list[float]:
        """Return when it came, in order."""
        self.catch_up()
        return self._timeline.moments()
