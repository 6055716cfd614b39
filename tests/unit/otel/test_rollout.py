"""The file of the rules is kept in force, and what goes wrong is counted and said."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from support.telemetry import Telemetry, instrumented

import hangup
from hangup.config import Mode
from hangup.core import rollout
from hangup.core.rules import digest_of
from hangup.core.scope import RunScope
from hangup.errors import ConfigError, RunAbandoned
from hangup.otel import names
from hangup.otel.instrumentor import HangupInstrumentor
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

ENFORCE = "default: {mode: enforce}\n"
OBSERVE = "default: {mode: observe}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(ENFORCE)
    return path


def again() -> None:
    """Do what the watching thread does when the file has changed."""
    HangupInstrumentor()._rollout.read_again()


def mode_of_a_run() -> Mode:
    with hangup.run() as run:
        return run.mode


def info(telemetry: Telemetry) -> tuple[object, object]:
    [series] = telemetry.series(names.INFO)[names.INFO]
    return series.labels[names.MODE], series.labels[names.POLICY]


def test_the_file_is_in_force_while_hangup_is_installed(path: Path) -> None:
    path.write_text(OBSERVE)
    with instrumented(policy_file=str(path)) as telemetry:
        assert mode_of_a_run() is Mode.OBSERVE
        assert info(telemetry) == ("unset", digest_of(OBSERVE.encode()))
        assert "hangup-policy" in [one.name for one in threading.enumerate()]
        path.write_text(ENFORCE)
        again()
        assert mode_of_a_run() is Mode.ENFORCE
        assert info(telemetry) == ("unset", digest_of(ENFORCE.encode()))
    assert rollout.digest() == "none"
    with instrumented() as telemetry:
        assert mode_of_a_run() is Mode.ENFORCE
        assert info(telemetry) == ("unset", "none")


def test_a_bad_file_keeps_the_last_good_one_and_is_counted_and_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(OBSERVE)
    with (
        caplog.at_level(logging.INFO, "hangup"),
        instrumented(policy_file=str(path)) as telemetry,
    ):
        assert telemetry.total(names.POLICY_ERRORS) == 0
        for content, many in (("mode: x", 1), ("mode: x", 1), ("mode: y", 2)):
            path.write_text(content)
            again()
            assert mode_of_a_run() is Mode.OBSERVE
            assert telemetry.total(names.POLICY_ERRORS) == many
        path.unlink()
        again()
        assert telemetry.total(names.POLICY_ERRORS) == 3
        assert info(telemetry)[1] == digest_of(OBSERVE.encode())
        path.write_text(ENFORCE)
        again()
        assert mode_of_a_run() is Mode.ENFORCE
    errors = [one.message for one in caplog.records if one.levelname == "ERROR"]
    assert len(errors) == 3
    assert "the last good one stays in force" in errors[0]
    assert "policy.yaml, line 1: mode='x' cannot be used: no such key" in errors[0]
    assert "has changed, and is in force" in caplog.text


def test_a_file_that_is_bad_at_the_start_observes_until_it_is_right(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("default: {mode: loud}")
    with (
        caplog.at_level(logging.INFO, "hangup"),
        instrumented(policy_file=str(path)) as telemetry,
    ):
        assert mode_of_a_run() is Mode.OBSERVE
        assert telemetry.total(names.POLICY_ERRORS) == 1
        assert "every run is observed until it can" in caplog.text
        path.write_text(ENFORCE)
        again()
        assert mode_of_a_run() is Mode.ENFORCE


def test_a_mistake_of_the_installation_raises_and_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        hangup.instrument(policy_file=str(path.parent / "absent"))
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"hangup\[policy\]"):
        hangup.instrument(policy_file=str(path))
    hangup.uninstrument()
    assert rollout.digest() == "none"


def test_the_same_content_again_changes_nothing(path: Path) -> None:
    with instrumented(policy_file=str(path)):
        rollout.brake()
        again()
        assert rollout.braked()


def test_a_change_releases_the_brake(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "hangup"),
        instrumented(policy_file=str(path)),
    ):
        rollout.brake()
        path.write_text(f"# seen to\n{ENFORCE}")
        again()
        assert mode_of_a_run() is Mode.ENFORCE
    assert "the brake is released" in caplog.text


def stop(clock: FakeClock, many: int) -> None:
    for _ in range(many):
        try:
            with RunScope(1, clock=clock) as run:
                run.caller = "connected"
                clock.advance(1)
                run.check()
        except RunAbandoned:
            pass


def test_the_brake_is_on_by_default_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    with caplog.at_level(logging.INFO, "hangup"), instrumented() as telemetry:
        assert telemetry.total(names.BRAKE_TRIPPED) == 0
        stop(clock, 49)
        assert mode_of_a_run() is Mode.ENFORCE
        stop(clock, 100)
        assert mode_of_a_run() is Mode.OBSERVE
        assert telemetry.total(names.BRAKE_TRIPPED) == 1
        assert info(telemetry) == ("observe", "none")
        [record] = caplog.records
        assert "stopped 50 of 50 runs" in record.getMessage()
        assert "hangup.release_brake()" in record.getMessage()
        assert hangup.release_brake()
        assert mode_of_a_run() is Mode.ENFORCE
        assert info(telemetry) == ("unset", "none")
    with instrumented():
        assert mode_of_a_run() is Mode.ENFORCE


def test_the_brake_takes_its_settings() -> None:
    clock = FakeClock()
    with instrumented(brake_runs=3, brake_share="50%", brake_window=10):
        stop(clock, 2)
        clock.advance(20)
        stop(clock, 2)
        assert not rollout.braked()
        stop(clock, 1)
        assert rollout.braked()
    with instrumented(brake_share=100):
        stop(clock, 200)
        assert not rollout.braked()


def test_a_lowered_run_ends_in_the_series_of_its_new_mode(path: Path) -> None:
    with instrumented(policy_file=str(path)) as telemetry:
        with hangup.run(name="research"):
            path.write_text(OBSERVE)
            again()
            zero = telemetry.series(names.RUNS)[names.RUNS]
            assert any(one.labels[names.MODE] == "observe" for one in zero)
        assert (
            telemetry.total(names.RUNS, mode="observe", outcome="delivered")
            == telemetry.total(names.RUNS)
            == 1
        )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_watches_for_itself_from_its_first_run_on(path: Path) -> None:
    with instrumented(policy_file=str(path)):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover  another process
            before = [one.name for one in threading.enumerate()]
            mode = mode_of_a_run()
            after = [one.name for one in threading.enumerate()]
            said = f"{before.count('hangup-policy')} {mode} "
            os.write(writing, f"{said}{after.count('hangup-policy')}".encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert pipe.read() == "0 enforce 1"
        assert os.waitpid(child, 0)[1] == 0
