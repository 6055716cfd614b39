from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import hangup
from hangup import bus, config
from hangup.bus.memory import memory
from hangup.cli import bus as commands
from hangup.cli.app import app
from hangup.core import remote

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count()
SOON = ["--wait", "0.2"]


@pytest.fixture
def url() -> Iterator[str]:
    """A bus in memory, with this process on it."""
    url = f"memory://cli-{next(_numbers)}"
    config.use(config.with_keywords(config.from_environment(), bus_url=url))
    bus.install()
    until = time.monotonic() + 10
    while not getattr(remote.reach(), "up", False):
        assert time.monotonic() < until
        time.sleep(0.002)
    yield url
    bus.uninstall()


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_a_kill_exits_0_when_the_owner_acknowledged(url: str) -> None:
    with hangup.run(name="agent") as run:
        code, out, err = invoke("kill", run.id[:12], "--bus", url, "--detail", "why")
        assert (code, err) == (0, "")
        assert f"stopped agent {run.id}" in out
        assert (run.cause, run.error().detail) == ("killed", "why")
        code, out, _ = invoke("kill", run.id, "--bus", url)
        assert code == 0, "it is stopped, and says so again"


def test_what_is_stopping_already_says_why(url: str) -> None:
    with hangup.run(name="agent") as run:
        run.cancel("disconnect")
        code, out, _ = invoke("kill", run.id, "--bus", url)
    assert code == 0
    assert "already stopping: disconnect" in out


def test_a_part_alone_is_said_to_be_one(url: str) -> None:
    with hangup.run(name="agent", token="cd" * 16, joined=True):
        code, out, err = invoke("kill", "cd" * 16, "--bus", url, *SOON)
    assert code == 0
    assert "stopped its part of agent" in out
    assert "opened the run did not answer" in err


def test_it_exits_2_when_nobody_holds_the_run(url: str) -> None:
    code, _, err = invoke("kill", "ab" * 16, "--bus", url, *SOON)
    assert (code, "nobody holds" in err) == (2, True)
    code, _, err = invoke("kill", "ab", "--bus", url)
    assert (code, "no live run's id begins with 'ab'" in err) == (2, True)


def test_it_exits_1_and_stops_nothing_where_the_id_is_ambiguous(url: str) -> None:
    one, other = "ab" + "c" * 30, "ab" + "d" * 30
    with (
        hangup.run(token=one) as first,
        hangup.detached(),
        hangup.run(token=other) as second,
    ):
        code, _, err = invoke("kill", "ab", "--bus", url)
        assert (first.cause, second.cause) == (None, None)
    assert code == 1
    assert "ambiguous" in err
    assert one in err
    assert other in err


def test_a_prefix_is_not_taken_where_somebody_did_not_answer(url: str) -> None:
    ear = bus.connect(url).subscribe()
    with hangup.run(token="ab" * 16) as run:
        began = time.monotonic()
        code, _, err = invoke("kill", "ab", "--bus", url, "--wait", "0.8")
        # By default the answers to a list are waited for longer.
        assert 0.8 <= time.monotonic() - began < 2.0
        assert run.cause is None
    ear.close()
    assert code == 1
    assert "1 of 2 processes did not answer" in err


@pytest.mark.parametrize("text", ["xyz", "", "a" * 33, "*"])
def test_what_is_no_id_is_none(text: str) -> None:
    code, _, err = invoke("kill", text, "--bus", "memory://none")
    assert (code, "is no run id" in err) == (1, True)


@pytest.mark.parametrize("command", [["ps"], ["ps", "--json"], ["kill", "ab" * 16]])
def test_it_exits_3_when_the_bus_is_down(url: str, command: list[str]) -> None:
    memory(url.partition("//")[2]).goes_down()
    code, out, err = invoke(*command, "--bus", url, *SOON)
    assert (code, out) == (3, "")
    assert "the bus is down" in err


@pytest.mark.parametrize("command", [["ps"], ["kill", "ab" * 16]])
def test_it_exits_3_without_a_bus(command: list[str]) -> None:
    code, _, err = invoke(*command)
    assert (code, "set HANGUP_BUS_URL" in err) == (3, True)


def test_a_url_that_cannot_be_meant_does_not_show_its_password() -> None:
    for url in ("http://:secret@host", "redis://:secret@host:port", "secret"):
        code, _, err = invoke("ps", "--bus", url)
        assert code == 3
        assert "cannot be used" in err
        assert "secret" not in err


def test_the_list_is_one_json_object(url: str) -> None:
    with hangup.run(30, name="agent", tenant="acme") as run:
        code, out, _ = invoke("ps", "--json", "--bus", url)
    assert code == 0
    listed = json.loads(out)
    (row,) = listed["runs"]
    assert (row["id"], row["name"], row["tenant"]) == (run.id, "agent", "acme")
    assert 29 < row["left"] <= 30
    assert (row["state"], row["tokens"], row["joined"]) == ("running", None, False)
    assert row["process"] == remote.reach().process  # type: ignore[union-attr]
    assert listed["processes"] == {"asked": 1, "answered": 1}
    assert listed["more"] == 0


def test_the_list_is_a_table(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANGUP_BUS_URL", url)
    monkeypatch.setenv("COLUMNS", "140")
    with hangup.run(90, name="[bold]agent", tenant="acme") as run:
        run.cancel("killed")
        code, out, _ = invoke("ps")
    assert code == 0
    for cell in (run.id[:8], "[bold]agent", "acme", "?", "stopping (killed)"):
        assert cell in out
    assert "1 runs, 1 of 1 processes" in out


def test_ids_are_shown_as_short_as_a_kill_takes_them() -> None:
    ids = ["abcdef0123" + "0" * 22, "abcdef0145" + "0" * 22, "b" * 32]
    shown = list(commands._shortest([{"id": one} for one in ids]))
    assert shown == [one[:9] for one in ids]
    assert list(commands._shortest([{"id": ids[0]}, {"id": ids[0]}])) == [
        *(ids[0][:8], ids[0][:8])
    ]
