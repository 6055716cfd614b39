"""What the requests of one route get, and what the rollout's rules make of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangup.config import Mode
from hangup.core.rollout import Place

if TYPE_CHECKING:
    from hangup.config import OnDisconnect
    from hangup.core.rules import Rule
    from hangup.otel.wire import Inbound
    from hangup.servers._common_fields import Fields


class Plan(NamedTuple):
    """What the connections of one route get under the settings in force."""

    pattern: str | None
    mode: Mode
    name: str | None
    tenant: str | None
    http_budget: float | None
    stream_budget: float | None
    socket_budget: float | None
    on_disconnect: OnDisconnect | None  # None: abandon, and then there is no grace
    grace: float | None
    background_in_run: bool

    def budget_of(
        self, kind: str, method: str, fields: Fields, rule: Rule | None
    ) -> float | None:
        """Return the budget of a request in seconds; None or infinity is none.

        A WebSocket, or a stream that stays open as long as a page, has one of a rule
        only if that is for its route.
        """
        stream = kind == "stream" or (fields.event_stream and method == "GET")
        long_lived = stream or kind == "websocket"
        ruled = None if rule is None or (long_lived and not rule.route) else rule.budget
        if ruled is not None:
            return ruled
        if kind == "websocket":
            return self.socket_budget
        return self.stream_budget if stream else self.http_budget


def place_of(path: str, root: str, unruled: Mode) -> Place:
    """Return where rules look: below the application's root, and by the whole path.

    Args:
        path: The whole path, decoded.
        root: What of it leads to the application, or "".
        unruled: See :class:`~hangup.core.rollout.Place`.
    """
    return Place((path.removeprefix(root), path) if root else (path,), unruled)


def unasked(most: Mode) -> Place:
    """Return where rules look for a run without a path whose mode no code asked for.

    By its name and its tenant alone; without a rule it is observed.
    """
    return Place(unruled=Mode.OBSERVE, most=most)


def under(mode: Mode, inbound: Inbound) -> Mode:
    """Return the mode that a run has which goes on here, and was to have ``mode``.

    Never off: what comes in may keep us from acting, not from measuring.
    """
    return mode.least(Mode.OBSERVE if inbound.mode is Mode.OFF else inbound.mode)
