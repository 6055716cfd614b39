"""What a middleware leaves in the scope, for those that stand inside it.

One connection has one run, however many middlewares it comes through: the outermost's.
But the one that zero code puts around an application knows nothing of it, and whoever
put one in by hand meant it: so that makes way. It stays, with a run that makes no
spending call, and is nobody's business.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from hangup.core.cleanup import Detached

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hangup.servers._asgi_receive import Scope

_KEY: Final = "hangup.middleware"


class Mark:
    """One middleware's.

    Args:
        zero_code: Nobody asked for this middleware.
        serves: It has opened a run; not so in mode off.

    Attributes:
        made_way: One that stands inside serves in its place.
    """

    __slots__ = ("made_way", "serves", "zero_code")

    def __init__(self, *, zero_code: bool, serves: bool) -> None:
        self.zero_code = zero_code
        self.serves = serves
        self.made_way = False

    def lets(self, *, zero_code: bool) -> bool:
        """Whether a middleware that stands inside serves the connection itself."""
        return not zero_code and (self.zero_code or not self.serves)


def around(scope: Scope) -> Mark | None:
    """Return the mark of the middleware around, if there is one."""
    found = scope.get(_KEY)
    return found if isinstance(found, Mark) else None


def leave(scope: Scope, *, zero_code: bool, serves: bool) -> Mark:
    """Leave a mark of one's own in the scope, and return it."""
    mark = scope[_KEY] = Mark(zero_code=zero_code, serves=serves)
    return mark


def in_place_of(mark: Mark | None) -> AbstractContextManager[object]:
    """Return what to serve in: outside the run of the middleware that makes way."""
    if mark is None or not mark.serves:
        return contextlib.nullcontext()
    mark.made_way = True
    return Detached()
