"""What an abandoned run's exception is: the stop, made of it, or somebody's error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hangup.core.unwind import hides_refusal, is_signal, stems_from_stop
from hangup.errors import DeadlineExceeded, RunAbandoned, RunCancelled, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = ("0" * 32, "r", "killed")


def stop() -> Stop:
    return Stop(*RUN)


def residue() -> RuntimeError:
    return RuntimeError("No response returned.")


def caused_by(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def in_context_of(error: BaseException, context: BaseException) -> BaseException:
    error.__context__ = context
    return error


class Attempt:
    """As tenacity keeps it: a future of the last try."""

    def __init__(self, outcome: Callable[[], object]) -> None:
        self.exception = outcome


class RetryError(Exception):
    def __init__(self, last_attempt: object) -> None:
        super().__init__(last_attempt)
        self.last_attempt = last_attempt


def cancelled_attempt() -> object:
    raise asyncio.CancelledError


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("several", errors)


@pytest.mark.parametrize(
    "error",
    [stop(), asyncio.CancelledError(), RunAbandoned(*RUN, "", 1.0)],
    ids=lambda error: type(error).__name__,
)
def test_the_signals(error: BaseException) -> None:
    assert is_signal(error)
    assert stems_from_stop(error)


OURS = {
    "a missed deadline": DeadlineExceeded(*RUN, "", 1.0),
    "raised from the signal": caused_by(ValueError(), stop()),
    "raised while handling the signal": in_context_of(ValueError(), stop()),
    "through several wrappers": caused_by(
        KeyError(), in_context_of(ValueError(), caused_by(OSError(), stop()))
    ),
    "a retry that gave up on it": RetryError(Attempt(stop)),
    "a retry whose last try was cancelled": RetryError(Attempt(cancelled_attempt)),
    "a group of signals": group(stop(), asyncio.CancelledError()),
    "nested groups": group(group(stop()), group(group(asyncio.CancelledError()))),
    "a group of the signal and residue": group(stop(), residue()),
    "residue alone, in a group raised from the signal": caused_by(
        group(residue()), stop()
    ),
    "a group of what was made of it": group(caused_by(ValueError(), stop())),
    "raised from a group that holds it": caused_by(ValueError(), group(stop())),
}

NOT_OURS = {
    "an ordinary error": ValueError(),
    "a timeout of their own": TimeoutError(),
    "an exit": KeyboardInterrupt(),
    "residue alone": group(residue()),
    "another error of that type": group(stop(), RuntimeError("something else")),
    "a group with a real error in it": group(stop(), ValueError()),
    "a real error deep in groups": group(stop(), group(residue(), ValueError())),
    "a retry that gave up on a real error": RetryError(Attempt(ValueError)),
    "a retry that succeeded last": RetryError(Attempt(lambda: None)),
    "an attribute of that name which is none": RetryError("second"),
    "raised from a real error": caused_by(ValueError(), KeyError()),
}


@pytest.mark.parametrize("error", OURS.values(), ids=OURS.keys())
def test_made_of_the_stop(error: BaseException) -> None:
    assert stems_from_stop(error)


@pytest.mark.parametrize("error", NOT_OURS.values(), ids=NOT_OURS.keys())
def test_somebodys_error(error: BaseException) -> None:
    assert not stems_from_stop(error)


def test_a_chain_that_bites_its_tail_ends() -> None:
    one, other = ValueError(), KeyError()
    one.__cause__, other.__cause__ = other, one
    assert not stems_from_stop(one)
    other.__context__ = stop()
    assert stems_from_stop(one)


def test_a_chain_is_not_followed_for_ever() -> None:
    error: BaseException = stop()
    for _ in range(1_000):
        error = caused_by(ValueError(), error)
    assert not stems_from_stop(error)


def test_an_error_made_of_a_refusal_hides_it() -> None:
    refusal = RunCancelled("0" * 32, "r", "disconnect", "", 1.0)
    made = ConnectionError("read failed")
    made.__cause__ = refusal
    outer = LookupError("the call failed")
    outer.__context__ = made
    assert hides_refusal(made)
    assert hides_refusal(outer)
    assert not hides_refusal(refusal)
    assert not hides_refusal(ConnectionError("read failed"))
    assert not hides_refusal(asyncio.CancelledError())
