"""What a blocking agent has at hand; imported in a process of its own.

The model is at ``MODEL``. hangup and the OpenAI instrumentation are installed here, and
the books are read over HTTP, from inside the process that keeps them.
"""

from __future__ import annotations

import json
import os
import urllib.request
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI, OpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from support.blocking_names import MODEL
from support.telemetry import Telemetry

from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import Iterator


ROUTES: dict[str, Any] = {
    "/late/*": {"budget": 0.6},
    "/kept/*": {"on_disconnect": "finish"},
}

telemetry = Telemetry()
HangupInstrumentor().instrument(
    frameworks=(),
    tracer_provider=telemetry.tracer_provider,
    meter_provider=telemetry.meter_provider,
    logger_provider=telemetry.logger_provider,
    settle=1.0,
)
OpenAIInstrumentor().instrument(
    tracer_provider=telemetry.tracer_provider,
    meter_provider=telemetry.meter_provider,
)
client = OpenAI(base_url=os.environ["MODEL"], api_key="test", max_retries=0)
# The first call imports for a good part of a second; the cases have less.
client.models.list()


def pieces() -> Iterator[str]:
    """Stream one model call."""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Well?"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    with stream:
        for chunk in stream:
            if chunk.choices:
                yield chunk.choices[0].delta.content or ""


async def gathered() -> str:
    """Stream one model call with a client of the loop that runs, whichever that is."""
    async with AsyncOpenAI(base_url=os.environ["MODEL"], api_key="test") as own:
        stream = await own.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Well?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        return "".join(
            [
                chunk.choices[0].delta.content or ""
                async for chunk in stream
                if chunk.choices
            ]
        )


def whole() -> str:
    """Make one model call in a way that nobody can interrupt."""
    tracer = telemetry.tracer_provider.get_tracer("by hand")
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": MODEL}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Well?"}]}
    request = urllib.request.Request(  # noqa: S310  our own model
        f"{os.environ['MODEL']}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with tracer.start_as_current_span("chat", attributes=attributes) as span:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            found = json.load(answer)
        usage = found["usage"]
        span.set_attribute("gen_ai.usage.input_tokens", usage["prompt_tokens"])
        span.set_attribute("gen_ai.usage.output_tokens", usage["completion_tokens"])
    text: str = found["choices"][0]["message"]["content"]
    return text


def books() -> dict[str, Any]:
    """What hangup has counted so far."""
    fates = ("delivered", "sunk", "wasted")
    by_name: dict[str, float] = {}
    for series in telemetry.series(names.RUNS).get(names.RUNS, ()):
        if series.value:
            name = str(series.labels[names.RUN_NAME])
            by_name[name] = by_name.get(name, 0) + series.value
    return {
        "runs": telemetry.total(names.RUNS),
        "delivered": telemetry.total(names.RUNS, outcome="delivered"),
        "abandoned": telemetry.abandoned(),
        "by name": by_name,
        "tokens": {fate: sum(telemetry.tokens(fate)) for fate in fates},
        "metered": telemetry.total(names.METERED_TOKENS),
        "unsettled": telemetry.total(names.UNSETTLED),
        "active": telemetry.total(names.ACTIVE),
    }
