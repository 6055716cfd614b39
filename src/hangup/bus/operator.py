"""Who kills and lists runs from outside. Blocks; not for event loops."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hangup.bus import messages
from hangup.bus.base import BusDown
from hangup.core.cause import Cause

if TYPE_CHECKING:
    from hangup.bus.base import Transport

_AGAIN: Final = 1.0
"""Seconds after which a stop is published again, for who has just come back."""
_PAUSE: Final = 0.2


@dataclass(slots=True)
class Kill:
    """What came of a kill.

    Attributes:
        holders: The acknowledgements, one for each process that holds the run: where,
            what the run is called, its state, its cause, and whether it was ``joined``.
        posted: Whether the kill waits on the bus for whoever comes to hold the run.
        fault: Why the bus could not be reached in the end, or None.
    """

    holders: list[dict[str, Any]] = field(default_factory=list)
    posted: bool = False
    fault: str | None = None

    @property
    def by_opener(self) -> bool:
        """Whether the process that opened the run has acknowledged."""
        return any(not holder["joined"] for holder in self.holders)


@dataclass(slots=True)
class Survey:
    """What is alive.

    Attributes:
        runs: A row for each run and process, see :class:`hangup.bus.live.Row`, and
            under ``process`` where it is.
        asked: How many processes listened to the question.
        answered: How many of them answered in time.
        more: How many runs were too many to be listed.
    """

    runs: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    more: int = 0


def kill(
    transport: Transport, run_id: str, detail: str = "", *, patience: float = 5.0
) -> Kill:
    """Stop a run in every process that holds it, and wait for who opened it.

    A stop that nobody acknowledges stays posted: whoever comes to hold the run, or
    comes back to the bus with it, stops it.

    Args:
        transport: The bus.
        run_id: The token, 32 hex characters.
        detail: Free text for logs and errors.
        patience: Seconds to wait; the bus may restart meanwhile. One that cannot be
            reached at all is given up after a second of it.
    """
    marker = messages.write_marker(run_id, Cause.KILLED, detail)
    reply = _new_reply()
    began = time.monotonic()
    result = Kill()
    while True:
        try:
            transport.stop(run_id, marker, reply)
            result.posted, result.fault = True, None
            again = min(began + patience, time.monotonic() + _AGAIN)
            if _acknowledged(transport, reply, again, result):
                return result
        except BusDown as error:
            result.fault = str(error)
            time.sleep(_PAUSE)
        over = began + (patience if result.posted else min(patience, _AGAIN))
        if time.monotonic() >= over:
            return result


def _acknowledged(transport: Transport, reply: str, until: float, result: Kill) -> bool:
    """Read acknowledgements; return whether that of who opened the run is there."""
    while (left := until - time.monotonic()) > 0:
        answer = _read(transport.next_answer(reply, left))
        if answer is None or not isinstance(answer.get("joined"), bool):
            continue
        if answer not in result.holders:
            result.holders.append(answer)
        if not answer["joined"]:
            return True
    return False


def survey(transport: Transport, prefix: str = "", *, patience: float = 2.0) -> Survey:
    """Ask every process for its live runs.

    Args:
        transport: The bus.
        prefix: Only runs whose id begins so.
        patience: Seconds to wait for those that do not answer.

    Raises:
        BusDown: The bus cannot be reached.
    """
    reply = _new_reply()
    until = time.monotonic() + patience
    found = Survey(asked=transport.publish(messages.write_listing(reply, prefix)))
    while found.answered < found.asked and (left := until - time.monotonic()) > 0:
        answer = _read(transport.next_answer(reply, left))
        if answer is None or not answer.keys() >= {"runs", "process", "last", "more"}:
            continue
        for row in answer["runs"]:
            found.runs.append({**row, "process": answer["process"]})
        if answer["last"]:
            found.answered += 1
            found.more += answer["more"]
    found.runs.sort(key=lambda row: -row["age"])
    return found


def _new_reply() -> str:
    return secrets.token_hex(8)


def _read(text: str | None) -> dict[str, Any] | None:
    try:
        answer = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
