"""An exception says what was attempted, on which run, and survives pickling."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest

from hangup.errors import (
    ApprovalDenied,
    ArgumentError,
    ConfigError,
    DeadlineExceeded,
    MisuseError,
    RunAbandoned,
    RunCancelled,
    Stop,
    seconds,
)

RUN = ("0123456789abcdef" * 2, "research")


def test_the_signal_is_no_ordinary_exception_and_no_cancelled_error() -> None:
    assert not issubclass(Stop, Exception)
    assert not issubclass(Stop, asyncio.CancelledError)


def test_an_abandoned_run_is_an_ordinary_exception() -> None:
    assert issubclass(RunAbandoned, Exception)
    assert issubclass(RunCancelled, RunAbandoned)
    assert not issubclass(RunCancelled, TimeoutError)


def test_a_missed_deadline_is_a_timeout() -> None:
    assert issubclass(DeadlineExceeded, RunAbandoned)
    assert issubclass(DeadlineExceeded, TimeoutError)
    error = DeadlineExceeded(*RUN, "deadline", "", 2.5)
    with pytest.raises(TimeoutError) as caught:
        raise error
    assert caught.value is error


def test_a_missed_deadline_does_not_pass_for_a_fault_of_the_system() -> None:
    error = DeadlineExceeded(*RUN, "deadline", "", 2.5)
    assert (error.errno, error.strerror, error.filename) == (None, None, None)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            Stop(*RUN, "killed", "by operator"),
            "run 'research' (01234567) must stop, killed: by operator",
        ),
        (Stop(*RUN, "disconnect"), "run 'research' (01234567) must stop, disconnect"),
        (
            RunCancelled(*RUN, "disconnect", "", 1.5),
            "run 'research' (01234567) was abandoned after 1.5 s, cause disconnect",
        ),
        (
            DeadlineExceeded(*RUN, "deadline", "inference needs 2 s", 30.0),
            (
                "run 'research' (01234567) was abandoned after 30 s, cause "
                "deadline (inference needs 2 s)"
            ),
        ),
        (
            ApprovalDenied("charge"),
            "charge was not approved and has not been started",
        ),
        (
            ConfigError("mode", "loud", "choose one of off, observe"),
            "mode='loud' cannot be used: choose one of off, observe",
        ),
        (MisuseError("do it so instead"), "do it so instead"),
        (
            ArgumentError("hangup.run", "3", "give it a function"),
            "hangup.run got 3: give it a function",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_it_is_the_same_after_pickling_and_copying(
    error: BaseException, message: str
) -> None:
    assert str(error) == message
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301  our own bytes
        assert type(twin) is type(error)
        assert twin.args == error.args
        assert vars(twin) == vars(error)
        assert str(twin) == message


def test_a_run_abandoned_carries_what_a_handler_wants_to_know() -> None:
    error = RunAbandoned(*RUN, "killed", "by operator", 0.25)
    assert error.run_id == RUN[0]
    assert error.run_name == "research"
    assert error.cause == "killed"
    assert error.detail == "by operator"
    assert error.elapsed == 0.25


def test_errors_of_configuration_and_misuse_are_what_python_calls_them() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(MisuseError, RuntimeError)
    assert issubclass(ArgumentError, TypeError)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (1.5, "1.5 s"),
        (0.429, "0.43 s"),
        (42.94, "42.94 s"),
        (429.0, "7 min 9 s"),
        (25_740.0, "7 h 9 min"),
    ],
)
def test_a_time_has_no_three_digits_in_a_row(value: float, text: str) -> None:
    """A retry that looks for 429 in an error's text would wait, and try again."""
    assert seconds(value) == text


@pytest.mark.parametrize("elapsed", [0.429, 1.4294, 429.0, 4290.5])
def test_no_abandoned_run_passes_for_a_rate_limit(elapsed: float) -> None:
    error = DeadlineExceeded(*RUN, "deadline", "", elapsed)
    assert "429" not in str(error)
    assert "429" not in repr(error)
