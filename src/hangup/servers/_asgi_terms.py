"""What run a connection gets; see :mod:`hangup.servers._common_terms`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangup.servers import _common_terms
from hangup.servers._common_terms import Opening, RouteSettings

if TYPE_CHECKING:
    from hangup.servers._asgi_receive import Scope

__all__ = ["Opening", "RouteSettings", "Terms"]


class Terms(_common_terms.Terms):
    """The settings of one middleware, asked with an ASGI scope."""

    def opening(self, scope: Scope) -> Opening | None:
        """Return how to serve this connection; None where hangup stays out of it."""
        return self.open(
            scope["type"],
            scope.get("method", ""),
            scope.get("path", ""),
            scope.get("root_path", ""),
            scope["headers"],
            scope,
        )
