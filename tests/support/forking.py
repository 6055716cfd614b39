"""A process that counts, forks, and goes on: run as ``python -m support.forking``.

Exports over OTLP to where the environment says, once: when it ends. So do its children.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from support.telemetry import chat, used

import hangup

PARENT, CHILD = 10, 1_000
"""Input tokens of each call of the parent, and of one of a child."""

tracers = TracerProvider()
meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(), 3_600_000)])


def spend(tokens: int) -> None:
    with chat(tracers.get_tracer("test")) as span:
        used(span, tokens, 1)


def spend_in_a_run(name: str, tokens: int) -> None:
    with hangup.run(name=name):
        spend(tokens)


def forked() -> int:
    """A child that makes one call where it stands, and one in a run of its own."""
    child = os.fork()
    if child == 0:
        spend(CHILD)
        spend_in_a_run("child", CHILD)
        sys.exit(0)
    return child


def main() -> None:
    late = "late" in sys.argv  # the meters are set when hangup is installed already
    given = None if late else meters
    hangup.instrument(tracer_provider=tracers, meter_provider=given, mode="enforce")
    if late:
        metrics.set_meter_provider(meters)
    fork = multiprocessing.get_context("fork")
    spend_in_a_run("parent", PARENT)
    children = [forked()]
    with hangup.run(name="around"):
        spend(PARENT)
        # Both find the run open in which they were forked: their parent counts it.
        children.append(forked())
        process = fork.Process(target=spend_in_a_run, args=("child", CHILD))
        process.start()
        process.join()
        assert process.exitcode == 0
        spend(PARENT)
    process = fork.Process(target=spend_in_a_run, args=("child", CHILD))
    process.start()
    process.join()
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    # What was open when they were forked, or counted before, is theirs no more.
    spend_in_a_run("parent", PARENT)


if __name__ == "__main__":
    main()
