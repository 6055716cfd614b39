"""What each alert must and must not fire at, as unit tests of promtool.

Every alert has a case in which it fires and resolves again, and cases that look like it
and are not. Times are in minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dashboards import series
from dashboards.simulated import Series, grows, named, stands, stops, up
from hangup.otel import names

_WEEK: Final = 7 * 24 * 60


@dataclass(frozen=True, slots=True)
class Case:
    """One situation.

    Attributes:
        about: What it is, in a few words.
        series: What Prometheus has scraped, a sample a step.
        fires: At which minutes the alert fires.
        silent: At which minutes it does not.
        step: Minutes between samples, and between evaluations.
        instance: The firing alert has this label, where not "".
    """

    about: str
    series: Series
    fires: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    step: int = 1
    instance: str = ""


def _busy(step: float, steps: int, after: int = 120) -> str:
    """Return a counter: ten quiet minutes, busy ones, quiet ones."""
    return grows((0, 10), (step, steps), (0, after))


_DELIVERED: Final = {
    names.OUTCOME: "delivered",
    names.CAUSE: "none",
    names.CALLER: "connected",
}
_DEADLINE: Final = {names.CAUSE: "deadline", names.CALLER: "connected"}
_OBSERVE: Final = {names.MODE: "observe"}


def _harm() -> tuple[Case, ...]:
    fine = {named(series.RUNS, _DELIVERED): _busy(50, 20)}
    stopped = _busy(5, 20)
    return (
        Case(
            "stopped while the caller waits",
            fine | {named(series.RUNS, _DEADLINE): stopped},
            fires=(25,),
            silent=(9, 45),
        ),
        Case(
            "the same in observe mode stops nobody",
            fine | {named(series.RUNS, _DEADLINE | _OBSERVE): stopped},
            silent=(25,),
        ),
        Case("the caller had left", fine | {named(series.RUNS): stopped}, silent=(25,)),
        Case(
            "one of one",
            {named(series.RUNS, _DEADLINE): _busy(1, 1)},
            silent=(12, 15, 20),
        ),
    )


def _brake() -> tuple[Case, ...]:
    tripped = {named(series.BRAKE_TRIPPED): _busy(1, 1, 60)}
    return (Case("it tripped once", tripped, fires=(12,), silent=(9, 25)),)


def _waste_rate() -> tuple[Case, ...]:
    gone = {named(series.RUNS): _busy(1, 70)}
    dollars = {named(series.COST): _busy(2, 70)}
    return (
        Case("two dollars a minute", gone | dollars, fires=(75,), silent=(9, 90)),
        Case(
            "observed runs waste as they did before",
            {
                named(series.RUNS, _OBSERVE): _busy(1, 70),
                named(series.COST, _OBSERVE): _busy(2, 70),
            },
            silent=(75,),
        ),
        Case(
            "few runs, dear ones",
            dollars | {named(series.RUNS): _busy(0.1, 70)},
            silent=(75,),
        ),
    )


def _waste_grown() -> tuple[Case, ...]:
    step = 20
    week = _WEEK // step

    def dollars(before: float, now: float, gone: float = 20) -> Series:
        return {
            named(series.COST): grows((before / 3, week), (now / 3, 9), (0, 9)),
            named(series.RUNS): grows((gone, week), (gone, 9), (0, 9)),
        }

    at = _WEEK + 120
    return (
        Case(
            "four times last week's",
            dollars(5, 20),
            fires=(at,),
            silent=(_WEEK - 60, _WEEK + 340),
            step=step,
        ),
        Case("of a few dear runs", dollars(5, 20, 2), silent=(at,), step=step),
        Case("twice last week's", dollars(10, 20), silent=(at,), step=step),
        Case("much more of very little", dollars(0.1, 5), silent=(at,), step=step),
        Case(
            "the first week of all",
            {named(series.COST): _busy(1, 90), named(series.RUNS): _busy(1, 90)},
            silent=(60, 90),
        ),
    )


def _share(wasted: float, metered: float, gone: float, steps: int) -> Series:
    return {
        named(series.COST): _busy(wasted, steps, 400),
        named(series.METERED_COST): _busy(metered, steps, 400),
        named(series.RUNS): _busy(gone, steps, 400),
    }


def _waste_share() -> tuple[Case, ...]:
    return (
        Case("a fifth", _share(0.04, 0.2, 1, 60), fires=(70,), silent=(9, 140)),
        Case("a twentieth", _share(0.01, 0.2, 1, 60), silent=(70,)),
        Case("cents", _share(0.001, 0.005, 1, 60), silent=(70,)),
        Case("one of one, a dear one", _share(9, 9, 1, 1), silent=(11, 15, 30)),
    )


def _burn_fast() -> tuple[Case, ...]:
    return (
        Case("half", _share(0.5, 1, 1, 40), fires=(45,), silent=(9, 57)),
        Case("half of a few runs", _share(0.5, 1, 0.2, 40), silent=(45,)),
        Case("a quarter burns slowly", _share(0.25, 1, 1, 40), silent=(45,)),
    )


def _burn_slow() -> tuple[Case, ...]:
    return (
        Case("a quarter", _share(0.25, 1, 1, 120), fires=(120,), silent=(9, 165)),
        Case("a tenth", _share(0.1, 1, 1, 120), silent=(120,)),
        Case("a quarter of a few runs", _share(0.25, 1, 0.2, 120), silent=(120,)),
    )


def _not_stopping() -> tuple[Case, ...]:
    oldest = stands((0, 10), (90, 10), (0, 20))
    return (
        Case(
            "for ten minutes",
            {named(series.OLDEST): oldest, named(series.INFO): stands((1, 40))},
            fires=(17,),
            silent=(9, 13, 25),
        ),
        Case(
            "for three minutes",
            {
                named(series.OLDEST): stands((0, 10), (90, 3), (0, 20)),
                named(series.INFO): stands((1, 40)),
            },
            silent=(12, 17),
        ),
        Case(
            "an observed run takes its time",
            {
                named(series.OLDEST): oldest,
                named(series.INFO, _OBSERVE): stands((1, 40)),
            },
            silent=(17,),
        ),
    )


def _slow_stop() -> tuple[Case, ...]:
    return (
        Case("two seconds", stops(5, 20, "2.5"), fires=(28,), silent=(9, 50)),
        Case("half a second", stops(5, 20, "0.5"), silent=(28,)),
        Case("two seconds, few stops", stops(1, 20, "2.5"), silent=(28,)),
        Case("nobody stops these", stops(5, 20, "2.5", "observe"), silent=(28,)),
    )


def _swallowed() -> tuple[Case, ...]:
    gone = {named(series.RUNS): _busy(10, 20)}
    return (
        Case(
            "a tenth",
            gone | {named(series.SWALLOWED): _busy(1, 20)},
            fires=(30,),
            silent=(9, 95),
        ),
        Case("five", gone | {named(series.SWALLOWED): _busy(1, 5)}, silent=(15, 30)),
    )


def _unknown() -> tuple[Case, ...]:
    return (
        Case(
            "a tenth of the calls",
            {named(series.UNKNOWN): _busy(1, 30), named(series.CALLS): _busy(10, 30)},
            fires=(40,),
            silent=(9, 105),
        ),
        Case(
            "five of five",
            {named(series.UNKNOWN): _busy(1, 5), named(series.CALLS): _busy(1, 5)},
            silent=(15, 30),
        ),
    )


def _unpriced() -> tuple[Case, ...]:
    def tokens(step: float) -> Series:
        return {
            named(series.UNPRICED): _busy(step / 50, 50, 400),
            named(series.METERED_TOKENS): _busy(step, 50, 400),
        }

    return (
        Case("two per cent", tokens(10_000), fires=(60,), silent=(9, 430)),
        Case("of few tokens", tokens(100), silent=(60,)),
    )


def _coverage() -> tuple[Case, ...]:
    outside = named(series.METERED_TOKENS, {names.IN_RUN: "false"})

    def tokens(step: float) -> Series:
        return {
            outside: _busy(step, 30),
            named(series.METERED_TOKENS): _busy(step, 30),
        }

    return (
        Case("half", tokens(5_000), fires=(40,), silent=(9, 105)),
        Case(
            "all of them",
            {outside: _busy(5_000, 30)},
            fires=(40,),
            silent=(9, 105),
        ),
        Case("of few tokens", tokens(100), silent=(40,)),
    )


def _hook_lost() -> tuple[Case, ...]:
    both = {
        up(): stands((1, 60)),
        named(series.INFO): stands((1, 60)),
        up(instance="b"): stands((1, 60)),
    }
    info = named(series.INFO, instance="b")
    return (
        Case(
            "one of two processes lost it",
            both | {info: stands((1, 10), (None, 30), (1, 20))},
            fires=(28, 38),
            silent=(9, 20, 43),
            instance="b",
        ),
        Case(
            "the process is away, and comes back",
            both
            | {
                up(instance="b"): stands((1, 10), (0, 20), (1, 30)),
                info: stands((1, 10), (None, 20), (1, 30)),
            },
            silent=(28, 38),
        ),
        Case(
            "a job that never had it",
            both | {info: stands((1, 60)), up(job="node"): stands((1, 60))},
            silent=(28, 58),
        ),
    )


def _drift() -> tuple[Case, ...]:
    def info(policy: str, instance: str, *phases: tuple[float | None, int]) -> Series:
        labels = {names.POLICY: policy}
        return {named(series.INFO, labels, instance=instance): stands(*phases)}

    stays = info("one", "a", (1, 90))
    return (
        Case(
            "two policies for long",
            stays
            | info("two", "b", (1, 60), (None, 30))
            | info("one", "b", (None, 60), (1, 30)),
            fires=(35, 55),
            silent=(20, 70),
        ),
        Case(
            "a rollout of twenty minutes",
            stays
            | info("two", "b", (1, 20), (None, 70))
            | info("one", "b", (None, 20), (1, 70)),
            silent=(15, 35, 60),
        ),
    )


def _baggage() -> tuple[Case, ...]:
    return (
        Case(
            "a twentieth",
            {
                named(series.BAGGAGE_LOST): _busy(1, 30),
                named(series.RUNS): _busy(20, 30),
            },
            fires=(40,),
            silent=(9, 105),
        ),
        Case(
            "one of ten",
            {named(series.BAGGAGE_LOST): _busy(1, 1), named(series.RUNS): _busy(10, 1)},
            silent=(12, 30),
        ),
    )


def _bus() -> tuple[Case, ...]:
    def buses(*down: str) -> Series:
        return {
            named(series.BUS_UP, instance=one): (
                stands((1, 10), (0, 15), (1, 20)) if one in down else stands((1, 45))
            )
            for one in ("a", "b", "c", "d")
        }

    return (
        Case("three of four", buses("a", "b", "c"), fires=(17,), silent=(9, 13, 28)),
        Case("half of them", buses("a", "b"), silent=(17, 24)),
    )


CASES: Final = {
    "HangupEnforcementHarms": _harm(),
    "HangupBrakeTripped": _brake(),
    "HangupWasteRate": _waste_rate(),
    "HangupWasteGrown": _waste_grown(),
    "HangupWasteShare": _waste_share(),
    "HangupWasteBurnFast": _burn_fast(),
    "HangupWasteBurnSlow": _burn_slow(),
    "HangupRunsNotStopping": _not_stopping(),
    "HangupSlowStop": _slow_stop(),
    "HangupSwallowedCancels": _swallowed(),
    "HangupUnknownUsage": _unknown(),
    "HangupUnpriced": _unpriced(),
    "HangupCoverage": _coverage(),
    "HangupHookLost": _hook_lost(),
    "HangupModeDrift": _drift(),
    "HangupBaggageLost": _baggage(),
    "HangupBusDown": _bus(),
}
