"""What hangup costs, as ratios to the same work without it, from one run.

    python tests/benchmarks/run.py [--json] [--rounds N] [--pairs N] [--only CASE]

Method. Both sides are processes of their own (hangup wraps classes of the SDK, so they
cannot share one), set up alike: SDK, BatchSpanProcessor whose exporter discards, a
meter provider. They take turns, a round each, never at the same time: baseline, hangup,
hangup, baseline, and so on. A round times some thousand operations, with the garbage
collector off, in CPU time of the process, which other processes do not disturb and
which includes the export thread. Every pair of rounds gives one ratio; reported is
their median, with the range that holds the middle half of them. Processes differ a
little by chance, for good (where objects happen to lie), so several pairs of processes
are used. Rounds with the same number draw the same trace ids on both sides.

Goals, at sampling 1: a span outside a run at most 1.10, a model call's span inside a
run at most 1.35, an event of a metered stream at most 1.03. The exit status is 0
whether or not they are met.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).with_name("worker.py")
SAMPLINGS = (1.0, 0.01)
GOALS = {"span_outside": 1.10, "call_in_run": 1.35, "stream_event": 1.03}
# The sampler has no part in these.
UNSAMPLED = ("asgi_latent", "stream_event")
MICRO = 1e6


class Worker:
    """A process that measures one side; see ``worker.py``."""

    def __init__(self, variant: str, sampling: float) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            # Settings of the caller's shell have no part in the comparison.
            if not name.startswith(("HANGUP_", "OTEL_"))
        }
        self._process = subprocess.Popen(  # noqa: S603  our own file, this Python
            [sys.executable, str(WORKER), variant, str(sampling)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.about: dict[str, Any] = self._answer()

    def measure(self, case: str, number: int) -> float:
        """Run one round; returns seconds per operation."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(f"{case} {number}\n")
        stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise SystemExit("a benchmark process ended early; see its error above")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.communicate()


class Sample(NamedTuple):
    """One round of each side, in seconds per operation."""

    baseline: float
    hangup: float


def measure(
    case: str, baseline: Worker, hangup: Worker, rounds: int
) -> Iterator[Sample]:
    """Measure one case on one pair of processes, alternately."""
    for worker in (baseline, hangup):
        worker.measure(case, 0)  # warms up: imports, caches, adaptive bytecode
    for number in range(1, rounds + 1):
        # The order alternates, so that a machine that gets slower favours nobody.
        if number % 2:
            first = baseline.measure(case, number)
            yield Sample(first, hangup.measure(case, number))
        else:
            first = hangup.measure(case, number)
            yield Sample(baseline.measure(case, number), first)


def summary(case: str, sampling: float, samples: list[Sample]) -> dict[str, Any]:
    """Return what is reported of a case: its ratio, spread and times."""
    ratios = sorted(sample.hangup / sample.baseline for sample in samples)
    ratio = statistics.median(ratios)
    quarter = len(ratios) // 4
    goal = GOALS.get(case) if sampling == 1 else None
    return {
        "case": case,
        "sampling": sampling,
        "ratio": round(ratio, 4),
        "spread": [round(ratios[quarter], 4), round(ratios[-1 - quarter], 4)],
        "baseline_us": round(_median_us(one.baseline for one in samples), 3),
        "hangup_us": round(_median_us(one.hangup for one in samples), 3),
        "added_us": round(_median_us(one.hangup - one.baseline for one in samples), 3),
        "goal": goal,
        "met": None if goal is None else ratio <= goal,
    }


def _median_us(seconds: Iterator[float]) -> float:
    return statistics.median(seconds) * MICRO


def benchmark(rounds: int, pairs: int, only: list[str] | None) -> dict[str, Any]:
    """Measure every case at every sampling; returns what ``--json`` prints."""
    samples: dict[tuple[str, float], list[Sample]] = {}
    about: dict[str, Any] = {}
    for _ in range(pairs):
        for sampling in SAMPLINGS:
            with (
                Worker("baseline", sampling) as baseline,
                Worker("hangup", sampling) as hangup,
            ):
                about = hangup.about
                for case in about["cases"]:
                    if (only and case not in only) or (
                        sampling != 1 and case in UNSAMPLED
                    ):
                        continue
                    taken = samples.setdefault((case, sampling), [])
                    taken += measure(case, baseline, hangup, rounds)
    return {
        "hangup": about["hangup"],
        "python": about["python"],
        "sdk": about["sdk"],
        "rounds": rounds,
        "pairs": pairs,
        "cases": about["cases"],
        "results": [summary(*key, taken) for key, taken in samples.items()],
    }


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report for people."""
    yield (
        f"hangup {report['hangup']}, Python {report['python']}, OpenTelemetry SDK "
        f"{report['sdk']}; {report['pairs']} x {report['rounds']} rounds"
    )
    yield (
        f"{'case':<16}{'sampling':>9}{'ratio':>8}  {'middle half':<15}"
        f"{'without':>10}{'with':>10}{'added':>10}  goal"
    )
    for row in report["results"]:
        low, high = row["spread"]
        verdict = "" if row["met"] is None else "  met" if row["met"] else "  MISSED"
        goal = "" if row["goal"] is None else f"{row['goal']:.2f}{verdict}"
        yield (
            f"{row['case']:<16}{row['sampling']:>9g}{row['ratio']:>8.3f}  "
            f"{f'{low:.3f} - {high:.3f}':<15}{row['baseline_us']:>7.2f} us"
            f"{row['hangup_us']:>7.2f} us{row['added_us']:>7.2f} us  {goal}"
        )
    for case, what in report["cases"].items():
        yield f"{case}: {what}"


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print one JSON object or a table."""
    parser = argparse.ArgumentParser(description="What hangup costs.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=8, help="a pair of processes")
    parser.add_argument("--pairs", type=int, default=2, help="pairs of processes")
    parser.add_argument("--only", action="append", metavar="CASE", help="repeatable")
    given = parser.parse_args(arguments)
    if given.rounds < 1 or given.pairs < 1:
        parser.error("--rounds and --pairs must be at least 1")
    report = benchmark(given.rounds, given.pairs, given.only)
    if given.json:
        print(json.dumps(report))
    else:
        print("\n".join(table(report)))


if __name__ == "__main__":
    main()
