"""Who asks, when, by which route, and what they do then: drawn from one seed.

Four in ten walk away at a random moment of the time their answer should take.
One in ten asks with a budget that ends within a second of the answer, before or
after it. The others wait as long as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from hangup.demo.forecast import forecast
from hangup.demo.seeds import draw, seed_of
from hangup.demo.workload import EDGE_BUDGET, SCRIPT

if TYPE_CHECKING:
    from hangup.demo.brain import Script

_ARRIVALS_PER_SECOND = 7.5
_LEAVING, _NEAR = 0.4, 0.1
_LEAVES_WITHIN = (0.04, 0.92)
"""Share of the answer's expected time. Not to the very end: whether somebody who
leaves with the last byte under way has the answer is a matter of the network."""
_NEAR_BY = (0.4, 0.8)
"""Seconds between budget and answer: less than one, more than the machine's noise."""


class Kind(StrEnum):
    """What a user does."""

    STAYS = "stays"
    LEAVES = "leaves"
    NEAR = "near"


@dataclass(frozen=True, slots=True)
class User:
    """One person with one question.

    Attributes:
        name: Short, unique.
        seed: Everything about the answer follows from it.
        kind: What the person does.
        route: The path asked.
        arrives: Seconds after the start of the pass.
        leaves_after: Seconds after asking, or None to wait.
        budget: Seconds asked for by header, or None for the edge's.
    """

    name: str
    seed: int
    kind: Kind
    route: str
    arrives: float
    leaves_after: float | None = None
    budget: float | None = None

    @property
    def seconds_given(self) -> float:
        """The budget the request runs under."""
        return EDGE_BUDGET if self.budget is None else min(self.budget, EDGE_BUDGET)


def population(
    users: int, seed: int, first_token: float = SCRIPT.first_token
) -> tuple[User, ...]:
    """Return that many users; the same for the same arguments.

    Args:
        users: How many.
        seed: Everything is drawn from it.
        first_token: The model's; how long answers should take depends on it.
    """
    script = replace(SCRIPT, first_token=first_token)
    rng = draw(seed, "population")
    near = round(users * _NEAR)
    leaving = round(users * _LEAVING)
    kinds = [Kind.NEAR] * near + [Kind.LEAVES] * leaving
    kinds += [Kind.STAYS] * (users - len(kinds))
    rng.shuffle(kinds)
    made = []
    turns = dict.fromkeys(Kind, 0)
    for index, kind in enumerate(kinds):
        turn = turns[kind]
        turns[kind] += 1
        made.append(_user(seed, script, index, kind, turn))
    return tuple(made)


def _user(seed: int, script: Script, index: int, kind: Kind, turn: int) -> User:
    """Return one user; ``turn`` alternates route and side within a kind."""
    rng = draw(seed, "user", index)
    own_seed = seed_of(seed, "question", index)
    expected = forecast(own_seed, script)
    leaves_after = budget = None
    if kind is Kind.LEAVES:
        leaves_after = expected * rng.uniform(*_LEAVES_WITHIN)
    elif kind is Kind.NEAR:
        side = 1 if turn % 2 else -1
        budget = round(expected + side * rng.uniform(*_NEAR_BY), 2)
    return User(
        name=f"u{index:03d}",
        seed=own_seed,
        kind=kind,
        route=("/research", "/research/stream")[turn % 2],
        arrives=(index + rng.random()) / _ARRIVALS_PER_SECOND,
        leaves_after=leaves_after,
        budget=budget,
    )
