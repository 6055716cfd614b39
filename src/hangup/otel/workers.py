"""Prometheus for many workers: every process answers with the sums of all of them.

The exporter of OpenTelemetry keeps the counters of one process. Under a server with
several, a scrape would hit now one and now another, and every change of hands would
look like a reset. Here the workers share a directory (:mod:`hangup.otel.workerfiles`),
so that it does not matter which of them is asked, and a worker that ends takes nothing
away. Without a line of code::

    OTEL_METRICS_EXPORTER=hangup_workers OTEL_EXPORTER_PROMETHEUS_PORT=9464

Every worker listens on that port (``SO_REUSEPORT``) and the kernel chooses. Or in code,
with a route of the application's own::

    reader = WorkersMetricReader("/run/myapp/metrics")
    metrics.set_meter_provider(MeterProvider([reader]))

    def scraped(request):  # in a thread: it waits for the other workers
        return Response(generate_latest(reader.all_workers), media_type=CONTENT_TYPE)

Prometheus is shown what is new at zero first (:mod:`hangup.otel.firstzero`); for that a
route of one's own takes ``reader.scraped`` where the request has its header
``firstzero.SCRAPER``.

Counters and histograms are added up, and so are the gauges of hangup that count
something; of other gauges each process has its own series, with its ``pid``, and they
end with it. Sums outlive a restart as long as the directory does. Needs Unix.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import threading
import uuid
import weakref
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from hangup import config
from hangup.core.guard import guarded
from hangup.otel import forks
from hangup.otel.firstzero import FirstZeros, handler, shown
from hangup.otel.openmetrics import address
from hangup.otel.workerfiles import Family, WorkerFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_EVERY = 5.0
"""Seconds between two writes of a process that nobody asks: what a SIGKILL may cost."""
_POLL = 0.1  # seconds until a server notices that it is to end
_SHARED = "hangup_"
_INFO = "target"  # the family that the exporter makes of the resource
_ADDED = ("counter", "histogram")
_OF_A_PROCESS = ("service_instance_id",)

_logger = logging.getLogger("hangup")


class WorkersMetricReader(PrometheusMetricReader):
    """Keeps this process's sums in the directory of all. Thread-safe, survives a fork.

    A forked child is a process of its own, with a file of its own.

    Args:
        directory: What the workers share; nobody else may write to it.
        port: Listen there for scrapes, every worker on the same one; None: do not.
        host: With ``port``.

    Attributes:
        all_workers: A registry that a scrape is answered from: the sums of all workers.
        scraped: The same for Prometheus, with new series at zero once.

    Raises:
        ConfigError: The directory cannot be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        port: int | None = None,
        host: str = "localhost",
    ) -> None:
        super().__init__(registry=CollectorRegistry())
        self.all_workers: CollectorRegistry = CollectorRegistry()
        self.all_workers.register(_AllWorkers(self.collect_all))
        self._files = WorkerFiles(directory)
        self.scraped: CollectorRegistry = CollectorRegistry()
        self.scraped.register(_AllWorkers(self._collect_held))
        self._address = None if port is None else (host, port)
        self._start()
        forks.then(self._after_fork)

    def _start(self) -> None:
        self._ident = uuid.uuid4().hex[:10]
        # Reentrant: a finaliser that flushes may come by.
        self._writing = threading.RLock()
        self._busy = False
        self._open = True
        self._zeros = FirstZeros(self._files.path / "hangup.seen")
        self._server: _Server | None = None
        self._socket = self._files.listen(self._ident)
        threading.Thread(
            target=_answer,
            args=(weakref.ref(self), self._socket),
            name="hangup-workers",
            daemon=True,
        ).start()
        if self._address is not None:
            self._serve(self._address)

    def _serve(self, address: tuple[str, int]) -> None:
        try:
            server = _Server(address, handler(self.all_workers, self.scraped))
        except OSError as error:
            _logger.warning(
                "hangup cannot listen for scrapes at %s:%s (%s); the other workers "
                "answer for this one",
                *address,
                error,
            )
            return
        self._server = server
        threading.Thread(
            target=server.serve_forever,
            args=(_POLL,),
            name="hangup-scrapes",
            daemon=True,
        ).start()

    def _after_fork(self) -> None:
        """Be a process of one's own; what the parent listens on is the parent's."""
        if self._server is not None:
            self._server.socket.close()
        self._socket.close()
        if self._open:
            self._start()

    def _write(self) -> None:
        """Write what this process has counted so far."""
        with self._writing:
            # Before it has a provider there is nothing to collect.
            if not self._open or self._collect is None or self._busy:
                return
            self._busy = True
            try:
                families = [_plain(one) for one in self._registry.collect()]
                self._files.write(self._ident, families)
            finally:
                self._busy = False

    def collect_all(self) -> Iterable[Metric]:
        """Yield the metrics of every worker, as of now."""
        self._write()
        living = self._files.ask(but=self._ident)
        if self._open:
            living.add(self._ident)
        for family in self._files.read(living):
            metric = Metric(family["name"], family["doc"], family["type"])
            metric.samples = [
                Sample(name, dict(labels), value)
                for name, labels, value in family["samples"]
            ]
            yield metric

    def _collect_held(self) -> Iterable[Metric]:
        return shown(self._zeros, self.collect_all())

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002
        """Write what was counted: all that there is to flush."""
        try:
            self._write()
        except OSError:  # the directory is gone, or the disk full
            return False
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_options: Any) -> None:
        """Write what was counted, and count no more. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        with self._writing:
            if not self._open:
                return
            guarded(self._write)
            self._open = False
        super().shutdown(timeout_millis)
        self._files.leave(self._ident)
        # Wakes the thread that listens; closing alone would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class AutoWorkersMetricReader(WorkersMetricReader):
    """What ``OTEL_METRICS_EXPORTER=hangup_workers`` makes.

    Listens where ``OTEL_EXPORTER_PROMETHEUS_HOST`` and ``..._PORT`` say. The directory
    is ``HANGUP_WORKERS_DIR``, or one for this user and port among the temporary files.
    """

    def __init__(self) -> None:
        host, port = address()
        shared = f"{tempfile.gettempdir()}/hangup-{os.getuid()}-{port}"
        directory = config.from_environment().workers_dir or shared
        super().__init__(directory, port=port, host=host)


class _AllWorkers(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


class _Server(ThreadingHTTPServer):
    allow_reuse_port = True
    request_queue_size = 128


def _answer(reader: weakref.ref[WorkersMetricReader], listening: socket.socket) -> None:
    """Write whenever somebody asks, and now and then. Ends with the socket."""
    listening.settimeout(_EVERY)
    while True:
        asker = None
        try:
            asker, _ = listening.accept()
        except TimeoutError:
            pass
        except OSError:
            return
        this = reader()
        if this is None:
            return
        guarded(this._write)  # noqa: SLF001  this is its thread
        del this
        if asker is not None:
            asker.close()


def _plain(metric: Metric) -> Family:
    """Return a metric as it is written."""
    own: tuple[tuple[str, str], ...] = ()
    shared = metric.name == _INFO or metric.name.startswith(_SHARED)
    if metric.type not in _ADDED and not shared:
        own = (("pid", str(os.getpid())),)
    samples = []
    for sample in metric.samples:
        labels = [
            pair for pair in sample.labels.items() if pair[0] not in _OF_A_PROCESS
        ]
        samples.append([sample.name, sorted([*labels, *own]), sample.value])
    return {
        "name": metric.name,
        "type": metric.type,
        "doc": metric.documentation,
        "samples": samples,
    }
