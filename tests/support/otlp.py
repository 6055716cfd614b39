"""An OTLP receiver on loopback, over HTTP and over gRPC, that decodes what comes."""

from __future__ import annotations

import gzip
import importlib
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_DELTA,
)

if TYPE_CHECKING:
    from types import TracebackType

grpc: Any = importlib.import_module("grpc")  # it has no types of its own
_SERVICE = "opentelemetry.proto.collector.metrics.v1.MetricsService"


class Point(NamedTuple):
    """One data point of a sum or a histogram.

    Attributes:
        instance: ``service.instance.id`` of whom it came from.
        name: The metric.
        labels: Its attributes.
        value: The sum, or the count of a histogram.
        delta: Whether it is what came since the last export.
        start: When what it counts began, in nanoseconds of Unix time.
        traces: The trace ids of its exemplars, in hexadecimal.
    """

    instance: str
    name: str
    labels: dict[str, str]
    value: float
    delta: bool
    start: int
    traces: tuple[str, ...]


class Receiver:
    """Takes metrics over both protocols, and spans over HTTP. Thread-safe.

    A context manager.

    Attributes:
        url: ``OTEL_EXPORTER_OTLP_ENDPOINT`` for HTTP, of any signal.
        http: The endpoint for ``OTLPMetricExporter`` of ``proto.http``.
        grpc: The one of ``proto.grpc``.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._points: list[Point] = []
        self._spans: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = receiver.take_posted(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_args: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="otlp"
        )
        self._grpc = grpc.server(ThreadPoolExecutor(2))
        export = grpc.unary_unary_rpc_method_handler(
            self._exported,
            request_deserializer=ExportMetricsServiceRequest.FromString,
            response_serializer=ExportMetricsServiceResponse.SerializeToString,
        )
        self._grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {"Export": export}),)
        )
        port = self._grpc.add_insecure_port("127.0.0.1:0")
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.http = f"{self.url}/v1/metrics"
        self.grpc = f"http://127.0.0.1:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._grpc.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._grpc.stop(None).wait(10)
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)

    def _exported(
        self, request: ExportMetricsServiceRequest, _context: object
    ) -> ExportMetricsServiceResponse:
        self.take(request)
        return ExportMetricsServiceResponse()

    def take_posted(self, path: str, body: bytes) -> bytes:
        """Keep what was posted; returns the answer."""
        if path == "/v1/traces":
            spans = _spans(ExportTraceServiceRequest.FromString(body))
            with self._changed:
                self._spans += spans
            return bytes(ExportTraceServiceResponse().SerializeToString())
        self.take(ExportMetricsServiceRequest.FromString(body))
        return bytes(ExportMetricsServiceResponse().SerializeToString())

    def spans(self) -> list[dict[str, Any]]:
        """The attributes of every span that came."""
        with self._changed:
            return list(self._spans)

    def take(self, request: ExportMetricsServiceRequest) -> None:
        """Keep what was exported."""
        with self._changed:
            self._points += _points(request)
            self._changed.notify_all()

    def points(self, name: str, /, **labels: str) -> list[Point]:
        """Every point that came of a metric; labels by the last word of their names."""
        with self._changed:
            return [
                one
                for one in self._points
                if one.name == name
                and all(one.labels.get(key) == of for key, of in labels.items())
            ]

    def total(self, name: str, /, **labels: str) -> float:
        """What the metric is now, over all instances and label sets."""
        sums: dict[object, float] = {}
        for one in self.points(name, **labels):
            series = (one.instance, tuple(sorted(one.labels.items())))
            before = sums.get(series, 0) if one.delta else 0
            sums[series] = before + one.value
        return sum(sums.values())

    def instances(self, name: str) -> set[str]:
        """From whom anything came."""
        return {one.instance for one in self.points(name)}


def _points(request: ExportMetricsServiceRequest) -> list[Point]:
    found = []
    for resource in request.resource_metrics:
        of = _labels(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind not in ("sum", "histogram"):
                    continue
                data = getattr(metric, kind)
                delta = data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
                found += [
                    Point(
                        of.get("id", ""),
                        metric.name,
                        _labels(point.attributes),
                        _value(point),
                        delta,
                        point.start_time_unix_nano,
                        tuple(one.trace_id.hex() for one in point.exemplars),
                    )
                    for point in data.data_points
                ]
    return found


def _value(point: Any) -> float:
    if hasattr(point, "count"):
        return float(point.count)
    return float(getattr(point, point.WhichOneof("value")))


def _labels(attributes: Any) -> dict[str, str]:
    """By the last word of each name; ``service.instance.id`` is ``id``."""
    return {
        one.key.rpartition(".")[2]: str(
            getattr(one.value, one.value.WhichOneof("value"))
        )
        for one in attributes
    }


def _spans(request: ExportTraceServiceRequest) -> list[dict[str, Any]]:
    return [
        {
            one.key: getattr(one.value, one.value.WhichOneof("value"))
            for one in span.attributes
        }
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
