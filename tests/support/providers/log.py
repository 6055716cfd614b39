"""What the model server did: the ground truth of every test that uses it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATIENCE = 10.0


@dataclass(slots=True)
class Request:
    """One request to a model. Times are seconds of ``time.monotonic``.

    Attributes:
        dialect: Which provider's shape it had.
        path: The path asked for.
        model: The model asked for.
        stream: Whether a stream was asked for.
        input: Input tokens, caches included.
        opened: When it came.
        closed: When the answer was complete or the caller was gone; None: not yet.
        cut: Whether the caller went before the answer was complete.
        marks: When output tokens were generated, and how many.
        told: Whether the usage was sent.
        asked: The body.
        refusal: Why it was answered with 400, if it was.
    """

    dialect: str
    path: str
    model: str
    stream: bool
    input: int
    opened: float
    closed: float | None = None
    cut: bool = False
    marks: list[tuple[float, int]] = field(default_factory=list)
    told: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""

    @property
    def output(self) -> int:
        """Output tokens generated."""
        return sum(count for _, count in self.marks)

    def output_before(self, moment: float) -> int:
        """Output tokens generated at or before a moment."""
        return sum(count for when, count in self.marks if when <= moment)


class Log:
    """Every request, in order. Thread-safe."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._changed = threading.Condition()

    def opened(self, request: Request) -> None:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()

    def generated(self, request: Request, tokens: int) -> None:
        with self._changed:
            request.marks.append((time.monotonic(), tokens))
            self._changed.notify_all()

    def closed(self, request: Request, *, cut: bool) -> None:
        with self._changed:
            request.closed, request.cut = time.monotonic(), cut
            self._changed.notify_all()

    def settled(self, since: int = 0) -> None:
        """Wait until the requests from number ``since`` on are closed."""
        self.wait(lambda: all(one.closed is not None for one in self.requests[since:]))

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until something holds of the requests."""
        with self._changed:
            assert self._changed.wait_for(until, _PATIENCE), "it never came to that"

    def totals(self, since: int = 0) -> tuple[int, int]:
        """Input and output tokens of the requests from number ``since`` on."""
        asked = self.requests[since:]
        return sum(one.input for one in asked), sum(one.output for one in asked)
