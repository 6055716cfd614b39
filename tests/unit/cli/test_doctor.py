"""``hangup doctor``: what it reads, what it prints, and how it exits."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hangup.cli import _doctor_show
from hangup.cli._doctor_checks import CHECKS, judge
from hangup.cli._doctor_evidence import Evidence, Sample, Source, read_prometheus
from hangup.cli._doctor_launch import Command, _lay_probe
from hangup.cli.app import app
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = """\
# HELP hangup_info Always 1
# TYPE hangup_info gauge
hangup_info{{hangup_version="0.1.0",hangup_mode="{mode}",hangup_policy="none"}} 1.0
target_info{{service_instance_id="{instance}",service_name="agent"}} 1.0
# TYPE hangup_metered_tokens_total counter
hangup_metered_tokens_total{{gen_ai_request_model="m",hangup_in_run="true"}} {inside}
hangup_metered_tokens_total{{gen_ai_request_model="m",hangup_in_run="false"}} {outside}
hangup_calls_total{{hangup_call_kind="inference",hangup_fate="delivered"}} 100.0
hangup_unknown_calls_total{{gen_ai_request_model="m"}} {unknown}
hangup_bus_up {bus}
"""
GOOD = {
    "mode": "observe",
    "instance": "a",
    "inside": 900.0,
    "outside": 0.0,
    "unknown": 0.0,
    "bus": 1.0,
}


def page(**changes: Any) -> str:
    return PAGE.format(**{**GOOD, **changes})


class Pages(BaseHTTPRequestHandler):
    """Shows the pages of a path in turn, as the workers behind one port do."""

    pages: ClassVar[dict[str, list[str]]] = {
        "/good": [page()],
        "/good_too": [page()],
        "/enforces": [page(mode="enforce")],
        "/unknown": [page(unknown=20.0)],
        "/outside": [page(outside=300.0)],
        "/bus": [page(bus=0.0)],
        "/alternates": [page(), page(instance="b")],
        "/sawtooth": [page(), page(inside=12.0)],
        "/another": ["# nothing of ours\nup 1\n"],
    }

    def do_GET(self) -> None:
        pages = self.pages.get(self.path)
        self.send_response(404 if pages is None else 200)
        self.end_headers()
        if pages is not None:
            pages.append(pages.pop(0))
            self.wfile.write(pages[-1].encode())

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def doctor(*words: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *words])
    return result.exit_code, json.loads(result.output)


JUMP = ("prefork-metrics", "now one process answers and now another")


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (("good", "good_too"), []),
        (("unknown",), [("usage-unknown", "20 calls of m in no token count")]),
        (("outside",), [("outside-runs", "25 % of all tokens")]),
        (("bus",), [("bus-unreachable", "hangup_bus_up is 0")]),
        (("alternates",), [JUMP]),
        (("sawtooth",), [JUMP]),
        (
            ("another",),
            [("not-installed", "it answers, and there is no hangup_info in it")],
        ),
    ],
)
def test_a_service_is_judged_by_what_prometheus_scrapes(
    service: str, paths: tuple[str, ...], found: list[tuple[str, str]]
) -> None:
    words = [word for path in paths for word in ("--metrics", f"{service}/{path}")]
    status, said = doctor(*words)
    assert [(one["id"], one["detail"]) for one in said["findings"]] == found
    assert (status, said["ok"]) == (1 if found else 0, not found)


def test_services_in_different_modes_are_found_by_their_metrics(service: str) -> None:
    words = ("--metrics", f"{service}/good", "--metrics", f"{service}/enforces")
    status, said = doctor(*words)
    [finding] = said["findings"]
    assert (status, finding["id"]) == (1, "modes-disagree")
    assert finding["where"] == f"{service}/enforces, {service}/good"
    assert doctor(*words, "--ignore", "modes-disagree")[0] == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "say what to look at"),
        (("--metrics", "http://127.0.0.1:1/metrics"), "refused"),
        (("--metrics", "file:///etc/passwd"), "is no http or https URL"),
        (("--dir", "/nowhere-at-all"), "HANGUP_DOCTOR=/nowhere-at-all"),
        (("--", "no-such-command-anywhere"), "cannot be started: No such file"),
        (("--", "true"), "no Python of the command answered from inside"),
        (("--ignore", "nonsense", "--", "true"), "there is no finding nonsense"),
    ],
)
def test_where_nothing_can_be_looked_at_the_status_is_2(
    words: tuple[str, ...], why: str
) -> None:
    status, said = doctor(*words)
    assert (status, said["ok"]) == (2, False)
    assert why in said["error"]


def test_a_page_that_is_missing_is_nothing_to_judge_by(service: str) -> None:
    status, said = doctor("--metrics", f"{service}/elsewhere")
    assert (status, "Not Found" in said["error"]) == (2, True)


def test_a_command_that_fails_is_shown_with_what_it_said() -> None:
    script = "import sys; print('first'); sys.exit('it is broken')"
    status, said = doctor("--", sys.executable, "-c", script)
    assert status == 2
    assert "ended with status 1" in said["error"]
    assert said["error"].endswith("first\nit is broken")


def test_prometheus_names_become_ours() -> None:
    text = r"""
