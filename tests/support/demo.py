"""Hand-made visits, calls and passes of the demo, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from hangup.demo.journal import CallRecord
from hangup.demo.population import Kind, User
from hangup.demo.results import Demo, Pass
from hangup.demo.users import Visit

START = 1000.0
"""When every hand-made visit starts."""


def a_user(
    name: str = "u000", *, budget: float | None = None, kind: Kind = Kind.STAYS
) -> User:
    return User(name, seed=1, kind=kind, route="/research", arrives=0.0, budget=budget)


def a_visit(  # noqa: PLR0913  a visit has that many facts
    *,
    user: User | None = None,
    mode: str = "observe",
    left: float | None = None,
    finished: float = 10.0,
    answer: str | None = None,
    first_byte: float | None = None,
) -> Visit:
    """Return a visit; times are seconds after ``START``."""
    user = user or a_user()
    return Visit(
        user=user,
        tag=f"{mode}/{user.name}",
        started=START,
        first_byte=None if first_byte is None else START + first_byte,
        left=None if left is None else START + left,
        finished=START + (finished if left is None else left),
        status=200 if answer is not None else 0,
        answer=answer,
    )


def a_call(  # noqa: PLR0913  a record has that many facts
    opened: float,
    closed: float,
    *,
    input_tokens: int = 100,
    chunks: tuple[tuple[float, int], ...] = (),
    user: str = "observe/u000",
    path: str = "plan 1",
    cut: bool = False,
    usage_sent: bool | None = None,
) -> CallRecord:
    """Return a call; times are seconds after ``START``."""
    return CallRecord(
        id=f"{path} {opened}",
        user=user,
        path=path,
        model="gpt-4o-mini",
        stream=False,
        opened=START + opened,
        input_tokens=input_tokens,
        chunks=[(START + at, tokens) for at, tokens in chunks],
        closed=START + closed,
        ended=START + closed,
        cut=cut,
        usage_sent=not cut if usage_sent is None else usage_sent,
    )


def a_step(path: str, start: float, end: float, user: str) -> dict[str, Any]:
    return {"user": user, "path": path, "start": START + start, "end": START + end}


def point(name: str, value: float, **attributes: str) -> dict[str, Any]:
    """Return a data point; ``_`` in an attribute's name stands for a dot."""
    named = {key.replace("_", "."): text for key, text in attributes.items()}
    return {"name": name, "attributes": named, "value": value}


def a_pass(
    mode: str,
    visits: list[Visit],
    calls: list[CallRecord] | None = None,
    steps: list[dict[str, Any]] | None = None,
) -> Pass:
    return Pass(mode, visits, calls or [], [], [], steps or [])


def a_demo(observe: Pass, enforce: Pass) -> Demo:
    return Demo("0.0", len(observe.visits), 7, observe, enforce)
