"""A model that never comes to an end: each of its answers asks for more tools.

Only to somebody who says hello it answers with text. A history that the real providers
refuse, it refuses as they do.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from support.providers.history import fault, said
from support.providers.script import Script, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HELLO = "hello"
_ENDS = ("final_answer", "final_result")
_NAME = re.compile(r"thread-\d+")
_SCRIPT = Script(tokens=5, input=20, rate=20, first=0.05)


def conversation(asked: Mapping[str, Any]) -> str:
    """Return the name of the conversation a request belongs to, as in ``thread-7``.

    Callers say it, and the model says it in all that it asks of tools.
    """
    found = _NAME.findall(" ".join(said(asked)))
    return found[-1] if found else ""


@dataclass
class Tireless:
    """Makes the script of each request, as :class:`Provider` asks for it.

    Args:
        script: How fast it answers.
        tools: The tools to ask for in turn; empty is all that are offered, but those
            that end the work.
        at_once: How many of them in one answer.
        asking: How fast it asks for tools, where that is different.
    """

    script: Script = _SCRIPT
    tools: tuple[str, ...] = ()
    at_once: int = 1
    asking: Script | None = None
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self, asked: Mapping[str, Any]) -> Script:
        """Return how to answer."""
        refusal = fault(asked)
        if refusal:
            return replace(self.script, refusal=refusal)
        offered = dict(_offered(asked))
        greeted = HELLO in said(asked)[-1].lower()
        wanted = [
            name
            for name in self.tools or offered
            if name in offered and (name in _ENDS) == greeted
        ]
        if not wanted:
            return self.script
        name = conversation(asked)
        calls = []
        for _ in range(1 if greeted else self.at_once):
            number = next(self._ids)
            tool = wanted[number % len(wanted)]
            arguments = json.dumps(_arguments(offered[tool], name))
            calls.append(ToolCall(f"call_{number}", tool, arguments))
        return replace(self.asking or self.script, calls=tuple(calls))


def _offered(asked: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield names and schemas of the tools, in whichever dialect."""
    for tool in asked.get("tools") or ():
        function = tool.get("function", tool)
        schema = function.get("parameters") or function.get("input_schema") or {}
        yield function["name"], schema


def _arguments(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    made = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    return {
        argument: made.get(about.get("type", "string"), name)
        for argument, about in schema.get("properties", {}).items()
    }
