"""The population over real sockets, with a clock of its own for every visit."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hangup.demo.sockets import Connection
from hangup.demo.workload import USER_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangup.demo.population import User

_QUESTION = (
    "What do we know about answers that nobody waits for? Compare what several "
    "teams report about cost, about queues and about limits, name the evidence for "
    "each, and say in the end which limit you would set first and why you would."
)
_PATIENCE = 60.0
"""Seconds after which a silent server is a broken demo, not a slow answer."""


@dataclass(slots=True)
class Visit:
    """What one user saw in one pass; times are ``time.monotonic()``.

    Attributes:
        user: Who.
        tag: How the model server's log calls the visit.
        started: When the request was written.
        first_byte: When the response's head had come, if it had.
        left: When the user walked away; None for those who waited.
        finished: When the response was complete, or broken off, or left.
        status: The HTTP status, or 0.
        answer: The complete answer; None for anybody who has none.
    """

    user: User
    tag: str
    started: float = 0.0
    first_byte: float | None = None
    left: float | None = None
    finished: float = 0.0
    status: int = 0
    answer: str | None = None

    @property
    def answered(self) -> bool:
        """Whether the user has the whole answer."""
        return self.answer is not None

    @property
    def deadline(self) -> float:
        """The end of the budget on the user's own clock."""
        return self.started + self.user.seconds_given

    @property
    def t0(self) -> float | None:
        """When the run was of no more use to anybody; None if it was of use.

        The user's own clock decides: the moment of leaving; for a user who waited
        and was given no answer, the deadline, or the refusal if that came sooner.
        """
        if self.left is not None:
            return self.left
        return None if self.answered else min(self.deadline, self.finished)


async def visit_all(
    url: str,
    users: Sequence[User],
    mode: str,
    on_done: Callable[[Visit], None] = lambda _visit: None,
) -> list[Visit]:
    """Let everybody ask, each in their own time; return what they saw.

    Args:
        url: Where the agent is.
        users: Who asks.
        mode: The pass: the first part of the path and of every tag.
        on_done: Told of each visit that is over.
    """
    begin = time.monotonic() + 0.05

    async def one(user: User) -> Visit:
        await asyncio.sleep(begin + user.arrives - time.monotonic())
        visit = await ask(f"{url}/{mode}", user, f"{mode}/{user.name}")
        on_done(visit)
        return visit

    return list(await asyncio.gather(*(one(user) for user in users)))


async def ask(url: str, user: User, tag: str) -> Visit:
    """Ask one question and wait for the answer, or leave as the user does."""
    visit = Visit(user, tag)
    connection = await Connection.open(f"{url}{user.route}")
    leaving = None

    def begun(status: int) -> None:
        visit.first_byte = time.monotonic()
        visit.status = status

    try:
        visit.started = time.monotonic()
        connection.send("POST", _headers(user, tag), _body(user))
        if user.leaves_after is not None:
            leaving = asyncio.get_running_loop().call_later(
                user.leaves_after, _leave, visit, connection
            )
        async with asyncio.timeout(_PATIENCE):
            response = await connection.receive(begun)
        if response.status == 200:  # noqa: PLR2004  HTTP
            visit.answer = _answer(response.body.decode())
    except (EOFError, ConnectionError):
        pass  # broken off, by either side: there is no answer
    finally:
        visit.finished = visit.left or time.monotonic()
        if leaving is not None:
            leaving.cancel()
        connection.close()
    return visit


def _leave(visit: Visit, connection: Connection) -> None:
    if not visit.answered:
        visit.left = connection.hang_up()


def _headers(user: User, tag: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json", USER_HEADER: tag}
    if user.budget is not None:
        headers["X-Hangup-Budget"] = str(user.budget)
    return headers


def _body(user: User) -> bytes:
    return json.dumps({"question": _QUESTION, "seed": user.seed}).encode()


def _answer(body: str) -> str | None:
    """Return the answer in a JSON body, or in the last event of a stream."""
    last = body.strip().rpartition("\n\n")[2].removeprefix("data: ")
    answer = json.loads(last).get("answer")
    return None if answer is None else str(answer)
