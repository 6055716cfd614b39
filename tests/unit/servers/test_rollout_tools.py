"""Rules by name and tenant where work has no path: tools of MCP, tasks of A2A."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.ruling import use_rules

from hangup import config
from hangup.config import Mode, OnDisconnect, Settings
from hangup.core import rollout
from hangup.otel.mcpwire import TOOLS_CALL
from hangup.servers import a2a
from hangup.servers._mcp_terms import Terms, ToolTraits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hangup.core.run import Run
    from hangup.core.scope import RunScope

    Opened = Callable[..., Run | None]

NAME = "search"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = config.use(Settings())
    yield
    rollout.reset()
    config.use(before)


def run_of(scope: RunScope) -> Run:
    with scope as run:
        run.deliver()
    return run


def tool(**options: Any) -> Run | None:
    """Return the run of a call of a tool, None where there is none."""
    traits = ToolTraits(known=frozenset({NAME}))
    opening = Terms(**options).open(TOOLS_CALL, {"name": NAME}, traits)
    return None if opening is None else run_of(opening.run)


def task(**options: Any) -> Run | None:
    """Return the run of a message to an agent, None where there is none."""
    executor = SimpleNamespace(execute=lambda: None)
    protected: Any = a2a.protect(executor, **{"mode": None, "name": NAME, **options})
    opening = protected._opening(SimpleNamespace(call_context=None, configuration=None))
    return None if opening is None else run_of(opening[0])


EITHER = pytest.mark.parametrize("opened", [tool, task])


@EITHER
def test_a_rule_by_name_enforces_what_no_code_asked_to_enforce(opened: Opened) -> None:
    run = opened()
    assert run is not None
    assert run.mode is Mode.OBSERVE
    use_rules(
        {
            "name": NAME,
            "mode": "enforce",
            "budget": 7,
            "on_disconnect": "grace",
            "grace": 3,
        }
    )
    run = opened()
    assert run is not None
    assert run.mode is Mode.ENFORCE
    assert 6 < run.deadline.at - run.started_at <= 7
    assert run.absence.on_disconnect is OnDisconnect.GRACE
    assert run.absence.grace == 3
    use_rules({"name": "another", "mode": "enforce"})
    assert getattr(opened(), "mode", None) is Mode.OBSERVE


@EITHER
def test_a_rule_by_tenant_lowers_what_code_asked_for(opened: Opened) -> None:
    use_rules({"tenant": "acme", "mode": "observe"})
    modes = [opened(mode="enforce", tenant=tenant) for tenant in ("acme", "else")]
    assert [getattr(run, "mode", None) for run in modes] == [Mode.OBSERVE, Mode.ENFORCE]


@EITHER
def test_a_rules_budget_goes_before_that_of_code(opened: Opened) -> None:
    use_rules({"name": NAME, "budget": 7})
    run = opened(budget=100)
    assert run is not None
    assert run.deadline.at - run.started_at <= 7


@EITHER
def test_the_ceiling_holds_over_the_rules_and_off_is_off(opened: Opened) -> None:
    use_rules({"name": NAME, "mode": "enforce"})
    config.use(Settings(mode=Mode.REFUSE))
    assert getattr(opened(), "mode", None) is Mode.REFUSE
    use_rules({"name": NAME, "mode": "off"})
    assert opened() is None
