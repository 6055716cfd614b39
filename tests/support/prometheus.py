"""A real Prometheus on a free port, that scrapes us every second, or less often."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dashboards.yamltext import to_yaml
from support.daemon import Daemon
from support.requires import require

if TYPE_CHECKING:
    from pathlib import Path

JOB = "agents"


class Prometheus(Daemon):
    """Debian's binary with a folder of its own.

    Args:
        folder: For its configuration and its data.
        target: Port on loopback of what it scrapes, or several.
        rules: A rule file's content; it is evaluated every second.
        alertmanager: The address of who is told of what fires, if anybody.
        every: Seconds between two scrapes.
    """

    def __init__(
        self,
        folder: Path,
        target: int | tuple[int, ...],
        rules: dict[str, Any],
        alertmanager: str | None = None,
        *,
        every: int = 1,
    ) -> None:
        require("prometheus")
        super().__init__(folder / "log")
        targets = (target,) if isinstance(target, int) else target
        for group in rules["groups"]:
            group["interval"] = "1s"
        (folder / "rules.yaml").write_text(to_yaml(rules))
        scrape = {
            "job_name": JOB,
            "static_configs": [{"targets": [f"127.0.0.1:{one}" for one in targets]}],
            "scrape_timeout": f"{min(every, 10)}s",
        }
        config: dict[str, Any] = {
            "global": {"scrape_interval": f"{every}s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [scrape],
        }
        if alertmanager is not None:
            told = {"static_configs": [{"targets": [alertmanager]}]}
            config["alerting"] = {"alertmanagers": [told]}
        (folder / "prometheus.yaml").write_text(to_yaml(config))
        self._folder = folder

    def command(self) -> list[str]:
        """Return it with its exemplars kept."""
        return [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self.address}",
            "--enable-feature=exemplar-storage",
        ]

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """Return the vector that an expression is now."""
        answer = self.client.get("/api/v1/query", params={"query": expr}).json()
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
        answer = self.client.get("/api/v1/query_exemplars", params=when).json()
        assert answer["status"] == "success", (expr, answer)
        return [one for series in answer["data"] for one in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """Return every rule with its health and its alerts."""
        groups = self.client.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]
