"""When to wake somebody, and when to file a ticket.

Every ratio has a minimum volume, so that one abandoned run of one is no incident. Every
expression is empty when all is well, and greater than 0 when it is not, so that it
serves Prometheus and Grafana alike. Pages look at enforced traffic only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dashboards import ids, promql, series, settings
from dashboards.promql import is_
from dashboards.series import exposed
from hangup.otel import calls, names
from hangup.spend.fate import Fate

if TYPE_CHECKING:
    from dashboards.promql import Matcher
    from dashboards.series import Metric

PAGE: Final = "page"
TICKET: Final = "ticket"

_JOB = ("job",)
_PAGED = is_(names.MODE, *settings.PAGED_MODES)
_WASTED = is_(names.FATE, Fate.WASTED.value)
_ABANDONED = is_(names.OUTCOME, "abandoned")
_MODEL_CALLS = is_(names.CALL_KIND, calls.INFERENCE, calls.EMBEDDINGS)


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        name: In CamelCase; its uid and its runbook section follow from it.
        expr: PromQL, empty unless something is wrong.
        severity: ``page`` or ``ticket``.
        summary: One line; ``{{ .Labels.job }}`` is the job.
        board: Uid of the dashboard to look at first.
        hold: How long it must hold before it fires, or "".
    """

    name: str
    expr: str
    severity: str
    summary: str
    board: str
    hold: str = ""

    @property
    def runbook_url(self) -> str:
        """Return where its section of the runbook is."""
        return f"{settings.RUNBOOK_URL}#{ids.anchor(self.name)}"


def _more(metric: Metric, window: str, *matchers: Matcher) -> str:
    """Return the increase of a counter for each job."""
    return promql.increase(metric, *matchers, by=_JOB, window=window, board=False)


def _all(*conditions: str) -> str:
    return "\nand\n".join(conditions)


def _over(part: str, whole: str, limit: float) -> str:
    return f"{part}\n  / {whole} > {limit:g}"


def _usd_an_hour(window: str, *matchers: Matcher) -> str:
    grown = promql.rate(
        series.COST, _WASTED, *matchers, by=_JOB, window=window, board=False
    )
    return f"3600 * {grown}"


def _wasted_share(window: str, limit: float) -> str:
    return _over(
        _more(series.COST, window, _WASTED), _more(series.METERED_COST, window), limit
    )


def _burn(burn: settings.Burn) -> str:
    return _all(
        _wasted_share(burn.long, burn.share),
        _wasted_share(burn.short, burn.share),
        f"{_more(series.RUNS, burn.long, _ABANDONED)} >= {burn.least}",
    )


def _harm() -> str:
    harmed = _more(
        series.RUNS,
        "10m",
        _PAGED,
        _ABANDONED,
        is_(names.CALLER, "connected"),
        is_(names.CAUSE, *settings.ENFORCED_CAUSES),
    )
    return _all(
        _over(harmed, _more(series.RUNS, "10m", _PAGED), settings.HARM_SHARE),
        f"{harmed} >= {settings.HARM_LEAST}",
    )


def _waste_rate() -> str:
    abandoned = _more(series.RUNS, "1h", _PAGED, _ABANDONED)
    return _all(
        f"{_usd_an_hour('5m', _PAGED)} > {settings.WASTE_RATE}",
        f"{_usd_an_hour('1h', _PAGED)} > {settings.WASTE_RATE}",
        f"{abandoned} >= {settings.WASTE_LEAST}",
    )


def _waste_grown() -> str:
    recorded = f"{promql.record_name(series.COST)}{{{_WASTED}}}"
    now = f"sum by (job) ({recorded})"
    return _all(
        f"{now} > {settings.WASTE_RATE_GROWN}",
        f"{now} > {settings.WASTE_GROWTH} * sum by (job) ({recorded} offset 1w)",
        f"{_more(series.RUNS, '1h', _ABANDONED)} >= {settings.WASTE_LEAST}",
    )


def _waste_share() -> str:
    return _all(
        _wasted_share("1h", settings.WASTE_SHARE),
        f"{_more(series.RUNS, '1h')} >= {settings.WASTE_SHARE_RUNS}",
        f"{_more(series.METERED_COST, '1h')} >= {settings.WASTE_SHARE_USD}",
    )


def _not_stopping() -> str:
    oldest = promql.select(series.OLDEST, board=False)
    enforcing = promql.select(series.INFO, _PAGED, board=False)
    return (
        f"max by (job) ({oldest} and on (job, instance) {enforcing}) "
        f"> {settings.OLDEST}"
    )


def _slow_stop() -> str:
    slow = promql.quantile(
        0.95, series.STOP_DURATION, _PAGED, by=_JOB, window="15m", board=False
    )
    stops = promql.increase(
        series.STOP_DURATION, _PAGED, by=_JOB, window="15m", board=False, part="_count"
    )
    return _all(
        slow.replace(">= 0", f"> {settings.SLOW_STOP}"),
        f"{stops} >= {settings.SLOW_STOP_LEAST}",
    )


def _swallowed() -> str:
    swallowed = _more(series.SWALLOWED, "1h")
    abandoned = _more(series.RUNS, "1h", _ABANDONED)
    return _all(
        _over(swallowed, abandoned, settings.SWALLOWED_SHARE),
        f"{swallowed} >= {settings.SWALLOWED_LEAST}",
    )


