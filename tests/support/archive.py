"""What a real Prometheus has scraped, put into a month that it looks back on.

A month panel sums hours, and no test takes hours. So the samples that Prometheus
scraped in minutes are kept as they are, values and spacing, and written into its
storage at a time of our choice; until the end of the hours after them each series
stands still, as that of a service does that nobody asks. Over that, the recording rules
as we ship them are evaluated by promtool, with the times that Prometheus itself would
evaluate them at, and the panels are asked by Prometheus.
"""

from __future__ import annotations

import json
import math
import subprocess
from typing import TYPE_CHECKING, Any, Final

import httpx
from dashboards import files
from dashboards.yamltext import to_yaml
from support.daemon import Daemon
from support.panels import filled
from support.requires import require

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from support.prometheus import Prometheus

MONTH: Final = 1_709_251_200
"""2024-03-01, 00:00 UTC."""
DAY: Final = 86_400
HOUR: Final = 3_600

Series = list[dict[str, Any]]


def scraped(prometheus: Prometheus, names: Iterable[str]) -> Series:
    """Return every sample of the last hour of these metrics."""
    return prometheus.ask(f'{{__name__=~"{"|".join(sorted(set(names)))}"}}[1h]')


class Archive(Daemon):
    """A Prometheus that holds the past, and scrapes nothing.

    Args:
        folder: For its configuration and its data.
        every: Seconds between two samples of what stands still.
    """

    def __init__(self, folder: Path, every: float) -> None:
        require("prometheus")
        require("promtool")
        folder.mkdir(parents=True)
        super().__init__(folder / "log")
        self._folder = folder
        self._every = every
        self._first, self._until = math.inf, 0.0
        self._lines: list[str] = []
        (folder / "prometheus.yaml").write_text("{}\n")
        (folder / "rules.yaml").write_text(to_yaml(files.prometheus_rules()))

    def command(self) -> list[str]:
        """Return it with its old samples kept."""
        return [
            "prometheus",
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={self.address}",
        ]

    def put(
        self, found: Series, job: str, starts: float, until: float, times: int = 1
    ) -> None:
        """Write samples as those of a job.

        Args:
            found: What was scraped.
            job: Its name here.
            starts: The Unix time of the first sample of all.
            until: The Unix time up to which their last values stand.
            times: So often the same happens again, one after the other.
        """
        begins = min(series["values"][0][0] for series in found)
        lasts = max(series["values"][-1][0] for series in found) - begins
        self._first = min(self._first, starts)
        self._until = max(self._until, until)
        for series in found:
            labels = {**series["metric"], "job": job}
            name = labels.pop("__name__")
            inner = ",".join(f"{key}={json.dumps(of)}" for key, of in labels.items())
            values = [(at - begins, float(value)) for at, value in series["values"]]
            total = values[-1][1]
            samples = [
                (starts + time * lasts + at, time * total + value)
                for time in range(times)
                # The end of one is the beginning of the next.
                for at, value in values[time > 0 :]
            ]
            at, value = samples[-1]
            still = range(math.ceil((until - at) / self._every))
            samples += [(at + self._every * (step + 1), value) for step in still]
            self._lines += [
                f"{name}{{{inner}}} {value!r} {at:.3f}" for at, value in samples
            ]

    def build(self) -> None:
        """Make what was put here its data, and evaluate the rules over it.

        To be called before it is entered.
        """
        text = self._folder / "samples"
        text.write_text("\n".join([*self._lines, "# EOF\n"]))
        data = str(self._folder / "data")
        _promtool("openmetrics", str(text), data)
        with self:
            _promtool(
                *("rules", f"--url=http://{self.address}", f"--output-dir={data}"),
                *(f"--start={int(self._first)}", f"--end={int(self._until)}"),
                str(self._folder / "rules.yaml"),
            )
        # It was closed with the process; another one reads what was evaluated.
        self.client = httpx.Client(base_url=f"http://{self.address}", timeout=60)

    def ask(self, expr: str, at: float) -> list[float]:
        """Return the values that an expression had at a Unix time."""
        when: dict[str, str | float] = {"query": expr, "time": at}
        answer = self.client.get("/api/v1/query", params=when).json()
        assert answer["status"] == "success", (expr, answer)
        return [float(one["value"][1]) for one in answer["data"]["result"]]

    def month(self, expr: str, at: float, job: str = ".*") -> float:
        """Return what a panel over this month shows at a Unix time, -1 for nothing."""
        found = self.ask(filled(expr, f"{int(at) - MONTH}s", job=job), at)
        return found[0] if found else -1


def _promtool(kind: str, *arguments: str) -> None:
    command = ["promtool", "tsdb", "create-blocks-from", kind, *arguments]
    done = subprocess.run(  # noqa: S603  Debian's
        command, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
