"""Run rows of the matrix in the environment they were made for: ``row.py NAME...``.

The rows must be watched by the same instrumentations. Prints one JSON object: by row
and scenario, what the server did and what hangup counted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from matrix.bench import run_models
from matrix.instrumentations import INSTRUMENTATIONS, set_up_provider
from matrix.rows import MCP, row_named
from matrix.toolbench import run_tools
from support.providers.server import Provider

from hangup import testing
from hangup.core import guard
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from matrix.bench import Scenarios


async def _run(names: list[str], recorded: testing.Telemetry) -> dict[str, Scenarios]:
    found = {}
    with Provider() as server:
        for name in names:
            row = row_named(name)
            if row.client == MCP:
                found[name] = await run_tools(recorded)
            else:
                found[name] = await run_models(row, recorded, server)
    return found


def main() -> None:
    """Run the rows that the command line names."""
    names = sys.argv[1:]
    [watched_by] = {row_named(name).watched_by for name in names}
    guard.strict(True)  # noqa: FBT003  a switch
    recorded = testing.Telemetry()
    provider = set_up_provider(recorded.tracer_provider, watched_by)
    HangupInstrumentor().instrument(
        frameworks=(),
        mode="enforce",
        tracer_provider=provider,
        meter_provider=recorded.meter_provider,
    )
    for name in watched_by:
        INSTRUMENTATIONS[name]()
    # Nothing may be closed or counted only because a collection happened to come by.
    gc.disable()
    found = asyncio.run(_run(names, recorded))
    gc.collect()
    plain = {
        row: {scenario: asdict(measured) for scenario, measured in scenarios.items()}
        for row, scenarios in found.items()
    }
    # Last, on a line of its own: libraries also print.
    print("\n" + json.dumps(plain))  # noqa: T201  the result


if __name__ == "__main__":
    main()
