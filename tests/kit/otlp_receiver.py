"""Decode what an OTLP/HTTP receiver got: real protobufs, as a collector reads them."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.kit.servers.scripted_server import Request, ScriptedServer

__all__ = ["attributes_of", "metric_requests", "points_of", "samples_of", "spans_of", "trace_requests"]


def metric_requests(server: ScriptedServer) -> list[ExportMetricsServiceRequest]:
    """Return the metrics that the server got, a message per request."""
    return [ExportMetricsServiceRequest.FromString(_body(request)) for request in _to(server, "/v1/metrics")]


def trace_requests(server: ScriptedServer) -> list[ExportTraceServiceRequest]:
    """Return the traces that the server got, a message per request."""
    return [ExportTraceServiceRequest.FromString(_body(request)) for request in _to(server, "/v1/traces")]


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, str | int | float]:
    """Return attributes as a dictionary."""
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}


def points_of(request: ExportMetricsServiceRequest) -> Iterator[tuple[Metric, NumberDataPoint]]:
    """Yield each point with its metric."""
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in getattr(metric, str(metric.WhichOneof("data"))).data_points:
                    yield metric, point


def samples_of(request: ExportMetricsServiceRequest) -> dict[str, int | float]:
    """Return the values by metric and labels as ``Reading.sample`` writes them, without the label ``query``."""
    samples: dict[str, int | float] = {}
    for metric, point in points_of(request):
        labels = {name: value for name, value in attributes_of(point.attributes).items() if name != "query"}
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        name = f"{metric.name}{{{text}}}" if text else metric.name
        samples[name] = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
    return samples


def spans_of(requests: Iterable[ExportTraceServiceRequest]) -> list[Span]:
    """Return the spans of all requests."""
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _to(server: ScriptedServer, path: str) -> list[Request]:
    return [request for request in server.seen if request.path == path]


def _body(request: Request) -> bytes:
    return gzip.decompress(request.body) if request.headers.get("Content-Encoding") == "gzip" else request.body
