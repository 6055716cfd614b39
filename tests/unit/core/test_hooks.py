"""What waits for something is called once, whenever it asked."""

from __future__ import annotations

import threading

from hangup.core.hooks import Hooks
from hangup.core.scope import RunScope


def test_each_is_called_once_before_and_after() -> None:
    told: list[str] = []
    hooks: Hooks[str] = Hooks(threading.Lock())
    hooks.add(told.append, "before")
    hooks.add(told.append, "too")
    hooks.happened("now")
    assert told == ["now", "now"]
    hooks.happened("again")
    hooks.add(told.append, "after")
    assert told == ["now", "now", "after"]


def test_what_was_forgotten_is_not_called() -> None:
    told: list[str] = []
    hooks: Hooks[str] = Hooks(threading.Lock())
    forget = hooks.add(told.append, "")
    forget()
    forget()
    hooks.happened("now")
    hooks.add(told.append, "late")()
    assert told == ["late"]


def test_a_hook_may_add_another() -> None:
    told: list[str] = []
    hooks: Hooks[str] = Hooks(threading.Lock())

    def another(now: str) -> None:
        hooks.add(told.append, f"inside {now}")

    hooks.add(another, "")
    hooks.happened("now")
    assert told == ["inside now"]


def test_a_latent_run_tells_of_its_delivery_too() -> None:
    told: list[object] = []
    with RunScope(latent=True, server=True) as run:
        run.on_deliver(told.append)
        assert run.deliver()
        assert not run.deliver()
        run.on_deliver(told.append)
    assert told == [run, run]
