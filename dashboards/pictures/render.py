"""Draw every dashboard from a demo that a real Prometheus scraped.

A developer's tool: it needs Debian's ``prometheus`` and ``chromium``, Node, and some
450 MB of packages (``npm install --ignore-scripts --legacy-peer-deps`` in this folder).
Then ``python -m dashboards.pictures.render`` from the root of the repository writes
``examples/dashboards/*.png``. The components are Grafana's own, of its Apache-licensed
packages; the page that arranges them is ours, and no Grafana server is involved.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

from dashboards.files import BOARDS
from dashboards.yamltext import to_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.panels import Json

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
RULES: Final = ROOT / "dashboards" / "generated" / "prometheus" / "hangup.rules.yaml"
PICTURES: Final = ROOT / "examples" / "dashboards"

WIDTH: Final = 1600
SCRAPE: Final = 2
"""Seconds: some minutes have to fill a curve."""
STEP: Final = 10
"""Seconds between a curve's points at least: Grafana's "scrape interval"."""
_ROW: Final = 38
_MARGINS: Final = 72
_HANGUP: Final = "from hangup.cli import main; main()"
_MINUTE: Final = 60.0
_PATIENCE: Final = 120.0
_TOOLS: Final = ("prometheus", "chromium", "npx")


class DrawingError(Exception):
    """A picture was not drawn, or a service that it needs did not come up."""


class _Handler(SimpleHTTPRequestHandler):
    """Serves the built page, and hears from it what it drew."""

    told: Final[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.told.append(json.loads(self.rfile.read(length)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def free_ports(count: int) -> list[int]:
    """Return the first of as many ports on loopback as follow each other and are free.

    Raises:
        DrawingError: There are no such ports.
    """
    for first in range(29_400, 31_000, count):
        with ExitStack() as stack:
            ports = range(first, first + count)
            probes = [stack.enter_context(socket()) for _ in ports]
            try:
                for probe, port in zip(probes, ports, strict=True):
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return list(ports)
    raise DrawingError("no free ports")


@contextmanager
def running(log: Path, *command: str) -> Iterator[None]:
    """Run a command for as long as the body takes."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)  # noqa: S603
    try:
        yield
    except DrawingError as error:
        error.add_note(f"{command[0]} said: {log.read_text()[-2_000:]}")
        raise
    finally:
        # As Ctrl-C does: the demo ends the processes that it started.
        process.send_signal(signal.SIGINT)
        process.wait(30)


def build(folder: Path) -> None:
    """Build the page, with the dashboards beside it."""
    command = ["npx", "vite", "build", "--outDir", str(folder), "--logLevel", "error"]
    subprocess.run(command, cwd=HERE, check=True)  # noqa: S603
    boards = folder / "boards"
    boards.mkdir()
    for name, board in BOARDS.items():
        (boards / f"{name}.json").write_text(json.dumps(board))


