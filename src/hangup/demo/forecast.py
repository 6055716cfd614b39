"""How long an answer should take, from its seed alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from hangup.demo.brain import Script

_OVERHEAD = 0.02
"""Seconds a call costs beyond the model's own time: two clients, two servers."""


def forecast(seed: int, script: Script = SCRIPT) -> float:
    """Return the seconds from question to complete answer, nobody interfering.

    The sum the agent's code makes: plan, the slowest tool, plan, the subagent,
    plan, answer.
    """
    first = plan_path(1)
    tools = planned_tools(call_seed(seed, first), 0, TOOLS)
    return (
        _call(seed, script, first)
        + max(_tool(seed, script, tool) for tool in tools)
        + _call(seed, script, plan_path(2))
        + _OVERHEAD
        + _call(seed, script, CLAIMS)
        + max(_call(seed, script, path) for path in CHECKS)
        + _call(seed, script, plan_path(3))
        + _call(seed, script, ANSWER)
    )


def _tool(seed: int, script: Script, tool: str) -> float:
    seconds = work_seconds(seed, tool)
    return seconds if tool == "calculate" else seconds + _call(seed, script, tool)


def _call(seed: int, script: Script, path: str) -> float:
    chunks = timeline(call_seed(seed, path), script, most_tokens(path))
    return chunks[-1].offset + _OVERHEAD
