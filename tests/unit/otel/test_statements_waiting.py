"""Runs that are held cost no more for being many, and none of them is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hangup.otel.statements import Statements

if TYPE_CHECKING:
    from opentelemetry._logs import Logger, LogRecord


class Held:
    """Stands in for the statement of a run that is held; counts who asks."""

    asked = 0

    def __init__(self) -> None:
        self.over = False

    @property
    def still(self) -> bool:
        Held.asked += 1
        return self.over

    def record(self, _price_version: str) -> Any:
        return self


class Log:
    """Keeps what is emitted."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def emit(self, record: LogRecord) -> None:
        self.told.append(record)


def made() -> tuple[Any, Log]:
    log = Log()
    Held.asked = 0
    return cast("Any", Statements(cast("Logger", log))), log


def test_each_of_many_that_wait_is_asked_a_few_times() -> None:
    statements, log = made()
    for _ in range(2_000):
        statements.due(Held())
        statements.tell()
    assert log.told == []
    # Asking all of them each time would be two million.
    assert Held.asked < 20 * 2_000


def test_what_has_more_to_tell_is_told_at_once_however_many_wait() -> None:
    statements, log = made()
    held = [Held() for _ in range(500)]
    for one in held:
        statements.due(one)
    statements.tell()
    held[250].over = True
    statements.due(held[250])
    statements.tell()
    assert log.told == [held[250]]


def test_what_never_has_more_to_tell_is_found_all_the_same() -> None:
    statements, log = made()
    held = [Held() for _ in range(500)]
    for one in held:
        statements.due(one)
    statements.tell()
    held[250].over = True
    for _ in range(500):
        statements.tell()
    assert log.told == [held[250]]


def test_all_are_told_when_the_process_goes_down() -> None:
    statements, log = made()
    held = [Held() for _ in range(100)]
    for one in held[:50]:
        statements.due(one)
    statements.tell()
    for one in held[50:]:
        statements.due(one)
    statements.tell(all_of_them=True)
    statements.tell(all_of_them=True)
    assert log.told == [*held[50:], *held[:50]]
