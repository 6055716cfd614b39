"""How long an answer should take, from its seed alone."""

from __future__ import annotations

from hangup.demo.brain import planned_tools, timeline
from hangup.demo.workload import (
    ANSWER,
    CHECKS,
    CLAIMS,
    SCRIPT,
    TOOLS,
    call_seed,
    most_tokens,
    plan_path,
    work_seconds,
)

_OVERHEAD = 0.02
"""Seconds a call costs beyond the model's own time: two clients, two servers."""


def forecast(seed: int) -> float:
    """Return the seconds from question to complete answer, nobody interfering.

    The sum the agent's code makes: plan, the slowest tool, plan, the subagent,
    plan, answer.
    """
    first = plan_path(1)
    tools = planned_tools(call_seed(seed, first), 0, TOOLS)
    return (
        _call(seed, first)
        + max(_tool(seed, tool) for tool in tools)
        + _call(seed, plan_path(2))
        + _OVERHEAD
        + _call(seed, CLAIMS)
        + max(_call(seed, path) for path in CHECKS)
        + _call(seed, plan_path(3))
        + _call(seed, ANSWER)
    )


def _tool(seed: int, tool: str) -> float:
    seconds = work_seconds(seed, tool)
    return seconds if tool == "calculate" else seconds + _call(seed, tool)


def _call(seed: int, path: str) -> float:
    chunks = timeline(call_seed(seed, path), SCRIPT, most_tokens(path))
    return chunks[-1].offset + _OVERHEAD
