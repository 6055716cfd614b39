"""Dollars reach the metrics: of tools, of calculations, of the user's own file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.telemetry import abandoned, instrumented, opened

from hangup.errors import ConfigError
from hangup.otel import names

if TYPE_CHECKING:
    from pathlib import Path

    from hangup.testing import FakeClock

    Attributes = dict[str, str | int | float]

PRICES = """
[models.house]
input = 1
output = 2

[tools.search]
per_call = 0.25
per_second = 0.125
"""
HOUSE: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "house"}
SEARCH: Attributes = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "search",
}
USED: Attributes = {
    "gen_ai.usage.input_tokens": 1_000_000,
    "gen_ai.usage.output_tokens": 500_000,
}


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return str(path)


def test_a_model_of_the_file_is_priced_by_it(clock: FakeClock, prices: str) -> None:
    with instrumented(prices=prices) as telemetry:
        with opened(clock):
            telemetry.tracer().start_span("c", attributes=HOUSE | USED).end()
        assert telemetry.total(names.COST, fate="delivered") == 2.0
        assert telemetry.total(names.METERED_COST) == 2.0
        assert telemetry.total(names.UNPRICED) == 0


def test_a_tool_that_outlives_its_run_is_divided_by_the_second(
    clock: FakeClock, prices: str
) -> None:
    """Its price per call is sunk when it starts, its seconds are sunk, then wasted."""
    with instrumented(prices=prices) as telemetry:
        with abandoned(clock) as run:
            span = telemetry.tracer().start_span("t", attributes=SEARCH)
            clock.advance(2.0)
            run.cancel()
            run.check()
        clock.advance(6.0)
        span.end()
        assert telemetry.total(names.COST, fate="sunk") == 0.25 + 2 * 0.125
        assert telemetry.total(names.COST, fate="wasted") == 6 * 0.125
        assert telemetry.total(names.METERED_COST) == 0.25 + 8 * 0.125


def test_a_calculation_is_used_where_no_price_is_known(clock: FakeClock) -> None:
    said: Attributes = {"gen_ai.request.model": "nobody-knows", "operation.cost": 0.5}
    with instrumented() as telemetry:
        with opened(clock):
            telemetry.tracer().start_span("c", attributes=HOUSE | USED | said).end()
        assert telemetry.total(names.COST, fate="delivered") == 0.5
        assert telemetry.total(names.UNPRICED) == 0


def test_a_wrong_price_file_stops_the_installation_whole(prices: str) -> None:
    with (
        pytest.raises(ConfigError, match="a TOML file with prices"),
        instrumented(prices=f"{prices}.missing"),
    ):
        pass
    with instrumented(prices=prices):
        pass
