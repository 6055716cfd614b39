"""What parent, child and grandchild have in common: three processes that speak MCP.

Each asks the model at ``MODEL``, by a name that says which scenario and whose call it
is, and hands the work on. What was booked goes to files (``support.books``).
The wall clock of each is off by ``SKEW`` seconds.
"""

from __future__ import annotations

import os
import time
from typing import Any

from openai import AsyncOpenAI
from opentelemetry import trace
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from support.books import writing

import hangup
from hangup.core.clock import SystemClock

SKEWS = {"parent": 0.0, "child": 120.0, "grandchild": -120.0}
ROLES = tuple(SKEWS)
BUDGET = 4.0


class Kin:
    """One of them.

    Args:
        role: Who it is.
        settings: For ``hangup.instrument``.
    """

    def __init__(self, role: str, **settings: Any) -> None:
        self.role = role
        skew = SKEWS[role]
        # Before anybody asks: the clock that the propagator and the codec ask.
        setattr(SystemClock, "wall", staticmethod(lambda: time.time() + skew))  # noqa: B010
        tracers = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(tracers)  # the SDK of MCP makes its spans there
        hangup.instrument(tracer_provider=tracers, meter_provider=writing(), **settings)
        OpenAIInstrumentor().instrument(
            tracer_provider=tracers,
            meter_provider=MeterProvider(shutdown_on_exit=False),
        )
        self._client = AsyncOpenAI(
            base_url=os.environ["MODEL"], api_key="test", max_retries=0
        )

    async def prepare(self) -> None:
        """Do what takes long the first time."""
        await self._client.models.list()
        assert self._client.chat.completions

    async def ask(self, scenario: str) -> str:
        """Read one answer of the model, as a stream."""
        stream = await self._client.chat.completions.create(
            model=f"{scenario}-{self.role}",
            messages=[{"role": "user", "content": "Well?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        said = []
        async with stream:
            async for chunk in stream:
                said += [choice.delta.content or "" for choice in chunk.choices]
        return "".join(said)
