"""Clients on plain sockets that ask once, and may leave."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangup.demo.sockets import hang_up

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller got."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The answer of the agent."""
        answer: str = json.loads(self.body)["answer"]
        return answer


class Caller:
    """A client on a plain socket that has asked, and may leave."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self._writer = writer

    def leaves(self) -> float:
        """Hang up, and return when."""
        return hang_up(self._writer)

    async def answer(self) -> Answer:
        """Return the answer; the server closes."""
        async with asyncio.timeout(_PATIENCE):
            raw = await self.reader.read()
        self._writer.close()
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if headers.get("transfer-encoding") == "chunked":
            body = _dechunked(body)
        return Answer(int(first.split()[1]), headers, body)


def _dechunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        whole, body = whole + body[:length], body[length + 2 :]
    return whole
