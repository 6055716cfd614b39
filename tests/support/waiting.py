"""Waiting for what no event tells of."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 10.0
"""Seconds; the machine may be busy."""


async def eventually(holds: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait until it is so; another thread or process may make it so."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110  see above
            await asyncio.sleep(0.005)