def start(stack: ExitStack, folder: Path, users: int) -> str:
    """Start the demo and a Prometheus that scrapes it; return the latter's address."""
    agent, subagent, prometheus = free_ports(3)
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"service": service}}
        for port, service in ((agent, "agent"), (subagent, "subagent"))
    ]
    config = {
        "global": {"scrape_interval": f"{SCRAPE}s", "evaluation_interval": "10s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "hangup-demo", "static_configs": targets}],
    }
    file = folder / "prometheus.yaml"
    file.write_text(to_yaml(config))
    # Prometheus first: a counter's growth is seen from its first scrape on.
    stack.enter_context(
        running(
            folder / "prometheus.log",
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{prometheus}",
        )
    )
    stack.enter_context(
        running(
            folder / "demo.log",
            *(sys.executable, "-c", _HANGUP, "demo", "--serve"),
            # The dearer model: dollars that one can see after some minutes.
            *("--provider", "anthropic"),
            *("--users", str(users), "--port", str(agent)),
        )
    )
    return f"http://127.0.0.1:{prometheus}"


def runs(prometheus: str) -> float:
    """Return how many runs Prometheus knows of, or 0 while it knows nothing."""
    query = urlencode({"query": "sum(hangup_runs_total)"})
    try:
        with urlopen(f"{prometheus}/api/v1/query?{query}", timeout=10) as answer:  # noqa: S310
            found = json.load(answer)["data"]["result"]
    except OSError:
        return 0.0
    return float(found[0]["value"][1]) if found else 0.0


def until_runs(prometheus: str) -> float:
    """Wait for the first runs; return when that was.

    Raises:
        DrawingError: There were none in time.
    """
    end = time.monotonic() + _PATIENCE
    while not runs(prometheus):
        if time.monotonic() > end:
            raise DrawingError("Prometheus has seen no run")
        time.sleep(1)
    return time.time()


def height_of(board: Json) -> int:
    """Return how high the picture of a dashboard is, in pixels."""
    places = [panel["gridPos"] for panel in board["panels"]]
    rows: int = max(place["y"] + place["h"] for place in places)
    return rows * _ROW + _MARGINS


def draw(name: str, prometheus: str, page: int, span: tuple[float, float]) -> Path:
    """Draw one dashboard and return the picture's path.

    Args:
        name: Of the dashboard's file.
        prometheus: Its address.
        page: The port of the built page.
        span: From when to when, in seconds since the epoch.

    Raises:
        DrawingError: The page could not draw it.
    """
    height = height_of(BOARDS[name])
    asked = {
        "board": name,
        "prometheus": prometheus,
        "from": int(span[0]),
        "to": int(span[1]),
        "step": STEP,
    }
    PICTURES.mkdir(exist_ok=True)
    picture = PICTURES / f"{name}.png"
    _Handler.told.clear()
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu"),
            *("--hide-scrollbars", f"--user-data-dir={profile}"),
            *("--disable-background-networking", "--no-first-run"),
            f"--window-size={WIDTH},{height}",
            # Of the page's clock: it does not run while an answer is awaited.
            "--virtual-time-budget=20000",
            f"--screenshot={picture}",
            f"http://127.0.0.1:{page}/index.html?{urlencode(asked)}",
        ]
        subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, timeout=_PATIENCE
        )
    told = _Handler.told[-1] if _Handler.told else {"error": "it said nothing"}
    if "error" in told:
        raise DrawingError(f"{name}: {told['error']}")
    for title in told["empty"]:
        sys.stdout.write(f"{name}: nothing in {title!r}\n")
    return picture


def main() -> None:
    """Draw all of them."""
    parser = argparse.ArgumentParser(description="Draw the dashboards.")
    parser.add_argument("--minutes", type=float, default=10, help="of demo to draw")
    parser.add_argument("--users", type=int, default=16, help="of a round, each mode")
    parser.add_argument("--prometheus", help="one that runs already: no demo starts")
    parser.add_argument("--only", choices=BOARDS, help="draw no other")
    parser.add_argument("--page", type=Path, help="a page that is built already")
    given = parser.parse_args()
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        built: Path = given.page or folder / "page"
        seconds = given.minutes * 60
        prometheus = given.prometheus
        if prometheus is None:
            prometheus = start(stack, folder, given.users)
        if given.page is None:
            build(built)
        if given.prometheus is None:
            left = until_runs(prometheus) + seconds + 2 * _MINUTE - time.time()
            time.sleep(max(0.0, left))
        handler = partial(_Handler, directory=str(built))
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        Thread(target=server.serve_forever, daemon=True).start()
        # Not at a full minute: its label would be cut off at the right edge.
        to = time.time() // _MINUTE * _MINUTE - _MINUTE / 6
        for name in [given.only] if given.only else BOARDS:
            picture = draw(name, prometheus, server.server_port, (to - seconds, to))
            sys.stdout.write(f"{picture}\n")


if __name__ == "__main__":
    main()
