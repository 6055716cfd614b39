"""A Prometheus reader that hands exemplars on: from a panel to the run that wasted.

The stock reader of ``opentelemetry-exporter-prometheus`` drops them. This one is that
reader, whose families get the exemplars of the data points put back on their way to
``/metrics``; prometheus-client writes them for whoever asks for OpenMetrics, as
Prometheus does. Needs the extra ``prometheus``.

By hand::

    from hangup.otel.openmetrics import ExemplarMetricReader, serve
    MeterProvider(metric_readers=[ExemplarMetricReader()])
    serve(9464)

Without code: ``OTEL_METRICS_EXPORTER=hangup_prometheus``, served where the stock
exporter's is (``OTEL_EXPORTER_PROMETHEUS_HOST``, ``OTEL_EXPORTER_PROMETHEUS_PORT``).
Prometheus keeps exemplars with ``--enable-feature=exemplar-storage``.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from bisect import bisect_left
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_PROMETHEUS_HOST,
    OTEL_EXPORTER_PROMETHEUS_PORT,
)
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from hangup.core.guard import guarded
from hangup.otel.firstzero import Held, handler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.metrics.export import Metric, MetricsData
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.samples import Sample

    Labels = frozenset[tuple[str, str]]

__all__ = ["AutoExemplarMetricReader", "ExemplarMetricReader", "address", "serve"]

_INFINITY: Final = "+Inf"
_POLL: Final = 0.1  # seconds until a server notices that it is to end


class ExemplarMetricReader(PrometheusMetricReader):
    """The stock reader, with exemplars.

    The latest exemplar of a series stays with it, so that every one who scrapes sees
    it; there are no more than there are series. Thread-safe. A fault on our side leaves
    out exemplars and nothing else.

    Args:
        registry: Where to register, as of the stock reader.
        options: Its other arguments.
    """

    def __init__(
        self, *, registry: CollectorRegistry = REGISTRY, **options: Any
    ) -> None:
        inner = CollectorRegistry()
        super().__init__(registry=inner, **options)
        self._noted = _Noted()
        self._outer = registry
        self._exemplified = _Exemplified(inner, self._noted)
        registry.register(self._exemplified)

    def _receive_metrics(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,
        **kwargs: Any,
    ) -> None:
        guarded(self._noted.note, metrics_data)
        super()._receive_metrics(metrics_data, timeout_millis, **kwargs)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Leave the registry."""
        super().shutdown(timeout_millis, **kwargs)
        self._outer.unregister(self._exemplified)


def address() -> tuple[str, int]:
    """Return where the environment says that scrapes come in: host and port."""
    port = os.environ.get(OTEL_EXPORTER_PROMETHEUS_PORT, "9464")
    return os.environ.get(OTEL_EXPORTER_PROMETHEUS_HOST, "localhost"), int(port)


def serve(
    port: int, host: str = "localhost", registry: CollectorRegistry = REGISTRY
) -> tuple[ThreadingHTTPServer, threading.Thread]:
    """Serve a registry; Prometheus is shown new series of hangup at zero first.

    Otherwise as ``start_http_server`` of prometheus-client, which does not know what
    Prometheus has seen; :mod:`hangup.otel.firstzero` says why it matters.

    Raises:
        OSError: The port is taken.
    """
    scraped = CollectorRegistry()
    scraped.register(Held(registry))
    [family, *_], *_ = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )

    class Server(ThreadingHTTPServer):
        address_family = family
        request_queue_size = 128

    server = Server((host, port), handler(registry, scraped))
    thread = threading.Thread(
        target=server.serve_forever, args=(_POLL,), name="hangup-scrapes", daemon=True
    )
    thread.start()
    return server, thread


class AutoExemplarMetricReader(ExemplarMetricReader):
    """The same, and a server for it: what ``OTEL_METRICS_EXPORTER`` names.

    Raises:
        OSError: The port is taken. So it is in the second worker of a server that
            forks; see the README on many workers.
    """

    def __init__(self) -> None:
        super().__init__()
        host, port = address()
        try:
            self._server, self._thread = serve(port, host)
        except OSError:
            self._outer.unregister(self._exemplified)
            raise

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Leave the registry, and stop serving."""
        super().shutdown(timeout_millis, **kwargs)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout_millis / 1000)


class _Noted:
    """The latest exemplar of each series, as Prometheus spells the series."""

    def __init__(self) -> None:
        # By metric: which labels tell its points apart, and the exemplar by their
        # values and the bucket ("" of a counter).
        self._of: dict[str, tuple[set[str], dict[tuple[Labels, str], Exemplar]]] = {}

    def note(self, data: MetricsData) -> None:
        """Take the exemplars of what was collected."""
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._note_metric(metric)

    def _note_metric(self, metric: Metric) -> None:
        for point in metric.data.data_points:
            if not point.exemplars:
                continue
            labels = {
                _spelt(key): value if isinstance(value, str) else json.dumps(value)
                for key, value in (point.attributes or {}).items()
            }
            keys, found = self._of.setdefault(_spelt(metric.name), (set(), {}))
            keys.update(labels)
            values = frozenset((key, value) for key, value in labels.items() if value)
            for exemplar in point.exemplars:
                if not exemplar.trace_id:
                    continue
                bucket = ""
                if isinstance(point, HistogramDataPoint):
                    bounds = point.explicit_bounds
                    at = bisect_left(bounds, exemplar.value)
                    bucket = f"{bounds[at]}" if at < len(bounds) else _INFINITY
                found[values, bucket] = Exemplar(
                    {
                        "trace_id": f"{exemplar.trace_id:032x}",
                        "span_id": f"{exemplar.span_id or 0:016x}",
                    },
                    exemplar.value,
                    exemplar.time_unix_nano / 1e9,
                )

    def put(self, family: Family) -> None:
        """Put the exemplars on the samples of a family."""
        if family.type not in ("counter", "histogram"):
            return
        name = family.name
        if family.unit and name not in self._of:
            name = name.removesuffix(f"_{family.unit}")
        if name not in self._of:
            return
        keys, found = self._of[name]
        family.samples = [self._with(sample, keys, found) for sample in family.samples]

    @staticmethod
    def _with(
        sample: Sample, keys: set[str], found: dict[tuple[Labels, str], Exemplar]
    ) -> Sample:
        labels = sample.labels
        values = frozenset(
            (key, value) for key, value in labels.items() if key in keys and value
        )
        if sample.name.endswith("_total"):
            exemplar = found.get((values, ""))
        elif sample.name.endswith("_bucket"):
            exemplar = found.get((values, labels.get("le", "")))
        else:
            exemplar = None
        return sample if exemplar is None else sample._replace(exemplar=exemplar)


class _Exemplified(Collector):
    def __init__(self, inner: CollectorRegistry, noted: _Noted) -> None:
        self._inner = inner
        self._noted = noted

    def collect(self) -> Iterator[Family]:
        """Collect from the stock reader, and put the exemplars back."""
        for family in self._inner.collect():
            guarded(self._noted.put, family)
            yield family

    def describe(self) -> Iterator[Family]:
        """Describe nothing: to register is no reason to collect."""
        return iter(())


def _spelt(name: str) -> str:
    """Return a metric's or a label's name with all but its unit and ending."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name).removesuffix("_total")
