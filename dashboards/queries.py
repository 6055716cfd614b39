"""What is worth knowing, as expressions; the dashboards only arrange them.

Totals follow the range that the user looks at, curves the width of one step. "Wasted"
is spent after abandonment and could have been kept; "sunk" was spent before it and
could not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboards import series, settings
from dashboards.promql import (
    CAUSE_CHOSEN,
    RANGE,
    RATE,
    chosen,
    hours,
    increase,
    is_,
    largest,
    quantile,
    rate,
    select,
    share,
)
from dashboards.series import exposed
from hangup.config import Mode
from hangup.core.policy import Decision
from hangup.otel import calls, names
from hangup.spend.fate import Fate

if TYPE_CHECKING:
    from dashboards.promql import Matcher
    from dashboards.series import Metric

WASTED: Final = is_(names.FATE, Fate.WASTED.value)
SUNK: Final = is_(names.FATE, Fate.SUNK.value)
CAUSE: Final = chosen(names.CAUSE, CAUSE_CHOSEN)
ENFORCE: Final = is_(names.MODE, Mode.ENFORCE.value)
OBSERVE: Final = is_(names.MODE, Mode.OBSERVE.value)
ABANDONED: Final = is_(names.OUTCOME, "abandoned")
DELIVERED: Final = is_(names.OUTCOME, "delivered", "late")
LATE: Final = is_(names.OUTCOME, "late")
OUTSIDE: Final = is_(names.IN_RUN, "false")
INSIDE: Final = is_(names.IN_RUN, "true")
MODEL_CALLS: Final = is_(names.CALL_KIND, calls.INFERENCE, calls.EMBEDDINGS)
LOST: Final = (
    ENFORCE,
    ABANDONED,
    is_(names.CALLER, "connected"),
    is_(names.CAUSE, *settings.ENFORCED_CAUSES),
)
"""Runs that enforcing ended although somebody waited: answers lost."""

_MODE = (names.MODE,)
_NAME = (names.RUN_NAME,)

# This month, from the recorded hours; in the first hour of all, from the last hour.


def _month(metric: Metric, *matchers: Matcher) -> str:
    last = increase(metric, *matchers, window="1h")
    return f"({hours(metric, *matchers)} > 0 or {last})"


MONTH_WASTED: Final = _month(series.COST, WASTED)
MONTH_METERED: Final = _month(series.METERED_COST)
MONTH_SHARE: Final = share(MONTH_WASTED, MONTH_METERED)
# Dollars that calls without usage may have cost at most: tokens at the average price.
MONTH_UNKNOWN: Final = (
    f"{_month(series.UNKNOWN_BOUND)} * {MONTH_METERED} "
    f"/ ({_month(series.METERED_TOKENS)} > 0)"
)
MONTH_COVERAGE: Final = share(_month(series.METERED_COST, INSIDE), MONTH_METERED)
MONTH_AVOIDED: Final = _month(series.AVOIDED_COST)
_MONTH_GONE: Final = (
    "(day_of_month(vector(time())) - 1 + hour(vector(time())) / 24 "
    "+ minute(vector(time())) / 1440)"
)
MONTH_PROJECTED: Final = (
    f"{MONTH_WASTED} * scalar(days_in_month(vector(time())) / {_MONTH_GONE})"
)

# The observe arm against the enforce arm, at the same time.

WASTE_PER_1000: Final = "1000 * " + share(
    increase(series.COST, WASTED, by=_MODE), increase(series.RUNS, by=_MODE)
)
DELIVERED_SHARE: Final = share(
    increase(series.RUNS, DELIVERED, by=_MODE), increase(series.RUNS, by=_MODE)
)
ANSWERS_LOST: Final = increase(series.RUNS, *LOST)
RUNS_BY_MODE: Final = increase(series.RUNS, by=_MODE)

# Where it goes.


def wasted_by(label: str) -> str:
    """Return the wasted dollars of the range by a label of the cost."""
    return largest(increase(series.COST, WASTED, CAUSE, by=(label,)))


WASTED_BY_TENANT: Final = largest(
    increase(series.TENANT_COST, WASTED, by=(names.TENANT,))
)
WORST: Final = (
    "topk(15, "
    + increase(
        series.COST, WASTED, CAUSE, by=(names.RUN_NAME, names.MODEL, names.CAUSE)
    )
    + " > 0)"
)
SUNK_RATE: Final = f"3600 * {rate(series.COST, SUNK)}"
WASTED_RATE: Final = f"3600 * {rate(series.COST, WASTED)}"
AVOIDED: Final = increase(series.AVOIDED_COST)
AVOIDED_RATE: Final = f"3600 * {rate(series.AVOIDED_COST)}"
SHARE_NOW: Final = share(
    increase(series.COST, WASTED, window="1h"),
    increase(series.METERED_COST, window="1h"),
)
TOOL_TIME: Final = largest(
    increase(series.CALL_TIME, WASTED, is_(names.CALL_KIND, calls.TOOL), by=_NAME)
)
WASTED_TOKENS: Final = largest(increase(series.TOKENS, WASTED, by=(names.TOKEN_TYPE,)))

# Stopping.


def stop_quantile(q: float) -> str:
    """Return how long stopping takes, enforced runs only."""
    return quantile(q, series.STOP_DURATION, ENFORCE)


STOP_BUCKETS: Final = increase(
    series.STOP_DURATION, ENFORCE, by=("le",), window=RATE, part="_bucket"
)
STOPS: Final = increase(series.STOP_DURATION, ENFORCE, part="_count")
STOPPED_IN_TIME: Final = share(
    increase(series.STOP_DURATION, ENFORCE, part="_bucket", upto=settings.SLOW_STOP),
    STOPS,
)
STOPPING_NOW: Final = f"sum({select(series.ACTIVE, is_(names.STATE, 'stopping'))})"
ACTIVE: Final = f"sum by ({exposed(names.STATE)}) ({select(series.ACTIVE)})"
OLDEST: Final = f"max({select(series.OLDEST)})"
OLDEST_BY_PROCESS: Final = f"max by (job, instance) ({select(series.OLDEST)})"
UNSETTLED: Final = increase(series.UNSETTLED)
UNSETTLED_BY_NAME: Final = largest(increase(series.UNSETTLED, by=_NAME))
SWALLOWED: Final = increase(series.SWALLOWED)
SWALLOWED_BY_NAME: Final = largest(increase(series.SWALLOWED, by=_NAME))
REFUSED: Final = "60 * " + rate(
    series.REFUSALS, CAUSE, by=(names.DECISION, names.CALL_KIND)
)
BUS: Final = f"avg by (job) ({select(series.BUS_UP)})"
_OF_INFO: Final = (names.VERSION, names.MODE, names.POLICY)
VERSIONS: Final = (
    f"count by (job, {', '.join(exposed(label) for label in _OF_INFO)}) "
    f"({select(series.INFO)})"
)
BAGGAGE: Final = increase(series.BAGGAGE_LOST)

# How blind we are.

UNKNOWN_SHARE: Final = share(
    increase(series.UNKNOWN), increase(series.CALLS, MODEL_CALLS)
)
OUTCOME_UNKNOWN: Final = increase(series.OUTCOME_UNKNOWN)
ESTIMATED_SHARE: Final = share(increase(series.ESTIMATED), increase(series.TOKENS))
UNPRICED_SHARE: Final = share(
    increase(series.UNPRICED), increase(series.METERED_TOKENS)
)
OUTSIDE_SHARE: Final = share(
    increase(series.METERED_TOKENS, OUTSIDE), increase(series.METERED_TOKENS)
)
UNKNOWN_BY_MODEL: Final = largest(increase(series.UNKNOWN, by=(names.MODEL,)))

# Budgets.


def run_quantile(q: float, outcome: str) -> str:
    """Return how long runs of an outcome take."""
    return quantile(q, series.RUN_DURATION, is_(names.OUTCOME, outcome), window=RANGE)


_NEARLY_ALL: Final = 0.9999


def run_age(outcome: str) -> str:
    """Return the share of the runs of an outcome that had ended by each age.

    Ages by which none or all had ended say nothing, but for the last: any age.
    """
    of = is_(names.OUTCOME, outcome)
    by_age = increase(series.RUN_DURATION, of, by=("le",), part="_bucket")
    every = increase(series.RUN_DURATION, of, part="_count")
    by_age += f" / on () group_left () ({every} > 0)"
    last = f'label_replace({share(every, every)}, "le", "any", "", "")'
    # Sorted by value, they are sorted by age: they are cumulated.
    return f"sort(({by_age} > 0 < {_NEARLY_ALL}) or {last})"


def left_quantile(q: float) -> str:
    """Return the time left at delivery."""
    return quantile(q, series.SLACK)


def over_quantile(q: float) -> str:
    """Return the time past the deadline at delivery."""
    return quantile(q, series.OVERRUN)


LEAVE_SHARE: Final = largest(
    share(
        increase(series.RUNS, ABANDONED, is_(names.CAUSE, "disconnect"), by=_NAME),
        increase(series.RUNS, by=_NAME),
    )
)
# The dry run: what enforcing would have done to the observed runs.
WOULD_STOP: Final = increase(
    series.RUNS, OBSERVE, is_(names.OUTCOME, "late", "abandoned"), by=_NAME
)
WOULD_LOSE: Final = increase(series.RUNS, OBSERVE, LATE, by=_NAME)
WOULD_SAVE: Final = increase(series.COST, OBSERVE, WASTED, by=_NAME)
WOULD_REFUSE: Final = increase(
    series.REFUSALS, is_(names.DECISION, Decision.WOULD_REFUSE.value), by=_NAME
)
RUNS_OBSERVED: Final = increase(series.RUNS, OBSERVE, by=_NAME)
RUN_P95: Final = quantile(0.95, series.RUN_DURATION, by=_NAME, window=RANGE)
LOST_RATE: Final = "60 * " + rate(series.RUNS, *LOST, by=_NAME)

# Annotations: a process has come up in a mode that its job was not in before.

MODE_CHANGES: Final = (
    f"count by (job, {exposed(names.MODE)}) ({select(series.INFO)}) "
    f"unless count by (job, {exposed(names.MODE)}) ({select(series.INFO)} offset 5m)"
)
