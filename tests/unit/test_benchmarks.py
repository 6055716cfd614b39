"""The benchmark runs and reports; what it measures is not for a test to judge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
BENCHMARK = BENCHMARKS / "run.py"


def test_it_prints_ratios_of_both_goals_at_both_samplings() -> None:
    """One round of one pair of processes is enough to see the shape."""
    options = ["--json", "--rounds", "1", "--pairs", "1"]
    only = ["--only", "span_outside", "--only", "call_in_run"]
    done = subprocess.run(  # noqa: S603  our own file, this Python
        [sys.executable, str(BENCHMARK), *options, *only],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    rows = {(row["case"], row["sampling"]): row for row in report["results"]}
    cases = ("span_outside", "call_in_run")
    assert set(rows) == {(case, ratio) for case in cases for ratio in (1.0, 0.01)}
    assert rows["span_outside", 1.0]["goal"] == 1.10
    assert rows["call_in_run", 1.0]["goal"] == 1.35
    for row in rows.values():
        assert row["ratio"] > 0
        assert row["baseline_us"] > 0
        assert row["hangup_us"] > 0


def test_pricing_is_measured_beside_genai_prices() -> None:
    """Its goal is for the benchmark to judge; that it is far below theirs is not."""
    done = subprocess.run(  # noqa: S603  our own file, this Python
        [sys.executable, str(BENCHMARKS / "pricing.py"), "--json", "--rounds", "1"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["us"]) == {"listed", "billed", "genai-prices"}
    assert min(report["us"].values()) > 0
    assert report["goal_us"] == 5.0
    assert report["ratio"] < 0.2


def test_carrying_the_run_is_measured_beside_the_stock_baggage() -> None:
    """Its goal is for the benchmark to judge; that it is no multiple of it is not."""
    done = subprocess.run(  # noqa: S603  our own file, this Python
        [sys.executable, str(BENCHMARKS / "propagation.py"), "--json", "--rounds", "3"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["goal"] == 1.4
    assert [row["users"] for row in report["results"]] == [0, 1, 4, 16]
    assert all(0 < row["ratio"] < 2.5 for row in report["results"])
