"""Names that are known before the first run have their series from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from support.telemetry import instrumented

import hangup
from hangup.core.cause import Cause
from hangup.otel import names
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from support.telemetry import Telemetry


def _causes(telemetry: Telemetry, name: str) -> set[str]:
    return {
        one.labels[names.CAUSE]
        for one in telemetry.series(names.RUNS)[names.RUNS]
        if one.labels[names.RUN_NAME] == name and one.value == 0
    }


def _decorate() -> str:
    @hangup.run(name="decorated")
    async def agent() -> None:
        """Do nothing."""

    return "decorated"


def _serve() -> str:
    HangupMiddleware(Starlette(), routes={"/chat/{id}": {"budget": 5}})
    return "/chat/{id}"


def _serve_by_name() -> str:
    HangupMiddleware(Starlette(), name="assistant")
    return "assistant"


@pytest.mark.parametrize("declare", [_decorate, _serve, _serve_by_name])
@pytest.mark.parametrize("before", [True, False])
def test_g1_first_increment_invisible(declare: object, *, before: bool) -> None:
    """Each cause is a series at zero before any traffic, whichever was set up first."""
    assert callable(declare)
    name = declare() if before else ""
    with instrumented() as telemetry:
        name = name or declare()
        assert _causes(telemetry, name) == {*(cause.value for cause in Cause), "none"}


def test_declared_names_are_bounded() -> None:
    for number in range(100):
        HangupMiddleware(Starlette(), name=f"app {number}")
    with instrumented() as telemetry:
        series = telemetry.series(names.RUNS)[names.RUNS]
    assert len({one.labels[names.RUN_NAME] for one in series}) == 40
