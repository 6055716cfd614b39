"""Each route says what its client's leaving means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.asgi import http_scope

from hangup import config
from hangup.errors import ConfigError
from hangup.servers._asgi_terms import RouteSettings, Terms
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.asgi import Receive, Scope, Send


def test_each_route_says_what_leaving_means() -> None:
    config.use(
        config.from_environment({"HANGUP_ON_DISCONNECT": "finish", "HANGUP_GRACE": "7"})
    )
    routes: dict[str, Any] = {
        "/grace": {"on_disconnect": "grace"},
        "/long": RouteSettings(on_disconnect="grace", grace=60),
        "/none": {"on_disconnect": "abandon"},
    }

    def meant(path: str, **options: Any) -> tuple[str, float]:
        opening = Terms(routes=routes, **options).opening(http_scope(path))
        assert opening is not None
        with opening.run as run:
            return run.absence.on_disconnect.value, run.absence.grace

    assert meant("/grace") == ("grace", 7)
    assert meant("/long") == ("grace", 60)
    assert meant("/none") == ("abandon", 7)
    assert meant("/other") == ("finish", 7)
    assert meant("/other", on_disconnect="grace", grace=3) == ("grace", 3)
    assert meant("/grace", grace=3) == ("grace", 3)
    assert meant("/grace", grace=0) == ("grace", 0)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


def test_the_settings_are_checked_where_they_are_given() -> None:
    with pytest.raises(ConfigError, match="route on_disconnect='wait'"):
        HangupMiddleware(_nothing, routes={"/": {"on_disconnect": "wait"}})
    with pytest.raises(ConfigError, match="route grace=-1"):
        HangupMiddleware(_nothing, routes={"/": {"grace": -1}})
    with pytest.raises(ConfigError, match="on_disconnect='wait'"):
        HangupMiddleware(_nothing, on_disconnect="wait")
    with pytest.raises(ConfigError, match="grace='soon'"):
        HangupMiddleware(_nothing, grace="soon")  # type: ignore[arg-type]