def _unknown() -> str:
    called = _more(series.CALLS, "1h", _MODEL_CALLS)
    return _all(
        _over(_more(series.UNKNOWN, "1h"), called, settings.UNKNOWN_SHARE),
        f"{called} >= {settings.CALLS_LEAST}",
    )


def _tokens(window: str, part: str, limit: float) -> str:
    every = _more(series.METERED_TOKENS, window)
    return _all(_over(part, every, limit), f"{every} >= {settings.TOKENS_LEAST}")


def _hook_lost() -> str:
    info = promql.select(series.INFO, board=False)
    return (
        f"(up == 1 unless on (job, instance) {info})\n"
        f"and on (job)\ncount by (job) (last_over_time({info}[1d]))"
    )


def _drift() -> str:
    info = promql.select(series.INFO, board=False)
    policy = exposed(names.POLICY)
    return f"count by (job) (count by (job, {policy}) ({info})) > 1"


def _baggage() -> str:
    runs = _more(series.RUNS, "1h")
    lost = _more(series.BAGGAGE_LOST, "1h")
    return _all(
        _over(lost, runs, settings.BAGGAGE_SHARE),
        f"{runs} >= {settings.BAGGAGE_LEAST}",
    )


def _bus() -> str:
    up = promql.select(series.BUS_UP, board=False)
    return f"1 - avg by (job) ({up}) > {settings.BUS_DOWN_SHARE:g}"


ALERTS: Final = (
    Alert(
        "HangupEnforcementHarms",
        _harm(),
        PAGE,
        "{{ .Labels.job }} stops runs whose callers are still waiting",
        ids.BUDGETS,
    ),
    Alert(
        "HangupBrakeTripped",
        f"{_more(series.BRAKE_TRIPPED, '10m')} > 0",
        PAGE,
        "{{ .Labels.job }} has stopped enforcing: its brake tripped",
        ids.BUDGETS,
    ),
    Alert(
        "HangupWasteRate",
        _waste_rate(),
        PAGE,
        "{{ .Labels.job }} spends a lot for callers who have gone, though it enforces",
        ids.WASTE,
    ),
    Alert(
        "HangupWasteGrown",
        _waste_grown(),
        TICKET,
        "{{ .Labels.job }} wastes several times what it wasted a week ago",
        ids.WASTE,
    ),
    Alert(
        "HangupWasteShare",
        _waste_share(),
        TICKET,
        "{{ .Labels.job }} spends a large share for callers who have gone",
        ids.WASTE,
    ),
    Alert(
        "HangupWasteBurnFast",
        _burn(settings.FAST_BURN),
        TICKET,
        "{{ .Labels.job }} uses up a month's waste objective in two days",
        ids.WASTE,
    ),
    Alert(
        "HangupWasteBurnSlow",
        _burn(settings.SLOW_BURN),
        TICKET,
        "{{ .Labels.job }} uses up a month's waste objective in five days",
        ids.WASTE,
    ),
    Alert(
        "HangupRunsNotStopping",
        _not_stopping(),
        PAGE,
        "{{ .Labels.job }} has a run that was told to stop and goes on",
        ids.STOPPING,
        "5m",
    ),
    Alert(
        "HangupSlowStop",
        _slow_stop(),
        TICKET,
        "{{ .Labels.job }} takes long to stop abandoned runs",
        ids.STOPPING,
    ),
    Alert(
        "HangupSwallowedCancels",
        _swallowed(),
        TICKET,
        "{{ .Labels.job }} has code that swallows the stop and wants to spend again",
        ids.STOPPING,
    ),
    Alert(
        "HangupUnknownUsage",
        _unknown(),
        TICKET,
        "{{ .Labels.job }} makes model calls that end without usage",
        ids.STOPPING,
    ),
    Alert(
        "HangupUnpriced",
        _tokens("6h", _more(series.UNPRICED, "6h"), settings.UNPRICED_SHARE),
        TICKET,
        "{{ .Labels.job }} uses models without a price",
        ids.STOPPING,
    ),
    Alert(
        "HangupCoverage",
        _tokens(
            "1h",
            _more(series.METERED_TOKENS, "1h", is_(names.IN_RUN, "false")),
            settings.OUTSIDE_SHARE,
        ),
        TICKET,
        "{{ .Labels.job }} makes model calls outside runs",
        ids.STOPPING,
    ),
    Alert(
        "HangupHookLost",
        _hook_lost(),
        TICKET,
        "A process of {{ .Labels.job }} runs without hangup",
        ids.STOPPING,
        "10m",
    ),
    Alert(
        "HangupModeDrift",
        _drift(),
        TICKET,
        "Processes of {{ .Labels.job }} follow different policies",
        ids.BUDGETS,
        "30m",
    ),
    Alert(
        "HangupBaggageLost",
        _baggage(),
        TICKET,
        "{{ .Labels.job }} sends requests whose baggage has no room for the deadline",
        ids.STOPPING,
    ),
    Alert(
        "HangupBusDown",
        _bus(),
        TICKET,
        "More than half of {{ .Labels.job }} does not hear the bus",
        ids.STOPPING,
        "5m",
    ),
)
