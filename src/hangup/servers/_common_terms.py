"""What run a request gets: budget, mode, name, and the run it continues."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from hangup import config
from hangup.config import Mode, OnDisconnect
from hangup.core import registry, rollout
from hangup.core.clock import SYSTEM_CLOCK
from hangup.core.deadline import Deadline, check_budget
from hangup.core.rules import compiled
from hangup.core.scope import RunScope
from hangup.errors import ConfigError
from hangup.otel import wire
from hangup.servers._common_fields import Fields, read_budget
from hangup.servers._common_plan import Plan, place_of, under
from hangup.servers._common_tenant import header_of, tenant_of

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping

    from hangup.core.clock import Clock
    from hangup.otel.wire import Inbound
    from hangup.servers._common_tenant import TenantOf

_logger = logging.getLogger("hangup.servers")


class Unset(Enum):
    """The type of a setting nobody gave, where None has a meaning of its own."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """Settings of the connections whose path matches one pattern. Immutable.

    Attributes:
        budget: Seconds; None for no deadline, which is how a route says that its
            responses are long-lived. Not given: the application's for HTTP, none for
            a WebSocket.
        mode: off, observe, refuse or enforce. Not given: the application's.
        name: What the run is called in metrics. Not given: the route template.
        tenant: Whom the work is for.
        on_disconnect: abandon, grace or finish. Not given: the application's.
        grace: Seconds to come back in. Not given: the application's.
        background_in_run: Whether work after the response is part of the run (ASGI).
            Not given: the application's.

    Raises:
        ConfigError: A budget or grace that is negative or NaN, an unknown mode or
            ``on_disconnect``.
    """

    budget: float | Unset | None = UNSET
    mode: Mode | str | None = None
    name: str | None = None
    tenant: str | None = None
    on_disconnect: OnDisconnect | str | None = None
    grace: float | None = None
    background_in_run: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Unset):
            check_budget(self.budget, setting="route budget")
        object.__setattr__(self, "mode", config.read_mode("route mode", self.mode))
        meant = config.read_on_disconnect("route on_disconnect", self.on_disconnect)
        object.__setattr__(self, "on_disconnect", meant)
        grace = config.read_seconds("route grace", self.grace)
        object.__setattr__(self, "grace", grace)


class Keywords(TypedDict, total=False):
    """What adapters take as keywords. None, or not given, is the default.

    Attributes:
        budget: Seconds an HTTP request may take, from its arrival. The default is
            ``HANGUP_BUDGET``, which is not for a browser's ``EventSource``. A WebSocket
            has none unless its route says so.
        mode: off, observe, refuse or enforce (the default for an adapter added in
            code). ``HANGUP_MODE`` is a ceiling.
        name: What the runs are called in metrics. The default is the route template
            that the framework found, else the matching pattern of ``routes``, else
            ``http`` or ``websocket``; never the raw path.
        tenant: Whom the work is for, or a function of the request (as the server has
            it) that says so. It must not block. The default is ``HANGUP_TENANT_FROM``.
        routes: Settings by path pattern, the first that matches: ``/chat``,
            ``/threads/{id}/chat`` (one segment), ``/files/{rest:path}``, ``/agents/*``
            (anything). Values are :class:`RouteSettings` or mappings with its fields.
        budget_header: Request header that may tighten the budget; "" is none, the
            default ``HANGUP_BUDGET_HEADER`` (``x-hangup-budget``).
        on_disconnect: What a client's leaving means: ``abandon``, ``grace`` or
            ``finish``. The default is ``HANGUP_ON_DISCONNECT`` (abandon).
        grace: Seconds in which a client may come back, under ``grace``. The default is
            ``HANGUP_GRACE``.
    """

    budget: float | None
    mode: Mode | str | None
    name: str | None
    tenant: str | TenantOf | None
    routes: Mapping[str, RouteSettings | Mapping[str, Any]] | None
    budget_header: str | None
    on_disconnect: OnDisconnect | str | None
    grace: float | None


class Opening(NamedTuple):
    """How to serve one connection.

    Attributes:
        run: The scope to enter.
        name: The name somebody chose, or None: the framework's route template.
        fallback: The name where there is no template either.
        inbound: The run of another process that this one continues.
        background_in_run: Work after the response is part of the run.
    """

    run: RunScope
    name: str | None
    fallback: str
    inbound: Inbound | None
    background_in_run: bool = False


class _Plans(NamedTuple):
    """Every plan of a middleware; made anew when the settings are replaced."""

    settings: config.Settings
    budget_header: bytes
    tenant_header: bytes
    default: Plan
    routes: list[tuple[re.Pattern[str], Plan]]

    def of(self, path: str, root: str) -> Plan:
        if not self.routes:
            return self.default
        # Patterns are written like the application's own routes, below its root path;
        # the full path is tried too, for one that is mounted and knows where.
        below = path.removeprefix(root) if root else path
        for expression, plan in self.routes:
            if expression.fullmatch(below) or expression.fullmatch(path):
                return plan
        return self.default


class Terms:
    """The settings of one middleware, checked. Immutable but for its warnings.

    Args:
        budget: As the adapter takes it; so are all.
        mode: Likewise.
        name: Likewise.
        tenant: Likewise.
        routes: Likewise.
        budget_header: Likewise.
        unruled: The mode of runs that neither a rule nor ``HANGUP_MODE`` speaks of:
            observe, where no code asked for this adapter.
        clock: What to measure on; tests inject one.

    Raises:
        ConfigError: A value cannot be used.
    """

    def __init__(  # noqa: PLR0913  the settings of the middleware, one to one
        self,
        *,
        budget: float | None = None,
        mode: Mode | str | None = None,
        name: str | None = None,
        tenant: str | TenantOf | None = None,
        routes: Mapping[str, RouteSettings | Mapping[str, Any]] | None = None,
        budget_header: str | None = None,
        on_disconnect: OnDisconnect | str | None = None,
        grace: float | None = None,
        background_in_run: bool = False,
        unruled: Mode = Mode.ENFORCE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        check_budget(budget)
        self._on_disconnect = config.read_on_disconnect("on_disconnect", on_disconnect)
        self._grace = config.read_seconds("grace", grace)
        self._background_in_run = background_in_run
        self._budget = budget
        self._mode = config.read_mode("mode", mode)
        self._name = name
        self._tenant = None if callable(tenant) else tenant
        self._tenant_of = tenant if callable(tenant) else None
        self._unruled = unruled
        self._routes = [
            (
                pattern,
                _compiled(pattern),
                route_settings(f"routes[{pattern!r}]", settings),
            )
            for pattern, settings in (routes or {}).items()
        ]
        self._budget_header = budget_header
        self._clock = clock
        self._warned = self._warned_inside = False
        self._plans = self._made(config.current())

    @property
    def own_headers(self) -> tuple[str, str]:
        """The headers for the budget and for the tenant, in lower case; "" is none."""
        plans = self._plans
        return plans.budget_header.decode(), plans.tenant_header.decode()

    def stands_inside(self) -> None:
        """Say once that these settings have no effect, where there are any."""
        if self._given and not self._warned_inside:
            self._warned_inside = True
            _logger.warning(
                "a HangupMiddleware stands inside another one; its settings have no "
                "effect. Give them to the outer one, by route"
            )

    @property
    def _given(self) -> bool:
        """Whether anything was set in code."""
        return bool(self._routes or self._background_in_run) or any(
            value is not None
            for value in (
                self._budget,
                self._mode,
                self._name,
                self._tenant_of or self._tenant,
                self._on_disconnect,
                self._grace,
            )
        )

    def open(  # noqa: PLR0913, PLR0917  what every kind of server knows of one
        self,
        kind: str,
        method: str,
        path: str,
        root: str,
        headers: Iterable[tuple[bytes, bytes]],
        request: object = None,
        left: float | None = None,
    ) -> Opening | None:
        """Return how to serve a request; None where hangup stays out of it.

        Args:
            kind: "http", "stream" (a long-lived response: the default budget is not for
                it) or "websocket"; the run's name where there is no better one.
            method: Of HTTP.
            path: The whole path, decoded.
            root: What of it leads to the application, or "".
            headers: Names in lower case, and values. Read once, if at all.
            request: For the function that knows the tenant.
            left: Seconds until the caller's own protocol ends the request; None: never.
        """
        plans = self._plans
        if plans.settings is not config.current():
            plans = self._plans = self._made(config.current())
        plan = plans.of(path, root)
        mode = plan.mode
        if mode is Mode.OFF:
            return None
        fields = Fields(headers, plans.budget_header, plans.tenant_header)
        tenant = plan.tenant or tenant_of(
            self._tenant_of, request, plans.settings.tenant_from, fields
        )
        place = place_of(path, root, self._unruled)
        rule = rollout.find(place.paths, plan.name or "", tenant)
        if rule is not None and rule.mode is Mode.OFF:
            return None
        inbound = fields.inbound(self._clock)
        if inbound is not None:
            mode = under(mode, inbound)
            if place.unruled is not Mode.ENFORCE:
                place = place._replace(most=mode)
        budget = plan.budget_of(kind, method, fields, rule)
        if fields.budget is not None:
            budget = self._tightened(budget, fields.budget)
        deadline = Deadline.after(budget, self._clock)
        if left is not None:
            deadline = deadline.tightened(Deadline.after(left, self._clock))
        if inbound is not None:
            most = plans.settings.max_budget
            theirs = wire.deadline_of(inbound, self._clock, most)
            deadline = deadline.tightened(theirs)
        run = RunScope(
            name=plan.name,
            tenant=tenant,
            mode=mode,
            deadline=deadline,
            token=None if inbound is None else inbound.token,
            joined=inbound is not None,
            latent=True,
            server=True,
            on_disconnect=plan.on_disconnect,
            grace=plan.grace,
            place=place,
            clock=self._clock,
        )
        background = plan.background_in_run and kind == "http"
        return Opening(run, plan.name, plan.pattern or kind, inbound, background)

    def _made(self, settings: config.Settings) -> _Plans:
        header = self._budget_header
        if header is None:
            header = settings.budget_header
        return _Plans(
            settings,
            header.lower().encode("latin-1"),
            header_of(settings.tenant_from).encode(),
            self._plan(settings, None, RouteSettings()),
            [
                (expression, self._plan(settings, pattern, route))
                for pattern, expression, route in self._routes
            ],
        )

    def _plan(
        self, settings: config.Settings, pattern: str | None, route: RouteSettings
    ) -> Plan:
        if isinstance(route.budget, Unset):
            http = settings.budget if self._budget is None else self._budget
            # A browser's EventSource stays for as long as the page is open. A default
            # that came from the environment was not meant for it; one in code is.
            stream, socket = self._budget, None
        else:
            http = stream = socket = route.budget
        mode = Mode(route.mode or self._mode or Mode.ENFORCE)
        meant = route.on_disconnect or self._on_disconnect or settings.on_disconnect
        graces = (route.grace, self._grace, settings.grace)
        given = (seconds for seconds in graces if seconds is not None)
        name = route.name or self._name
        if name is not None or pattern is not None:
            registry.declare(name or pattern or "", mode)
        return Plan(
            pattern,
            mode.least(settings.mode),
            name,
            route.tenant or self._tenant,
            http,
            stream,
            socket,
            None if meant is OnDisconnect.ABANDON else OnDisconnect(meant),
            None if meant is OnDisconnect.ABANDON else next(given),
            self._background_in_run
            if route.background_in_run is None
            else route.background_in_run,
        )

    def _tightened(self, budget: float | None, text: bytes) -> float | None:
        seconds = read_budget(text)
        if seconds is None:
            if not self._warned:
                self._warned = True
                _logger.warning(
                    "ignored a budget header that is not a positive number of seconds "
                    "(said once): %.40r",
                    text,
                )
            return budget
        return seconds if budget is None else min(seconds, budget)


def route_settings(
    what: str, settings: RouteSettings | Mapping[str, Any]
) -> RouteSettings:
    """Return the settings that a mapping gives.

    Raises:
        ConfigError: It names others; ``what`` is what they are called there.
    """
    if isinstance(settings, RouteSettings):
        return settings
    try:
        return RouteSettings(**settings)
    except TypeError:
        known = ", ".join(RouteSettings.__slots__)
        remedy = f"give a mapping with any of {known}"
        raise ConfigError(what, settings, remedy) from None


def _compiled(pattern: str) -> re.Pattern[str]:
    """Translate ``/threads/{id}/chat``, ``/files/{path:path}``, ``/agents/*``."""
    if not pattern.startswith("/"):
        remedy = "start the pattern with '/': it is matched against the path"
        raise ConfigError("routes", pattern, remedy)
    return compiled(pattern)
