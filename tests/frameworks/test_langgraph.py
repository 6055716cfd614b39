"""LangGraph: subgraphs, parallel nodes, and threads that are usable after a stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.frameworks import Served, all_return, all_stop, served, threads

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def app() -> Iterator[Served]:
    with served("langgraph_agent") as app:
        yield app


@pytest.mark.wide
def test_twenty_walk_away_and_come_back(app: Served) -> None:
    async def scenario() -> None:
        names = threads(20)
        await all_stop(app, names)
        await all_return(app, names)

    asyncio.run(scenario())
