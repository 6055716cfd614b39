"""Every exception hangup raises, with its message.

The tree::

    BaseException
    └── Stop                    the signal, inside a run
    Exception
    ├── RunAbandoned            the error, at the boundary of the run
    │   ├── DeadlineExceeded    (also a TimeoutError)
    │   └── RunCancelled
    ├── ApprovalDenied          an irreversible step was not approved
    ├── ConfigError             (a ValueError) a setting has a wrong value
    └── MisuseError             (a RuntimeError) the API was used in a wrong way
        └── ArgumentError       (also a TypeError) with the wrong kind of thing

Inside a run the stop travels as :class:`Stop`, a ``BaseException``: retry loops,
tool-error-to-message handlers and telemetry guards that say ``except Exception``
cannot eat it. It is not a ``CancelledError``: task groups drop those silently.
The scope that owns the run turns it into :class:`RunAbandoned`, an ordinary error.
"""

from __future__ import annotations

_SHORT = 100  # seconds


def seconds(value: float) -> str:
    """Return a time for a message, such as ``1.5 s`` or ``7 min 9 s``.

    Never with three digits in a row. There are retries that take an error for a rate
    limit if ``429`` stands anywhere in its text (smolagents then sleeps for minutes),
    and elsewhere ``503`` does it; ids of runs are chosen with the same care.
    """
    if value < _SHORT:
        return f"{value:.2f}".rstrip("0").rstrip(".") + " s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _describe(run_name: str, run_id: str) -> str:
    return f"run {run_name!r} ({run_id[:8]})"


def abandoned_text(
    run_id: str, run_name: str, cause: str, detail: str, elapsed: float
) -> str:
    """Return what :class:`RunAbandoned` says, of the same arguments."""
    note = f" ({detail})" if detail else ""
    return (
        f"{_describe(run_name, run_id)} was abandoned after "
        f"{seconds(elapsed)}, cause {cause}{note}"
    )


class Stop(BaseException):
    """The stop signal inside an abandoned run. Let it pass.

    Attributes:
        run_id: 32 hex characters, the run that was abandoned.
        run_name: The run's declared name or route.
        cause: A value of :class:`hangup.core.cause.Cause`.
        detail: Free text given with the cause, or "".
    """

    def __init__(
        self, run_id: str, run_name: str, cause: str, detail: str = ""
    ) -> None:
        super().__init__(run_id, run_name, cause, detail)
        self.run_id = run_id
        self.run_name = run_name
        self.cause = cause
        self.detail = detail

    def __str__(self) -> str:
        note = f": {self.detail}" if self.detail else ""
        return f"{_describe(self.run_name, self.run_id)} must stop, {self.cause}{note}"


class RunAbandoned(Exception):  # noqa: N818  it states a fact about the run
    """A run was abandoned: nobody will receive its result.

    Raised by the scope that owns the run, and for refusals on threads and tasks
    that the run did not start.

    Attributes:
        run_id: 32 hex characters.
        run_name: The run's declared name or route.
        cause: A value of :class:`hangup.core.cause.Cause`.
        detail: Free text given with the cause, or "".
        elapsed: Seconds from the start of the run to the moment the cause took
            effect.
    """

    def __init__(
        self, run_id: str, run_name: str, cause: str, detail: str, elapsed: float
    ) -> None:
        # Not super(): of DeadlineExceeded that is OSError, which would take the first
        # two for an error number and its text.
        Exception.__init__(self, run_id, run_name, cause, detail, elapsed)
        self.run_id = run_id
        self.run_name = run_name
        self.cause = cause
        self.detail = detail
        self.elapsed = elapsed

    def __str__(self) -> str:
        return abandoned_text(
            self.run_id, self.run_name, self.cause, self.detail, self.elapsed
        )

    def __repr__(self) -> str:
        # Not the arguments: see seconds().
        return f"{type(self).__name__}({str(self)!r})"


class DeadlineExceeded(RunAbandoned, TimeoutError):  # noqa: N818  gRPC's word
    """The run's deadline passed before its result was delivered."""


class RunCancelled(RunAbandoned):
    """The run was abandoned for any cause but its deadline."""


class ApprovalDenied(Exception):  # noqa: N818  it states an answer
    """``hangup.irreversible`` asked for approval and did not get it."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action

    def __str__(self) -> str:
        return f"{self.action} was not approved and has not been started"


class ConfigError(ValueError):
    """A setting has a value hangup cannot use."""

    def __init__(self, name: str, value: object, remedy: str) -> None:
        super().__init__(name, value, remedy)
        self.name = name
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.name}={self.value!r} cannot be used: {self.remedy}"


class MisuseError(RuntimeError):
    """The API was used in a way that cannot work; says what to do instead."""


class ArgumentError(MisuseError, TypeError):
    """A function got a kind of thing that it cannot use."""

    def __init__(self, function: str, got: str, remedy: str) -> None:
        super().__init__(function, got, remedy)
        self.function = function
        self.got = got
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.function} got {self.got}: {self.remedy}"
