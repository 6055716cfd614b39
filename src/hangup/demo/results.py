"""What the two passes amount to; the one JSON object of ``hangup demo --json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hangup.demo.measured import Measured, Runs, measured_of, runs_of
from hangup.demo.truth import StopSeconds, Truth, stop_seconds, truth_of
from hangup.demo.workload import ENFORCE, OBSERVE, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangup.demo.journal import CallRecord
    from hangup.demo.users import Visit


@dataclass(frozen=True)
class Pass:
    """One pass of the population, as everybody involved tells it.

    Attributes:
        mode: ``observe`` or ``enforce``.
        visits: The users' side.
        calls: The model server's log.
        agent_points: What the pass added to the agent's hangup metrics.
        subagent_points: The same of the subagent's.
        steps: Where the agents' own spans began and ended; for the picture only.
    """

    mode: str
    visits: Sequence[Visit]
    calls: Sequence[CallRecord]
    agent_points: Sequence[Mapping[str, Any]]
    subagent_points: Sequence[Mapping[str, Any]]
    steps: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def truth(self) -> Truth:
        """From the log and the users' clocks."""
        return truth_of(self.visits, self.calls)

    @cached_property
    def stop_seconds(self) -> StopSeconds:
        """From the log and the users' clocks."""
        return stop_seconds(self.visits, self.calls)

    @cached_property
    def measured(self) -> Measured:
        """From the metrics."""
        return measured_of([*self.agent_points, *self.subagent_points])

    @cached_property
    def runs(self) -> Runs:
        """From the metrics of the agent, where the runs were opened."""
        return runs_of(self.agent_points)

    def to_json(self) -> dict[str, Any]:
        """Return the pass as issue and README give it."""
        return {
            "runs": self.runs.runs,
            "delivered": self.runs.delivered,
            "late": self.runs.late,
            "abandoned": dict(self.runs.abandoned),
            "model_calls": len(self.calls),
            "truth": self.truth.to_json(),
            "measured": self.measured.to_json(),
            "stop_seconds": self.stop_seconds.to_json(),
        }


@dataclass(frozen=True)
class Demo:
    """Both passes."""

    version: str
    users: int
    seed: int
    observe: Pass
    enforce: Pass
    setting: Setting = field(default_factory=Setting)

    @property
    def passes(self) -> dict[str, Pass]:
        """The passes by mode, in the order they ran."""
        return {OBSERVE: self.observe, ENFORCE: self.enforce}

    @property
    def wasted_tokens_ratio(self) -> float:
        """What enforcing left of the waste: truth of enforce / truth of observe.

        All of the waste, also what a provider generated unseen. 0.0 where observe
        wasted nothing.
        """
        before = self.observe.truth.all_wasted_tokens
        return self.enforce.truth.all_wasted_tokens / before if before else 0.0

    @cached_property
    def lost_answers(self) -> tuple[str, ...]:
        """Users whose answer came past its deadline: enforce gives them none."""
        return tuple(
            watched.user.name
            for watched, enforced in self._pairs()
            if watched.answered
            and not _in_time(watched)
            and enforced.answer != watched.answer
        )

    @cached_property
    def broken_answers(self) -> tuple[str, ...]:
        """Users who had an answer in time, and have none or another in enforce."""
        return tuple(
            watched.user.name
            for watched, enforced in self._pairs()
            if watched.answered
            and _in_time(watched)
            and enforced.answer != watched.answer
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as one object."""
        return {
            "version": self.version,
            "users": self.users,
            "seed": self.seed,
            "provider": self.setting.provider,
            "provider_on_close": self.setting.on_close,
            "first_token_seconds": self.setting.first_token,
            "passes": {mode: one.to_json() for mode, one in self.passes.items()},
            "wasted_tokens_ratio": round(self.wasted_tokens_ratio, 5),
        }

    def _pairs(self) -> list[tuple[Visit, Visit]]:
        return list(zip(self.observe.visits, self.enforce.visits, strict=True))


def _in_time(visit: Visit) -> bool:
    return visit.finished < visit.deadline
