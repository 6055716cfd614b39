"""A method is wrapped once, beneath instrumentations, and comes back as it was."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import wrapt

from hangup.otel.patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable


class Base:
    def inherited(self) -> list[str]:
        return ["base"]


def _target() -> type:
    class Target(Base):
        def call(self) -> list[str]:
            return ["original"]

    return Target


def _make(original: Any, patch: Patch) -> Callable[..., list[str]]:
    @functools.wraps(original)
    def wrapper(self: object) -> list[str]:
        result: list[str] = original(self)
        return ["ours", *result] if patch.active else result

    return wrapper


def _instrument(target: type) -> None:
    wrapt.wrap_function_wrapper(
        target, "call", lambda wrapped, _self, args, kwargs: ["otel", *wrapped(*args)]
    )


def _uninstrument(target: Any) -> None:
    target.call = target.__dict__["call"].__wrapped__


def test_applying_twice_wraps_once_and_reverting_restores_the_original() -> None:
    target: Any = _target()
    original = target.__dict__["call"]
    patch = Patch(target, "call", _make)
    patch.apply()
    patch.apply()
    assert target().call() == ["ours", "original"]
    patch.revert()
    patch.revert()
    assert target.__dict__["call"] is original


@pytest.mark.parametrize("first", ["ours", "otel"])
def test_ours_stands_beneath_an_instrumentation_in_either_order(first: str) -> None:
    target: Any = _target()
    patch = Patch(target, "call", _make)
    if first == "ours":
        patch.apply()
    _instrument(target)
    patch.apply()
    assert target().call() == ["otel", "ours", "original"]
    _uninstrument(target)
    assert target().call() == ["ours", "original"]
    patch.revert()
    assert target().call() == ["original"]


def test_reverting_beneath_an_instrumentation_leaves_it_in_place() -> None:
    target: Any = _target()
    _instrument(target)
    patch = Patch(target, "call", _make)
    patch.apply()
    patch.revert()
    assert target().call() == ["otel", "original"]
    patch.apply()
    assert target().call() == ["otel", "ours", "original"]


def test_a_wrapper_that_others_wrapped_hands_through_and_is_not_stacked() -> None:
    target: Any = _target()
    patch = Patch(target, "call", _make)
    patch.apply()
    ours = target.call

    @functools.wraps(ours)
    def theirs(self: object) -> list[str]:
        return ["theirs", *ours(self)]

    target.call = theirs
    patch.revert()
    assert target().call() == ["theirs", "original"]
    patch.apply()
    assert target().call() == ["theirs", "ours", "original"]


def test_an_inherited_method_can_be_wrapped() -> None:
    target: Any = _target()
    Patch(target, "inherited", _make).apply()
    assert target().inherited() == ["ours", "base"]
    assert Base().inherited() == ["base"]


def test_reverting_an_inherited_method_leaves_the_class_as_it_was() -> None:
    target: Any = _target()
    before = dict(vars(target))
    patch = Patch(target, "inherited", _make)
    patch.apply()
    patch.revert()
    assert dict(vars(target)) == before
