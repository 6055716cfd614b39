"""The zero before the first value, for a scraper that was not there in between.

Prometheus tells by how much a counter grew from two samples. A series that appears with
its first run, and a run that is over before the next scrape, show it 500 and nothing
before: no growth, and what the first run cost is in no panel. So Prometheus is shown a
new series at zero once, and at its value from its next scrape on. A scrape by anybody
else, a person's, has the values at once.

Only hangup's own metrics, and only what appeared since a scrape, or since the start, of
the last minutes. When the first scrape of all comes later, everything is shown as it
is: what was counted before anybody looked is no growth of now.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from prometheus_client import MetricsHandler
from prometheus_client.registry import Collector

from hangup.core.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

SCRAPER: Final = "X-Prometheus-Scrape-Timeout-Seconds"
"""A request header that Prometheus sends, and whoever scrapes with its code."""

_KINDS: Final = ("counter", "histogram")
_PREFIX: Final = "hangup_"
_RECENT: Final = 300.0
"""Seconds after which Prometheus has forgotten a series, and whoever scrapes less often
gets no rates."""
_MOST: Final = 50_000
"""Series that are remembered; later ones are shown as they are."""


class FirstZeros:
    """Remembers what a scraper has seen. Thread-safe; process-safe with a path.

    Args:
        path: The file of all processes that answer for each other, in a directory with
            their sums; None: this process answers for itself.
        now: Unix time.
    """

    def __init__(
        self, path: Path | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._at = now()
        # Sums without the file are of a time before it was kept.
        if path is not None and not any(path.parent.glob("*.json")):
            with contextlib.suppress(OSError), path.open("x") as file:
                file.write(_told(self._at, ()))

    def held(self, metrics: Iterable[Metric]) -> list[Metric]:
        """Return the metrics, those series at zero that no scraper has seen yet.

        Where that cannot be remembered, all are as they are: what is at zero twice is
        a reset. Changes the samples of the metrics in place.
        """
        found = list(metrics)
        ours = [
            one for one in found if one.type in _KINDS and one.name.startswith(_PREFIX)
        ]
        keys = {_key(sample) for metric in ours for sample in metric.samples}
        with self._lock:
            try:
                new = self._new(keys)
            except OSError:  # the directory is gone, or the disk full
                return found
        if new:
            for metric in ours:
                metric.samples = [
                    sample._replace(value=0.0) if _key(sample) in new else sample
                    for sample in metric.samples
                ]
        return found

    def _new(self, keys: set[str]) -> set[str]:
        with self._shared():
            now = self._now()
            recent = abs(now - self._at) <= _RECENT
            new = keys - self._seen
            if len(self._seen) + len(new) > _MOST:
                return set()
            if self._path is not None:
                half = self._path.with_suffix(f".{os.getpid()}.half")
                half.write_text(_told(now, self._seen | new))
                half.replace(self._path)
            self._seen |= new
            self._at = now
        return new if recent else set()

    @contextlib.contextmanager
    def _shared(self) -> Iterator[None]:
        """Read what others have noted, and let none of them note meanwhile."""
        if self._path is None:
            yield
            return
        import fcntl  # noqa: PLC0415  Unix has it, and only there do processes share

        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._at, self._seen = -math.inf, set()
            with contextlib.suppress(ValueError, TypeError, FileNotFoundError):
                at, *seen = json.loads(self._path.read_text())
                self._at, self._seen = float(at), set(seen)
            yield


def shown(zeros: FirstZeros, metrics: Iterable[Metric]) -> list[Metric]:
    """Return the metrics as ``zeros`` holds them; after a fault of ours as they are."""
    found = list(metrics)
    held = guarded(zeros.held, found)
    return found if held is None else held


class Held(Collector):
    """What a registry collects, as a scraper is shown it. Thread-safe."""

    def __init__(self, inner: Collector | CollectorRegistry) -> None:
        self._inner = inner
        self._zeros = FirstZeros()

    def collect(self) -> Iterable[Metric]:
        """Collect, once for each scrape."""
        return shown(self._zeros, self._inner.collect())


def handler(
    everyone: CollectorRegistry, scraped: CollectorRegistry
) -> type[MetricsHandler]:
    """Return what answers requests: from ``scraped`` where Prometheus asks."""

    class Handler(MetricsHandler):
        def do_GET(self) -> None:  # noqa: N802  the base class names it so
            # Whoever asks for some names sees no zeros: what is no collector by names
            # cannot be restricted to them.
            every = "name[]" not in unquote(self.path)
            self.registry = scraped if every and SCRAPER in self.headers else everyone
            super().do_GET()

    return Handler


def _told(at: float, seen: Iterable[str]) -> str:
    return json.dumps([at, *seen])


def _key(sample: Sample) -> str:
    return _digest(sample.name, tuple(sample.labels.items()))


@functools.lru_cache(maxsize=10_000)
def _digest(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    told = repr((name, sorted(labels)))
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
