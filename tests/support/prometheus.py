"""A real Prometheus on a free port, that scrapes us every second."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

import httpx
from dashboards.yamltext import to_yaml
from support.requires import require

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

PATIENCE = 60.0  # seconds; the machine may be busy
JOB = "agents"


def free_port() -> int:
    """Return a port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """Debian's binary with a folder of its own.

    Args:
        folder: For its configuration and its data.
        target: Port on loopback of what it scrapes, or several.
        rules: A rule file's content; it is evaluated every second.
        alertmanager: The address of who is told of what fires, if anybody.
    """

    def __init__(
        self,
        folder: Path,
        target: int | tuple[int, ...],
        rules: dict[str, Any],
        alertmanager: str | None = None,
    ) -> None:
        require("prometheus")
        port = free_port()
        targets = (target,) if isinstance(target, int) else target
        for group in rules["groups"]:
            group["interval"] = "1s"
        (folder / "rules.yaml").write_text(to_yaml(rules))
        scrape = {
            "job_name": JOB,
            "static_configs": [{"targets": [f"127.0.0.1:{one}" for one in targets]}],
        }
        config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [scrape],
        }
        if alertmanager is not None:
            told = {"static_configs": [{"targets": [alertmanager]}]}
            config["alerting"] = {"alertmanagers": [told]}
        (folder / "prometheus.yaml").write_text(to_yaml(config))
        self._folder = folder
        self._address = f"127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(base_url=f"http://{self._address}", timeout=30)

    def __enter__(self) -> Self:
        log = (self._folder / "log").open("wb")
        with log:
            self._process = subprocess.Popen(  # noqa: S603
                [  # noqa: S607
                    "prometheus",
                    f"--config.file={self._folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self._address}",
                    "--enable-feature=exemplar-storage",
                ],
                stderr=log,
                stdout=log,
            )
        self.until(self._ready)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()
        assert self._process is not None
        self._process.terminate()
        self._process.wait(PATIENCE)

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds; it is another process, so ask again and again."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert self._process is not None
            running = self._process.poll() is None
            if not running or time.monotonic() > end:
                raise AssertionError((self._folder / "log").read_text()[-4_000:])
            time.sleep(0.2)

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """Return the vector that an expression is now."""
        answer = self._client.get("/api/v1/query", params={"query": expr}).json()
        assert answer["status"] == "success", (expr, answer)
        return list(answer["data"]["result"])

    def number(self, expr: str) -> float:
        """Return the one value of an expression, or -1."""
        found = self.ask(expr)
        return float(found[0]["value"][1]) if found else -1

    def exemplars(self, expr: str) -> list[dict[str, Any]]:
        """Return the exemplars of the last hour of the series in an expression."""
        now = time.time()
        when: dict[str, str | float] = {
            "query": expr,
            "start": now - 3600,
            "end": now + 60,
        }
        answer = self._client.get("/api/v1/query_exemplars", params=when).json()
        assert answer["status"] == "success", (expr, answer)
        return [one for series in answer["data"] for one in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """Return every rule with its health and its alerts."""
        groups = self._client.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _ready(self) -> bool:
        try:
            return self._client.get("/-/ready").is_success
        except httpx.TransportError:
            return False
