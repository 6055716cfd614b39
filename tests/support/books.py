"""What the processes of a server have booked, read from outside while they live.

Each process writes its ``hangup.*`` counters to a file of its own, ten times a second
and when it is flushed; the reader adds the files up.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from support.tofile import rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORY = "BOOKS"
"""The environment variable that tells a process where to write."""
EVERY = "BOOKS_EVERY"
"""Milliseconds between two exports; an hour leaves only what is flushed."""


class ToDirectory(MetricExporter):
    """Writes the books of this process to the directory of the environment."""

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 0, **_options: object
    ) -> MetricExportResult:
        rows = rows_of(metrics_data, lambda name: name.startswith("hangup."))
        directory = Path(os.environ[DIRECTORY])
        half = directory / f"{os.getpid()}.half"
        half.write_text(json.dumps(rows))
        half.replace(directory / f"{os.getpid()}.json")
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 0, **_options: object) -> None: ...

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True


def writing() -> MeterProvider:
    """Return meters whose books are written to the directory of the environment."""
    every = float(os.environ.get(EVERY, "100"))
    return MeterProvider([PeriodicExportingMetricReader(ToDirectory(), every)])


class Books:
    """Reads what every process wrote."""

    def __init__(self, directory: Path, pattern: str = "*.json") -> None:
        self._directory, self._pattern = directory, pattern

    @property
    def of_each(self) -> list[Books]:
        """The books of each process that has written any."""
        paths = self._directory.glob(self._pattern)
        return [Books(self._directory, path.name) for path in paths]

    def total(self, metric: str, **labels: str) -> float:
        """Sum a metric over all processes; labels by the last word of their names."""
        return sum(value for found, value in self._rows(metric) if _has(found, labels))

    def runs(self, **labels: str) -> dict[tuple[str, str], int]:
        """Ended runs by outcome and cause, those with any."""
        return self._by("hangup.runs", "outcome", labels)

    def tokens(self, **labels: str) -> dict[tuple[str, str], int]:
        """Tokens by fate and cause, those with any."""
        return self._by("hangup.tokens", "fate", labels)

    async def settle(
        self, expected: dict[tuple[str, str], int], within: float = 10.0, **labels: str
    ) -> None:
        """Wait until the runs are these; what comes after is for the caller to see."""
        try:
            async with asyncio.timeout(within):
                while self.runs(**labels) != expected:  # noqa: ASYNC110  other processes
                    await asyncio.sleep(0.05)
        except TimeoutError:
            assert self.runs(**labels) == expected

    def _by(
        self, metric: str, what: str, labels: Mapping[str, str]
    ) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for row, value in self._rows(metric):
            if value and _has(row, labels):
                key = (row[what], row["cause"])
                found[key] = found.get(key, 0) + int(value)
        return found

    def _rows(self, metric: str) -> list[tuple[dict[str, str], float]]:
        return [
            ({key.rpartition(".")[2]: value for key, value in labels.items()}, value)
            for path in self._directory.glob(self._pattern)
            for name, labels, value in json.loads(path.read_text())
            if name == metric and value is not None
        ]


def _has(found: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(found.get(key) == value for key, value in labels.items())
