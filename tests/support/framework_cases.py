"""An example with two more ways to be asked, served where its framework is.

The module in ``EXAMPLE`` is served as it is. Beside its own paths there are

- ``POST /parallel/{thread}``: an agent with three tools, one of which fails while the
  others stream a model. In the framework's strict manner: the error ends the run.
- ``POST /stubborn/{thread}/{tool}``: an agent with one tool that is in the way of a
  stop. In its lenient manner, errors go back to the model, and the handler tries again
  whatever went wrong.
- ``GET /ended``: when the handler of each thread came to its end, in seconds of
  ``time.monotonic``, which on one machine all processes share.

The model called ``endless`` streams to these tools.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI, OpenAI
from starlette.responses import JSONResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    Tool = Callable[[str], Any]

MODEL = "main"
ENDLESS = "endless"
BLOCKS = 2.0
"""Seconds that the tool ``blocks`` does."""
_TRIES = 4
_ended: dict[str, float] = {}
_streaming: dict[str, int] = {}


@functools.cache
def _clients() -> tuple[AsyncOpenAI, OpenAI]:
    return AsyncOpenAI(max_retries=0), OpenAI(max_retries=0)


# The tools; the topic they are asked for is the name of the conversation


async def fails(topic: str) -> str:
    """Fail when the others are under way.

    Args:
        topic: What it is about.
    """
    async with asyncio.timeout(10):
        while _streaming.get(topic, 0) < 2:  # noqa: ASYNC110  no event is worth it
            await asyncio.sleep(0.02)
    raise LookupError("the tool failed")


async def streams(topic: str) -> str:
    """Stream a model.

    Args:
        topic: What it is about.
    """
    said: Any = [{"role": "user", "content": topic}]
    stream = await _clients()[0].chat.completions.create(
        model=ENDLESS, messages=said, stream=True
    )
    number = 0
    async for _ in stream:
        number += 1
        if number == 5:
            _streaming[topic] = _streaming.get(topic, 0) + 1
    return "done"


async def streams_too(topic: str) -> str:
    """Stream a model as well.

    Args:
        topic: What it is about.
    """
    return await streams(topic)


async def quick(topic: str) -> str:
    """Take a little time.

    Args:
        topic: What it is about.
    """
    await asyncio.sleep(0.2)
    return "done"


async def waits(topic: str) -> str:
    """Wait for a long time.

    Args:
        topic: What it is about.
    """
    await asyncio.sleep(60)
    return "done"


async def hides(topic: str) -> str:
    """Stream a model, and hide what comes of it.

    Args:
        topic: What it is about.
    """
    for _ in range(_TRIES):
        try:
            return await streams(topic)
        except Exception:  # noqa: BLE001, S110  it is that kind of tool
            pass
    return "no luck"


def blocks(topic: str) -> str:
    """Block, then ask a model, and hide what comes of it.

    Args:
        topic: What it is about.
    """
    time.sleep(BLOCKS)
    return asks(topic)


def asks(topic: str) -> str:
    """Stream a model from a thread, and hide what comes of it.

    Args:
        topic: What it is about.
    """
    said: Any = [{"role": "user", "content": topic}]
    for _ in range(_TRIES):
        try:
            for _chunk in _clients()[1].chat.completions.create(
                model=ENDLESS, messages=said, stream=True
            ):
                pass
        except Exception:  # noqa: BLE001, S110  it is that kind of tool
            pass
    return "no luck"


PARALLEL: tuple[Tool, ...] = (fails, streams, streams_too)
STUBBORN: dict[str, Tool] = {
    tool.__name__: tool for tool in (quick, waits, hides, blocks, asks)
}


# The frameworks


async def _openai_agents(text: str, tools: tuple[Tool, ...], *, strict: bool) -> str:
    sdk = import_module("agents")
    how: dict[str, Any] = {"failure_error_function": None} if strict else {}
    agent = sdk.Agent(
        name="agent",
        model=MODEL,
        tools=[sdk.function_tool(tool, **how) for tool in tools],
    )
    return str((await sdk.Runner.run(agent, text, max_turns=100)).final_output)


async def _pydantic_ai(text: str, tools: tuple[Tool, ...], *, strict: bool) -> str:
    sdk = import_module("pydantic_ai")
    models = import_module("pydantic_ai.models.openai")
    agent = sdk.Agent(
        models.OpenAIChatModel(MODEL),
        tools=tools if strict else [_lenient(tool, sdk.ModelRetry) for tool in tools],
        retries=50,
    )
    return str((await agent.run(text)).output)


def _lenient(tool: Tool, retry: type[Exception]) -> Tool:
    """Tell the model of errors, as pydantic-ai wants it told."""

    async def lenient(topic: str) -> str:
        try:
            return await _call(tool, topic)
        except Exception as error:
            raise retry(str(error)) from error

    lenient.__name__, lenient.__doc__ = tool.__name__, tool.__doc__
    return lenient


async def _call(tool: Tool, topic: str) -> str:
    if inspect.iscoroutinefunction(tool):
        return str(await tool(topic))
    return str(await asyncio.to_thread(tool, topic))


async def _anthropic(text: str, tools: tuple[Tool, ...], *, strict: bool) -> str:
    client = import_module("anthropic_loop").client
    named = {tool.__name__: tool for tool in tools}
    schema = {"type": "object", "properties": {"topic": {"type": "string"}}}
    offered = [{"name": name, "input_schema": schema} for name in named]
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]

    async def use(block: Any) -> dict[str, Any]:
        try:
            found = await _call(named[block.name], block.input["topic"])
        except Exception as error:
            if strict:
                raise
            found = str(error)
        return {"type": "tool_result", "tool_use_id": block.id, "content": found}

    while True:
        async with client.messages.stream(
            model=MODEL, max_tokens=100, messages=messages, tools=offered
        ) as stream:
            reply = await stream.get_final_message()
        uses = [block for block in reply.content if block.type == "tool_use"]
        if not uses:
            return "done"
        # Not hangup.gather: what a user may have, which leaves the siblings running.
        results = await asyncio.gather(*(use(block) for block in uses))
        messages += [
            {"role": "assistant", "content": reply.content},
            {"role": "user", "content": results},
        ]


async def _smolagents(text: str, tools: tuple[Tool, ...], *, strict: bool) -> str:
    sdk = import_module("smolagents")
    agent = sdk.ToolCallingAgent(
        [sdk.tool(tool) for tool in tools],
        sdk.OpenAIModel(MODEL),
        max_steps=50,
        verbosity_level=sdk.LogLevel.OFF,
    )
    return str(await asyncio.to_thread(agent.run, text))


_FRAMEWORKS: dict[str, Callable[..., Any]] = {
    "openai_agents_agent": _openai_agents,
    "pydantic_ai_agent": _pydantic_ai,
    "anthropic_loop": _anthropic,
    "smolagents_agent": _smolagents,
}


# The paths


async def _parallel(request: Request) -> JSONResponse:
    text = (await request.json())["text"]
    try:
        return _answer(await _agent(text, PARALLEL, strict=True))
    except Exception as error:  # noqa: BLE001  else the server would log it
        return JSONResponse({"error": str(error)}, 500)
    finally:
        _ended[request.path_params["thread"]] = time.monotonic()


async def _stubborn(request: Request) -> JSONResponse:
    text = (await request.json())["text"]
    tool = STUBBORN[request.path_params["tool"]]
    try:
        for _ in range(_TRIES):
            try:
                return _answer(await _agent(text, (tool,), strict=False))
            except Exception:  # noqa: BLE001, S110  it is that kind of handler
                pass
        return _answer("no luck")
    finally:
        _ended[request.path_params["thread"]] = time.monotonic()


async def _endings(_request: Request) -> JSONResponse:
    return JSONResponse(_ended)


def _answer(text: str) -> JSONResponse:
    return JSONResponse({"answer": text})


def _served(example: str) -> Any:
    _clients()
    app = import_module(example).app
    app.app.router.routes += [
        Route("/parallel/{thread}", _parallel, methods=["POST"]),
        Route("/stubborn/{thread}/{tool}", _stubborn, methods=["POST"]),
        Route("/ended", _endings),
    ]
    return app


if (_example := os.environ.get("EXAMPLE")) is not None:
    _agent = _FRAMEWORKS[_example]
    app = _served(_example)
