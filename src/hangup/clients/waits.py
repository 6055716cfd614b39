"""How long a model client is going to wait before it asks again.

openai and anthropic sleep between their attempts, as long as ``Retry-After`` says or
with a back-off of their own. On a thread nothing can end that sleep. So an answer after
which no attempt can begin in time is marked as one not to be asked for again
(``x-should-retry``, a header of both providers that both clients obey): the client
raises the provider's error at once, as after its last attempt.
"""

from __future__ import annotations

import email.utils
import math
from typing import TYPE_CHECKING, Any, Final

from hangup.config import Mode
from hangup.core.admission import ask
from hangup.core.current import position
from hangup.core.policy import Decision

if TYPE_CHECKING:
    from hangup.core.run import Run

_ATTEMPT: Final = "x-stainless-retry-count"
"""How both number their attempts; who sends it obeys the mark."""
_MARK: Final = "x-should-retry"
_ERROR: Final = 400
# Their back-off: doubled each time, and up to a quarter less at random.
_FIRST: Final = 0.5
_LONGEST: Final = 8.0
_LEAST: Final = 0.75
_MOST_DOUBLED: Final = 10


def end_in_vain(request: Any, response: Any, run: Run) -> None:
    """Mark an answer in error on a thread, if an attempt after it would come too late.

    Not in refuse mode, which cuts nothing in flight; nor in a clean-up or a drain
    block, which have a time of their own.
    """
    if response.status_code < _ERROR or run.mode is not Mode.ENFORCE:
        return
    attempt = request.headers.get(_ATTEMPT)
    if attempt is None:
        return
    here = position()
    if here is not None and (here.shield is not None or here.drain is not None):
        return
    wait = least_wait(attempt, response.headers, run.clock.wall())
    if ask(run, wait).decision is Decision.REFUSE:
        response.headers[_MARK] = "false"


def least_wait(attempt: str, headers: Any, now: float) -> float:
    """Return the least seconds that a client waits after an answer in error.

    Args:
        attempt: The number of the attempt, from 0.
        headers: Of the answer.
        now: Seconds since the Unix epoch.
    """
    told = _told(headers, now)
    if told is not None and 0 < told < math.inf:
        return told
    doubled = min(int(attempt), _MOST_DOUBLED) if attempt.isdecimal() else 0
    return min(_FIRST * 2.0**doubled, _LONGEST) * _LEAST


def _told(headers: Any, now: float) -> float | None:
    """Return the seconds that the provider asks to wait, None if it does not say."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return float(headers.get(name, "")) / divisor
        except ValueError:
            continue
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return date.timestamp() - now
    except (TypeError, ValueError, OverflowError):
        return None
