"""How the user's code asks a model, one caller a client library.

Each has ``whole`` (one call, not streamed) and ``stream`` (the same, yielding text as
it comes). What only some environments have is imported when it is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

MODEL = "gpt-4o-mini"
CLAUDE = "claude-sonnet-4-5"
GEMINI = "gemini-2.5-flash"
PROMPT = "Well, what did the run come back with?"
_MESSAGES = [{"role": "user", "content": PROMPT}]
_LIMIT = 1000


class Caller(Protocol):
    """A client of one library, bound to one server."""

    async def whole(self) -> None: ...

    def stream(self) -> AsyncIterator[str]: ...


class OpenAIChat:
    """openai, chat completions; streams ask for usage."""

    def __init__(self, url: str) -> None:
        self.client = import_module("openai").AsyncOpenAI(
            base_url=f"{url}/v1", api_key="test", max_retries=0
        )

    async def whole(self) -> None:
        await self.client.chat.completions.create(model=MODEL, messages=_MESSAGES)

    async def stream(self) -> AsyncIterator[str]:
        async with await self.client.chat.completions.create(
            model=MODEL,
            messages=_MESSAGES,
            stream=True,
            **self._options(),
        ) as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    yield choice.delta.content or ""

    def _options(self) -> dict[str, Any]:
        return {"stream_options": {"include_usage": True}}


class OpenAIChatBare(OpenAIChat):
    """openai, chat completions; streams do not ask for usage."""

    def _options(self) -> dict[str, Any]:
        return {}


class OpenAISync:
    """openai's synchronous client, each of its steps in a thread."""

    def __init__(self, url: str) -> None:
        self._client = import_module("openai").OpenAI(
            base_url=f"{url}/v1", api_key="test", max_retries=0
        )

    async def whole(self) -> None:
        ask = self._client.chat.completions.create
        await asyncio.to_thread(ask, model=MODEL, messages=_MESSAGES)

    async def stream(self) -> AsyncIterator[str]:
        ask = self._client.chat.completions.create
        chunks = await asyncio.to_thread(
            lambda: ask(
                model=MODEL,
                messages=_MESSAGES,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        each = iter(chunks)
        while (chunk := await asyncio.to_thread(next, each, None)) is not None:
            for choice in chunk.choices:
                yield choice.delta.content or ""


class OpenAIResponses(OpenAIChat):
    """openai, Responses."""

    async def whole(self) -> None:
        await self.client.responses.create(model=MODEL, input=PROMPT)

    async def stream(self) -> AsyncIterator[str]:
        async with await self.client.responses.create(
            model=MODEL, input=PROMPT, stream=True
        ) as events:
            async for event in events:
                if event.type == "response.output_text.delta":
                    yield event.delta


class Anthropic:
    """anthropic, messages."""

    def __init__(self, url: str) -> None:
        self.client = import_module("anthropic").AsyncAnthropic(
            base_url=url, api_key="test", max_retries=0
        )

    async def whole(self) -> None:
        await self.client.messages.create(
            model=CLAUDE, messages=_MESSAGES, max_tokens=_LIMIT
        )

    async def stream(self) -> AsyncIterator[str]:
        async with await self.client.messages.create(
            model=CLAUDE, messages=_MESSAGES, max_tokens=_LIMIT, stream=True
        ) as events:
            async for event in events:
                if event.type == "content_block_delta":
                    yield event.delta.text


class AnthropicIterated(Anthropic):
    """anthropic, messages; streams are not entered, only iterated over."""

    async def stream(self) -> AsyncIterator[str]:
        events = await self.client.messages.create(
            model=CLAUDE, messages=_MESSAGES, max_tokens=_LIMIT, stream=True
        )
        async for event in events:
            if event.type == "content_block_delta":
                yield event.delta.text


class LangChain:
    """langchain-openai."""

    def __init__(self, url: str) -> None:
        self.chat = import_module("langchain_openai").ChatOpenAI(
            model=MODEL,
            base_url=f"{url}/v1",
            api_key="test",
            max_retries=0,
            stream_usage=True,
        )

    async def whole(self) -> None:
        await self.chat.ainvoke(PROMPT)

    async def stream(self) -> AsyncIterator[str]:
        async with contextlib.aclosing(self.chat.astream(PROMPT)) as chunks:
            async for chunk in chunks:
                yield str(chunk.content)


class LangChainAgent:
    """langchain on langchain-openai: one agent with one tool."""

    def __init__(self, url: str) -> None:
        self._agent = import_module("langchain.agents").create_agent(
            LangChain(url).chat, tools=[lookup]
        )
        self._asked = {"messages": _MESSAGES}

    async def whole(self) -> None:
        await self._agent.ainvoke(self._asked)

    async def stream(self) -> AsyncIterator[str]:
        events = self._agent.astream(self._asked, stream_mode="messages")
        async with contextlib.aclosing(events):
            async for message, _ in events:
                if message.type == "AIMessageChunk":
                    yield str(message.content)


class Agents:
    """openai-agents: one agent with one tool."""

    def __init__(self, url: str) -> None:
        agents = import_module("agents")
        model = agents.OpenAIResponsesModel(
            model=MODEL, openai_client=OpenAIChat(url).client
        )
        self._runner = agents.Runner
        self._agent = agents.Agent(
            name="helper",
            instructions="Help.",
            model=model,
            tools=[agents.function_tool(lookup)],
        )

    async def whole(self) -> None:
        await self._runner.run(self._agent, PROMPT)

    async def stream(self) -> AsyncIterator[str]:
        running = self._runner.run_streamed(self._agent, PROMPT)
        async for event in running.stream_events():
            data = getattr(event, "data", None)
            if getattr(data, "type", "") == "response.output_text.delta":
                yield data.delta  # type: ignore[union-attr]  # the type says so


class PydanticAI:
    """pydantic-ai on OpenAI chat: one agent with one tool."""

    def __init__(self, url: str) -> None:
        provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(
            openai_client=OpenAIChat(url).client
        )
        model = import_module("pydantic_ai.models.openai").OpenAIChatModel(
            MODEL, provider=provider
        )
        self._agent = import_module("pydantic_ai").Agent(model, name="helper")
        self._agent.tool_plain(lookup)

    async def whole(self) -> None:
        await self._agent.run(PROMPT)

    async def stream(self) -> AsyncIterator[str]:
        async with self._agent.run_stream(PROMPT) as running:
            async for text in running.stream_text(delta=True, debounce_by=None):
                yield text


class Http:
    """A plain HTTP client, one of two libraries, one of four dialects."""

    def __init__(self, library: str, path: str, body: dict[str, Any]) -> None:
        self._client = import_module(library).AsyncClient()
        self._path = path
        self._body = body

    def at(self, url: str) -> Http:
        """Bind it to a server."""
        self._url = url + self._path
        return self

    async def whole(self) -> None:
        response = await self._client.post(self._url, json=self._body)
        response.raise_for_status()

    async def stream(self) -> AsyncIterator[str]:
        url, body = self._url, {**self._body, "stream": True}
        if ":generateContent" in url:
            url = url.replace(":generateContent", ":streamGenerateContent?alt=sse")
            body = self._body
        elif url.endswith("/chat/completions"):
            body["stream_options"] = {"include_usage": True}
        async with self._client.stream("POST", url, json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                yield _text_of(line)


def _text_of(line: str) -> str:
    """Return the text in one line of a stream of any dialect."""
    if not line.startswith("data: {"):
        return ""
    event = json.loads(line.removeprefix("data: "))
    for choice in event.get("choices", ()):
        return str(choice["delta"].get("content") or "")
    for candidate in event.get("candidates", ()):
        return str(candidate["content"]["parts"][0]["text"])
    delta = event.get("delta", "")
    return str(delta.get("text", "") if isinstance(delta, dict) else delta)


def lookup() -> str:
    """Look it up."""
    return "found"


_CHAT = {"model": MODEL, "messages": _MESSAGES}
_GENERATE = {"contents": [{"role": "user", "parts": [{"text": PROMPT}]}]}
CALLERS: dict[str, Callable[[str], Caller]] = {
    "openai chat": OpenAIChat,
    "openai chat, usage not asked for": OpenAIChatBare,
    "openai chat, in threads": OpenAISync,
    "openai Responses": OpenAIResponses,
    "anthropic": Anthropic,
    "anthropic, stream not entered": AnthropicIterated,
    "langchain-openai": LangChain,
    "langchain agent": LangChainAgent,
    "openai-agents": Agents,
    "pydantic-ai": PydanticAI,
    "httpx": lambda url: Http("httpx", "/v1/chat/completions", _CHAT).at(url),
    "httpx2": lambda url: Http(
        "httpx2", "/v1/messages", _CHAT | {"max_tokens": _LIMIT}
    ).at(url),
    "httpx, Gemini": lambda url: Http(
        "httpx", f"/v1beta/models/{GEMINI}:generateContent", _GENERATE
    ).at(url),
}
