"""Every metric, label, attribute and bucket that hangup emits. Dashboards import these.

Prometheus turns dots to underscores, adds ``_total`` to counters, drops units in braces
and spells ``s`` as ``_seconds``.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "hangup"
"""Instrumentation scope of everything hangup records."""

# Counters

TOKENS: Final = "hangup.tokens"
"""``{token}``: tokens of calls inside runs, by fate."""
COST: Final = "hangup.cost.usd"
"""``{USD}``: what those tokens cost, by fate."""
ESTIMATED_TOKENS: Final = "hangup.estimated.tokens"
"""``{token}``: how much of ``hangup.tokens`` was prorated or estimated."""
METERED_TOKENS: Final = "hangup.metered.tokens"
"""``{token}``: every token any call reported, in a run or not, whatever its fate."""
METERED_COST: Final = "hangup.metered.cost.usd"
"""``{USD}``: what those tokens cost."""
CALLS: Final = "hangup.calls"
"""``{call}``: spending calls inside runs, by fate."""
CALL_TIME: Final = "hangup.call.time"
"""``s``: their time, by fate."""
UNKNOWN_CALLS: Final = "hangup.unknown.calls"
"""``{call}``: model calls that ended without any usage; they are in no token count."""
UNKNOWN_BOUND: Final = "hangup.unknown.tokens.bound"
"""``{token}``: an upper bound on what unknown and cut calls used, if one is known."""
OUTCOME_UNKNOWN: Final = "hangup.outcome_unknown.calls"
"""``{call}``: model calls that were cut, and that the provider may have finished."""
UNPRICED: Final = "hangup.token.unpriced"
"""``{token}``: tokens of models without a price; they are in no dollar count."""
TENANT_COST: Final = "hangup.tenant.cost.usd"
"""``{USD}``: cost by tenant (those in ``HANGUP_TENANTS``, else ``other``) and fate."""
RUNS: Final = "hangup.runs"
"""``{run}``: runs that are over, by outcome; in the process that opened them."""
REFUSALS: Final = "hangup.refusals"
"""``{call}``: spending calls that were, or in observe mode would be, refused."""
UNSETTLED: Final = "hangup.task.unsettled"
"""``{task}``: pieces of work that did not stop in ``HANGUP_SETTLE`` seconds."""
SWALLOWED: Final = "hangup.cancel.swallowed"
"""``{run}``: runs in which a task swallowed the stop and wanted to spend again."""
BAGGAGE_LOST: Final = "hangup.baggage.lost"
"""``{request}``: requests whose baggage was too large for all of its entries."""
BRAKE_TRIPPED: Final = "hangup.brake.tripped"
"""``{trip}``: times that ``HANGUP_BRAKE_SHARE`` made this process observe."""
POLICY_ERRORS: Final = "hangup.policy.errors"
"""``{file}``: contents of ``HANGUP_POLICY_FILE`` that could not be used."""

# Estimates, never mixed with the above

AVOIDED_TOKENS: Final = "hangup.avoided.tokens"
"""``{token}``: estimate of what refusing and cutting calls kept from being spent."""
AVOIDED_COST: Final = "hangup.avoided.cost.usd"
"""``{USD}``: the same in dollars."""

# Gauges and up-down counters

ACTIVE: Final = "hangup.run.active"
"""``{run}``: runs now, by state."""
OLDEST: Final = "hangup.run.stopping.oldest"
"""``s``: for how long the oldest abandoned run has been stopping; 0 without one."""
BUS_UP: Final = "hangup.bus.up"
"""1 while the bus is reached, 0 while it is not; absent without a bus."""
INFO: Final = "hangup.info"
"""Always 1; its labels say which version runs in which mode, by which policy."""

# Histograms

STOP_DURATION: Final = "hangup.stop.duration"
"""``s``: from T0 until nothing of the run was running any more."""
RUN_DURATION: Final = "hangup.run.duration"
"""``s``: from the start to the delivery or T0."""
SLACK: Final = "hangup.run.slack"
"""``s``: time left at delivery."""
OVERRUN: Final = "hangup.run.overrun"
"""``s``: time past the deadline at delivery, observe mode."""

STOP_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
STOP_BOUNDS_LONG: Final = (*STOP_BOUNDS, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets of the time to stop: 1 ms to 60 s."""
RUN_BOUNDS: Final = (
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
"""Buckets of run durations, slack and overrun: 100 ms to an hour."""

# Labels of metrics, and attributes of spans under the same names

FATE: Final = "hangup.fate"
"""delivered, sunk (before T0), wasted (after T0), after (after delivery)."""
CAUSE: Final = "hangup.cause"
"""Why the run was abandoned; ``none`` when it was not."""
MODEL: Final = "gen_ai.request.model"
"""The requested model; at most 30 values, then ``other``."""
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105  tokens of text
"""input or output."""
RUN_NAME: Final = "hangup.run.name"
"""Route template or declared name; at most 50 values, then ``other``."""
MODE: Final = "hangup.mode"
"""off, observe, refuse or enforce."""
BASIS: Final = "hangup.basis"
"""reported, prorated or estimated."""
IN_RUN: Final = "hangup.in_run"
"""Whether the call belonged to a run."""
CALL_KIND: Final = "hangup.call.kind"
"""inference, embeddings, retrieval, tool, agent or other."""
DECISION: Final = "hangup.decision"
"""refuse or would_refuse."""
OUTCOME: Final = "hangup.outcome"
"""delivered, late (observe: past its deadline) or abandoned."""
CALLER: Final = "hangup.caller"
"""connected, gone or unknown: was anybody still there when the run ended?"""
STATE: Final = "hangup.state"
"""running or stopping."""
TENANT: Final = "hangup.tenant"
"""A tenant of ``HANGUP_TENANTS``, else ``other``."""
VERSION: Final = "hangup.version"
"""The installed version."""
POLICY: Final = "hangup.policy"
"""Which policy file is in force: twelve hex characters of its hash, or ``none``."""

# Attributes of spans only: ids are never labels

RUN_ID: Final = "hangup.run.id"
"""The cancel token of the run, on the run's span and on refused spans."""
DETAIL: Final = "hangup.cause.detail"
"""Free text given with the cause."""
DEADLINE: Final = "hangup.deadline"
"""The run's deadline, Unix milliseconds."""
ABANDONED_AT: Final = "hangup.abandoned.at"
"""When the run was abandoned (T0), Unix milliseconds; on its span."""
SPAN_OVERRUN: Final = "hangup.overrun"
"""Seconds past its deadline at which the run's span ended."""
SKEW: Final = "hangup.clock.skew"
"""Seconds by which the clock of the caller is ahead, where beyond one."""
DRAINED: Final = "hangup.drained"
"""True on a call that ``hangup.drain`` let go on when its run was abandoned."""
LINK: Final = "hangup.link"
"""On a link: what the other span is to this one, ``run`` (of a refused span: the run it
was refused for) or ``stopped_by`` (of the run's span: where the kill came from, or the
newer run)."""
LINK_RUN: Final = "run"
LINK_STOPPED_BY: Final = "stopped_by"
EVENT_ABANDONED: Final = "hangup.run.abandoned"
"""Event on the run's span at the moment the abandonment was noticed."""

EVENT_CLOSED: Final = "hangup.run.closed"
"""Log event once a run is over and its calls have ended: outcome, spend by fate."""

# Attributes of that log event only. Amounts have the name of their metric, the fate,
# and for tokens the type: ``hangup.tokens.wasted.input``.

JOINED: Final = "hangup.run.joined"
"""Whether another process opened the run, and counts it."""
CHILD: Final = "hangup.run.child"
"""Whether it is a child run with a fate of its own; others are in their parent's."""
AMENDS: Final = "hangup.run.amends"
"""Whether an event of this run came before: amounts are on top of that one's."""
PRICE_VERSION: Final = "hangup.price.version"
"""Which prices the dollars are by."""

MOST_RUN_NAMES: Final = 50
MOST_MODELS: Final = 30
MOST_LABEL_SETS: Final = 2_000
"""Of one instrument; the SDK's own limit, past which it drops labels."""
# How many Prometheus series all metrics make together, at most; a histogram counts its
# buckets, sum and count. Tested.
SERIES_AT_FIRST: Final = 483
"""For one run name, one model and one mode, no tenant listed."""
SERIES_PER_RUN_NAME: Final = 346
"""More for each further run name that uses one of these models."""
SERIES_PER_MODEL: Final = 64
"""More for each further model, and 54 more for each further run name that uses it."""
SERIES_PER_MODE: Final = 204
"""More for each further mode that runs of the same name and model are in."""
SERIES_PER_TENANT: Final = 4
"""More for each tenant listed."""

OTHER: Final = "other"
NONE: Final = "none"
