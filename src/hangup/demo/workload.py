"""What one question costs in calls and seconds: the demo's fixed numbers.

Shared by the agents, who do the work, and the forecast, which adds it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hangup.demo.brain import DELEGATE, Script
from hangup.demo.seeds import draw, seed_of

OnClose = Literal["stop", "finish"]
MODELS = {"openai": "gpt-4o-mini", "anthropic": "claude-haiku-4-5"}
"""Real models' names by provider, so that their tokens have a price."""

SCRIPT = Script(plans_tools=True, rate=90.0, first_token=0.15, jitter=0.3)
"""How the demo's model answers."""

USER_HEADER = "x-demo-user"
PATH_HEADER = "x-demo-path"
"""Plain headers of the demo's own: whose call it is, and which."""
SEED_HEADER = "x-model-seed"
"""The seed of an answer, in a dialect that has no field for it."""

OBSERVE, ENFORCE = "observe", "enforce"
MODES = (OBSERVE, ENFORCE)
"""The two passes, and the first part of the agent's paths."""

EDGE_BUDGET = 30.0
"""Seconds the agent gives a request that asks for no less."""

TOOLS = ("search", "read", "calculate", DELEGATE)
ROUNDS = 4
"""Planning rounds at most; the scripted model is content after the third."""

_MOST_TOKENS = {
    "plan": 44,
    "search": 44,
    "read": 40,
    "claims": 40,
    "check": 32,
    "answer": 72,
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What the demo is run with beside its people.

    Attributes:
        provider: Whose dialect and client are used: a key of :data:`MODELS`.
        on_close: Whether the model stops or finishes when its caller hangs up.
        first_token: Seconds before the model's first token.
    """

    provider: str = "openai"
    on_close: OnClose = "stop"
    first_token: float = SCRIPT.first_token


def plan_path(number: int) -> str:
    """Return the path of planning call ``number``, from 1."""
    return f"plan {number}"


RESEARCH = "research"
SUBAGENT = f"{DELEGATE}/subagent"
"""The paths of the spans around an agent's whole work."""
CLAIMS = f"{DELEGATE}/claims"
CHECKS = (f"{DELEGATE}/check 1", f"{DELEGATE}/check 2")
ANSWER = "answer"


def most_tokens(path: str) -> int:
    """Return the ``max_tokens`` of the call at ``path``."""
    return _MOST_TOKENS[path.rpartition("/")[2].partition(" ")[0]]


def call_seed(seed: int, path: str) -> int:
    """Return the seed of the call at ``path`` of the question with this seed."""
    return seed_of(seed, path)


def work_seconds(seed: int, tool: str) -> float:
    """Return how long a tool works before it asks the model anything."""
    if tool == "calculate":
        return draw(seed, tool, "work").uniform(0.25, 0.6)
    return draw(seed, tool, "work").uniform(0.05, 0.2)