# TYPE hangup_tokens_total counter
hangup_tokens_total{gen_ai_token_type="input",hangup_fate="wasted"} 5e2
hangup_call_time_seconds_total{hangup_run_name="a \"b\", c\n"} 1.5 17
hangup_run_duration_seconds_bucket{le="+Inf"} 3
python_info 1
not a sample
hangup_tokens_total NaNsense
"""
    assert read_prometheus(text) == [
        Sample(names.TOKENS, {names.TOKEN_TYPE: "input", names.FATE: "wasted"}, 500.0),
        Sample(names.CALL_TIME, {names.RUN_NAME: 'a "b", c\n'}, 1.5),
        Sample("hangup_run_duration_seconds_bucket", {"le": "+Inf"}, 3.0),
        Sample("python_info", {}, 1.0),
    ]


# How it looks


def printed(evidence: Evidence, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    _doctor_show.show(console, evidence, judge(evidence))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def info(mode: str) -> Sample:
    return Sample(names.INFO, {names.MODE: mode}, 1.0)


def test_it_says_what_is_measured_and_what_is_stopped() -> None:
    whole = printed(
        Evidence(
            [
                Source("front", samples=[info("enforce")]),
                Source(
                    "back", samples=[info("enforce"), Sample(names.UNPRICED, {}, 1)]
                ),
            ]
        )
    )
    assert [line.split()[:4] for line in whole.splitlines()[:3]] == [
        ["looked", "at", "mode", "measured"],
        ["front", "enforce", "yes", "yes"],
        ["back", "enforce", "yes", "yes"],
    ]
    assert (
        f"Nothing is wrong  (of {len(CHECKS)} that were looked for, 1 to know)" in whole
    )
    assert "Models have no price  unpriced" in whole
    assert "Found: ?  (back)" in whole


@pytest.mark.parametrize("width", [60, 80, 200])
def test_what_is_worst_comes_first_at_any_width(width: int) -> None:
    lost, gone = Sample(names.BAGGAGE_LOST, {}, 2.0), Sample(names.BUS_UP, {}, 0.0)
    whole = printed(
        Evidence([Source("a", samples=[info("observe"), lost, gone])]), width
    )
    assert whole.index("error") < whole.index("warning")
    assert whole.splitlines()[-1].startswith("2 things wrong")
    assert max(map(len, whole.splitlines())) <= width


def test_a_process_without_hangup_is_neither_measured_nor_stopped() -> None:
    whole = printed(Evidence([Source("here", facts={"hangup": {"installed": False}})]))
    [row] = [line for line in whole.splitlines() if line.startswith("here")]
    assert row.split()[1:5] == ["no", "hangup", "no", "no"]


def test_what_findings_say_of_a_process_is_in_the_table() -> None:
    said = {
        *_doctor_show._NOT_MEASURED,
        *_doctor_show._PARTLY_MEASURED,
        *_doctor_show._NOT_STOPPED,
    }
    assert said <= {check.id for check in CHECKS}


# What is put into the command's Pythons


def test_the_probe_lets_a_sitecustomize_behind_it_run(tmp_path: Path) -> None:
    behind = tmp_path / "behind"
    behind.mkdir()
    (behind / "sitecustomize.py").write_text("import sys; sys.was_here = __name__")
    probe = _lay_probe(tmp_path / "probe")
    script = "import sys; print(sys.was_here, sys.modules['sitecustomize'].__file__)"
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{probe}:{behind}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["sitecustomize", str(behind / "sitecustomize.py")]


def test_the_probe_is_an_entry_point_where_another_sitecustomize_comes_first(
    tmp_path: Path,
) -> None:
    probe = _lay_probe(tmp_path / "probe")
    script = (
        "from importlib.metadata import entry_points\n"
        "[one] = entry_points(group='opentelemetry_post_instrument', "
        "name='hangup_doctor')\n"
        "print(one.load().__qualname__)"
    )
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join((str(probe), *sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "start_if_asked\n"


def test_a_shell_leaves_nobody_behind(tmp_path: Path) -> None:
    """A shell that is told to end does not tell what it has started."""
    ended = tmp_path / "ended"
    script = tmp_path / "server.py"
    script.write_text(
        "import signal, sys\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
        "try:\n"
        "    Path(sys.argv[1]).touch()\n"
        "    signal.pause()\n"
        "finally:\n"
        f"    Path({str(ended)!r}).touch()\n"
    )
    began = tmp_path / "began"
    with Command(["sh", "-c", f"{sys.executable} {script} {began} & wait"]):
        until = time.monotonic() + 60
        while not began.exists():
            assert time.monotonic() < until
            time.sleep(0.02)
    assert ended.exists()
