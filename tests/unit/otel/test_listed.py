"""The propagator by its name: in a list, alone, and beside ``hangup.instrument``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry import baggage, context, propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import Setter
from support.propagation import INSIDE, OUTSIDE, a_run, calling, stock, with_baggage
from support.wire import TOKEN

from hangup.core import guard
from hangup.otel import once, propagator, wire
from hangup.otel.context import INBOUND_KEY
from hangup.otel.listed import ListedPropagator
from hangup.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).parents[3]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def _say_everything() -> None:
    once.forget()


def _listed(order: str) -> CompositePropagator:
    kinds = {"hangup": ListedPropagator, "baggage": W3CBaggagePropagator}
    return CompositePropagator([kinds[name]() for name in order.split(",")])


def test_last_in_the_list_it_puts_ours_ahead_of_the_users(clock: FakeClock) -> None:
    carrier: dict[str, str] = {}
    with a_run(clock) as run, with_baggage(user="u1"), calling(INSIDE):
        _listed("baggage,hangup").inject(carrier)
    sent = wire.decode_header(carrier["hangup"])
    assert sent is not None
    assert (sent.token, sent.left) == (run.id, 10.0)
    assert carrier["baggage"].startswith(f"hangup.token={run.id},")
    assert carrier["baggage"].endswith(",user=u1")


def test_alone_it_carries_the_run_and_nothing_of_the_users(clock: FakeClock) -> None:
    carrier: dict[str, str] = {}
    with a_run(clock) as run, with_baggage(user="u1"), calling(INSIDE):
        _listed("hangup").inject(carrier)
    found = wire.from_baggage_text(carrier["baggage"])
    assert found == wire.decode_header(carrier["hangup"])
    assert found is not None
    assert found.token == run.id
    assert "user" not in str(carrier)


@pytest.mark.parametrize("order", ["baggage,hangup", "hangup"])
def test_an_outside_host_gets_nothing_of_ours(clock: FakeClock, order: str) -> None:
    carrier = {"hangup": "stale", "baggage": "hangup.token=stale,user=u1"}
    with a_run(clock), with_baggage(user="u1"), calling(OUTSIDE):
        _listed(order).inject(carrier)
    assert carrier == {"baggage": "user=u1"}


@pytest.mark.parametrize("order", ["baggage,hangup", "hangup"])
@pytest.mark.parametrize("form", ["hangup", "baggage"])
def test_it_takes_the_run_in_and_leaves_no_raw_entries(order: str, form: str) -> None:
    carrier = {
        "hangup": f't="{TOKEN}", l=5000',
        "baggage": f"hangup.token={TOKEN},hangup.left=5000,user=u1",
    }
    found = _listed(order).extract({form: carrier[form]}, context.Context())
    assert found.get(INBOUND_KEY) == wire.Inbound(TOKEN, left=5.0)
    users = order == "baggage,hangup" and form == "baggage"
    assert baggage.get_all(found) == ({"user": "u1"} if users else {})


def test_a_carrier_that_cannot_be_read_gets_the_header_only(clock: FakeClock) -> None:
    """To set the baggage in it might replace the users'."""
    carrier: list[tuple[str, str]] = []

    class Pairs(Setter[list[tuple[str, str]]]):
        def set(self, carrier: list[tuple[str, str]], key: str, value: str) -> None:
            carrier.append((key, value))

    with a_run(clock), calling(INSIDE):
        ListedPropagator().inject(carrier, setter=Pairs())
    assert [name for name, _ in carrier] == ["hangup"]


def test_a_fault_of_ours_never_reaches_the_caller(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.strict(on=False)
    monkeypatch.setattr(propagator, "outgoing", lambda _run: 1 / 0)
    monkeypatch.setattr(wire, "decode_header", lambda _text: 1 / 0)
    carrier = {"hangup": "stale"}
    with a_run(clock), calling(INSIDE):
        ListedPropagator().inject(carrier)
    assert carrier == {}
    here = context.Context()
    assert ListedPropagator().extract({"hangup": "x"}, here) is here


@pytest.fixture
def restored_global() -> Iterator[None]:
    before = propagate.get_global_textmap()
    yield
    propagator.uninstall()
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures("restored_global")
def test_installed_around_it_the_run_is_sent_once_and_it_wakes_afterwards(
    clock: FakeClock,
) -> None:
    inside = ListedPropagator()
    propagate.set_global_textmap(CompositePropagator([stock(), inside]))
    propagator.install()
    assert not inside.active
    carrier: dict[str, str] = {}
    with a_run(clock), with_baggage(user="u1"), calling(INSIDE):
        propagate.inject(carrier)
    assert carrier["baggage"].count("hangup.token") == 1
    assert carrier["baggage"].endswith("user=u1")
    propagator.uninstall()
    assert inside.active


@pytest.mark.usefixtures("restored_global")
def test_the_only_one_there_is_is_wrapped_and_comes_back(clock: FakeClock) -> None:
    alone = ListedPropagator()
    propagate.set_global_textmap(alone)
    assert propagator.install() is propagator.install()
    assert propagate.get_global_textmap() is not alone
    carrier: dict[str, str] = {}
    with a_run(clock) as run, calling(INSIDE):
        propagate.inject(carrier)
    found = wire.decode_header(carrier["hangup"])
    assert found is not None
    assert found.token == run.id
    assert wire.from_baggage_text(carrier["baggage"]) == found
    propagator.uninstall()
    assert propagate.get_global_textmap() is alone
    assert alone.active


_PROGRAM = """
import json
import hangup
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import TracerProvider

carrier = {}
tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
inside = {"server.address": "subagent.svc"}
context.attach(baggage.set_baggage("user", "u1"))
with (
    hangup.run(30, name="r") as run,
    tracer.start_as_current_span("c", kind=trace.SpanKind.CLIENT, attributes=inside),
):
    propagate.inject(carrier)
fields = sorted(propagate.get_global_textmap().fields)
print(json.dumps({"run": run.id, "carrier": carrier, "fields": fields}))
"""


@pytest.mark.parametrize(
    "order", ["tracecontext,baggage,hangup", "hangup", "hangup,tracecontext"]
)
def test_the_environment_names_it(tmp_path: Path, order: str) -> None:
    """Loaded as the operator's process does, while ``propagate`` is being imported."""
    # The entry points of this tree, whatever is installed.
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    [(name, target)] = project["entry-points"]["opentelemetry_propagator"].items()
    about = tmp_path / "hangup_tree-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hangup-tree\n")
    listed = f"[opentelemetry_propagator]\n{name} = {target}\n"
    (about / "entry_points.txt").write_text(listed)
    path = os.pathsep.join([str(tmp_path), str(TOP / "src")])
    done = subprocess.run(  # noqa: S603  our own program, this Python
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "OTEL_PROPAGATORS": order},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    carrier = said["carrier"]
    assert ("traceparent" in carrier) == ("tracecontext" in order)
    assert ("user=u1" in carrier["baggage"]) == ("baggage" in order.split(","))
    found = wire.decode_header(carrier["hangup"])
    assert found is not None
    assert found.token == said["run"]
    assert wire.from_baggage_text(carrier["baggage"]) == found
    assert {"hangup", "baggage"} <= set(said["fields"])
