"""Send metrics and traces to an OpenTelemetry collector, as OTLP over HTTP, by the official SDK.

Theory of operation.

1. Metrics are sent every ``OTEL_METRIC_EXPORT_INTERVAL`` milliseconds (60 s), and once more at the end. Counters are
   cumulative. Every point has the labels of its metric, and ``query`` with the name of the query.
2. Each batch is a trace: a span for the batch, and below it a span per phase. Below the phase ``run`` there is a span
   per executor, with the seconds of its slots by step as attributes. Spans are sent every ``OTEL_BSP_SCHEDULE_DELAY``
   milliseconds (5 s), and once more at the end.
3. A request is tried again by the SDK until ``OTEL_EXPORTER_OTLP_TIMEOUT`` (10 s). If it fails, ``export`` raises an
   error. The SDK's own log lines about it are not written, because the exporter's failure is reported once.

The SDK reads further variables of its specification itself: headers, certificates, compression, resource attributes.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from riffle_spark.errors import UnavailableError
from riffle_spark.observe.batch_spans import spans_of_batch
from riffle_spark.observe.readings import Reading
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts

_SERVICE: Final = "riffle-spark"
_SCOPE: Final = InstrumentationScope("riffle_spark")
_UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1"}
"""Units of UCUM. Every other unit is an annotation, such as ``{rows}``, which adds nothing to a name in Prometheus."""
_NS_PER_MS: Final = 1_000_000
_SPANS_KEPT: Final = 2048
_METRIC_INTERVAL_MS: Final = 60_000.0
_SPAN_INTERVAL_MS: Final = 5_000.0


class Otlp:
    """Exports readings as metrics and batches as traces. Its methods are called on one thread."""

    name = "OpenTelemetry (otlp_endpoint)"

    def __init__(
        self, endpoint: str, signals: str, seconds: Callable[[], float], environment: Mapping[str, str]
    ) -> None:
        """Create the exporters of the SDK. Nothing is sent yet.

        ``endpoint`` is the base URL of the receiver, or ``env``: the SDK then reads ``OTEL_EXPORTER_OTLP_ENDPOINT`` and
        its relatives. ``signals`` is ``all``, ``metrics`` or ``traces``. ``seconds`` returns the seconds of a
        monotonic clock. ``environment`` has the intervals, if they are set.
        """
        base = None if endpoint == "env" else endpoint.rstrip("/")
        self._metrics = OTLPMetricExporter(endpoint=base and f"{base}/v1/metrics") if signals != "traces" else None
        self._traces = OTLPSpanExporter(endpoint=base and f"{base}/v1/traces") if signals != "metrics" else None
        self._seconds = seconds
        self._metrics_due = _Due(environment.get("OTEL_METRIC_EXPORT_INTERVAL"), _METRIC_INTERVAL_MS, seconds)
        self._spans_due = _Due(environment.get("OTEL_BSP_SCHEDULE_DELAY"), _SPAN_INTERVAL_MS, seconds)
        self._spans: deque[ReadableSpan] = deque(maxlen=_SPANS_KEPT)
        self._resource: Resource | None = None
        self._start_ms: int | None = None
        self._unsent: tuple[DriverFacts, Sequence[Reading]] | None = None

    def export(self, report: BatchReport | None, facts: DriverFacts, readings: Sequence[Reading]) -> None:
        """Send the metrics and spans that are due. Raises ``UnavailableError`` if the receiver does not accept it."""
        if self._start_ms is None:
            self._start_ms = report.started_ms if report is not None else facts.time_ms
        if self._resource is None and facts.query_id:
            self._resource = resource_of(facts)
        if report is not None and self._traces is not None and self._resource is not None:
            self._spans.extend(spans_of_batch(report, facts, self._resource, _SCOPE))
        self._unsent = (facts, readings)
        self._send(everything=False)

    def close(self) -> None:
        """Send the last values and spans, and close the connections. Raises ``UnavailableError`` as ``export`` does."""
        try:
            self._send(everything=True)
        finally:
            for exporter in (self._metrics, self._traces):
                if exporter is not None:
                    exporter.shutdown()

    def _send(self, *, everything: bool) -> None:
        """Send metrics and spans that are due, or all of them. A failure of one does not keep back the other."""
        failures = []
        if self._spans and (everything or self._spans_due.is_due()):
            failures += self._send_spans()
        if self._unsent is not None and (everything or self._metrics_due.is_due()):
            failures += self._send_metrics(*self._unsent)
        if failures:
            # Cause: The receiver does not listen, refuses the request, or does not answer in time.
            raise UnavailableError(
                f"The OTLP receiver did not accept {' and '.join(failures)}.",
                remedy="Check otlp_endpoint and the receiver. If it takes metrics only, as Prometheus does, set "
                "otlp_signals = metrics.",
                where="otlp_endpoint",
                id="RIFFLE-1290",
            )

    def _send_spans(self) -> list[str]:
        """Send the waiting spans and drop them. Return a text if that failed."""
        assert self._traces is not None, "spans are collected only for traces"
        spans = list(self._spans)
        self._spans.clear()
        with _captured_logs() as lines:
            result = self._traces.export(spans)
        return [] if result is SpanExportResult.SUCCESS else [f"traces ({_reason(lines)})"]

    def _send_metrics(self, facts: DriverFacts, readings: Sequence[Reading]) -> list[str]:
        """Send the values. Return a text if that failed."""
        if self._metrics is None or self._resource is None:
            return []
        self._unsent = None
        data = metrics_data(readings, facts, self._resource, self._start_ms or facts.time_ms)
        with _captured_logs() as lines:
            result = self._metrics.export(data)
        return [] if result is MetricExportResult.SUCCESS else [f"metrics ({_reason(lines)})"]


class _Due:
    """Decides when to send again. An interval that is not a number of milliseconds is replaced by the default."""

    def __init__(self, interval_ms: str | None, default_ms: float, seconds: Callable[[], float]) -> None:
        try:
            self._interval = float(interval_ms or default_ms) / 1000
        except ValueError:
            self._interval = default_ms / 1000
        self._seconds = seconds
        self._next = seconds()

    def is_due(self) -> bool:
        """Return whether it is time to send. The next time is one interval later."""
        now = self._seconds()
        if now < self._next:
            return False
        self._next = now + self._interval
        return True


def resource_of(facts: DriverFacts) -> Resource:
    """Return the resource of a query. Attributes in the environment (``OTEL_RESOURCE_ATTRIBUTES``) have precedence."""
    attributes = {
        SERVICE_NAME: _SERVICE,
        "service.instance.id": facts.query_id,
        "riffle.query.id": facts.query_id,
        "riffle.query.name": query_label(facts),
    }
    return Resource(attributes).merge(OTELResourceDetector().detect())


def query_label(facts: DriverFacts) -> str:
    """Return the name of the query, or its id if it has no name."""
    return facts.query_name or facts.query_id


def metrics_data(readings: Iterable[Reading], facts: DriverFacts, resource: Resource, start_ms: int) -> MetricsData:
    """Return readings as the SDK's metrics, as of the time of the facts. Counters count since ``start_ms``."""
    sorted_readings = sorted(readings, key=lambda reading: reading.metric.name)
    metrics = [
        _metric(list(group), facts, start_ms) for _, group in groupby(sorted_readings, lambda reading: reading.metric)
    ]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(_SCOPE, metrics, "")], "")])


def _metric(readings: Sequence[Reading], facts: DriverFacts, start_ms: int) -> Metric:
    metric = readings[0].metric
    is_counter = metric.kind == "counter"
    points = [
        NumberDataPoint(
            attributes={**dict(zip(metric.labels, reading.labels, strict=True)), "query": query_label(facts)},
            start_time_unix_nano=start_ms * _NS_PER_MS if is_counter else 0,
            time_unix_nano=facts.time_ms * _NS_PER_MS,
            value=reading.value,
        )
        for reading in readings
    ]
    data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
    return Metric(metric.name, metric.meaning, _UNITS.get(metric.unit, f"{{{metric.unit}}}"), data)


@contextmanager
def _captured_logs() -> Iterator[list[str]]:
    """Collect the lines that the SDK's exporters log in this thread, and keep them out of the log."""
    thread = threading.get_ident()
    lines: list[str] = []

    def capture(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        lines.append(record.getMessage())
        return False

    loggers = [logging.getLogger(exporter.__module__) for exporter in (OTLPMetricExporter, OTLPSpanExporter)]
    for logger in loggers:
        logger.addFilter(capture)
    try:
        yield lines
    finally:
        for logger in loggers:
            logger.removeFilter(capture)


def _reason(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "no reason was logged"
