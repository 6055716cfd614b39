"""A request to the model, and what answers it, whatever dialect the two speak."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangup.demo.brain import Reply


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for.

    Attributes:
        model: The model's name.
        stream: Whether the answer is to come as a stream.
        tells_usage: Whether a stream is to end with its usage.
        seed: The request's own seed, or None.
        most: The most output tokens, or None.
        texts: What the model reads: one text for each message and each tool.
        tools: Names of the tools it may ask for.
        rounds: How often it has asked for tools before.
    """

    model: str
    stream: bool = False
    tells_usage: bool = True
    seed: int | None = None
    most: int | None = None
    texts: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    rounds: int = 0


class Shapes(Protocol):
    """One planned reply in the forms that a client may ask for."""

    def whole(self) -> dict[str, Any]:
        """Return the response of a call that is not a stream."""
        ...

    def opening(self) -> bytes:
        """Return how a stream tells its input with the first chunk, or nothing."""
        ...

    def chunk(self, index: int) -> bytes:
        """Return the events of the reply's chunk ``index``."""
        ...

    def closing(self, *, usage: bool) -> bytes:
        """Return what a stream says after its last chunk."""
        ...


class Dialect(Protocol):
    """One provider's API.

    Attributes:
        path: Where it is served.
    """

    path: str

    def asked(self, body: Mapping[str, Any]) -> Asked:
        """Read a request.

        Raises:
            KeyError, TypeError: It has not the shape of one.
        """
        ...

    def shapes(self, number: int, model: str, reply: Reply) -> Shapes:
        """Return the reply to request ``number`` in this dialect."""
        ...

    def error(self, message: str) -> dict[str, Any]:
        """Return an error's body."""
        ...


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return one server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def tool_text(name: str, tool: Mapping[str, Any], schema: str) -> str:
    """Return what the model reads of a tool that it may ask for."""
    parameters = json.dumps(tool.get(schema) or {})
    return f"{name} {tool.get('description', '')} {parameters}"
