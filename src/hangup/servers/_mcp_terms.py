"""What run a request over MCP gets: budget, mode, name, and the run it continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hangup import config
from hangup.config import Mode
from hangup.core import registry, rollout
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.current import current_run
from hangup.core.deadline import Deadline, check_budget
from hangup.core.scope import RunScope
from hangup.otel import mcpwire, wire
from hangup.servers._common_plan import unasked, under
from hangup.servers._common_terms import (
    RouteSettings,
    Unset,
    route_settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangup.core.clock import Clock
    from hangup.core.run import Run
    from hangup.otel.wire import Inbound

# What any server answers by itself, or keeps open for as long as its client stays.
_NOT_WORK: Final = frozenset(
    {
        "initialize",
        "ping",
        "server/discover",
        "logging/setLevel",
        "prompts/list",
        "resources/list",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "subscriptions/listen",
        "tools/list",
    }
)
_WORK: Final = frozenset({"completion/complete", "prompts/get", "resources/read"})
_ELSE: Final = "mcp"


class Opening(NamedTuple):
    """How to serve one request.

    Attributes:
        run: The scope to enter, outside of every other run.
        inbound: The run of another process that this one continues.
        tool: The tool that is called, None for any other request.
        protected: It cannot be undone: begun it is finished, and it is never refused.
    """

    run: RunScope
    inbound: Inbound | None
    tool: str | None
    protected: bool


class Terms:
    """The settings of one server, checked. Immutable, thread-safe.

    Args:
        budget: Seconds a request may take; None is ``HANGUP_BUDGET``.
        mode: None is that of the process, and ``observe`` where that has none.
        name: What its runs are called in metrics; None is the name of the tool.
        tenant: Whom the work is for.
        tools: Settings by the name of a tool, which go before these.
        clock: What to measure on; tests inject one.

    Raises:
        ConfigError: A value cannot be used.
    """

    def __init__(  # noqa: PLR0913  the settings of a server, one to one
        self,
        *,
        budget: float | None = None,
        mode: Mode | str | None = None,
        name: str | None = None,
        tenant: str | None = None,
        tools: Mapping[str, RouteSettings | Mapping[str, Any]] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_budget(budget)
        self._budget = budget
        self._mode = config.read_mode("mode", mode)
        self._name = name
        self._tenant = tenant
        self._tools = {
            tool: route_settings(f"tools[{tool!r}]", one)
            for tool, one in (tools or {}).items()
        }
        self._clock = clock
        for tool, one in self._tools.items():
            asked = self._asked(one) or config.current().mode or Mode.OBSERVE
            registry.declare(one.name or name or tool, asked)

    def open(
        self, method: str, params: Mapping[str, Any] | None, traits: ToolTraits
    ) -> Opening | None:
        """Return how to serve a request; None where hangup stays out of it.

        Args:
            method: Of the request.
            params: Its parameters, as they came.
            traits: What is known of the tools of the server.
        """
        if method in _NOT_WORK:
            return None
        tool = mcpwire.tool_of(method, params)
        own = self._tools.get(tool or "", _PLAIN)
        settings = config.current()
        known = tool is not None and (tool in self._tools or tool in traits.known)
        name = own.name or self._name or _name(method, tool if known else None)
        tenant = own.tenant or self._tenant
        rule = rollout.find((), name, tenant or "")
        asked = self._asked(own)
        mode = (asked or Mode.ENFORCE).least(settings.mode)
        if Mode.OFF in (mode, None if rule is None else rule.mode):
            return None
        inbound, around = mcpwire.inbound_of(params), current_run()
        if around is not None and not (
            around.latent or inbound is None or inbound.token == around.id
        ):
            around = None  # where the session was opened, not who is asking
        token = None if inbound is None else inbound.token
        if inbound is not None:
            mode = under(mode, inbound)
        budget = None if rule is None else rule.budget
        if budget is None:
            budget = self._budget_of(own, settings)
        deadline = self._deadline(budget, inbound, settings)
        if around is not None:
            # A web server's run around a request over HTTP, or the caller's own.
            deadline = deadline.tightened(_on(self._clock, around))
            mode = mode.least(around.mode)
            if token is None and not around.latent:
                token = around.id
        scope = RunScope(
            name=name,
            tenant=tenant,
            mode=mode,
            deadline=deadline,
            token=token,
            joined=token is not None,
            latent=True,
            server=True,
            place=unasked(mode) if asked is None else None,
            clock=self._clock,
        )
        protected = tool is not None and (
            tool in settings.irreversible or tool in traits.destructive
        )
        return Opening(scope, inbound, tool, protected)

    def _asked(self, own: RouteSettings) -> Mode | None:
        return Mode(own.mode) if own.mode else self._mode

    def _budget_of(self, own: RouteSettings, settings: config.Settings) -> float | None:
        if not isinstance(own.budget, Unset):
            return own.budget
        return settings.budget if self._budget is None else self._budget

    def _deadline(
        self, budget: float | None, inbound: Inbound | None, settings: config.Settings
    ) -> Deadline:
        deadline = Deadline.after(budget, self._clock)
        if inbound is None:
            return deadline
        theirs = wire.deadline_of(inbound, self._clock, settings.max_budget)
        return deadline.tightened(theirs)


class ToolTraits(NamedTuple):
    """What is known of the tools of a server, by their names.

    Attributes:
        known: Those that it has.
        destructive: Those that say of themselves that they destroy.
    """

    known: frozenset[str] = frozenset()
    destructive: frozenset[str] = frozenset()


_PLAIN: Final = RouteSettings()


def _on(clock: Clock, run: Run) -> Deadline:
    """Return the deadline of a run, on this clock."""
    if run.clock is clock or not run.deadline.is_set:
        return Deadline(run.deadline.at, clock)
    return Deadline.after(max(0.0, run.deadline.remaining()), clock)


def _name(method: str, tool: str | None) -> str:
    # A metric label: nothing that any client may make up.
    if tool is not None:
        return tool
    return method if method in _WORK or method == mcpwire.TOOLS_CALL else _ELSE
