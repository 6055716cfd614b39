"""What can be wrong with the numbers of a service: judged by its metrics.

They come from inside a process, or from the page that Prometheus scrapes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hangup.otel import calls, names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangup.cli._doctor_evidence import Evidence, Sample

    Wrong = Iterator[tuple[str, str]]

_WORTH_SAYING: Final = 0.05
"""A smaller share of unknown or unattributed work is how agents are."""


def usage_unknown(evidence: Evidence) -> Wrong:
    """Judge whether answers say what they used."""
    for one in evidence.with_hangup:
        estimated = one.total(names.ESTIMATED_TOKENS, fate="delivered")
        everything = one.total(names.TOKENS, fate="delivered")
        if estimated and estimated > _WORTH_SAYING * everything:
            yield one.where, f"{estimated:.0f} delivered tokens are estimates"
        unknown = one.total(names.UNKNOWN_CALLS)
        asked = one.total(names.CALLS, call_kind=calls.INFERENCE)
        if unknown and unknown > _WORTH_SAYING * asked:
            models = _values(one.series(names.UNKNOWN_CALLS), names.MODEL)
            yield one.where, f"{unknown:.0f} calls of {models} in no token count"


def outside_runs(evidence: Evidence) -> Wrong:
    """Judge whether what is spent belongs to runs."""
    for one in evidence.with_hangup:
        outside = one.total(names.METERED_TOKENS, in_run="false")
        metered = one.total(names.METERED_TOKENS)
        if metered and outside > _WORTH_SAYING * metered:
            yield one.where, f"{100 * outside / metered:.0f} % of all tokens"


def unpriced(evidence: Evidence) -> Wrong:
    """Judge whether dollars are complete."""
    for one in evidence.with_hangup:
        found = one.series(names.UNPRICED)
        if found:
            yield one.where, _values(found, names.MODEL)


def modes_disagree(evidence: Evidence) -> Wrong:
    """Judge whether all services go equally far."""
    modes: dict[str, list[str]] = defaultdict(list)
    policies: dict[str, list[str]] = defaultdict(list)
    for one in evidence.with_hangup:
        for sample in one.samples:
            if sample.name != names.INFO:
                continue
            for label, seen in ((names.MODE, modes), (names.POLICY, policies)):
                value = sample.labels.get(label)
                if value is not None and one.where not in seen[value]:
                    seen[value].append(one.where)
    for seen, what in ((modes, "mode"), (policies, "policy")):
        if len(seen) > 1:
            everywhere = sorted({where for places in seen.values() for where in places})
            shown = "; ".join(
                f"{what} {value} at {', '.join(places)}"
                for value, places in sorted(seen.items())
            )
            yield ", ".join(everywhere), shown


def policy_refused(evidence: Evidence) -> Wrong:
    """Judge whether the policy file is in force."""
    for one in evidence.with_hangup:
        if errors := one.total(names.POLICY_ERRORS):
            yield one.where, f"{errors:.0f} contents of it could not be used"


def brake_tripped(evidence: Evidence) -> Wrong:
    """Judge whether the brake holds."""
    for one in evidence.with_hangup:
        if one.total(names.BRAKE_TRIPPED):
            yield one.where, "too many runs were stopped with their caller connected"


def baggage_lost(evidence: Evidence) -> Wrong:
    """Judge whether baggage gets through."""
    for one in evidence.with_hangup:
        if lost := one.total(names.BAGGAGE_LOST):
            yield one.where, f"{lost:.0f} requests"


def _values(series: list[Sample], label: str) -> str:
    return ", ".join(sorted({one.labels.get(label, "?") for one in series}))
